"""What the errors of the scores may change in their correlation [sec:propagate_ci_to_corr].

From the radius and half-width of every score to those of the correlation of one track and source,
and of the mean over tracks and sources.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from torch_mapss.bounds.correlation import correlation_bounds, scenario_bounds
from torch_mapss.evaluation.correlation_stats import METHODS, Data, parts_of

_Array = NDArray[Any]
_NAMES = dict(zip(METHODS, ("spearman", "pearson")))


def propagated(
    data: Data, pooling: str, *, confidence: float, convention: str, rho: float, seed: int
) -> dict[str, float]:
    """Radius and half-width of SRCC and PCC; NaN where a score has no bounds.

    Args:
        data: the stimuli that the correlation is of.
        pooling: ``"per_track"`` or ``"pooled"``.
        confidence: of the half-widths that come in and go out.
        convention: ``"derived"`` or ``"paper"``.
        rho: ρ_l, correlation of the errors of the sources of a track.
        seed: of the jitter.

    Returns:
        ``srcc_radius``, ``srcc_half_width`` and the same of ``pcc``.
    """
    parts = ("radius", "half_width")
    if not len(data.scores) or not np.isfinite(data.bounds).all():
        return {f"{method}_{part}": math.nan for method in METHODS for part in parts}
    rows = parts_of(data.unit) if pooling == "per_track" else [np.arange(len(data.unit))]
    score, radius, half_width, rating = (
        _padded([column[row] for row in rows])
        for column in (data.scores, *data.bounds.T, data.ratings)
    )
    track = np.array([data.track[row[0]] for row in rows])
    found: dict[str, float] = {}
    for method, name in _NAMES.items():
        one = correlation_bounds(
            score, radius, half_width, rating, confidence, name, convention=convention, seed=seed
        )
        both = [one.radius[0], one.half_width[0]]
        if pooling == "per_track":
            own = parts_of(track)
            value, wide, half = (
                _padded([part.numpy()[row] for row in own])
                for part in (one.value, one.radius, one.half_width)
            )
            whole = scenario_bounds(value, wide, half, rho)
            both = [whole.radius, whole.half_width]
        found |= {f"{method}_{part}": float(value) for part, value in zip(parts, both)}
    return found


def _padded(rows: Sequence[_Array]) -> torch.Tensor:
    """(rows, longest), NaN behind shorter ones."""
    made = torch.full((len(rows), max(map(len, rows))), math.nan, dtype=torch.float64)
    for line, row in zip(made, rows):
        line[: len(row)] = torch.as_tensor(row)
    return made
