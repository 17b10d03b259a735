"""What a user hands over, files or arrays, as waveforms of one rate and length.

Rules, all of them told in the notes of a report:

* channels are mixed down to their mean;
* every file is resampled to the rate of the scorer, whatever its own rate is;
* lengths must then agree. With ``trim`` all are cut to the shortest; without, one sample is cut
  where files of different rates met, as the length of a resampled file is rounded.
"""

from __future__ import annotations

import math
import os
from collections.abc import Sequence
from typing import Any, NamedTuple

import torch
from torch import Tensor

from torch_mapss import audio
from torch_mapss.core import checks
from torch_mapss.evaluation import files


class Clip(NamedTuple):
    """One source as it was handed over, and its waveform at the scorer's rate."""

    wave: Tensor  # (T,)
    name: str  # short, told apart from the others of its set
    path: str | None  # None: came as an array
    rate: int  # Hz, as handed over
    channels: int  # as handed over
    samples: int  # per channel, as handed over
    cancelled: float = 0.0  # dB that the mean of the channels lies below them; inf: silence

    @property
    def label(self) -> str:
        """For messages."""
        return repr(self.path) if self.path is not None else f"{self.name!r}"


def read_set(
    given: Any, kind: str, rate: int, sample_rate: int | None = None
) -> tuple[Clip | None, ...]:
    """Read estimates or references.

    Args:
        given: paths, or None in the place of a source that is not there; or an (S, T) array or
            tensor, or a list of (T,) ones.
        kind: ``"estimates"`` or ``"references"``, for messages.
        rate: Hz the waveforms are wanted at.
        sample_rate: of arrays, in Hz; ``rate`` if None. Files state their own.

    Returns:
        One clip per source, None where none was given.

    Raises:
        TypeError: neither paths nor audio.
        ValueError: nothing there, shapes that are no list of mono signals, unreadable files.
        FileNotFoundError: no such file.
    """
    items = _listed(given, kind)
    if all(item is None or isinstance(item, str | os.PathLike) for item in items):
        return _read_files(items, rate)
    return _read_arrays(items, kind, rate, sample_rate)


def _listed(given: Any, kind: str) -> list[Any]:
    """``given`` as a list of sources."""
    if isinstance(given, str | os.PathLike):
        raise TypeError(
            f"{kind} must be a list with one file per source, got the single path "
            f"{files.shown(given)!r}. Write {kind}=[...]."
        )
    if hasattr(given, "ndim") and hasattr(given, "shape"):
        if given.ndim != 2:
            raise ValueError(
                f"{kind} must have shape (S, T): sources, samples; got {tuple(given.shape)}. One "
                "mixture at a time; mix channels down first, e.g. by their mean."
            )
        if given.shape[0] > given.shape[1]:
            raise ValueError(
                f"{kind} must have shape (S, T): sources, samples; got {tuple(given.shape)}, which "
                f"looks like (samples, sources). Turn it over: {kind}.T."
            )
        given = list(given)
    if not isinstance(given, Sequence):
        raise TypeError(
            f"{kind} must be a list of paths or arrays, or an (S, T) array or tensor, got "
            f"{type(given).__name__}."
        )
    if not any(item is not None for item in given):
        raise ValueError(f"{kind} must hold at least one source, got {list(given)!r}.")
    return list(given)


def _read_files(items: Sequence[Any], rate: int) -> tuple[Clip | None, ...]:
    paths = [None if item is None else os.fspath(item) for item in items]
    names = iter(files.display_names([files.shown(path) for path in paths if path is not None]))
    return tuple(None if path is None else read_file(path, next(names), rate) for path in paths)


def read_file(path: str, name: str, rate: int) -> Clip:
    """One file as mono at ``rate``."""
    samples, found = audio.load_audio(path)
    audio.check_source_rate(found, repr(files.shown(path)))
    mono = audio.to_mono(samples)
    wave = audio.resample(mono, found, rate)
    lost = _cancelled(samples, mono)
    return Clip(wave, name, files.shown(path), found, len(samples), samples.shape[-1], lost)


def _cancelled(channels: Tensor, mono: Tensor) -> float:
    """How far (dB) the mean (T,) of channels (C, T) lies below their power on average."""
    before, after = (float(wave.double().square().mean()) for wave in (channels, mono))
    if before == 0.0:
        return 0.0
    return math.inf if after == 0.0 else 10.0 * math.log10(before / after)


def _read_arrays(
    items: Sequence[Any], kind: str, rate: int, sample_rate: int | None
) -> tuple[Clip | None, ...]:
    found = rate if sample_rate is None else sample_rate
    audio.check_source_rate(found, "sample_rate")
    clips: list[Clip | None] = []
    for place, item in enumerate(items):
        if item is None:
            clips.append(None)
            continue
        if isinstance(item, str | os.PathLike):
            raise TypeError(
                f"{kind} mix files and arrays. Read the files first, with "
                "torch_mapss.audio.load_audio(path)."
            )
        wave = audio.as_waveform(item, f"{kind}[{place}]").detach()
        checks.check_devices(**{f"{kind}[{place}]": wave})
        if wave.ndim != 1 or len(wave) == 0:
            raise ValueError(
                f"{kind}[{place}] must be one mono signal of shape (T,), got {tuple(wave.shape)}. "
                "Channels are not sources: mix them down first, e.g. by their mean."
            )
        name = f"{kind[:-1]} {place + 1}"
        clips.append(Clip(audio.resample(wave, found, rate), name, None, found, 1, len(wave)))
    return tuple(clips)


def renamed(clips: Sequence[Clip | None], names: Sequence[str]) -> tuple[Clip | None, ...]:
    """Clips with names of the caller's own."""
    unique = files.numbered([files.shown(str(name)) for name in names])
    return tuple(
        None if clip is None else clip._replace(name=name) for clip, name in zip(clips, unique)
    )


def common_length(estimates: Sequence[Clip], references: Sequence[Clip], trim: bool) -> int:
    """The number of samples that is scored.

    Raises:
        ValueError: lengths differ and ``trim`` is off. Names a file of each length.
    """
    clips = [*references, *estimates]
    shortest = min(clips, key=lambda clip: len(clip.wave))
    longest = max(clips, key=lambda clip: len(clip.wave))
    least, most = len(shortest.wave), len(longest.wave)
    rounding = len({clip.rate for clip in clips}) > 1 and most - least == 1
    if least == most or trim or rounding:
        return least
    other = _unlike(estimates, references, shortest, longest)
    raise ValueError(
        f"all files of a mixture must have one length, but {_lengthy(other[0])} and "
        f"{_lengthy(other[1])}. They must be aligned sample by sample; if one only has a longer "
        "tail, cut all to the shortest with trim=True (--trim)."
    )


def _unlike(
    estimates: Sequence[Clip], references: Sequence[Clip], shortest: Clip, longest: Clip
) -> tuple[Clip, Clip]:
    """Two clips of different length, an estimate and a reference if there are such."""
    for estimate in estimates:
        for reference in references:
            if len(estimate.wave) != len(reference.wave):
                return estimate, reference
    return shortest, longest


def _lengthy(clip: Clip) -> str:
    samples = len(clip.wave)
    seconds = clip.samples / clip.rate
    text = f"{clip.label} has {samples} samples ({seconds:.3f} s)"
    if clip.samples != samples:
        text += f" after resampling its {clip.samples} from {clip.rate} Hz"
    return text


def stack(clips: Sequence[Clip], samples: int, device: torch.device) -> Tensor:
    """(S, T) waveforms of the first ``samples`` samples."""
    return torch.stack([clip.wave[:samples] for clip in clips]).to(device)


def remarks(clips: Sequence[Clip], rate: int, samples: int) -> list[str]:
    """What was done to the clips on the way to the scorer, in words."""
    notes = []
    for clip in clips:
        done = []
        if clip.channels > 1:
            done.append(f"{clip.channels} channels mixed down to their mean")
        if clip.rate != rate:
            done.append(f"resampled from {clip.rate} to {rate} Hz")
        if len(clip.wave) > samples:
            done.append(f"cut from {len(clip.wave)} to {samples} samples")
        if done:
            notes.append(f"{clip.path or clip.name}: {', '.join(done)}")
    return notes
