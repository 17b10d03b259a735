"""Estimates of one system with the references of their mixture, cut and aligned.

Also the result of the alignment: the frames that an estimate covers, and those in which it is mute.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, NamedTuple

import torch
from torch import Tensor

from torch_mapss import audio
from torch_mapss.core import checks
from torch_mapss.evaluation import audio_input
from torch_mapss.evaluation.audio_input import Clip, ReferenceSignals
from torch_mapss.evaluation.channel_checks import CLEARER
from torch_mapss.evaluation.settings import ScoringSettings

if TYPE_CHECKING:
    from torch_mapss.pipeline.config import Grid
    from torch_mapss.pipeline.mapss import MAPSS

#: Longest lag to search for, and longest lag that ``align="shift"`` removes, in seconds.
LAG_SEARCH_S, LAG_LIMIT_S = 1.0, 0.5
# Smallest peak of the cross-correlation that counts. Estimates of rated separators reach 0.36 or
# more with their reference, unrelated signals about 0.1.
_LEAST_CORRELATION = 0.2
_MUTED_DB = -80.0  # level of a frame relative to its estimate's peak
_ROUNDING_S = 1e-6  # tolerance for times in seconds


class SystemSignals(NamedTuple):
    """The signals of one mixture and one system, as they are scored."""

    estimates: Sequence[Clip]  # S'
    references: Sequence[Clip]  # S
    mono_estimates: Tensor  # (S', T), before any alignment
    mono_references: Tensor  # (S, T)
    attributed: Sequence[int]  # S', the reference of each estimate
    mixture: Clip | None
    rate: int  # Hz, sample rate of the waveforms
    grid: Grid  # the encoder's frames
    lags: Sequence[int | None]  # S', samples behind the reference; None: unclear
    removed: Sequence[int]  # S', lags that are removed, by align="shift"
    estimates_by_channel: Tensor  # (C, S', T): the estimates of each channel, their lags removed
    references_by_channel: Tensor  # (C, S, T): the references


def system_signals(
    mapss: MAPSS,
    settings: ScoringSettings,
    device: torch.device,
    estimates: Sequence[Clip | None],
    references: ReferenceSignals,
    attributed: Sequence[int] | None,
    mixture: Clip | None,
) -> SystemSignals:
    """Combine the estimates of one system with the references of the mixture.

    Args:
        mapss: scorer that sets the rate and the grid.
        settings: say whether to trim, permute and align.
        device: device of the waveforms.
        estimates: the system's estimates as read; None for a source it does not estimate.
        references: references of the mixture as they were read.
        attributed: (S',) index of the reference of each estimate; None: all in order.
        mixture: the mixture as it was read; None if there is no file of it.

    Raises:
        ValueError: the estimates do not fit the references.
    """
    clips = tuple(clip for clip in estimates if clip is not None)
    reference_clips = references.clips
    if len(clips) < len(estimates):
        if attributed is not None or len(estimates) != len(reference_clips):
            raise ValueError(
                f"estimates hold None: pass one entry for each of the {len(reference_clips)} "
                f"references, got {len(estimates)}, and no attributed."
            )
        attributed = [index for index, clip in enumerate(estimates) if clip is not None]
    if len(reference_clips) < 2:
        raise ValueError(
            f"at least two references are needed, got {len(reference_clips)}: an estimate is "
            "compared with the other sources of the mixture."
        )
    samples = audio_input.common_length(clips, reference_clips, settings.trim)
    audio_input.check_channels([*clips, *reference_clips])
    outputs = audio_input.stack(clips, samples, device)
    # MAPSS refuses non-finite samples, unless check_finite is off.
    mono_estimates, mono_references = audio_input.mean_of_channels(outputs), references.mono
    if samples < mono_references.shape[-1]:
        mono_references = mono_references[:, :samples]
    if settings.permute:
        attributed = audio.match_sources(mono_estimates, mono_references).tolist()
    attributed = checks.check_attributed(attributed, len(clips), len(reference_clips))
    rate, align = mapss.sample_rate, settings.align is not None
    target = mono_references[list(attributed)]
    lags, removed = measure_lags(mono_estimates, target, rate, align)
    aligned = outputs
    if any(removed):
        shifted = [audio.shift(wave, lag) for wave, lag in zip(outputs.unbind(-2), removed)]
        aligned = torch.stack(shifted, -2)
    return SystemSignals(
        estimates=audio_input.viewing(clips, outputs),
        references=reference_clips,
        mono_estimates=mono_estimates,
        mono_references=mono_references,
        attributed=attributed,
        mixture=mixture,
        rate=rate,
        grid=mapss.grid,
        lags=lags,
        removed=removed,
        estimates_by_channel=aligned,
        references_by_channel=references.channels[..., :samples],
    )


def measure_lags(
    outputs: Tensor, truth: Tensor, rate: int, align: bool
) -> tuple[list[int | None], list[int]]:
    """Lag in samples of each estimate (S', T) behind its reference (S', T); None if unclear.

    Also returns the lags to remove: with ``align``, all that are within the limit.
    """
    longest = min(round(LAG_SEARCH_S * rate), outputs.shape[-1] // 2)
    lags: list[int | None] = []
    for output, reference in zip(outputs, truth):  # one by one: spectra of all take much memory
        lag, size, unshifted = (x.item() for x in audio.estimate_lag(output, reference, longest))
        clear = int(lag) if size > CLEARER * unshifted else 0
        lags.append(None if size < _LEAST_CORRELATION else clear)
    limit = LAG_LIMIT_S * rate if align else -1
    return lags, [lag if lag is not None and abs(lag) <= limit else 0 for lag in lags]


def _frames(signals: SystemSignals, times: Tensor) -> tuple[Tensor, Tensor]:
    """Begin and end in seconds of the frames centred at ``times`` (F,)."""
    half = signals.grid.receptive_field / signals.grid.sample_rate / 2
    return times - half, times + half


def muted_frames(signals: SystemSignals, times: Tensor) -> Tensor:
    """Frames in which an estimate stays 80 dB below its own peak: (S', F) bool."""
    samples, device = signals.estimates_by_channel.shape[-1], signals.estimates_by_channel.device
    starts, ends = (
        (edge * signals.rate).round().long().clamp(0, samples).to(device)
        for edge in _frames(signals, times)
    )
    rows = []
    for channels in signals.estimates_by_channel.unbind(
        1
    ):  # one estimate after another, to save memory
        output = audio_input.mean_of_channels(channels)
        peak = output.abs().amax().clamp(min=audio.SILENCE_PEAK)
        sounds = output.abs() > 10 ** (_MUTED_DB / 20) * peak
        before = torch.nn.functional.pad(sounds.cumsum(-1), (1, 0))
        rows.append(before[ends] == before[starts])
    return torch.stack(rows)


def covered_frames(signals: SystemSignals, times: Tensor) -> Tensor:
    """(S', F) bool: frames that an estimate still covers after its lag was removed."""
    # An estimate moved to an earlier time lacks its end.
    lags = torch.tensor(signals.removed, dtype=times.dtype, device=times.device) / signals.rate
    lags, seconds = lags.unsqueeze(-1), signals.mono_references.shape[-1] / signals.rate
    begins, ends = _frames(signals, times)
    return (begins >= -lags - _ROUNDING_S) & (ends <= seconds - lags + _ROUNDING_S)
