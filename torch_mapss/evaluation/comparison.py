"""Which system is better: the systems of one or more results folders, ranked and tested.

Everything is over *mixtures*, one number per mixture and system (the rows of ``items.csv``): see
:mod:`torch_mapss.evaluation.significance` for intervals, tests and groups. A mixture whose score is
undefined for one of two systems is left out of their pair, and counted.
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from torch_mapss.evaluation import comparison_text, io
from torch_mapss.evaluation.comparison_rows import (
    TOO_SMALL,
    WEIGHTS,
    Tables,
    all_rows,
    gathered,
    source_rows,
)
from torch_mapss.evaluation.manifest import short
from torch_mapss.evaluation.protocol import relevant
from torch_mapss.evaluation.results import Results, load_results

if TYPE_CHECKING:
    from matplotlib.figure import Figure
    from pandas import DataFrame

PAIR_COLUMNS = (
    *("measure", "system_a", "system_b", "n", "difference", "low", "high"),
    *("p_wilcoxon", "p_holm", "wins", "ties", "losses", "effect", "undefined", "weight", "note"),
)
RANK_COLUMNS = (
    *("measure", "system", "n", "mean", "low", "high", "group", "undefined", "weight", "note"),
)
SOURCE_COLUMNS = ("measure", "source", "system", "n", "mean")
#: Fields of :class:`Comparison` -> names of their files.
FILES = {"pairs": "comparison.csv", "ranking": "ranking.csv", "sources": "sources.csv"}


@dataclass(frozen=True, eq=False)
class Comparison(Tables):
    """Ranking of the systems, and tests of every pair of them, for every measure."""

    @property
    def measures(self) -> tuple[str, ...]:
        """What is compared, in order: those of the results by which systems are ranked."""
        return tuple(self.scores.values)

    def answer(self) -> str:
        """One sentence: which system is best on what, in how many mixtures, and whether that holds.

        E.g. "IRM is best on clearance and PS in 6 of 6 mixtures; 6 mixtures cannot prove it: the
        smallest attainable p is 0.094; 7 are needed."
        """
        return comparison_text.answer(self)

    def summary(self, measures: Sequence[str] | None = None) -> str:
        """The answer in a sentence, the tables behind it, and what can and cannot be told.

        Args:
            measures: to print; all that are compared by default, others are left out.
        """
        return comparison_text.summary(self, self._shown(measures))

    def notes(self, measures: Sequence[str] | None = None) -> list[str]:
        """What a reader of the tables of some measures must know, sentence by sentence."""
        return comparison_text.notes(self, self._shown(measures))

    def _shown(self, measures: Sequence[str] | None) -> list[str]:
        return [m for m in self.measures if measures is None or m in measures]

    def _repr_html_(self) -> str:
        """The summary for notebooks."""
        return comparison_text.html(self, self.measures)

    def plot(self, measure: str | None = None, *, figure: Figure | None = None) -> Figure:
        """The mixtures of every system as a box plot, with mean, interval and letters.

        Args:
            measure: one of ``measures``, the first by default; or ``"scatter"``, fidelity over
                clearance (log PM over PS where those are not there).
            figure: an empty figure to draw into.

        Returns:
            The figure.

        Raises:
            ImportError: matplotlib is missing.
            ValueError: another measure.
        """
        from torch_mapss.evaluation import compare_plots

        measure = self.measures[0] if measure is None else measure
        percent = f"{100 * self.confidence:g} %"
        if measure == "scatter" and self._axes():
            x, y = self._axes()
            points = [(s, self._box(x, s), self._box(y, s)) for s in self.scores.systems]
            return compare_plots.scatter(points, x, y, percent, figure=figure)
        if measure not in self.measures:
            known = (*self.measures, *(["scatter"] if self._axes() else ()))
            raise ValueError(f"measure must be one of {', '.join(known)}, got {measure!r}.")
        rows = self.ranking[(self.ranking["measure"] == measure) & (self.ranking["n"] > 0)]
        boxes = [self._box(measure, system) for system in rows["system"]]
        few = f": {TOO_SMALL}" if rows["note"].str.contains(TOO_SMALL).any() else ""
        counts = " to ".join(dict.fromkeys(map(str, (rows["n"].min(), rows["n"].max()))))
        caption = f"{counts} mixtures{few}\ndiamond: mean with {percent} interval\n"
        caption += "systems sharing a letter do not differ significantly"
        return compare_plots.boxes(list(rows["system"]), boxes, measure, caption, figure=figure)

    def _axes(self) -> tuple[str, ...]:
        for pair in (("clearance", "fidelity"), ("ps", "log_pm"), ("ps", "pm")):
            if {*pair} <= {*self.measures}:
                return pair
        return ()

    def _box(self, measure: str, system: str) -> Any:
        from torch_mapss.evaluation.compare_plots import Box

        place = self.scores.systems.index(system)
        here = (self.ranking["measure"] == measure) & (self.ranking["system"] == system)
        row = self.ranking[here].iloc[0]
        values = self.scores.values[measure][:, place]
        return Box(values, row["mean"], row["low"], row["high"], row["group"])

    def save(self, folder: str | os.PathLike[str], plots: bool = True) -> tuple[str, ...]:
        """Write ``comparison.csv``, ``ranking.csv``, ``sources.csv`` and figures (PNG and SVG).

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
        folder = io.make_folder(folder)
        written = [os.path.join(folder, name) for name in FILES.values()]
        for path, name in zip(written, FILES):
            content = getattr(self, name).to_csv(index=False, na_rep="nan", float_format="%.9g")
            io.write_bytes(path, content.encode())
        if plots:
            from torch_mapss.evaluation.plots import save_figure

            scatter = {"scatter": "scatter"} if self._axes() else {}
            for measure, name in ({m: f"box_{m}" for m in self.measures} | scatter).items():
                figure = self.plot(measure)
                for suffix in (".png", ".svg"):
                    written.append(save_figure(figure, os.path.join(folder, name + suffix)))
        return tuple(written)


# ------------------------------------------------------------------------------------------------
# The call
# ------------------------------------------------------------------------------------------------

Given = Results | str | os.PathLike[str]


def compare(
    results: Given | Sequence[Given],
    *,
    systems: Sequence[str] | None = None,
    references: bool = True,
    alpha: float = 0.05,
    confidence: float = 0.95,
    weight: str = "equal",
    seed: int = 0,
) -> Comparison:
    """Rank and test the systems of results over the mixtures that they share.

    Args:
        results: a folder that ``torch-mapss evaluate`` wrote, what
            :func:`~torch_mapss.evaluation.results.load_results` or
            :func:`torch_mapss.evaluate_set` returned, or several of either: they are joined, if
            all were scored with the same settings.
        systems: only these; all by default.
        references: rank hidden references and anchors (systems ``control:NAME``) as well.
        alpha: level of the tests, after Holm's correction over the pairs of a measure.
        confidence: of the intervals.
        weight: of mixtures in means and intervals: "equal"; "duration", by their seconds; or
            "sources", by the number of their references. Rank tests have no weights.
        seed: of the bootstrap.

    Returns:
        A :class:`Comparison`.

    Raises:
        ValueError: results of unlike settings or references, of the same mixture and system
            twice with unlike scores, an unknown system, or an option out of its range.
    """
    several = isinstance(results, Sequence) and not isinstance(results, str)
    given: Sequence[Any] = list(results) if several else [results]  # type: ignore[arg-type]
    loaded = [one if isinstance(one, Results) else load_results(one) for one in given]
    if not loaded:
        raise ValueError("results must be at least one folder, got none.")
    check_alike(loaded)
    return compare_items(
        _stacked([one.items for one in loaded]),
        _stacked([one.scores for one in loaded]),
        systems=systems,
        references=references,
        alpha=alpha,
        confidence=confidence,
        weight=weight,
        seed=seed,
    )


def _stacked(tables: Sequence[Any]) -> DataFrame:
    import pandas

    frames = [pandas.DataFrame(table) for table in tables]
    return pandas.concat(frames, ignore_index=True) if len(frames) > 1 else frames[0]


def compare_items(
    items: Any,
    rows: Any = (),
    *,
    systems: Sequence[str] | None = None,
    references: bool = True,
    alpha: float = 0.05,
    confidence: float = 0.95,
    weight: str = "equal",
    seed: int = 0,
) -> Comparison:
    """:func:`compare` of the rows of ``items.csv`` and, for single sources, ``scores.csv``."""
    from pandas import DataFrame

    for name, value in (("alpha", alpha), ("confidence", confidence)):
        if not 0.0 < value < 1.0:
            raise ValueError(f"{name} must lie between 0 and 1, got {value!r}.")
    if weight not in WEIGHTS:
        raise ValueError(f"weight must be one of {', '.join(WEIGHTS)}, got {weight!r}.")
    scores = gathered(DataFrame(items), weight, systems, references)
    pairs, ranking = all_rows(scores, alpha, confidence, weight, seed)
    counts = dict.fromkeys(("wins", "ties", "losses"), "Int64")  # NA without a test
    return Comparison(
        pairs=DataFrame(pairs, columns=PAIR_COLUMNS).astype(counts),
        ranking=DataFrame(ranking, columns=RANK_COLUMNS),
        sources=DataFrame(source_rows(scores, DataFrame(rows)), columns=SOURCE_COLUMNS),
        scores=scores,
        alpha=alpha,
        confidence=confidence,
        weight=weight,
    )


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
                f"{io.shown(first.folder)!r} and {io.shown(other.folder)!r} cannot be "
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

    def content(results: Results) -> dict[str, list[str | None]]:
        return {
            io.same_name(name): [results.sha256.get(path) for path in entry["references"]]
            for name, entry in results.entries.items()
        }

    first, second = content(one), content(other)
    unlike = [name for name in first if name in second and first[name] != second[name]]
    return [f"the references of mixture {name!r} are not the same audio" for name in unlike[:3]]
