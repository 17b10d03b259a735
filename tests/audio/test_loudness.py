"""Loudness against the standard's recursion and test signals, and the gains that it gives."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch
from oracle_loudness import TABLE_48K, k_weighted, lufs
from scipy import signal
from torch import Tensor
from torch.autograd import gradcheck
from waveforms import loud_noise, sine_steps, syllables

from torch_mapss import audio
from torch_mapss.audio import loudness

RATES = (8000, 16000, 24000, 44100, 48000)


def loudness_oracle(x: Tensor, rate: int) -> float:
    """BS.1770-4, one channel, block by block."""
    y, step = k_weighted(x.double().numpy(), rate), round(rate / 10)
    z = [np.mean(y[i : i + 4 * step] ** 2) for i in range(0, len(y) - 4 * step + 1, step)]
    power = np.maximum(z, 1e-99)
    above = power[lufs(power) > -70]
    return float(lufs(above[lufs(above) > lufs(above.mean()) - 10].mean()))


@pytest.mark.parametrize("rate", RATES)
@pytest.mark.parametrize(("dtype", "tolerance"), [(torch.float64, 1e-12), (torch.float32, 1e-6)])
def test_k_weighting_equals_the_recursion(rate, dtype, tolerance):
    x = loud_noise(rate // 2 + 17, seed=rate)
    x[:100] += 3  # a step: the high-pass must be at rest before the first sample
    expected = k_weighted(x.numpy(), rate)
    got = loudness.k_weighted(x.to(dtype), rate).double().numpy()
    assert np.abs(got - expected).max() <= tolerance * np.abs(expected).max()


def test_loudness_of_sines_equals_the_standard():
    # BS.1770-4, annex 1: 0 dBFS at 997 Hz in one channel reads -3.01.
    x = sine_steps([(0, 5)], 48000, hertz=997)
    assert float(audio.integrated_loudness(x, 48000)) == pytest.approx(-3.01, abs=0.01)
    # Far below half the rate no warping is left: what the standard's filter gives at 48 kHz.
    gain = np.prod([abs(signal.freqz(b, a, [np.pi / 120])[1][0]) for b, a in TABLE_48K])
    expected = float(lufs(gain**2 / 2))
    for rate in RATES:
        measured = float(audio.integrated_loudness(sine_steps([(0, 5)], rate, hertz=200), rate))
        assert measured == pytest.approx(expected, abs=0.01)


# EBU Tech 3341, table 1, cases 1 to 5. They are stereo with the same tone in both channels, whose
# powers add; one channel alone reads 10 log10(2) = 3.01 LU less, so the levels are raised by that.
EBU_CASES = {
    "1": ([(-23, 20)], -23),
    "2": ([(-33, 20)], -33),
    "3": ([(-36, 10), (-23, 60), (-36, 10)], -23),
    "4": ([(-72, 10), (-36, 10), (-23, 60), (-36, 10), (-72, 10)], -23),
    "5": ([(-26, 20), (-20, 20.1), (-26, 20)], -23),
}


@pytest.mark.parametrize(
    ("case", "rate"), [*((case, 16000) for case in EBU_CASES), ("1", 8000), ("5", 44100)]
)
def test_ebu_tech_3341(case, rate):
    sections, expected = EBU_CASES[case]
    mono = [(level + 10 * math.log10(2), seconds) for level, seconds in sections]
    # At 8 kHz the bilinear transform itself reads 1 kHz 0.2 LU low, so the tone is placed where it
    # is exact, at the shelf's corner, and its level corrected by the standard's own response there.
    hertz, correction = 1000.0, 0.0
    if rate == 8000:
        hertz = 1681.97
        w = 2 * np.pi * np.array([1000.0, hertz]) / 48000
        gains = np.prod([np.abs(signal.freqz(b, a, w)[1]) for b, a in TABLE_48K], axis=0)
        correction = float(20 * np.log10(gains[1] / gains[0]))
    x = sine_steps(mono, rate, hertz).float()
    reading = float(audio.integrated_loudness(x, rate)) - correction
    assert reading == pytest.approx(expected, abs=0.1)


@pytest.mark.parametrize("rate", [*RATES, 11025])  # a block is no whole number of samples, too
def test_loudness_of_speech_like_noise(rate):
    pyloudnorm = pytest.importorskip("pyloudnorm")
    for level in (1.0, 1e-2):
        x = level * syllables(6.05, rate)
        got = float(audio.integrated_loudness(x, rate))
        assert got == pytest.approx(loudness_oracle(x, rate), abs=1e-9)
        assert float(audio.integrated_loudness(x.float(), rate)) == pytest.approx(got, abs=1e-4)
        expected = pyloudnorm.Meter(rate).integrated_loudness(x.numpy())
        assert got == pytest.approx(expected, abs=0.1)
        # The relative gate matters here, so the agreement above is one of gating too.
        assert got > float(loudness.lufs(loudness.block_powers(x, rate)[1])) + 0.5


@pytest.mark.parametrize(("samples", "gain"), [(3200, 1.0), (48000, 1e-5)])
def test_short_or_very_quiet_signals_are_ungated(samples, gain):
    x = gain * syllables(samples / 16000, 16000)
    expected = lufs(np.mean(k_weighted(x.numpy(), 16000) ** 2))
    assert (expected < -100) == (gain < 1)
    assert float(audio.integrated_loudness(x, 16000)) == pytest.approx(expected, abs=1e-9)
    assert audio.integrated_loudness(x[100:101], 16000).isfinite()


def test_the_absolute_gate_is_absolute():
    # Half the signal lies 20 dB below the gate: it must not pull the mean down by 3 dB.
    tones = sine_steps([(-60, 4), (-90, 4)], 16000), sine_steps([(-60, 4)], 16000)
    measured, expected = (float(audio.integrated_loudness(tone, 16000)) for tone in tones)
    assert measured == pytest.approx(expected, abs=0.3)


@pytest.mark.filterwarnings("ignore:Anomaly Detection")
@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float32, torch.float64])
def test_silence_is_minus_infinity_and_stays(dtype):
    x = torch.zeros(2, 16000, dtype=dtype)
    x[1] = (0.1 * loud_noise(16000)).to(dtype)
    x.requires_grad_()
    loudness = audio.integrated_loudness(x, 16000)
    assert loudness.isfinite().tolist() == [False, True]
    assert loudness[0] == -torch.inf
    assert loudness.dtype == (torch.float64 if dtype == torch.float64 else torch.float32)
    y = audio.normalize_loudness(x, 16000)
    assert torch.equal(y[0], torch.zeros_like(y[0]))
    with torch.autograd.detect_anomaly(check_nan=True):  # no NaN on the way either
        (gradient,) = torch.autograd.grad((y * loud_noise(2, 16000).to(y)).sum() + loudness[1], x)
    assert gradient.isfinite().all()
    assert (gradient[0] == 0).all()
    assert (gradient[1] != 0).any()


def test_silence_is_a_peak_below_a_threshold():
    x = torch.tensor([[0.0, 2e-31], [0.0, 2e-30], [0.0, 0.0]])
    assert audio.is_silent(x).tolist() == [True, False, True]
    expected = audio.normalize_loudness(torch.tensor([0.0, 1.0]), 16000)
    normal = audio.normalize_loudness(x, 16000)
    torch.testing.assert_close(normal, torch.stack([x[0], expected, x[2]]))


@pytest.mark.parametrize(
    ("rate", "target"), [(8000, -23.0), (16000, -30.0), (44100, -23.0), (16000, -80.0)]
)
def test_normalised_output_reads_the_target(rate, target):
    x = torch.stack([syllables(4, rate, seed=k) * 10.0 ** (k - 2) for k in range(4)])
    y = audio.normalize_loudness(x, rate, target=target, peak=math.inf)
    for row in y:  # a target below the gate is that of the whole signal
        measured = (
            audio.integrated_loudness(row, rate) if target < -70 else loudness_oracle(row, rate)
        )
        assert float(measured) == pytest.approx(target, abs=1e-6)
    shape = y / x
    assert torch.allclose(shape, shape[:, :1].expand_as(shape), rtol=1e-9)  # a gain, no filter


@pytest.mark.parametrize("seconds", [0.2, 3.0])
@pytest.mark.parametrize("gain", [25.0, 1e-2, 1e-5, 1e-12, 1e-20, 1e10, -1.0])
def test_gain_changes_nothing_and_leaves_a_gradient(gain, seconds):
    x = syllables(seconds, 16000).float()
    expected = audio.normalize_loudness(x, 16000) * math.copysign(1, gain)
    leaf = (gain * x).requires_grad_()
    got = audio.normalize_loudness(leaf, 16000)
    if gain != 1e-20:  # silence
        assert (got - expected).abs().max() <= 1e-5 * expected.abs().max()
    (g,) = torch.autograd.grad((got * loud_noise(len(x)).float()).sum(), leaf)
    assert g.isfinite().all()
    assert g.abs().max() * abs(gain) > 1e-3


def test_peak_is_limited_by_scaling():
    x = 1e-3 * loud_noise(16000, seed=1)
    x[8000] = 25.0
    free = audio.normalize_loudness(x, 16000, peak=math.inf)
    assert free.abs().max() > 1
    for peak in (1.0, 0.5):
        limited = audio.normalize_loudness(x, 16000, peak=peak)
        assert float(limited.abs().max()) == pytest.approx(peak, abs=1e-12)
        assert torch.allclose(limited / limited[8000], free / free[8000], rtol=1e-12)
    # Below the limit the two agree to the bit.
    calm = loud_noise(16000)
    free = audio.normalize_loudness(calm, 16000, peak=math.inf)
    assert torch.equal(audio.normalize_loudness(calm, 16000), free)


@pytest.mark.parametrize("shape", [(), (1,), (2, 3), (2, 1, 4)])
def test_batching_equals_looping(shape):
    rows = math.prod(shape)
    x = torch.stack([syllables(1.3, 8000, seed=k) * 10.0**-k for k in range(rows)])
    x[-1] = 0 if rows > 2 else x[-1]
    batch = x.reshape(*shape, -1)
    loudness = audio.integrated_loudness(batch, 8000)
    normal = audio.normalize_loudness(batch, 8000)
    assert (loudness.shape, normal.shape) == (shape, batch.shape)
    loudness_by_row = torch.stack([audio.integrated_loudness(row, 8000) for row in x])
    assert torch.allclose(loudness.reshape(-1), loudness_by_row, rtol=1e-12)
    normalised_rows = torch.stack([audio.normalize_loudness(row, 8000) for row in x])
    assert torch.allclose(normal.reshape(rows, -1), normalised_rows, rtol=1e-10)
    assert audio.normalize_loudness(batch.reshape(rows, -1)[:0], 8000).shape == (0, x.shape[-1])


def short_signal(kind: str) -> Tensor:
    """0.6 s at 8 kHz is 3 blocks."""
    x = 0.1 * loud_noise(4800, seed=5)
    if kind == "silent span":
        x[1000:4000] = 0
    if kind == "peak":
        x[2000] = 9.0
    return {"loud": 30 * x, "short": x[:700]}.get(kind, x)


@pytest.mark.parametrize("kind", ["plain", "silent span", "loud", "peak", "short"])
def test_gradients_against_differences(kind):
    x = short_signal(kind)
    window = slice(1995, 2005) if kind != "short" else slice(300, 310)
    weight = loud_noise(len(x), seed=6)

    def insert(samples: Tensor) -> Tensor:
        return torch.cat([x[: window.start], samples, x[window.stop :]])

    samples = x[window].clone().requires_grad_()
    for function in (audio.integrated_loudness, lambda *x: audio.normalize_loudness(*x) @ weight):
        assert gradcheck(lambda p, f=function: f(insert(p), 8000), samples, eps=1e-6)
    peak = float(audio.normalize_loudness(x, 8000, peak=math.inf).abs().max())
    assert (peak > 1) == (kind == "peak")  # where the limit acts
    # The whole signal at once, along its own direction: a gain must not change the output.
    y = x.clone().requires_grad_()
    (g,) = torch.autograd.grad((audio.normalize_loudness(y, 8000) * weight).sum(), y)
    assert abs(float((g * x).sum())) < 1e-9 * float(g.norm() * x.norm())


def test_loudness_refuses_invalid_signals():
    x = loud_noise(2, 800)
    x[1, 7] = torch.nan
    for function in (audio.integrated_loudness, audio.normalize_loudness):
        for wave, rate, error, words in (
            (x, 16000, ValueError, r"\(1, 7\)"),
            (x[0], 4000, ValueError, "at least 8000, got 4000"),
            (x[0], 16000.5, TypeError, "sample_rate must be a whole number"),
            (x[:, :0], 16000, ValueError, "must have samples"),
            (torch.ones(800, dtype=torch.int16), 16000, TypeError, "32768"),
        ):
            with pytest.raises(error, match=words):
                function(wave, rate)
    for name, value in (("peak", 0), ("target", math.nan)):
        with pytest.raises(ValueError, match=name):
            audio.normalize_loudness(x[0], 16000, **{name: value})


@pytest.mark.parametrize("step", [1600, 8000])
def test_gain_from_segments_shorter_than_the_filter(step):
    waves = 0.05 * loud_noise(2, 30_000).float()
    gain = loudness.metered(waves, 16_000, 2 * step).gain(-23.0)
    loud = loudness.at_loudness(waves, 16_000, -23.0)
    torch.testing.assert_close(gain[:, None] * waves, loud, rtol=1e-5, atol=1e-6)
