"""A curriculum trigger on frame scores, which says when training is ready for a harder task.

    >>> from torch_mapss.curriculum import FrameTrigger, Quantile
    >>> trigger = FrameTrigger(Quantile("ps", 0.25, above=0.7), patience=2)
    >>> trigger.update({"ps": [0.8, 0.9, 0.75]}) is None
    True
    >>> print(trigger.update({"ps": [0.8, 0.9, 0.75]}))
    epoch 2, firing 1: 25 % quantile of PS is 0.775 >= 0.7 (held for 2 epochs)

It is independent of training frameworks: it takes and keeps numbers, and its ``state_dict`` holds
plain Python values. It never sees a graph. In distributed training pass the gathered frames to
every process, or let one process decide for all.

An *epoch* is the time between two calls of :meth:`FrameTrigger.step`. An epoch without a scored
frame (all NaN) is ignored: it neither fires, nor breaks a run of good epochs, nor counts as the
best one. A condition whose statistic is not defined yet, such as a trend in the first epoch, does
not hold.
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
from torch_mapss.pipeline.scores import Scores
from torch_mapss.score_table import FRAME_SCORES, SCORES, score_label

__all__ = ["Fraction", "FrameTrigger", "Quantile", "Trend", "TriggerEvent"]

FORMAT = 1  # of saved states

# ------------------------------------------------------------------------------------------------
# Conditions
# ------------------------------------------------------------------------------------------------

# Scores that a condition may use: frame scores that rank outputs.
_CONDITION_SCORES = tuple(name for name in FRAME_SCORES if SCORES[name].ranked)


def _interval(score_name: str) -> str:
    """Interval of a score's values, in the form that :func:`checks.check_real` takes."""
    low, high = SCORES[score_name].limits
    lower_end = "(-inf" if low is None else f"[{low:g}"
    upper_end = "inf)" if high is None else f"{high:g}]"
    return f"{lower_end}, {upper_end}"


@dataclass(frozen=True)
class Condition:
    """A statistic of the frame scores has risen above (or fallen below) a level.

    Args:
        measure: a score of frames: ``"clearance"``, ``"fidelity"``, ``"ps"``, ``"pm"``,
            ``"log_pm"`` or ``"bleed_db"``.
        above, below: the level; exactly one of them.
    """

    measure: str
    above: float | None = field(default=None, kw_only=True)
    below: float | None = field(default=None, kw_only=True)

    def __post_init__(self) -> None:
        checks.check_choice(self.measure, "measure", _CONDITION_SCORES)
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
        """Whether the value is beyond the level, with a tolerance of ``slack``; NaN never is."""
        if self.above is not None:
            return value >= self.level - slack
        return value <= self.level + slack

    def reason(self, value: float, hysteresis: float) -> str:
        """Reason for firing, for a log."""
        relation = ">=" if self.above is not None else "<="
        slack = "" if self.holds(value, 0.0) else f" within the hysteresis of {hysteresis:g}"
        return f"{self} is {value:.4g} {relation} {self.level:g}{slack}"


@dataclass(frozen=True)
class Quantile(Condition):
    """A quantile of the frame scores has risen above (or fallen below) a level.

    Args:
        measure, above, below: see :class:`Condition`.
        q: the quantile, in [0, 1]; 0.5 is the median. Small ones look at the worst frames.
    """

    q: float

    def __post_init__(self) -> None:
        super().__post_init__()
        checks.check_real(self.q, "q", "[0, 1]")
        checks.check_real(self.level, "the level of a quantile", _interval(self.measure))

    def statistic(self, frames: Tensor) -> float:
        return float(np.quantile(frames.numpy(), self.q))  # torch's takes at most 2^24 values

    def __str__(self) -> str:
        return f"{100 * self.q:g} % quantile of {score_label(self.measure)}"


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
        checks.check_real(self.over, "over", _interval(self.measure))
        checks.check_real(self.level, "the level of a share", "[0, 1]")

    def statistic(self, frames: Tensor) -> float:
        return float((frames > self.over).double().mean())

    def __str__(self) -> str:
        return f"share of frames with {score_label(self.measure)} > {self.over:g}"


@dataclass(frozen=True)
class Trend(Condition):
    """The smoothed mean score changes by more (or less) than a level per epoch.

    The slope of the least-squares line through the smoothed means of the last ``span`` epochs;
    undefined before that many epochs. ``Trend("ps", below=0.002)`` holds once PS has levelled off.

    Args:
        measure: see :class:`Condition`.
        span: number of epochs that the line is fitted to, at least 2. More are steadier but react
            later.
        above, below: the level, in score per epoch; exactly one of them.
    """

    span: int = 5

    def __post_init__(self) -> None:
        super().__post_init__()
        checks.check_whole(self.span, "span", 2)

    def statistic(self, frames: Tensor) -> float:
        return float(frames.mean())

    def __str__(self) -> str:
        return f"slope of mean {score_label(self.measure)} over {self.span} epochs"


@dataclass
class Memory:
    """Memory of a condition."""

    smoothed: float | None = None  # running mean of its statistic
    recent: list[float] = field(default_factory=list)  # smoothed, the last ``span``
    best: float | None = None  # best value compared so far
    on: bool = False  # whether the condition holds (with hysteresis)


def remember(condition: Condition, memory: Memory, frames: Tensor, smoothing: float) -> float:
    """Add an epoch to the memory of a condition.

    Args:
        condition: condition whose statistic is computed.
        memory: memory of the condition; changed in place.
        frames: (n,) scores of the epoch.
        smoothing: weight of the past in the running mean.

    Returns:
        The value to be compared with the level; NaN if there are too few epochs for it.
    """
    statistic = condition.statistic(frames)
    past = smoothing if memory.smoothed is not None else 0.0
    memory.smoothed = past * (memory.smoothed or 0.0) + (1.0 - past) * statistic
    value = memory.smoothed
    if isinstance(condition, Trend):
        memory.recent = [*memory.recent, memory.smoothed][-condition.span :]
        full = len(memory.recent) == condition.span
        value = float(np.polyfit(range(condition.span), memory.recent, 1)[0]) if full else math.nan
    if not math.isnan(value):
        sign = 1.0 if condition.above is not None else -1.0
        best = value if memory.best is None else memory.best
        memory.best = sign * max(sign * best, sign * value)
    return value


# ------------------------------------------------------------------------------------------------
# Trigger
# ------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class TriggerEvent:
    """Why and when a trigger fired; ``str(event)`` is a sentence for a log."""

    epoch: int  # number of epochs so far, including this one and undefined ones
    firing: int  # 1 for the first
    reasons: tuple[str, ...]  # one for each condition that held
    statistics: dict[str, float]  # condition -> value compared with its level
    frames: dict[str, int]  # score -> number of frames counted
    held: int  # consecutive epochs for which the conditions have held

    def __str__(self) -> str:
        plural = "s" if self.held != 1 else ""
        return (
            f"epoch {self.epoch}, firing {self.firing}: {'; '.join(self.reasons)} "
            f"(held for {self.held} epoch{plural})"
        )


class FrameTrigger:
    """Fires when conditions on the frame scores of several epochs hold.

    Args:
        conditions: any of :class:`Quantile`, :class:`Fraction`, :class:`Trend`.
        require: ``"all"`` conditions at once, or ``"any"`` of them.
        patience: consecutive epochs for which they must hold before the trigger fires.
        hysteresis: distance, in the units of the level, by which a statistic may fall back behind
            the level before the condition stops holding, so that a run of good epochs survives
            small dips.
        cooldown: number of defined epochs after a firing that are ignored, so that the model can
            settle on the harder task: they count neither as held nor in running means, slopes and
            best values.
        smoothing: weight of the past in the running mean of each statistic, in [0, 1): 0 uses each
            epoch alone, 0.8 averages about five epochs.
        min_frames: an epoch with fewer counted frames is undefined.

    After firing, the conditions must be met again and hold for another ``patience`` epochs; running
    means and slopes start over, since the task has changed.

    Attributes:
        events: all :class:`TriggerEvent` so far.
        epoch: epochs so far.
        held: consecutive epochs for which the conditions have held.
        statistics: condition -> value of the last epoch (NaN where undefined), for logs.

    Raises:
        TypeError: no condition, or an argument that is not a condition.
        ValueError: two conditions with the same name, or settings out of range.
    """

    def __init__(
        self,
        *conditions: Condition,
        require: str = "all",
        patience: int = 1,
        hysteresis: float = 0.0,
        cooldown: int = 0,
        smoothing: float = 0.0,
        min_frames: int = 1,
    ) -> None:
        if not conditions or not all(isinstance(x, Condition) for x in conditions):
            raise TypeError(
                "conditions must be at least one Quantile, Fraction or Trend, got "
                f"{conditions!r}. Pass e.g. Quantile('ps', 0.5, above=0.8)."
            )
        names = [str(condition) for condition in conditions]
        if len(set(names)) < len(names):
            raise ValueError(f"two conditions look at the same statistic: {names}. Keep one.")
        self.conditions = conditions
        self.require = checks.check_choice(require, "require", ("all", "any"))
        self.patience = checks.check_whole(patience, "patience", 1)
        self.hysteresis = checks.check_real(hysteresis, "hysteresis", "[0, inf)")
        self.cooldown = checks.check_whole(cooldown, "cooldown", 0)
        self.smoothing = checks.check_real(smoothing, "smoothing", "[0, 1)", "1 would never move.")
        self.min_frames = checks.check_whole(min_frames, "min_frames", 1)
        self.events: list[TriggerEvent] = []
        self.epoch = 0
        self.statistics: dict[str, float] = {}
        self.held = 0
        self._waiting = 0
        self._memories = [Memory() for _ in self.conditions]
        self._frames: dict[str, list[Tensor]] = {}

    @property
    def measures(self) -> tuple[str, ...]:
        """The measures the conditions look at."""
        return tuple(dict.fromkeys(condition.measure for condition in self.conditions))

    @property
    def best(self) -> dict[str, float | None]:
        """Best value so far by condition: highest for ``above``, lowest for ``below``."""
        return {str(c): memory.best for c, memory in zip(self.conditions, self._memories)}

    # ------------------------------------------------------------------------- scores in

    def observe(self, scores: Scores | Mapping[str, Any]) -> None:
        """Add the frames of one batch to the current epoch.

        Args:
            scores: result of a :class:`~torch_mapss.MAPSS`, whose defined frames count; or a
                mapping from names of scores to frame scores (tensor, array or list of any shape),
                NaN where undefined. Frames can be left out by NaN, e.g. those with wide error
                bounds: ``{"ps": torch.where(bounds.ps.tail < 0.1, scores.ps, torch.nan)}``.

        Raises:
            TypeError: another type.
            KeyError, ValueError: a score that a condition needs is missing.
        """
        if not isinstance(scores, Scores | Mapping):
            raise TypeError(
                "scores must be what MAPSS returns, or frame scores by name of the measure, got "
                f"{type(scores).__name__}."
            )
        frames_by_measure = {measure: _frames(scores, measure) for measure in self.measures}
        # Added only after all scores were read, so that a refused batch adds nothing.
        for measure, values in frames_by_measure.items():
            self._frames.setdefault(measure, []).append(values)

    def step(self) -> TriggerEvent | None:
        """End the epoch.

        Returns:
            The event if the trigger fires now, else None.
        """
        nothing = torch.empty(0, dtype=torch.float32, device="cpu")
        frames = {m: torch.cat(self._frames.get(m, [nothing])) for m in self.measures}
        self._frames = {}
        self.epoch += 1
        if any(len(values) < self.min_frames for values in frames.values()):
            self.statistics = {str(condition): math.nan for condition in self.conditions}
            return None
        cooling = self._waiting > 0
        memories = [replace(m) for m in self._memories] if cooling else self._memories
        pairs = list(zip(self.conditions, memories))
        values = [remember(c, memory, frames[c.measure], self.smoothing) for c, memory in pairs]
        self.statistics = {str(c): value for c, value in zip(self.conditions, values)}
        return self._judge(values, {measure: len(v) for measure, v in frames.items()})

    def update(self, scores: Scores | Mapping[str, Any]) -> TriggerEvent | None:
        """:meth:`observe` and :meth:`step` in one, for an epoch that is one batch of scores."""
        self.observe(scores)
        return self.step()

    # ------------------------------------------------------------------------- decision

    def _judge(self, values: Sequence[float], frames: dict[str, int]) -> TriggerEvent | None:
        if self._waiting > 0:
            self._waiting -= 1
            return None
        for condition, memory, value in zip(self.conditions, self._memories, values):
            memory.on = condition.holds(value, self.hysteresis if memory.on else 0.0)
        states = [memory.on for memory in self._memories]
        good = all(states) if self.require == "all" else any(states)
        self.held = self.held + 1 if good else 0
        if self.held < self.patience:
            return None
        together = list(zip(self.conditions, self._memories, values))
        reasons = [c.reason(v, self.hysteresis) for c, memory, v in together if memory.on]
        event = TriggerEvent(
            epoch=self.epoch,
            firing=len(self.events) + 1,
            reasons=tuple(reasons),
            statistics=dict(self.statistics),
            frames=frames,
            held=self.held,
        )
        self.events.append(event)
        self.held, self._waiting = 0, self.cooldown
        self._memories = [Memory(best=memory.best) for memory in self._memories]
        return event

    # ------------------------------------------------------------------------- state

    def state_dict(self) -> dict[str, Any]:
        """Everything that later decisions depend on, as plain Python values.

        Call it between epochs: frames observed in an unfinished one are not part of it.
        """
        return {
            "format": FORMAT,
            "settings": self._settings(),
            "epoch": self.epoch,
            "held": self.held,
            "waiting": self._waiting,
            "memories": [asdict(memory) for memory in self._memories],
            "statistics": dict(self.statistics),
            "events": [asdict(event) for event in self.events],
        }

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Continue from a saved state.

        Raises:
            ValueError: not a state of a trigger, or one with other settings.
        """
        if state.get("format") != FORMAT:
            raise ValueError(
                f"state must be what FrameTrigger.state_dict() returns (format {FORMAT}), got keys "
                f"{sorted(state)}."
            )
        saved, current = list(state["settings"]), self._settings()
        if saved != current:
            only_saved = [setting for setting in saved if setting not in current]
            only_current = [setting for setting in current if setting not in saved]
            raise ValueError(
                f"the state belongs to a trigger with {', '.join(only_saved) or 'fewer settings'}; "
                f"this one has {', '.join(only_current) or 'fewer settings'}. All other settings "
                "match. Rebuild the trigger with the saved settings to continue, or skip the state "
                "to start over."
            )
        self.epoch = int(state["epoch"])
        self.held = int(state["held"])
        self._waiting = int(state["waiting"])
        self._memories = [Memory(**memory) for memory in state["memories"]]
        self.statistics = dict(state["statistics"])
        events = ({**event, "reasons": tuple(event["reasons"])} for event in state["events"])
        self.events = [TriggerEvent(**event) for event in events]
        self._frames = {}

    def _settings(self) -> list[str]:
        names = ("require", "patience", "hysteresis", "cooldown", "smoothing")
        options = [f"{name}={getattr(self, name)!r}" for name in (*names, "min_frames")]
        return [*map(repr, self.conditions), *options]

    def __repr__(self) -> str:
        return f"FrameTrigger({', '.join(self._settings())})"


def _frames(scores: Scores | Mapping[str, Any], measure: str) -> Tensor:
    """(n,) defined frame scores, float64 on the CPU."""
    if isinstance(scores, Scores):
        values = torch.where(scores.defined(measure), scores.of(measure), torch.nan)
    elif measure in scores:
        values = scores[measure]
        if not isinstance(values, Tensor):
            values = torch.as_tensor(values, dtype=torch.float64, device="cpu")
    else:
        raise KeyError(
            f"scores lack {measure!r}, which a condition of this trigger uses; they hold "
            f"{sorted(scores)}."
        )
    values = values.detach().cpu().double()
    return values[values.isfinite()]
