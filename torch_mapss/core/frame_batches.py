"""Scoring of frames in batches of bounded memory, recomputed in the backward pass if needed.

A **score function** takes the points of one batch of frames and computes its own map:

    score(points, settings, may_sync) -> (tensors by name, needs_values)

The first dimension of each tensor is the frames of the batch. ``may_sync`` says whether the
function may read values, which synchronises an accelerator. If it may not and turns out to need
them (a point that is not finite, a median that is too imprecise), it returns ``needs_values``, a ()
bool tensor, as True, and the batch is scored once more with ``may_sync=True``.
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
from torch_mapss.core.settings import MapSettings

# Working memory of one batch of frames, and how much a graph may hold before it is recomputed.
BATCH_BYTES = 96 * 2**20
GRAPH_BYTES = 3 * 2**29
# On an accelerator batches may be this many times larger: each one pays for its kernel launches.
ACCELERATOR_BATCHES = 8

Scored = tuple[dict[str, Tensor], Tensor]
ScoreFunction = Callable[[Points, MapSettings, bool], Scored]


class Batch(NamedTuple):
    """Consecutive frames that are scored together."""

    points: Points
    settings: MapSettings
    function: ScoreFunction
    begin: int  # index of the first frame
    recomputed: bool  # whether the backward pass scores them again

    def scored(self, may_sync: bool) -> Scored:
        """Call the score function on this batch; errors name the frame's index among all frames."""
        embeddings = self.points.embeddings()
        try:
            with torch.autocast(embeddings[0].device.type, enabled=False):
                if not self.recomputed:
                    return self.function(self.points, self.settings, may_sync)
                names: list[str] = []
                values = functools.partial(self._listed, may_sync, names)
                *tensors, needs_values = _Recomputed.apply(values, *embeddings)
        except NonFiniteError as error:
            frame = self.begin + error.frame
            raise NonFiniteError(error.point, frame, self.points.lead) from None
        return dict(zip(names, tensors)), needs_values

    def _listed(self, may_sync: bool, names: list[str], *embeddings: Tensor) -> tuple[Tensor, ...]:
        """The result as a tuple of tensors, as autograd requires; fills ``names`` in place."""
        points = self.points.with_embeddings(embeddings)
        tensors, needs_values = self.function(points, self.settings, may_sync)
        names[:] = tensors
        return *tensors.values(), needs_values


#: Scored batches with their results, before any value is read.
Started = list[tuple[Batch, Scored]]


def run(points: Points, settings: MapSettings, function: ScoreFunction) -> dict[str, Tensor]:
    """Score all frames, in batches of bounded memory.

    Without gradients the memory of a batch is freed at once. With gradients, a call whose graph
    would exceed ``GRAPH_BYTES`` is recomputed batch by batch in the backward pass.

    On the CPU values are read as they arise. An accelerator is read once, after the last batch:
    until then non-finite embeddings, frames whose distances are too imprecise, and the dimensions
    are unknown (so all columns are computed). Batches that turn out to need their values are scored
    once more.

    Args:
        points: points of all frames.
        settings: settings of the map.
        function: a score function, see the module.

    Returns:
        The tensors of all frames by name, on the device of the input; floating-point tensors are
        float64 if the input is, else float32.

    Raises:
        NonFiniteError: a present point is not finite.
    """
    return finish([start(points, settings, function)])[0]


def start(
    points: Points, settings: MapSettings, function: ScoreFunction, batch_bytes: int | None = None
) -> Started:
    """Queue the work of :func:`run` without reading a value from an accelerator.

    Args:
        points, settings, function: as in :func:`run`.
        batch_bytes: working memory of a batch; the limit on a graph's size is proportional to it.
            None for ``BATCH_BYTES``, or more on an accelerator.
    """
    embeddings = points.embeddings()
    frames, features = len(points.outputs), points.outputs.shape[-1]
    count = sum(math.prod(x.shape[1:-1]) for x in embeddings)
    may_sync = not devices.is_accelerator(points.device)
    largest_graph = GRAPH_BYTES * (batch_bytes or BATCH_BYTES) // BATCH_BYTES
    # How many frames of N points and M features fit the working memory of a batch.
    batch_bytes = batch_bytes or BATCH_BYTES * (1 if may_sync else ACCELERATOR_BATCHES)
    frame_bytes = 8 * (2 * count * features + 8 * count**2)
    size = max(1, batch_bytes // frame_bytes)
    # Whether the graph of all frames would be too large to keep.
    tracked = torch.is_grad_enabled() and any(x.requires_grad for x in embeddings)
    squares = 10 if may_sync else 15  # of N² numbers a frame: all N-1 columns are held
    graph_bytes = frames * 8 * (count * features + squares * count**2)
    recomputed = tracked and graph_bytes > largest_graph
    started = []
    begins = range(0, max(frames, 1), size)  # one empty batch if there are no frames
    # Split, not sliced: the gradient of each slice would be as large as the whole tensor.
    splits = [tensor.split(size) for tensor in embeddings]
    for begin, *tensors in zip(begins, *splits):
        masks = [
            None if mask is None else mask[begin : begin + size].to(points.device)
            for mask in (points.active, points.mask)
        ]
        consecutive = points._replace(active=masks[0], mask=masks[1]).with_embeddings(tensors)
        batch = Batch(consecutive, settings, function, begin, recomputed)
        started.append((batch, batch.scored(may_sync)))
    return started


def finish(started: Sequence[Started]) -> list[dict[str, Tensor]]:
    """Results of several :func:`start` calls, whose values are read in one go."""
    flags: list[Tensor] = []
    for batches in started:
        flags += [needs_values for _, (_, needs_values) in batches]
    unread = iter(torch.stack(flags).tolist() if flags else ())
    results = []
    for batches in started:
        scored = []
        for batch, (tensors, _) in batches:
            if next(unread):
                tensors, _ = batch.scored(may_sync=True)
            scored.append(tensors)
        # The tensors of all batches by name, with the dtype and the leading dimensions of the call.
        points = batches[0][0].points
        dtype = functools.reduce(torch.promote_types, (x.dtype for x in points.embeddings()))
        joined = {}
        for name in scored[0]:
            values = torch.cat([tensors[name] for tensors in scored]).to(points.outputs.device)
            values = values.to(dtype) if values.is_floating_point() else values
            lead = values.shape[:1] if points.lead is None else points.lead
            joined[name] = values.reshape(*lead, *values.shape[1:])
        results.append(joined)
    return results


class _Recomputed(torch.autograd.Function):
    """``values(*inputs)`` that saves only its inputs and runs again in the backward pass.

    ``torch.utils.checkpoint`` does the same, but builds a graph in the meantime, whose many small
    nodes between large blocks keep the heap from shrinking, by some 200 KiB per frame.
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
        needs_gradient = ctx.needs_input_grad[1:]
        saved = ctx.saved_tensors  # read once: activation checkpointing returns them only once
        leaves = [x.detach().requires_grad_(needs) for x, needs in zip(saved, needs_gradient)]
        with torch.enable_grad(), torch.autocast(saved[0].device.type, enabled=False):
            results = ctx.values(*leaves)
        live = [(r, g.detach()) for r, g in zip(results, gradients) if r.requires_grad]
        if not live:
            return (None,) * (len(leaves) + 1)
        outputs, weights = zip(*live)
        with_gradient = [leaf for leaf in leaves if leaf.requires_grad]
        leaf_gradients = torch.autograd.grad(outputs, with_gradient, weights, allow_unused=True)
        remaining_gradients = iter(leaf_gradients)
        input_gradients: list[Tensor | None] = []
        for needs, tensor in zip(needs_gradient, saved):
            gradient = next(remaining_gradients) if needs else None
            if gradient is not None:
                gradient = once(gradient, "scores of frames", tensor)
            input_gradients.append(gradient)
        return None, *input_gradients
