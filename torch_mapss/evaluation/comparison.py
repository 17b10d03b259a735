"""Comparison of the systems in one or more results folders, with ranking and tests.

All statistics are over *mixtures*, with one number per mixture and system (the rows of
``items.csv``); :mod:`torch_mapss.evaluation.significance` has the intervals, tests and groups.
"""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from torch_mapss.core import checks
from torch_mapss.evaluation import comparison_tables as tables
from torch_mapss.evaluation import io, significance, verdict
from torch_mapss.evaluation.comparison_notes import (
    ceiling_notes,
    ceiling_shares,
    faulty_channels,
    pair_encoder_remarks,
    unfinished,
    unlike_lags,
)
from torch_mapss.evaluation.comparison_tables import WEIGHTS, ComparedScores
from torch_mapss.evaluation.manifest import short
from torch_mapss.evaluation.protocol import relevant
from torch_mapss.evaluation.results import Results, load_results
from torch_mapss.evaluation.significance import p_text
from torch_mapss.evaluation.text_page import Page, Table
from torch_mapss.evaluation.verdict import enumerated
from torch_mapss.score_table import SCORES, score_label, score_names, score_text, scores_in

if TYPE_CHECKING:
    from matplotlib.figure import Figure
    from pandas import DataFrame

# More source names than this are names of files rather than of instruments, and get no table.
MOST_SOURCES = 8
# Up to this many systems all pairs are printed, else only those with the best system.
_FEW_SYSTEMS = 3
_MOST_FAILURES = 5


@dataclass(frozen=True, eq=False)
class Comparison:
    """Ranking of the systems, and tests of every two of them, for each score."""

    pairs: DataFrame = field(repr=False)  # comparison.csv: every two systems
    ranking: DataFrame = field(repr=False)  # ranking.csv: the systems by score, best first
    sources: DataFrame = field(repr=False)  # sources.csv: the means of every source name
    controls: DataFrame = field(repr=False)  # means of hidden references and anchors
    scores: ComparedScores = field(repr=False)
    alpha: float  # level of the tests and groups
    confidence: float  # confidence of the intervals
    weight: str  # weighting of mixtures, one of WEIGHTS
    unlike_lags: str = ""  # sentence on systems that are late or early
    # On unfinished runs, the encoder of the pair, faulty channels, scores at their ceiling.
    remarks: tuple[str, ...] = ()

    @property
    def values(self) -> Mapping[str, DataFrame]:
        """Tables by score: mixtures x systems, NaN where there is no score."""
        return self.scores.values

    @property
    def measures(self) -> tuple[str, ...]:
        """Names of the scores compared, in order."""
        return tuple(self.values)

    @property
    def systems(self) -> tuple[str, ...]:
        """The names of the systems."""
        return self.scores.systems

    def answer(self) -> str:
        """Sentence: which system is best, in how many mixtures, and whether significantly."""
        sentence = verdict.answer(self.scores, self.ranking, self.pairs, self.alpha)
        if self.unlike_lags and len(self.systems) > 1:
            lags = "; but the systems are not equally aligned with their references, see --align."
            return sentence.removesuffix(".") + lags
        return sentence

    def summary(self) -> str:
        """The answer in a sentence, the tables behind it, and notes on how to read them."""
        return self._page().text()

    __str__ = summary

    def _repr_html_(self) -> str:
        return self._page().html()

    def shown_pairs(self) -> DataFrame:
        """Rows of ``pairs`` to print: those tested; of many systems, those with the best."""
        tested = self.pairs[self.pairs["p_holm"].notna()]
        if len(self.systems) <= _FEW_SYSTEMS:
            return tested
        best = tested["measure"].map(self.ranking.groupby("measure")["system"].first())
        return tested[(tested["system_a"] == best) | (tested["system_b"] == best)]

    def _page(self) -> Page:
        """Ranking, pairs, controls and sources; tables without a row are left out."""
        shown = [
            self._ranking_table(),
            self._pairs_table(),
            self._controls_table(),
            self._sources_table(),
        ]
        return Page(self.answer(), [table for table in shown if table.rows], self.notes())

    def _ranking_table(self) -> Table:
        rows: Any = self.ranking.itertuples()
        cells = [[*_mean_cells(row, row.system, row.mean), row.group] for row in rows]
        return Table(["measure", "system", "n", "mean", self._interval, "group"], cells, 2)

    def _pairs_table(self) -> Table:
        cells = []
        rows: Any = self.shown_pairs().itertuples()
        for row in rows:
            systems = f"{row.system_a} - {row.system_b}"
            counts = f"{row.wins}/{row.ties}/{row.losses}"
            mean = _mean_cells(row, systems, row.difference)
            cells.append([*mean, counts, p_text(row.p_holm)])
        header = ["measure", "systems", "n", "difference", self._interval]
        return Table([*header, "wins/ties/losses", "p (Holm)"], cells, 2)

    def _controls_table(self) -> Table:
        rows: Any = self.controls.itertuples()
        cells = [
            [score_label(row.measure), row.system, str(row.n), score_text(row.measure, row.mean)]
            for row in rows
        ]
        title = "Hidden references and anchors, not ranked"
        return Table(["measure", "control", "n", "mean"], cells, 2, title if cells else "")

    def _sources_table(self) -> Table:
        names = self.sources["source"].unique()
        by_source = self.sources.set_index(["source", "system", "measure"])["mean"].to_dict()
        cells = []
        for source in names if len(names) <= MOST_SOURCES else ():
            for system in self.systems:
                means = {name: by_source.get((source, system, name)) for name in self.measures}
                texts = [score_text(name, mean) for name, mean in means.items()]
                cells.append([source, system, *texts])
        return Table(["source", "system", *map(score_label, self.measures)], cells, 2)

    @property
    def _interval(self) -> str:
        return f"{100 * self.confidence:g} % interval"

    def notes(self) -> list[str]:
        """Notes for readers of the tables, one sentence each."""
        lower = [SCORES[m].label for m in self.measures if not SCORES[m].higher_is_better]
        lines = [
            *filter(None, [self.unlike_lags]),
            *self.remarks,
            "n: mixtures. Intervals: BCa bootstrap over mixtures. Systems sharing a letter do not "
            f"differ significantly (Wilcoxon signed rank, Holm, level {self.alpha:g}).",
        ]
        if lower:
            lines.append(f"Lower is better in {enumerated(lower)}.")
        if self.ranking["n"].between(2, significance.FEW - 1).any():
            lines.append(f"Intervals over fewer than {significance.FEW} mixtures are too narrow.")
        if self.ranking["left_out"].any():
            lines.append(
                "Systems are ranked on the mixtures that all of them have, and tested on those "
                "that both have. `compare --systems` leaves systems out."
            )
        if len(self.systems) > _FEW_SYSTEMS:
            lines.append("Tests: those with the best system; `compare --out` writes all.")
        if self.sources["source"].nunique() > MOST_SOURCES:
            lines.append("Means of single sources: sources.csv, of `compare --out`.")
        lines += self._missing_notes()
        if self.weight != "equal":
            weighted = f"Means and intervals (but not the tests) are weighted by {self.weight}."
            lines.append(weighted)
        for measure, system in self.ranking[["measure", "system"]].to_numpy():
            subject = f"{SCORES[measure].label} of {system}"
            warnings = tables.mean_warnings(self.scores, measure, system)
            lines += [f"{subject}: {warning}." for warning in warnings]
        return [*lines, *self._failures()]

    def _missing_notes(self) -> list[str]:
        """Notes on sources that one system left out and another one estimated."""
        if not (mixture_count := int(self.scores.is_uneven.sum())):
            return []
        counts = []
        for system, by_mixture in self.scores.missing_estimates().items():
            estimates = sum(map(len, by_mixture.values()))
            counts.append(
                f"{system} lacks {estimates} estimate{'' if estimates == 1 else 's'} in "
                f"{len(by_mixture)} mixture{'' if len(by_mixture) == 1 else 's'} "
                f"({io.listed(by_mixture, 3)})"
            )
        return [
            f"In {mixture_count} mixtures some systems left out sources that others estimated, so "
            "their means cover different sources. Tests use the sources that both estimated.",
            f"Missing: {'; '.join(counts)}.",
        ]

    def _failures(self) -> list[str]:
        lines = [
            f"Failed: mixture {mixture!r}, system {system!r}: {reason}"
            for (system, mixture), reason in self.scores.failures.items()
        ]
        if (unlisted := len(lines) - _MOST_FAILURES) > 0:
            lines[_MOST_FAILURES:] = [f"Failed: {unlisted} more pairs of mixture and system."]
        return lines

    def plot(self, measure: str | None = None) -> Figure:
        """Box plot of the mixtures of each system, with means, intervals and letters.

        Args:
            measure: a score of ``measures``, the first by default; or ``"scatter"``, fidelity over
                clearance (log PM over PS if the results lack those).

        Returns:
            The figure.

        Raises:
            ImportError: matplotlib is missing.
            ValueError: another measure.
        """
        from torch_mapss.evaluation import plots

        measure = self.measures[0] if measure is None else measure
        checks.check_choice(measure, "measure", [*self._figures()])
        draw: Any = plots.system_scatter if measure == "scatter" else plots.system_boxes
        percent = f"{100 * self.confidence:g} %"
        values = {name: self.scores.ranked_values(name) for name in self.measures}
        figure: Figure = draw(values, self.ranking, *self._figures()[measure], percent)
        return figure

    def _figures(self) -> dict[str, tuple[str, ...]]:
        """Scores in each figure that can be drawn."""
        pairs = (("clearance", "fidelity"), ("ps", "log_pm"), ("ps", "pm"))
        computed = [axes for axes in pairs if {*axes} <= {*self.measures}]
        figures: dict[str, tuple[str, ...]] = {measure: (measure,) for measure in self.measures}
        if computed:
            figures["scatter"] = computed[0]
        return figures

    def save(self, folder: str | os.PathLike[str], plots: bool = True) -> tuple[str, ...]:
        """Write ``comparison.csv``, ``ranking.csv``, ``sources.csv`` and figures (PNG and SVG).

        Each file is replaced in one step.

        Args:
            folder: path of the folder, made if need be.
            plots: whether to draw a box plot per score, and the scatter plot.

        Returns:
            The files written.

        Raises:
            ImportError: plots were asked for but matplotlib is missing.
            ValueError: the folder cannot be written to.
        """
        folder = io.make_folder(folder)
        files = {"comparison": self.pairs, "ranking": self.ranking, "sources": self.sources}
        written = [os.path.join(folder, f"{name}.csv") for name in files]
        for path, table in zip(written, files.values()):
            io.write_table(path, table)
        if plots:
            from torch_mapss.evaluation.plots import save_figure

            for name in self._figures():
                figure = self.plot(name)
                stem = os.path.join(folder, name if name == "scatter" else f"box_{name}")
                written += [save_figure(figure, stem + suffix) for suffix in (".png", ".svg")]
        return tuple(written)


def _mean_cells(row: Any, name: str, value: float) -> list[str]:
    """Cells of a row: score, system or systems, n, mean and interval."""
    mean, low, high = (score_text(row.measure, x) for x in (value, row.low, row.high))
    interval = "-" if low == "-" else f"[{low}, {high}]"
    mark = " †" if "at the ceiling" in row.note else ""
    return [score_label(row.measure), name, str(row.n), mean + mark, interval]


ResultsLike = Results | str | os.PathLike[str]


def compare(
    results: ResultsLike | Sequence[ResultsLike],
    *,
    systems: Sequence[str] | None = None,
    measures: str | Sequence[str] | None = None,
    controls: bool = False,
    alpha: float = 0.05,
    confidence: float = 0.95,
    weight: str = "equal",
    seed: int = 0,
) -> Comparison:
    """Rank and test the systems of results on the mixtures that they share.

    Args:
        results: a folder that ``torch-mapss evaluate`` wrote or is writing, a result of
            :func:`~torch_mapss.evaluation.results.load_results` or
            :func:`torch_mapss.evaluate_set`, or several of these, which are joined if all were
            scored with the same settings.
        systems: names of the systems to compare; all by default.
        measures: names of the measures or scores to compare; by default all that systems are
            ranked by. Further scores that are not diagnostic (``"log_pm_compressed"``,
            ``"ps_pesq"``) are compared if they are named themselves.
        controls: rank hidden references and anchors (systems ``control:NAME``) as well. By default
            they get a separate table; a control named in ``systems`` is ranked.
        alpha: level of the tests, after Holm's correction over all pairs of systems in a score.
        confidence: confidence of the intervals.
        weight: weights of mixtures in means and intervals: "equal"; "duration", by their seconds;
            or "sources", by the number of their references. Rank tests have no weights.
        seed: seed of the bootstrap.

    Returns:
        A :class:`Comparison`.

    Raises:
        ValueError: results differ in settings or references, a mixture and system occur twice with
            different scores, a system is unknown, or an option is out of range.
    """
    import pandas

    alpha = checks.check_real(alpha, "alpha", "(0, 1)")
    confidence = checks.check_real(confidence, "confidence", "(0, 1)")
    checks.check_choice(weight, "weight", [*WEIGHTS])
    several = [results] if isinstance(results, Results | str | os.PathLike) else results
    loaded = [load_results(folder) for folder in several]
    if not loaded:
        raise ValueError("results must be at least one folder, got none.")
    check_alike(loaded)
    items = pandas.concat([folder.items for folder in loaded], ignore_index=True)
    rows = pandas.concat([folder.scores for folder in loaded], ignore_index=True)
    names = compared_names(items, measures)
    scores = tables.compared_scores(items, rows, weight, systems, controls, names)
    ceilings = ceiling_shares(loaded, scores)
    pairs, ranking = tables.comparison_and_ranking(
        scores, alpha, weight, ceilings, confidence=confidence, seed=seed
    )
    return Comparison(
        pairs=pairs,
        ranking=ranking,
        sources=tables.source_means(scores),
        controls=tables.control_means(items, scores.systems, [*scores.values]),
        scores=scores,
        alpha=alpha,
        confidence=confidence,
        weight=weight,
        unlike_lags=unlike_lags(scores),
        remarks=(
            *unfinished(loaded),
            *pair_encoder_remarks(loaded, names),
            *faulty_channels(loaded, scores.systems),
            *ceiling_notes(ceilings),
        ),
    )


def compared_names(items: DataFrame, measures: str | Sequence[str] | None) -> tuple[str, ...]:
    """Names of the scores to compare, in the order of the table of scores.

    A measure stands for the scores that systems are ranked by; a score that is not diagnostic can
    be named itself.

    Raises:
        TypeError, ValueError: a name is not a text, or stands for nothing in the results.
    """
    if measures is None:
        return scores_in(items, ranked=True)
    available = [name for name in scores_in(items) if not SCORES[name].diagnostic]
    names: set[str] = set()
    for asked in [measures] if isinstance(measures, str) else measures:
        chosen = score_names(asked, available)
        names |= {name for name in chosen if name == asked or SCORES[name].ranked}
    return tuple(name for name in available if name in names)


def check_alike(results: Sequence[Results]) -> None:
    """Raise ValueError if results differ in settings, or in the references under one name."""
    for other in results[1:]:
        problems = [*_unlike_settings(results[0], other)]
        if names := _unlike_references(results[0], other):
            problems.append(
                f"the references of {io.listed(map(repr, names), 3)} are not the same audio in "
                "the same order (--sources puts them in order); mixtures of different audio need "
                "names of their own (mixture_id)"
            )
        if problems:
            raise ValueError(
                f"{io.shown(results[0].folder)!r} and {io.shown(other.folder)!r} cannot be "
                f"compared: {'; '.join(problems)}. Score both with the same settings and "
                "references."
            )


def _unlike_settings(results: Results, other: Results) -> list[str]:
    settings = relevant(results.settings), relevant(other.settings)
    return [
        f"{key} is {short(value)} in the one and {short(other_value)} in the other"
        for key, value, other_value in checks.differing(*settings)
    ]


def _unlike_references(results: Results, other: Results) -> list[str]:
    """Mixtures of one name whose references are not the same files in the same order."""
    hashes, other_hashes = _reference_hashes(results), _reference_hashes(other)
    return [name for name in hashes if hashes[name] != other_hashes.get(name, hashes[name])]


def _reference_hashes(results: Results) -> dict[str, list[str | None]]:
    hashes = {}
    for name, entry in results.entries.items():
        hashes[io.same_name(name)] = [*map(results.sha256.get, entry["references"])]
    return hashes
