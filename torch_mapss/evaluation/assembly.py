"""Scores of a mixture -> its report: rows, notes, and what was found about the signals."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from torch_mapss import audio
from torch_mapss.bounds.utterance import pool_match_bounds, pool_separation_bounds
from torch_mapss.core.devices import device_name
from torch_mapss.core.pooling import masked_mean
from torch_mapss.evaluation import clips
from torch_mapss.evaluation.inspection import Inspection, Lags, Signals, inspect, muted_frames
from torch_mapss.evaluation.report import Report, SourceRow, versions
from torch_mapss.evaluation.request import Request
from torch_mapss.pipeline.scores import ScoreBounds, Scores

if TYPE_CHECKING:
    from torch_mapss.pipeline.mapss import MAPSS


# A distance below this is rounding; its logarithm must not outweigh all others.
_LEAST_DISTANCE = 1e-6


def assembled(
    scorer: MAPSS,
    signals: Signals,
    lags: Lags,
    scores: Scores,
    bounds: ScoreBounds | None,
    request: Request,
) -> Report:
    active = scores.active[0].cpu()

    def frames(name: str) -> Tensor:
        return torch.where(active, getattr(scores, name)[0].cpu(), torch.nan)

    looked = inspect(signals, lags)
    return Report(
        estimates=tuple(signals.estimates),
        references=tuple(signals.references),
        attributed=tuple(signals.attributed),
        times=scores.times.cpu(),
        active=active,
        ps=frames("ps"),
        pm=frames("pm"),
        log_pm=frames("log_pm"),
        attributed_distance=frames("attributed_distance"),
        foreign_distance=frames("foreign_distance"),
        rows=_source_rows(signals, lags, looked, scores, bounds),
        sample_rate=scorer.sample_rate,
        settings={**scorer.describe(), **request._asdict()},
        versions=versions(),
        notes=_notes(signals, lags, request),
        findings=looked.findings,
        device=device_name(signals.outputs.device),
        bounds=None if bounds is None else _on_cpu(bounds),
        mixture=signals.mixture,
        pm_rank=None,
    )


def _notes(signals: Signals, lags: Lags, request: Request) -> tuple[str, ...]:
    """What was done to the input."""
    estimates, references = signals.estimates, signals.references
    samples = signals.outputs.shape[-1]
    notes = clips.remarks([*references, *estimates], signals.rate, samples)
    if request.permute:
        pairs = (f"{e.name} -> {references[i].name}" for e, i in zip(estimates, signals.attributed))
        notes.append(f"attributed by SI-SDR: {', '.join(pairs)}")
    for clip, lag in zip(estimates, lags.removed):
        if lag:
            notes.append(
                f"{clip.path or clip.name}: a lag of {1000 * lag / signals.rate:.2f} ms was removed"
            )
    return tuple(notes)


def _on_cpu(bounds: ScoreBounds) -> ScoreBounds:
    ps, pm = (type(part)(*(tensor.cpu() for tensor in part)) for part in (bounds.ps, bounds.pm))
    return bounds._replace(ps=ps, pm=pm, active=bounds.active.cpu(), scores=None)


def _source_rows(
    signals: Signals, lags: Lags, looked: Inspection, scores: Scores, bounds: ScoreBounds | None
) -> tuple[SourceRow, ...]:
    numbers = {name: values[0].tolist() for name, values in _columns(scores, bounds).items()}
    counts = scores.active[0].sum(-1).tolist()
    muted = _muted(signals, lags, scores)
    rows = []
    for place, (estimate, source) in enumerate(zip(signals.estimates, signals.attributed)):
        reference = signals.references[source]
        lag, moved = lags.found[place], lags.removed[place]
        rows.append(
            SourceRow(
                source=reference.name,
                source_index=source,
                estimate=estimate.path or estimate.name,
                reference=reference.path or reference.name,
                frames=counts[place],
                total_frames=scores.active.shape[-1],
                muted_frames=muted[place],
                silent=looked.silent[place],
                lag_ms=math.nan if lag is None else 1000.0 * lag / signals.rate,
                shift_ms=1000.0 * moved / signals.rate,
                estimate_rate=estimate.rate,
                reference_rate=reference.rate,
                estimate_bandwidth=looked.estimate_bands[place],
                reference_bandwidth=looked.reference_bands[source],
                **{name: values[place] for name, values in numbers.items()},
            )
        )
    return tuple(rows)


def _columns(scores: Scores, bounds: ScoreBounds | None) -> dict[str, Tensor]:
    """Utterance scores and what belongs to them, (1, S') each; NaN where no frame is scored."""
    pooled, active = scores.utterance(), scores.active
    logs = torch.where(active, scores.log_pm, torch.nan)
    columns = {
        "ps": pooled.ps,
        "pm": pooled.pm,
        "log_pm": pooled.log_pm,
        "log_pm_median": logs.nanquantile(0.5, dim=-1),
        "ps_pesq": pooled.ps_pesq,
        "attributed_distance": masked_mean(scores.attributed_distance, active),
        "foreign_distance": masked_mean(scores.foreign_distance, active),
        "log_foreign_distance": masked_mean(
            scores.foreign_distance.clamp(min=_LEAST_DISTANCE).log(), active
        ),
    }
    for name in ("separation_dimension", "match_dimension"):
        each = getattr(scores, name).to(scores.ps).unsqueeze(1).expand_as(scores.ps)
        columns[name] = masked_mean(each, active)
    return columns if bounds is None else columns | _utterance_bounds(scores, bounds)


def _muted(signals: Signals, lags: Lags, scores: Scores) -> list[int]:
    """Scored frames of each estimate in which it is muted."""
    outputs = earlier(signals.outputs, lags.removed)
    muted = muted_frames(outputs, scores.times, signals.frame_s, signals.rate)
    found: list[int] = (muted & scores.active[0]).sum(-1).tolist()
    return found


def _utterance_bounds(scores: Scores, bounds: ScoreBounds) -> dict[str, Tensor]:
    """Radius and half-width of each utterance score, (1, S') each."""
    active = scores.active
    found = {
        "ps": pool_match_bounds(bounds.ps.radius, bounds.ps.tail, active),  # of a plain mean
        "pm": pool_match_bounds(bounds.pm.radius, bounds.pm.tail.nan_to_num(), active),
        "ps_pesq": pool_separation_bounds(scores.ps, bounds.ps.radius, bounds.ps.tail, active),
    }
    columns = {
        f"{name}_{part}": getattr(pooled, part)
        for name, pooled in found.items()
        for part in ("radius", "tail")
    }
    stated = ~bounds.pm.tail.isnan().any(-1)  # the conformal convention states none
    columns["pm_tail"] = torch.where(stated, columns["pm_tail"], torch.nan)
    return columns


def earlier(outputs: Tensor, lags: Sequence[int]) -> Tensor:
    """Each estimate (S', T) earlier by its lag, in samples."""
    if not any(lags):
        return outputs
    return torch.stack([audio.shift(wave, lag) for wave, lag in zip(outputs, lags)])
