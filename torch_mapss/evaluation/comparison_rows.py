"""Scores of systems over mixtures -> rows of a comparison: intervals, tests, ranks, groups."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import combinations
from typing import Any

import numpy as np
from numpy.typing import NDArray

from torch_mapss.evaluation import significance
from torch_mapss.evaluation.measures import measures_of

APPROXIMATE = f"interval approximate (n < {significance.FEW})"
TOO_SMALL = "n too small to order"


@dataclass(frozen=True)
class Scores:
    """One number per mixture, system and measure."""

    mixtures: tuple[str, ...]  # n
    systems: tuple[str, ...]  # s
    values: Mapping[str, significance.Array] = field(repr=False)  # measure -> (n, s), NaN undefined
    there: NDArray[np.bool_] = field(repr=False)  # (n, s) the pair was to be scored
    weights: significance.Array = field(repr=False)  # (n,)


def gathered(items: Iterable[Mapping[str, Any]], weight: str) -> Scores:
    """The rows as arrays; the same pair twice must have the same scores."""
    items = list(items)
    measures = measures_of(items)
    found: dict[tuple[str, str], Mapping[str, Any]] = {}
    for item in items:
        key = item["mixture_id"], item["system"]
        known = found.setdefault(key, item)
        if known is not item and any(not _same(known.get(m), item.get(m)) for m in measures):
            raise ValueError(
                f"mixture {key[0]!r}, system {key[1]!r} occurs twice, with unlike scores "
                f"({known['ps']} and {item['ps']} in PS). Give the systems names of their own."
            )
    mixtures = {name: place for place, name in enumerate(dict.fromkeys(key[0] for key in found))}
    systems = {name: place for place, name in enumerate(dict.fromkeys(key[1] for key in found))}
    values = {m: np.full((len(mixtures), len(systems)), np.nan) for m in measures}
    there = np.zeros((len(mixtures), len(systems)), dtype=bool)
    weights = np.ones(len(mixtures))
    column = {"equal": None, "duration": "seconds", "sources": "references"}[weight]
    for (mixture, system), item in found.items():
        place = mixtures[mixture], systems[system]
        there[place] = True
        for measure in measures:
            value = item.get(measure)  # None: a table that was made before the measure
            values[measure][place] = np.nan if value is None else value
        # A mixture that failed has no length, and no score to be weighted.
        weights[place[0]] = (item[column] if column else None) or weights[place[0]]
    return Scores(tuple(mixtures), tuple(systems), values, there, weights)


def _same(one: float | None, other: float | None) -> bool:
    return one == other or (one != one and other != other)


def all_rows(
    scores: Scores, alpha: float, confidence: float, weight: str, seed: int
) -> tuple[list[dict[str, Any]], list[dict[str, Any]]]:
    """Pairs and ranking, measure after measure: the rows of ``comparison.csv``, ``ranking.csv``."""
    intervals = _intervals(scores, confidence, seed)
    pairs, ranking = [], []
    for measure in scores.values:
        rows = [
            _pair_row(scores, measure, a, b, intervals[measure, a, b])
            for a, b in combinations(range(len(scores.systems)), 2)
        ]
        adjusted = significance.holm(np.array([row["p_wilcoxon"] for row in rows], dtype=float))
        for row, p in zip(rows, adjusted):
            row |= {"p_holm": _blank(p), "weight": weight}
        pairs += rows
        ranking += _ranked(scores, measure, intervals, rows, alpha, weight)
    return pairs, ranking


def _intervals(
    scores: Scores, confidence: float, seed: int
) -> dict[tuple[str, int, int | None], tuple[int, float, float | None, float | None]]:
    """(measure, system, None or second system) -> n, mean (difference) and its interval.

    What is defined in the same mixtures is resampled together: the same draws, one product.
    """
    systems = range(len(scores.systems))
    wanted: list[tuple[int, int | None]] = [(a, None) for a in systems]
    wanted += list(combinations(systems, 2))
    together: dict[bytes, list[tuple[str, int, int | None]]] = {}
    for measure in scores.values:
        for a, b in wanted:
            defined = np.isfinite(_column(scores, measure, a, b))
            together.setdefault(defined.tobytes(), []).append((measure, a, b))
    found = {}
    for mask, keys in together.items():
        defined = np.frombuffer(mask, dtype=bool)
        values = np.column_stack([_column(scores, *key)[defined] for key in keys])
        made = significance.mean_intervals(
            values, scores.weights[defined], confidence=confidence, seed=seed
        )
        for place, key in enumerate(keys):
            mean, low, high = (float(part[place]) for part in made)
            found[key] = int(defined.sum()), mean, _blank(low), _blank(high)
    return found


def _column(scores: Scores, measure: str, a: int, b: int | None) -> significance.Array:
    """(n,) values of a system, or differences of two."""
    values = scores.values[measure]
    return values[:, a] if b is None else values[:, a] - values[:, b]


def _blank(value: float) -> float | None:
    return None if np.isnan(value) else float(value)


def _pair_row(
    scores: Scores,
    measure: str,
    a: int,
    b: int,
    interval: tuple[int, float, float | None, float | None],
) -> dict[str, Any]:
    count, difference, low, high = interval
    row: dict[str, Any] = {
        "measure": measure,
        "system_a": scores.systems[a],
        "system_b": scores.systems[b],
        "n": count,
        "undefined": int((scores.there[:, a] & scores.there[:, b]).sum()) - count,
        "note": APPROXIMATE if 2 <= count < significance.FEW else "",
    }
    blank = dict.fromkeys(("difference", "low", "high", "p_wilcoxon", "effect"))
    if count < 2:  # neither an interval nor a test
        return row | blank | {"wins": None, "ties": None, "losses": None, "note": "n < 2"}
    differences = _column(scores, measure, a, b)
    test = significance.paired_test(differences[np.isfinite(differences)])
    row |= {"difference": difference, "low": low, "high": high}
    row |= {"wins": test.wins, "ties": test.ties, "losses": test.losses}
    return row | {"p_wilcoxon": test.p, "effect": test.effect}


def _ranked(
    scores: Scores,
    measure: str,
    intervals: Mapping[Any, tuple[int, float, float | None, float | None]],
    pairs: Sequence[Mapping[str, Any]],
    alpha: float,
    weight: str,
) -> list[dict[str, Any]]:
    """The systems of one measure, best mean first, with their groups."""
    made = [intervals[measure, system, None] for system in range(len(scores.systems))]
    order = sorted(range(len(made)), key=lambda k: -np.inf if np.isnan(made[k][1]) else made[k][1])[
        ::-1
    ]
    tested = [row for row in pairs if row["p_wilcoxon"] is not None]
    reachable = significance.least_holm_p(max((row["n"] for row in tested), default=0), len(tested))
    groups = significance.letters(_different(scores.systems, order, pairs, alpha))
    rows = []
    for system, group in zip(order, groups):
        count, mean, low, high = made[system]
        notes = [APPROXIMATE] if 2 <= count < significance.FEW else []
        notes += [TOO_SMALL] if reachable > alpha and len(made) > 1 else []
        rows.append(
            {"measure": measure, "system": scores.systems[system], "n": count, "mean": mean}
            | {"low": low, "high": high, "group": group if count else ""}
            | {"undefined": int(scores.there[:, system].sum()) - count, "weight": weight}
            | {"note": "; ".join(notes)}
        )
    return rows


def _different(
    systems: Sequence[str],
    order: Sequence[int],
    pairs: Sequence[Mapping[str, Any]],
    alpha: float,
) -> NDArray[np.bool_]:
    """Which systems the tests tell apart, in ``order``."""
    place = {systems[system]: rank for rank, system in enumerate(order)}
    found = np.zeros((len(order), len(order)), dtype=bool)
    for row in pairs:
        if row["p_holm"] is not None and row["p_holm"] <= alpha:
            a, b = place[row["system_a"]], place[row["system_b"]]
            found[a, b] = found[b, a] = True
    return found
