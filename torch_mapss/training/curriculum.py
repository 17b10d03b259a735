"""A curriculum trigger on frame scores: says when training is ready for something harder.

    >>> from torch_mapss.curriculum import FrameTrigger, Quantile
    >>> trigger = FrameTrigger(Quantile("ps", 0.25, above=0.7), patience=2)
    >>> trigger.update({"ps": [0.8, 0.9, 0.75]}) is None
    True
    >>> print(trigger.update({"ps": [0.8, 0.9, 0.75]}))
    epoch 2, firing 1: 25 % quantile of PS is 0.775 >= 0.7 (held for 2 epochs)

Belongs to no training framework: it takes numbers, keeps numbers, and its ``state_dict`` holds
plain Python values. It never sees a graph. In distributed training hand every process the gathered
frames, or let one decide and tell the others.

An *epoch* is what lies between two calls of :meth:`FrameTrigger.step`. An epoch in which a
statistic is undefined (no scored frame, NaN) is ignored: it neither fires, nor breaks a run of
good epochs, nor counts as a best one.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from typing import Any

import numpy as np
import torch
from torch import Tensor

from torch_mapss.core import checks
from torch_mapss.pipeline.records import ScoreBounds, Scores

__all__ = ["Fraction", "FrameTrigger", "Quantile", "Trend", "TriggerEvent"]

MEASURES = ("ps", "pm", "log_pm")
FORMAT = 1  # of saved states


# ------------------------------------------------------------------------------------------------
# Conditions
# ------------------------------------------------------------------------------------------------


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
        return f"{100 * self.q:g} % quantile of {_spoken(self.measure)}"


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
        _check_number(self.over, "over")
        _check_level(self.above, self.below)
        _check_unit(self.above if self.above is not None else self.below, "the level of a share")

    def statistic(self, frames: Tensor) -> float:
        """The share of (n,) frame scores above the limit."""
        return float((frames > self.over).double().mean())

    def __str__(self) -> str:
        return f"share of frames with {_spoken(self.measure)} > {self.over:g}"


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
        return f"slope of mean {_spoken(self.measure)} over {self.span} epochs"


Condition = Quantile | Fraction | Trend


@dataclass(frozen=True)
class TriggerEvent:
    """Why and when a trigger fired; ``str(event)`` is a sentence for a log."""

    epoch: int  # the defined or undefined epochs so far, this one included
    firing: int  # 1 for the first
    reasons: tuple[str, ...]  # one for each condition that held
    statistics: dict[str, float]  # condition -> value compared with its level
    frames: dict[str, int]  # measure -> how many frames counted
    held: int  # epochs in a row that the conditions have held

    def __str__(self) -> str:
        plural = "s" if self.held != 1 else ""
        return (
            f"epoch {self.epoch}, firing {self.firing}: {'; '.join(self.reasons)} "
            f"(held for {self.held} epoch{plural})"
        )


# ------------------------------------------------------------------------------------------------
# Trigger
# ------------------------------------------------------------------------------------------------


@dataclass
class _Memory:
    """What one condition remembers."""

    smoothed: float | None = None  # running mean of its statistic
    recent: list[float] = field(default_factory=list)  # smoothed, the last ``span``
    best: float | None = None  # compared values
    on: bool = False  # beyond its level, and not back behind level and hysteresis since


class FrameTrigger:
    """Fires when conditions on the frame scores of several epochs hold.

    Args:
        conditions: any of :class:`Quantile`, :class:`Fraction`, :class:`Trend`.
        require: ``"all"`` conditions at once, or ``"any"`` of them.
        patience: epochs in a row that they must hold before the trigger fires.
        hysteresis: how far, in units of its level, a statistic may fall back behind the level
            before the condition stops holding: so a run of good epochs survives small dips.
        cooldown: defined epochs after a firing that do not count, for the model to settle on the
            harder task: neither as held nor in running means, slopes and best values.
        smoothing: weight of the past in the running mean of each statistic, in [0, 1): 0 takes
            the epoch as it is, 0.8 averages about five epochs.
        half_width: count only frames whose confidence half-width is at most this; the bounds
            must then be handed in with the scores. None counts all.
        min_frames: an epoch with fewer counted frames is undefined.

    After firing, the conditions must be reached afresh and hold for ``patience`` epochs again;
    running means and slopes start over, since the task has changed.

    Attributes:
        events: all :class:`TriggerEvent` so far.
        epoch: epochs so far.
        statistics: condition -> value of the last epoch (NaN where undefined), for logs.

    Raises:
        TypeError: something else than conditions.
        ValueError: no condition, two of one name, or settings out of range.
    """

    def __init__(
        self,
        *conditions: Condition,
        require: str = "all",
        patience: int = 1,
        hysteresis: float = 0.0,
        cooldown: int = 0,
        smoothing: float = 0.0,
        half_width: float | None = None,
        min_frames: int = 1,
    ) -> None:
        self.conditions = _checked_conditions(conditions)
        self.require = checks.check_choice(require, "require", ("all", "any"))
        self.patience = checks.check_whole(patience, "patience", 1)
        self.hysteresis = _check_number(hysteresis, "hysteresis", least=0.0)
        self.cooldown = checks.check_whole(cooldown, "cooldown", 0)
        self.smoothing = _check_number(smoothing, "smoothing", least=0.0)
        if self.smoothing >= 1.0:
            raise ValueError(f"smoothing must lie in [0, 1), got {smoothing}. 1 would never move.")
        self.half_width = (
            None if half_width is None else _check_number(half_width, "half_width", least=0.0)
        )
        self.min_frames = checks.check_whole(min_frames, "min_frames", 1)
        self.events: list[TriggerEvent] = []
        self.epoch = 0
        self.statistics: dict[str, float] = {}
        self._held = 0
        self._waiting = 0
        self._memories = [_Memory() for _ in self.conditions]
        self._frames: dict[str, list[Tensor]] = {}

    @property
    def measures(self) -> tuple[str, ...]:
        """The measures the conditions look at."""
        return tuple(dict.fromkeys(condition.measure for condition in self.conditions))

    @property
    def best(self) -> dict[str, float | None]:
        """Condition -> the best value it has seen: highest for ``above``, lowest for ``below``."""
        return {str(c): memory.best for c, memory in zip(self.conditions, self._memories)}

    @property
    def held(self) -> int:
        """Epochs in a row that the conditions have held."""
        return self._held

    # ------------------------------------------------------------------------- scores in

    def observe(
        self,
        scores: Scores | Mapping[str, Any],
        bounds: ScoreBounds | Mapping[str, Any] | None = None,
    ) -> None:
        """Add the frames of one batch to the current epoch.

        Args:
            scores: what a :class:`~torch_mapss.MAPSS` returns, of which active frames count; or
                measure -> frame scores (tensor, array or list of any shape), NaN where undefined.
            bounds: confidence half-widths: what ``MAPSS.bounds`` returns (``tail`` is used), or
                measure -> half-widths of the same shape. ``"log_pm"`` takes those of ``"pm"``.

        Raises:
            KeyError: a measure that a condition needs is missing.
            ValueError: shapes differ, or ``half_width`` is set and bounds are missing.
        """
        found = {}  # all or nothing: a batch that is refused leaves no measure behind
        for measure in self.measures:
            values = _values(scores, measure)
            counted = values.isfinite()
            if self.half_width is not None:
                widths = _half_widths(bounds, measure, values)
                counted &= widths <= self.half_width  # False for NaN
            found[measure] = values[counted]
        for measure, values in found.items():
            self._frames.setdefault(measure, []).append(values)

    def step(self) -> TriggerEvent | None:
        """Close the epoch.

        Returns:
            The event if the trigger fires now, else None.
        """
        frames = {m: torch.cat(self._frames.get(m, [torch.empty(0)])) for m in self.measures}
        self._frames = {}
        self.epoch += 1
        if any(len(values) < self.min_frames for values in frames.values()):
            self.statistics = {str(condition): math.nan for condition in self.conditions}
            return None
        cooling = self._waiting > 0
        memories = [replace(m) for m in self._memories] if cooling else self._memories
        values = [
            self._remember(condition, memory, frames[condition.measure])
            for condition, memory in zip(self.conditions, memories)
        ]
        self.statistics = {str(c): value for c, value in zip(self.conditions, values)}
        return self._judge(values, {measure: len(v) for measure, v in frames.items()})

    def update(
        self,
        scores: Scores | Mapping[str, Any],
        bounds: ScoreBounds | Mapping[str, Any] | None = None,
    ) -> TriggerEvent | None:
        """:meth:`observe` and :meth:`step` in one, for an epoch that is one batch of scores."""
        self.observe(scores, bounds)
        return self.step()

    # ------------------------------------------------------------------------- decision

    def _remember(self, condition: Condition, memory: _Memory, frames: Tensor) -> float:
        """The value to be compared with the level; NaN if there are too few epochs for it."""
        now = condition.statistic(frames)
        past = self.smoothing if memory.smoothed is not None else 0.0
        memory.smoothed = past * (memory.smoothed or 0.0) + (1.0 - past) * now
        value = memory.smoothed
        if isinstance(condition, Trend):
            memory.recent = [*memory.recent, memory.smoothed][-condition.span :]
            value = _slope(memory.recent) if len(memory.recent) == condition.span else math.nan
        if not math.isnan(value):
            sign = 1.0 if condition.above is not None else -1.0
            known = value if memory.best is None else memory.best
            memory.best = sign * max(sign * known, sign * value)
        return value

    def _judge(self, values: Sequence[float], frames: dict[str, int]) -> TriggerEvent | None:
        if self._waiting > 0:
            self._waiting -= 1
            return None
        for condition, memory, value in zip(self.conditions, self._memories, values):
            memory.on = _holds(condition, value, self.hysteresis if memory.on else 0.0)
        states = [memory.on for memory in self._memories]
        holds = all(states) if self.require == "all" else any(states)
        self._held = self._held + 1 if holds else 0
        return self._fire(values, frames) if self._held >= self.patience else None

    def _fire(self, values: Sequence[float], frames: dict[str, int]) -> TriggerEvent:
        together = list(zip(self.conditions, self._memories, values))
        reasons = [_reason(c, v, self.hysteresis) for c, memory, v in together if memory.on]
        event = TriggerEvent(
            epoch=self.epoch,
            firing=len(self.events) + 1,
            reasons=tuple(reasons),
            statistics=dict(self.statistics),
            frames=frames,
            held=self._held,
        )
        self.events.append(event)
        self._held, self._waiting = 0, self.cooldown
        self._memories = [_Memory(best=memory.best) for memory in self._memories]
        return event

    # ------------------------------------------------------------------------- state

    def state_dict(self) -> dict[str, Any]:
        """Everything that decides later epochs, as plain values (JSON holds them).

        Call it between epochs: frames observed in an unfinished one are not part of it.
        """
        return {
            "format": FORMAT,
            "settings": self._settings(),
            "epoch": self.epoch,
            "held": self._held,
            "waiting": self._waiting,
            "memories": [asdict(memory) for memory in self._memories],
            "statistics": dict(self.statistics),
            "events": [asdict(event) for event in self.events],
        }

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Go on from a saved state.

        Raises:
            ValueError: no state of a trigger, or one of other settings.
        """
        if state.get("format") != FORMAT:
            raise ValueError(
                f"state must be what FrameTrigger.state_dict() returns (format {FORMAT}), got keys "
                f"{sorted(state)}."
            )
        if list(state["settings"]) != self._settings():
            raise ValueError(
                f"the state belongs to a trigger of other settings: {state['settings']}, this one "
                f"has {self._settings()}. Build the trigger as it was, or start a new state."
            )
        self.epoch, self._held = int(state["epoch"]), int(state["held"])
        self._waiting = int(state["waiting"])
        self._memories = [_Memory(**memory) for memory in state["memories"]]
        self.statistics = dict(state["statistics"])
        self.events = [
            TriggerEvent(**{**event, "reasons": tuple(event["reasons"])})
            for event in state["events"]
        ]
        self._frames = {}

    def _settings(self) -> list[str]:
        names = ("require", "patience", "hysteresis", "cooldown", "smoothing", "half_width")
        options = [f"{name}={getattr(self, name)!r}" for name in (*names, "min_frames")]
        return [*map(repr, self.conditions), *options]

    def __repr__(self) -> str:
        return f"FrameTrigger({', '.join(self._settings())})"


# ------------------------------------------------------------------------------------------------
# Small parts
# ------------------------------------------------------------------------------------------------


def _holds(condition: Condition, value: float, slack: float) -> bool:
    """Whether the value is beyond the level, less ``slack``; NaN never is."""
    if condition.above is not None:
        return value >= condition.above - slack
    assert condition.below is not None
    return value <= condition.below + slack


def _reason(condition: Condition, value: float, hysteresis: float) -> str:
    level = condition.above if condition.above is not None else condition.below
    assert level is not None
    relation = ">=" if condition.above is not None else "<="
    slack = "" if _holds(condition, value, 0.0) else f" within the hysteresis of {hysteresis:g}"
    return f"{condition} is {value:.4g} {relation} {level:g}{slack}"


def _slope(values: Sequence[float]) -> float:
    """Of the least-squares line through values at 0, 1, 2, …"""
    n = len(values)
    middle, mean = (n - 1) / 2.0, math.fsum(values) / n
    products = math.fsum((i - middle) * (v - mean) for i, v in enumerate(values))
    return products / math.fsum((i - middle) ** 2 for i in range(n))


def _values(scores: Scores | Mapping[str, Any], measure: str) -> Tensor:
    """Frame scores as float64 on the CPU, NaN where undefined."""
    if isinstance(scores, Scores):
        values = getattr(scores, measure).detach()
        return torch.where(scores.active, values, torch.nan).double().cpu()
    if measure not in scores:
        raise KeyError(
            f"scores lack {measure!r}, which a condition of this trigger looks at; they hold "
            f"{sorted(scores)}."
        )
    return _tensor(scores[measure])


def _half_widths(
    bounds: ScoreBounds | Mapping[str, Any] | None, measure: str, like: Tensor
) -> Tensor:
    of = "ps" if measure == "ps" else "pm"
    if bounds is None or (not isinstance(bounds, ScoreBounds) and of not in bounds):
        raise ValueError(
            f"half_width is set, so the half-widths of {of!r} must come with the scores. Pass "
            "bounds=mapss.bounds(estimates, references), or set half_width=None."
        )
    found = getattr(bounds, of).tail if isinstance(bounds, ScoreBounds) else bounds[of]
    widths = _tensor(found)
    if widths.shape != like.shape:
        raise ValueError(
            f"half-widths of {of!r} must have the shape of its scores {tuple(like.shape)}, got "
            f"{tuple(widths.shape)}. Take both from the same estimates."
        )
    return widths


def _tensor(values: Any) -> Tensor:
    if isinstance(values, Tensor):
        return values.detach().double().cpu()
    return torch.as_tensor(values, dtype=torch.float64)


def _spoken(measure: str) -> str:
    return {"ps": "PS", "pm": "PM", "log_pm": "log PM"}[measure]


def _checked_conditions(conditions: Sequence[Condition]) -> tuple[Condition, ...]:
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
    checks.check_choice(measure, "measure", MEASURES)


def _check_level(above: float | None, below: float | None) -> None:
    if (above is None) == (below is None):
        raise ValueError(
            f"exactly one of above and below must be given, got above={above}, below={below}."
        )
    _check_number(above if above is not None else below, "the level")


def _check_number(value: Any, name: str, least: float = -math.inf) -> float:
    number = checks.check_real(value, name)
    if number < least:
        raise ValueError(f"{name} must be at least {least:g}, got {value!r}.")
    return number


def _check_unit(value: Any, name: str) -> None:
    if _check_number(value, name) < 0.0 or value > 1.0:
        raise ValueError(f"{name} must lie in [0, 1], got {value!r}.")
