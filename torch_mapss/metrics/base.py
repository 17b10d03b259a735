"""State and manners that both metrics share."""

from __future__ import annotations

import copy
import hashlib
import inspect
import json
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor
from torchmetrics import Metric
from torchmetrics.utilities import dim_zero_cat, rank_zero_warn
from torchmetrics.utilities.plot import plot_single_or_multi_val

from torch_mapss.bounds.frames import check_confidence
from torch_mapss.core import checks
from torch_mapss.core.aggregate import PESQ_RANGE, masked_mean
from torch_mapss.core.devices import back
from torch_mapss.encoders import CustomEncoder
from torch_mapss.metrics.shared_batch import (
    Batch,
    Pooling,
    Request,
    Target,
    anchor,
    batch_of,
    forget,
    frame_scores,
    item_means,
)
from torch_mapss.pipeline.mapss import MAPSS, EncoderChoice, resolve
from torch_mapss.pipeline.records import ReferenceBank, ScoreBounds, Scores

# State of fixed size, so that processes that saw nothing can be reduced with the others.
MAX_SOURCES = 64
# What the constructors below hand on to a MAPSS of their own.
_MAPSS_OPTIONS = frozenset(inspect.signature(MAPSS).parameters) - {"encoder"}


class PerceptualMetric(Metric):
    """State and manners that both metrics share."""

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
    history: list[Tensor]
    shapes: list[Tensor]

    def __init__(
        self,
        mapss: MAPSS | None,
        encoder: EncoderChoice,
        pooling: Pooling,
        reduction: str,
        attributed: Sequence[int] | Tensor | None,
        keep_items: bool,
        half_width: float | None,
        frames: int | None,
        kwargs: dict[str, Any],
    ) -> None:
        options = {name: kwargs.pop(name) for name in sorted(_MAPSS_OPTIONS & set(kwargs))}
        super().__init__(**kwargs)
        # In a tuple: no submodule, so that half() and float() leave it alone. _apply moves it.
        self._mapss = (resolve(mapss, encoder, options),)
        self.reduction, self.keep_items, self.half_width = reduction, keep_items, half_width
        self._pooling, self._in_forward = pooling, False
        self._keeps = keep_items or reduction == "none"
        index = None if attributed is None else checks.whole_numbers(attributed, "attributed")
        self._request = Request(pooling.measure, index, frames, half_width)
        if half_width is not None and (pooling.pesq or pooling.field == "log_pm"):
            raise ValueError(
                "half_width is the error of a plain mean of PS or PM. Leave it out with "
                "reduction='pesq' and with log=True, which have none."
            )
        if half_width is not None:
            check_confidence(half_width)
        self._add_states()
        if "device" in options:
            self.to(options["device"])

    def _add_states(self) -> None:
        zero = torch.zeros((), dtype=torch.float64)
        count = torch.zeros((), dtype=torch.int64)
        many = torch.zeros(MAX_SOURCES, dtype=torch.float64)
        # The first, because old versions of torchmetrics compare only that, see _settings_hash.
        self.add_state("fingerprint", self._settings_hash(), dist_reduce_fx="max")
        for name, default in (
            ("item_sum", zero),  # of the items that have a value
            ("items", count),  # how many have one
            ("seen", count),  # how many were handed in
            ("source_sum", many),  # the same, for each source by its place
            ("source_count", many.long()),
            ("width_sum", zero),
        ):
            self.add_state(name, default.clone(), dist_reduce_fx="sum")
        self.add_state("sources", count.clone(), dist_reduce_fx="max")  # S'
        if self._keeps:
            self.add_state("history", [], dist_reduce_fx="cat")  # (S' · F) values of each item
            self.add_state("shapes", [], dist_reduce_fx="cat")  # S' and F of each item

    def _settings_hash(self) -> Tensor:
        """(4,) numbers that differ between metrics of different settings.

        A MetricCollection merges metrics whose states are equal after the first batch. Two of
        different encoders may agree there by chance, e.g. if that batch is silent; this state
        never does.
        """
        custom = [id(e.function) for e in self.mapss.encoders if isinstance(e, CustomEncoder)]
        settings: list[Any] = [self.mapss.key, self.mapss.describe(), self._pooling]
        settings += [self._request, custom, self.reduction == "none"]  # which has another history
        digest = hashlib.sha256(json.dumps(settings, default=str).encode()).digest()
        return torch.tensor([int.from_bytes(digest[i : i + 3], "big") for i in range(0, 12, 3)])

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

    # ------------------------------------------------------------------------- accumulating

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
        _check_tensor(preds, "preds")
        if not isinstance(target, ReferenceBank):
            _check_tensor(target, "target")
        self._check_devices(preds, target)
        true = None if lengths is None else checks.whole_numbers(lengths, "lengths")
        batch = batch_of(self.mapss, preds, target, true)
        with self._named():
            scores, bounds = frame_scores(self.mapss, preds, target, batch, self._request)
        self._add(self._pooling.sources(scores), self._widths(bounds), batch)
        if self._keeps:
            self._keep(scores)

    def _add(self, values: Tensor, width: Tensor | None, batch: Batch) -> None:
        anchor(values, batch)
        count, sources = values.shape
        if sources > MAX_SOURCES:
            raise ValueError(f"at most {MAX_SOURCES} sources can be averaged, got {sources}.")
        dtype = self.item_sum.dtype
        means, defined = item_means(values), ~values.isnan()
        total = means.nan_to_num(0.0).to(dtype).sum()
        padding = (0, MAX_SOURCES - sources)
        by_source = values.nan_to_num(0.0).to(dtype).sum(0)
        self.item_sum = self.item_sum + total
        self.items = self.items + (~means.isnan()).sum()
        self.seen = self.seen + count
        self.source_sum = self.source_sum + torch.nn.functional.pad(by_source, padding)
        self.source_count = self.source_count + torch.nn.functional.pad(defined.sum(0), padding)
        self.sources = self.sources.clamp(min=sources)
        if width is not None:
            self.width_sum = self.width_sum + item_means(width).nan_to_num(0.0).to(dtype).sum()

    def _widths(self, bounds: ScoreBounds | None) -> Tensor | None:
        """(B, S') half-widths of the mean over frames.

        |mean of scores - mean of truths| <= mean of |score - truth|: the mean of the frames'
        half-widths holds for the mean score, whatever the dependence between frames.
        """
        if bounds is None:
            return None
        return masked_mean(getattr(bounds, self._pooling.field).total, bounds.active)

    def _keep(self, scores: Scores) -> None:
        """Append the items to the history, flat and on the CPU."""
        with torch.no_grad():
            if self.reduction == "none":
                values = self._pooling.frames(scores)
            else:
                values = self._pooling.sources(scores).unsqueeze(-1)
        shape = torch.tensor(values.shape[1:]).repeat(len(values))
        self.history.append(values.detach().to("cpu", torch.float32).flatten())
        self.shapes.append(shape)

    def forward(self, *args: Any, **kwargs: Any) -> Any:
        """Add a batch and return its own value, at the price of one :meth:`update`.

        The value is differentiable in ``preds``; what the metric keeps is not.
        """
        before = {name: _copied(getattr(self, name)) for name in self._defaults}
        counted, self._in_forward = self._update_count, True
        try:
            value = super().forward(*args, **kwargs)
        except BaseException:
            self._restore(before, counted)
            raise
        finally:
            self._in_forward = False
        # torchmetrics keeps the value, and with it the graph, which could not be copied.
        self._forward_cache = _detached(value)
        return value

    def _restore(self, states: dict[str, Any], counted: int) -> None:
        """Undo what a failed forward has reset."""
        for name, state in states.items():
            setattr(self, name, state)
        self._update_count, self._computed, self._is_synced = counted, None, False
        self._enable_grad, self._should_unsync = False, True
        self._to_sync = self.sync_on_compute

    def reset(self) -> None:
        """Forget everything accumulated, history and the last batch included."""
        super().reset()
        if not self._in_forward:
            forget(self.mapss)

    # ------------------------------------------------------------------------- results

    def compute(self) -> Any:
        """The value over everything accumulated.

        Returns:
            By default a 0-dim float tensor; for other settings see the class. NaN, with a
            warning, where nothing was defined.
        """
        seen = int(self.seen)
        if seen > 0 and int(self.items) == 0:
            rank_zero_warn(
                f"{type(self).__name__} is undefined (NaN): in none of the {seen} items is a "
                "frame in which two references sound together.",
                UserWarning,
            )
        if self.reduction == "none":
            return self._frame_scores()
        value = self._value().to(self.dtype)
        if self.half_width is None:
            return value
        width = _ratio(self.width_sum, self.items).to(self.dtype)
        return {self._pooling.field: value, f"{self._pooling.field}_half_width": width}

    def _value(self) -> Tensor:
        if self.reduction == "source":
            known = self._request.attributed  # before any update a source is NaN all the same
            sources = int(self.sources) or len(known or (0,))
            return _ratio(self.source_sum, self.source_count)[:sources]
        return _ratio(self.item_sum, self.items)

    def _frame_scores(self) -> Tensor:
        """(n, S', F), shorter items filled up with NaN, on the CPU."""
        return _padded(self._each_item())

    def _each_item(self) -> list[Tensor]:
        """(S', F) of every item kept."""
        if not self.history:
            return []
        values = dim_zero_cat(self.history).cpu()
        shapes = dim_zero_cat(self.shapes).cpu().reshape(-1, 2).tolist()
        found, start = [], 0
        for sources, frames in shapes:
            found.append(values[start : start + sources * frames].reshape(sources, frames))
            start += sources * frames
        return found

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
        items = [
            masked_mean(i.nan_to_num(0.0), ~i.isnan()).unsqueeze(-1) for i in self._each_item()
        ]
        return _padded(items).squeeze(-1) if items else torch.zeros(0, 0)

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
        low, high = self._plot_range()
        if isinstance(val, Tensor) and val.ndim == 3:
            return _plot_frames(
                val, self.mapss.times(val.shape[-1]), self._label(), (low, high), ax
            )
        _, axes = plot_single_or_multi_val(
            val,
            ax=ax,
            higher_is_better=self.higher_is_better,
            name=self._label(),
            lower_bound=low,
            upper_bound=high,
            legend_name=self.plot_legend_name,
        )
        return axes.figure, axes  # type: ignore[union-attr]

    def _plot_range(self) -> tuple[float | None, float | None]:
        if self._pooling.pesq:
            return PESQ_RANGE[0], PESQ_RANGE[1]
        return (None, 0.0) if self._pooling.field == "log_pm" else (0.0, 1.0)

    def _label(self) -> str:
        names = {"ps": "Perceptual Separation", "pm": "Perceptual Match", "log_pm": "log PM (nats)"}
        if self._pooling.pesq:
            return "Perceptual Separation (1.085 to 1.315)"
        name = names[self._pooling.field]
        return name if self._pooling.field == "log_pm" else f"{name} (0 to 1)"

    # ------------------------------------------------------------------------- moving, copying

    @contextmanager
    def _named(self) -> Iterator[None]:
        """Say in errors about the input which arguments they are about."""
        try:
            yield
        except (TypeError, ValueError) as error:
            if type(error) not in (TypeError, ValueError):
                raise
            where = f"{type(self).__name__}.update(preds=estimates, target=references): "
            raise type(error)(f"{where}{error}") from error

    def _check_devices(self, preds: Tensor, target: Target) -> None:
        devices = {"the metric": self.device, "preds": preds.device, "target": target.device}
        if len(set(devices.values())) == 1:
            return
        listed = ", ".join(f"{name} on {device}" for name, device in devices.items())
        remedy = "preds and target must share a device: move them with .to(device)"
        if preds.device == target.device:
            remedy = f"move the metric with metric.to({str(preds.device)!r})"
        raise ValueError(
            f"{listed}: {remedy}. A metric held as an attribute, in a torch.nn.ModuleDict or in a "
            "MetricCollection moves with its module; in a plain dict or list it does not."
        )

    def _apply(self, fn: Callable, exclude_state: Sequence[str] = ()) -> PerceptualMetric:
        # Sums keep their precision, history stays on the CPU, whatever the conversion.
        before = self._device
        super()._apply(fn, exclude_state=tuple(self._defaults))
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
            empty = torch.zeros(0), torch.zeros(0, dtype=torch.int64)
            for name, blank in zip(("history", "shapes"), empty):
                setattr(self, name, [dim_zero_cat(getattr(self, name) or [blank]).to(self.device)])
        super()._sync_dist(dist_sync_fn, process_group)
        if self._keeps:
            for name in ("history", "shapes"):
                setattr(self, name, [dim_zero_cat(getattr(self, name)).cpu()])

    def __deepcopy__(self, memo: dict[int, Any]) -> PerceptualMetric:
        """A copy with states of its own; the weights of the encoder are shared."""
        clone = type(self).__new__(type(self))
        memo[id(self)] = clone
        clone.__setstate__(copy.deepcopy(self.__getstate__(), memo))
        return clone


def _check_tensor(x: object, name: str) -> None:
    accepted = "a tensor of shape (B, S, T) or (S, T)"
    if not isinstance(x, Tensor):
        bank = " or a ReferenceBank" if name == "target" else ""
        raise TypeError(
            f"{name} must be {accepted}{bank}, got {type(x).__name__}. Convert it with "
            "torch.as_tensor."
        )
    checks.check_plain(x, name)


def _ratio(total: Tensor, count: Tensor) -> Tensor:
    """total/count, NaN (without a gradient) where nothing was counted."""
    return torch.where(count > 0, total / count.clamp(min=1), torch.nan)


def _padded(items: Sequence[Tensor]) -> Tensor:
    """(S', F) of each item as one (n, S', F), filled up with NaN."""
    sources = max((len(item) for item in items), default=0)
    frames = max((item.shape[1] for item in items), default=0)
    table = torch.full((len(items), sources, frames), torch.nan)
    for row, item in zip(table, items):
        row[: len(item), : item.shape[1]] = item
    return table


def _copied(state: Any) -> Any:
    return list(state) if isinstance(state, list) else state


def _detached(value: Any) -> Any:
    if isinstance(value, dict):
        return {name: _detached(entry) for name, entry in value.items()}
    return value.detach() if isinstance(value, Tensor) else value


def _plot_frames(
    values: Tensor, times: Tensor, label: str, limits: tuple[float | None, float | None], ax: Any
) -> tuple[Any, Any]:
    """One line per item and source; NaN are gaps."""
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
