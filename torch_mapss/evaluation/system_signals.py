"""Estimates of one system beside the references of their mixture, cut and aligned."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

import torch

from torch_mapss import audio
from torch_mapss.core import checks
from torch_mapss.evaluation import audio_input, input_checks
from torch_mapss.evaluation.audio_input import Clip, ReferenceSignals
from torch_mapss.evaluation.input_checks import SystemSignals
from torch_mapss.evaluation.settings import ScoringSettings

if TYPE_CHECKING:
    from torch_mapss.pipeline.mapss import MAPSS


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
    mono_outputs, mono_references = audio_input.mean_of_channels(outputs), references.mono
    if samples < mono_references.shape[-1]:
        mono_references = mono_references[:, :samples]
    if settings.permute:
        attributed = audio.match_sources(mono_outputs, mono_references).tolist()
    attributed = checks.check_attributed(attributed, len(clips), len(reference_clips))
    rate, align = mapss.sample_rate, settings.align is not None
    target = mono_references[list(attributed)]
    lags, removed = input_checks.measure_lags(mono_outputs, target, rate, align)
    moved = outputs
    if any(removed):
        shifted = [audio.shift(wave, lag) for wave, lag in zip(outputs.unbind(-2), removed)]
        moved = torch.stack(shifted, -2)
    return SystemSignals(
        estimates=audio_input.viewing(clips, outputs),
        references=reference_clips,
        outputs=mono_outputs,
        truth=mono_references,
        attributed=attributed,
        mixture=mixture,
        rate=rate,
        grid=mapss.grid,
        lags=lags,
        removed=removed,
        moved=moved,
        channels=references.channels[..., :samples],
    )
