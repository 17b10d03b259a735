"""Reading of the files or arrays of one mixture as waveforms of one rate and length.

Rules, which the notes of a report mention:

* channels are averaged, or each is scored (``channels="each"``);
* every file is resampled to the rate of the scorer, whatever its own rate is;
* lengths must then agree. With ``trim`` all are cut to the shortest; without, at most one sample is
  cut if files have different rates, since the length of a resampled file is rounded.
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
    """A source with its original properties, and its waveform at the scorer's rate."""

    wave: Tensor  # (T,) mean of the channels
    parts: Tensor  # (C, T) channels if each is scored, else their mean
    name: str  # short name, unique in its set
    path: str | None  # None for an array
    rate: int  # Hz, of the original
    channels: int  # of the original
    samples: int  # per channel, of the original
    cancelled: float  # dB by which the mean of the channels is below them; inf: silence
    native: Tensor | None = None  # (channels, samples) at ``rate``; None after measuring

    @property
    def label(self) -> str:
        """Label for messages."""
        return repr(self.path) if self.path is not None else f"{self.name!r}"

    def has_same_channels(self, reference: Clip) -> bool:
        """Whether a clip with the mean of ``reference`` also has its channels.

        True where that is not known: of another rate or number of channels, or after measuring.
        """
        if self.native is None or reference.native is None:
            return True
        if self.rate != reference.rate or self.channels != reference.channels:
            return True
        samples = min(self.samples, reference.samples)
        return torch.equal(self.native[:, :samples], reference.native[:, :samples])


class ReferenceSignals(NamedTuple):
    """The references of a mixture, which all systems are compared with: kept once."""

    clips: tuple[Clip, ...]  # S; on the CPU their waveforms are views of ``channels``
    channels: Tensor  # (C, S, T) cut to the shortest of them; C is 1 where channels are averaged
    mono: Tensor  # (S, T) the mean of the channels, finite


def read_set(
    signals: Any, kind: str, rate: int, sample_rate: int | None = None, every_channel: bool = False
) -> tuple[Clip | None, ...]:
    """Read estimates or references: one clip per source, or None for a missing source.

    Args:
        signals: list of paths, with None for a missing source; or an (S, T) array or tensor, or a
            list of (T,) ones.
        kind: ``"estimates"`` or ``"references"``, for messages.
        rate: sample rate of the returned waveforms in Hz.
        sample_rate: sample rate of arrays in Hz; ``rate`` if None. Files state their own.
        every_channel: keep every channel of files; arrays may then be (S, C, T), or (C, T) in a
            list.

    Raises:
        TypeError, ValueError, FileNotFoundError: the signals are not audio of these shapes.
    """
    items = _listed(signals, kind, 3 if every_channel else 2)
    paths = [io.shown(item) for item in items if isinstance(item, str | os.PathLike)]
    if paths and len(paths) < sum(item is not None for item in items):
        raise TypeError(
            f"{kind} mix files and arrays. Read the files first, with "
            "torch_mapss.audio.load_audio(path)."
        )
    names = iter(io.display_names(paths))
    clips: list[Clip | None] = []
    for index, item in enumerate(items):
        if item is None:
            clips.append(None)
            continue
        if paths:
            samples, native_rate = audio.load_audio(item)
            path, name = io.shown(item), next(names)
        else:
            samples = _array(item, f"{kind}[{index}]", every_channel)
            native_rate, path, name = sample_rate or rate, None, f"{kind[:-1]} {index + 1}"
        whose = "sample_rate" if path is None else f"the rate of {path!r}"
        audio.check_source_rate(native_rate, whose)
        mono = audio.to_mono(samples)
        channels = samples if every_channel else mono.unsqueeze(0)
        resampled = audio.resample(channels, native_rate, rate)
        averaged = not every_channel and len(samples) > 1
        clip = Clip(
            wave=resampled.mean(0) if len(resampled) > 1 else resampled[0],
            parts=resampled,
            name=name,
            path=path,
            rate=native_rate,
            channels=len(samples),
            samples=samples.shape[-1],
            cancelled=_cancelled(samples, mono) if averaged else 0.0,
            native=samples,
        )
        clips.append(clip)
    return tuple(clips)


def _array(signal: Any, name: str, every_channel: bool) -> Tensor:
    """(C, T) samples of one source."""
    wave = audio.as_waveform(signal, name).detach()
    checks.check_devices(**{name: wave})
    if not 1 <= wave.ndim <= 1 + every_channel or wave.shape[-1] == 0:
        raise ValueError(
            f"{name} must be one mono signal of shape (T,), got {tuple(wave.shape)}. Channels are "
            'not sources: average them first, or pass channels="each".'
        )
    if wave.ndim == 2:
        _refuse_samples_as_channels(name, tuple(wave.shape))
    return wave.reshape(-1, wave.shape[-1])


def _refuse_samples_as_channels(name: str, shape: tuple[int, ...]) -> None:
    """Raise ValueError if a source of shape (C, T) has more channels than samples."""
    if shape[0] > shape[1]:
        raise ValueError(
            f"{name}: arrays are (sources, samples) or (sources, channels, samples); got "
            f"{shape[0]} channels of {shape[1]} samples. For (sources, samples, channels), the "
            "order of museval, pass x.swapaxes(1, 2)."
        )


def _listed(signals: Any, kind: str, axes: int) -> list[Any]:
    """Signals as a list of sources; an array may have up to so many axes."""
    if hasattr(signals, "ndim") and hasattr(signals, "shape"):
        shape = tuple(signals.shape)
        if axes == 3 == len(shape):
            _refuse_samples_as_channels(kind, shape[1:])
        if not 2 <= signals.ndim <= axes or shape[0] > shape[-1]:
            raise ValueError(
                f"{kind} must have shape (S, T): sources, samples; got {shape}. Pass one mixture "
                f"at a time; for (samples, sources) pass {kind}.T; average channels first, or pass "
                '(S, C, T) with channels="each".'
            )
        signals = list(signals)
    if isinstance(signals, str) or not isinstance(signals, Sequence):
        raise TypeError(
            f"{kind} must be a list of paths or arrays, one per source, or an (S, T) array or "
            f"tensor, got {signals!r:.60}: {kind}=[...]."
        )
    if all(item is None for item in signals):
        raise ValueError(f"{kind} must hold at least one source, got {list(signals)!r}.")
    return list(signals)


def _cancelled(channels: Tensor, mono: Tensor) -> float:
    """Level in dB by which the mean (T,) of channels (C, T) is below their average power."""
    before, after = (float(x.square().mean(dtype=torch.float64)) for x in (channels, mono))
    if before == 0.0:
        return 0.0
    return math.inf if after == 0.0 else 10.0 * math.log10(before / after)


def common_length(estimates: Sequence[Clip], references: Sequence[Clip], trim: bool) -> int:
    """Number of samples to score; ValueError if lengths differ without ``trim``."""
    clips = [*references, *estimates]
    shortest, longest = (pick(clips, key=lambda clip: len(clip.wave)) for pick in (min, max))
    smallest, largest = len(shortest.wave), len(longest.wave)
    rounding = len({clip.rate for clip in clips}) > 1 and largest - smallest == 1
    if smallest == largest or trim or rounding:
        return smallest

    def described(clip: Clip) -> str:
        seconds = f"{clip.samples / clip.rate:.3f} s at {clip.rate} Hz"
        return f"{clip.label} has {len(clip.wave)} samples ({seconds})"

    raise ValueError(
        f"all files of a mixture must have one length, but {described(shortest)} and "
        f"{described(longest)}. They must be aligned sample by sample; if one only has a longer "
        "tail, cut all to the shortest with trim=True (trim: true in --config)."
    )


def reference_signals(clips: Sequence[Clip], device: torch.device) -> ReferenceSignals:
    """References as signals on ``device``."""
    samples = min(len(clip.wave) for clip in clips)
    channels = stack(clips, samples, device)
    return ReferenceSignals(viewing(clips, channels), channels, mean_of_channels(channels))


def stack(clips: Sequence[Clip], samples: int, device: torch.device) -> Tensor:
    """(C, S, T) waveforms of the first ``samples`` samples; C is 1 where channels are averaged."""
    check_channels(clips)
    return torch.stack([clip.parts[:, :samples] for clip in clips], 1).to(device)


def check_channels(clips: Sequence[Clip]) -> None:
    """Raise ValueError if the clips of a mixture differ in the number of scored channels."""
    counts = {clip.label: len(clip.parts) for clip in clips}
    if len(set(counts.values())) > 1:
        raise ValueError(
            'channels="each" needs as many channels in all files of a mixture, got '
            f"{', '.join(f'{count} in {label}' for label, count in counts.items())}."
        )


def viewing(clips: Sequence[Clip], channels: Tensor) -> tuple[Clip, ...]:
    """The clips, with their waveforms as views of ``channels`` (C, S, T), which are equal.

    Each waveform is then in memory once. Clips that were cut, or lie on another device, stay.
    """
    viewed = []
    for clip, parts in zip(clips, channels.unbind(1)):
        if parts.shape == clip.parts.shape and parts.device == clip.parts.device:
            wave = parts[0] if len(parts) == 1 else clip.wave
            clip = clip._replace(wave=wave, parts=parts)
        viewed.append(clip)
    return tuple(viewed)


def mean_of_channels(channels: Tensor) -> Tensor:
    """(..., T) mean of channels (C, ..., T), 0 where it is not finite; a view where possible."""
    mean = channels[0] if len(channels) == 1 else channels.mean(0)
    return mean if bool(mean.isfinite().all()) else mean.nan_to_num(0.0, 0.0, 0.0)


def remarks(clips: Sequence[Clip], rate: int, samples: int) -> list[str]:
    """Sentences on the changes made to the clips before scoring."""
    notes = []
    for clip in clips:
        done = []
        if clip.channels > 1:
            text = "{} channels averaged"
            if len(clip.parts) > 1:
                text = "each of {} channels scored, scores averaged"
            done.append(text.format(clip.channels))
        if clip.rate != rate:
            done.append(f"resampled from {clip.rate} to {rate} Hz")
        if len(clip.wave) > samples:
            done.append(f"cut from {len(clip.wave)} to {samples} samples")
        if done:
            notes.append(f"{clip.path or clip.name}: {', '.join(done)}")
    return notes
