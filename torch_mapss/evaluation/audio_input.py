"""Files or arrays of one mixture as waveforms of one rate and length.

Rules, all of them told in the notes of a report:

* channels are averaged, or each is scored (``channels="each"``);
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
from torch_mapss.evaluation import io


class Clip(NamedTuple):
    """One source as it was handed over, and its waveform at the scorer's rate."""

    wave: Tensor  # (T,) mean of the channels
    parts: Tensor  # (C, T) the channels where each is scored, else their mean
    name: str  # short, told apart from the others of its set
    path: str | None  # None: came as an array
    rate: int  # Hz, as handed over
    channels: int  # as handed over
    samples: int  # per channel, as handed over
    cancelled: float  # dB that the mean of the channels lies below them; inf: silence

    @property
    def label(self) -> str:
        """For messages."""
        return repr(self.path) if self.path is not None else f"{self.name!r}"


def read_set(
    given: Any, kind: str, rate: int, sample_rate: int | None = None, each: bool = False
) -> tuple[Clip | None, ...]:
    """Read estimates or references: one clip per source, None where none was given.

    Args:
        given: paths, or None in the place of a source that is not there; or an (S, T) array or
            tensor, or a list of (T,) ones.
        kind: ``"estimates"`` or ``"references"``, for messages.
        rate: Hz the waveforms are wanted at.
        sample_rate: of arrays, in Hz; ``rate`` if None. Files state their own.
        each: keep every channel of files; arrays may then be (S, C, T), or (C, T) in a list.

    Raises:
        TypeError, ValueError, FileNotFoundError: it is no audio of these shapes.
    """
    items = _listed(given, kind, 3 if each else 2)
    paths = [io.shown(item) for item in items if isinstance(item, str | os.PathLike)]
    if paths and len(paths) < sum(item is not None for item in items):
        raise TypeError(
            f"{kind} mix files and arrays. Read the files first, with "
            "torch_mapss.audio.load_audio(path)."
        )
    names = iter(io.display_names(paths))
    clips: list[Clip | None] = []
    for place, item in enumerate(items):
        if item is None:
            clips.append(None)
            continue
        if paths:
            (samples, found), path, name = audio.load_audio(item), io.shown(item), next(names)
        else:
            samples, found = _array(item, f"{kind}[{place}]", each), sample_rate or rate
            path, name = None, f"{kind[:-1]} {place + 1}"
        audio.check_source_rate(found, "sample_rate" if path is None else f"the rate of {path!r}")
        mono, channels = audio.to_mono(samples), len(samples)
        parts = audio.resample(samples if each else mono.unsqueeze(0), found, rate)
        wave = parts.mean(0) if len(parts) > 1 else parts[0]
        lost = 0.0 if each or channels == 1 else _cancelled(samples, mono)
        clips.append(Clip(wave, parts, name, path, found, channels, samples.shape[-1], lost))
    return tuple(clips)


def _array(given: Any, name: str, each: bool) -> Tensor:
    """(C, T) samples of one source."""
    wave = audio.as_waveform(given, name).detach()
    checks.check_devices(**{name: wave})
    if not 1 <= wave.ndim <= 1 + each or wave.shape[-1] == 0:
        raise ValueError(
            f"{name} must be one mono signal of shape (T,), got {tuple(wave.shape)}. Channels are "
            'not sources: average them first, or pass channels="each".'
        )
    return wave.reshape(-1, wave.shape[-1])


def _listed(given: Any, kind: str, most: int) -> list[Any]:
    """``given`` as a list of sources."""
    if hasattr(given, "ndim") and hasattr(given, "shape"):
        shape = tuple(given.shape)
        if not 2 <= given.ndim <= most or shape[0] > shape[-1]:
            raise ValueError(
                f"{kind} must have shape (S, T): sources, samples; got {shape}. One mixture at a "
                f"time; of (samples, sources) pass {kind}.T; average channels first, or pass "
                '(S, C, T) with channels="each".'
            )
        given = list(given)
    if isinstance(given, str) or not isinstance(given, Sequence):
        raise TypeError(
            f"{kind} must be a list of paths or arrays, one per source, or an (S, T) array or "
            f"tensor, got {given!r:.60}: {kind}=[...]."
        )
    if all(item is None for item in given):
        raise ValueError(f"{kind} must hold at least one source, got {list(given)!r}.")
    return list(given)


def _cancelled(channels: Tensor, mono: Tensor) -> float:
    """How far (dB) the mean (T,) of channels (C, T) lies below their power on average."""
    before, after = (float(x.square().mean(dtype=torch.float64)) for x in (channels, mono))
    if before == 0.0:
        return 0.0
    return math.inf if after == 0.0 else 10.0 * math.log10(before / after)


def common_length(estimates: Sequence[Clip], references: Sequence[Clip], trim: bool) -> int:
    """The number of samples that is scored; ValueError where lengths differ without ``trim``."""
    clips = [*references, *estimates]
    shortest, longest = (pick(clips, key=lambda clip: len(clip.wave)) for pick in (min, max))
    least, most = len(shortest.wave), len(longest.wave)
    rounding = len({clip.rate for clip in clips}) > 1 and most - least == 1
    if least == most or trim or rounding:
        return least

    def told(clip: Clip) -> str:
        seconds = f"{clip.samples / clip.rate:.3f} s at {clip.rate} Hz"
        return f"{clip.label} has {len(clip.wave)} samples ({seconds})"

    raise ValueError(
        f"all files of a mixture must have one length, but {told(shortest)} and {told(longest)}. "
        "They must be aligned sample by sample; if one only has a longer tail, cut all to the "
        "shortest with trim=True (trim: true in --config)."
    )


def stack(clips: Sequence[Clip], samples: int, device: torch.device) -> Tensor:
    """(C, S, T) waveforms of the first ``samples`` samples; C is 1 where channels are averaged."""
    counts = {clip.label: len(clip.parts) for clip in clips}
    if len(set(counts.values())) > 1:
        raise ValueError(
            'channels="each" needs as many channels in all files of a mixture, got '
            f"{', '.join(f'{count} in {label}' for label, count in counts.items())}."
        )
    return torch.stack([clip.parts[:, :samples] for clip in clips], 1).to(device)


def remarks(clips: Sequence[Clip], rate: int, samples: int) -> list[str]:
    """What was done to the clips on the way to the scorer, in words."""
    notes = []
    for clip in clips:
        done = []
        if clip.channels > 1:
            each = len(clip.parts) > 1
            text = "each of {} channels scored, scores averaged" if each else "{} channels averaged"
            done.append(text.format(clip.channels))
        if clip.rate != rate:
            done.append(f"resampled from {clip.rate} to {rate} Hz")
        if len(clip.wave) > samples:
            done.append(f"cut from {len(clip.wave)} to {samples} samples")
        if done:
            notes.append(f"{clip.path or clip.name}: {', '.join(done)}")
    return notes
