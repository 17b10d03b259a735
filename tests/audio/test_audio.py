"""Files, channels, loudness, frames and matching against independent computations."""

from __future__ import annotations

import itertools
import math
import os
import struct
import sys
from pathlib import Path
from unittest.mock import Mock

import bursts
import numpy as np
import pytest
import soundfile
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from oracle_loudness import TABLE_48K, k_weighted, lufs, speech_like
from scipy import signal
from separations import python
from torch import Tensor
from torch.autograd import gradcheck

from torch_mapss import audio
from torch_mapss.audio import loudness, matching

RATES = (8000, 16000, 24000, 44100, 48000)


def noise(*shape: int, seed: int = 0, dtype: torch.dtype = torch.float64) -> Tensor:
    return 10 * bursts.noise(*shape, seed=seed, dtype=torch.float64).to(dtype)


def loudness_oracle(x: Tensor, rate: int) -> float:
    """BS.1770-4, one channel, block by block."""
    y, step = k_weighted(x.double().numpy(), rate), round(rate / 10)
    z = [np.mean(y[i : i + 4 * step] ** 2) for i in range(0, len(y) - 4 * step + 1, step)]
    power = np.maximum(z, 1e-99)
    above = power[lufs(power) > -70]
    return float(lufs(above[lufs(above) > lufs(above.mean()) - 10].mean()))


def sine(sections: list[tuple[float, float]], rate: int, hertz: float = 1000.0) -> Tensor:
    """A tone through (dBFS, seconds) sections; 0 dBFS is amplitude 1."""
    sections_of_level = [
        np.full(round(seconds * rate), 10 ** (level / 20)) for level, seconds in sections
    ]
    amplitude = torch.from_numpy(np.concatenate(sections_of_level))
    t = torch.arange(len(amplitude), dtype=torch.float64) / rate
    return amplitude * torch.sin(2 * math.pi * hertz * t)


@pytest.mark.parametrize("rate", RATES)
@pytest.mark.parametrize(("dtype", "tolerance"), [(torch.float64, 1e-12), (torch.float32, 1e-6)])
def test_k_weighting_equals_the_recursion(rate, dtype, tolerance):
    x = noise(rate // 2 + 17, seed=rate)
    x[:100] += 3  # a step: the high-pass must be at rest before the first sample
    expected = k_weighted(x.numpy(), rate)
    got = loudness.k_weighted(x.to(dtype), rate).double().numpy()
    assert np.abs(got - expected).max() <= tolerance * np.abs(expected).max()


def test_sines_read_what_the_standard_says():
    # BS.1770-4, annex 1: 0 dBFS at 997 Hz in one channel reads -3.01.
    x = sine([(0, 5)], 48000, hertz=997)
    assert float(audio.integrated_loudness(x, 48000)) == pytest.approx(-3.01, abs=0.01)
    # Far below half the rate no warping is left: what the standard's filter gives at 48 kHz.
    gain = np.prod([abs(signal.freqz(b, a, [np.pi / 120])[1][0]) for b, a in TABLE_48K])
    expected = float(lufs(gain**2 / 2))
    for rate in RATES:
        measured = float(audio.integrated_loudness(sine([(0, 5)], rate, hertz=200), rate))
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
    x = sine(mono, rate, hertz).float()
    reading = float(audio.integrated_loudness(x, rate)) - correction
    assert reading == pytest.approx(expected, abs=0.1)


@pytest.mark.parametrize("rate", [*RATES, 11025])  # a block is no whole number of samples, too
def test_loudness_of_speech_like_noise(rate):
    pyloudnorm = pytest.importorskip("pyloudnorm")
    for level in (1.0, 1e-2):
        x = level * speech_like(6.05, rate)
        got = float(audio.integrated_loudness(x, rate))
        assert got == pytest.approx(loudness_oracle(x, rate), abs=1e-9)
        assert float(audio.integrated_loudness(x.float(), rate)) == pytest.approx(got, abs=1e-4)
        expected = pyloudnorm.Meter(rate).integrated_loudness(x.numpy())
        assert got == pytest.approx(expected, abs=0.1)
        # The relative gate matters here, so the agreement above is one of gating too.
        assert got > float(loudness.lufs(loudness.block_powers(x, rate)[1])) + 0.5


@pytest.mark.parametrize(("samples", "gain"), [(3200, 1.0), (48000, 1e-5)])
def test_short_or_very_quiet_signals_are_ungated(samples, gain):
    x = gain * speech_like(samples / 16000, 16000)
    expected = lufs(np.mean(k_weighted(x.numpy(), 16000) ** 2))
    assert (expected < -100) == (gain < 1)
    assert float(audio.integrated_loudness(x, 16000)) == pytest.approx(expected, abs=1e-9)
    assert audio.integrated_loudness(x[100:101], 16000).isfinite()


def test_the_absolute_gate_is_absolute():
    # Half the signal lies 20 dB below the gate: it must not pull the mean down by 3 dB.
    tones = sine([(-60, 4), (-90, 4)], 16000), sine([(-60, 4)], 16000)
    measured, expected = (float(audio.integrated_loudness(tone, 16000)) for tone in tones)
    assert measured == pytest.approx(expected, abs=0.3)


@pytest.mark.filterwarnings("ignore:Anomaly Detection")
@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float32, torch.float64])
def test_silence_is_minus_infinity_and_stays(dtype):
    x = torch.zeros(2, 16000, dtype=dtype)
    x[1] = (0.1 * noise(16000)).to(dtype)
    x.requires_grad_()
    loudness = audio.integrated_loudness(x, 16000)
    assert loudness.isfinite().tolist() == [False, True]
    assert loudness[0] == -torch.inf
    assert loudness.dtype == (torch.float64 if dtype == torch.float64 else torch.float32)
    y = audio.normalize_loudness(x, 16000)
    assert torch.equal(y[0], torch.zeros_like(y[0]))
    with torch.autograd.detect_anomaly(check_nan=True):  # no NaN on the way either
        (gradient,) = torch.autograd.grad((y * noise(2, 16000).to(y)).sum() + loudness[1], x)
    assert gradient.isfinite().all()
    assert (gradient[0] == 0).all()
    assert (gradient[1] != 0).any()


def test_silence_is_what_stays_below_a_peak():
    x = torch.tensor([[0.0, 2e-31], [0.0, 2e-30], [0.0, 0.0]])
    assert audio.is_silent(x).tolist() == [True, False, True]
    expected = audio.normalize_loudness(torch.tensor([0.0, 1.0]), 16000)
    normal = audio.normalize_loudness(x, 16000)
    torch.testing.assert_close(normal, torch.stack([x[0], expected, x[2]]))


@pytest.mark.parametrize(
    ("rate", "target"), [(8000, -23.0), (16000, -30.0), (44100, -23.0), (16000, -80.0)]
)
def test_normalised_output_reads_the_target(rate, target):
    x = torch.stack([speech_like(4, rate, seed=k) * 10.0 ** (k - 2) for k in range(4)])
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
    x = speech_like(seconds, 16000).float()
    expected = audio.normalize_loudness(x, 16000) * math.copysign(1, gain)
    leaf = (gain * x).requires_grad_()
    got = audio.normalize_loudness(leaf, 16000)
    if gain != 1e-20:  # silence
        assert (got - expected).abs().max() <= 1e-5 * expected.abs().max()
    (g,) = torch.autograd.grad((got * noise(len(x)).float()).sum(), leaf)
    assert g.isfinite().all()
    assert g.abs().max() * abs(gain) > 1e-3


def test_peak_is_limited_by_scaling():
    x = 1e-3 * noise(16000, seed=1)
    x[8000] = 25.0
    free = audio.normalize_loudness(x, 16000, peak=math.inf)
    assert free.abs().max() > 1
    for peak in (1.0, 0.5):
        limited = audio.normalize_loudness(x, 16000, peak=peak)
        assert float(limited.abs().max()) == pytest.approx(peak, abs=1e-12)
        assert torch.allclose(limited / limited[8000], free / free[8000], rtol=1e-12)
    # Below the limit the two agree to the bit.
    calm = noise(16000)
    free = audio.normalize_loudness(calm, 16000, peak=math.inf)
    assert torch.equal(audio.normalize_loudness(calm, 16000), free)


@pytest.mark.parametrize("shape", [(), (1,), (2, 3), (2, 1, 4)])
def test_batching_equals_looping(shape):
    rows = math.prod(shape)
    x = torch.stack([speech_like(1.3, 8000, seed=k) * 10.0**-k for k in range(rows)])
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
    x = 0.1 * noise(4800, seed=5)
    if kind == "silent span":
        x[1000:4000] = 0
    if kind == "peak":
        x[2000] = 9.0
    return {"loud": 30 * x, "short": x[:700]}.get(kind, x)


@pytest.mark.parametrize("kind", ["plain", "silent span", "loud", "peak", "short"])
def test_gradients_against_differences(kind):
    x = short_signal(kind)
    window = slice(1995, 2005) if kind != "short" else slice(300, 310)
    weight = noise(len(x), seed=6)

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


def test_loudness_refuses_what_it_cannot_measure():
    x = noise(2, 800)
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
    x = noise(2, 3, 10)
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
        torch.stack([sine([(-6, 1)], rate, hertz) for hertz in (1000, 440)])
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


def write(path: Path, seconds: float = 0.5, channels: int = 2, **kwargs: str) -> np.ndarray:
    samples = 0.3 * noise(int(seconds * 16000), channels).clamp(-3, 3).numpy() / 3
    soundfile.write(path, samples, 16000, **kwargs)
    return samples


@pytest.mark.parametrize(
    ("name", "format", "subtype", "tolerance"),
    [
        *(("a.wav", kind, "PCM_16", 2**-15) for kind in ("RF64", "WAVEX", "WAV")),
        ("a.wav", "WAV", "PCM_24", 2**-23),
        ("a.wav", "WAV", "PCM_U8", 2**-6),
        ("a.wav", "WAV", "FLOAT", 1e-7),
        ("a.wav", "WAV", "DOUBLE", 1e-7),
        ("a.w64", "W64", "PCM_24", 2**-23),
        *((f"a.{kind}", kind.upper(), "PCM_16", 2**-15) for kind in ("flac", "aiff", "au")),
        ("a.ogg", "OGG", "VORBIS", None),
        ("a.mp3", "MP3", "MPEG_LAYER_III", None),
        ("gsm.wav", "WAV", "GSM610", None),  # which cannot be wound back
    ],
)
def test_formats_are_read_and_refused_where_cut(tmp_path, name, format, subtype, tolerance):
    if format not in soundfile.available_formats():
        pytest.skip(f"this libsndfile has no {format}")
    path, channels = tmp_path / name, 1 if subtype == "GSM610" else 2
    samples = 0.3 * noise(24_000, channels).clamp(-3, 3).numpy() / 3
    if tolerance is None:
        samples = sine([(-6, 1.5)], 16000, hertz=500).numpy()[:, None].repeat(channels, 1)
    soundfile.write(path, samples, 16000, format=format, subtype=subtype)
    for given_path in (path, str(path)):
        wave, rate = audio.load_audio(given_path)
        assert (rate, wave.shape[0], wave.dtype) == (16000, channels, torch.float32)
        assert wave.is_contiguous()
        if tolerance is not None:
            assert np.abs(wave.numpy() - samples.T).max() <= tolerance
        else:
            got = wave[0, 4000:12000].double().numpy()
            assert np.corrcoef(got, samples[4000:12000, 0])[0, 1] > 0.99
    content = path.read_bytes()
    for share in (0.02, 0.5, 0.97) if subtype not in ("GSM610", "DOUBLE", "PCM_U8") else ():
        path.write_bytes(content[: int(share * len(content))])
        with pytest.raises(ValueError, match=f"{name}.*(truncated|cut short)"):
            audio.load_audio(path)


def test_an_mp3_that_states_no_length_is_read(tmp_path):
    # libsndfile guesses the length from the first, smallest frame: not a reason to call it cut.
    if "MP3" not in soundfile.available_formats():
        pytest.skip("this libsndfile has no MP3")
    path = tmp_path / "a.mp3"
    x = np.concatenate([np.zeros(48000), 0.3 * noise(48000).clamp(-3, 3).numpy()])
    try:
        soundfile.write(path, x, 16000, bitrate_mode="VARIABLE", compression_level=0.5)
    except TypeError:
        pytest.skip("this soundfile cannot choose a bit rate mode")
    content = path.read_bytes()
    assert b"Xing" in content[:200]
    path.write_bytes(content[content.index(content[:2], 2) :])  # drop the frame that holds it
    with soundfile.SoundFile(path) as file:
        assert file.frames > 2 * len(x)
    wave, _ = audio.load_audio(path)
    assert abs(wave.shape[1] - len(x)) < 4000


def test_wav_with_other_chunks_or_another_length_in_its_header(tmp_path):
    path = tmp_path / "a.wav"
    samples = write(path)
    content = path.read_bytes()
    extra = b"note" + struct.pack("<I", 3) + b"abc\0"
    with_extra_chunk = content[:12] + extra + content[12:]
    path.write_bytes(
        with_extra_chunk[:4]
        + struct.pack("<I", len(with_extra_chunk) - 8)
        + with_extra_chunk[8:]
        + b"LIST"
    )
    assert audio.load_audio(path)[0].shape == samples.T.shape
    path.write_bytes(content)
    for size in (0xFFFFFFFF, 0x7FFFFFFF, 0x7FFFF000):  # a pipe states (nearly) the largest one
        set_length(path, size)
        assert audio.load_audio(path)[0].shape == samples.T.shape
    for size in (32_100, 3_000_000_000):
        set_length(path, size)
        with pytest.raises(ValueError, match=r"a\.wav.* truncated"):
            audio.load_audio(path)


@pytest.mark.parametrize(("frames", "words"), [(9000, "cut short"), (0, "cannot decode")])
def test_flac_whose_header_says_more_or_nothing(tmp_path, frames, words):
    path = tmp_path / "a.flac"
    write(path)
    content = bytearray(path.read_bytes())
    fields = int.from_bytes(content[18:26], "big")  # of STREAMINFO; the length is the last 36 bits
    assert fields % 2**36 == 8000
    content[18:26] = (fields - 8000 + frames).to_bytes(8, "big")
    path.write_bytes(content)
    with pytest.raises(ValueError, match=words):
        audio.load_audio(path)


def set_length(path: Path, size: int) -> None:
    """State another length in the header of a WAV file."""
    content = bytearray(path.read_bytes())
    at = content.index(b"data") + 4
    content[at : at + 4] = content[4:8] = struct.pack("<I", size)
    path.write_bytes(content)


def test_other_files_are_refused(tmp_path):
    contents = {"empty.wav": b"", "text.wav": b"this is no audio " * 50, "text.raw": b"abcd" * 50}
    for name, content in (contents | {"short.flac": b"fLaC"}).items():
        (tmp_path / name).write_bytes(content)
        with pytest.raises(ValueError, match="cannot decode" if content else "empty") as caught:
            audio.load_audio(tmp_path / name)
        assert name in str(caught.value)
    write(tmp_path / "none.wav", seconds=0)
    with pytest.raises(ValueError, match=r"none\.wav.* holds none"):
        audio.load_audio(tmp_path / "none.wav")


def test_a_file_that_is_missing_a_folder_or_may_not_be_read(tmp_path, monkeypatch):
    with pytest.raises(FileNotFoundError, match="nowhere"):
        audio.load_audio(tmp_path / "nowhere.wav")
    with pytest.raises(ValueError, match="folder"):
        audio.load_audio(tmp_path)
    write(tmp_path / "a.wav")
    with monkeypatch.context() as patch:
        patch.setitem(sys.modules, "soundfile", None)
        with pytest.raises(ImportError, match="pip install soundfile"):
            audio.load_audio(tmp_path / "a.wav")

    refused = Mock(side_effect=PermissionError(13, "Permission denied"))
    monkeypatch.setattr("builtins.open", refused)  # root may read anything
    with pytest.raises(ValueError, match="permission denied"):
        audio.load_audio(tmp_path / "a.wav")


@pytest.mark.parametrize("bad", [np.nan, np.inf])
def test_samples_that_are_not_finite(tmp_path, bad):
    x = np.zeros((100, 2), dtype=np.float32)
    x[60:, 1] = x[90, 0] = bad
    soundfile.write(tmp_path / "bad.wav", x, 16000, subtype="FLOAT")
    with pytest.raises(ValueError, match=r"bad\.wav.* 41 samples .*sample 60 of channel 1"):
        audio.load_audio(tmp_path / "bad.wav")


@pytest.mark.slow
@pytest.mark.skipif(os.name == "nt", reason="locales of POSIX")
def test_names_outside_ascii_in_the_c_locale_and_a_light_import(tmp_path):
    path = tmp_path / "Größe 音.wav"
    write(path)
    code = (
        "import os, sys; from torch_mapss.audio import load_audio;"
        "print([m for m in ('scipy', 'soundfile', 'torchaudio') if m in sys.modules]);"
        "names = [n for n in os.listdir('.') if n.endswith('.wav')];"
        "print(load_audio(names[0])[1])"
    )
    env = {"LC_ALL": "C", "PYTHONUTF8": "0", "PYTHONCOERCECLOCALE": "0"}
    assert python("-c", code, changes=env, cwd=tmp_path).split() == ["[]", "16000"]


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
    x = noise(2, 2, 2000, dtype=torch.float32)
    for receptive_field, hop in ((400, 320), (97, 31), (5, 9), (1, 1)):
        got = audio.frame_rms(x, receptive_field, hop)
        frames = audio.frame_signal(x.double(), receptive_field, hop)
        assert got.dtype == torch.float64
        assert torch.allclose(got, frames.square().mean(-1).sqrt(), rtol=1e-14)
    x = torch.cat([torch.full((4000,), 1e4), torch.full((4000,), 1e-6)])
    quiet = float(torch.tensor(1e-6))
    assert float(audio.frame_rms(x, 400, 320)[-1]) == pytest.approx(quiet, rel=1e-12)
    x = 0.1 * noise(60)
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


def test_si_sdr_of_a_known_ratio_and_by_its_definition():
    # An error orthogonal to reference and to constants, of energy set from the ratio.
    t = torch.arange(1000, dtype=torch.float64) / 1000
    s, error = torch.sin(2 * math.pi * 5 * t), torch.sin(2 * math.pi * 9 * t)
    for decibels in (-40.0, 0.0, 20.0, 100.0):
        estimate = 0.3 * (s + 10 ** (-decibels / 20) * error) + 2.0
        assert float(audio.si_sdr(estimate, s - 1)) == pytest.approx(decibels, abs=2e-5)
    s = noise(2, 3, 500, seed=2)
    e = s + 0.3 * noise(2, 3, 500, seed=1) + 0.06
    for index in np.ndindex(2, 3):
        y, x = (wave[index].numpy() - wave[index].numpy().mean() for wave in (e, s))
        target = (y @ x) / (x @ x) * x
        expected = 10 * np.log10(np.sum(target**2) / np.sum((target - y) ** 2))
        assert float(audio.si_sdr(e, s)[index]) == pytest.approx(expected, abs=1e-9)
    s = noise(2, 3, 300, seed=1)
    e = noise(2, 2, 300, seed=2) * 0.5 + s[:, :2]
    e[1, 1] = s[0, 2] = 0
    pairs = [x.expand(2, 2, 3, 300) for x in (e[:, :, None], s[:, None])]
    torch.testing.assert_close(matching.pairwise_si_sdr(e, s), audio.si_sdr(*pairs))


def test_si_sdr_ends():
    x = noise(400, seed=3)
    end = 10 * math.log10(torch.finfo(torch.float64).eps)
    zero = torch.zeros(400, dtype=torch.float64)
    constant = 0.3 * (1 + 1e-15 * noise(400, seed=4).clamp(-2, 2))  # up to rounding
    for e, s in [(zero, x), (x, zero), (zero, zero), (constant, x), (x, constant)]:
        e = e.clone().requires_grad_()
        value = audio.si_sdr(e, s)
        (g,) = torch.autograd.grad(value, e)
        assert value.item() == pytest.approx(end, abs=1e-6)
        assert not g.any()
    assert float(audio.si_sdr(-2 * x, x)) == pytest.approx(-end, abs=0.1)
    assert audio.si_sdr(x.half(), x.half()).dtype == torch.float32


def test_si_sdr_gradient_and_scale():
    e, s = noise(2, 20, seed=1), noise(2, 20, seed=2)
    assert gradcheck(audio.si_sdr, (e.clone().requires_grad_(), s.clone().requires_grad_()))
    for gain in (1e-25, 1e200, -3.0):
        assert torch.allclose(audio.si_sdr(gain * e, s), audio.si_sdr(e, s), rtol=1e-9)


@pytest.mark.parametrize(("estimates", "sources"), [(1, 1), (1, 3), (2, 2), (2, 4), (4, 4)])
def test_matching_equals_trying_all(estimates, sources):
    # Weak mixtures, so that the best total is not the best for each.
    s = noise(2, 3, sources, 40, seed=sources)
    e = noise(2, 3, estimates, sources, seed=7).abs() @ s
    got = audio.match_sources(e, s)
    assert got.shape == (2, 3, estimates)
    assert got.dtype == torch.int64
    orders = list(itertools.permutations(range(sources), estimates))
    for index in np.ndindex(2, 3):
        totals = [float(audio.si_sdr(e[index], s[index][list(order)]).sum()) for order in orders]
        assert tuple(got[index].tolist()) == orders[int(np.argmax(totals))]


def test_matching_with_silence_and_other_levels():
    s = noise(3, 500, seed=1)
    e = torch.stack([-s[1], 1e-6 * s[2], 40 * s[0] + 7])
    assert audio.match_sources(e, s).tolist() == [1, 2, 0]
    e = s[[2, 0, 1]] + 0.1 * noise(3, 500, seed=2)
    e[1] = 0
    assert audio.match_sources(e, s).tolist() == [2, 0, 1]
    s[0] = 0
    assert audio.match_sources(e, s).tolist() == [2, 0, 1]
    silent = audio.match_sources(torch.zeros(3, 500), torch.zeros(3, 500))
    assert sorted(silent.tolist()) == [0, 1, 2]


def test_matching_refuses_what_does_not_fit():
    for shapes in (((3, 9), (2, 9)), ((2, 9), (2, 8)), ((2, 2, 9), (3, 2, 9)), ((9,), (9,))):
        with pytest.raises(ValueError, match="number of sources only"):
            audio.match_sources(*map(torch.ones, shapes))
    with pytest.raises(ValueError, match="references must hold finite"):
        audio.match_sources(torch.ones(1, 2), torch.full((1, 2), torch.inf))
    with pytest.raises(ValueError, match="one shape"):
        audio.si_sdr(torch.ones(2, 9), torch.ones(9))


@pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA device")
def test_the_device_gives_the_same_numbers():
    x = torch.stack([speech_like(2, 16000, seed=k) for k in range(3)]).float()
    x[2] = 0
    y = x.cuda()
    loud, expected = (audio.normalize_loudness(wave, 16000) for wave in (y, x))
    assert torch.allclose(loud.cpu(), expected, atol=1e-5)
    assert torch.equal(audio.source_activity(y, 400, 320).cpu(), audio.source_activity(x, 400, 320))
    assert audio.match_sources(y[[1, 0]], y).device == y.device


def test_a_constant_offset_makes_no_silence_active_and_nothing_louder():
    wave = 0.05 * noise(1, 32_000).float()
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


@pytest.mark.parametrize("step", [1600, 8000])
def test_gain_from_segments_shorter_than_the_filter(step):
    waves = 0.05 * noise(2, 30_000).float()
    gain = loudness.metered(waves, 16_000, 2 * step).gain(-23.0)
    loud = loudness.at_loudness(waves, 16_000, -23.0)
    torch.testing.assert_close(gain[:, None] * waves, loud, rtol=1e-5, atol=1e-6)
