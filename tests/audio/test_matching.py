"""How late an estimate is, and all pairs of SI-SDR."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from torch import Tensor
from waveforms import noise

from torch_mapss.audio import estimate_lag, is_constant, shift


def lag_by_numpy(estimate: Tensor, reference: Tensor, limit: int) -> tuple[int, float]:
    """The definition, with every sum written out, for one clear peak."""
    e, s = (x.double().numpy() - x.double().numpy().mean() for x in (estimate, reference))
    sizes = []
    for lag in range(-limit, limit + 1):
        reference_part = s[max(0, -lag) : len(s) - max(0, lag)]
        estimate_part = e[max(0, lag) : len(e) - max(0, -lag)]
        smallest_energies = 0.25 * np.array([(s**2).sum(), (e**2).sum()])
        energies = np.maximum(
            [(reference_part**2).sum(), (estimate_part**2).sum()], smallest_energies
        )
        sizes.append(abs((reference_part * estimate_part).sum()) / np.sqrt(energies.prod()))
    return int(np.argmax(sizes)) - limit, float(np.max(sizes))


@pytest.mark.parametrize("samples", [700, 150_001])  # one piece, and three
@pytest.mark.parametrize("delay", [0, 3, -250, 400])
def test_lag_is_where_the_correlation_is_largest(samples, delay):
    reference = noise(samples)
    estimate = shift(reference, -delay) + 0.7 * noise(samples, seed=1)
    lag = estimate_lag(-estimate, reference, 500)  # an inverted estimate is as late
    assert int(lag.samples) == delay
    if samples < 1000:
        expected = lag_by_numpy(estimate, reference, 500)
        assert (int(lag.samples), float(lag.correlation)) == pytest.approx(expected, abs=1e-9)


def test_lags_of_a_batch_are_those_of_its_rows():
    references = noise(2, 3, 2000)
    delays = torch.tensor([[5, -7, 0], [40, 1, -90]])
    rows = zip(references.flatten(0, 1), delays.flatten().tolist())
    estimates = torch.stack([shift(wave, -lag) for wave, lag in rows]).reshape(2, 3, -1)
    assert torch.equal(estimate_lag(estimates, references, 100).samples, delays)


def test_of_equal_peaks_the_shortest_lag_is_taken():
    tone = torch.sin(2 * torch.pi * torch.arange(8000) / 80)
    assert int(estimate_lag(tone, tone, 400).samples) == 0
    assert int(estimate_lag(shift(tone, -30), tone, 400).samples) == -10  # which is 30, inverted
    lag = estimate_lag(torch.ones(100), noise(100), 50)
    assert (int(lag.samples), float(lag.correlation)) == (0, 0.0)


def test_shift_moves_and_fills_with_zeros():
    wave = torch.arange(1.0, 6.0)
    assert shift(wave, 2).tolist() == [3, 4, 5, 0, 0]
    assert shift(wave, -2).tolist() == [0, 0, 1, 2, 3]
    assert torch.equal(shift(wave, 0), wave)
    with pytest.raises(ValueError, match="nothing would be left"):
        shift(wave, 5)
    with pytest.raises(TypeError, match="whole number"):
        shift(wave, 1.5)  # type: ignore[arg-type]


def test_shapes_of_a_lag_and_silence():
    with pytest.raises(ValueError, match="one shape"):
        estimate_lag(noise(2, 100), noise(3, 100), 10)
    with pytest.raises(ValueError, match="at least 0"):
        estimate_lag(noise(100), noise(100), -1)
    waves = torch.stack([torch.zeros(50), torch.full((50,), 0.3), 1e-9 * noise(50)])
    assert is_constant(waves).tolist() == [True, True, False]
