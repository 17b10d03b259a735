"""Plots of metrics: values over steps, frame scores over seconds."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from torch import Tensor
from torchmetrics.utilities.plot import plot_single_or_multi_val

from torch_mapss.metrics.values import Value


def draw(
    found: Any, value: Value, higher_is_better: bool | None, times: Callable[[int], Tensor], ax: Any
) -> tuple[Any, Any]:
    """Draw what a metric returned: values over steps, or frame scores over seconds.

    Args:
        found: one value, a list of them, or frame scores (n, S', F), drawn with gaps for NaN.
        value: what the numbers are.
        higher_is_better: marks the better end of the axis.
        times: from a number of frames to the seconds of their centres.
        ax: matplotlib axes to draw into; a new figure if None.

    Returns:
        Figure and axes.

    Raises:
        ModuleNotFoundError: matplotlib is not installed.
    """
    if isinstance(found, Tensor) and found.ndim == 3:
        return _frames(found, value, times(found.shape[-1]), ax)
    _, axes = plot_single_or_multi_val(
        found,
        ax=ax,
        higher_is_better=higher_is_better,
        name=value.label,
        lower_bound=value.limits[0],
        upper_bound=value.limits[1],
        legend_name="Source",
    )
    return axes.figure, axes  # type: ignore[union-attr]


def _frames(found: Tensor, value: Value, times: Tensor, ax: Any) -> tuple[Any, Any]:
    from matplotlib import pyplot

    axes = pyplot.subplots()[1] if ax is None else ax
    for item, rows in enumerate(found.detach().cpu()):
        for source, row in enumerate(rows):
            axes.plot(times.numpy(), row.numpy(), label=f"item {item}, source {source}")
    axes.set_xlabel("time (s)")
    axes.set_ylabel(value.label)
    axes.set_ylim(*value.limits)
    axes.grid(True)
    return axes.figure, axes
