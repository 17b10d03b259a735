"""Files -> reports: one mixture or a whole test set, from Python or the command line."""

from __future__ import annotations

from torch_mapss._lazy import lazy_names

_HOMES = {
    "Report": "torch_mapss.evaluation.report",
    "evaluate": "torch_mapss.evaluation.scorer",
}

__all__ = [*_HOMES]

__getattr__, __dir__ = lazy_names(__name__, _HOMES)
