"""Conditions of a curriculum trigger: statistics of frame scores, and their levels."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from torch import Tensor

from torch_mapss.core import checks

NAMES = {"ps": "PS", "pm": "PM", "log_pm": "log PM"}  # of fields of the scores, as printed


@dataclass(frozen=True)
class Quantile:
    """A quantile of the frame scores has risen above (or fallen below) a level.

    Args:
        measure: ``"ps"``, ``"pm"`` or ``"log_pm"``.
        q: which quantile, in [0, 1]; 0.5 is the median. Small ones look at the worst frames.
        above, below: the level; exactly one of them.
    """

    measure: str
    q: float
    above: float | None = None
    below: float | None = None

    def __post_init__(self) -> None:
        _check_measure(self.measure)
        _check_unit(self.q, "q")
        _check_level(self.above, self.below)

    def statistic(self, frames: Tensor) -> float:
        """The quantile of (n,) frame scores."""
        return float(np.quantile(frames.numpy(), self.q))  # torch's takes at most 2^24 values

    def __str__(self) -> str:
        return f"{100 * self.q:g} % quantile of {NAMES[self.measure]}"


@dataclass(frozen=True)
class Fraction:
    """The share of frames whose score exceeds a limit has risen above (or fallen below) a level.

    Args:
        measure: ``"ps"``, ``"pm"`` or ``"log_pm"``.
        over: frames with a score greater than this count.
        above, below: the level of their share, in [0, 1]; exactly one of them.
    """

    measure: str
    over: float
    above: float | None = None
    below: float | None = None

    def __post_init__(self) -> None:
        _check_measure(self.measure)
        check_number(self.over, "over")
        _check_level(self.above, self.below)
        _check_unit(self.above if self.above is not None else self.below, "the level of a share")

    def statistic(self, frames: Tensor) -> float:
        """The share of (n,) frame scores above the limit."""
        return float((frames > self.over).double().mean())

    def __str__(self) -> str:
        return f"share of frames with {NAMES[self.measure]} > {self.over:g}"


@dataclass(frozen=True)
class Trend:
    """The smoothed mean score changes by more (or less) than a level per epoch.

    The slope of the least-squares line through the smoothed means of the last ``span`` epochs;
    undefined until there are so many. ``Trend("ps", below=0.002)`` says that PS has levelled off.

    Args:
        measure: ``"ps"``, ``"pm"`` or ``"log_pm"``.
        span: epochs the line is fitted to, at least 2. More are calmer and later.
        above, below: the level, in score per epoch; exactly one of them.
    """

    measure: str
    span: int = 5
    above: float | None = None
    below: float | None = None

    def __post_init__(self) -> None:
        _check_measure(self.measure)
        checks.check_whole(self.span, "span", 2)
        _check_level(self.above, self.below)

    def statistic(self, frames: Tensor) -> float:
        """The mean of (n,) frame scores, of which the slope is taken."""
        return float(frames.mean())

    def __str__(self) -> str:
        return f"slope of mean {NAMES[self.measure]} over {self.span} epochs"


Condition = Quantile | Fraction | Trend


@dataclass
class Memory:
    """What one condition remembers."""

    smoothed: float | None = None  # running mean of its statistic
    recent: list[float] = field(default_factory=list)  # smoothed, the last ``span``
    best: float | None = None  # compared values
    on: bool = False  # beyond its level, and not back behind level and hysteresis since


def remember(condition: Condition, memory: Memory, frames: Tensor, smoothing: float) -> float:
    """Take an epoch into the memory of a condition.

    Args:
        condition: whose statistic counts.
        memory: of the condition; changed in place.
        frames: (n,) scores of the epoch.
        smoothing: weight of the past in the running mean.

    Returns:
        The value to be compared with the level; NaN if there are too few epochs for it.
    """
    now = condition.statistic(frames)
    past = smoothing if memory.smoothed is not None else 0.0
    memory.smoothed = past * (memory.smoothed or 0.0) + (1.0 - past) * now
    value = memory.smoothed
    if isinstance(condition, Trend):
        memory.recent = [*memory.recent, memory.smoothed][-condition.span :]
        value = slope(memory.recent) if len(memory.recent) == condition.span else math.nan
    if not math.isnan(value):
        sign = 1.0 if condition.above is not None else -1.0
        known = value if memory.best is None else memory.best
        memory.best = sign * max(sign * known, sign * value)
    return value


def holds(condition: Condition, value: float, slack: float) -> bool:
    """Whether the value is beyond the level, less ``slack``; NaN never is."""
    if condition.above is not None:
        return value >= condition.above - slack
    assert condition.below is not None
    return value <= condition.below + slack


def reason(condition: Condition, value: float, hysteresis: float) -> str:
    level = condition.above if condition.above is not None else condition.below
    assert level is not None
    relation = ">=" if condition.above is not None else "<="
    slack = "" if holds(condition, value, 0.0) else f" within the hysteresis of {hysteresis:g}"
    return f"{condition} is {value:.4g} {relation} {level:g}{slack}"


def slope(values: Sequence[float]) -> float:
    """Of the least-squares line through values at 0, 1, 2, …"""
    n = len(values)
    middle, mean = (n - 1) / 2.0, math.fsum(values) / n
    products = math.fsum((i - middle) * (v - mean) for i, v in enumerate(values))
    return products / math.fsum((i - middle) ** 2 for i in range(n))


def checked_conditions(conditions: Sequence[Condition]) -> tuple[Condition, ...]:
    if not conditions:
        raise ValueError(
            "at least one condition is needed, got none. Pass e.g. Quantile('ps', 0.5, above=0.8)."
        )
    for condition in conditions:
        if not isinstance(condition, Condition):
            raise TypeError(
                "conditions must be Quantile, Fraction or Trend, got "
                f"{type(condition).__name__}: {condition!r}."
            )
    names = [str(condition) for condition in conditions]
    if len(set(names)) < len(names):
        raise ValueError(f"two conditions look at the same statistic: {names}. Keep one of them.")
    return tuple(conditions)


def _check_measure(measure: str) -> None:
    checks.check_choice(measure, "measure", tuple(NAMES))


def _check_level(above: float | None, below: float | None) -> None:
    if (above is None) == (below is None):
        raise ValueError(
            f"exactly one of above and below must be given, got above={above}, below={below}."
        )
    check_number(above if above is not None else below, "the level")


def check_number(value: Any, name: str, least: float = -math.inf) -> float:
    number = checks.check_real(value, name)
    if number < least:
        raise ValueError(f"{name} must be at least {least:g}, got {value!r}.")
    return number


def _check_unit(value: Any, name: str) -> None:
    if check_number(value, name) < 0.0 or value > 1.0:
        raise ValueError(f"{name} must lie in [0, 1], got {value!r}.")
