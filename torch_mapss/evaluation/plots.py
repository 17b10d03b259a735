"""Figures of frame scores and comparisons, drawn with matplotlib without pyplot or a display.

No global state (backend, style, open figures) changes; figures appear in notebooks and can be saved
in any format of matplotlib.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from functools import partial
from io import BytesIO
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from torch import Tensor

from torch_mapss.evaluation import io
from torch_mapss.score_table import SCORES, score_label, score_text

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure
    from pandas import DataFrame

#: Scores in [0, 1] that are drawn on one axis: of leakage and of distortion.
AXES = (("clearance", "fidelity"), ("ps", "pm"))
# Leakage and distortion differ in colour and lightness, for colour-blind readers and print. Dashes
# would look like the gaps of frames that are not scored.
_STYLES: Any = ({"color": "#0b4f79", "linewidth": 1.7}, {"color": "#e8871e", "linewidth": 1.2})
_MEANINGS = ("leakage", "distortion")
_DEPTH_DB, _WINDOW_S = 70.0, 0.032  # of the spectrograms
INSTALL = "plotting needs matplotlib: pip install torch_mapss[plot]"
# Systems differ in colour and marker, for colour-blind readers and print (Okabe and Ito's colours).
SERIES_COLORS = ("#0072b2", "#d55e00", "#009e73", "#cc79a7", "#56b4e9", "#e69f00", "#555555")
SERIES_MARKERS = "osD^vPX*<>"
# Above this number of mixtures, a box is drawn without their points.
_MOST_POINTS = 200
# The axis of a score in [0, 1] is at least this long, so that rounding does not fill it.
_LEAST_SPAN = 0.05
# Values of log PM whose distances from 1 differ by this factor are drawn logarithmically.
_DECADES = 30.0
_LONGEST_NAME = 24  # characters below a box
_Values = Mapping[str, "DataFrame"]  # by measure, mixtures x systems
_CAPTION: dict[str, Any] = {"loc": "left", "fontsize": "small", "color": "#444444"}


def new_figure(width: float = 6.4, height: float = 4.8) -> Figure:
    """Make an empty figure, sizes in inches, that notebooks show as a picture; without pyplot.

    Loading matplotlib reads ``MPLBACKEND`` and refuses a missing backend, such as a notebook's in
    another environment, though figures in files need none. So it is loaded without the variable; an
    existing backend is set afterwards, for later use of pyplot.

    Raises:
        ImportError: matplotlib is missing.
    """
    loaded = "matplotlib" in sys.modules
    backend = None if loaded else os.environ.pop("MPLBACKEND", None)
    try:
        from matplotlib.figure import Figure
    except Exception as error:  # not ImportError alone: a broken package may raise anything
        reason = " ".join(str(error).split()) or type(error).__name__
        raise ImportError(f"{INSTALL}, or repair the installed one ({reason})") from error
    finally:
        if backend is not None:
            os.environ["MPLBACKEND"] = backend
    if backend:
        with suppress(ValueError):
            sys.modules["matplotlib"].rcParams["backend"] = backend
    figure: Any = Figure(figsize=(width, height), layout="constrained")
    figure._repr_png_ = partial(_png, figure)  # IPython shows text until pyplot is imported
    return figure  # type: ignore[no-any-return]


def _png(figure: Figure) -> bytes:
    buffer = BytesIO()
    figure.savefig(buffer, format="png", dpi=100)
    return buffer.getvalue()


def check_available(path: str | os.PathLike[str] | None = None) -> None:
    """Raise unless figures can be made, and written to ``path``.

    Raises:
        ImportError: matplotlib is missing; says how to install it.
        ValueError: the suffix names no format, or the folder cannot be written to.
    """
    figure = new_figure()
    if path is not None:
        _target(figure, path)


def save_figure(figure: Figure, path: str | os.PathLike[str], dpi: int = 150) -> str:
    """Write a figure in one step, in the format of the suffix of ``path``, or as PNG.

    Returns:
        The path of the file, with its suffix; ``scores.png`` if ``path`` is a folder.

    Raises:
        ValueError: the folder is missing and cannot be made, or the format is unknown.
    """
    path, suffix = _target(figure, path)
    top = getattr(figure, "figure", None) or figure  # a subfigure is saved with its figure
    io.write_with(path, lambda name: top.savefig(name, dpi=dpi, format=suffix))
    return path


def _target(figure: Figure, path: str | os.PathLike[str]) -> tuple[str, str]:
    """Path and format of a figure's file; makes the folder."""
    path = os.fspath(path)
    path = os.path.join(path, "scores.png") if os.path.isdir(path) else path
    path = path if os.path.splitext(path)[1] else f"{path}.png"
    supported = figure.canvas.get_supported_filetypes()
    suffix = os.path.splitext(path)[1][1:].lower()
    if suffix not in supported:
        raise ValueError(
            f"figures are written as {', '.join(sorted(supported))}, not {suffix!r} (from "
            f"{io.shown(path)!r}). Change the suffix."
        )
    io.make_folder(os.path.dirname(path) or ".")
    return path, suffix


def short_name(name: str, longest: int) -> str:
    """Shorten a name, keeping its end, which distinguishes files; escape dollar signs."""
    return (name if len(name) <= longest else "…" + name[1 - longest :]).replace("$", r"\$")


def plain_axes(ax: Axes, grid: Any) -> None:
    """Draw faint grid lines behind everything else, and no frame at the top and right."""
    ax.set_axisbelow(True)
    ax.grid(True, axis=grid, color="#e6e6e6", linewidth=0.6)
    ax.spines[["top", "right"]].set_visible(False)


def plot_scores(
    ax: Axes,
    times: Tensor,
    scores: Mapping[str, Tensor],
    half_widths: Mapping[str, Tensor] | None = None,
    means: Mapping[str, float] | None = None,
) -> None:
    """Plot the scores of one of :data:`AXES` over time; NaN leaves a gap.

    Args:
        ax: axes to draw into.
        times: (F,) times in seconds.
        scores: (F,) by name.
        half_widths: (F,) by name, of bands around the scores.
        means: by name, written above the axes in the colour of the line.
    """
    x = times.detach().cpu().numpy()
    for name, values in scores.items():
        style = _STYLES[name in ("fidelity", "pm")]
        y = values.detach().cpu().numpy()
        # Dots, as wide as the line, for frames between gaps. Not clipped: a line along 0 or 1
        # would lose half its width to the frame.
        ax.plot(x, y, ".-", markersize=2, label=score_label(name), zorder=3, clip_on=False, **style)
        if half_widths and name in half_widths:
            half = half_widths[name].detach().cpu().numpy()
            low, high = (y - half).clip(0.0, 1.0), (y + half).clip(0.0, 1.0)
            ax.fill_between(x, low, high, color=style["color"], alpha=0.18, linewidth=0, zorder=2)
    names = "\n".join(map(score_label, scores))
    ax.set(ylim=(0.0, 1.0), yticks=(0.0, 0.5, 1.0), ylabel=names, xlabel="time (s)")
    plain_axes(ax, "y")
    _write_means(ax, means or {})


def _write_means(ax: Axes, means: Mapping[str, float]) -> None:
    """Write names and means of scores above the axes, right-aligned, the last one outermost."""
    from matplotlib.artist import Artist
    from matplotlib.offsetbox import AnchoredOffsetbox, HPacker, TextArea

    texts: list[Artist] = []
    for name, mean in means.items():
        color = _STYLES[name in ("fidelity", "pm")]["color"]
        properties = {"color": color, "fontsize": "small", "fontweight": "bold"}
        texts.append(
            TextArea(f"{score_label(name)} {score_text(name, mean)}", textprops=properties)
        )
    if texts:
        line = HPacker(children=texts, sep=8)
        above: dict[str, Any] = {"bbox_to_anchor": (1.0, 1.0), "bbox_transform": ax.transAxes}
        box = AnchoredOffsetbox("lower right", child=line, frameon=False, pad=0.1, **above)
        ax.add_artist(box)


def spectrogram(wave: Tensor, size: int) -> Tensor:
    """Power of (T,) in dB below the loudest bin, at most 70 dB deep.

    Returns:
        (size // 2 + 1, T // (size // 4) + 1), of Hann windows of ``size`` samples that are centred
        on multiples of size // 4, with zeros beyond the ends.
    """
    x = wave.detach().float().cpu()
    window = torch.hann_window(size, dtype=torch.float32, device="cpu")
    options: dict[str, Any] = {"pad_mode": "constant", "return_complex": True}
    power = torch.stft(x, size, size // 4, window=window, **options).abs().square()
    relative = power / power.max().clamp(min=1e-20)
    return 10.0 * relative.clamp(min=10.0 ** (-_DEPTH_DB / 10.0)).log10()


def draw_spectrogram(ax: Axes, wave: Tensor, sample_rate: int, name: str = "") -> None:
    """Draw the spectrogram of a (T,) waveform on ``ax``, time in s and frequency in kHz.

    ``name`` stands in its upper left corner.
    """
    size = 4 * max(1, round(_WINDOW_S * sample_rate / 4))
    picture = spectrogram(wave, size)
    hop, bin_khz = size / 4 / sample_rate, sample_rate / size / 1000.0
    rows, columns = picture.shape
    # The edges of the outermost pixels lie half a step beyond their centres.
    extent = (-hop / 2, (columns - 0.5) * hop, -bin_khz / 2, (rows - 0.5) * bin_khz)
    style: dict[str, Any] = {"cmap": "Greys", "vmin": -_DEPTH_DB, "vmax": 0.0, "aspect": "auto"}
    style |= {"origin": "lower", "interpolation": "nearest", "rasterized": True}
    ax.imshow(picture.numpy(), extent=extent, **style)
    ax.set(ylim=(0.0, sample_rate / 2000.0), ylabel="kHz", xlabel="time (s)")
    if name:
        label: dict[str, Any] = {"ha": "left", "va": "top", "fontsize": "small"}
        label["bbox"] = {"facecolor": "white", "alpha": 0.85, "edgecolor": "none", "pad": 1.5}
        ax.text(0.008, 0.94, name, transform=ax.transAxes, **label)


def add_legend(figure: Figure, pairs: Iterable[Sequence[str]] = AXES) -> None:
    """Add a legend for the two lines of :func:`plot_scores`, for some of :data:`AXES`."""
    from matplotlib.lines import Line2D

    handles, labels = [], []
    for style, meaning, names in zip(_STYLES, _MEANINGS, zip(*pairs)):
        handles.append(Line2D([], [], **style))
        labels.append(f"{meaning}, 1 is best: {', '.join(map(score_label, names))}")
    labels[-1] += "; gaps: not defined"
    figure.legend(handles, labels, loc="outside lower right", ncols=2, frameon=False)


def system_boxes(values: _Values, ranking: DataFrame, measure: str, percent: str) -> Figure:
    """Box plot of mixtures per system, with mean, interval (of ``percent``) and letters."""
    rows = ranking[(ranking["measure"] == measure) & (ranking["n"] > 0)]
    names = [short_name(name, _LONGEST_NAME) for name in rows["system"]]
    positions = np.arange(len(names))
    figure = new_figure(2.0 + 0.85 * max(len(names), 2), 3.8)
    ax = figure.add_subplot()
    lines: Any = {key: {"color": "#777777"} for key in ("boxprops", "whiskerprops", "capprops")}
    lines["medianprops"] = {"color": "#333333"}
    for position, system, group in zip(positions, rows["system"], rows["group"]):
        x = values[measure][system].dropna().to_numpy()
        is_crowded = len(x) > _MOST_POINTS
        placement: dict[str, Any] = {"positions": [position], "widths": 0.55, "manage_ticks": False}
        ax.boxplot([x], sym="." if is_crowded else "", **placement, **lines)
        if not is_crowded:  # a fixed spread, so equal data give equal pictures
            spread = position + 0.16 * np.sin(np.arange(len(x)) * 2.4)
            ax.plot(spread, x, ".", color="#999999", markersize=4, zorder=2)
        above: dict[str, Any] = {"ha": "center", "va": "bottom", "fontweight": "bold"}
        ax.annotate(group, (position, 1.0), xycoords=("data", "axes fraction"), **above)
    bar: dict[str, Any] = {
        "color": SERIES_COLORS[0],
        "elinewidth": 2.5,
        "markersize": 5,
        "zorder": 5,
    }
    ax.errorbar(positions + 0.36, rows["mean"], _ends(rows), fmt="D", **bar)
    leaning: dict[str, Any] = {"rotation": 30, "ha": "right", "rotation_mode": "anchor"}
    ax.set_xticks(positions, names, **(leaning if len(names) > 3 else {}))
    ax.set_xlim(-0.6, max(len(names), 1) - 0.4)
    _axis(ax, "y", measure, values[measure])
    plain_axes(ax, "y")
    counts = " to ".join(dict.fromkeys(map(str, (rows["n"].min(), rows["n"].max()))))
    few = ": n too small to order" if rows["note"].str.contains("too small").any() else ""
    mixtures = "mixture" if counts == "1" else "mixtures"
    caption = f"{counts} {mixtures}{few}\ndiamond: mean with {percent} interval\n"
    caption += "systems sharing a letter do not differ significantly"
    ax.set_title(caption, pad=18, **_CAPTION)
    return figure


def _ends(rows: DataFrame) -> Any:
    """(2, systems) distances from the means down and up to the ends of their intervals."""
    return rows[["low", "high"]].sub(rows["mean"], axis=0).abs().to_numpy().T


def system_scatter(values: _Values, ranking: DataFrame, x: str, y: str, percent: str) -> Figure:
    """Plot score ``y`` over ``x``: small marks are mixtures, large ones systems' means."""
    figure = new_figure(6.4, 4.4)
    ax = figure.add_subplot()
    is_crowded = len(values[x]) > _MOST_POINTS  # then as pixels in an SVG
    small: dict[str, Any] = {"markersize": 3, "alpha": 0.1 if is_crowded else 0.35, "zorder": 2}
    large: dict[str, Any] = {"markersize": 9, "markeredgecolor": "white", "zorder": 5}
    for position, name in enumerate(values[x]):
        style: dict[str, Any] = {
            "color": SERIES_COLORS[position % len(SERIES_COLORS)],
            "linestyle": "",
        }
        style["marker"] = SERIES_MARKERS[position % len(SERIES_MARKERS)]
        ax.plot(values[x][name], values[y][name], rasterized=is_crowded, **small, **style)
        row_by_measure = ranking[ranking["system"] == name].set_index("measure").loc[[x, y]]
        if row_by_measure["mean"].notna().all():
            (mean_x, mean_y), (width, height) = (
                row_by_measure["mean"],
                _ends(row_by_measure).T[:, :, None],
            )
            large["label"] = short_name(str(name), _LONGEST_NAME)
            ax.errorbar(mean_x, mean_y, height, width, **large, **style)
    _axis(ax, "x", x, values[x])
    _axis(ax, "y", y, values[y])
    ax.spines[["top", "right"]].set_visible(False)
    columns = 1 + (len(values[x].columns) - 1) // 14
    figure.legend(loc="outside right upper", frameon=False, fontsize="small", ncols=columns)
    caption = f"large: mean of a system with {percent} interval; small: a mixture"
    ax.set_title(caption, **_CAPTION)
    return figure


def _axis(ax: Any, axis: str, measure: str, values: DataFrame) -> None:
    """Set up the axis of a score to fit its values; logarithmic for decades of log PM."""
    lowest, highest = SCORES[measure].limits
    numbers = values.to_numpy()
    numbers = numbers[np.isfinite(numbers)]
    limits: dict[str, Any] = {f"{axis}label": score_label(measure)}
    if not len(numbers):
        ax.set(**limits)
        return
    low, high = float(numbers.min()), float(numbers.max())
    if highest == 0.0 and lowest is None and 1.0 - low > _DECADES * (1.0 - high):
        getattr(ax, f"set_{axis}scale")("symlog", linthresh=1.0)
        limits[f"{axis}lim"] = 2.0 * low, 0.0 if high > -1.0 else 0.5 * high
    else:
        margin = max(0.08 * (high - low), _LEAST_SPAN / 2.0)
        # A little beyond the limits of a score, so that a point at its ceiling is whole.
        beyond = 0.3 * margin
        low = low - margin if lowest is None else max(low - margin, lowest - beyond)
        high = high + margin if highest is None else min(high + margin, highest + beyond)
        limits[f"{axis}lim"] = low, high
    ax.set(**limits)
