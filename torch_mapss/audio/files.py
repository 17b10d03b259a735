"""Reading of audio files: completely, or not at all with an error that says what is wrong."""

from __future__ import annotations

import os
import re
from typing import IO

import numpy as np
import torch
from torch import Tensor

from torch_mapss.core.checks import import_package


def load_audio(path: str | os.PathLike[str]) -> tuple[Tensor, int]:
    """Read an audio file: WAV, FLAC, OGG, MP3 or any other format of libsndfile.

    Args:
        path: path of the file.

    Returns:
        Samples `(C, T)`, float32 on the CPU with full scale 1, and the file's sample rate in Hz.

    Raises:
        FileNotFoundError: the file does not exist.
        ValueError: the file cannot be read or decoded, is a folder, is cut short (detected for WAV
            and its variants, AIFF, AU, FLAC, OGG, and MP3 files that state their length), has no
            samples, or has NaN or infinite samples.
        ImportError: the `soundfile` package is missing.
    """
    path = os.fspath(path)
    _check_file(path)
    soundfile = import_package("soundfile", "reading audio files")
    try:
        # Pass an open file rather than its name, which may not be encodable in the C locale.
        with open(path, "rb") as stream, soundfile.SoundFile(stream) as file:
            samples = file.read(file.frames, dtype="float32", always_2d=True)
            rate, log = int(file.samplerate), file.extra_info
            stated = file.format != "MP3" or _states_its_length(stream)
            cut = stated and len(samples) < file.frames
    except PermissionError as error:
        raise ValueError(
            f"{path!r} cannot be read: permission denied. Change its mode, or run as its owner."
        ) from error
    except (soundfile.SoundFileError, OSError, TypeError, ValueError, RuntimeError) as error:
        # TypeError: no header. ValueError: a FLAC file without a stated length, written to a pipe.
        reason = str(getattr(error, "error_string", error)).rstrip(".")
        raise ValueError(
            f"cannot decode {path!r} as audio: {reason}. The file is cut short, damaged, or in a "
            "format that libsndfile does not read: copy it again, or convert it to WAV or FLAC."
        ) from error
    if cut or _is_cut(log):
        raise ValueError(
            f"{path!r} is truncated: by its header there are more samples than the file holds, so "
            "its end is lost. Copy or write the file again."
        )
    _check_samples(samples, path)
    return torch.from_numpy(np.ascontiguousarray(samples.T)), rate


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


# Remarks that libsndfile logs but then ignores: a header of WAV, RF64, W64, AIFF or AU that
# announces more bytes than the file has, and an incomplete last page of an OGG stream.
_ANNOUNCED = re.compile(r"(?:data|Data Size|SSND|Riff size|riff)\s*: (\d+) \(should be (\d+)\)")
_LAST_PAGE = re.compile("lacks an end-of-stream bit|Junk after the last page")


def _is_cut(log: str) -> bool:
    """Whether libsndfile's log shows that a file it read without an error is cut short."""
    for announcement in _ANNOUNCED.findall(log):
        size, present = map(int, announcement)
        # A program that writes to a pipe does not know the length and states (nearly) the maximum.
        is_length = not any(0 <= 2**bits - size <= 2**16 for bits in (31, 32, 63, 64))
        # A difference of 1: some writers count the pad byte of an odd chunk but do not write it.
        if is_length and size - present > 1:
            return True
    return bool(_LAST_PAGE.search(log))


def _states_its_length(stream: IO[bytes]) -> bool:
    """Whether an MP3 file states its length in a Xing or Info frame; else libsndfile guesses it.

    The guess applies the first frame's bit rate to the entire file and can be far too long.
    """
    stream.seek(0)
    head = stream.read(65536)
    return b"Xing" in head or b"Info" in head


def _check_samples(samples: np.ndarray, path: str) -> None:
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
