"""Pooling of frame scores into the columns of a table, over channels and excerpts."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import fields, replace
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from torch_mapss.core.pooling import masked_mean
from torch_mapss.pipeline.scores import BOUNDED, ScoreBounds, Scores
from torch_mapss.score_table import FRAME_SCORES, scores_in, scores_of

if TYPE_CHECKING:
    from pandas import DataFrame


def _tensors(scores: Scores) -> dict[str, Tensor]:
    values = {field.name: getattr(scores, field.name) for field in fields(scores)}
    return {name: value for name, value in values.items() if isinstance(value, Tensor)}


def averaged(channels: Sequence[Scores]) -> Scores:
    """Frame scores averaged over the channels in which they are defined."""
    if len(channels) == 1:
        return channels[0]
    changed: dict[str, Any] = {}
    for name, values in _tensors(channels[0]).items():
        stacked = torch.stack([getattr(scores, name) for scores in channels])
        if values.dtype == torch.bool:  # active, and where a score is defined
            changed[name] = stacked.any(0)
        elif name.endswith("_dimension"):
            changed[name] = stacked.amax(0)
        elif name != "times":
            defined = torch.stack([scores.defined(name) for scores in channels])
            mean = stacked.where(defined, torch.nan).nanmean(0)
            changed[name] = mean if name == "bleed_db" else mean.nan_to_num()
    return replace(channels[0], **changed)


def selected(scores: Scores, frames: Tensor) -> Scores:
    """Scores of the frames selected by ``frames`` (F,) bool."""
    tensors = {name: values[..., frames] for name, values in _tensors(scores).items()}
    return replace(scores, **tensors)  # type: ignore[arg-type]


def covered(scores: Scores, is_covered: Tensor) -> Scores:
    """The scores, undefined in frames that are not covered, (S', F) bool."""
    changed: dict[str, Any] = {"active": scores.active & is_covered}
    for name, values in _tensors(scores).items():
        if name.endswith("_defined"):
            changed[name] = values & is_covered
    if scores.bleed_db is not None:
        changed["bleed_db"] = scores.bleed_db.where(is_covered, torch.nan)
    return replace(scores, **changed)


def frames(scores: Scores) -> dict[str, Tensor]:
    """Frame scores (S', F) by name, NaN where undefined."""
    values: dict[str, Tensor] = {}
    for name in FRAME_SCORES:
        if getattr(scores, name) is not None:
            defined = scores.of(name).where(scores.defined(name), torch.nan)
            values[name] = defined[0].cpu()
    return values


def frame_bounds(scores: Scores, bounds: ScoreBounds) -> dict[str, Tensor]:
    """(S', F) ``ps_radius``, ``ps_tail``, ``ps_total`` and the like, NaN in frames not scored."""
    columns = {}
    for name in BOUNDED:
        if getattr(bounds, name) is not None:
            defined = scores.defined(name)
            for quantity, values in bounds.of(name)._asdict().items():
                columns[f"{name}_{quantity}"] = torch.where(defined, values, torch.nan)[0].cpu()
    return columns


def columns(scores: Scores, bounds: ScoreBounds | None = None) -> DataFrame:
    """Computed utterance scores with bounds and dimensions, one row per estimate."""
    import pandas

    pooled, active = scores.utterance()._asdict(), scores.active
    values = {name: pooled[name] for name in scores_of(scores.measures)}
    for name in ("separation_dimension", "match_dimension"):
        dimension = getattr(scores, name)
        if dimension is not None:
            per_estimate = dimension.double().unsqueeze(1).expand(active.shape)
            values[name] = masked_mean(per_estimate, active)
    if bounds is not None:
        values |= _utterance_bounds(scores, bounds)
    return pandas.DataFrame({name: column[0].tolist() for name, column in values.items()})


def mean_over_channels(tables: Sequence[DataFrame]) -> DataFrame:
    """The mean of tables of :func:`columns`, a channel each, where they are defined."""
    import pandas

    return tables[0] if len(tables) == 1 else pandas.concat(tables).groupby(level=0).mean()


def sampling(channels: Sequence[Scores], inside: Tensor) -> tuple[DataFrame, dict[str, float]]:
    """Standard errors over excerpts, for the score of each estimate and for their mean.

    By jackknife: scores are pooled over all excerpts but one at a time. So an excerpt counts by its
    frames, and poolings other than means are treated correctly. Bleed, which is computed on the
    whole signal, has none, and a single excerpt has only NaN.

    Args:
        channels: scores of the whole of each channel, with frames outside of the excerpts
            undefined.
        inside: (F, n) bool, the frames of each excerpt.
    """
    import pandas

    without_bleed = [replace(scores, bleed_db=None) for scores in channels]
    tables = []
    for excerpt in range(inside.shape[-1]):
        remaining = ~inside[:, excerpt]
        of_channels = [columns(selected(scores, remaining)) for scores in without_bleed]
        table = mean_over_channels(of_channels)
        names = [name for name in scores_in(table) if name != "bleed_db"]
        tables.append(table[names])
    means = pandas.DataFrame([table.mean() for table in tables])
    # sqrt((n - 1) / n · Σ (without one - mean)²) = (n - 1) times the standard error of their mean.
    spread = len(tables) - 1
    of_estimates = pandas.concat(tables).groupby(level=0).sem() * spread
    return of_estimates.add_suffix("_se"), (means.sem() * spread).to_dict()


def _utterance_bounds(scores: Scores, bounds: ScoreBounds) -> dict[str, Tensor]:
    """Radius and half-width of each utterance score, (1, S') each."""
    from torch_mapss.bounds.utterance import pool_match_bounds, pool_separation_bounds

    values: dict[str, Tensor] = {}
    for name in BOUNDED:
        of_frames = getattr(bounds, name)
        if of_frames is None:
            continue
        radius, tail, defined = of_frames.radius, of_frames.tail, scores.defined(name)
        if name in ("clearance", "fidelity"):
            of_utterance = getattr(bounds, f"utterance_{name}")  # of the pooled score
            values |= {f"{name}_radius": of_utterance.radius, f"{name}_tail": of_utterance.tail}
            continue
        pooled = pool_match_bounds(radius, tail, defined)  # of a plain mean
        values |= {f"{name}_radius": pooled.radius, f"{name}_tail": pooled.tail}
        if name == "ps":
            pooled = pool_separation_bounds(scores.of("ps"), radius, tail, defined)
            values |= {"ps_pesq_radius": pooled.radius, "ps_pesq_tail": pooled.tail}
    return values
