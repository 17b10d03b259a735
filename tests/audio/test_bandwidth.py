"""Where a spectrum ends, on signals whose band is known."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from scipy.signal import firwin, lfilter
from torch import Tensor

from torch_mapss.audio import bandwidth

RATE = 16_000


def band(edge: float, seconds: float = 2.0, seed: int = 0) -> Tensor:
    """Noise that a long filter ends within 100 Hz of ``edge``."""
    noise = np.random.default_rng(seed).standard_normal(int(seconds * RATE))
    band = lfilter(firwin(1001, edge, fs=RATE, window=("kaiser", 9.0)), 1.0, noise)
    return torch.from_numpy(band).float()


@pytest.mark.parametrize("edge", [1000.0, 3400.0, 4000.0, 5512.0, 7000.0])
@pytest.mark.parametrize("gain", [1.0, 1e-4])
def test_the_edge_of_a_band_is_found(edge: float, gain: float) -> None:
    assert float(bandwidth(gain * band(edge), RATE)) == pytest.approx(edge, abs=200.0)


def test_rounding_to_16_bits_is_no_band() -> None:
    quiet = 0.02 * band(4000.0)  # 40 dB below full scale
    rounded = (quiet * 2**15).round() / 2**15
    assert float(bandwidth(rounded, RATE)) == pytest.approx(4000.0, abs=200.0)


def test_rare_sounds_count_and_pauses_do_not() -> None:
    wave = band(2000.0, 4.0)
    wave[:16_000] = 0.0
    wave[20_000:26_400] += 0.05 * band(8000.0 - 1.0, 0.4, seed=1)  # one consonant in ten
    assert float(bandwidth(wave, RATE)) > 7500.0


def test_noise_fills_the_band_and_silence_none() -> None:
    waves = torch.stack([band(7999.0), torch.zeros(2 * RATE), torch.full((2 * RATE,), 0.5)])
    found = bandwidth(waves, RATE)
    assert found.dtype == torch.float64
    assert found[0] == RATE / 2
    assert found[1] == 0.0
    assert found[2] < 100.0


def test_a_pilot_tone_is_no_band() -> None:
    tone = 0.5 * torch.sin(2 * torch.pi * 7000 * torch.arange(2 * RATE) / RATE)
    assert float(bandwidth(band(3000.0) + 0.01 * tone, RATE)) == pytest.approx(3000.0, abs=200.0)


def test_short_and_long_signals() -> None:
    assert float(bandwidth(band(7999.0)[:100], RATE)) == RATE / 2
    long = band(3000.0, 60.0)  # more frames than are looked at
    assert float(bandwidth(long, RATE)) == pytest.approx(3000.0, abs=200.0)
