"""Correlations as tables (text, Markdown, LaTeX, HTML) and scatter plots."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from torch_mapss.evaluation.plots import new_figure, plain_axes
from torch_mapss.evaluation.text_page import Page, Table

if TYPE_CHECKING:
    from matplotlib.figure import Figure
    from pandas import DataFrame

# Scores that reach so many times their median are drawn on a logarithmic axis.
_WIDE = 30.0
_HEADER = ["measure", "SRCC", "PCC", "p (Holm)", "pooled SRCC", "PCC", "n"]
_ERRORS = ["error of the correlation", "SRCC", "PCC"]
_METHODS = ("srcc", "pcc")
_TEX = str.maketrans(
    {sign: "\\" + sign for sign in "&%$#_{}"}
    | {"\\": r"\textbackslash{}", "~": r"\textasciitilde{}", "^": r"\textasciicircum{}"}
)


def page(rows: DataFrame, labels: Mapping[str, str], about: Sequence[str], level: float) -> Page:
    """A table, in %, of every scenario and question.

    Args:
        rows: of ``correlations.csv``.
        labels: measure -> name.
        about: sentences on how it was made.
        level: of the intervals.
    """
    tables, reasons = [], dict[str, list[str]]()
    for key, own in rows.groupby(["scenario", "question"], sort=False):
        title, lines, errors = _title(*map(str, key)), [], []
        pooled = own[own["pooling"] == "pooled"].set_index("measure")
        for row in own[own["pooling"] == "per_track"].to_dict("records"):
            whole, name = pooled.loc[row["measure"]], labels[row["measure"]]
            lines.append(
                [name, *(_interval(row, method) for method in _METHODS), _p(row["p_holm"])]
                + [*(_percent(whole[method]) for method in _METHODS), str(whole["stimuli"])]
            )
            for part in () if math.isnan(row["srcc_radius"]) else ("radius", "half_width"):
                found = (_percent(row[f"{method}_{part}"]) for method in _METHODS)
                errors.append([f"{name} {part.replace('_', '-')}", *found])
        tables.append(Table(_HEADER, lines, title=title))
        tables += [Table(_ERRORS, errors)] if errors else []
        noted = own[own["reason"] != ""]
        for measure, pooling, text in noted[["measure", "pooling", "reason"]].to_numpy():
            for reason in text.split("; "):
                where = f"{labels[measure]} ({pooling})"
                reasons.setdefault(f"{title}: {reason}", []).append(where)
    notes = [
        "Correlations in %, over the systems of a track and source, averaged, with the "
        f"{100 * level:g} % interval; pooled: over all n stimuli at once; p corrected for the "
        "number of measures (Holm)",
        *about,
        *(
            reason if len(of) == 2 * len(labels) else f"{reason} ({', '.join(of)})"
            for reason, of in reasons.items()
        ),
    ]
    return Page("", tables, [f"{note}." for note in notes])


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


def latex(rows: DataFrame, labels: Mapping[str, str]) -> str:
    """A question's table as the paper lays it out: SRCC and PCC of every scenario side by side.

    By hand, since pandas needs another package for it.

    Args:
        rows: of ``correlations.csv``, of the question, per track.
        labels: measure -> name.
    """
    scenarios = [*rows["scenario"].unique()]
    heads = [rf"\multicolumn{{2}}{{c}}{{{_tex(name)}}}" for name in scenarios]
    lines = [
        f"% {' '.join(rows['question'].iloc[0].split())}",
        rf"\begin{{tabular}}{{l{'cc' * len(scenarios)}}}",
        r"\toprule",
        " & ".join(["", *heads]) + r" \\",
        r"\textbf{Measure}" + r" & \textbf{SRCC} & \textbf{PCC}" * len(scenarios) + r" \\",
        r"\midrule",
    ]
    for measure, own in rows.groupby("measure", sort=False):
        found = own.set_index("scenario").loc[scenarios, [*_METHODS]].to_numpy().ravel()
        cells = ["--" if math.isnan(value) else rf"{_percent(value)}\%" for value in found]
        lines.append(" & ".join([_tex(labels[str(measure)]), *cells]) + r" \\")
    return "\n".join([*lines, r"\bottomrule", r"\end{tabular}", ""])


def _tex(words: str) -> str:
    return " ".join(words.split()).translate(_TEX)


def scatter(stimuli: DataFrame, rows: DataFrame, labels: Mapping[str, str]) -> Figure:
    """Ratings over scores, a panel for each scenario and measure, a colour for each track.

    Args:
        stimuli: of ``stimuli.csv``.
        rows: of ``correlations.csv``, of one question, per track: one per panel.
        labels: measure -> name.
    """
    columns = min(len(labels), 4)
    lines = -(-len(rows) // columns)
    figure = new_figure(3.1 * columns, 2.8 * lines + 0.3)
    axes = figure.subplots(lines, columns, squeeze=False, sharey=True)
    for ax, row in zip(axes.flat, rows.to_dict("records")):
        here = (stimuli[name] == row[name] for name in ("question", "scenario"))
        own = stimuli[np.logical_and(*here)].dropna(subset=[row["measure"]])
        x = own[row["measure"]].to_numpy(float)
        tracks = own["track"].factorize()[0]
        ax.scatter(x, own["rating"], c=tracks, cmap="turbo", s=12, alpha=0.8)
        values = ", ".join(f"{m.upper()} {_percent(row[m])}" for m in _METHODS)
        name = labels[row["measure"]]
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
        line[0].set_ylabel(f"rating: {rows['question'].iloc[0]}")
    return figure
