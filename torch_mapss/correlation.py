"""The same as :mod:`torch_mapss.bounds.correlation`."""

from __future__ import annotations

from torch_mapss.bounds.correlation import (
    CorrelationBounds,
    ScenarioBounds,
    correlation_bounds,
    pearson,
    pearson_gradient,
    ranks,
    scenario_bounds,
    spearman,
    spearman_radius,
)

__all__ = [
    "CorrelationBounds",
    "ScenarioBounds",
    "correlation_bounds",
    "pearson",
    "pearson_gradient",
    "ranks",
    "scenario_bounds",
    "spearman",
    "spearman_radius",
]
