"""Results of systems whose scores are made up, without audio or a folder."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import pandas

from torch_mapss.evaluation.comparison import Comparison, compare
from torch_mapss.evaluation.results import Results
from torch_mapss.score_table import SCORES

#: By system, a score for every mixture.
ScoresBySystem = dict[str, list[float]]
_ROW_COLUMNS = ("mixture_id", "system", "source", "source_index")
#: Systems that lie far apart.
LEVELS = {"low": 0.1, "middle": 0.5, "high": 0.9}


def item_rows(
    scores: ScoresBySystem, measures: Sequence[str] = ("ps", "log_pm"), **columns: Any
) -> list[dict[str, Any]]:
    """Rows of ``items.csv`` whose measures all follow one number; ``columns`` by mixture."""
    rows = []
    for system, values in scores.items():
        for mixture, value in enumerate(values):
            row = {"mixture_id": f"m{mixture}", "system": system, "seconds": 1.0, "references": 2}
            row |= {m: value if SCORES[m].higher_is_better else -value for m in measures}
            row |= {"status": "ok" if value == value else "undefined", "reason": ""}
            row |= {name: column[mixture] for name, column in columns.items()}
            rows.append(row)
    return rows


def made_up_results(
    items: Sequence[dict[str, Any]], rows: Sequence[dict[str, Any]] = ()
) -> Results:
    """Results with rows of ``items.csv`` and ``scores.csv``."""
    table = pandas.DataFrame(items)
    estimates = pandas.DataFrame(rows, columns=None if rows else _ROW_COLUMNS)
    return Results(
        folder="",
        settings={},
        versions={},
        protocol=None,
        options={},
        sha256={},
        mixtures=(),
        systems=(),
        scores=estimates,
        items=table,
        summary=table,
    )


def compared(scores: Any, rows: Sequence[dict[str, Any]] = (), **options: Any) -> Comparison:
    """Of the scores of systems, or of rows of ``items.csv``, and of rows of ``scores.csv``."""
    items = item_rows(scores) if isinstance(scores, dict) else scores
    return compare(made_up_results(items, rows), **options)


def ranking_by_system(comparison: Comparison, measure: str = "ps") -> dict[str, dict[str, Any]]:
    """The rows of a measure's ranking, best first."""
    rows = comparison.ranking[comparison.ranking["measure"] == measure].to_dict("records")
    return {row["system"]: row for row in rows}


def three_systems(count: int = 12, seed: int = 0) -> ScoresBySystem:
    """Two systems that are close and one far above them."""
    rng = np.random.default_rng(seed)
    base = rng.uniform(0.4, 0.6, count)
    middle, high = (list(base + rng.normal(step, 0.05, count)) for step in (0.02, 0.3))
    return {"low": list(base), "middle": middle, "high": high}


def spread(levels: dict[str, float], count: int = 6) -> ScoresBySystem:
    """Systems of unlike level, no two differences equal."""
    return {
        name: [level + 0.001 * mixture**2 * (1 + level) for mixture in range(count)]
        for name, level in levels.items()
    }
