"""The level of an output, taken from where its reference plays."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch
from oracle_loudness import k_weighted, lufs
from torch import Tensor
from torch.autograd import gradcheck
from waveforms import loud_noise, syllables

from torch_mapss.audio import integrated_loudness, normalize_loudness
from torch_mapss.audio.frames import frame_rms, frame_times
from torch_mapss.audio.loudness import at_loudness, metered, passing_blocks

RATE, TARGET = 16_000, -23.0


def block_powers(x: Tensor, rate: int) -> np.ndarray:
    weighted, step = k_weighted(x.double().numpy(), rate), round(rate / 10)
    starts = range(0, len(x) - 4 * step + 1, step)
    return np.array([np.mean(weighted[i : i + 4 * step] ** 2) for i in starts])


def gates_oracle(reference: Tensor, rate: int) -> np.ndarray:
    """Blocks that pass both gates of BS.1770-4 once the reference reads -23 LUFS: by iteration."""
    power, gain = np.maximum(block_powers(reference, rate), 1e-99), 1.0
    for _ in range(20):
        loud = lufs(power * gain**2)
        above = loud > -70
        if not above.any():
            return above
        passing = above & (loud > lufs((power * gain**2)[above].mean()) - 10)
        gain *= 10 ** ((TARGET - lufs((power * gain**2)[passing].mean())) / 20)
    return passing


def gain_oracle(estimate: Tensor, reference: Tensor, rate: int) -> float:
    power = block_powers(estimate, rate)
    passing = gates_oracle(reference, rate) if len(power) else np.zeros(0, bool)
    if not passing.any():
        power = k_weighted(estimate.double().numpy(), rate) ** 2
        passing = np.ones(len(power), bool)
    gain = 10 ** ((TARGET - lufs(power[passing].mean())) / 20)
    return min(gain, 1.0 / float(estimate.abs().max()))


def levelled(estimate: Tensor, reference: Tensor, rate: int = RATE) -> Tensor:
    return at_loudness(estimate, rate, TARGET, gates=passing_blocks(reference, rate, TARGET))


@pytest.mark.parametrize("seconds", [0.25, 6.0])
@pytest.mark.parametrize("rate", [8000, 16_000, 44_100])
def test_equals_the_oracle(rate, seconds):
    reference = syllables(seconds, rate)
    estimate = (
        reference + 0.1 * syllables(seconds, rate, seed=1) + 0.01 * loud_noise(len(reference))
    )
    gain = levelled(estimate, reference, rate) / estimate
    expected = gain_oracle(estimate, reference, rate)
    torch.testing.assert_close(gain, torch.full_like(gain, expected), rtol=1e-9, atol=0)


def pausing(seconds: float = 15.0, plays: float = 3.0) -> tuple[Tensor, Tensor]:
    """A source that plays at the beginning, and noise from its pause on."""
    wave = 0.1 * loud_noise(2, round(seconds * RATE), seed=2).float()
    pauses = torch.arange(wave.shape[-1]) >= plays * RATE
    return torch.where(pauses, 0.0, wave[0]), torch.where(pauses, wave[1], 0.0)


@pytest.mark.parametrize("leakage", [0.01, 0.1, 0.2, 1.0])
def test_leakage_in_a_pause_does_not_change_the_level(leakage):
    reference, noise_of_pause = pausing()
    plays = slice(0, 3 * RATE)
    expected = at_loudness(reference, RATE, TARGET)[plays]
    # The last block that passes ends 300 ms after the source does.
    later = torch.where(torch.arange(len(reference)) < 3.3 * RATE, 0.0, noise_of_pause)
    torch.testing.assert_close(levelled(reference + leakage * later, reference)[plays], expected)
    estimate = reference + leakage * noise_of_pause
    gain = (levelled(estimate, reference)[plays] / expected).nanmedian()
    assert abs(20 * math.log10(gain)) < 0.25 * leakage**2
    by_own_gates = (at_loudness(estimate, RATE, TARGET)[plays] / expected).nanmedian()
    if leakage == 0.2:  # passes the gates of the estimate itself, so all of it became louder
        assert by_own_gates > 1.2


def test_gain_of_an_estimate_and_of_a_reference_is_free():
    reference = syllables(3.0, RATE)
    estimate = reference + 0.3 * syllables(3.0, RATE, seed=1)
    expected = levelled(estimate, reference)
    for gain in (1e-6, 1e-2, 25.0, 1e6):
        torch.testing.assert_close(levelled(gain * estimate, reference), expected)
        torch.testing.assert_close(levelled(estimate, gain * reference), expected)
    torch.testing.assert_close(levelled(reference, reference), at_loudness(reference, RATE, TARGET))


def test_batch_equals_rows_and_a_silent_reference_counts_the_whole():
    references = torch.stack([syllables(2.0, RATE, seed=k) for k in range(3)])
    references[1] = 0.0
    estimates = references.roll(1, 0) + 0.1 * loud_noise(*references.shape)
    levelled_batch = levelled(estimates, references)
    for row, estimate, reference in zip(levelled_batch, estimates, references):
        torch.testing.assert_close(row, levelled(estimate, reference), rtol=1e-12, atol=1e-14)
    assert not passing_blocks(references, RATE, TARGET)[1].any()
    expected = gain_oracle(estimates[1], references[1], RATE) * estimates[1]
    torch.testing.assert_close(levelled_batch[1], expected, rtol=1e-9, atol=0)


def test_silence_where_the_source_plays_is_limited_by_the_peak():
    reference, estimate = pausing(4.0, 2.0)
    estimate[: 3 * RATE] = 0.0
    leaf = estimate.requires_grad_()
    loud = levelled(leaf, reference)
    assert float(loud.detach().abs().max()) == pytest.approx(1.0)
    (slope,) = torch.autograd.grad((loud * loud_noise(len(reference)).float()).sum(), leaf)
    assert slope.isfinite().all()
    nothing = torch.zeros_like(reference)
    assert torch.equal(levelled(nothing, reference), nothing)


def test_gradients_against_differences():
    reference = syllables(1.2, 8000)
    estimate = reference + 0.1 * loud_noise(len(reference))
    weight = loud_noise(len(reference), seed=4)
    gates = passing_blocks(reference, 8000, TARGET)
    passing = int(gates.nonzero()[0]) * 800 + 100

    def weighted(samples: Tensor) -> Tensor:
        wave = torch.cat([estimate[:passing], samples, estimate[passing + 8 :]])
        return at_loudness(wave, 8000, TARGET, gates=gates) @ weight

    assert gradcheck(weighted, estimate[passing : passing + 8].clone().requires_grad_(), eps=1e-6)


@pytest.mark.parametrize("at_once", [4000, 200_000])
def test_a_meter_of_pieces_finds_the_same_gates_and_gains(at_once):
    references = torch.stack([syllables(5.0, RATE, seed=k).float() for k in range(2)])
    estimates = references + 0.2 * references.flip(0)
    gates = metered(references, RATE, at_once).passing_blocks(TARGET)
    assert torch.equal(gates, passing_blocks(references, RATE, TARGET))
    gain = metered(estimates, RATE, at_once).gain(TARGET, gates=gates)
    expected = levelled(estimates, references)
    torch.testing.assert_close(gain.unsqueeze(-1) * estimates, expected, rtol=1e-5, atol=1e-6)


def test_another_default_device_changes_nothing():
    wave = syllables(2.0, 24_000)  # a rate whose filter is not cached yet
    try:
        torch.set_default_device("meta")
        loudness_and_wave = integrated_loudness(wave, 24_000), normalize_loudness(wave, 24_000)
        times = frame_times(3, 400, 320, RATE)
        level = frame_rms(wave[:10], 400, 320)
    finally:
        torch.set_default_device(None)
    assert math.isclose(float(loudness_and_wave[0]), float(integrated_loudness(wave, 24_000)))
    assert torch.equal(loudness_and_wave[1], normalize_loudness(wave, 24_000))
    assert times.device == level.device == wave.device
