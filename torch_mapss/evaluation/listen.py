"""A listening test of what was scored: stimuli that span the measures, for webMUSHRA.

A *page* is one source of one mixture: its reference (open and hidden), the systems' estimates of
it, and an anchor that webMUSHRA makes (3.5 kHz low-pass). Pages are chosen so that their stimuli
fill a grid of two measures, both by rank over the whole set, as evenly as they can: at every step
the page whose stimuli lie in the emptiest cells, by lot (seeded) among equals. Systems that differ
little then still give ratings over the whole range, which correlations need.

webMUSHRA is not part of this package: https://github.com/audiolabs/webMUSHRA.
"""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np

from torch_mapss.evaluation.results import Results, records

# Cells of the grid, each way.
_GRID = 4
#: Measures that a test may span: the first two of one line that the results have.
SPANNED = (("clearance", "fidelity"), ("ps", "log_pm"))

Cell = tuple[int, ...]


class Page(NamedTuple):
    """What is rated together."""

    mixture_id: str
    source_index: int
    source: str
    rows: tuple[Mapping[str, Any], ...]  # of scores.csv, one per system


def spanned(results: Results) -> tuple[str, ...]:
    """The measures that the stimuli of a test span: two, or one where there is no other."""
    have = results.measures
    found = (pair for pair in SPANNED if set(pair) <= set(have))
    return next(found, tuple(have[:2]))


def choose(
    results: Results,
    count: int = 12,
    *,
    systems: Sequence[str] | None = None,
    most: int = 8,
    seed: int = 0,
) -> tuple[Page, ...]:
    """The pages of a test.

    Args:
        results: of :func:`~torch_mapss.evaluation.results.load_results`.
        count: pages wanted; fewer where the set has fewer.
        systems: those to be rated; all by default.
        most: systems on a page; more are drawn from.
        seed: equal seeds choose equal pages.

    Returns:
        The pages.

    Raises:
        ValueError: unknown systems, or nothing that is scored.
    """
    unknown = [name for name in systems or () if name not in results.systems]
    if unknown:
        raise ValueError(
            f"systems must be of {', '.join(map(repr, results.systems))}, got {unknown[0]!r}."
        )
    if count < 1 or most < 1:
        raise ValueError(f"count and most must be at least 1, got {count} and {most}.")
    by_source: dict[tuple[str, int], list[Mapping[str, Any]]] = {}
    for row in records(results.scores):
        if row["status"] == "ok" and row["system"] in (systems or results.systems):
            by_source.setdefault((row["mixture_id"], row["source_index"]), []).append(row)
    if not by_source:
        raise ValueError(
            "no estimate has scored frames, so there is nothing to listen to: see the column "
            "`reason` of scores.csv."
        )
    chance = random.Random(seed)
    pages = [
        Page(
            *key, rows[0]["source"], tuple(rows if len(rows) <= most else chance.sample(rows, most))
        )
        for key, rows in by_source.items()
    ]
    chance.shuffle(pages)
    cells = _cells(pages, spanned(results))
    filled: Counter[Cell] = Counter()
    chosen: list[Page] = []
    while cells and len(chosen) < count:
        best = int(np.argmax([_gain(own, filled) for own in cells]))
        filled.update(cells.pop(best))
        chosen.append(pages.pop(best))
    return tuple(chosen)


def _gain(cells: Sequence[Cell], filled: Counter[Cell]) -> float:
    """What a page adds: a stimulus gains half with every one that its cell holds already."""
    there = filled.copy()
    gain = 0.0
    for cell in cells:
        gain += 0.5 ** there[cell]
        there[cell] += 1
    return gain / len(cells)


def _cells(pages: Sequence[Page], names: Sequence[str]) -> list[list[Cell]]:
    """The cells of every page's stimuli in the grid of ranks; undefined scores are the lowest."""
    from scipy.stats import rankdata

    rows = [row for page in pages for row in page.rows]
    values = np.array([[row[name] for name in names] for row in rows], dtype=float)
    ranks = rankdata(np.nan_to_num(values, nan=-np.inf), axis=0) - 0.5
    places = np.minimum((_GRID * ranks / len(rows)).astype(int), _GRID - 1).tolist()
    taken = iter(places)
    return [[tuple(next(taken)) for _ in page.rows] for page in pages]
