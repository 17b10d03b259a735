"""Which system is better: the systems of one or more results folders, ranked and tested.

Everything is over *mixtures*, one number per mixture and system (the rows of ``items.csv``), by the
intervals, tests and groups of :mod:`torch_mapss.evaluation.significance`.
"""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import numpy as np

from torch_mapss.core import checks
from torch_mapss.evaluation import comparison_tables as tables
from torch_mapss.evaluation import io, significance
from torch_mapss.evaluation.comparison_tables import WEIGHTS, Scores
from torch_mapss.evaluation.manifest import CONTROL, short
from torch_mapss.evaluation.protocol import relevant
from torch_mapss.evaluation.results import Results, load_results
from torch_mapss.evaluation.text_page import Page, Table
from torch_mapss.score_table import SCORES, score_label, score_text

if TYPE_CHECKING:
    from matplotlib.figure import Figure
    from pandas import DataFrame

# More names of sources are names of files rather than of instruments, and fill no table.
_MOST_SOURCES = 8
# Up to so many systems every pair is printed, else those with the best one.
_FEW_SYSTEMS = 3
_MOST_FAILURES = 5


@dataclass(frozen=True, eq=False)
class Comparison:
    """Ranking of the systems, and tests of every pair of them, for every measure."""

    pairs: DataFrame = field(repr=False)  # comparison.csv: every pair of systems
    ranking: DataFrame = field(repr=False)  # ranking.csv: the systems of a measure, best first
    sources: DataFrame = field(repr=False)  # sources.csv: the means of every source name
    scores: Scores = field(repr=False)  # what is compared
    alpha: float  # groups are of tests at this level
    confidence: float  # of the intervals
    weight: str  # of mixtures, one of WEIGHTS

    @property
    def values(self) -> Mapping[str, DataFrame]:
        """By measure: mixtures x systems, NaN where there is no score."""
        return self.scores.values

    @property
    def measures(self) -> tuple[str, ...]:
        """What is compared, in order."""
        return tuple(self.values)

    @property
    def systems(self) -> tuple[str, ...]:
        """The names of the systems."""
        return tuple(map(str, next(iter(self.values.values()))))

    def answer(self) -> str:
        """One sentence: which system is best on what, in how many mixtures, and if that holds."""
        ranked = self.ranking[self.ranking["n"] > 0].groupby("measure", sort=False)
        best = ranked["system"].first()
        if best.empty:
            return "No mixture has a score: scores.csv says why, in `status` and `reason`."
        if len(self.systems) < 2:
            return f"{self.systems[0]} is the only system: its means follow, without a ranking."
        said: dict[tuple[str, str, str], list[str]] = {}
        for measure, system in best.items():
            key = system, *self._standing(str(measure), system)
            said.setdefault(key, []).append(SCORES[str(measure)].label)
        parts = [f"{name} {how} on {_and(on)} in {n}" for (name, how, n), on in said.items()]
        return "; ".join([*parts, f"{self._certainty(ranked['group'].agg(list))}."])

    def _standing(self, measure: str, system: str) -> tuple[str, str]:
        """How a system stands to the others, and in how many of its mixtures."""
        from pandas import DataFrame

        own = self.values[measure][system].dropna()
        better = 1.0 if SCORES[measure].higher_is_better else -1.0
        others = [name for name in self.systems if name != system]
        found = {name: self.scores.difference(measure, system, name) for name in others}
        leads = (better * DataFrame(found)).loc[own.index].fillna(np.inf)
        least = leads.min(axis=1)
        tied = leads[least == 0.0]
        if len(tied) == len(own):
            equals = io.listed(tied.columns[(tied == 0.0).any()], 3)
            return f"ties with {equals}", f"{len(tied)} of {len(own)} mixtures"
        more = f", tied in {len(tied)}" if len(tied) else ""
        return "is best", f"{(least > 0.0).sum()} of {len(own)} mixtures{more}"

    def _certainty(self, groups: Mapping[str, list[str]]) -> str:
        """Whether the best systems differ significantly from all others, or could at all.

        Args:
            groups: by measure, the letters of its systems, best first.
        """
        level = f"at level {self.alpha:g}"
        proven = [
            SCORES[measure].label
            for measure, (best, *others) in groups.items()
            if others and not {*best} & {*"".join(others)}
        ]
        if proven:
            alone = "" if len(proven) == len(groups) else f" on {_and(proven)} alone"
            return f"significantly better than every other system {level}{alone}"
        pairs = self.pairs.groupby("measure")
        count, family = max(tables.family_of(own, self.alpha) for _, own in pairs)
        least = significance.least_holm_p(count, family)
        if least <= self.alpha:
            return f"nothing is significantly better than every other system {level}"
        needed = significance.least_mixtures(family, self.alpha)
        return (
            f"{count} mixture{'' if count == 1 else 's'} cannot prove a difference: the smallest "
            f"attainable p is {least:.2g}; {needed} are needed"
        )

    def summary(self) -> str:
        """The answer in a sentence, the tables behind it, and what can and cannot be concluded."""
        return self._page().text()

    __str__ = summary

    def _repr_html_(self) -> str:
        return self._page().html()

    def shown_pairs(self) -> DataFrame:
        """The rows of ``pairs`` to read: tested, and of many systems those with the best one."""
        found = self.pairs[self.pairs["p_holm"].notna()]
        if len(self.systems) <= _FEW_SYSTEMS:
            return found
        best = found["measure"].map(self.ranking.groupby("measure")["system"].first())
        return found[(found["system_a"] == best) | (found["system_b"] == best)]

    def _page(self) -> Page:
        """Ranking, pairs and sources; those that have no row are left out."""
        percent = f"{100 * self.confidence:g} % interval"
        ranked: Any = self.ranking.itertuples()
        tested: Any = self.shown_pairs().itertuples()
        ranking = [[*_told(r, r.system, r.mean), r.group] for r in ranked]
        pairs = [
            _told(r, f"{r.system_a} - {r.system_b}", r.difference)
            + [f"{r.wins}/{r.ties}/{r.losses}", f"{r.p_holm:.2g}"]
            for r in tested
        ]
        names = self.sources["source"].unique()
        means = self.sources.set_index(["source", "system", "measure"])["mean"].to_dict()
        sources = [
            [
                source,
                system,
                *(score_text(m, means.get((source, system, m))) for m in self.measures),
            ]
            for source in (names if len(names) <= _MOST_SOURCES else ())
            for system in self.systems
        ]
        columns = ["measure", "pair", "n", "difference", percent, "wins/ties/losses", "p (Holm)"]
        shown = [
            Table(["measure", "system", "n", "mean", percent, "group"], ranking, 2),
            Table(columns, pairs, 2),
            Table(["source", "system", *map(score_label, self.measures)], sources, 2),
        ]
        return Page(self.answer(), [table for table in shown if table.rows], self.notes())

    def notes(self) -> list[str]:
        """What a reader of the tables must know, sentence by sentence."""
        lower = [SCORES[m].label for m in self.measures if not SCORES[m].higher_is_better]
        lines = [
            "n: mixtures. Intervals: BCa bootstrap over mixtures. Systems sharing a letter do not "
            f"differ significantly (Wilcoxon signed rank, Holm, level {self.alpha:g})."
        ]
        if lower:
            lines.append(f"Lower is better in {_and(lower)}.")
        if self.ranking["n"].between(2, significance.FEW - 1).any():
            lines.append(f"Intervals over fewer than {significance.FEW} mixtures are too narrow.")
        if self.ranking["n"].nunique() > 1:
            lines.append("Means are over each system's own mixtures, tests over those of both.")
        if len(self.systems) > _FEW_SYSTEMS:
            lines.append("Pairs: those with the best system; `compare --out` writes all.")
        if self.sources["source"].nunique() > _MOST_SOURCES:
            lines.append("Means of single sources: sources.csv, of `compare --out`.")
        if unlike := int(self.scores.unlike.sum()):
            lines.append(
                f"In {unlike} mixtures some systems left out sources that others estimated: their "
                "means are of other sources. Pairs compare the sources of both."
            )
        if self.weight != "equal":
            lines.append(f"Means and intervals, not tests, weigh mixtures by {self.weight}.")
        for measure, system in self.ranking[["measure", "system"]].to_numpy():
            about = f"{SCORES[measure].label} of {system}"
            lines += [f"{about}: {own}." for own in tables.warnings(self.scores, measure, system)]
        failed = [
            f"Failed: mixture {mixture!r}, system {system!r}: {reason}"
            for (system, mixture), reason in self.scores.failures.items()
        ]
        if (more := len(failed) - _MOST_FAILURES) > 0:
            failed[_MOST_FAILURES:] = [f"Failed: {more} more pairs of mixture and system."]
        return [*lines, *failed]

    def plot(self, measure: str | None = None) -> Figure:
        """The mixtures of every system as a box plot, with mean, interval and letters.

        Args:
            measure: one of ``measures``, the first by default; or ``"scatter"``, fidelity over
                clearance (log PM over PS where the results lack those).

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
        figure: Figure = draw(self.values, self.ranking, *self._figures()[measure], percent)
        return figure

    def _figures(self) -> dict[str, tuple[str, ...]]:
        """The measures of every figure that can be drawn."""
        pairs = (("clearance", "fidelity"), ("ps", "log_pm"), ("ps", "pm"))
        both = [pair for pair in pairs if {*pair} <= {*self.measures}]
        return {m: (m,) for m in self.measures} | ({"scatter": both[0]} if both else {})

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


def _and(names: Sequence[str]) -> str:
    return " and ".join(part for part in (", ".join(names[:-1]), *names[-1:]) if part)


def _told(row: Any, what: str, value: float) -> list[str]:
    """Measure, system or pair, n, mean and interval."""
    mean, low, high = (score_text(row.measure, x) for x in (value, row.low, row.high))
    return [
        score_label(row.measure),
        what,
        str(row.n),
        mean,
        "-" if low == "-" else f"[{low}, {high}]",
    ]


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
    import pandas

    checks.check_real(alpha, "alpha", "(0, 1)")
    checks.check_real(confidence, "confidence", "(0, 1)")
    checks.check_choice(weight, "weight", [*WEIGHTS])
    given = [results] if isinstance(results, Results | str | os.PathLike) else results
    loaded = [load_results(one) for one in given]
    if not loaded:
        raise ValueError("results must be at least one folder, got none.")
    check_alike(loaded)
    items = pandas.concat([one.items for one in loaded], ignore_index=True)
    rows = pandas.concat([one.scores for one in loaded], ignore_index=True)
    scores = tables.scores_of(items, rows, weight, systems, references)
    bootstrap = significance.Bootstrap(confidence, seed=seed)
    pairs, ranking = tables.pairs_and_ranking(scores, alpha, weight, bootstrap)
    sources = tables.source_means(scores)
    return Comparison(pairs, ranking, sources, scores, alpha, confidence, weight)


def compare_ranked(results: Given) -> Comparison:
    """:func:`compare` as tables and pages show it: hidden references and anchors are no systems."""
    loaded = load_results(results)
    return compare(loaded, references=all(name.startswith(CONTROL) for name in loaded.systems))


def check_alike(results: Sequence[Results]) -> None:
    """Raise ValueError for results of unlike settings, or of unlike references under one name."""
    for other in results[1:]:
        unlike = [
            f"{key} is {short(one)} in the one and {short(two)} in the other"
            for key, one, two in checks.differing(
                *(relevant(each.settings) for each in (results[0], other))
            )
        ]
        both = ((one.sha256.get, one.entries.items()) for one in (results[0], other))
        audio, more = (
            {io.same_name(name): [*map(get, entry["references"])] for name, entry in entries}
            for get, entries in both
        )
        if others := [name for name in audio if audio[name] != more.get(name, audio[name])]:
            unlike.append(
                f"the references of {io.listed(map(repr, others), 3)} are not the same audio in "
                "the same order (--sources puts them in order); mixtures of different audio need "
                "names of their own (mixture_id)"
            )
        if unlike:
            raise ValueError(
                f"{io.shown(results[0].folder)!r} and {io.shown(other.folder)!r} cannot be "
                f"compared: {'; '.join(unlike)}. Score both with the same settings and references."
            )
