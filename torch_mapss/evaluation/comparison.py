"""Which system is better: the systems of one or more results folders, ranked and tested.

Everything is over *mixtures*, one number per mixture and system (the rows of ``items.csv``): see
:mod:`torch_mapss.evaluation.statistics` for intervals, tests and groups. A mixture whose score is
undefined for one of two systems is left out of their pair, and counted.
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import combinations
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from torch_mapss.evaluation import files, statistics
from torch_mapss.evaluation.manifest import short
from torch_mapss.evaluation.protocol import relevant
from torch_mapss.evaluation.results import LABELS, MEASURES, Results, load_results

if TYPE_CHECKING:
    from matplotlib.figure import Figure

PAIR_COLUMNS = (
    *("measure", "system_a", "system_b", "n", "difference", "low", "high"),
    *("p_wilcoxon", "p_holm", "wins", "ties", "losses", "effect", "undefined", "weight", "note"),
)
RANK_COLUMNS = (
    *("measure", "system", "n", "mean", "low", "high", "group", "undefined", "weight", "note"),
)
#: How mixtures may be weighted in means and intervals.
WEIGHTS = ("equal", "duration", "sources")
#: Measures of a short ranking; B ranks as its log.
SHORT = ("ps", "pm", "log_pm", "log_foreign_distance")
APPROXIMATE = f"interval approximate (n < {statistics.FEW})"
TOO_SMALL = "n too small to order"


@dataclass(frozen=True)
class Scores:
    """One number per mixture, system and measure."""

    mixtures: tuple[str, ...]  # n
    systems: tuple[str, ...]  # s
    values: Mapping[str, statistics.Array] = field(repr=False)  # measure -> (n, s), NaN undefined
    there: NDArray[np.bool_] = field(repr=False)  # (n, s) the pair was to be scored
    weights: statistics.Array = field(repr=False)  # (n,)


@dataclass(frozen=True)
class Comparison:
    """Ranking of the systems, and tests of every pair of them, for every measure."""

    pairs: tuple[Mapping[str, Any], ...] = field(repr=False)  # comparison.csv
    ranking: tuple[Mapping[str, Any], ...] = field(repr=False)  # ranking.csv, best first
    scores: Scores
    alpha: float  # groups are of tests at this level
    confidence: float  # of the intervals
    weight: str  # of mixtures, one of WEIGHTS

    def table(self) -> list[dict[str, Any]]:
        """The rows of ``comparison.csv``, e.g. for ``pandas.DataFrame``."""
        return [dict(row) for row in self.pairs]

    def summary(self, measures: Sequence[str] = SHORT) -> str:
        """The ranking as a table to print, with what can and cannot be told."""
        rows = [row for row in self.ranking if row["measure"] in measures]
        cells = [
            [LABELS[row["measure"]], row["system"], str(row["n"]), *_interval(row), row["group"]]
            for row in rows
        ]
        percent = f"{100 * self.confidence:g} % interval"
        columns = ["measure", "system", "n", "mean", percent, "group"]
        return "\n".join([files.text_table(columns, cells, left=2), "", *self._notes(rows)])

    def _notes(self, rows: Sequence[Mapping[str, Any]]) -> list[str]:
        lines = [
            "Higher is better. n: mixtures. Intervals: BCa bootstrap over mixtures. Groups: those",
            f"that share a letter are not told apart (Wilcoxon, Holm, level {self.alpha:g}).",
        ]
        counts = [row["n"] for row in rows]
        if any(APPROXIMATE in row["note"] for row in rows):
            lines.append(
                f"Intervals over fewer than {statistics.FEW} mixtures are approximate: too narrow."
            )
        if any(TOO_SMALL in row["note"] for row in rows):
            lines.append(self._too_small(max(counts)))
        if len(set(counts)) > 1:
            lines.append(
                "Means are over each system's own mixtures, tests over those that both have."
            )
        if self.weight != "equal":
            lines.append(
                f"Mixtures are weighted by {self.weight}: that moves means and intervals, and not "
                "the rank tests."
            )
        return lines

    def _too_small(self, count: int) -> str:
        systems = len(self.scores.systems)
        pairs = systems * (systems - 1) // 2
        least = statistics.least_holm_p(count, pairs)
        return (
            f"{TOO_SMALL}: with {count} mixtures and {systems} systems no p below {least:.2g} can "
            f"come out, whatever the scores, and the level is {self.alpha:g}."
        )

    def plot(self, measure: str = "ps", *, figure: Figure | None = None) -> Figure:
        """The mixtures of every system as a box plot; ``"scatter"``: PS against log PM.

        Args:
            measure: one of ``MEASURES``, or ``"scatter"``.
            figure: an empty figure to draw into.

        Returns:
            The figure.

        Raises:
            ImportError: matplotlib is missing.
            ValueError: another measure.
        """
        from torch_mapss.evaluation import compare_plots

        if measure == "scatter":
            return compare_plots.scatter(self, figure=figure)
        if measure not in MEASURES:
            raise ValueError(f"measure must be one of {', '.join(MEASURES)}, got {measure!r}.")
        return compare_plots.boxes(self, measure, figure=figure)

    def save(self, folder: str | os.PathLike[str], plots: bool = True) -> tuple[str, ...]:
        """Write ``comparison.csv``, ``ranking.csv`` and the figures (PNG and SVG) to a folder.

        Each file is replaced in one step.

        Args:
            folder: is made if need be.
            plots: draw a box plot per measure and the scatter plot as well.

        Returns:
            The files written.

        Raises:
            ImportError: matplotlib is missing and plots are wanted.
            ValueError: the folder cannot be written to.
        """
        if plots:
            from torch_mapss.evaluation.plots import check_available, save_figure

            check_available()
        folder = files.make_folder(folder)
        written = []
        for name, columns, rows in (
            ("comparison.csv", PAIR_COLUMNS, self.pairs),
            ("ranking.csv", RANK_COLUMNS, self.ranking),
        ):
            written.append(os.path.join(folder, name))
            files.write_csv(written[-1], columns, rows)
        for measure in (*MEASURES, "scatter") if plots else ():
            figure = self.plot(measure)
            name = measure if measure == "scatter" else f"box_{measure}"
            for suffix in (".png", ".svg"):
                written.append(save_figure(figure, os.path.join(folder, name + suffix)))
        return tuple(written)


def _interval(row: Mapping[str, Any]) -> tuple[str, str]:
    """Mean and interval as people read them."""
    if row["mean"] != row["mean"]:
        return "-", "-"
    form = ".2f" if abs(row["mean"]) >= 10.0 else ".3f"
    if row["low"] is None or row["low"] != row["low"]:
        return format(row["mean"], form), "-"
    return format(row["mean"], form), f"[{row['low']:{form}}, {row['high']:{form}}]"


# ------------------------------------------------------------------------------------------------
# The call
# ------------------------------------------------------------------------------------------------

Given = Results | str | os.PathLike[str]


def compare(
    results: Given | Sequence[Given],
    *,
    alpha: float = 0.05,
    confidence: float = 0.95,
    weight: str = "equal",
    seed: int = 0,
) -> Comparison:
    """Rank and test the systems of results over the mixtures that they share.

    Args:
        results: a folder that ``torch-mapss evaluate`` wrote, what
            :func:`~torch_mapss.evaluation.results.load_results` read, or several of either: they
            are joined, if all were scored with the same settings.
        alpha: level of the tests, after Holm's correction over the pairs of a measure.
        confidence: of the intervals.
        weight: of mixtures in means and intervals: "equal"; "duration", by their seconds; or
            "sources", by the number of their references. Rank tests have no weights.
        seed: of the bootstrap.

    Returns:
        A :class:`Comparison`.

    Raises:
        ValueError: results of unlike settings or references, of the same mixture and system
            twice with unlike scores, or an option out of its range.
    """
    for name, value in (("alpha", alpha), ("confidence", confidence)):
        if not 0.0 < value < 1.0:
            raise ValueError(f"{name} must lie between 0 and 1, got {value!r}.")
    if weight not in WEIGHTS:
        raise ValueError(f"weight must be one of {', '.join(WEIGHTS)}, got {weight!r}.")
    several = isinstance(results, Sequence) and not isinstance(results, str)
    given: Sequence[Any] = list(results) if several else [results]  # type: ignore[arg-type]
    loaded = [one if isinstance(one, Results) else load_results(one) for one in given]
    if not loaded:
        raise ValueError("results must be at least one folder, got none.")
    check_alike(loaded)
    items = [item for one in loaded for item in one.items]
    return compare_items(items, alpha=alpha, confidence=confidence, weight=weight, seed=seed)


def check_alike(results: Sequence[Results]) -> None:
    """Refuse to join results of unlike settings, or of unlike references under one name.

    Raises:
        ValueError: says what differs.
    """
    first = results[0]
    for other in results[1:]:
        unlike = _unlike_settings(first, other) or _unlike_references(first, other)
        if unlike:
            raise ValueError(
                f"{files.shown(first.folder)!r} and {files.shown(other.folder)!r} cannot be "
                f"compared: {'; '.join(unlike)}. Score both in the same way."
            )


def _unlike_settings(one: Results, other: Results) -> list[str]:
    first, second = relevant(one.settings), relevant(other.settings)
    return [
        f"{key} is {short(first.get(key))} in the one and {short(second.get(key))} in the other"
        for key in sorted({*first, *second})
        if first.get(key) != second.get(key)
    ]


def _unlike_references(one: Results, other: Results) -> list[str]:
    """Mixtures of one name whose references are other audio."""

    def content(results: Results, mixture: str) -> list[str | None]:
        return [results.sha256.get(path) for path in results.entries[mixture]["references"]]

    shared = [name for name in one.mixtures if name in other.entries]
    unlike = [name for name in shared if content(one, name) != content(other, name)]
    return [f"the references of mixture {name!r} are not the same audio" for name in unlike[:3]]


def compare_items(
    items: Iterable[Mapping[str, Any]],
    *,
    alpha: float = 0.05,
    confidence: float = 0.95,
    weight: str = "equal",
    seed: int = 0,
) -> Comparison:
    """:func:`compare` of the rows of ``items.csv``."""
    scores = _gathered(items, weight)
    intervals = _intervals(scores, confidence, seed)
    pairs, ranking = [], []
    for measure in MEASURES:
        rows = [
            _pair_row(scores, measure, a, b, intervals[measure, a, b])
            for a, b in combinations(range(len(scores.systems)), 2)
        ]
        adjusted = statistics.holm(np.array([row["p_wilcoxon"] for row in rows], dtype=float))
        for row, p in zip(rows, adjusted):
            row |= {"p_holm": _blank(p), "weight": weight}
        pairs += rows
        ranking += _ranked(scores, measure, intervals, rows, alpha, weight)
    return Comparison(tuple(pairs), tuple(ranking), scores, alpha, confidence, weight)


def _gathered(items: Iterable[Mapping[str, Any]], weight: str) -> Scores:
    """The rows as arrays; the same pair twice must have the same scores."""
    found: dict[tuple[str, str], Mapping[str, Any]] = {}
    for item in items:
        key = item["mixture_id"], item["system"]
        known = found.setdefault(key, item)
        if known is not item and any(not _same(known[m], item[m]) for m in MEASURES):
            raise ValueError(
                f"mixture {key[0]!r}, system {key[1]!r} occurs twice, with unlike scores "
                f"({known['ps']} and {item['ps']} in PS). Give the systems names of their own."
            )
    mixtures = {name: place for place, name in enumerate(dict.fromkeys(key[0] for key in found))}
    systems = {name: place for place, name in enumerate(dict.fromkeys(key[1] for key in found))}
    values = {m: np.full((len(mixtures), len(systems)), np.nan) for m in MEASURES}
    there = np.zeros((len(mixtures), len(systems)), dtype=bool)
    weights = np.ones(len(mixtures))
    column = {"equal": None, "duration": "seconds", "sources": "references"}[weight]
    for (mixture, system), item in found.items():
        place = mixtures[mixture], systems[system]
        there[place] = True
        for measure in MEASURES:
            values[measure][place] = item[measure]
        # A mixture that failed has no length, and no score to be weighted.
        weights[place[0]] = (item[column] if column else None) or weights[place[0]]
    return Scores(tuple(mixtures), tuple(systems), values, there, weights)


def _same(one: float, other: float) -> bool:
    return one == other or (one != one and other != other)


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
    for measure in MEASURES:
        for a, b in wanted:
            defined = np.isfinite(_column(scores, measure, a, b))
            together.setdefault(defined.tobytes(), []).append((measure, a, b))
    found = {}
    for mask, keys in together.items():
        defined = np.frombuffer(mask, dtype=bool)
        values = np.column_stack([_column(scores, *key)[defined] for key in keys])
        made = statistics.mean_intervals(
            values, scores.weights[defined], confidence=confidence, seed=seed
        )
        for place, key in enumerate(keys):
            mean, low, high = (float(part[place]) for part in made)
            found[key] = int(defined.sum()), mean, _blank(low), _blank(high)
    return found


def _column(scores: Scores, measure: str, a: int, b: int | None) -> statistics.Array:
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
        "note": APPROXIMATE if 2 <= count < statistics.FEW else "",
    }
    blank = dict.fromkeys(("difference", "low", "high", "p_wilcoxon", "effect"))
    if count < 2:  # neither an interval nor a test
        return row | blank | {"wins": None, "ties": None, "losses": None, "note": "n < 2"}
    differences = _column(scores, measure, a, b)
    test = statistics.paired_test(differences[np.isfinite(differences)])
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
    reachable = statistics.least_holm_p(max((row["n"] for row in tested), default=0), len(tested))
    groups = statistics.letters(_different(scores.systems, order, pairs, alpha))
    rows = []
    for system, group in zip(order, groups):
        count, mean, low, high = made[system]
        notes = [APPROXIMATE] if 2 <= count < statistics.FEW else []
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
