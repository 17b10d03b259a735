"""Figures of a comparison: a box per system, and one measure over another."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from torch_mapss.evaluation import plots
from torch_mapss.evaluation.measures import COLUMNS, label
from torch_mapss.evaluation.significance import Array

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

# Told apart by colour and by sign, for the colour-blind and in print (Okabe and Ito's colours).
_COLORS = ("#0072b2", "#d55e00", "#009e73", "#cc79a7", "#56b4e9", "#e69f00", "#555555")
_MARKERS = "osD^vPX*<>"
# Beyond so many mixtures a box says more than its points.
_MOST_POINTS = 200
_LONGEST_NAME = 24
_CAPTION: dict[str, Any] = {"loc": "left", "fontsize": "small", "color": "#444444"}


class Box(NamedTuple):
    """A system in one measure."""

    values: Array  # (n,) of the mixtures, NaN where undefined
    mean: float
    low: float  # of its interval, NaN without one
    high: float
    group: str  # letters


def boxes(
    systems: Sequence[str],
    drawn: Sequence[Box],
    measure: str,
    caption: str,
    *,
    figure: Figure | None = None,
) -> Figure:
    """A box per system of its mixtures, with mean, interval and letters."""
    if figure is None:
        figure = plots.new_figure(2.0 + 0.85 * max(len(drawn), 2), 3.8)
    ax = figure.add_subplot()
    for place, box in enumerate(drawn):
        _draw_box(ax, place, box)
        letters: dict[str, Any] = {"ha": "center", "va": "bottom", "fontweight": "bold"}
        ax.annotate(box.group, (place, 1.0), xycoords=("data", "axes fraction"), **letters)
    names = [_short(name) for name in systems]
    crowded = len(names) > 3 and max(map(len, names)) > 9
    leaning: dict[str, Any] = {"rotation": 30, "ha": "right", "rotation_mode": "anchor"}
    ax.set_xticks(range(len(names)), names, **(leaning if crowded else {}))
    ax.set_xlim(-0.6, max(len(names), 1) - 0.4)
    ax.set_ylabel(label(measure))
    _scale(ax.set_ylim, ax.set_yscale, measure, [box.values for box in drawn])
    _plain(ax, "y")
    ax.set_title(caption, pad=18, **_CAPTION)
    return figure


def _draw_box(ax: Axes, place: int, box: Box) -> None:
    values = box.values[np.isfinite(box.values)]
    grey = {"color": "#777777"}
    ax.boxplot(
        [values],
        positions=[place],
        widths=0.55,
        showfliers=len(values) > _MOST_POINTS,
        flierprops={"marker": ".", "markersize": 2, "markeredgecolor": "#999999"},
        medianprops={"color": "#333333"},
        boxprops=grey,
        whiskerprops=grey,
        capprops=grey,
        manage_ticks=False,
    )
    if len(values) <= _MOST_POINTS:  # a fixed spread: equal data, equal picture
        spread = 0.16 * np.sin(np.arange(len(values)) * 2.4)
        ax.plot(place + spread, values, ".", color="#999999", markersize=4, zorder=2)
    if np.isfinite(box.low):
        ends = [box.low, box.high]
        ax.plot([place + 0.36] * 2, ends, color=_COLORS[0], linewidth=2.5, zorder=4)
    ax.plot([place + 0.36], [box.mean], "D", color=_COLORS[0], markersize=5, zorder=5)


def scatter(
    points: Sequence[tuple[str, Box, Box]],
    x_measure: str,
    y_measure: str,
    percent: str,
    *,
    figure: Figure | None = None,
) -> Figure:
    """One measure over another: small, the mixtures; large, the systems' means with intervals."""
    figure = plots.new_figure(6.4, 4.4) if figure is None else figure
    ax = figure.add_subplot()
    for place, (name, x, y) in enumerate(points):
        style: dict[str, Any] = {"color": _COLORS[place % len(_COLORS)]}
        marker: dict[str, Any] = {"marker": _MARKERS[place % len(_MARKERS)], "linestyle": ""}
        many = len(x.values) > _MOST_POINTS  # then as pixels in an SVG
        faint: dict[str, Any] = {"alpha": 0.1 if many else 0.35, "rasterized": many}
        ax.plot(x.values, y.values, markersize=3, zorder=2, **faint, **style, **marker)
        if not np.isfinite([x.mean, y.mean]).all():
            continue
        ax.plot([x.low, x.high], [y.mean] * 2, zorder=4, **style)
        ax.plot([x.mean] * 2, [y.low, y.high], zorder=4, **style)
        large: dict[str, Any] = {"markersize": 9, "markeredgecolor": "white", "zorder": 5}
        ax.plot([x.mean], [y.mean], label=_short(name), **large, **style, **marker)
    ax.set_xlabel(label(x_measure))
    ax.set_ylabel(label(y_measure))
    _scale(ax.set_xlim, ax.set_xscale, x_measure, [x.values for _, x, _ in points])
    _scale(ax.set_ylim, ax.set_yscale, y_measure, [y.values for _, _, y in points])
    _plain(ax, "both")
    if points:
        columns = 1 + (len(points) - 1) // 14
        figure.legend(loc="outside right upper", frameon=False, fontsize="small", ncols=columns)
    ax.set_title(f"large: means with {percent} intervals; small: mixtures", **_CAPTION)
    return figure


def _scale(set_limits: Any, set_scale: Any, measure: str, values: Sequence[Array]) -> None:
    """Scores in [0, 1] on their whole range; log PM, which has no lower end, so that it shows."""
    low, high = COLUMNS[measure].limits
    lowest = float(np.nanmin(np.concatenate([*values, [0.0]])))
    if low is not None and high is not None:
        set_limits(low - 0.02 * (high - low), high + 0.02 * (high - low))
    elif high == 0.0 and lowest < -100.0:
        set_scale("symlog", linthresh=1.0)
        set_limits(2.0 * lowest, 0.0)


def _plain(ax: Axes, grid: Any) -> None:
    ax.grid(True, axis=grid, color="#dddddd", linewidth=0.6, zorder=0)
    for side in ("top", "right"):
        ax.spines[side].set_visible(False)


def _short(name: str) -> str:
    """A name that fits below a box; its end tells systems apart, and $ would start a formula."""
    name = name if len(name) <= _LONGEST_NAME else "…" + name[1 - _LONGEST_NAME :]
    return name.replace("$", r"\$")
