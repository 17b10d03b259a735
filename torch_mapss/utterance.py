"""The same as :mod:`torch_mapss.bounds.utterance`."""

from __future__ import annotations

from torch_mapss.bounds.utterance import (
    pool_match_bounds,
    pool_separation_bounds,
)

__all__ = [
    "pool_match_bounds",
    "pool_separation_bounds",
]
