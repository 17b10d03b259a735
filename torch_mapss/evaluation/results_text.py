"""The summary that is printed when a set has been scored."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

from torch_mapss.evaluation.records import rows_of
from torch_mapss.evaluation.results import Results
from torch_mapss.evaluation.text_page import Page, Table
from torch_mapss.score_table import SCORES, score_label, score_text, scores_in


def results_text(results: Results) -> str:
    """Means and counts of the systems, the meaning of the numbers, and notes."""
    summary, excerpts = results.summary, results.settings.get("excerpts")
    names = scores_in(summary.columns, ranked=True)
    counts = ("scored", "undefined", "failed")
    rows = []
    for row in rows_of(summary):
        cells = [_cell(row, name, excerpts is not None) for name in names]
        rows.append([row["system"], *cells, *(str(row[name]) for name in counts)])
    table = Table(["system", *map(score_label, names), *counts], rows)
    notes = [
        *(f"{SCORES[name].meaning}." for name in names),
        "Means over the estimates of a mixture, then over mixtures; undefined and failed ones are "
        "left out.",
        "scored, undefined, failed: mixtures.",
    ]
    if len(results.channels):
        notes.append("Every channel was scored: channels.csv has the scores of each.")
    if excerpts is not None:
        notes.append(f"±: standard error over {excerpts} excerpts a mixture.")
    notes += [f"Note: {note}." for note in results.notes]
    notes += [f"Warning: {warning}." for warning in results.warnings]
    return Page("", [table], notes).text(wrap=False)


def _cell(row: Mapping[str, Any], name: str, has_error: bool) -> str:
    error = score_text(name, row.get(f"{name}_se", math.nan) if has_error else math.nan)
    return score_text(name, row[name]) + ("" if error == "-" else f" ±{error}")
