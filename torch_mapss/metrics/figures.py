"""Plots of metrics: values over steps, frame scores over seconds."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from torch import Tensor
from torchmetrics.utilities.plot import plot_single_or_multi_val

from torch_mapss.core.pooling import PESQ_RANGE
from torch_mapss.metrics.shared_batch import Pooling

Limits = tuple[float | None, float | None]


def limits_of(pooling: Pooling) -> Limits:
    """The range of the values."""
    if pooling.pesq:
        return PESQ_RANGE[0], PESQ_RANGE[1]
    return (None, 0.0) if pooling.field == "log_pm" else (0.0, 1.0)


def label_of(pooling: Pooling) -> str:
    """Name of the values with their range or unit."""
    if pooling.pesq:
        return "Perceptual Separation (1.085 to 1.315)"
    names = {"ps": "Perceptual Separation (0 to 1)", "pm": "Perceptual Match (0 to 1)"}
    return names.get(pooling.field, "log PM (nats)")


def draw(
    value: Any, pooling: Pooling, times: Callable[[int], Tensor], legend: str, ax: Any
) -> tuple[Any, Any]:
    """Draw what a metric returned: values over steps, or frame scores over seconds.

    Args:
        value: one value, a list of them, or frame scores (n, S', F).
        pooling: what the values are.
        times: from a number of frames to the seconds of their centres.
        legend: what an entry of a value is.
        ax: matplotlib axes to draw into; a new figure if None.

    Returns:
        Figure and axes.

    Raises:
        ModuleNotFoundError: matplotlib is not installed.
    """
    label, limits = label_of(pooling), limits_of(pooling)
    if isinstance(value, Tensor) and value.ndim == 3:
        return plot_frames(value, times(value.shape[-1]), label, limits, ax)
    _, axes = plot_single_or_multi_val(
        value,
        ax=ax,
        higher_is_better=True,
        name=label,
        lower_bound=limits[0],
        upper_bound=limits[1],
        legend_name=legend,
    )
    return axes.figure, axes  # type: ignore[union-attr]


def plot_frames(
    values: Tensor, times: Tensor, label: str, limits: Limits, ax: Any
) -> tuple[Any, Any]:
    """Frame scores (n, S', F) over ``times`` (F,): a line for each item and source, NaN as gaps.

    Args:
        values, times: as above, seconds.
        label: of the vertical axis.
        limits: of the vertical axis.
        ax: matplotlib axes to draw into; a new figure if None.

    Returns:
        Figure and axes.

    Raises:
        ModuleNotFoundError: matplotlib is not installed.
    """
    from matplotlib import pyplot

    axes = pyplot.subplots()[1] if ax is None else ax
    for item, rows in enumerate(values.detach().cpu()):
        for source, row in enumerate(rows):
            axes.plot(times.numpy(), row.numpy(), label=f"item {item}, source {source}")
    axes.set_xlabel("time (s)")
    axes.set_ylabel(label)
    axes.set_ylim(*limits)
    axes.grid(True)
    return axes.figure, axes
