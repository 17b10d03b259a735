"""Audio files of every format are read, and refused where they are damaged."""

from __future__ import annotations

import os
import struct
import sys
from pathlib import Path
from unittest.mock import Mock

import numpy as np
import pytest
import soundfile
import torch
from separations import python
from waveforms import loud_noise, sine_steps

from torch_mapss import audio


def write(path: Path, seconds: float = 0.5, channels: int = 2, **kwargs: str) -> np.ndarray:
    samples = 0.3 * loud_noise(int(seconds * 16000), channels).clamp(-3, 3).numpy() / 3
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
    samples = 0.3 * loud_noise(24_000, channels).clamp(-3, 3).numpy() / 3
    if tolerance is None:
        samples = sine_steps([(-6, 1.5)], 16000, hertz=500).numpy()[:, None].repeat(channels, 1)
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
    x = np.concatenate([np.zeros(48000), 0.3 * loud_noise(48000).clamp(-3, 3).numpy()])
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
