"""One batch, encoded and scored once for all metrics that share a :class:`~torch_mapss.MAPSS`.

Beside it, how frame scores become one number per source and per item.
"""

from __future__ import annotations

import weakref
from collections.abc import Sequence
from typing import Any, NamedTuple

import torch
from torch import Tensor

from torch_mapss.bounds.utterance import pool_match_bounds
from torch_mapss.core.pooling import masked_mean, pool_separation
from torch_mapss.encoders import Encoder
from torch_mapss.pipeline.inputs import admit
from torch_mapss.pipeline.mapss import MAPSS, encode_checked
from torch_mapss.pipeline.permutation import best_order, check_permutable, placed
from torch_mapss.pipeline.records import ReferenceBank, ScoreBounds, Scores

Target = Tensor | ReferenceBank


class Pooling(NamedTuple):
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

    def half_widths(self, bounds: ScoreBounds) -> Tensor:
        """(B, S') of :meth:`sources`: the one rule of :mod:`torch_mapss.bounds.utterance`."""
        part = getattr(bounds, self.field)
        return pool_match_bounds(part.radius, part.tail, bounds.active).total


def item_means(values: Tensor) -> Tensor:
    """(B, S') -> (B,): mean over the sources that are defined, NaN where none is."""
    return masked_mean(values.nan_to_num(0.0), ~values.isnan())


def in_order(
    mapss: MAPSS,
    preds: Tensor,
    target: Target,
    lengths: Sequence[int] | None,
    measure: str,
    pit: str,
) -> Tensor:
    """Estimates in the order of their references, (B, S, T) or (S, T) as they came.

    Raises:
        TypeError, ValueError: input that cannot be scored, or not one estimate per reference.
    """
    call = admit(mapss, preds, target, None, lengths, measure)
    check_permutable(call, pit)
    return placed(preds, best_order(call))


class Seen:
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


class Batch:
    """What is remembered of the last batch: embeddings of its signals, and scores.

    It holds neither distortions nor a bank, which are a hundred times larger.
    """

    def __init__(self, preds: Tensor, target: Target, lengths: tuple[int, ...] | None) -> None:
        self.graph = _wants_graph(preds)
        self.inference = torch.is_inference_mode_enabled()
        self.preds, self.target = Seen(preds, self.graph), Seen(target, False)
        self.lengths = lengths
        self.embeddings: list[tuple[int, Tensor, Tensor]] = []  # id of encoder, signals, features
        self.results: dict[Any, Any] = {}
        self._ordered: Tensor | None = None

    def is_same(self, preds: Tensor, target: Target, lengths: tuple[int, ...] | None) -> bool:
        mode = _wants_graph(preds), torch.is_inference_mode_enabled(), lengths
        return (
            mode == (self.graph, self.inference, self.lengths)
            and self.preds.is_same(preds)
            and self.target.is_same(target)
        )

    def ordered(self, mapss: MAPSS, preds: Tensor, target: Target, wanted: Request) -> Tensor:
        """The estimates in the order of their references, found once for all metrics."""
        if self._ordered is None:
            assert wanted.pit is not None
            self._ordered = in_order(mapss, preds, target, self.lengths, wanted.measure, wanted.pit)
        return self._ordered

    def embed(self, encoder: Encoder, waves: Sequence[Tensor]) -> list[Tensor]:
        """Embeddings of ``waves``, computed if no equal signals were encoded before."""
        known = [self._known(encoder, signals) for signals in waves]
        missing = [signals for signals, features in zip(waves, known) if features is None]
        made = encode_checked(encoder, missing) if missing else []
        self.embeddings += [
            (id(encoder), w.detach(), features) for w, features in zip(missing, made)
        ]
        rest = iter(made)
        return [next(rest) if features is None else features for features in known]

    def _known(self, encoder: Encoder, waves: Tensor) -> Tensor | None:
        graph = _wants_graph(waves)
        for key, known, features in self.embeddings:
            if key == id(encoder) and graph == features.requires_grad and _equal(known, waves):
                return features
        return None


def _wants_graph(x: Tensor) -> bool:
    return x.requires_grad and torch.is_grad_enabled()


# The last batch of every MAPSS. With a graph only weakly: it lives as long as the value that was
# made of it (see :func:`anchor`), so that no graph outlives the user's interest in it.
_LAST: weakref.WeakKeyDictionary[MAPSS, Any] = weakref.WeakKeyDictionary()


def batch_of(mapss: MAPSS, preds: Tensor, target: Target, lengths: tuple[int, ...] | None) -> Batch:
    kept = _LAST.get(mapss)
    batch = kept() if isinstance(kept, weakref.ref) else kept
    if batch is None or not batch.is_same(preds, target, lengths):
        forget(mapss)  # before scoring: old and new need not be in memory together
        batch = Batch(preds, target, lengths)
        _LAST[mapss] = weakref.ref(batch) if batch.graph else batch
    return batch


def forget(mapss: MAPSS) -> None:
    """Drop what is remembered of the last batch."""
    _LAST.pop(mapss, None)


def anchor(value: Tensor, batch: Batch) -> None:
    """Keep ``batch`` alive as long as the graph of ``value``, which lies downstream of it."""
    if value.grad_fn is not None:
        value.grad_fn.metadata["torch_mapss.metrics"] = batch  # type: ignore[index]


class Request(NamedTuple):
    """What a metric wants to know of a batch."""

    measure: str
    attributed: tuple[int, ...] | None
    frames: int | None
    confidence: float | None  # of the half-width; None: not wanted
    pit: str | None = None  # how estimates find their references; None: they are in order
    tail: str = "concentration"  # of the bounds
    bounds_convention: str | None = None  # of the bounds; None: that of the scores

    @property
    def of_scores(self) -> Request:
        """The same without bounds."""
        return self._replace(confidence=None, tail="concentration", bounds_convention=None)


def frame_scores(
    mapss: MAPSS, preds: Tensor, target: Target, batch: Batch, wanted: Request
) -> tuple[Scores, ScoreBounds | None]:
    """Frame scores, and their bounds if asked for; with both encoded as rarely as can be."""
    key = wanted.of_scores
    if wanted.pit is not None:
        preds = batch.ordered(mapss, preds, target, wanted)
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
    bounds = None if wanted.confidence is None else batch.results[wanted]
    return batch.results[key], bounds


def _score_with_bounds(
    mapss: MAPSS, preds: Tensor, target: Target, batch: Batch, wanted: Request
) -> None:
    """Both measures at once, because a bound needs the distortions of both."""
    if isinstance(target, Tensor):
        target = mapss.prepare(target, batch.lengths)
    scores = mapss(preds, target, wanted.attributed, frames=wanted.frames)
    assert wanted.confidence is not None
    found = mapss.bounds(
        preds.detach(),
        target,
        wanted.confidence,
        wanted.attributed,
        convention=wanted.bounds_convention,
        tail=wanted.tail,
        frames=wanted.frames,  # the same ones: both draw with the generator they have by default
    )
    for measure in ("separation", "match"):
        here = wanted._replace(measure=measure)
        batch.results[here] = found
        batch.results[here.of_scores] = scores
