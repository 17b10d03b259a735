"""Figures of frame scores. Needs matplotlib, but neither pyplot nor a display.

Figures are made from ``matplotlib.figure.Figure``, so nothing global (backend, style, open
figures) changes; they show in notebooks and save to any format of matplotlib's.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Sequence
from contextlib import suppress
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from torch_mapss.evaluation import files
from torch_mapss.evaluation.clips import Clip

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

    from torch_mapss.evaluation.report import Report

# Told apart by colour and lightness, for the colour-blind and in print. Not by dashes, which would
# look like the gaps of frames that are not scored.
PS_STYLE: dict[str, Any] = {"color": "#0b4f79", "linewidth": 1.7}
PM_STYLE: dict[str, Any] = {"color": "#e8871e", "linewidth": 1.2}
RANK_STYLE: dict[str, Any] = {"color": "#4d7c0f", "linewidth": 0.9}
_DEPTH_DB, _WINDOW_S = 70.0, 0.032  # of the spectrograms
INSTALL = "plotting needs matplotlib: pip install torch_mapss[plot]"
# Characters of a source's name that fit beside its mean scores: in one column, in each of several.
_LONGEST_NAMES = 40, 16


def _import_figure() -> Any:
    try:
        _load_without_backend()
        from matplotlib.figure import Figure
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
    files.write_with(path, lambda name: top.savefig(name, dpi=dpi, format=suffix))
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
            f"{files.shown(path)!r}). Change the suffix."
        )
    files.make_folder(os.path.dirname(path) or ".")
    return path, suffix


def plot_scores(
    times: Tensor,
    ps: Tensor | None = None,
    pm: Tensor | None = None,
    *,
    active: Tensor | None = None,
    ps_total: Tensor | None = None,
    pm_total: Tensor | None = None,
    pm_rank: Tensor | None = None,
    ax: Axes | None = None,
) -> Axes:
    """PS and PM of one source over time, and PM's rank if there is one.

    Args:
        times: (F,) seconds.
        ps, pm: (F,) in [0, 1]; NaN, or not ``active``, leaves a gap. Either may be left out.
        pm_rank: (F,) in (0, 1], as ``scores.pm_rank`` of the conformal convention.
        active: (F,) bool, the frames that count.
        ps_total, pm_total: (F,) half-widths of bands around them, e.g. ``bounds.ps.total[0, s]``.
        ax: draw there; a new figure by default (``returned.figure``).

    Returns:
        The axes: time in seconds, scores from 0 to 1.

    Raises:
        ImportError: matplotlib is missing.
        ValueError: shapes that do not fit.
    """
    ax = new_figure(8.0, 2.6).add_subplot() if ax is None else ax
    drawn = []
    for values, total, name, style in (
        (ps, ps_total, "PS", PS_STYLE),
        (pm, pm_total, "PM", PM_STYLE),
        (pm_rank, None, "PM rank", RANK_STYLE),
    ):
        if values is not None:
            _draw_score(ax, times, values, active, total, name, style)
            drawn.append(name)
    _label_scores(ax, drawn)
    return ax


def _draw_score(
    ax: Axes,
    times: Tensor,
    values: Tensor,
    active: Tensor | None,
    total: Tensor | None,
    name: str,
    style: dict[str, Any],
) -> None:
    values = _checked(values, times, name)
    if active is not None:
        values = torch.where(_checked(active, times, "active").bool(), values, torch.nan)
    x, y = times.detach().cpu().numpy(), values.numpy()
    # Not clipped: a line along 0 or 1 would lose half its width to the frame.
    ax.plot(x, y, label=name, zorder=3, clip_on=False, **style)
    alone = _alone(values)
    if bool(alone.any()):  # a line needs two points
        ax.plot(x[alone], y[alone], ".", color=style["color"], markersize=3, zorder=3)
    if total is not None:
        half = _checked(total, times, f"{name.lower()}_total").numpy()
        low, high = (y - half).clip(0.0, 1.0), (y + half).clip(0.0, 1.0)
        ax.fill_between(x, low, high, color=style["color"], alpha=0.18, linewidth=0, zorder=2)


def _checked(values: Tensor, times: Tensor, name: str) -> Tensor:
    if values.shape != times.shape or values.ndim != 1:
        raise ValueError(
            f"{name} must have one value per frame, shape {tuple(times.shape)}, got "
            f"{tuple(values.shape)}. Plot one source of one mixture at a time."
        )
    return values.detach().cpu()


def _alone(values: Tensor) -> Any:
    """Frames whose neighbours are both undefined."""
    there = values.isfinite()
    padded = torch.nn.functional.pad(there, (1, 1))
    return (there & ~padded[:-2] & ~padded[2:]).numpy()


def _label_scores(ax: Axes, names: Sequence[str]) -> None:
    ax.set_ylim(0.0, 1.0)
    ax.set_yticks([0.0, 0.5, 1.0])
    ax.set_ylabel(f"{', '.join(names).replace('PM rank', 'rank')} (0 to 1)")
    ax.set_xlabel("time (s)")
    ax.grid(True, axis="y", color="#dddddd", linewidth=0.6, zorder=0)
    for side in ("top", "right"):
        ax.spines[side].set_visible(False)


def plot_values(
    values: Tensor | float | Sequence[Tensor | float], name: str = "PS", ax: Axes | None = None
) -> Axes:
    """One score, or a list of them over steps (epochs, say).

    Args:
        values: a number in [0, 1], or a sequence of them; NaN leaves a gap.
        name: of the measure, for the axis.
        ax: draw there; a new figure by default (``returned.figure``).

    Returns:
        The axes, scores from 0 to 1.

    Raises:
        ImportError: matplotlib is missing.
    """
    ax = new_figure(5.0, 3.0).add_subplot() if ax is None else ax
    single = isinstance(values, float | int) or (isinstance(values, Tensor) and values.ndim == 0)
    listed: list[Any] = [values] if single else list(values)  # type: ignore[arg-type]
    numbers = [float(value) for value in listed]
    style = PM_STYLE if name.upper().startswith("PM") else PS_STYLE
    ax.plot(range(len(numbers)), numbers, marker="o", markersize=4, **style)
    ax.set_ylim(0.0, 1.0)
    ax.set_ylabel(f"{name} (0 to 1)")
    ax.set_xlabel("step")
    if single:
        ax.set_xticks([])
        ax.set_xlabel("")
    return ax


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
    frequencies, frames = picture.shape
    ax.imshow(
        picture.numpy(),
        origin="lower",
        aspect="auto",
        cmap="Greys",
        vmin=-_DEPTH_DB,
        vmax=0.0,
        # The edges of the outermost pixels lie half a step beyond their centres.
        extent=(
            -hop / 2,
            (frames - 0.5) * hop,
            -bin_khz / 2,
            (frequencies - 0.5) * bin_khz,
        ),
        interpolation="nearest",
        rasterized=True,
    )
    ax.set_ylim(0.0, sample_rate / 2000.0)
    ax.set_ylabel("kHz")
    ax.set_xlabel("time (s)")


# ------------------------------------------------------------------------------------------------
# Reports
# ------------------------------------------------------------------------------------------------


def plot_report(
    report: Report, *, figure: Figure | None = None, title: str | None = None
) -> Figure:
    """See :meth:`torch_mapss.evaluation.report.Report.plot`."""
    return plot_reports([report], figure=figure, titles=None if title is None else [title])


def plot_reports(
    reports: Sequence[Report],
    *,
    titles: Sequence[str] | None = None,
    figure: Figure | None = None,
) -> Figure:
    """Reports of the same sources side by side, one column each, on common axes.

    Args:
        reports: e.g. of several separators, on one mixture.
        titles: one per report.
        figure: an empty figure to draw into.

    Returns:
        The figure.

    Raises:
        ImportError: matplotlib is missing.
        ValueError: reports of different sources.
    """
    if not reports:
        raise ValueError("reports must be at least one, got none.")
    first = reports[0]
    if any(report.sources != first.sources for report in reports):
        raise ValueError(
            "reports side by side must be of the same sources, got "
            f"{', '.join(str(report.sources) for report in reports)}. Plot them one by one."
        )
    mixed = any(report.mixture is not None for report in reports)
    ratios = [0.9] * mixed + [1.5, 0.9] * len(first.sources)
    if figure is None:
        width = 9.0 if len(reports) == 1 else 1.0 + 4.2 * len(reports)
        figure = new_figure(width, 0.8 + 1.05 * sum(ratios))
    axes = figure.subplots(
        len(ratios), len(reports), sharex=True, sharey="row", squeeze=False, height_ratios=ratios
    )
    for column, report in enumerate(reports):
        _draw_column(axes[:, column], report, mixed, _LONGEST_NAMES[len(reports) > 1])
    for row in axes[:, 1:]:
        for ax in row:
            ax.set_ylabel("")
    _finish(figure, axes, titles)
    return figure


def _draw_column(axes: Any, report: Report, mixed: bool, longest: int) -> None:
    rate, used = report.sample_rate, 0
    if mixed:
        if report.mixture is not None:
            draw_spectrogram(axes[0], report.mixture.wave, rate)
        _name(axes[0], "mixture", longest)
        used = 1
    samples = round(_seconds(report) * rate)
    for place, name in enumerate(report.sources):
        above, below = axes[used + 2 * place], axes[used + 2 * place + 1]
        _draw_source(above, report, place)
        draw_spectrogram(below, report.estimates[place].wave[:samples], rate)
        _name(above, name, longest)
    axes[-1].set_xlim(0.0, _seconds(report))


def _draw_source(ax: Axes, report: Report, place: int) -> None:
    totals: list[Tensor | None] = [None, None]
    if report.bounds is not None:
        totals = [report.bounds.ps.total[0, place], report.bounds.pm.total[0, place]]
    plot_scores(
        report.times,
        report.ps[place],
        report.pm[place],
        ps_total=totals[0],
        pm_total=totals[1],
        pm_rank=None if report.pm_rank is None else report.pm_rank[place],
        ax=ax,
    )
    row = report.rows[place]
    text = "not scored" if row.frames == 0 else f"mean PS {row.ps:.2f}, PM {row.pm:.2f}"
    if row.frames and row.pm_rank is not None:
        text += f", PM rank {row.pm_rank:.2f}"
    ax.set_title(text, loc="right", fontsize="small", color="#444444")


def _seconds(report: Report) -> float:
    clips: list[Clip] = [*report.estimates, *report.references]
    return min(len(clip.wave) for clip in clips) / report.sample_rate


def _name(ax: Axes, name: str, longest: int) -> None:
    if len(name) > longest:  # its end tells files apart
        name = "…" + name[1 - longest :]
    # A dollar sign would start a formula.
    ax.set_title(name.replace("$", r"\$"), loc="left", fontsize="medium", fontweight="bold")


def _finish(figure: Figure, axes: Any, titles: Sequence[str] | None) -> None:
    for row in axes[:-1]:
        for ax in row:
            ax.set_xlabel("")
    for column, title in enumerate(titles or ()):
        top = axes[0, column]
        top.annotate(
            title.replace("$", r"\$"),
            (0.5, 1.0),
            xytext=(0, 26),
            xycoords="axes fraction",
            textcoords="offset points",
            ha="center",
            fontsize="large",
        )
    handles, labels = _legend_entries(axes)
    if handles:
        figure.legend(handles, labels, loc="outside lower right", ncols=len(handles), frameon=False)


def _legend_entries(axes: Any) -> tuple[list[Any], list[str]]:
    for row in axes:
        handles, labels = row[0].get_legend_handles_labels()
        if handles:
            words = {"PS": "PS: 1 = no leakage", "PM": "PM: 1 = undistorted"}
            words["PM rank"] = "PM rank: valid under exchangeability"
            return handles, [words.get(label, label) for label in labels]
    return [], []
