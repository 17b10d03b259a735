"""What the errors of the scores may change in their correlation [sec:propagate_ci_to_corr].

From the radius and half-width of every score to those of the correlation of one track and source,
and of the mean over tracks and sources.
"""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from torch_mapss.bounds.correlation import (
    CorrelationBounds,
    correlation_bounds,
    scenario_bounds,
)
from torch_mapss.evaluation.association import METHODS, Data

_Array = NDArray[Any]
_NAMES = dict(zip(METHODS, ("spearman", "pearson")))


def propagated(
    data: Data,
    bounds: _Array,
    used: _Array,
    pooling: str,
    *,
    confidence: float,
    convention: str,
    rho: float,
    seed: int,
) -> dict[str, float]:
    """Radius and half-width of SRCC and PCC; NaN where a score has no bounds.

    Args:
        data: stimuli.
        bounds: (n, 2) radius and half-width of each score, NaN without.
        used: (n,) bool, the stimuli that the correlation is of.
        pooling: ``"per_track"`` or ``"pooled"``.
        confidence: of the half-widths that come in and go out.
        convention: ``"derived"`` or ``"paper"``.
        rho: ρ_l, correlation of the errors of the sources of a track.
        seed: of the jitter.

    Returns:
        ``srcc_radius``, ``srcc_half_width`` and the same of ``pcc``.
    """
    found = {
        f"{method}_{part}": math.nan for method in METHODS for part in ("radius", "half_width")
    }
    if not used.any() or not np.isfinite(bounds[used]).all():
        return found
    columns = data.scores, *bounds.T, data.ratings
    if pooling == "pooled":
        score, radius, half, rating = (torch.as_tensor(c[used])[None] for c in columns)
    else:
        score, radius, half, rating = (_by_unit(c[used], data.unit[used]) for c in columns)
    for method, name in _NAMES.items():
        one = correlation_bounds(
            score, radius, half, rating, confidence, name, convention=convention, seed=seed
        )
        both = one.radius[0], one.half_width[0]
        if pooling == "per_track":
            both = _over_tracks(one, _unit_tracks(data, used), rho)
        found |= {f"{method}_radius": float(both[0]), f"{method}_half_width": float(both[1])}
    return found


def _by_unit(column: _Array, unit: _Array) -> torch.Tensor:
    """(U, Q), the values of each track and source, NaN where it has fewer."""
    return _padded([column[unit == u].tolist() for u in np.unique(unit)])


def _padded(lines: list[list[float]]) -> torch.Tensor:
    most = max(map(len, lines))
    filled = [line + [math.nan] * (most - len(line)) for line in lines]
    return torch.tensor(filled, dtype=torch.float64)


def _unit_tracks(data: Data, used: _Array) -> _Array:
    """(U,) the track of each track and source, in the order of `_by_unit`."""
    first = np.unique(data.unit[used], return_index=True)[1]
    return data.track[used][first]


def _over_tracks(
    one: CorrelationBounds, tracks: _Array, rho: float
) -> tuple[torch.Tensor, torch.Tensor]:
    """Radius and half-width of the mean over tracks and their sources."""
    value, radius, half = (
        _padded([part[torch.as_tensor(tracks == track)].tolist() for track in np.unique(tracks)])
        for part in (one.value, one.radius, one.half_width)
    )
    whole = scenario_bounds(value, radius, half, rho)
    return whole.radius, whole.half_width
