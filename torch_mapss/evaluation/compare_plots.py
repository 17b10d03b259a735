"""Figures of a comparison: a box per system, and one measure over another."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import numpy as np

from torch_mapss.evaluation import plots
from torch_mapss.evaluation.measures import COLUMNS, label

if TYPE_CHECKING:
    from matplotlib.figure import Figure
    from pandas import DataFrame

# Told apart by colour and by sign, for the colour-blind and in print (Okabe and Ito's colours).
_COLORS = ("#0072b2", "#d55e00", "#009e73", "#cc79a7", "#56b4e9", "#e69f00", "#555555")
_MARKERS = "osD^vPX*<>"
# Beyond so many mixtures a box says more than its points.
_MOST_POINTS = 200
_LONGEST_NAME = 24  # below a box
_Values = Mapping[str, "DataFrame"]  # by measure, mixtures x systems
_CAPTION: dict[str, Any] = {"loc": "left", "fontsize": "small", "color": "#444444"}


def boxes(values: _Values, ranking: DataFrame, measure: str, percent: str) -> Figure:
    """A box per system of its mixtures, with mean, interval and letters.

    Args:
        values: by measure, mixtures x systems.
        ranking: of all measures, the columns of ``ranking.csv``.
        measure: the one to draw.
        percent: of the intervals.
    """
    rows = ranking[(ranking["measure"] == measure) & (ranking["n"] > 0)]
    names = [plots.short_name(name, _LONGEST_NAME) for name in rows["system"]]
    places = np.arange(len(names))
    figure = plots.new_figure(2.0 + 0.85 * max(len(names), 2), 3.8)
    ax = figure.add_subplot()
    grey = {"color": "#777777"}
    for place, system, group in zip(places, rows["system"], rows["group"]):
        x = values[measure][system].dropna().to_numpy()
        many = len(x) > _MOST_POINTS
        ax.boxplot(
            [x],
            positions=[place],
            widths=0.55,
            showfliers=many,
            flierprops={"marker": ".", "markersize": 2, "markeredgecolor": "#999999"},
            medianprops={"color": "#333333"},
            boxprops=grey,
            whiskerprops=grey,
            capprops=grey,
            manage_ticks=False,
        )
        if not many:  # a fixed spread: equal data, equal picture
            spread = place + 0.16 * np.sin(np.arange(len(x)) * 2.4)
            ax.plot(spread, x, ".", color="#999999", markersize=4, zorder=2)
        above: dict[str, Any] = {"ha": "center", "va": "bottom", "fontweight": "bold"}
        ax.annotate(group, (place, 1.0), xycoords=("data", "axes fraction"), **above)
    bar: dict[str, Any] = {"color": _COLORS[0], "elinewidth": 2.5, "markersize": 5, "zorder": 5}
    ax.errorbar(places + 0.36, rows["mean"], _ends(rows), fmt="D", **bar)
    crowded = len(names) > 3 and max(map(len, names)) > 9
    leaning: dict[str, Any] = {"rotation": 30, "ha": "right", "rotation_mode": "anchor"}
    ax.set_xticks(places, names, **(leaning if crowded else {}))
    ax.set_xlim(-0.6, max(len(names), 1) - 0.4)
    _axis(ax, "y", measure, values[measure])
    plots.plain_axes(ax, "y")
    counts = " to ".join(dict.fromkeys(map(str, (rows["n"].min(), rows["n"].max()))))
    few = ": n too small to order" if rows["note"].str.contains("too small").any() else ""
    caption = f"{counts} mixtures{few}\ndiamond: mean with {percent} interval\n"
    caption += "systems sharing a letter do not differ significantly"
    ax.set_title(caption, pad=18, **_CAPTION)
    return figure


def _ends(rows: DataFrame) -> Any:
    """(2, systems) how far the ends of intervals lie below and above their means."""
    return rows[["low", "high"]].sub(rows["mean"], axis=0).abs().to_numpy().T


def scatter(values: _Values, ranking: DataFrame, x: str, y: str, percent: str) -> Figure:
    """One measure over another: small, the mixtures; large, the systems' means with intervals.

    Arguments as of :func:`boxes`; the measures ``x`` and ``y`` are drawn.
    """
    figure = plots.new_figure(6.4, 4.4)
    ax = figure.add_subplot()
    many = len(values[x]) > _MOST_POINTS  # then as pixels in an SVG
    small: dict[str, Any] = {"markersize": 3, "alpha": 0.1 if many else 0.35, "zorder": 2}
    large: dict[str, Any] = {"markersize": 9, "markeredgecolor": "white", "zorder": 5}
    for place, name in enumerate(values[x]):
        style: dict[str, Any] = {"color": _COLORS[place % len(_COLORS)], "linestyle": ""}
        style["marker"] = _MARKERS[place % len(_MARKERS)]
        ax.plot(values[x][name], values[y][name], rasterized=many, **small, **style)
        own = ranking[ranking["system"] == name].set_index("measure").loc[[x, y]]
        if own["mean"].notna().all():
            bars = dict(zip(("xerr", "yerr"), _ends(own).T[:, :, None]))
            label = plots.short_name(str(name), _LONGEST_NAME)
            ax.errorbar(*own["mean"].to_numpy()[:, None], **bars, label=label, **large, **style)
    _axis(ax, "x", x, values[x])
    _axis(ax, "y", y, values[y])
    plots.plain_axes(ax, "both")
    columns = 1 + (len(values[x].columns) - 1) // 14
    figure.legend(loc="outside right upper", frameon=False, fontsize="small", ncols=columns)
    ax.set_title(f"large: means with {percent} intervals; small: mixtures", **_CAPTION)
    return figure


def _axis(ax: Any, axis: str, measure: str, values: DataFrame) -> None:
    """Scores in [0, 1] on their whole range; log PM, which has no lower end, so that it shows."""
    low, high = COLUMNS[measure].limits
    lowest = float(np.nanmin(values.to_numpy(), initial=0.0))
    limits: dict[str, Any] = {f"{axis}label": label(measure)}
    if low is not None and high is not None:
        margin = 0.02 * (high - low)
        limits[f"{axis}lim"] = low - margin, high + margin
    elif high == 0.0 and lowest < -100.0:
        getattr(ax, f"set_{axis}scale")("symlog", linthresh=1.0)
        limits[f"{axis}lim"] = 2.0 * lowest, 0.0
    ax.set(**limits)
