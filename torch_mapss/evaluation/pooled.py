"""Frame scores of channels and excerpts as one record, and the columns of a table from them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import fields, replace
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from torch_mapss.core.frame_batches import Bounds
from torch_mapss.core.pooling import masked_mean
from torch_mapss.pipeline.scores import ScoreBounds, Scores
from torch_mapss.score_table import FRAME_SCORES, present, scores_of

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
        every = torch.stack([getattr(one, name) for one in channels])
        if values.dtype == torch.bool:  # active, and where a score is defined
            changed[name] = every.any(0)
        elif name.endswith("_dimension"):
            changed[name] = every.amax(0)
        elif name != "times":
            defined = torch.stack([one.defined(name) for one in channels])
            mean = every.where(defined, torch.nan).nanmean(0)
            changed[name] = mean if name == "bleed_db" else mean.nan_to_num()
    return replace(channels[0], **changed)


def joined(parts: Sequence[Scores], starts: Sequence[float]) -> Scores:
    """The frames of excerpts, one after another, at their times in the whole signal."""
    if len(parts) == 1:
        return replace(parts[0], times=parts[0].times + starts[0])
    every = [_tensors(part) for part in parts]
    found: dict[str, Any] = {name: torch.cat([one[name] for one in every], -1) for name in every[0]}
    found["times"] = torch.cat([part.times + start for part, start in zip(parts, starts)])
    return replace(parts[0], **found)


def frames(scores: Scores) -> dict[str, Tensor]:
    """(S', F) scores by name, NaN where they are not defined."""
    names = [name for name in FRAME_SCORES if getattr(scores, name) is not None]
    values = ((name, scores.of(name).where(scores.defined(name), torch.nan)) for name in names)
    return {name: own[0].cpu() for name, own in values}


def frame_bounds(scores: Scores, bounds: ScoreBounds) -> dict[str, Tensor]:
    """(S', F) ``ps_radius``, ``ps_tail``, ``ps_total`` and the like, NaN in frames not scored."""
    return {
        f"{name}_{part}": torch.where(scores.active, values, torch.nan)[0].cpu()
        for name in FRAME_SCORES
        for part, values in zip(Bounds._fields, bounds.of(name) or ())
    }


def columns(scores: Scores, bounds: ScoreBounds | None = None) -> DataFrame:
    """Utterance scores of what was computed and what belongs to them, a row per estimate."""
    import pandas

    pooled, active = scores.utterance()._asdict(), scores.active
    found = {name: pooled[name] for name in scores_of(scores.measures)}
    for name in ("separation_dimension", "match_dimension"):
        each = getattr(scores, name)
        if each is not None:
            found[name] = masked_mean(each.double().unsqueeze(1).expand(active.shape), active)
    if bounds is not None:
        found |= _utterance_bounds(scores, bounds)
    return pandas.DataFrame({name: values[0].tolist() for name, values in found.items()})


def sampling(parts: Sequence[Scores]) -> tuple[DataFrame, dict[str, float]]:
    """Standard errors over excerpts: of the score of each estimate, and of the mean of them."""
    import pandas

    each = [columns(part) for part in parts]
    each = [table[list(present(table))] for table in each]
    means = pandas.DataFrame([table.mean() for table in each])
    return pandas.concat(each).groupby(level=0).sem().add_suffix("_se"), means.sem().to_dict()


def _utterance_bounds(scores: Scores, bounds: ScoreBounds) -> dict[str, Tensor]:
    """Radius and half-width of each utterance score, (1, S') each."""
    from torch_mapss.bounds.utterance import pool_match_bounds, pool_separation_bounds

    found = {}
    for name in ("clearance", "fidelity", "ps", "pm"):
        each = bounds.of(name)
        if each is None:
            continue
        there = scores.defined(name)
        if name == "fidelity":  # of a root mean square: by Minkowski's inequality
            for part in ("radius", "tail"):
                found[f"{name}_{part}"] = masked_mean(getattr(each, part).square(), there).sqrt()
            continue
        pooled = pool_match_bounds(each.radius, each.tail, there)  # of a plain mean
        found |= {f"{name}_radius": pooled.radius, f"{name}_tail": pooled.tail}
        if name == "ps":
            pooled = pool_separation_bounds(scores.of("ps"), each.radius, each.tail, there)
            found |= {"ps_pesq_radius": pooled.radius, "ps_pesq_tail": pooled.tail}
    return found
