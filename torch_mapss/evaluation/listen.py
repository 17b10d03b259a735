"""A listening test of what was scored: stimuli that span the measures, for webMUSHRA.

A *page* is one source of one mixture: its reference (open and hidden), the systems' estimates of
it, and an anchor that webMUSHRA makes (3.5 kHz low-pass). Pages are chosen so that their stimuli
fill a grid of PS and log PM, both by rank over the whole set, as evenly as they can: at every step
the page whose stimuli lie in the emptiest cells, by lot (seeded) among equals. Systems that differ
little then still give ratings over the whole range, which correlations need.

All sounds are brought to one loudness (ITU-R BS.1770), all of a page lower by the same amount if a
peak would not fit. Names of files and conditions tell nothing; ``stimuli.csv`` is the key, to be
kept from the listeners.

webMUSHRA is not part of this package: https://github.com/audiolabs/webMUSHRA.
"""

from __future__ import annotations

import random
from collections.abc import Iterator, Sequence
from typing import Any, NamedTuple

import numpy as np

from torch_mapss.evaluation.results import Results

# Cells of the grid, each way.
_GRID = 4


class Stimulus(NamedTuple):
    """One estimate that may be rated."""

    mixture_id: str
    source: str
    system: str
    place: int  # row of the estimate in the frames of its system
    ps: float
    log_pm: float


class Page(NamedTuple):
    """What is rated together."""

    mixture_id: str
    source_index: int
    source: str
    stimuli: tuple[Stimulus, ...]


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
            f"there is no system {unknown[0]!r} in these results; there are "
            f"{', '.join(map(repr, results.systems))}."
        )
    if count < 1 or most < 1:
        raise ValueError(f"pages and systems on a page must be at least 1, got {count} and {most}.")
    chance = random.Random(seed)
    pages = list(_pages(results, systems or results.systems, most, chance))
    if not pages:
        raise ValueError(
            "there is no estimate with scored frames, so there is nothing to listen to: see the "
            "column `reason` of scores.csv."
        )
    chance.shuffle(pages)
    cells = _cells([stimulus for page in pages for stimulus in page.stimuli])
    filled = np.zeros((_GRID, _GRID), dtype=int)
    chosen: list[Page] = []
    while pages and len(chosen) < count:
        # Emptiest cells first: the gain of a stimulus halves with every one that is there already.
        gains = [_gain([cells[one] for one in page.stimuli], filled) for page in pages]
        page = pages.pop(int(np.argmax(gains)))
        for one in page.stimuli:
            filled[cells[one]] += 1
        chosen.append(page)
    return tuple(chosen)


def _gain(cells: Sequence[tuple[int, int]], filled: Any) -> float:
    there = filled.copy()
    gain = 0.0
    for cell in cells:
        gain += 0.5 ** int(there[cell])
        there[cell] += 1
    return gain / len(cells)


def _pages(
    results: Results, systems: Sequence[str], most: int, chance: random.Random
) -> Iterator[Page]:
    """One page for every source of every mixture, with those systems that have a score for it."""
    by_source: dict[tuple[str, int], list[Stimulus]] = {}
    place: dict[tuple[str, str], int] = {}
    for row in results.scores:
        pair = row["mixture_id"], row["system"]
        place[pair] = place.get(pair, -1) + 1
        if row["status"] != "ok" or row["system"] not in systems:
            continue
        made = Stimulus(
            *pair[:1], row["source"], row["system"], place[pair], row["ps"], row["log_pm"]
        )
        by_source.setdefault((row["mixture_id"], row["source_index"]), []).append(made)
    for (mixture, index), stimuli in by_source.items():
        drawn = stimuli if len(stimuli) <= most else chance.sample(stimuli, most)
        yield Page(mixture, index, stimuli[0].source, tuple(drawn))


def _cells(stimuli: Sequence[Stimulus]) -> dict[Stimulus, tuple[int, int]]:
    """The cell of each in the grid of ranks."""
    from scipy.stats import rankdata

    parts = []
    for name in ("ps", "log_pm"):
        ranks = rankdata([getattr(one, name) for one in stimuli]) - 0.5
        parts.append(np.minimum((_GRID * ranks / len(stimuli)).astype(int), _GRID - 1))
    return {one: (int(x), int(y)) for one, x, y in zip(stimuli, *parts)}
