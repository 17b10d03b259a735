"""A curriculum for Lightning: validation frame scores decide when training gets harder.

Metrics need no special support: ``self.log("val/ps", metric)`` works as for any metric of
torchmetrics.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor
from torchmetrics.utilities.distributed import gather_all_tensors

from torch_mapss.core import checks
from torch_mapss.metrics.scored_batch import score_batch
from torch_mapss.pipeline.inputs import check_pit
from torch_mapss.pipeline.mapss import MAPSS
from torch_mapss.pipeline.measures import MEASURES
from torch_mapss.score_table import SCORES
from torch_mapss.training.curriculum import FrameTrigger, TriggerEvent

try:
    from lightning.pytorch import Callback
    from lightning.pytorch.utilities import rank_zero_info
except Exception as error:  # not ImportError alone: its own imports may fail in any way
    raise ImportError(
        f"torch_mapss.lightning needs Lightning, which does not load ({error}). Install it with "
        "`pip install lightning`."
    ) from error

__all__ = ["CurriculumCallback"]

StageHook = Callable[[Any, int], None]


class CurriculumCallback(Callback):
    """Feeds validation frames to a :class:`~torch_mapss.FrameTrigger`, and passes on its firings.

    After every validation epoch the frame scores of all processes are gathered, so that all
    processes decide alike. The *stage* is the number of firings so far. It is passed to
    ``on_stage`` at the start of training, when training resumes from a checkpoint, and at every
    firing, so ``on_stage`` should set a difficulty rather than increase it.

    ``validation_step`` returns a dictionary with the estimates ``"preds"`` (B, S', T), the
    references ``"target"`` (B, S, T) or a bank of them, and optionally ``"lengths"``. They are
    scored here, independently of any metrics; a bank prepared once saves most of the cost. Prepare
    it with full distortion banks: a small bank, cheap for a loss, makes a different measure with
    different levels.

    Logged after every validation epoch: ``curriculum/stage``, ``curriculum/held`` (consecutive
    epochs for which the conditions have held), and the statistic of every condition, NaN where it
    is undefined. The trigger's state is part of the checkpoint.

    Args:
        trigger: the trigger that decides.
        mapss: the scorer; share it with metrics and losses. None: the module's attribute ``mapss``.
        on_stage: called with (module, stage). None: the module's method ``on_curriculum_stage``
            is called with (stage).
        attributed: (S',) the reference each estimate belongs to; all in order if None.
        pit: ``"si_sdr"`` for outputs in any order, as in the metrics. None: they are in order.
        prefix: prefix of the logged names; give two curricula different ones.

    Raises:
        TypeError: ``trigger`` is not a FrameTrigger. When training (or its sanity check) starts,
            also if the module lacks ``mapss`` or ``on_curriculum_stage``, or ``validation_step``
            returns something else.
        ValueError: both ``attributed`` and ``pit`` are given.

    Example::

        trigger = FrameTrigger(Quantile("ps", 0.25, above=0.7), patience=2)
        Trainer(callbacks=[CurriculumCallback(trigger)]).fit(module)
    """

    def __init__(
        self,
        trigger: FrameTrigger,
        mapss: MAPSS | None = None,
        *,
        on_stage: StageHook | None = None,
        attributed: Sequence[int] | None = None,
        pit: str | None = None,
        prefix: str = "curriculum/",
    ) -> None:
        if not isinstance(trigger, FrameTrigger):
            raise TypeError(
                f"trigger must be a torch_mapss.FrameTrigger, got {type(trigger).__name__}. Make "
                "one of conditions, e.g. FrameTrigger(Quantile('ps', 0.25, above=0.7))."
            )
        if mapss is not None and not isinstance(mapss, MAPSS):
            raise TypeError(f"mapss must be a torch_mapss.MAPSS, got {type(mapss).__name__}.")
        self.trigger, self.prefix, self.on_stage = trigger, prefix, on_stage
        self.attributed = None
        if attributed is not None:
            self.attributed = checks.attributed_sources(attributed)
        self.pit = check_pit(pit, self.attributed)
        self._mapss = mapss
        self._frames: dict[str, list[Tensor]] = {}

    @property
    def stage(self) -> int:
        """Firings so far."""
        return len(self.trigger.events)

    @property
    def events(self) -> list[TriggerEvent]:
        """All firings so far."""
        return self.trigger.events

    # ------------------------------------------------------------------------- state

    @property
    def state_key(self) -> str:
        """Key that tells several curricula of one trainer apart in a checkpoint."""
        return self._generate_state_key(prefix=self.prefix)

    def state_dict(self) -> dict[str, Any]:
        """Part of the trainer's checkpoint."""
        return {"trigger": self.trigger.state_dict()}

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Continue from a checkpoint.

        Raises:
            ValueError: its trigger had other settings. With another ``prefix`` the curriculum
                starts over at stage 0, while the rest of the checkpoint is restored.
        """
        try:
            self.trigger.load_state_dict(state_dict["trigger"])
        except ValueError as error:
            raise ValueError(
                f"the checkpoint's curriculum {self.prefix!r} cannot continue: {error} In "
                "Lightning, another prefix restarts it and restores the rest of the checkpoint: "
                "CurriculumCallback(trigger, prefix='curriculum_2/')."
            ) from error

    # ------------------------------------------------------------------------- hooks

    def on_fit_start(self, trainer: Any, pl_module: Any) -> None:
        """Set the stage, which a checkpoint may have restored."""
        self._set_stage(pl_module)

    on_train_start = on_fit_start  # once more, for strategies that restore a checkpoint only now

    def on_validation_epoch_start(self, trainer: Any, pl_module: Any) -> None:
        """Start a new epoch of frames."""
        self._frames = {}

    def on_validation_batch_end(
        self,
        trainer: Any,
        pl_module: Any,
        outputs: Any,
        batch: Any,
        batch_idx: int,
        dataloader_idx: int = 0,
    ) -> None:
        """Collect the frames of a batch."""
        if trainer.sanity_checking:  # report what is missing before an epoch is spent
            _signals(outputs)
            self._find_mapss(pl_module)
        if not _in_fit(trainer):
            return
        preds, target, lengths = _signals(outputs)
        mapss = self._find_mapss(pl_module)
        needed = {SCORES[name].measure for name in self.trigger.measures}
        measures = [name for name in MEASURES if name in needed]
        with torch.no_grad():
            batch = score_batch(
                mapss, preds, target, lengths, measures, self.attributed, pit=self.pit
            )
            frames_by_name = {name: batch.by_frame(name) for name in self.trigger.measures}
        for name, frames in frames_by_name.items():
            self._frames.setdefault(name, []).append(frames[~frames.isnan()].float().cpu())

    def on_validation_epoch_end(self, trainer: Any, pl_module: Any) -> None:
        """Let the trigger decide, log its values, and pass on a firing."""
        if not _in_fit(trainer):
            return
        event = self.trigger.update(self._gathered(pl_module.device))
        self._frames = {}
        self._log(pl_module)
        if event is not None:
            rank_zero_info(str(event))
            self._set_stage(pl_module)

    # ------------------------------------------------------------------------- parts

    def _gathered(self, device: torch.device) -> dict[str, Tensor]:
        """Values (n,) of all processes by score, in the same order on each process."""
        gathered = {}
        for name in self.trigger.measures:
            empty = torch.empty(0, dtype=torch.float32, device="cpu")
            values = torch.cat(self._frames.get(name) or [empty])
            if torch.distributed.is_available() and torch.distributed.is_initialized():
                values = torch.cat(gather_all_tensors(values.to(device))).cpu()
            gathered[name] = values
        return gathered

    def _log(self, pl_module: Any) -> None:
        values = {"stage": float(self.stage), "held": float(self.trigger.held)}
        for condition, value in self.trigger.statistics.items():
            values[re.sub(r"[^\w.]+", "_", condition).strip("_")] = value
        # Equal on all processes already; without sync_dist Lightning warns for every name.
        values = {f"{self.prefix}{name}": value for name, value in values.items()}
        pl_module.log_dict(values, sync_dist=True)

    def _set_stage(self, pl_module: Any) -> None:
        if self.on_stage is not None:
            self.on_stage(pl_module, self.stage)
            return
        hook = getattr(pl_module, "on_curriculum_stage", None)
        if hook is None:
            raise TypeError(
                f"{type(pl_module).__name__} has no method on_curriculum_stage(stage), so nothing "
                "would change when the curriculum fires. Write one, or pass on_stage="
                "lambda module, stage: ... to CurriculumCallback."
            )
        hook(self.stage)

    def _find_mapss(self, pl_module: Any) -> MAPSS:
        mapss = self._mapss if self._mapss is not None else getattr(pl_module, "mapss", None)
        if not isinstance(mapss, MAPSS):
            raise TypeError(
                f"{type(pl_module).__name__}.mapss should be a torch_mapss.MAPSS, got "
                f"{type(mapss).__name__}. Set it in the module, or pass mapss= to "
                "CurriculumCallback."
            )
        return mapss


def _in_fit(trainer: Any) -> bool:
    """Whether this is ``fit``: ``validate`` and the sanity check are not epochs of training."""
    return bool(trainer.state.fn == "fit" and not trainer.sanity_checking)


def _signals(outputs: Any) -> tuple[Tensor, Any, tuple[int, ...] | None]:
    if not isinstance(outputs, dict) or not {"preds", "target"} <= set(outputs):
        got = sorted(outputs) if isinstance(outputs, dict) else type(outputs).__name__
        raise TypeError(
            "validation_step must return a dictionary with 'preds' and 'target' (and 'lengths' of "
            f"a padded batch) for the curriculum to score, got {got}."
        )
    lengths: Any = outputs.get("lengths")
    if hasattr(lengths, "tolist"):
        lengths = lengths.tolist()
    return outputs["preds"], outputs["target"], None if lengths is None else tuple(lengths)
