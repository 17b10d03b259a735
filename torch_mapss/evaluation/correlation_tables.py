"""Output of correlations with ratings: tables as text, Markdown and LaTeX, and scatter plots."""

from __future__ import annotations

import itertools
import math
import os
import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from torch_mapss.core.checks import check_choice
from torch_mapss.evaluation import io
from torch_mapss.evaluation.correlation_stats import METHODS, CorrelationSettings
from torch_mapss.evaluation.plots import (
    SERIES_COLORS,
    SERIES_MARKERS,
    new_figure,
    save_figure,
    short_name,
)
from torch_mapss.evaluation.ratings import KEYS
from torch_mapss.evaluation.text_page import Page, Table
from torch_mapss.score_table import SCORES, score_label

if TYPE_CHECKING:
    from matplotlib.figure import Figure
    from pandas import DataFrame

# Scores that exceed this multiple of their median are drawn on a logarithmic axis.
_WIDE = 30.0
# A legend names up to this many tracks.
_MOST_TRACKS = 16
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
    settings: CorrelationSettings

    def summary(self) -> str:
        """A table for each scenario and question, to print."""
        return self._page().text()

    def _repr_html_(self) -> str:
        return self._page().html()

    def _page(self) -> Page:
        tables, notes = [], []
        for (scenario, question), rows in self.rows.groupby(["scenario", "question"], sort=False):
            title = _title(str(scenario), str(question))
            tables += self._tables(title, rows)
            notes += self._reasons(title, rows)
        return Page("", tables, [f"{note}." for note in (*self._reading(), *notes)])

    def _tables(self, title: str, rows: DataFrame) -> list[Table]:
        """Tables of one scenario and question: correlations, and the effect of errors in scores."""
        lines, errors = [], []
        pooled_rows = rows[rows["pooling"] == "pooled"].set_index("measure")
        for row in rows[rows["pooling"] == "per_track"].to_dict("records"):
            pooled, label = pooled_rows.loc[row["measure"]], self.labels[row["measure"]]
            intervals = [_interval(row, method) for method in METHODS]
            values = [_number(pooled[method]) for method in METHODS]
            lines.append([label, *intervals, _p(row["p_holm"]), *values, str(pooled["stimuli"])])
            for column in () if math.isnan(row["srcc_radius"]) else ("radius", "half_width"):
                numbers = [_number(row[f"{method}_{column}"]) for method in METHODS]
                errors.append([f"{label} {column.replace('_', '-')}", *numbers])
        table = Table(_HEADER, lines, title=title)
        return [table, Table(_ERRORS, errors)] if errors else [table]

    def _reasons(self, title: str, rows: DataFrame) -> list[str]:
        """Notes on missing or approximate numbers, with their measures."""
        places_by_reason: dict[str, list[str]] = {}
        with_reason = rows[rows["reason"] != ""]
        for measure, pooling, text in with_reason[["measure", "pooling", "reason"]].to_numpy():
            for reason in text.split("; "):
                heading = f"{self.labels[measure]} ({pooling})"
                places_by_reason.setdefault(f"{title}: {reason}", []).append(heading)
        notes = []
        for reason, places in places_by_reason.items():
            everywhere = len(places) == 2 * len(self.labels)
            notes.append(reason if everywhere else f"{reason} ({', '.join(places)})")
        return notes

    def _reading(self) -> list[str]:
        """Notes on how to read the numbers."""
        units = {"track": "tracks", "source": "sources", "system": "systems"}
        cluster = self.settings.cluster
        notes = [
            "Correlations over the systems of a track and source, averaged, with the "
            f"{100 * self.settings.confidence:g} % interval; pooled: over all n stimuli at once; p "
            "corrected for the number of measures (Holm)",
        ]
        lower = [self.labels[name] for name in self.labels if is_sign_flipped(name)]
        if lower:
            notes.append(
                f"Lower is better in {', '.join(lower)}: the sign is flipped so that +1 "
                "means agreement"
            )
        rivals = [name for name in self.labels if name not in SCORES]
        if rivals:
            notes.append(f"Higher counts as better in {', '.join(rivals)}")
        return [
            *notes,
            *self.notes,
            f"Intervals resample {units.get(cluster, f'{cluster} (--cluster)')}: they "
            "generalise to similar ones and treat the ratings within each as fixed",
            "p per track exchanges the ratings within a track and source: it assumes that its "
            "outputs are independent of those of other tracks; the same systems in all tracks, or "
            "listeners who agree on a system, make it too small",
            "p pooled exchanges all ratings, as if all outputs were independent: too small where "
            "tracks differ",
        ]

    def _rows_of(self, question: str) -> DataFrame:
        asked = self.rows["question"] == question
        return self.rows[asked & (self.rows["pooling"] == "per_track")]

    def plot(self, question: str | None = None) -> Figure:
        """Ratings of one question over scores, a panel for each scenario and measure.

        Raises:
            ImportError: matplotlib is missing.
            ValueError: no such question.
        """
        questions = list(self.stimuli["question"].unique())
        question = questions[0] if question is None else question
        check_choice(question, "question", questions)
        rows, columns = self._rows_of(question), min(len(self.labels), 4)
        lines = -(-len(rows) // columns)
        figure = new_figure(3.1 * columns, 2.8 * lines + 0.3)
        axes = figure.subplots(lines, columns, squeeze=False, sharey=True)
        for ax, row in zip(axes.flat, rows.to_dict("records")):
            self._draw_panel(ax, row)
        for ax in axes.flat[len(rows) :]:
            ax.remove()
        for line in axes:
            line[0].set_ylabel(f"listeners: {question}, high is good", fontsize=8)
        self._add_track_legend(figure)
        return figure

    def _draw_panel(self, ax: Any, row: Mapping[Any, Any]) -> None:
        """Ratings over the scores of one measure, a colour for each track."""
        same = [self.stimuli[name] == row[name] for name in ("question", "scenario")]
        stimuli = self.stimuli[np.logical_and(*same)].dropna(subset=[row["measure"]])
        x = stimuli[row["measure"]].to_numpy(float)
        for track, (marker, color) in self._track_styles().items():
            of_track = (stimuli["track"] == track).to_numpy()
            style = {"color": color, "marker": marker, "markersize": 4, "linestyle": ""}
            ax.plot(x[of_track], stimuli.loc[of_track, "rating"], zorder=3, **style)
        kinds = {"srcc": "SRCC (rank)", "pcc": "PCC (linear)"}
        values = ", ".join(f"{kinds[method]} {_number(row[method])}" for method in METHODS)
        label = self.labels[row["measure"]]
        ax.set_title(f"{_title(row['scenario'], label)}\n{values}", fontsize=9)
        middle = max(float(np.median(np.abs(x))), 1e-12) if len(x) else 1.0
        if np.abs(x).max(initial=0.0) > _WIDE * middle:
            ax.set_xscale("symlog", linthresh=middle)
        lower = " (lower is better)" if is_sign_flipped(row["measure"]) else ""
        measure = row["measure"]
        name = score_label(measure) if measure in SCORES else label
        ax.set_xlabel(f"{name}{lower}", fontsize=8)
        ax.tick_params(labelsize=7)
        ax.spines[["top", "right"]].set_visible(False)

    def _track_styles(self) -> dict[str, tuple[str, str]]:
        """Marker and colour of every track; they repeat where there are many tracks."""
        pairs = itertools.cycle(itertools.product(SERIES_MARKERS, SERIES_COLORS))
        return dict(zip(self.stimuli["track"].unique(), pairs))

    def _add_track_legend(self, figure: Figure) -> None:
        """Names of the tracks, unless they are too many to tell apart."""
        from matplotlib.lines import Line2D

        styles = self._track_styles()
        if not 1 < len(styles) <= _MOST_TRACKS:
            return
        handles = [
            Line2D([], [], color=color, marker=marker, markersize=4, linestyle="")
            for marker, color in styles.values()
        ]
        names = [short_name(str(track), 28) for track in styles]
        placing: dict[str, Any] = {"loc": "outside lower center", "ncols": min(len(names), 8)}
        title = (
            "A point is one system's output of a track; correlations are within tracks, averaged"
        )
        placing |= {"title": title, "title_fontsize": 8, "fontsize": 8, "frameon": False}
        figure.legend(handles, names, **placing)

    def _latex(self, question: str) -> str:
        """LaTeX table in the paper's layout; by hand, since pandas needs another package for it."""
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
        for measure, group in rows.groupby("measure", sort=False):
            values = group.set_index("scenario").loc[scenarios, [*METHODS]].to_numpy().ravel()
            cells = ["--" if math.isnan(value) else _number(value) for value in values]
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
        tables = {
            "correlations": self.rows,
            "differences": self.differences,
            "per_track": self.units,
            "stimuli": self.stimuli[[*KEYS, "rating", *self.labels]],
        }
        for name, table in tables.items():
            io.write_table(os.path.join(folder, f"{name}.csv"), table)
        page = self._page().markdown("Correlation with listeners")
        io.write_bytes(os.path.join(folder, "correlations.md"), page.encode())
        for question in self.rows["question"].unique():
            stem = os.path.join(folder, "correlations_" + re.sub(r"\W+", "_", question))
            io.write_bytes(f"{stem}.tex", self._latex(question).encode())
            save_figure(self.plot(question), f"{stem}.png")
        return folder


def is_sign_flipped(name: str) -> bool:
    """Whether lower is better for a measure, so that correlations flip its sign."""
    return name in SCORES and not SCORES[name].higher_is_better


def _title(scenario: str, text: str) -> str:
    return text if scenario == "all" else f"{text}, {scenario}"


def _number(value: float) -> str:
    if math.isnan(value):
        return "–"
    # Printed half-widths have no limit: for scores that hardly differ they can be huge.
    return f"{value:.3f}" if abs(value) < 10.0 else f"{value:.0e}"


def _interval(row: Mapping[Any, Any], method: str) -> str:
    value, low, high = (_number(row[f"{method}{suffix}"]) for suffix in ("", "_low", "_high"))
    return value if math.isnan(row[f"{method}_low"]) else f"{value} [{low}, {high}]"


def _p(value: float) -> str:
    return "–" if math.isnan(value) else "<0.001" if value < 0.001 else f"{value:.3f}"


def _tex(text: str) -> str:
    return " ".join(text.split()).translate(_TEX)
