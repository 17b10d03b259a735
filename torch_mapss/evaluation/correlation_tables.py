"""Correlations as tables (text, CSV, Markdown, LaTeX) and scatter plots."""

from __future__ import annotations

import math
import os
import re
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from torch_mapss.evaluation import files
from torch_mapss.evaluation.correlate import COLUMNS, DIFFERENCES, UNITS, Correlation, grouped
from torch_mapss.evaluation.measures import RANK, rank_meaning

if TYPE_CHECKING:
    from matplotlib.figure import Figure

_DASH = "–"
# Scores that reach so many times their median are drawn on a logarithmic axis.
_WIDE = 30.0
HEADER = ("measure", "SRCC", "PCC", "p (Holm)", "pooled SRCC", "PCC", "n")


def _percent(value: float) -> str:
    if math.isnan(value):
        return _DASH
    # Printed half-widths have no limit: of scores that hardly differ they reach any size.
    return f"{100 * value:.1f}" if abs(value) < 10.0 else f"{100 * value:.0e}"


def _with_interval(row: dict[str, Any], method: str) -> str:
    value, low, high = (row[name] for name in (method, f"{method}_low", f"{method}_high"))
    if math.isnan(low):
        return _percent(value)
    return f"{_percent(value)} [{_percent(low)}, {_percent(high)}]"


def _p(value: float) -> str:
    if math.isnan(value):
        return _DASH
    return f"{value:.3f}" if value >= 0.001 else "<0.001"


def groups_of(found: Correlation) -> list[tuple[str, str]]:
    """Scenario and question of each table, in order."""
    return list(dict.fromkeys((row["scenario"], row["question"]) for row in found.rows))


def lines_of(found: Correlation, scenario: str, question: str) -> list[list[str]]:
    """One line per measure under `HEADER`, correlations in %."""
    rows: dict[str, dict[str, dict[str, Any]]] = {}
    for row in found.rows:
        if (row["scenario"], row["question"]) == (scenario, question):
            rows.setdefault(row["measure"], {})[row["pooling"]] = row
    lines = []
    for measure, both in rows.items():
        track, pooled = both["per_track"], both["pooled"]
        cells = [found.labels[measure], *(_with_interval(track, m) for m in ("srcc", "pcc"))]
        cells += [_p(track["p_holm"]), *(_percent(pooled[m]) for m in ("srcc", "pcc"))]
        lines.append([*cells, str(pooled["stimuli"])])
    return lines


def errors_of(found: Correlation, scenario: str, question: str) -> list[list[str]]:
    """Radius and half-width of each bounded measure, per track, in %: [tab:ci_merged_like_main]."""
    lines = []
    for row in found.rows:
        here = (row["scenario"], row["question"]) == (scenario, question)
        if here and row["pooling"] == "per_track" and not math.isnan(row["srcc_radius"]):
            for part, name in (("radius", "radius"), ("half_width", "half-width")):
                cells = [_percent(row[f"{method}_{part}"]) for method in ("srcc", "pcc")]
                lines.append([f"{found.labels[row['measure']]} {name}", *cells])
    return lines


def summary(found: Correlation) -> str:
    """The tables of all scenarios and questions as text."""
    level = f"{100 * found.options.confidence:g} %"
    text: list[str] = []
    for scenario, question in groups_of(found):
        text += [_title(scenario, question), ""]
        text += [files.text_table(HEADER, lines_of(found, scenario, question)), ""]
        errors = errors_of(found, scenario, question)
        if errors:
            text += [files.text_table(("error of the correlation", "SRCC", "PCC"), errors), ""]
    text += [
        "Correlations in %, over the systems of a track and source, averaged; in brackets the "
        f"{level} interval over tracks;",
        "p of permutations within tracks, corrected for the number of measures. pooled: over all "
        "n stimuli at once.",
    ]
    text += [line for sentence in _ranks(found) for line in files.wrapped(sentence)]
    text += [f"Note: {note}." for note in (*found.notes, *_reasons(found))]
    return "\n".join(text)


def _ranks(found: Correlation) -> list[str]:
    """What PM's rank is, where it is correlated."""
    return [rank_meaning()] if RANK in found.labels else []


def _title(scenario: str, question: str) -> str:
    return question if scenario == "all" else f"{question}, {scenario}"


def _reasons(found: Correlation) -> list[str]:
    """What stands beside several rows, told once for each question."""
    told: dict[str, list[str]] = {}
    for row in found.rows:
        if row["reason"]:
            where = _title(row["scenario"], row["question"])
            name = f"{found.labels[row['measure']]} ({row['pooling']})"
            told.setdefault(f"{where}: {row['reason']}", []).append(name)
    every = len(found.labels)
    return [
        reason if len(names) >= every else f"{reason} ({', '.join(names)})"
        for reason, names in told.items()
    ]


def markdown(found: Correlation) -> str:
    """All tables as a Markdown page."""
    text = ["# Correlation with listeners", ""]
    for scenario, question in groups_of(found):
        text += [f"## {_title(scenario, question)}", ""]
        text += [_markdown(HEADER, lines_of(found, scenario, question)), ""]
        errors = errors_of(found, scenario, question)
        if errors:
            text += [_markdown(("error of the correlation", "SRCC", "PCC"), errors), ""]
    text += [
        "In %; over the systems of a track and source, averaged, with the "
        f"{100 * found.options.confidence:g} % interval over tracks; p of permutations within "
        "tracks, corrected (Holm). Pooled: over all n stimuli at once.",
        "",
    ]
    text += [line for sentence in _ranks(found) for line in (sentence, "")]
    notes = (*found.notes, *_reasons(found))
    return "\n".join([*text, *(f"- {note}." for note in notes)])


def _markdown(header: Sequence[str], lines: Sequence[Sequence[str]]) -> str:
    table = [list(header), ["---"] * len(header), *map(list, lines)]
    return "\n".join(
        "| " + " | ".join(cell.replace("|", "\\|") for cell in line) + " |" for line in table
    )


def latex(found: Correlation, question: str) -> str:
    """A question's table as the paper lays it out: SRCC and PCC of every scenario side by side."""
    scenarios = [scenario for scenario, asked in groups_of(found) if asked == question]
    rows: dict[str, list[str]] = {}
    for scenario in scenarios:
        for row in found.rows:
            if (row["scenario"], row["question"]) != (scenario, question):
                continue
            if row["pooling"] == "per_track":
                cells = [
                    f"{_percent(row[m])}\\%".replace(f"{_DASH}\\%", "--") for m in ("srcc", "pcc")
                ]
                rows.setdefault(row["measure"], []).extend(cells)
    heads = [rf"\multicolumn{{2}}{{c}}{{{_tex(name)}}}" for name in scenarios]
    lines = [
        rf"% {_one_line(question)}",
        rf"\begin{{tabular}}{{l{'cc' * len(scenarios)}}}",
        r"\toprule",
        " & " + " & ".join(heads) + r" \\",
        r"\textbf{Measure}" + r" & \textbf{SRCC} & \textbf{PCC}" * len(scenarios) + r" \\",
        r"\midrule",
        *(" & ".join([_tex(found.labels[m]), *cells]) + r" \\" for m, cells in rows.items()),
        r"\bottomrule",
        r"\end{tabular}",
    ]
    return "\n".join(lines) + "\n"


_SPECIAL = {"\\": r"\textbackslash{}", "~": r"\textasciitilde{}", "^": r"\textasciicircum{}"}
_SPECIAL |= {sign: "\\" + sign for sign in "&%$#_{}"}


def _tex(text: str) -> str:
    return "".join(_SPECIAL.get(sign, sign) for sign in _one_line(text))


def _one_line(text: str) -> str:
    return " ".join(text.split())


def scatter(found: Correlation, question: str | None = None) -> Figure:
    """Ratings over scores, a panel for each measure, a colour for each track.

    Raises:
        ImportError: matplotlib is missing.
        ValueError: no such question.
    """
    from torch_mapss.evaluation.plots import new_figure

    asked = list(dict.fromkeys(stimulus.question for stimulus in found.stimuli))
    question = asked[0] if question is None else question
    if question not in asked:
        raise ValueError(f"question must be of {', '.join(asked)}, got {question!r}.")
    groups = [group for group in grouped(found.stimuli) if group[1] == question]
    panels = [(scenario, s, name) for scenario, _, s in groups for name in found.labels]
    columns = min(len(found.labels), 4)
    lines = -(-len(panels) // columns)
    figure = new_figure(3.1 * columns, 2.8 * lines + 0.3)
    axes = figure.subplots(lines, columns, squeeze=False, sharey=True)
    for axis, panel in zip(axes.flat, panels):
        _draw(axis, found, question, *panel)
    for axis in axes.flat[len(panels) :]:
        axis.remove()
    for line in axes:
        line[0].set_ylabel(f"rating: {question}")
    return figure


def _draw(
    axis: Any, found: Correlation, question: str, scenario: str, stimuli: Any, measure: str
) -> None:
    tracks = {name: k for k, name in enumerate(dict.fromkeys(s.track for s in stimuli))}
    points = [
        (s.scores[measure], s.rating, tracks[s.track] / max(len(tracks), 1))
        for s in stimuli
        if not math.isnan(s.scores.get(measure, math.nan))
    ]
    if points:
        x, y, colours = zip(*points)
        axis.scatter(x, y, c=colours, cmap="turbo", vmin=0, vmax=1, s=12, alpha=0.8)
    keys = scenario, question, measure
    (row,) = (
        row
        for row in found.rows
        if (row["scenario"], row["question"], row["measure"]) == keys
        and row["pooling"] == "per_track"
    )
    name = found.labels[measure] if scenario == "all" else f"{found.labels[measure]}, {scenario}"
    axis.set_title(f"{name}\nSRCC {_percent(row['srcc'])}, PCC {_percent(row['pcc'])}", fontsize=9)
    if points and max(map(abs, x)) > _WIDE * max(np.median(np.abs(x)), 1e-12):
        axis.set_xscale("symlog", linthresh=max(float(np.median(np.abs(x))), 1e-12))
    axis.set_xlabel(found.labels[measure], fontsize=8)
    axis.tick_params(labelsize=7)
    axis.grid(alpha=0.3)


def save(found: Correlation, folder: str | os.PathLike[str]) -> str:
    """Write all tables and, where matplotlib is there, the plots; see `Correlation.save`."""
    folder = files.make_folder(folder)
    stimuli = [{**s._asdict(), **s.scores} for s in found.stimuli]
    names = ("scenario", "question", "track", "source", "system", "rating", *found.labels)
    for name, columns, rows in (
        ("correlations", COLUMNS, found.rows),
        ("differences", DIFFERENCES, found.differences),
        ("per_track", UNITS, found.units),
        ("stimuli", names, stimuli),
    ):
        files.write_csv(os.path.join(folder, f"{name}.csv"), columns, rows)
    page = markdown(found) + "\n"
    files.write_bytes(os.path.join(folder, "correlations.md"), page.encode())
    for question in dict.fromkeys(question for _, question in groups_of(found)):
        name = "correlations_" + re.sub(r"\W+", "_", question)
        files.write_bytes(os.path.join(folder, f"{name}.tex"), latex(found, question).encode())
        _save_scatter(found, question, os.path.join(folder, f"{name}.png"))
    return folder


def _save_scatter(found: Correlation, question: str, path: str) -> None:
    from torch_mapss.evaluation.plots import save_figure

    save_figure(scatter(found, question), path)
