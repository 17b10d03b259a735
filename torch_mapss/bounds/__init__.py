"""How far PS and PM may be off: radii, tails, and what becomes of them. Never with gradients.

``frames``       the two errors of a frame: truncation radius, half-width at a confidence
``separation``, ``match``, ``schur``, ``bootstrap``, ``effective``   what they are made of
``utterance``    errors of the pooled scores [eq:pesq_pool_h]
``correlation``  errors of a correlation with listeners' ratings [eq:pcc_hw]
``diagnostics``  whether the assumptions behind them hold
"""

from __future__ import annotations

from torch_mapss.bounds.correlation import (
    CorrelationBounds,
    ScenarioBounds,
    correlation_bounds,
    pearson,
    ranks,
    scenario_bounds,
    spearman,
)
from torch_mapss.bounds.frames import (
    Bounds,
    TruncationBounds,
    match_bounds,
    separation_bounds,
    truncation_bounds,
)
from torch_mapss.bounds.utterance import pool_match_bounds, pool_separation_bounds

__all__ = [
    "Bounds",
    "CorrelationBounds",
    "ScenarioBounds",
    "TruncationBounds",
    "correlation_bounds",
    "match_bounds",
    "pearson",
    "pool_match_bounds",
    "pool_separation_bounds",
    "ranks",
    "scenario_bounds",
    "separation_bounds",
    "spearman",
    "truncation_bounds",
]
