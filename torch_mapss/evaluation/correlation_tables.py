"""What a correlation with ratings shows: tables as text, Markdown and LaTeX, and scatter plots."""

from __future__ import annotations

import math
import os
import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from torch_mapss.core.checks import check_choice
from torch_mapss.evaluation import io
from torch_mapss.evaluation.correlation_stats import METHODS, Options
from torch_mapss.evaluation.plots import new_figure, plain_axes, save_figure
from torch_mapss.evaluation.ratings import KEYS
from torch_mapss.evaluation.text_page import Page, Table

if TYPE_CHECKING:
    from matplotlib.figure import Figure
    from pandas import DataFrame

# Scores that reach so many times their median are drawn on a logarithmic axis.
_WIDE = 30.0
_HEADER = ["measure", "SRCC", "PCC", "p (Holm)", "pooled SRCC", "PCC", "n"]
_ERRORS = ["error of the correlation", "SRCC", "PCC"]
_TEX = str.maketrans(
    {sign: "\\" + sign for sign in "&%$#_{}"}
    | {"\\": r"\textbackslash{}", "~": r"\textasciitilde{}", "^": r"\textasciicircum{}"}
)


@dataclass(frozen=True, eq=False)
class Correlation:
    """Correlations with listeners, and the stimuli behind them."""

    rows: DataFrame  # of correlations.csv, one per scenario, question, measure, pooling
    differences: DataFrame  # of differences.csv, between measures
    units: DataFrame  # of per_track.csv, one per track and source
    stimuli: DataFrame  # ratings and scores
    labels: Mapping[str, str]  # measure -> name in tables
    notes: tuple[str, ...]
    options: Options

    def summary(self) -> str:
        """A table, in %, for each scenario and question, to print."""
        return self._page().text()

    def _repr_html_(self) -> str:
        return self._page().html()

    def _page(self) -> Page:
        tables, reasons = [], dict[str, list[str]]()
        for key, own in self.rows.groupby(["scenario", "question"], sort=False):
            title, lines, errors = _title(*map(str, key)), [], []
            pooled = own[own["pooling"] == "pooled"].set_index("measure")
            for row in own[own["pooling"] == "per_track"].to_dict("records"):
                whole, name = pooled.loc[row["measure"]], self.labels[row["measure"]]
                lines.append(
                    [name, *(_interval(row, method) for method in METHODS), _p(row["p_holm"])]
                    + [*(_percent(whole[method]) for method in METHODS), str(whole["stimuli"])]
                )
                for part in () if math.isnan(row["srcc_radius"]) else ("radius", "half_width"):
                    found = (_percent(row[f"{method}_{part}"]) for method in METHODS)
                    errors.append([f"{name} {part.replace('_', '-')}", *found])
            tables.append(Table(_HEADER, lines, title=title))
            tables += [Table(_ERRORS, errors)] if errors else []
            noted = own[own["reason"] != ""]
            for measure, pooling, text in noted[["measure", "pooling", "reason"]].to_numpy():
                for reason in text.split("; "):
                    where = f"{self.labels[measure]} ({pooling})"
                    reasons.setdefault(f"{title}: {reason}", []).append(where)
        units = {"track": "tracks", "source": "sources", "system": "systems"}
        cluster = self.options.cluster
        notes = [
            "Correlations in %, over the systems of a track and source, averaged, with the "
            f"{100 * self.options.confidence:g} % interval; pooled: over all n stimuli at once; p "
            "corrected for the number of measures (Holm)",
            *self.notes,
            f"Intervals resample {units.get(cluster, f'{cluster} (--cluster)')}: they hold for "
            "others like those, and take what was rated within each as given",
            "p per track exchanges the ratings within a track and source: it assumes that its "
            "outputs are independent of those of other tracks; the same systems in all tracks, or "
            "listeners who agree on a system, make it too small",
            "p pooled exchanges all ratings, as if all outputs were independent: too small where "
            "tracks differ",
        ]
        for reason, of in reasons.items():
            every = len(of) == 2 * len(self.labels)
            notes.append(reason if every else f"{reason} ({', '.join(of)})")
        return Page("", tables, [f"{note}." for note in notes])

    def _rows_of(self, question: str) -> DataFrame:
        own = self.rows["question"] == question
        return self.rows[own & (self.rows["pooling"] == "per_track")]

    def plot(self, question: str | None = None) -> Figure:
        """Ratings of one question over scores, a panel for each scenario and measure.

        Raises:
            ImportError: matplotlib is missing.
            ValueError: no such question.
        """
        asked = list(self.stimuli["question"].unique())
        question = asked[0] if question is None else question
        check_choice(question, "question", asked)
        rows, columns = self._rows_of(question), min(len(self.labels), 4)
        lines = -(-len(rows) // columns)
        figure = new_figure(3.1 * columns, 2.8 * lines + 0.3)
        axes = figure.subplots(lines, columns, squeeze=False, sharey=True)
        for ax, row in zip(axes.flat, rows.to_dict("records")):
            here = (self.stimuli[name] == row[name] for name in ("question", "scenario"))
            own = self.stimuli[np.logical_and(*here)].dropna(subset=[row["measure"]])
            x = own[row["measure"]].to_numpy(float)
            tracks = own["track"].factorize()[0]
            ax.scatter(x, own["rating"], c=tracks, cmap="turbo", s=12, alpha=0.8)
            values = ", ".join(f"{m.upper()} {_percent(row[m])}" for m in METHODS)
            name = self.labels[row["measure"]]
            ax.set_title(f"{_title(row['scenario'], name)}\n{values}", fontsize=9)
            middle = max(float(np.median(np.abs(x))), 1e-12) if len(x) else 1.0
            if np.abs(x).max(initial=0.0) > _WIDE * middle:
                ax.set_xscale("symlog", linthresh=middle)
            ax.set_xlabel(name, fontsize=8)
            ax.tick_params(labelsize=7)
            plain_axes(ax, "both")
        for ax in axes.flat[len(rows) :]:
            ax.remove()
        for line in axes:
            line[0].set_ylabel(f"rating: {question}")
        return figure

    def _latex(self, question: str) -> str:
        """As the paper lays it out; by hand, since pandas needs another package for it."""
        rows = self._rows_of(question)
        scenarios = [*rows["scenario"].unique()]
        heads = [rf"\multicolumn{{2}}{{c}}{{{_tex(name)}}}" for name in scenarios]
        lines = [
            f"% {' '.join(question.split())}",
            rf"\begin{{tabular}}{{l{'cc' * len(scenarios)}}}",
            r"\toprule",
            " & ".join(["", *heads]) + r" \\",
            r"\textbf{Measure}" + r" & \textbf{SRCC} & \textbf{PCC}" * len(scenarios) + r" \\",
            r"\midrule",
        ]
        for measure, own in rows.groupby("measure", sort=False):
            found = own.set_index("scenario").loc[scenarios, [*METHODS]].to_numpy().ravel()
            cells = ["--" if math.isnan(value) else rf"{_percent(value)}\%" for value in found]
            lines.append(" & ".join([_tex(self.labels[str(measure)]), *cells]) + r" \\")
        return "\n".join([*lines, r"\bottomrule", r"\end{tabular}", ""])

    def save(self, folder: str | os.PathLike[str]) -> str:
        """Write the tables (CSV, Markdown, LaTeX) and scatter plots to a folder.

        Returns:
            The folder.

        Raises:
            ValueError: the folder is a file, or cannot be made.
        """
        folder = io.make_folder(folder)
        stimuli = self.stimuli[[*KEYS, "rating", *self.labels]]
        tables = (self.rows, self.differences, self.units, stimuli)
        for name, table in zip(("correlations", "differences", "per_track", "stimuli"), tables):
            io.write_table(os.path.join(folder, f"{name}.csv"), table)
        page = self._page().markdown("Correlation with listeners")
        io.write_bytes(os.path.join(folder, "correlations.md"), page.encode())
        for question in self.rows["question"].unique():
            stem = os.path.join(folder, "correlations_" + re.sub(r"\W+", "_", question))
            io.write_bytes(f"{stem}.tex", self._latex(question).encode())
            save_figure(self.plot(question), f"{stem}.png")
        return folder


def _title(scenario: str, question: str) -> str:
    return question if scenario == "all" else f"{question}, {scenario}"


def _percent(value: float) -> str:
    if math.isnan(value):
        return "–"
    # Printed half-widths have no limit: of scores that hardly differ they reach any size.
    return f"{100 * value:.1f}" if abs(value) < 10.0 else f"{100 * value:.0e}"


def _interval(row: Mapping[Any, Any], method: str) -> str:
    value, *ends = (_percent(row[f"{method}{end}"]) for end in ("", "_low", "_high"))
    return value if math.isnan(row[f"{method}_low"]) else f"{value} [{', '.join(ends)}]"


def _p(value: float) -> str:
    return "–" if math.isnan(value) else "<0.001" if value < 0.001 else f"{value:.3f}"


def _tex(words: str) -> str:
    return " ".join(words.split()).translate(_TEX)
