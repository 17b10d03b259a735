"""Which system is better: the systems of one or more results folders, ranked and tested.

Everything is over *mixtures*, one number per mixture and system (the rows of ``items.csv``): see
:mod:`torch_mapss.evaluation.significance` for intervals, tests and groups. A mixture whose score is
undefined for one of two systems is left out of their pair, and counted.
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from torch_mapss.evaluation import files, significance
from torch_mapss.evaluation.comparison_rows import (
    APPROXIMATE,
    TOO_SMALL,
    Scores,
    all_rows,
    gathered,
)
from torch_mapss.evaluation.manifest import short
from torch_mapss.evaluation.measures import LABELS, RANK, rank_meaning
from torch_mapss.evaluation.protocol import relevant
from torch_mapss.evaluation.results import Results, load_results, records

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
SHORT = ("ps", "pm", "log_pm", RANK, "log_foreign_distance")


@dataclass(frozen=True)
class Comparison:
    """Ranking of the systems, and tests of every pair of them, for every measure."""

    pairs: tuple[Mapping[str, Any], ...] = field(repr=False)  # comparison.csv
    ranking: tuple[Mapping[str, Any], ...] = field(repr=False)  # ranking.csv, best first
    scores: Scores
    alpha: float  # groups are of tests at this level
    confidence: float  # of the intervals
    weight: str  # of mixtures, one of WEIGHTS

    @property
    def measures(self) -> tuple[str, ...]:
        """What is compared: PS, PM, log PM, PM's rank if conformal, B and log B."""
        return tuple(self.scores.values)

    def table(self) -> list[dict[str, Any]]:
        """The rows of ``comparison.csv``, e.g. for ``pandas.DataFrame``."""
        return [dict(row) for row in self.pairs]

    def summary(self, measures: Sequence[str] = SHORT, *, rank_told: bool = False) -> str:
        """The ranking as a table to print, with what can and cannot be told.

        Args:
            measures: to print; those that are not compared are left out.
            rank_told: what PM's rank is stands elsewhere already.
        """
        rows = [row for row in self.ranking if row["measure"] in measures]
        cells = [
            [LABELS[row["measure"]], row["system"], str(row["n"]), *_interval(row), row["group"]]
            for row in rows
        ]
        percent = f"{100 * self.confidence:g} % interval"
        columns = ["measure", "system", "n", "mean", percent, "group"]
        notes = [line for line in self.notes(measures) if line != rank_meaning()]
        if not rank_told and any(row["measure"] == RANK for row in rows):
            notes += files.wrapped(rank_meaning())
        return "\n".join([files.text_table(columns, cells, left=2), "", *notes])

    def notes(self, measures: Sequence[str] = SHORT) -> list[str]:
        """What can and cannot be told from the ranking of some measures, a sentence a line."""
        rows = [row for row in self.ranking if row["measure"] in measures]
        lines = [
            "Higher is better. n: mixtures. Intervals: BCa bootstrap over mixtures.",
            "Systems that share a letter are not told apart (Wilcoxon signed rank, Holm, level "
            f"{self.alpha:g}).",
        ]
        counts = [row["n"] for row in rows]
        if any(APPROXIMATE in row["note"] for row in rows):
            lines.append(f"Intervals over fewer than {significance.FEW} mixtures are too narrow.")
        if not any(counts):
            lines.append("No mixture has a score: scores.csv says why, in `status` and `reason`.")
        elif any(TOO_SMALL in row["note"] for row in rows):
            lines.append(self._too_small(max(counts)))
        if len(set(counts)) > 1:
            lines.append(
                "Means are over each system's own mixtures, tests over those that both have."
            )
        if any(row["measure"] == RANK for row in rows):
            lines.append(rank_meaning())
        if self.weight != "equal":
            lines.append(
                f"Mixtures are weighted by {self.weight}: that moves means and intervals, and not "
                "the rank tests."
            )
        return lines

    def _too_small(self, count: int) -> str:
        systems = len(self.scores.systems)
        pairs = systems * (systems - 1) // 2
        least = significance.least_holm_p(count, pairs)
        given = f"{_counted(count, 'mixture')} and {_counted(systems, 'system')}"
        return (
            f"{TOO_SMALL}: with {given} no p below {least:.2g} can come out, whatever the scores, "
            f"and the level is {self.alpha:g}."
        )

    def plot(self, measure: str = "ps", *, figure: Figure | None = None) -> Figure:
        """The mixtures of every system as a box plot; ``"scatter"``: PS against log PM.

        Args:
            measure: one of ``measures``, or ``"scatter"``.
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
        if measure not in self.measures:
            raise ValueError(f"measure must be one of {', '.join(self.measures)}, got {measure!r}.")
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
        for measure in (*self.measures, "scatter") if plots else ():
            figure = self.plot(measure)
            name = measure if measure == "scatter" else f"box_{measure}"
            for suffix in (".png", ".svg"):
                written.append(save_figure(figure, os.path.join(folder, name + suffix)))
        return tuple(written)


def _counted(count: int, noun: str) -> str:
    return f"{count} {noun}{'' if count == 1 else 's'}"


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
    items = [item for one in loaded for item in records(one.items)]
    return compare_items(items, alpha=alpha, confidence=confidence, weight=weight, seed=seed)


def check_alike(results: Sequence[Results]) -> None:
    """Refuse to join results of unlike settings, or of unlike references under one name.

    Raises:
        ValueError: says what differs.
    """
    first = results[0]
    for other in results[1:]:
        unlike, remedy = _unlike_settings(first, other), "Score both with the same settings"
        if not unlike:
            unlike = _unlike_references(first, other)
            remedy = (
                "Score both against the same reference files; if these are mixtures of different "
                "audio, give them names of their own (mixture_id)"
            )
        if unlike:
            raise ValueError(
                f"{files.shown(first.folder)!r} and {files.shown(other.folder)!r} cannot be "
                f"compared: {'; '.join(unlike)}. {remedy}."
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
    scores = gathered(items, weight)
    pairs, ranking = all_rows(scores, alpha, confidence, weight, seed)
    return Comparison(tuple(pairs), tuple(ranking), scores, alpha, confidence, weight)
