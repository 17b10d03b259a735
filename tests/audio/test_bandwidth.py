"""Where a spectrum ends, on signals whose band is known."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from scipy.signal import firwin, lfilter
from torch import Tensor
from waveforms import RATE

from torch_mapss.audio import bandwidth


def band(edge: float, seconds: float = 2.0, seed: int = 0) -> Tensor:
    """Noise that a long filter ends within 100 Hz of ``edge``."""
    noise = np.random.default_rng(seed).standard_normal(int(seconds * RATE))
    band = lfilter(firwin(1001, edge, fs=RATE, window=("kaiser", 9.0)), 1.0, noise)
    return torch.from_numpy(band).float()


PILOT = 0.005 * torch.sin(2 * torch.pi * 7000 * torch.arange(2 * RATE) / RATE)
CASES = {
    **{str(edge): (lambda edge=edge: band(edge), edge) for edge in (1e3, 3400.0, 5512.0, 7000.0)},
    "faint": (lambda: 1e-4 * band(3400.0), 3400.0),
    "rounded to 16 bits": (lambda: (0.02 * band(4000.0) * 2**15).round() / 2**15, 4000.0),
    "a pilot tone": (lambda: band(3000.0) + PILOT, 3000.0),
    "more frames than are looked at": (lambda: band(3000.0, 60.0), 3000.0),
    "short": (lambda: band(7999.0)[:100], RATE / 2),
}


@pytest.mark.parametrize("case", CASES)
def test_the_edge_of_a_band_is_found(case):
    make, edge = CASES[case]
    assert float(bandwidth(make(), RATE)) == pytest.approx(edge, abs=200.0)


def test_rare_sounds_count_and_pauses_do_not():
    wave = band(2000.0, 4.0)
    wave[:16_000] = 0.0
    wave[20_000:26_400] += 0.05 * band(8000.0 - 1.0, 0.4, seed=1)  # one consonant in ten
    assert float(bandwidth(wave, RATE)) > 7500.0


def test_bandwidth_of_noise_and_silence():
    waves = torch.stack([band(7999.0), torch.zeros(2 * RATE), torch.full((2 * RATE,), 0.5)])
    edges = bandwidth(waves, RATE)
    assert edges.dtype == torch.float64
    assert edges[:2].tolist() == [RATE / 2, 0.0]
    assert edges[2] < 100.0
