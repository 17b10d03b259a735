"""Scores of the last batch, shared by all metrics of one :class:`~torch_mapss.MAPSS`.

A batch that comes again, for another metric, is recognised by its values, and scored once for each
measure. The measures that the batch before was asked for are computed together in one call, which
encodes references and estimates once. With a graph each metric scores for itself: detach estimates
that are only logged.
"""

from __future__ import annotations

import weakref
from dataclasses import dataclass, field
from typing import NamedTuple

import torch
from torch import Tensor

from torch_mapss.pipeline.bank import ReferenceBank
from torch_mapss.pipeline.mapss import MAPSS
from torch_mapss.pipeline.order import in_order
from torch_mapss.pipeline.scores import Scores

Target = Tensor | ReferenceBank
Lengths = tuple[int, ...] | None


class Request(NamedTuple):
    """What a metric needs of a batch."""

    measure: str
    attributed: tuple[int, ...] | None = None
    frames: int | None = None
    pit: str | None = None


@dataclass
class _Batch:
    preds: Tensor
    target: Tensor | weakref.ref[ReferenceBank]
    lengths: Lengths
    inference: bool
    expected: set[Request]  # what the batch before was asked for
    scores: dict[Request, Scores] = field(default_factory=dict)
    asked: set[Request] = field(default_factory=set)

    def is_same(self, preds: Tensor, target: Target, lengths: Lengths) -> bool:
        if (lengths, torch.is_inference_mode_enabled()) != (self.lengths, self.inference):
            return False
        if isinstance(self.target, weakref.ref):
            return self.target() is target and _equal(self.preds, preds)
        return _equal(self.preds, preds) and _equal(self.target, target)


# By values and not by address: a tensor that was overwritten in place is another batch.
def _equal(a: Tensor, b: object) -> bool:
    if not isinstance(b, Tensor) or (a.shape, a.dtype, a.device) != (b.shape, b.dtype, b.device):
        return False
    return torch.equal(a, b)


_LAST: weakref.WeakKeyDictionary[MAPSS, _Batch] = weakref.WeakKeyDictionary()


def frame_scores(
    mapss: MAPSS, preds: Tensor, target: Target, lengths: Lengths, wanted: Request
) -> Scores:
    """Scores of a batch with the measure that is wanted, and perhaps others.

    Raises:
        TypeError, ValueError: input that cannot be scored, see :meth:`MAPSS.forward`.
    """
    plain = isinstance(preds, Tensor) and isinstance(target, Tensor | ReferenceBank)
    if not plain or (preds.requires_grad and torch.is_grad_enabled()):
        return _scored(mapss, preds, target, lengths, wanted, {wanted.measure})
    last = _LAST.get(mapss)
    if last is None or not last.is_same(preds, target, lengths):
        forget(mapss)  # before scoring: old and new need not be in memory together
        known = (
            weakref.ref(target) if isinstance(target, ReferenceBank) else target.detach().clone()
        )
        inference, expected = torch.is_inference_mode_enabled(), last.asked if last else set()
        last = _Batch(preds.detach().clone(), known, lengths, inference, expected)
    last.asked.add(wanted)
    if wanted not in last.scores:
        alike = {each for each in last.expected if each._replace(measure=wanted.measure) == wanted}
        measures = {each.measure for each in alike - set(last.scores)}
        if isinstance(target, ReferenceBank):  # which need not be prepared for all of them
            measures &= {*target.measures, "bleed"}
        measures |= {wanted.measure}
        scores = _scored(mapss, preds, target, lengths, wanted, measures)
        last.scores |= {wanted._replace(measure=measure): scores for measure in measures}
    _LAST[mapss] = last
    return last.scores[wanted]


def _scored(
    mapss: MAPSS,
    preds: Tensor,
    target: Target,
    lengths: Lengths,
    wanted: Request,
    measures: set[str],
) -> Scores:
    if wanted.pit is not None:
        preds, target = in_order(mapss.config, preds, target, lengths, measures, wanted.pit)
        lengths = None  # the bank has them
    return mapss(preds, target, wanted.attributed, lengths, measures=measures, frames=wanted.frames)


def forget(mapss: MAPSS) -> None:
    """Drop what is remembered of the last batch."""
    _LAST.pop(mapss, None)
