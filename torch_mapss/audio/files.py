"""Reads audio files completely, or raises an error that says what is wrong with them."""

from __future__ import annotations

import os
import struct
from typing import IO, Any

import numpy as np
import torch
from torch import Tensor


def load_audio(path: str | os.PathLike[str]) -> tuple[Tensor, int]:
    """Read an audio file: WAV, FLAC, OGG, MP3 and whatever else libsndfile reads.

    Args:
        path: the file.

    Returns:
        The samples, `(C, T)` float32 on the CPU, full scale 1, at the file's own rate; and that
        rate in Hz.

    Raises:
        FileNotFoundError: there is no such file.
        ValueError: the file cannot be read or decoded, is a folder, is cut short (noticed for WAV
            and its kin, AIFF, AU, FLAC, OGG, and MP3 that states its length), has no samples, or
            has NaN or infinite ones.
        ImportError: the `soundfile` package is missing.
    """
    path = os.fspath(path)
    _check_file(path)
    soundfile = _import_soundfile()
    try:
        # An open file rather than its name: the name may not be encodable in the C locale.
        with open(path, "rb") as stream:
            _check_complete(stream, path)
            with soundfile.SoundFile(stream) as file:
                samples = file.read(dtype="float32", always_2d=True)
                expected, rate = file.frames, int(file.samplerate)
                exact = file.format != "MP3" or _has_mp3_length(stream)
    except PermissionError as error:
        raise ValueError(
            f"{path!r} cannot be read: permission denied. Change its mode, or run as its owner."
        ) from error
    except (soundfile.SoundFileError, OSError, TypeError, RuntimeError) as error:
        # TypeError is how soundfile refuses headerless files.
        reason = getattr(error, "error_string", f"{error}.")
        raise ValueError(
            f"cannot decode {path!r} as audio: {reason} The file is damaged or in a format that "
            "libsndfile does not read; convert it to WAV or FLAC."
        ) from error
    _check_samples(samples, expected if exact else 0, path)
    return torch.from_numpy(np.ascontiguousarray(samples.T)), rate


def _import_soundfile() -> Any:
    try:
        import soundfile
    except Exception as error:  # OSError: libsndfile is missing
        raise ImportError(
            "reading audio files needs soundfile (with libsndfile): pip install soundfile"
        ) from error
    return soundfile


def _check_file(path: str) -> None:
    if not os.path.exists(path):
        raise FileNotFoundError(
            f"expected an audio file at {path!r}, found nothing there. Check the spelling; "
            f"relative paths start from {os.getcwd()!r}."
        )
    if os.path.isdir(path):
        raise ValueError(
            f"expected an audio file, got the folder {path!r}. Name the files inside it one by one."
        )
    if not os.path.isfile(path):  # <(...), a named pipe, a device
        raise ValueError(
            f"expected an audio file, but {path!r} is a pipe or device. Audio files are read out "
            "of order, and more than once: write it to a file on disk first."
        )
    if os.path.getsize(path) == 0:
        raise ValueError(
            f"expected an audio file, but {path!r} is empty (0 bytes): its writing or copying "
            "failed. Write it again."
        )


def _check_complete(stream: IO[bytes], path: str) -> None:
    """Refuse truncated files that libsndfile would read without an error."""
    missing = _missing_bytes(stream)
    if missing > 1:  # 1: some writers count the pad byte of an odd chunk and do not write it
        raise ValueError(
            f"{path!r} is truncated: its header announces {missing} more bytes of samples than the "
            "file holds, so its end is lost. Copy or write the file again."
        )
    if _is_cut_ogg(stream):
        raise ValueError(
            f"{path!r} is truncated: an OGG stream must close with a last page, and this one has "
            "none, so its end is lost. Copy or write the file again."
        )
    stream.seek(0)


# What a writer to a pipe announces, which cannot know the length: (nearly) the largest one.
_UNKNOWN_LENGTH = 0x7FFF0000


def _missing_bytes(stream: IO[bytes]) -> int:
    """Bytes that a header of WAV, RF64, W64, AIFF or AU announces beyond the end of the file."""
    size = stream.seek(0, os.SEEK_END)
    stream.seek(0)
    header = stream.read(24)
    if header[:4] in (b"RIFF", b"RF64") and header[8:12] == b"WAVE":
        end = _end_of_wav_data(stream)
    elif header[:16] == b"riff\x2e\x91\xcf\x11\xa5\xd6\x28\xdb\x04\xc1\x00\x00":  # W64
        end = int.from_bytes(header[16:24], "little")
    elif header[:4] == b"FORM":
        end = 8 + int.from_bytes(header[4:8], "big")
    elif header[:4] == b".snd":
        start, length = struct.unpack(">II", header[4:12])
        end = start + length if length < _UNKNOWN_LENGTH else 0
    else:
        end = 0
    return max(end - size, 0)


def _end_of_wav_data(stream: IO[bytes]) -> int:
    """Where the `data` chunk should end; 0 if that is not told. RF64 tells it in another chunk."""
    stream.seek(12)
    long = 0
    while len(chunk := stream.read(8)) == 8:
        name, length = struct.unpack("<4sI", chunk)
        start = stream.tell()
        if name == b"ds64":
            long = int.from_bytes(stream.read(16)[8:], "little")
        if name == b"data":
            if length == 0xFFFFFFFF and long:
                return start + long
            return start + length if length < _UNKNOWN_LENGTH else 0
        stream.seek(start + length + length % 2)
    return 0


def _is_cut_ogg(stream: IO[bytes]) -> bool:
    """Whether an OGG file lacks a complete page flagged as the last of its stream (RFC 3533, 6)."""
    stream.seek(0)
    if stream.read(4) != b"OggS":
        return False
    size = stream.seek(0, os.SEEK_END)
    stream.seek(max(size - 65307, 0))  # the largest page
    tail = stream.read()
    page = tail[max(tail.rfind(b"OggS"), 0) :]
    if len(page) < 27:
        return True
    flags, segments = page[5], page[26]
    return not flags & 4 or len(page) < 27 + segments + sum(page[27 : 27 + segments])


def _has_mp3_length(stream: IO[bytes]) -> bool:
    """Whether an MP3 file states its length (Xing or Info frame); else libsndfile only guesses it.

    The guess takes the first frame's bit rate for the whole file and can be far too long.
    """
    stream.seek(0)
    head = stream.read(65536)
    return b"Xing" in head or b"Info" in head


def _check_samples(samples: np.ndarray, expected: int, path: str) -> None:
    if len(samples) < expected:
        raise ValueError(
            f"{path!r} is truncated: its header announces {expected} samples per channel and only "
            f"{len(samples)} could be decoded. Copy or write the file again."
        )
    if len(samples) == 0:
        raise ValueError(
            f"expected samples in {path!r}, but it holds none (a header only). Write it again."
        )
    bad = np.argwhere(~np.isfinite(samples))
    if len(bad):
        index, channel = bad[0]
        raise ValueError(
            f"{path!r} holds {len(bad)} samples that are NaN or infinite, the first at sample "
            f"{index} of channel {channel}. Scores of it would mean nothing; repair or re-export "
            "the file."
        )
