"""Plots of metrics: values over steps, frame scores over seconds."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from torch import Tensor
from torchmetrics.utilities.plot import plot_single_or_multi_val

from torch_mapss.score_table import SCORES, score_label

SHARE = (0.0, 1.0)


def draw(
    values: Any, score_name: str, times: Callable[[int], Tensor], ax: Any = None
) -> tuple[Any, Any]:
    """Draw a metric's result: values over steps, or frame scores over time.

    Args:
        values: one value, a list of them, or frame scores (n, S', F), drawn with gaps for NaN.
        score_name: name of the score.
        times: function of a number of frames that returns the times of their centres in seconds.
        ax: matplotlib axes to draw into; a new figure if None.

    Returns:
        Figure and axes.

    Raises:
        ModuleNotFoundError: matplotlib is not installed.
    """
    if isinstance(values, Tensor) and values.ndim == 3:
        return _draw_frames(values, score_name, times(values.shape[-1]), ax)
    score = SCORES[score_name]
    _, axes = plot_single_or_multi_val(
        values,
        ax=ax,
        higher_is_better=score.higher_is_better,
        name=score_label(score_name),
        lower_bound=score.limits[0],
        upper_bound=score.limits[1],
        legend_name="Source",
    )
    _set_limits(axes, score.limits)
    return axes.figure, axes  # type: ignore[union-attr]


def draw_shares(curves: Mapping[str, Tensor], ax: Any = None) -> tuple[Any, Any]:
    """Draw several scores in [0, 1] by their labels, each (n,) over n steps.

    Returns:
        Figure and axes.

    Raises:
        ModuleNotFoundError: matplotlib is not installed.
    """
    from matplotlib import pyplot

    axes = pyplot.subplots()[1] if ax is None else ax
    for label, values in curves.items():
        axes.plot(values.cpu().numpy(), marker="o", clip_on=False, label=label)
    axes.set_xlabel("Step")
    axes.set_ylabel("score")
    axes.grid(True)
    axes.legend()
    _set_limits(axes, SHARE)
    return axes.figure, axes


def _draw_frames(frames: Tensor, score_name: str, times: Tensor, ax: Any) -> tuple[Any, Any]:
    from matplotlib import pyplot

    axes = pyplot.subplots()[1] if ax is None else ax
    for item, rows in enumerate(frames.detach().cpu()):
        for source, row in enumerate(rows):
            axes.plot(times.numpy(), row.numpy(), label=f"item {item}, source {source}")
    axes.set_xlabel("time (s)")
    axes.set_ylabel(score_label(score_name))
    _set_limits(axes, SCORES[score_name].limits)
    axes.grid(True)
    return axes.figure, axes


def _set_limits(axes: Any, limits: tuple[float | None, float | None]) -> None:
    """End the axis where the score ends; torchmetrics adds a tenth on each side."""
    low, high = limits
    if low is not None:
        axes.set_ylim(bottom=low)
    if high is not None:
        axes.set_ylim(top=high)
