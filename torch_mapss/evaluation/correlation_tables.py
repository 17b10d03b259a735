"""Correlations as tables (text, Markdown, LaTeX, HTML) and scatter plots."""

from __future__ import annotations

import math
import os
import re
import textwrap
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from torch_mapss.evaluation import io
from torch_mapss.evaluation.plots import new_figure, save_figure

if TYPE_CHECKING:
    from matplotlib.figure import Figure
    from pandas import DataFrame

_DASH = "–"
# Scores that reach so many times their median are drawn on a logarithmic axis.
_WIDE = 30.0
HEADER = ["measure", "SRCC", "PCC", "p (Holm)", "pooled SRCC", "PCC", "n"]
ERRORS = ["error of the correlation", "SRCC", "PCC"]
_Table = tuple[list[str], list[list[str]]]


class Page(NamedTuple):
    """What all tables are made of."""

    rows: DataFrame  # of correlations.csv
    labels: Mapping[str, str]  # measure -> name
    about: Sequence[str]  # sentences on how it was made
    confidence: float

    def tables(self) -> Iterator[tuple[str, list[_Table]]]:
        """The title and the tables, in %, of every scenario and question."""
        for key, rows in self.rows.groupby(["scenario", "question"], sort=False):
            scenario, question = map(str, key)
            own = rows[rows["pooling"] == "per_track"].set_index("measure")
            pooled = rows[rows["pooling"] == "pooled"].set_index("measure")
            lines = [
                [self.labels[name], *(_with_interval(row, m) for m in ("srcc", "pcc"))]
                + [_p(row["p_holm"]), *(_percent(pooled.loc[name, m]) for m in ("srcc", "pcc"))]
                + [str(pooled.loc[name, "stimuli"])]
                for name, row in own.iterrows()
            ]
            errors = [
                [
                    f"{self.labels[name]} {word}",
                    *(_percent(row[f"{m}_{part}"]) for m in ("srcc", "pcc")),
                ]
                for name, row in own[own["srcc_radius"].notna()].iterrows()
                for part, word in (("radius", "radius"), ("half_width", "half-width"))
            ]
            found = [(HEADER, lines), *([(ERRORS, errors)] if errors else [])]
            yield _title(scenario, question), found

    def notes(self) -> list[str]:
        """What a reader of the tables must know, sentence by sentence."""
        level = f"{100 * self.confidence:g} %"
        reasons: dict[str, list[str]] = {}
        for row in self.rows[self.rows["reason"] != ""].to_dict("records"):
            for reason in row["reason"].split("; "):
                key = f"{_title(row['scenario'], row['question'])}: {reason}"
                reasons.setdefault(key, []).append(
                    f"{self.labels[row['measure']]} ({row['pooling']})"
                )
        every = 2 * len(self.labels)
        return [
            "Correlations in %, over the systems of a track and source, averaged, with the "
            f"{level} interval; pooled: over all n stimuli at once; p corrected for the number of "
            "measures (Holm)",
            *self.about,
            *(
                reason if len(names) == every else f"{reason} ({', '.join(names)})"
                for reason, names in reasons.items()
            ),
        ]


def _title(scenario: str, question: str) -> str:
    return question if scenario == "all" else f"{question}, {scenario}"


def _percent(value: float) -> str:
    if math.isnan(value):
        return _DASH
    # Printed half-widths have no limit: of scores that hardly differ they reach any size.
    return f"{100 * value:.1f}" if abs(value) < 10.0 else f"{100 * value:.0e}"


def _with_interval(row: Any, method: str) -> str:
    value, low, high = (row[name] for name in (method, f"{method}_low", f"{method}_high"))
    if math.isnan(low):
        return _percent(value)
    return f"{_percent(value)} [{_percent(low)}, {_percent(high)}]"


def _p(value: float) -> str:
    if math.isnan(value):
        return _DASH
    return f"{value:.3f}" if value >= 0.001 else "<0.001"


# ------------------------------------------------------------------------------------------------
# In several languages
# ------------------------------------------------------------------------------------------------


def text(page: Page) -> str:
    """The tables for a terminal."""
    parts = []
    for title, tables in page.tables():
        parts += [title, ""]
        parts += [part for table in tables for part in (io.text_table(*table), "")]
    return "\n".join(
        [*parts, *(line for note in page.notes() for line in textwrap.wrap(f"{note}.", 100))]
    )


def html(page: Page) -> str:
    """The tables for a notebook."""
    from html import escape

    from pandas import DataFrame

    parts = []
    for title, tables in page.tables():
        parts.append(f"<h4>{escape(title)}</h4>")
        parts += [DataFrame(cells, columns=head).to_html(index=False) for head, cells in tables]
    return "".join([*parts, *(f"<p>{escape(note)}.</p>" for note in page.notes())])


def markdown(page: Page) -> str:
    """All tables as a Markdown page."""
    parts = ["# Correlation with listeners", ""]
    for title, tables in page.tables():
        parts += [f"## {title}", ""]
        for header, cells in tables:  # by hand: pandas needs another package for it
            lines = [header, ["---"] * len(header), *cells]
            escaped = ([cell.replace("|", "\\|") for cell in line] for line in lines)
            parts += [*(f"| {' | '.join(line)} |" for line in escaped), ""]
    return "\n".join([*parts, *(f"- {note}." for note in page.notes()), ""])


def latex(page: Page, question: str) -> str:
    """A question's table as the paper lays it out: SRCC and PCC of every scenario side by side."""
    rows = page.rows[(page.rows["question"] == question) & (page.rows["pooling"] == "per_track")]
    scenarios = list(rows["scenario"].unique())
    values = rows.set_index(["measure", "scenario"])
    heads = [rf"\multicolumn{{2}}{{c}}{{{_tex(name)}}}" for name in scenarios]
    lines = [
        rf"% {_one_line(question)}",
        rf"\begin{{tabular}}{{l{'cc' * len(scenarios)}}}",
        r"\toprule",
        " & ".join(["", *heads]) + r" \\",
        r"\textbf{Measure}" + r" & \textbf{SRCC} & \textbf{PCC}" * len(scenarios) + r" \\",
        r"\midrule",
    ]
    for measure in rows["measure"].unique():
        cells = [_tex(page.labels[measure])]
        for scenario in scenarios:
            found = (_percent(values.loc[(measure, scenario), name]) for name in ("srcc", "pcc"))
            cells += ["--" if value == _DASH else rf"{value}\%" for value in found]
        lines.append(" & ".join(cells) + r" \\")
    return "\n".join([*lines, r"\bottomrule", r"\end{tabular}", ""])


_SPECIAL = {"\\": r"\textbackslash{}", "~": r"\textasciitilde{}", "^": r"\textasciicircum{}"}
_SPECIAL |= {sign: "\\" + sign for sign in "&%$#_{}"}


def _tex(words: str) -> str:
    return "".join(_SPECIAL.get(sign, sign) for sign in _one_line(words))


def _one_line(words: str) -> str:
    return " ".join(words.split())


# ------------------------------------------------------------------------------------------------
# Figures and files
# ------------------------------------------------------------------------------------------------


def scatter(
    stimuli: DataFrame, rows: DataFrame, labels: Mapping[str, str], question: str
) -> Figure:
    """Ratings over scores, a panel for each scenario and measure, a colour for each track.

    Args:
        stimuli: of ``stimuli.csv``.
        rows: of ``correlations.csv``, of the question, per track: one per panel.
        labels: measure -> name.
        question: to draw.
    """
    columns = min(len(labels), 4)
    lines = -(-len(rows) // columns)
    figure = new_figure(3.1 * columns, 2.8 * lines + 0.3)
    axes = figure.subplots(lines, columns, squeeze=False, sharey=True)
    for axis, row in zip(axes.flat, rows.to_dict("records")):
        here = (stimuli["question"] == question) & (stimuli["scenario"] == row["scenario"])
        _draw(axis, stimuli[here], labels[row["measure"]], row)
    for axis in axes.flat[len(rows) :]:
        axis.remove()
    for line in axes:
        line[0].set_ylabel(f"rating: {question}")
    return figure


def _draw(axis: Any, stimuli: DataFrame, label: str, row: Mapping[Any, Any]) -> None:
    own = stimuli.dropna(subset=[row["measure"]])
    x = own[row["measure"]].to_numpy(float)
    tracks = {name: k for k, name in enumerate(stimuli["track"].unique())}
    colours = own["track"].map(tracks).to_numpy(float) / len(tracks)
    axis.scatter(x, own["rating"], c=colours, cmap="turbo", vmin=0, vmax=1, s=12, alpha=0.8)
    title = _title(row["scenario"], label)
    axis.set_title(f"{title}\nSRCC {_percent(row['srcc'])}, PCC {_percent(row['pcc'])}", fontsize=9)
    middle = max(float(np.median(np.abs(x))), 1e-12) if len(x) else 1.0
    if np.abs(x).max(initial=0.0) > _WIDE * middle:
        axis.set_xscale("symlog", linthresh=middle)
    axis.set_xlabel(label, fontsize=8)
    axis.tick_params(labelsize=7)
    axis.grid(alpha=0.3)


def save(
    tables: Mapping[str, DataFrame],
    page: Page,
    plot: Callable[[str], Figure],
    folder: str | os.PathLike[str],
) -> str:
    """Write CSV tables, the page in Markdown, and LaTeX and a figure for every question."""
    folder = io.make_folder(folder)

    def write(name: str, content: str) -> None:
        io.write_bytes(os.path.join(folder, name), content.encode())

    for name, table in tables.items():
        content = table.to_csv(index=False, na_rep="nan", float_format="%.9g")
        write(f"{name}.csv", content)
    write("correlations.md", markdown(page))
    for question in page.rows["question"].unique():
        name = "correlations_" + re.sub(r"\W+", "_", question)
        write(f"{name}.tex", latex(page, question))
        save_figure(plot(question), os.path.join(folder, f"{name}.png"))
    return folder
