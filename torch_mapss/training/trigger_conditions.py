"""Conditions of a curriculum trigger: statistics of frame scores, and their levels."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np
from torch import Tensor

from torch_mapss.core import checks

# Fields of the scores, as printed.
NAMES = {
    "clearance": "clearance",
    "fidelity": "fidelity",
    "ps": "PS",
    "pm": "PM",
    "log_pm": "log PM",
    "bleed_db": "bleed in dB",
}


@dataclass(frozen=True)
class Condition:
    """A statistic of the frame scores has risen above (or fallen below) a level.

    Args:
        measure: a field of the scores: ``"clearance"``, ``"fidelity"``, ``"ps"``, ``"pm"``,
            ``"log_pm"`` or ``"bleed_db"``.
        above, below: the level; exactly one of them.
    """

    measure: str
    above: float | None = field(default=None, kw_only=True)
    below: float | None = field(default=None, kw_only=True)

    def __post_init__(self) -> None:
        checks.check_choice(self.measure, "measure", tuple(NAMES))
        if (self.above is None) == (self.below is None):
            raise ValueError(
                "exactly one of above and below must be given, got "
                f"above={self.above}, below={self.below}."
            )
        checks.check_real(self.level, "the level")

    @property
    def level(self) -> float:
        level = self.above if self.above is not None else self.below
        assert level is not None
        return level

    def statistic(self, frames: Tensor) -> float:
        """The statistic of (n,) frame scores."""
        raise NotImplementedError

    def holds(self, value: float, slack: float) -> bool:
        """Whether the value is beyond the level, less ``slack``; NaN never is."""
        if self.above is not None:
            return value >= self.level - slack
        return value <= self.level + slack

    def reason(self, value: float, hysteresis: float) -> str:
        """Why the trigger fired, for a log."""
        relation = ">=" if self.above is not None else "<="
        slack = "" if self.holds(value, 0.0) else f" within the hysteresis of {hysteresis:g}"
        return f"{self} is {value:.4g} {relation} {self.level:g}{slack}"


@dataclass(frozen=True)
class Quantile(Condition):
    """A quantile of the frame scores has risen above (or fallen below) a level.

    Args:
        measure, above, below: see :class:`Condition`.
        q: which quantile, in [0, 1]; 0.5 is the median. Small ones look at the worst frames.
    """

    q: float

    def __post_init__(self) -> None:
        super().__post_init__()
        checks.check_real(self.q, "q", "[0, 1]")

    def statistic(self, frames: Tensor) -> float:
        return float(np.quantile(frames.numpy(), self.q))  # torch's takes at most 2^24 values

    def __str__(self) -> str:
        return f"{100 * self.q:g} % quantile of {NAMES[self.measure]}"


@dataclass(frozen=True)
class Fraction(Condition):
    """The share of frames whose score exceeds a limit has risen above (or fallen below) a level.

    Args:
        measure: see :class:`Condition`.
        over: frames with a score greater than this count.
        above, below: the level of their share, in [0, 1]; exactly one of them.
    """

    over: float

    def __post_init__(self) -> None:
        super().__post_init__()
        checks.check_real(self.over, "over")
        checks.check_real(self.level, "the level of a share", "[0, 1]")

    def statistic(self, frames: Tensor) -> float:
        return float((frames > self.over).double().mean())

    def __str__(self) -> str:
        return f"share of frames with {NAMES[self.measure]} > {self.over:g}"


@dataclass(frozen=True)
class Trend(Condition):
    """The smoothed mean score changes by more (or less) than a level per epoch.

    The slope of the least-squares line through the smoothed means of the last ``span`` epochs;
    undefined until there are so many. ``Trend("ps", below=0.002)`` says that PS has levelled off.

    Args:
        measure: see :class:`Condition`.
        span: epochs the line is fitted to, at least 2. More are calmer and later.
        above, below: the level, in score per epoch; exactly one of them.
    """

    span: int = 5

    def __post_init__(self) -> None:
        super().__post_init__()
        checks.check_whole(self.span, "span", 2)

    def statistic(self, frames: Tensor) -> float:
        return float(frames.mean())

    def __str__(self) -> str:
        return f"slope of mean {NAMES[self.measure]} over {self.span} epochs"


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
        full = len(memory.recent) == condition.span
        value = float(np.polyfit(range(condition.span), memory.recent, 1)[0]) if full else math.nan
    if not math.isnan(value):
        sign = 1.0 if condition.above is not None else -1.0
        known = value if memory.best is None else memory.best
        memory.best = sign * max(sign * known, sign * value)
    return value


def checked_conditions(conditions: Sequence[Condition]) -> tuple[Condition, ...]:
    """The conditions, at least one and all different.

    Raises:
        TypeError: something else.
        ValueError: none, or two of the same statistic.
    """
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
