"""Clips of a mixture -> scores of its systems: what may be refused, then one pass for all."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any, NamedTuple

import torch
from torch import Tensor

from torch_mapss import audio
from torch_mapss.core import checks
from torch_mapss.evaluation import clips
from torch_mapss.evaluation.assembly import assembled, earlier
from torch_mapss.evaluation.clips import Clip
from torch_mapss.evaluation.inspection import Lags, Signals, covered_frames, measure_lags
from torch_mapss.evaluation.report import Report
from torch_mapss.evaluation.request import Request
from torch_mapss.pipeline.bank import ReferenceBank
from torch_mapss.pipeline.scores import ScoreBounds, Scores

if TYPE_CHECKING:
    from torch_mapss.pipeline.mapss import MAPSS


def silent(stage: str) -> None:
    del stage


class Entry(NamedTuple):
    """One system's estimates of a mixture, ready to be scored."""

    signals: Signals
    lags: Lags
    outputs: Tensor  # (S', T), moved by the lags that are removed
    truth: Tensor  # (S, T)


def entered(
    scorer: MAPSS,
    estimates: Sequence[Clip | None],
    references: Sequence[Clip],
    request: Request,
    device: torch.device,
    *,
    attributed: Sequence[int] | None = None,
    mixture: Clip | None = None,
) -> Entry:
    """What can be refused or found out of estimates before they are scored."""
    given, index = _present(estimates, len(references), attributed)
    if len(references) < 2:
        raise ValueError(
            f"at least two references are needed, got {len(references)}: PS compares an estimate "
            "with the other sources of the mixture."
        )
    samples = clips.common_length(given, references, request.trim)
    outputs = clips.stack(given, samples, device)
    truth = clips.stack(references, samples, device)
    if request.permute:
        index = _matched(outputs, truth, attributed)
    index = checks.check_attributed(index, len(given), len(references))
    checks_of = _signals(scorer, given, references, outputs, truth, index, mixture)
    lags = measure_lags(checks_of, request.align is not None)
    return Entry(checks_of, lags, earlier(outputs, lags.removed), truth)


def score_entries(
    scorer: MAPSS,
    entries: Sequence[Entry],
    request: Request,
    prepared: Callable[[Tensor], ReferenceBank] | None = None,
    on_stage: Callable[[str], object] = silent,
    on_segment: Callable[[int, int], object] | None = None,
) -> list[Report]:
    """Reports of several systems on the same references, of one length, in one pass."""
    on_stage("preparing references and distortions")
    bank = (prepared or scorer.prepare)(entries[0].truth)
    on_stage("scoring frames and their bounds" if request.bounds else "scoring frames")
    reports = []
    for entry, (scores, bounds) in zip(
        entries, _scored(scorer, entries, bank, request, on_segment)
    ):
        scores, bounds = _within_reach(scores, bounds, entry.lags, entry.signals)
        reports.append(assembled(scorer, entry.signals, entry.lags, scores, bounds, request))
    return reports


def _present(
    estimates: Sequence[Clip | None], sources: int, attributed: Sequence[int] | None
) -> tuple[tuple[Clip, ...], tuple[int, ...] | None]:
    """The estimates there are, and the reference of each (None: all in order)."""
    given = tuple(clip for clip in estimates if clip is not None)
    if len(given) == len(estimates):
        index = None if attributed is None else checks.whole_numbers(attributed, "attributed")
        return given, index
    if attributed is not None:
        raise ValueError(
            "estimates hold None and attributed is given: say it in one of the two ways only."
        )
    if len(estimates) != sources:
        raise ValueError(
            f"estimates hold None, so there must be one entry per reference ({sources}), got "
            f"{len(estimates)}."
        )
    return given, tuple(place for place, clip in enumerate(estimates) if clip is not None)


def _matched(outputs: Tensor, truth: Tensor, attributed: object) -> tuple[int, ...]:
    if attributed is not None:
        raise ValueError(
            "permute and attributed exclude each other: the one looks for what the other states."
        )
    return tuple(audio.match_sources(outputs, truth).tolist())


def _signals(
    scorer: MAPSS,
    estimates: Sequence[Clip],
    references: Sequence[Clip],
    outputs: Tensor,
    truth: Tensor,
    index: tuple[int, ...],
    mixture: Clip | None,
) -> Signals:
    """What is to be looked at, samples that are not finite as zeros: the scorer has refused them,
    unless it was told not to look.
    """
    grid = scorer.grid
    return Signals(
        estimates=estimates,
        references=references,
        outputs=outputs.nan_to_num(0.0, 0.0, 0.0),
        truth=truth.nan_to_num(0.0, 0.0, 0.0),
        attributed=index,
        mixture=mixture,
        rate=scorer.sample_rate,
        encoder_rate=grid.sample_rate,
        hop_s=grid.hop / grid.sample_rate,
        frame_s=grid.receptive_field / grid.sample_rate,
    )


def _scored(
    scorer: MAPSS,
    entries: Sequence[Entry],
    bank: ReferenceBank,
    request: Request,
    on_segment: Callable[[int, int], object] | None,
) -> list[tuple[Scores, ScoreBounds | None]]:
    outputs = [entry.outputs for entry in entries]
    indices = [entry.signals.attributed for entry in entries]
    frames: dict[str, Any] = {"frames": request.sample_frames, "on_segment": on_segment}
    bounds: list[ScoreBounds | None] = [None] * len(entries)
    if request.bounds:  # which reads the scores off the same maps
        kind: dict[str, Any] = {"convention": request.bounds_convention, "tail": request.tail}
        made = scorer.bound_systems(outputs, bank, request.confidence, indices, **kind, **frames)
        if made[0].scores is not None:
            return [(each.scores, each) for each in made if each.scores is not None]
        bounds = list(made)
    return list(zip(scorer.score_systems(outputs, bank, indices, **frames), bounds))


def _within_reach(
    scores: Scores, bounds: ScoreBounds | None, lags: Lags, signals: Signals
) -> tuple[Scores, ScoreBounds | None]:
    """Without the frames that an estimate no longer reaches into, as its lag was removed."""
    if not any(lags.removed):
        return scores, bounds
    shifts = [lag / signals.rate for lag in lags.removed]
    seconds = signals.outputs.shape[-1] / signals.rate
    covered = covered_frames(shifts, scores.times, signals.frame_s, seconds)
    active = scores.active & covered.to(scores.active.device)
    kept = None if bounds is None else bounds._replace(active=active)
    return replace(scores, active=active), kept
