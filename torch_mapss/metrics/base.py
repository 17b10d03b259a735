"""What both metrics share; the work is done by the functions of the rooms beside this one."""

from __future__ import annotations

import inspect
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor
from torchmetrics.utilities import rank_zero_warn

from torch_mapss.bounds.frames import CONVENTIONS, TAILS, check_confidence
from torch_mapss.core import checks
from torch_mapss.core.devices import back
from torch_mapss.core.torch_defaults import with_torch_defaults
from torch_mapss.metrics import figures, states
from torch_mapss.metrics.manners import SteadyMetric
from torch_mapss.metrics.shared_batch import (
    Pooling,
    Request,
    Target,
    anchor,
    batch_of,
    forget,
    frame_scores,
)
from torch_mapss.pipeline.mapss import MAPSS, EncoderChoice, resolve
from torch_mapss.pipeline.permutation import check_pit
from torch_mapss.pipeline.records import ReferenceBank

# What the constructors below hand on to a MAPSS of their own.
_MAPSS_OPTIONS = frozenset(inspect.signature(MAPSS).parameters) - {"encoder"}


class PerceptualMetric(SteadyMetric):
    """What both metrics share: batches scored by a MAPSS, and means of their scores."""

    full_state_update = False
    is_differentiable = True
    higher_is_better = True
    plot_lower_bound = 0.0
    plot_upper_bound = 1.0
    plot_legend_name = "Source"

    item_sum: Tensor
    items: Tensor
    seen: Tensor
    source_sum: Tensor
    source_count: Tensor
    sources: Tensor
    width_sum: Tensor
    fingerprint: Tensor

    def __init__(
        self,
        mapss: MAPSS | None,
        encoder: EncoderChoice,
        pooling: Pooling,
        reduction: str,
        request: Request,
        keep_items: bool,
        kwargs: dict[str, Any],
    ) -> None:
        options = {name: kwargs.pop(name) for name in sorted(_MAPSS_OPTIONS & set(kwargs))}
        super().__init__(**kwargs)
        # In a tuple: no submodule, so that half() and float() leave it alone. _apply moves it.
        self._mapss = (resolve(mapss, encoder, options),)
        check_convention(self.mapss, pooling, request.confidence)
        self.reduction, self.keep_items = reduction, keep_items
        self._pooling, self._request = pooling, request
        self._keeps = keep_items or reduction == "none"
        self._add_states()
        if "device" in options:
            self.to(options["device"])

    def _add_states(self) -> None:
        # The first, because old versions of torchmetrics compare only that when they merge.
        settings = self._pooling, self._request, self.reduction == "none"
        mark = states.fingerprint(self.mapss, *settings)
        self.add_state("fingerprint", mark, dist_reduce_fx="max")
        for name, default, reduction in states.sums():
            self.add_state(name, default.clone(), dist_reduce_fx=reduction)
        if self._keeps:
            self.add_state("history", [], dist_reduce_fx="cat")  # (S' · F) values of each item
            self.add_state("shapes", [], dist_reduce_fx="cat")  # S' and F of each item

    @property
    def mapss(self) -> MAPSS:
        """The MAPSS that scores; hand it to other metrics and to losses to share its encoder."""
        return self._mapss[0]

    @property
    def half_width(self) -> float | None:
        """Confidence of the half-width that comes with the value; None: none does."""
        return self._request.confidence

    @property
    def skipped(self) -> int:
        """Items handed in whose score is undefined, since the last reset, on this process.

        Within ``with metric.sync_context():`` the count over all processes.
        """
        return int(self.seen - self.items)

    # ------------------------------------------------------------------------- accumulating

    @with_torch_defaults
    def update(
        self,
        preds: Tensor,
        target: Target,
        lengths: Tensor | Sequence[int] | None = None,
    ) -> None:
        """Score a batch and add it.

        Args:
            preds: (B, S', T) or (S', T) estimates.
            target: (B, S, T) or (S, T) references, or a bank of them (:meth:`MAPSS.prepare`).
            lengths: (B,) true lengths in samples of a padded batch.

        Raises:
            TypeError, ValueError: input that cannot be scored, see :meth:`MAPSS.forward`. The
                metric is then as it was before.
        """
        check_signals(preds, target, self.device)
        true = None if lengths is None else checks.whole_numbers(lengths, "lengths")
        batch = batch_of(self.mapss, preds, target, true)
        with _named(type(self).__name__):
            scores, bounds = frame_scores(self.mapss, preds, target, batch, self._request)
        values = self._pooling.sources(scores)
        width = None if bounds is None else self._pooling.half_widths(bounds)
        anchor(values, batch)
        added = states.batch_sums(values, width, self.item_sum.dtype)
        for name, more in added.items():
            setattr(self, name, getattr(self, name) + more)
        self.sources = self.sources.clamp(min=values.shape[1])
        if self._keeps:
            each = self._pooling.frames(scores) if self.reduction == "none" else values[..., None]
            for kept, more in zip((self.history, self.shapes), states.rows_of(each)):
                kept.append(more)

    def reset(self) -> None:
        """Forget everything accumulated, history and the last batch included."""
        super().reset()
        if not self._in_forward:
            forget(self.mapss)

    def _moved(self) -> None:
        self.mapss.to(self._device)

    # ------------------------------------------------------------------------- results

    @with_torch_defaults
    def compute(self) -> Any:
        """The value over everything accumulated.

        Returns:
            By default a 0-dim float tensor; for other settings see the class. NaN, with a
            warning, where nothing was defined. float32, also where the metric was converted to
            half precision; float64 after ``set_dtype(torch.float64)``.
        """
        seen = int(self.seen)
        if seen > 0 and int(self.items) == 0:
            rank_zero_warn(
                f"{type(self).__name__} is undefined (NaN): in none of the {seen} items is a "
                "frame in which two references sound together.",
                UserWarning,
            )
        if self.reduction == "none":
            return states.padded(states.items_of(self.history, self.shapes))
        # Half precision would round a monitored score to 0.002 to 0.004.
        dtype = torch.promote_types(self.dtype, torch.float32)
        value = back(self._value().to(dtype), self.device)
        if self.half_width is None:
            return value
        width = states.ratio(self.width_sum, self.items).to(dtype)
        return {self._pooling.field: value, f"{self._pooling.field}_half_width": width}

    def _value(self) -> Tensor:
        if self.reduction == "source":
            known = self._request.attributed  # before any update a source is NaN all the same
            sources = int(self.sources) or len(known or (0,))
            return states.ratio(self.source_sum, self.source_count)[:sources]
        return states.ratio(self.item_sum, self.items)

    @with_torch_defaults
    def item_scores(self) -> Tensor:
        """One row per item handed in, NaN where undefined: tells which were skipped.

        Returns:
            (n, S') on the CPU, in the order of the updates, of this process (of all of them
            within ``with metric.sync_context():``). After ``reduction="none"``: means over frames.

        Raises:
            RuntimeError: the metric was made without ``keep_items=True``.
        """
        if not self._keeps:
            raise RuntimeError(
                "item scores are not kept unless asked for, as they grow with every update. Make "
                f"the metric with {type(self).__name__}(..., keep_items=True)."
            )
        return states.item_rows(self.history, self.shapes)

    def plot(self, val: Any = None, ax: Any = None) -> tuple[Any, Any]:
        """Plot one or several values.

        Args:
            val: a result of ``forward`` or ``compute``, or a list of them, drawn over steps;
                ``compute()`` if None. Frame scores (``reduction="none"``) are drawn over seconds.
            ax: matplotlib axes to draw into; a new figure if None.

        Returns:
            Figure and axes.

        Raises:
            ModuleNotFoundError: matplotlib is not installed.
        """
        val = self.compute() if val is None else val
        return figures.draw(val, self._pooling, self.mapss.times, self.plot_legend_name, ax)


def request_of(
    pooling: Pooling,
    attributed: Sequence[int] | Tensor | None,
    half_width: float | None,
    frames: int | None,
    pit: str | None,
    tail: str,
    bounds_convention: str | None,
) -> Request:
    """What a metric wants of every batch, checked.

    Raises:
        TypeError, ValueError: arguments that do not fit, see the message.
    """
    index = None if attributed is None else checks.whole_numbers(attributed, "attributed")
    if half_width is not None and (pooling.pesq or pooling.field not in ("ps", "pm")):
        raise ValueError(
            "half_width is the error of a plain mean of PS or PM. Leave it out with "
            "reduction='pesq' and with log=True or rank=True, which have none."
        )
    if half_width is not None:
        check_confidence(half_width)
    if frames is not None:
        frames = checks.check_whole(frames, "frames", 1)
    checks.check_choice(tail, "tail", TAILS)
    if bounds_convention is not None:
        checks.check_choice(bounds_convention, "bounds_convention", CONVENTIONS)
    pit = check_pit(pit, index)
    return Request(pooling.measure, index, frames, half_width, pit, tail, bounds_convention)


def check_convention(mapss: MAPSS, pooling: Pooling, half_width: float | None) -> None:
    """Refuse what PM of the convention has not: ranks are conformal, half-widths are not.

    Raises:
        ValueError: one of them is asked for.
    """
    conformal = mapss.settings.convention == "conformal"
    if pooling.field == "pm_rank" and not conformal:
        raise ValueError(
            "rank=True needs the conformal convention, got "
            f"{mapss.settings.convention!r}. Make the MAPSS with convention='conformal'."
        )
    if pooling.field == "pm" and conformal and half_width is not None:
        raise ValueError(
            "PM of the conformal convention states no half-width. Leave half_width out, and see "
            "rank=True: the rank form is valid under exchangeability without one."
        )


def check_signals(preds: object, target: object, device: torch.device) -> None:
    """Refuse what is no signal, or lies on another device than the metric.

    Raises:
        TypeError: no tensors (or bank).
        ValueError: devices differ; says which call moves what.
    """
    for name, x in (("preds", preds), ("target", target)):
        if name == "target" and isinstance(x, ReferenceBank):
            continue
        if not isinstance(x, Tensor):
            bank = " or a ReferenceBank" if name == "target" else ""
            raise TypeError(
                f"{name} must be a tensor of shape (B, S, T) or (S, T){bank}, got "
                f"{type(x).__name__}. Convert it with torch.as_tensor."
            )
        checks.check_plain(x, name)
    devices = {"the metric": device, "preds": preds.device, "target": target.device}  # type: ignore[attr-defined]
    if len(set(devices.values())) == 1:
        return
    listed = ", ".join(f"{name} on {place}" for name, place in devices.items())
    remedy = "preds and target must share a device: move them with .to(device)"
    if devices["preds"] == devices["target"]:
        remedy = f"move the metric with metric.to({str(devices['preds'])!r})"
    raise ValueError(
        f"{listed}: {remedy}. A metric held as an attribute, in a torch.nn.ModuleDict or in a "
        "MetricCollection moves with its module; in a plain dict or list it does not."
    )


@contextmanager
def _named(metric: str) -> Iterator[None]:
    """Say in errors about the input which arguments they are about."""
    try:
        yield
    except (TypeError, ValueError) as error:
        if type(error) not in (TypeError, ValueError):
            raise
        where = f"{metric}.update(preds=estimates, target=references): "
        raise type(error)(f"{where}{error}") from error
