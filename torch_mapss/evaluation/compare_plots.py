"""Figures of a comparison: a box per system, and PS against log PM."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from torch_mapss.evaluation import plots
from torch_mapss.evaluation.comparison_rows import TOO_SMALL

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

    from torch_mapss.evaluation.comparison import Comparison

# Told apart by colour and by sign, for the colour-blind and in print (Okabe and Ito's colours).
_COLORS = ("#0072b2", "#d55e00", "#009e73", "#cc79a7", "#56b4e9", "#e69f00", "#555555")
_MARKERS = "osD^vPX*<>"
_AXES = {
    "ps": "PS (1: no leakage)",
    "pm": "PM (1: undistorted)",
    "log_pm": "log PM (0: undistorted)",
    "pm_rank": "PM rank (1: closer than distortions)",
    "foreign_distance": "B, distance to the closest other source",
    "log_foreign_distance": "log B",
}
# Beyond so many mixtures a box says more than its points.
_MOST_POINTS = 200
_LONGEST_NAME = 24


def boxes(comparison: Comparison, measure: str, *, figure: Figure | None = None) -> Figure:
    """A box per system of its mixtures, best mean first, with mean, interval and group."""
    rows = [row for row in comparison.ranking if row["measure"] == measure and row["n"]]
    width = 2.0 + 0.85 * max(len(rows), 2)
    figure = plots.new_figure(width, 3.8) if figure is None else figure
    ax = figure.add_subplot()
    systems = comparison.scores.systems
    for place, row in enumerate(rows):
        values = comparison.scores.values[measure][:, systems.index(row["system"])]
        _draw_box(ax, place, values[np.isfinite(values)], row)
        letters: dict[str, Any] = {"ha": "center", "va": "bottom", "fontweight": "bold"}
        ax.annotate(row["group"], (place, 1.0), xycoords=("data", "axes fraction"), **letters)
    names = [_short(row["system"]) for row in rows]
    crowded = len(rows) > 3 and max(map(len, names)) > 9
    leaning: dict[str, Any] = {"rotation": 30, "ha": "right", "rotation_mode": "anchor"}
    ax.set_xticks(range(len(rows)), names, **(leaning if crowded else {}))
    ax.set_xlim(-0.6, max(len(rows), 1) - 0.4)
    ax.set_ylabel(_AXES[measure])
    _scale(ax, measure, comparison.scores.values[measure])
    _plain(ax)
    caption: dict[str, Any] = {"loc": "left", "fontsize": "small", "color": "#444444", "pad": 18}
    ax.set_title(_caption(comparison, rows), **caption)
    return figure


def _draw_box(ax: Axes, place: int, values: Any, row: Any) -> None:
    color = _COLORS[0]
    ax.boxplot(
        [values],
        positions=[place],
        widths=0.55,
        showfliers=len(values) > _MOST_POINTS,
        flierprops={"marker": ".", "markersize": 2, "markeredgecolor": "#999999"},
        medianprops={"color": "#333333"},
        boxprops={"color": "#777777"},
        whiskerprops={"color": "#777777"},
        capprops={"color": "#777777"},
        manage_ticks=False,
    )
    if len(values) <= _MOST_POINTS:  # a fixed spread: equal data, equal picture
        spread = 0.16 * np.sin(np.arange(len(values)) * 2.4)
        ax.plot(place + spread, values, ".", color="#999999", markersize=4, zorder=2)
    low, high = row["low"], row["high"]
    if low is not None:
        ax.plot([place + 0.36] * 2, [low, high], color=color, linewidth=2.5, zorder=4)
    ax.plot([place + 0.36], [row["mean"]], "D", color=color, markersize=5, zorder=5)


def scatter(comparison: Comparison, *, figure: Figure | None = None) -> Figure:
    """PS against log PM: small, the mixtures; large, the systems' means with their intervals."""
    # One drawing, from top to bottom.
    figure = plots.new_figure(6.4, 4.4) if figure is None else figure
    ax = figure.add_subplot()
    scores = comparison.scores
    rows = {(row["measure"], row["system"]): row for row in comparison.ranking}
    for place, system in enumerate(scores.systems):
        style: dict[str, Any] = {
            "color": _COLORS[place % len(_COLORS)],
            "marker": _MARKERS[place % len(_MARKERS)],
        }
        x, y = scores.values["ps"][:, place], scores.values["log_pm"][:, place]
        many = x.size > _MOST_POINTS  # then as pixels in an SVG
        faint: dict[str, Any] = {"alpha": 0.1 if many else 0.35, "rasterized": many}
        ax.plot(x, y, linestyle="", markersize=3, zorder=2, **faint, **style)
        ps, log_pm = rows["ps", system], rows["log_pm", system]
        if not (ps["n"] and log_pm["n"]):
            continue
        if ps["low"] is not None and log_pm["low"] is not None:
            ax.plot([ps["low"], ps["high"]], [log_pm["mean"]] * 2, color=style["color"], zorder=4)
            ax.plot([ps["mean"]] * 2, [log_pm["low"], log_pm["high"]], color=style["color"])
        ax.plot(
            [ps["mean"]],
            [log_pm["mean"]],
            linestyle="",
            markersize=9,
            markeredgecolor="white",
            zorder=5,
            label=_short(system),
            **style,
        )
    ax.set_xlabel(_AXES["ps"])
    ax.set_ylabel(_AXES["log_pm"])
    _scale(ax, "log_pm", scores.values["log_pm"])
    _plain(ax)
    ax.grid(True, axis="x", color="#dddddd", linewidth=0.6, zorder=0)
    columns = 1 + (len(scores.systems) - 1) // 14
    if rows:
        figure.legend(loc="outside right upper", frameon=False, fontsize="small", ncols=columns)
    caption = f"large: means with {100 * comparison.confidence:g} % intervals; small: mixtures"
    ax.set_title(caption, loc="left", fontsize="small", color="#444444")
    return figure


def _scale(ax: Axes, measure: str, values: Any) -> None:
    """Scores in [0, 1] on their whole range; log PM, which has no lower end, so that it shows."""
    if measure in ("ps", "pm", "pm_rank"):
        ax.set_ylim(-0.02, 1.02)
    elif measure == "log_pm" and np.isfinite(values).any() and np.nanmin(values) < -100.0:
        ax.set_yscale("symlog", linthresh=1.0)
        ax.set_ylim(2.0 * float(np.nanmin(values)), 0.0)


def _plain(ax: Axes) -> None:
    ax.grid(True, axis="y", color="#dddddd", linewidth=0.6, zorder=0)
    for side in ("top", "right"):
        ax.spines[side].set_visible(False)


def _caption(comparison: Comparison, rows: Any) -> str:
    counts = sorted({row["n"] for row in rows}) or [0]
    mixtures = " to ".join(str(count) for count in dict.fromkeys((counts[0], counts[-1])))
    few = any(TOO_SMALL in row["note"] for row in rows)
    return (
        f"{mixtures} mixtures{f': {TOO_SMALL}' if few else ''}\n"
        f"diamond: mean with {100 * comparison.confidence:g} % interval\n"
        "letters: systems that share one are not told apart"
    )


def _short(name: str) -> str:
    """A name that fits below a box; its end tells systems apart, and $ would start a formula."""
    name = name if len(name) <= _LONGEST_NAME else "…" + name[1 - _LONGEST_NAME :]
    return name.replace("$", r"\$")
