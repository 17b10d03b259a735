"""Waveforms and frames: types, channels, resampling, activity, against independent computations."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch.autograd import gradcheck
from waveforms import loud_noise, sine_steps, syllables

from torch_mapss import audio


@pytest.mark.parametrize("dtype", ["int8", "int16", "int32", ">i2"])
def test_integers_are_scaled(dtype):
    full = 2 ** (8 * np.dtype(dtype).itemsize - 1)
    x = np.array([[-full, 0, full // 2]], dtype=dtype)
    expected = torch.tensor([[-1.0, 0.0, 0.5]])
    assert torch.equal(audio.as_waveform(x), expected)
    if not dtype.startswith(">"):
        assert torch.equal(audio.as_waveform(torch.from_numpy(x)), expected)
    unsigned = torch.tensor([0, 128, 192], dtype=torch.uint8)
    assert torch.equal(audio.as_waveform(unsigned), expected[0])
    view = np.arange(6, dtype=np.float32)[::-2]
    view.flags.writeable = False
    assert audio.as_waveform(view).tolist() == [5.0, 3.0, 1.0]


def test_floats_keep_or_gain_precision():
    for low in (torch.float16, torch.bfloat16, torch.float32):
        assert audio.as_waveform(torch.ones(3, dtype=low)).dtype == torch.float32
    assert audio.as_waveform(torch.ones(3, dtype=torch.float64)).dtype == torch.float64
    assert audio.as_waveform(np.ones(3, dtype=np.longdouble)).dtype == torch.float64
    x = torch.ones(3, requires_grad=True)
    assert audio.as_waveform(x) is x


def test_other_types_are_refused_by_name():
    arrays = np.ones(3, dtype=bool), np.ones(3, dtype=complex), np.array(["a"])
    dtypes = torch.int64, torch.complex64, torch.bool
    for bad in ([0.0, 1.0], *arrays, *(torch.ones(3, dtype=dtype) for dtype in dtypes)):
        with pytest.raises(TypeError, match="estimates must"):
            audio.as_waveform(bad, "estimates")
    with pytest.raises(ValueError, match="time axis"):
        audio.as_waveform(torch.tensor(1.0))


def test_mono_is_the_mean():
    x = loud_noise(2, 3, 10)
    assert torch.allclose(audio.to_mono(x), (x[:, 0] + x[:, 1] + x[:, 2]) / 3)
    for wrong in (torch.ones(5), torch.ones(0, 5)):
        with pytest.raises(ValueError, match="channel axis"):
            audio.to_mono(wrong)


@pytest.mark.parametrize(("orig", "new_rate"), [(44100, 16000), (8000, 16000), (16000, 24000)])
@pytest.mark.parametrize("samples", [1, 400, 16001])
def test_resampling_is_that_of_torchaudio(orig, new_rate, samples):
    import torchaudio

    for dtype in (torch.float32, torch.float64):
        wave = torch.randn(2, 3, samples, dtype=dtype)
        expected = torchaudio.functional.resample(wave, orig, new_rate)
        torch.testing.assert_close(audio.resample(wave, orig, new_rate), expected)


@pytest.mark.parametrize("dtype", [torch.float16, torch.float32, torch.float64])
def test_resampling_moves_a_tone(dtype):
    x, expected = (
        torch.stack([sine_steps([(-6, 1)], rate, hertz) for hertz in (1000, 440)])
        for rate in (44100, 16000)
    )
    y = audio.resample(x := x.to(dtype), 44100, 16000)
    assert y.dtype == (torch.float64 if dtype == torch.float64 else torch.float32)
    assert y.shape == expected.shape
    assert (y.double() - expected)[:, 200:-200].abs().max() < 2e-3
    leaf = x.requires_grad_()
    with torch.autocast("cpu", dtype=torch.bfloat16):  # which changes nothing
        under_autocast = audio.resample(leaf, 44100, 16000)
    assert torch.equal(under_autocast, y)
    (g,) = torch.autograd.grad(under_autocast.square().sum(), leaf)
    assert g.isfinite().all()
    assert (g != 0).any()


def test_rates_must_be_whole_and_workable():
    x = torch.ones(100)
    assert audio.resample(x, 16000, 16000) is x
    for bad in (16000.5, "16000", True, None):
        with pytest.raises(TypeError, match="must be a whole number"):
            audio.resample(x, 8000, bad)
    for rates, words in (
        ((0, 1), "at least 1"),
        ((-8, 1), "at least 1"),
        ((44100, 44101), "no com"),
    ):
        with pytest.raises(ValueError, match=words):
            audio.resample(x, *rates)
    assert audio.resample(x, np.int64(8000), np.int32(16000)).shape == (200,)  # type: ignore[arg-type]


@given(st.integers(0, 3000), st.integers(1, 500), st.integers(1, 500))
@settings(max_examples=100, deadline=None)
def test_frames_are_those_that_fit(samples, receptive_field, hop):
    fits = [s for s in range(0, samples, hop) if s + receptive_field <= samples]
    assert audio.frame_count(samples, receptive_field, hop) == len(fits)
    x = torch.arange(2 * samples, dtype=torch.float64).reshape(2, samples)
    frames = audio.frame_signal(x, receptive_field, hop)
    assert frames.shape == (2, len(fits), receptive_field)
    assert not fits or frames.data_ptr() == x.data_ptr()  # a view
    assert frames[0, :, 0].tolist() == fits
    assert audio.frame_rms(x, receptive_field, hop).shape == (2, len(fits))
    times = audio.frame_times(len(fits), receptive_field, hop, 100)
    assert times.tolist() == [(s + receptive_field / 2) / 100 for s in fits]


def test_frame_rms_equals_a_loop_and_keeps_the_digits_of_quiet_frames():
    x = loud_noise(2, 2, 2000, dtype=torch.float32)
    for receptive_field, hop in ((400, 320), (97, 31), (5, 9), (1, 1)):
        got = audio.frame_rms(x, receptive_field, hop)
        frames = audio.frame_signal(x.double(), receptive_field, hop)
        assert got.dtype == torch.float64
        assert torch.allclose(got, frames.square().mean(-1).sqrt(), rtol=1e-14)
    x = torch.cat([torch.full((4000,), 1e4), torch.full((4000,), 1e-6)])
    quiet = float(torch.tensor(1e-6))
    assert float(audio.frame_rms(x, 400, 320)[-1]) == pytest.approx(quiet, rel=1e-12)
    x = 0.1 * loud_noise(60)
    x[20:40] = 0
    (g,) = torch.autograd.grad(audio.frame_rms(x.requires_grad_(), 10, 10).sum(), x)
    assert (g[20:40] == 0).all()
    loud = x.detach()[:20].clone().requires_grad_()
    assert gradcheck(lambda y: audio.frame_rms(y, 10, 7), loud)


def test_activity_is_relative_to_the_source_itself():
    # RMS of the whole is 1 / sqrt(2); the threshold is 0.0707.
    x = torch.tensor([[1.0, 0.06], [1.0, 0.08], [1e-20, 0.0]]).repeat_interleave(4000, 1)
    active = audio.source_activity(x, 400, 400)
    expected = torch.ones(3, 20, dtype=torch.bool)
    expected[0, 10:] = expected[2, 10:] = False
    assert torch.equal(active, expected)
    assert audio.source_activity(x, 400, 400, threshold=0.05).tolist()[0] == [True] * 20
    x = torch.zeros(2, 2, 1000)  # silence is active nowhere
    x[1, 1, ::2] = 1.0
    active = audio.source_activity(x, 400, 320, threshold=0.0)
    assert active.tolist() == [[[False] * 2] * 2, [[False] * 2, [True] * 2]]
    assert not audio.source_activity(1e-31 * x[1], 400, 320, threshold=0.0).any()


def test_frame_arguments():
    for error, words, call in (
        (TypeError, "hop must be a whole number", lambda: audio.frame_count(100, 10, 2.5)),
        (ValueError, "hop must be at least 1", lambda: audio.frame_count(100, 10, 0)),
        (ValueError, "receptive_field", lambda: audio.frame_signal(torch.ones(5), 0, 1)),
        (ValueError, "threshold", lambda: audio.source_activity(torch.ones(1, 5), 2, 2, -1)),
        (ValueError, "finite", lambda: audio.source_activity(torch.full((1, 5), torch.nan), 2, 2)),
    ):
        with pytest.raises(error, match=words):
            call()


@pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA device")
def test_the_device_gives_the_same_numbers():
    x = torch.stack([syllables(2, 16000, seed=k) for k in range(3)]).float()
    x[2] = 0
    y = x.cuda()
    loud, expected = (audio.normalize_loudness(wave, 16000) for wave in (y, x))
    assert torch.allclose(loud.cpu(), expected, atol=1e-5)
    assert torch.equal(audio.source_activity(y, 400, 320).cpu(), audio.source_activity(x, 400, 320))
    assert audio.match_sources(y[[1, 0]], y).device == y.device


def test_a_constant_offset_makes_no_silence_active_and_nothing_louder():
    wave = 0.05 * loud_noise(1, 32_000).float()
    loud, offset = (float(audio.integrated_loudness(wave + x, 16_000)) for x in (0.0, 0.005))
    assert offset == pytest.approx(loud, abs=0.01)
    wave[:, :16_000] = 0.0
    expected = audio.source_activity(wave, 400, 320)
    assert not expected[0, :48].any()
    for offset in (0.005, 0.5):
        assert torch.equal(audio.source_activity(wave + offset, 400, 320), expected)
    # Nor does an offset of the sound alone, whose mean is not that of the silence before it.
    wave[:, 16_000:] += 0.05
    assert torch.equal(audio.source_activity(wave, 400, 320), expected)
    assert not audio.source_activity(torch.full((1, 8000), 0.3), 400, 320).any()
