"""The base of the metrics: a batch scored by a MAPSS, and means of the scores over a set."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor
from torchmetrics import Metric
from torchmetrics.utilities import dim_zero_cat, rank_zero_warn

from torch_mapss.core import checks
from torch_mapss.core.devices import back
from torch_mapss.core.torch_defaults import with_torch_defaults
from torch_mapss.metrics import plots, states
from torch_mapss.metrics.shared_batch import Request, Target, forget, frame_scores
from torch_mapss.metrics.values import Value, reduced_value
from torch_mapss.pipeline.inputs import check_pit
from torch_mapss.pipeline.mapss import DEFAULT_ENCODER, MAPSS, EncoderChoice, resolve
from torch_mapss.pipeline.measures import MEASURES

# Keywords that are handed on to a MAPSS made here; the others are torchmetrics'.
_MAPSS_OPTIONS = frozenset(inspect.signature(MAPSS).parameters) - {"encoder", "measures"}


class _Limit:
    """An end of the axis of plots: on a class that of its default value, else the metric's own."""

    def __init__(self, end: int) -> None:
        self.end = end

    def __get__(self, metric: PerceptualMetric | None, kind: type[PerceptualMetric]) -> Any:
        return (kind if metric is None else metric).value.limits[self.end]


class PerceptualMetric(Metric):
    """Means over a set of one value of the scores, which a subclass names.

    It defines nothing that a wrapper's ``__getattr__`` would take for the wrapper's own: copying,
    for one, is left to ``__getstate__`` and ``__setstate__`` of the class.
    """

    full_state_update = False
    is_differentiable = True
    higher_is_better = True
    plot_lower_bound = _Limit(0)  # type: ignore[assignment]
    plot_upper_bound = _Limit(1)  # type: ignore[assignment]
    value: Value
    _needs = "frames in which two different references are active"  # to be defined

    item_sum: Tensor
    items: Tensor
    seen: Tensor
    source_sum: Tensor
    source_count: Tensor
    sources: Tensor
    fingerprint: Tensor
    history: list[Tensor]
    shapes: list[Tensor]

    def __init__(
        self,
        mapss: MAPSS | None = None,
        *,
        encoder: EncoderChoice = DEFAULT_ENCODER,
        reduction: str = "mean",
        attributed: Sequence[int] | Tensor | None = None,
        keep_items: bool = False,
        frames: int | None = None,
        pit: str | None = None,
        **kwargs: Any,
    ) -> None:
        options = {name: kwargs.pop(name) for name in sorted(_MAPSS_OPTIONS & set(kwargs))}
        super().__init__(**kwargs)
        self._in_forward = False
        self.reduction, self.value = reduction, reduced_value(self.value, reduction)
        index = None if attributed is None else checks.whole_numbers(attributed, "attributed")
        frames = None if frames is None else checks.check_whole(frames, "frames", 1)
        self._request = Request(self.value.measure, index, frames, check_pit(pit, index))
        # In a tuple: no submodule, so that half() and float() leave it alone. _apply moves it.
        self._mapss = (resolve(mapss, encoder, options, self.value.measure),)
        self._keeps = keep_items or reduction == "none"
        self._add_states()
        if options.get("device") is not None:
            self.to(options["device"])

    def _add_states(self) -> None:
        # The first, because old versions of torchmetrics compare only that when they merge.
        mark = states.fingerprint(self.mapss, self.value, self._request, self.reduction == "none")
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
    def skipped(self) -> int:
        """Items handed in whose score is undefined, since the last reset, on this process.

        Within ``with metric.sync_context():`` the count over all processes.
        """
        return int(self.seen - self.items)

    def extra_repr(self) -> str:
        """Settings, for ``print``."""
        slot = MEASURES[self.value.measure].encoder
        shown = {} if slot is None else {"encoder": self.mapss.config.encoders[slot].name}
        shown |= {"value": self.value.column, "reduction": self.reduction}
        shown |= {k: v for k, v in self._request._asdict().items() if v is not None}
        return ", ".join(f"{name}={value!r}" for name, value in shown.items())

    # ------------------------------------------------------------------------- accumulating

    @with_torch_defaults
    def update(
        self, preds: Tensor, target: Target, lengths: Tensor | Sequence[int] | None = None
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
        if isinstance(preds, Tensor) and preds.device != self.device:
            raise ValueError(
                f"the metric on {self.device}, preds on {preds.device}, target on "
                f"{getattr(target, 'device', 'no device')}: move the metric with "
                f"metric.to({str(preds.device)!r}), or the signals with .to(device). A metric held "
                "as an attribute, in a torch.nn.ModuleDict or in a MetricCollection moves with its "
                "module; in a plain dict or list it does not."
            )
        with _named(type(self).__name__):
            true = None if lengths is None else checks.whole_numbers(lengths, "lengths")
            scores = frame_scores(self.mapss, preds, target, true, self._request)
        values = self.value.sources(scores)
        for name, more in states.batch_sums(values, self.item_sum.dtype).items():
            setattr(self, name, getattr(self, name) + more)
        self.sources = self.sources.clamp(min=values.shape[1])
        if self._keeps:
            each = self.value.frames(scores) if self.reduction == "none" else values[..., None]
            for stored, more in zip((self.history, self.shapes), states.rows_of(each)):
                stored.append(more)

    @with_torch_defaults
    def forward(self, *args: Any, **kwargs: Any) -> Any:
        """Add a batch and return its own value, at the cost of one :meth:`update`.

        The value is differentiable in ``preds``; what the metric keeps is not.
        """
        found = {name: getattr(self, name) for name in self._defaults}
        before = {n: [*state] if isinstance(state, list) else state for n, state in found.items()}
        counted, self._in_forward = self._update_count, True
        try:
            value = super().forward(*args, **kwargs)
        except BaseException:
            self._restore(before, counted)
            raise
        finally:
            self._in_forward = False
        # torchmetrics keeps the value, and with it the graph, which could not be copied.
        self._forward_cache = value.detach()
        return value

    def _restore(self, before: dict[str, Any], counted: int) -> None:
        """Undo what a failed forward has reset."""
        for name, state in before.items():
            setattr(self, name, state)
        self._update_count, self._computed, self._is_synced = counted, None, False
        self._enable_grad, self._should_unsync = False, True
        self._to_sync = self.sync_on_compute

    def reset(self) -> None:
        """Forget everything accumulated, history and the last batch included."""
        super().reset()
        if not self._in_forward:
            forget(self.mapss)

    # ------------------------------------------------------------------------- states

    def __setattr__(self, name: str, value: Any) -> None:
        """States keep their precision, also where a wrapper converts those of its metric."""
        value = states.in_precision(name, value) if name in states.DTYPES else value
        super().__setattr__(name, value)

    def _apply(self, fn: Callable, exclude_state: Sequence[str] = ()) -> PerceptualMetric:
        # Sums keep their precision, history stays on the CPU, whatever the conversion.
        before = self._device
        super()._apply(fn, exclude_state=tuple(self._defaults))
        self._computed = None  # a value that was kept has been converted, and rounded, as well
        if self._device == before:
            return self
        for name, default in self._defaults.items():
            if isinstance(default, Tensor):
                self._defaults[name] = back(default, self._device)
                setattr(self, name, back(getattr(self, name), self._device))
        self.mapss.to(self._device)
        return self

    def _sync_dist(self, dist_sync_fn: Any = None, process_group: Any = None) -> None:
        # Empty lists would be gathered with a dtype of their own, and lists on the CPU not at all
        # by a backend for accelerators.
        if self._keeps:
            empty = torch.zeros(0, dtype=torch.float32), torch.zeros(0, dtype=torch.int64)
            for name, blank in zip(("history", "shapes"), empty):
                setattr(self, name, [dim_zero_cat(getattr(self, name) or [blank]).to(self.device)])
        super()._sync_dist(dist_sync_fn, process_group)
        if self._keeps:
            for name in ("history", "shapes"):
                setattr(self, name, [dim_zero_cat(getattr(self, name)).cpu()])

    # ------------------------------------------------------------------------- results

    @with_torch_defaults
    def compute(self) -> Any:
        """The value over everything accumulated.

        Returns:
            By default a 0-dim float tensor; for other reductions see the class. NaN, with a
            warning, where nothing was defined. float32, also where the metric was converted to
            half precision; float64 after ``set_dtype(torch.float64)``.
        """
        seen = int(self.seen)
        if seen > 0 and int(self.items) == 0:
            rank_zero_warn(
                f"{type(self).__name__} is undefined (NaN) in all of the {seen} items: it needs "
                f"{self._needs}.",
                UserWarning,
            )
        if self.reduction == "none":
            return states.padded(states.items_of(self.history, self.shapes))
        value = states.ratio(self.item_sum, self.items)
        if self.reduction == "source":
            known = self._request.attributed  # before any update a source is NaN all the same
            sources = int(self.sources) or len(known or (0,))
            value = states.ratio(self.source_sum, self.source_count)[:sources]
        # Half precision would round a monitored score to 0.002 to 0.004.
        return back(value.to(torch.promote_types(self.dtype, torch.float32)), self.device)

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
        return plots.draw(val, self.value, self.higher_is_better, self.mapss.times, ax)


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
