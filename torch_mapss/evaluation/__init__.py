"""Files -> reports: one mixture or a whole test set, from Python or the command line."""

from __future__ import annotations

from torch_mapss._lazy import lazy_names

_HOMES = {
    "Comparison": "torch_mapss.evaluation.comparison",
    "Results": "torch_mapss.evaluation.results",
    "compare": "torch_mapss.evaluation.comparison",
    "load_results": "torch_mapss.evaluation.results",
    "Report": "torch_mapss.evaluation.report",
    "evaluate": "torch_mapss.evaluation.scorer",
}

__all__ = [*_HOMES]

__getattr__, __dir__ = lazy_names(__name__, _HOMES)
