"""PS and PM as torchmetrics metrics, and as functions in torchmetrics' manner.

How frames become one number: frame -> source (mean over its scored frames, or the paper's pooling)
-> item (mean over its defined sources) -> set (mean over the items that have one). A source is
undefined, NaN, where it is silent or never sounds together with another; an item is undefined, and
counted in ``skipped``, where all its sources are.

Metrics that share a :class:`~torch_mapss.MAPSS` share its work: one batch, handed to any number of
them, is encoded once and scored once for each measure (see :class:`_Batch`). Sums are kept in
float64, so that an epoch gives the same value however it is split into batches and processes.
"""

from __future__ import annotations

import copy
import hashlib
import inspect
import json
import weakref
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any, NamedTuple

import torch
from torch import Tensor
from torchmetrics import Metric
from torchmetrics.utilities import dim_zero_cat, rank_zero_warn
from torchmetrics.utilities.plot import plot_single_or_multi_val

from torch_mapss import _checks
from torch_mapss.aggregate import PESQ_RANGE, masked_mean, pool_separation
from torch_mapss.bounds import check_confidence
from torch_mapss.encoders import CustomEncoder, Encoder
from torch_mapss.pipeline import MAPSS, encode_checked
from torch_mapss.records import ReferenceBank, Scores

Target = Tensor | ReferenceBank
EncoderChoice = str | Encoder | Callable[[Tensor], Tensor]
# State of fixed size, so that processes that saw nothing can be reduced with the others.
MAX_SOURCES = 64
DEFAULT_ENCODER = "wav2vec2-large"
# What the constructors below hand on to a MAPSS of their own.
_MAPSS_OPTIONS = frozenset(inspect.signature(MAPSS).parameters) - {"encoder"}


# ------------------------------------------------------------------------------------------------
# From frames to items
# ------------------------------------------------------------------------------------------------


class _Pooling(NamedTuple):
    """One measure, and how its frames become one number per source."""

    measure: str  # "separation" or "match"
    field: str  # of Scores
    pesq: bool = False

    def frames(self, scores: Scores) -> Tensor:
        """(B, S', F) with NaN where nothing is scored."""
        return torch.where(scores.active, getattr(scores, self.field), torch.nan)

    def sources(self, scores: Scores) -> Tensor:
        """(B, S') with NaN where no frame is scored."""
        frames = getattr(scores, self.field)
        if self.pesq:
            return pool_separation(frames, scores.active)
        return masked_mean(frames, scores.active)


def _item_means(values: Tensor) -> Tensor:
    """(B, S') -> (B,): mean over the sources that are defined, NaN where none is."""
    return masked_mean(values.nan_to_num(0.0), ~values.isnan())


# ------------------------------------------------------------------------------------------------
# One batch, scored once for all metrics
# ------------------------------------------------------------------------------------------------


class _Seen:
    """A tensor or bank that was handed in, to be recognised when it comes again.

    By its values and not by its address: equal waveforms have equal scores, so nothing can be
    stale, also when a tensor was overwritten in place. Only with a graph it must be the same
    object, unchanged, because equal values may hang on different graphs.
    """

    def __init__(self, x: Target, graph: bool) -> None:
        self.graph = graph
        self.owner = weakref.ref(x) if graph or isinstance(x, ReferenceBank) else None
        self.version = x._version if graph else 0  # type: ignore[union-attr]
        self.values = None if self.owner else x.detach().clone()  # type: ignore[union-attr]

    def is_same(self, x: Target) -> bool:
        if self.owner is not None:
            unchanged = not self.graph or x._version == self.version  # type: ignore[union-attr]
            return self.owner() is x and unchanged
        return isinstance(x, Tensor) and _equal(self.values, x)


def _equal(a: Tensor | None, b: Tensor) -> bool:
    same = a is not None and (a.shape, a.dtype, a.device) == (b.shape, b.dtype, b.device)
    return same and torch.equal(a, b)  # type: ignore[arg-type]


class _Batch:
    """What is remembered of the last batch: embeddings of its signals, and scores.

    It holds neither distortions nor a bank, which are a hundred times larger.
    """

    def __init__(self, preds: Tensor, target: Target, lengths: tuple[int, ...] | None) -> None:
        self.graph = _wants_graph(preds)
        self.inference = torch.is_inference_mode_enabled()
        self.preds, self.target = _Seen(preds, self.graph), _Seen(target, False)
        self.lengths = lengths
        self.embeddings: list[tuple[int, Tensor, Tensor]] = []  # id of encoder, signals, features
        self.results: dict[Any, Any] = {}

    def is_same(self, preds: Tensor, target: Target, lengths: tuple[int, ...] | None) -> bool:
        mode = _wants_graph(preds), torch.is_inference_mode_enabled(), lengths
        return (
            mode == (self.graph, self.inference, self.lengths)
            and self.preds.is_same(preds)
            and self.target.is_same(target)
        )

    def embed(self, encoder: Encoder, waves: Tensor) -> Tensor:
        """Embeddings of ``waves``, computed if no equal signals were encoded before."""
        graph = _wants_graph(waves)
        for key, known, features in self.embeddings:
            if key == id(encoder) and graph == features.requires_grad and _equal(known, waves):
                return features
        features = encode_checked(encoder, waves)
        self.embeddings.append((id(encoder), waves.detach(), features))
        return features


def _wants_graph(x: Tensor) -> bool:
    return x.requires_grad and torch.is_grad_enabled()


# The last batch of every MAPSS. With a graph only weakly: it lives as long as the value that was
# made of it (see _anchor), so that no graph outlives the user's interest in it.
_LAST: weakref.WeakKeyDictionary[MAPSS, Any] = weakref.WeakKeyDictionary()


def _batch_of(
    mapss: MAPSS, preds: Tensor, target: Target, lengths: tuple[int, ...] | None
) -> _Batch:
    kept = _LAST.get(mapss)
    batch = kept() if isinstance(kept, weakref.ref) else kept
    if batch is None or not batch.is_same(preds, target, lengths):
        _LAST.pop(mapss, None)  # before scoring: old and new need not be in memory together
        batch = _Batch(preds, target, lengths)
        _LAST[mapss] = weakref.ref(batch) if batch.graph else batch
    return batch


def _anchor(value: Tensor, batch: _Batch) -> None:
    """Keep ``batch`` alive as long as the graph of ``value``, which lies downstream of it."""
    if value.grad_fn is not None:
        value.grad_fn.metadata["torch_mapss.metrics"] = batch  # type: ignore[index]


class _Request(NamedTuple):
    """What a metric wants to know of a batch."""

    measure: str
    attributed: tuple[int, ...] | None
    frames: int | None
    confidence: float | None  # of the half-width; None: not wanted


def _scores(
    mapss: MAPSS, preds: Tensor, target: Target, batch: _Batch, wanted: _Request
) -> tuple[Scores, Tensor | None]:
    """Frame scores, and the half-width (B, S') of their mean if asked for."""
    key = wanted._replace(confidence=None)
    with mapss.recalling(batch.embed):
        if wanted.confidence is not None and wanted not in batch.results:
            _score_with_bounds(mapss, preds, target, batch, wanted)
        if key not in batch.results:
            batch.results[key] = mapss(
                preds,
                target,
                wanted.attributed,
                batch.lengths,
                measures=wanted.measure,
                frames=wanted.frames,
            )
    width = None if wanted.confidence is None else batch.results[wanted]
    return batch.results[key], width


def _score_with_bounds(
    mapss: MAPSS, preds: Tensor, target: Target, batch: _Batch, wanted: _Request
) -> None:
    """Both measures at once, because a bound needs the distortions of both."""
    if isinstance(target, Tensor):
        target = mapss.prepare(target, batch.lengths)
    scores = mapss(preds, target, wanted.attributed, frames=wanted.frames)
    confidence = wanted.confidence
    found = mapss.bounds(preds.detach(), target, confidence, wanted.attributed)  # type: ignore[arg-type]
    for measure, bounds in zip(("separation", "match"), (found.ps, found.pm)):
        here = wanted._replace(measure=measure)
        # |mean of scores - mean of truths| <= mean of |score - truth|: the mean of the frames'
        # half-widths holds for the mean score whatever the dependence between frames.
        batch.results[here] = masked_mean(bounds.total, found.active)
        batch.results[here._replace(confidence=None)] = scores


# ------------------------------------------------------------------------------------------------
# Functional forms
# ------------------------------------------------------------------------------------------------


def perceptual_separation(
    preds: Tensor,
    target: Target,
    mapss: MAPSS | None = None,
    *,
    encoder: EncoderChoice = DEFAULT_ENCODER,
    reduction: str = "mean",
    lengths: Tensor | Sequence[int] | None = None,
    attributed: Sequence[int] | Tensor | None = None,
    **options: Any,
) -> Tensor:
    """PS, freedom from leakage, of every item of a batch: in [0, 1], higher is better.

    Args:
        preds: (B, S', T) estimates at the encoder's rate (16 kHz by default; ``sample_rate=``
            resamples).
        target: (B, S, T) references, S at least 2, or a bank of them (:meth:`MAPSS.prepare`).
        mapss: scores with it; one is made of ``encoder`` and ``options`` if None.
        encoder: as for :class:`~torch_mapss.MAPSS`.
        reduction: ``"mean"`` over frames and sources, (B,); ``"source"``: (B, S');
            ``"pesq"``: the paper's pooling over frames, then the mean over sources, (B,) in
            [1.085, 1.315]; ``"none"``: frame scores (B, S', F).
        lengths: (B,) true lengths in samples of a padded batch.
        attributed: (S',) the reference each estimate belongs to; all in order if None.
        options: further keywords of :class:`~torch_mapss.MAPSS`.

    Returns:
        The scores, differentiable in ``preds``, NaN where undefined (see the module).

    Raises:
        TypeError, ValueError: input that cannot be scored, see :meth:`MAPSS.forward`; (S, T) or
            (B, T) input, which cannot be told apart.

    Example:
        >>> import torch
        >>> from torch_mapss.metrics import perceptual_separation
        >>> target = torch.randn(4, 2, 8000)
        >>> perceptual_separation(target, target, encoder="mel").shape
        torch.Size([4])

    It fits torchmetrics' :func:`permutation_invariant_training` with ``mode="permutation-wise"``.
    Speaker-wise mode hands over one estimate and one reference at a time, of which PS is not
    defined, and is refused. All S! permutations are scored and their references distorted anew:
    :func:`torch_mapss.match_sources` finds the order by SI-SDR at a fraction of the cost.
    """
    _checks.check_choice(reduction, "reduction", ("mean", "source", "pesq", "none"))
    pooling = _Pooling("separation", "ps", reduction == "pesq")
    mapss = _resolve(mapss, encoder, options)
    return _functional(pooling, reduction, mapss, preds, target, attributed, lengths)


def perceptual_match(
    preds: Tensor,
    target: Target,
    mapss: MAPSS | None = None,
    *,
    encoder: EncoderChoice = DEFAULT_ENCODER,
    reduction: str = "mean",
    log: bool = False,
    lengths: Tensor | Sequence[int] | None = None,
    attributed: Sequence[int] | Tensor | None = None,
    **options: Any,
) -> Tensor:
    """PM, freedom from distortion, of every item of a batch: in [0, 1], higher is better.

    Args:
        preds, target, mapss, encoder, lengths, attributed, options: as for
            :func:`perceptual_separation`.
        reduction: ``"mean"`` over frames and sources, (B,); ``"source"``: (B, S'); ``"none"``:
            frame scores (B, S', F).
        log: log PM, at most 0: its mean over frames still ranks where PM has saturated at 0.

    Returns:
        The scores, differentiable in ``preds``, NaN where undefined (see the module).

    Raises:
        TypeError, ValueError: as for :func:`perceptual_separation`.
    """
    _checks.check_choice(reduction, "reduction", ("mean", "source", "none"))
    pooling = _Pooling("match", "log_pm" if log else "pm")
    mapss = _resolve(mapss, encoder, options)
    return _functional(pooling, reduction, mapss, preds, target, attributed, lengths)


def _functional(
    pooling: _Pooling,
    reduction: str,
    mapss: MAPSS,
    preds: Tensor,
    target: Target,
    attributed: Sequence[int] | Tensor | None,
    lengths: Tensor | Sequence[int] | None,
) -> Tensor:
    if isinstance(preds, Tensor) and preds.ndim == 2:
        raise ValueError(
            f"preds must have shape (B, S, T), got {tuple(preds.shape)}. If these are the sources "
            "of one mixture, pass preds.unsqueeze(0) and target.unsqueeze(0). If a permutation "
            "wrapper passed one source of each mixture: PS and PM compare an estimate with all "
            "sources of its mixture and have no speaker-wise value, use mode='permutation-wise'."
        )
    scores = mapss(preds, target, attributed, lengths, measures=pooling.measure)
    if reduction == "none":
        return pooling.frames(scores)
    sources = pooling.sources(scores)
    return sources if reduction == "source" else _item_means(sources)


def _resolve(mapss: MAPSS | None, encoder: EncoderChoice, options: dict[str, Any]) -> MAPSS:
    """The MAPSS given, or one made of the other arguments."""
    if mapss is None:
        return MAPSS(encoder, **options)
    if not isinstance(mapss, MAPSS):
        raise TypeError(
            f"mapss must be a torch_mapss.MAPSS, got {type(mapss).__name__}. An encoder is passed "
            "by keyword: encoder='mel'."
        )
    extra = sorted(options) + ([] if encoder == DEFAULT_ENCODER else ["encoder"])
    if extra:
        raise ValueError(
            f"{', '.join(extra)} cannot be applied to the MAPSS that was given. Set them when "
            "making it: MAPSS(encoder, ...)."
        )
    return mapss


# ------------------------------------------------------------------------------------------------
# Metrics
# ------------------------------------------------------------------------------------------------


class _PerceptualMetric(Metric):
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
        pooling: _Pooling,
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
        self._mapss = (_resolve(mapss, encoder, options),)
        self.reduction, self.keep_items, self.half_width = reduction, keep_items, half_width
        self._pooling, self._in_forward = pooling, False
        self._keeps = keep_items or reduction == "none"
        index = None if attributed is None else tuple(_listed(attributed))
        self._request = _Request(pooling.measure, index, frames, half_width)
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
        self.add_state("fingerprint", self._settings_hash(), dist_reduce_fx="max")
        if self._keeps:
            self.add_state("history", [], dist_reduce_fx="cat")  # (S' · F) values of each item
            self.add_state("shapes", [], dist_reduce_fx="cat")  # S' and F of each item

    def _settings_hash(self) -> Tensor:
        """(4,) numbers that differ between metrics of different settings.

        A MetricCollection merges metrics whose states are equal after the first batch. Two of
        different encoders may agree there by chance, e.g. if that batch is silent; this state
        never does.
        """
        custom = [id(e.function) for e in self.mapss._encoders if isinstance(e, CustomEncoder)]
        settings = [self.mapss.key, self.mapss.describe(), self._pooling, self._request, custom]
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
        true = None if lengths is None else tuple(_listed(lengths))
        batch = _batch_of(self.mapss, preds, target, true)
        with self._named():
            scores, width = _scores(self.mapss, preds, target, batch, self._request)
        self._add(self._pooling.sources(scores), width, batch)
        if self._keeps:
            self._keep(scores)

    def _add(self, values: Tensor, width: Tensor | None, batch: _Batch) -> None:
        count, sources = values.shape
        if sources > MAX_SOURCES:
            raise ValueError(f"at most {MAX_SOURCES} sources can be averaged, got {sources}.")
        dtype = self.item_sum.dtype
        means, defined = _item_means(values), ~values.isnan()
        total = means.nan_to_num(0.0).to(dtype).sum()
        _anchor(total, batch)
        padding = (0, MAX_SOURCES - sources)
        by_source = values.nan_to_num(0.0).to(dtype).sum(0)
        self.item_sum = self.item_sum + total
        self.items = self.items + (~means.isnan()).sum()
        self.seen = self.seen + count
        self.source_sum = self.source_sum + torch.nn.functional.pad(by_source, padding)
        self.source_count = self.source_count + torch.nn.functional.pad(defined.sum(0), padding)
        self.sources = self.sources.clamp(min=sources)
        if width is not None:
            self.width_sum = self.width_sum + _item_means(width).nan_to_num(0.0).to(dtype).sum()

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
            _LAST.pop(self.mapss, None)

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
            sources = int(self.sources)
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
        return _padded(items).squeeze(-1)

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

    def _apply(self, fn: Callable, exclude_state: Sequence[str] = ()) -> _PerceptualMetric:
        # Sums keep their precision, history stays on the CPU, whatever the conversion.
        before = self._device
        super()._apply(fn, exclude_state=tuple(self._defaults))
        if self._device == before:
            return self
        for name, default in self._defaults.items():
            if isinstance(default, Tensor):
                self._defaults[name] = _on(default, self._device)
                setattr(self, name, _on(getattr(self, name), self._device))
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

    def __deepcopy__(self, memo: dict[int, Any]) -> _PerceptualMetric:
        """A copy with states of its own; the weights of the encoder are shared."""
        for encoder in self.mapss._encoders:
            if isinstance(encoder, CustomEncoder):  # pretrained ones share by themselves
                memo[id(encoder)] = encoder
        clone = type(self).__new__(type(self))
        memo[id(self)] = clone
        clone.__setstate__(copy.deepcopy(self.__getstate__(), memo))
        return clone


class PerceptualSeparation(_PerceptualMetric):
    """Mean PS over a set: how free the estimates are of the other sources.

    In [0, 1], higher is better: 1 is no leakage, 1/2 means that an estimate is as close to another
    source as to its own. Input of ``update`` and ``forward``:

    - ``preds``: (B, S', T) or (S', T) estimates, at the encoder's rate (16 kHz for all but
      ``mert``; ``sample_rate=`` resamples)
    - ``target``: (B, S, T) or (S, T) references, S at least 2, or a bank made of them by
      :meth:`torch_mapss.MAPSS.prepare`
    - ``lengths``: (B,) true lengths in samples, if the batch is padded

    Args:
        mapss: a :class:`torch_mapss.MAPSS` to score with. Give one to all metrics and losses: they
            then share its encoder, and metrics also the work on a batch. Metrics that are given
            none still share the weights of a named encoder, but each encodes for itself.
        encoder: makes a MAPSS if ``mapss`` is None.
        reduction: what ``compute`` returns. ``"mean"``: a 0-dim tensor, the mean over items.
            ``"source"``: (S',), the mean of each source by its place (log it with ``log_dict``).
            ``"pesq"``: 0-dim, with the paper's pooling over frames, in [1.085, 1.315]. ``"none"``:
            frame scores (n, S', F) on the CPU, NaN where undefined; these grow with every update.
        attributed: (S',) the reference each estimate belongs to; all in order if None.
            ``attributed=(0,)`` scores one estimate against the first of the references.
        keep_items: also keep every item's scores, on the CPU, for :meth:`item_scores`.
        half_width: a confidence in (0, 1), e.g. 0.95: ``compute`` then returns a dictionary of the
            mean ``"ps"`` and its ``"ps_half_width"``, the mean of the frames' error bounds
            (truncation plus tail), which bounds the error of the mean. Costs about as much again.
        frames: score at most so many frames of a batch, drawn at random: cheaper and coarser.
        kwargs: keywords of :class:`torch_mapss.MAPSS` (``layer``, ``sample_rate``, ``trim``,
            ``seed``, ...) and of :class:`torchmetrics.Metric` (``sync_on_compute``, ...).

    Attributes:
        mapss: the MAPSS in use.
        skipped: items whose score is undefined so far; they are left out of every mean.

    Raises:
        TypeError, ValueError: arguments that do not fit, see the message.

    Example:
        >>> import torch
        >>> from torch_mapss import PerceptualSeparation
        >>> target = torch.randn(2, 2, 8000)
        >>> metric = PerceptualSeparation(encoder="mel")
        >>> metric.update(target, target)
        >>> metric.compute().shape
        torch.Size([])
    """

    def __init__(
        self,
        mapss: MAPSS | None = None,
        *,
        encoder: EncoderChoice = DEFAULT_ENCODER,
        reduction: str = "mean",
        attributed: Sequence[int] | Tensor | None = None,
        keep_items: bool = False,
        half_width: float | None = None,
        frames: int | None = None,
        **kwargs: Any,
    ) -> None:
        _checks.check_choice(reduction, "reduction", ("mean", "source", "pesq", "none"))
        pooling = _Pooling("separation", "ps", reduction == "pesq")
        super().__init__(
            mapss, encoder, pooling, reduction, attributed, keep_items, half_width, frames, kwargs
        )


class PerceptualMatch(_PerceptualMetric):
    """Mean PM over a set: how undistorted the estimates are.

    In [0, 1], higher is better: 1 is indistinguishable from the reference, 0 outside everything
    that the distortions of the reference reach. Input as for :class:`PerceptualSeparation`.

    Args:
        mapss, encoder, attributed, keep_items, frames, kwargs: as for
            :class:`PerceptualSeparation`.
        reduction: ``"mean"``, ``"source"`` or ``"none"``, as for :class:`PerceptualSeparation`;
            the paper's pooling of PM is the mean.
        log: accumulate log PM, at most 0. PM saturates at 0 on audible distortion; its log goes on
            ranking.
        half_width: as for :class:`PerceptualSeparation`, under ``"pm"`` and ``"pm_half_width"``;
            not with ``log``.

    Raises:
        TypeError, ValueError: arguments that do not fit, see the message.

    Example:
        >>> import torch
        >>> from torch_mapss import MAPSS, PerceptualMatch, PerceptualSeparation
        >>> from torchmetrics import MetricCollection
        >>> mapss = MAPSS("mel")
        >>> metrics = MetricCollection({"ps": PerceptualSeparation(mapss),
        ...                             "pm": PerceptualMatch(mapss)})
        >>> target = torch.randn(2, 2, 8000)
        >>> sorted(metrics(target, target))
        ['pm', 'ps']
    """

    def __init__(
        self,
        mapss: MAPSS | None = None,
        *,
        encoder: EncoderChoice = DEFAULT_ENCODER,
        reduction: str = "mean",
        log: bool = False,
        attributed: Sequence[int] | Tensor | None = None,
        keep_items: bool = False,
        half_width: float | None = None,
        frames: int | None = None,
        **kwargs: Any,
    ) -> None:
        _checks.check_choice(reduction, "reduction", ("mean", "source", "none"))
        pooling = _Pooling("match", "log_pm" if log else "pm")
        super().__init__(
            mapss, encoder, pooling, reduction, attributed, keep_items, half_width, frames, kwargs
        )


# ------------------------------------------------------------------------------------------------
# Small parts
# ------------------------------------------------------------------------------------------------


def _check_tensor(x: object, name: str) -> None:
    accepted = "a tensor of shape (B, S, T) or (S, T)"
    if not isinstance(x, Tensor):
        bank = " or a ReferenceBank" if name == "target" else ""
        raise TypeError(
            f"{name} must be {accepted}{bank}, got {type(x).__name__}. Convert it with "
            "torch.as_tensor."
        )


def _listed(values: Tensor | Sequence[int]) -> list[Any]:
    """Integers as a list; the MAPSS checks what they are."""
    found = values.tolist() if isinstance(values, Tensor) else values
    return list(found) if isinstance(found, Sequence) else [found]


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


def _on(tensor: Tensor, device: torch.device) -> Tensor:
    """The tensor on a device; sums in float32 where that has no float64."""
    if device.type == "mps" and tensor.dtype == torch.float64:
        return tensor.to(device, torch.float32)
    return tensor.to(device)


@contextmanager
def _axes(ax: Any) -> Iterator[Any]:
    from matplotlib import pyplot

    yield pyplot.subplots()[1] if ax is None else ax


def _plot_frames(
    values: Tensor, times: Tensor, label: str, limits: tuple[float | None, float | None], ax: Any
) -> tuple[Any, Any]:
    """One line per item and source; NaN are gaps."""
    with _axes(ax) as axes:
        for item, rows in enumerate(values.detach().cpu()):
            for source, row in enumerate(rows):
                axes.plot(times.numpy(), row.numpy(), label=f"item {item}, source {source}")
        axes.set_xlabel("Time (s)")
        axes.set_ylabel(label)
        axes.set_ylim(*limits)
        axes.grid(True)
    return axes.figure, axes
