"""Figures of frame scores, from arrays and names. Needs matplotlib, but no pyplot and no display.

Nothing global (backend, style, open figures) changes; figures show in notebooks and save to any
format of matplotlib's.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Mapping
from contextlib import suppress
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from torch import Tensor

from torch_mapss.evaluation import io

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

#: Scores in [0, 1] that are drawn on one axis, of leakage and of distortion, as they are written.
AXES: tuple[dict[str, str], ...] = (
    {"clearance": "clearance", "fidelity": "fidelity"},
    {"ps": "PS", "pm": "PM"},
)
# Leakage and distortion, told apart by colour and lightness, for the colour-blind and in print. Not
# by dashes, which would look like the gaps of frames that are not scored.
_STYLES: tuple[dict[str, Any], ...] = (
    {"color": "#0b4f79", "linewidth": 1.7},
    {"color": "#e8871e", "linewidth": 1.2},
)
_MEANINGS = ("1 = no leakage", "1 = undistorted")
_DEPTH_DB, _WINDOW_S = 70.0, 0.032  # of the spectrograms
INSTALL = "plotting needs matplotlib: pip install torch_mapss[plot]"
# Characters of a source's name that fit beside its mean scores: in one column, in each of several.
LONGEST_NAMES = 40, 16


# ------------------------------------------------------------------------------------------------
# Figures
# ------------------------------------------------------------------------------------------------


def _import_figure() -> Any:
    try:
        _load_without_backend()
        from torch_mapss.evaluation.figure import Figure
    except ModuleNotFoundError as error:
        raise ImportError(INSTALL) from error
    except Exception as error:  # a broken installation raises what it likes
        reason = " ".join(str(error).split()) or type(error).__name__
        raise ImportError(
            f"plotting needs matplotlib, which is there but does not load: {reason}. Mend it with "
            "pip install --force-reinstall matplotlib"
        ) from error
    return Figure


def _load_without_backend() -> None:
    """Load matplotlib whatever ``MPLBACKEND`` says, for figures that are drawn to files need none.

    Loading it reads the variable and refuses a backend that is not there, such as a notebook's in
    another environment. One that is there is set afterwards, as matplotlib itself does, since
    whoever draws with pyplot later wants it.
    """
    name = os.environ.get("MPLBACKEND")
    if not name or "matplotlib" in sys.modules:
        return
    del os.environ["MPLBACKEND"]
    try:
        import matplotlib
    finally:
        os.environ["MPLBACKEND"] = name
    with suppress(ValueError):
        matplotlib.rcParams["backend"] = name


def check_available(path: str | os.PathLike[str] | None = None) -> None:
    """Raise unless figures can be made, and written to ``path``.

    Raises:
        ImportError: matplotlib is missing; says how to install it.
        ValueError: the suffix names no format, or the folder cannot be written to.
    """
    figure = _import_figure()()
    if path is not None:
        _target(figure, path)


def new_figure(width: float, height: float) -> Figure:
    """An empty figure of so many inches, without pyplot.

    Raises:
        ImportError: matplotlib is missing.
    """
    return _import_figure()(figsize=(width, height), layout="constrained")


def save_figure(figure: Figure, path: str | os.PathLike[str], dpi: int = 150) -> str:
    """Write a figure in one step; the suffix of ``path`` says the format, PNG without one.

    Returns:
        The path it was written to: with its suffix, and in a folder ``scores.png``.

    Raises:
        ValueError: the folder is missing and cannot be made, or the format is unknown.
    """
    path, suffix = _target(figure, path)
    top = getattr(figure, "figure", None) or figure  # a subfigure is saved with its figure
    io.write_with(path, lambda name: top.savefig(name, dpi=dpi, format=suffix))
    return path


def _target(figure: Figure, path: str | os.PathLike[str]) -> tuple[str, str]:
    """Where a figure goes, and its format; makes the folder."""
    path = os.fspath(path)
    path = os.path.join(path, "scores.png") if os.path.isdir(path) else path
    path = path if os.path.splitext(path)[1] else f"{path}.png"
    known = figure.canvas.get_supported_filetypes()
    suffix = os.path.splitext(path)[1][1:].lower()
    if suffix not in known:
        raise ValueError(
            f"figures are written as {', '.join(sorted(known))}, not {suffix!r} (from "
            f"{io.shown(path)!r}). Change the suffix."
        )
    io.make_folder(os.path.dirname(path) or ".")
    return path, suffix


def short_name(name: str, longest: int) -> str:
    """A name that fits: its end tells files apart, and a dollar sign would start a formula."""
    return (name if len(name) <= longest else "…" + name[1 - longest :]).replace("$", r"\$")


def plain_axes(ax: Axes, grid: Any) -> None:
    """Faint grid lines along the axes ``grid``, and no frame above and to the right."""
    ax.grid(True, axis=grid, color="#dddddd", linewidth=0.6, zorder=0)
    ax.spines[["top", "right"]].set_visible(False)


# ------------------------------------------------------------------------------------------------
# Over time
# ------------------------------------------------------------------------------------------------


def plot_scores(
    ax: Axes,
    times: Tensor,
    scores: Mapping[str, Tensor],
    half_widths: Mapping[str, Tensor] | None = None,
) -> None:
    """Scores in [0, 1] of one source over time.

    Args:
        ax: to draw on: time in seconds, scores from 0 to 1.
        times: (F,) seconds.
        scores: (F,) by name, of :data:`AXES`; NaN leaves a gap. The names go to the axis.
        half_widths: (F,) by the same names, of bands around them.
    """
    x = times.detach().cpu().numpy()
    for name, values in scores.items():
        style = _STYLES[name in ("fidelity", "PM")]
        y = values.detach().cpu().numpy()
        # Not clipped: a line along 0 or 1 would lose half its width to the frame.
        ax.plot(x, y, label=name, zorder=3, clip_on=False, **style)
        scored = np.pad(np.isfinite(y), 1)
        alone = scored[1:-1] & ~scored[:-2] & ~scored[2:]  # a line needs two points
        ax.plot(x[alone], y[alone], ".", color=style["color"], markersize=3, zorder=3)
        if half_widths and name in half_widths:
            half = half_widths[name].detach().cpu().numpy()
            low, high = (y - half).clip(0.0, 1.0), (y + half).clip(0.0, 1.0)
            ax.fill_between(x, low, high, color=style["color"], alpha=0.18, linewidth=0, zorder=2)
    ax.set(ylim=(0.0, 1.0), yticks=(0.0, 0.5, 1.0), ylabel="\n".join(scores), xlabel="time (s)")
    plain_axes(ax, "y")


def spectrogram(wave: Tensor, size: int) -> Tensor:
    """Power in dB below the loudest bin, at most 70 dB deep.

    Args:
        wave: (T,).
        size: of the Hann windows in samples; they are size // 4 apart and centred on multiples of
            that, with zeros beyond the ends.

    Returns:
        (size // 2 + 1, T // (size // 4) + 1).
    """
    spectrum = torch.stft(
        wave.detach().float().cpu(),
        size,
        size // 4,
        window=torch.hann_window(size),
        center=True,
        pad_mode="constant",
        return_complex=True,
    )
    power = spectrum.abs().square()
    relative = power / power.max().clamp(min=1e-20)
    return 10.0 * relative.clamp(min=10.0 ** (-_DEPTH_DB / 10.0)).log10()


def draw_spectrogram(ax: Axes, wave: Tensor, sample_rate: int) -> None:
    """The spectrogram of a (T,) waveform on ``ax``, time in s and frequency in kHz."""
    size = 4 * max(1, round(_WINDOW_S * sample_rate / 4))
    picture = spectrogram(wave, size)
    hop, bin_khz = size / 4 / sample_rate, sample_rate / size / 1000.0
    rows, columns = picture.shape
    ax.imshow(
        picture.numpy(),
        origin="lower",
        aspect="auto",
        cmap="Greys",
        vmin=-_DEPTH_DB,
        vmax=0.0,
        # The edges of the outermost pixels lie half a step beyond their centres.
        extent=(-hop / 2, (columns - 0.5) * hop, -bin_khz / 2, (rows - 0.5) * bin_khz),
        interpolation="nearest",
        rasterized=True,
    )
    ax.set(ylim=(0.0, sample_rate / 2000.0), ylabel="kHz", xlabel="time (s)")


def add_legend(figure: Figure) -> None:
    """What the two lines of :func:`plot_scores` mean."""
    from matplotlib.lines import Line2D

    handles = [Line2D([], [], **style) for style in _STYLES]
    figure.legend(handles, _MEANINGS, loc="outside lower right", ncols=2, frameon=False)
