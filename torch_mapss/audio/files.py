"""Reads audio files completely, or raises an error that says what is wrong with them."""

from __future__ import annotations

import os
import re
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
        with open(path, "rb") as stream, soundfile.SoundFile(stream) as file:
            samples = file.read(dtype="float32", always_2d=True)
            expected, rate, log = file.frames, int(file.samplerate), file.extra_info
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
    _check_complete(log, path)
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
    if not os.path.isfile(path):  # a folder, <(...), a named pipe, a device
        raise ValueError(
            f"expected an audio file, but {path!r} is a folder, pipe or device. Name files on disk "
            "one by one: they are read out of order, and more than once."
        )
    if os.path.getsize(path) == 0:
        raise ValueError(
            f"expected an audio file, but {path!r} is empty (0 bytes): its writing or copying "
            "failed. Write it again."
        )


# What libsndfile notes, and then ignores, where a header of WAV, RF64, W64, AIFF or AU announces
# more bytes than the file has.
_ANNOUNCED = re.compile(r"(?:data|Data Size|SSND|Riff size|riff)\s*: (\d+) \(should be (\d+)\)")
# What a writer to a pipe announces, which cannot know the length: (nearly) the largest one.
_UNKNOWN_LENGTH = 0x7FFF0000


def _check_complete(log: str, path: str) -> None:
    """Refuse truncated files that libsndfile reads without an error, by the log of its header."""
    for announced, present in _ANNOUNCED.findall(log):
        missing = int(announced) - int(present)
        # 1: some writers count the pad byte of an odd chunk and do not write it
        if missing > 1 and int(announced) < _UNKNOWN_LENGTH:
            raise ValueError(
                f"{path!r} is truncated: its header announces {missing} more bytes of samples than "
                "the file holds, so its end is lost. Copy or write the file again."
            )
    if "lacks an end-of-stream bit" in log or "Junk after the last page" in log:
        raise ValueError(
            f"{path!r} is truncated: an OGG stream must close with an entire last page, and "
            "this one has none, so its end is lost. Copy or write the file again."
        )


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
