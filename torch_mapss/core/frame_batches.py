"""Frames through a score function in batches of bounded memory, recomputed backward if needed.

A **score function** takes the points of one batch of frames and does its own map inside:

    score(points, settings, may_sync) -> (tensors by name, again)

The tensors lead with the frames of the batch. ``may_sync`` says whether values may be read, which
synchronises an accelerator. A batch that turns out to need it, says so in ``again``, a () bool
tensor, and is scored again with ``may_sync=True``.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import torch
from torch import Tensor

from torch_mapss.core import devices
from torch_mapss.core.autograd import once
from torch_mapss.core.points import NonFiniteError, Points
from torch_mapss.core.settings import Settings

# Working memory of one batch of frames, and how much a graph may hold before it is recomputed.
BATCH_BYTES = 96 * 2**20
GRAPH_BYTES = 3 * 2**29
# So many times that on an accelerator, where every batch costs the launches of its operators.
ACCELERATOR_BATCHES = 8

Scored = tuple[dict[str, Tensor], Tensor]
Score = Callable[[Points, Settings, bool], Scored]


def frames_per_batch(points: int, features: int, batch_bytes: int) -> int:
    """How many frames of N points and M features fit the working memory of a batch."""
    each = 8 * (2 * points * features + 8 * points * points)
    return max(1, batch_bytes // each)


class Bounds(NamedTuple):
    """How far a score may be off; 0 where it is not defined."""

    radius: Tensor  # (..., S') truncation error, deterministic
    tail: Tensor  # (..., S') finite-sample half-width at the confidence asked for
    total: Tensor  # (..., S') radius + tail

    @classmethod
    def of(cls, radius: Tensor, tail: Tensor) -> Bounds:
        """Both errors and their sum."""
        return cls(radius, tail, radius + tail)


class Started(NamedTuple):
    """Batches of frames whose values have not been read."""

    points: Points
    batches: list[Callable[[bool], Scored]]  # the score of each batch, given ``may_sync``
    results: list[Scored]  # of each batch


def run(points: Points, settings: Settings, score: Score) -> dict[str, Tensor]:
    """Score all frames, in batches of bounded memory.

    Without gradients a batch's work is dropped at once. With them, a call whose graph would
    exceed ``GRAPH_BYTES`` is recomputed batch by batch in the backward pass.

    On the CPU values are read as they come. An accelerator is read once, after the last batch:
    until then nothing is known of non-finite embeddings, of frames whose distances are too
    imprecise, or of the dimensions (so that all columns are computed). Batches that turn out to
    need it are scored again.

    Args:
        points: of all frames.
        settings: of the map.
        score: a score function, see the module.

    Returns:
        The tensors of all frames by name, on the device of the input; floating point ones in
        float64 if the input is, else in float32.

    Raises:
        NonFiniteError: a present point is not finite.
    """
    return finish([start(points, settings, score)])[0]


def start(
    points: Points, settings: Settings, score: Score, batch_bytes: int | None = None
) -> Started:
    """The work of :func:`run`, queued on an accelerator without reading a value.

    Args:
        points, settings, score: as for :func:`run`.
        batch_bytes: working memory of a batch, to which the limit of a graph is proportional; None
            for ``BATCH_BYTES``, or more on an accelerator.
    """
    features = points.outputs.shape[-1]
    count = sum(math.prod(x.shape[1:-1]) for x in points.embeddings())
    may_sync = not devices.is_accelerator(points.device)
    most = GRAPH_BYTES * (batch_bytes or BATCH_BYTES) // BATCH_BYTES
    batch_bytes = batch_bytes or BATCH_BYTES * (1 if may_sync else ACCELERATOR_BATCHES)
    size = frames_per_batch(count, features, batch_bytes)
    tracked = torch.is_grad_enabled() and any(x.requires_grad for x in points.embeddings())
    squares = 10 if may_sync else 15  # of N² numbers a frame: all N-1 columns are held
    graph_bytes = points.frames * 8 * (count * features + squares * count**2)
    recomputed = tracked and graph_bytes > most
    # Split, not sliced: the gradient of a slice is as large as the tensor, in every batch.
    parts = zip(*(x.split(size) for x in points.embeddings()))
    firsts = range(0, max(points.frames, 1), size)  # one, empty, where there are no frames

    def scored(first: int, part: tuple[Tensor, ...], may_sync: bool) -> Scored:
        frames = slice(first, first + len(part[0]))
        names: list[str] = []

        def values(*embeddings: Tensor) -> tuple[Tensor, ...]:
            found, again = score(points.batch(frames, embeddings), settings, may_sync)
            names[:] = found
            return *found.values(), again

        try:
            with torch.autocast(part[0].device.type, enabled=False):
                if not recomputed:
                    return score(points.batch(frames, part), settings, may_sync)
                *tensors, again = _Recomputed.apply(values, *part)
        except NonFiniteError as error:
            raise NonFiniteError(error.point, first + error.frame, points.lead) from None
        return dict(zip(names, tensors)), again

    work = Started(points, [], [])
    for first, part in zip(firsts, parts):
        work.batches.append(functools.partial(scored, first, part))
        work.results.append(work.batches[-1](may_sync))
    return work


def finish(works: Sequence[Started]) -> list[dict[str, Tensor]]:
    """The results of several :func:`start`, whose values are read together."""
    flags = [again for work in works for _, again in work.results]
    unread = iter(torch.stack(flags).tolist() if flags else ())
    for work in works:
        for place, batch in enumerate(work.batches):
            if next(unread):
                work.results[place] = batch(True)
    return [_joined(work) for work in works]


class _Recomputed(torch.autograd.Function):
    """``values(*inputs)`` that keeps its inputs alone and runs again in the backward pass.

    What ``torch.utils.checkpoint`` does, without a graph in the meantime: its many small nodes
    between large blocks keep the heap from shrinking, by some 200 KiB a frame.
    """

    @staticmethod
    def forward(
        ctx: Any, values: Callable[..., tuple[Tensor, ...]], *inputs: Tensor
    ) -> tuple[Tensor, ...]:
        ctx.values = values
        ctx.save_for_backward(*inputs)
        results = values(*inputs)
        ctx.mark_non_differentiable(*(x for x in results if not x.is_floating_point()))
        return results

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor | None, ...]:
        wanted = ctx.needs_input_grad[1:]
        saved = ctx.saved_tensors  # once: activation checkpointing hands them out once
        leaves = [x.detach().requires_grad_(w) for x, w in zip(saved, wanted)]
        with torch.enable_grad(), torch.autocast(saved[0].device.type, enabled=False):
            results = ctx.values(*leaves)
        live = [(r, g.detach()) for r, g in zip(results, gradients) if r.requires_grad]
        if not live:
            return (None,) * (len(leaves) + 1)
        outputs, weights = zip(*live)
        chosen = [leaf for leaf in leaves if leaf.requires_grad]
        found = iter(torch.autograd.grad(outputs, chosen, weights, allow_unused=True))
        every = [next(found) if w else None for w in wanted]
        what = "scores of frames"
        return None, *(g if g is None else once(g, what, x) for g, x in zip(every, saved))


def _joined(work: Started) -> dict[str, Tensor]:
    """The tensors of all batches as one each."""
    points = work.points
    dtype = functools.reduce(torch.promote_types, (x.dtype for x in points.embeddings()))
    joined = {}
    for name in work.results[0][0]:
        values = torch.cat([found[name] for found, _ in work.results]).to(points.outputs.device)
        values = values.to(dtype) if values.is_floating_point() else values
        lead = values.shape[:1] if points.lead is None else points.lead
        joined[name] = values.reshape(*lead, *values.shape[1:])
    return joined
