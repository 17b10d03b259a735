"""Frames through a kernel in chunks of bounded memory, recomputed backward if needed."""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterator, Sequence
from typing import Any, NamedTuple

import torch
from torch import Tensor

from torch_mapss.core import checks, devices
from torch_mapss.core.autograd import once
from torch_mapss.core.diffusion_map import Embedding, broken_points, embed, gather
from torch_mapss.core.kernel import BankDistances, bank_distances
from torch_mapss.core.layout import Layout, point_validity
from torch_mapss.core.settings import Settings

# Working memory of one chunk of frames, and how much a graph may hold before it is recomputed.
CHUNK_BYTES = 96 * 2**20
GRAPH_BYTES = 3 * 2**29
# So many times that chunk on an accelerator, where every chunk costs the launches of its operators.
FAR_CHUNKS = 8


# --------------------------------------------------------------------------------------------
# Chunks
# --------------------------------------------------------------------------------------------

Kernel = Callable[[Embedding, Layout, Settings], tuple[Tensor, ...]]


def frames_per_chunk(points: int, features: int, chunk_bytes: int) -> int:
    """How many frames of N points and M features fit the working memory of a chunk."""
    each = 8 * (2 * points * features + 8 * points * points)
    return max(1, chunk_bytes // each)


def _slices(frames: int, size: int) -> Iterator[slice]:
    """At least one, empty where there are no frames."""
    return (slice(start, min(start + size, frames)) for start in range(0, max(frames, 1), size))


def score_frames(
    clouds: checks.Clouds,
    settings: Settings,
    kernel: Kernel,
    *,
    rest: bool = False,
    chunk_bytes: int | None = None,
) -> tuple[Tensor, ...]:
    """Run ``kernel`` on the maps of all frames, in chunks of bounded memory.

    Without gradients a chunk's work is dropped at once. With them, a batch whose graph would
    exceed ``GRAPH_BYTES`` is recomputed chunk by chunk in the backward pass.

    On the CPU every chunk is looked at as it comes. An accelerator is asked once, behind the last
    chunk: until then nothing is known of non-finite embeddings (their frames are zeros in the
    meantime), of frames whose distances are too coarse, or of the dimensions (so that all columns
    are kept). Chunks that turn out to need it are done again.

    Args:
        clouds: validated embeddings, see :func:`torch_mapss.core.checks.check_clouds`.
        settings: of the map.
        kernel: (embedding, layout, settings) -> tensors with leading frames.
        rest: whether the kernel reads the discarded coordinates.
        chunk_bytes: working memory of a chunk, to which the limit of a graph is proportional; None
            for ``CHUNK_BYTES``, or more on an accelerator.

    Returns:
        The kernel's tensors over all frames, leading dimensions restored, on the device of the
        input; floating point ones in float64 if the input is, else in float32.
    """
    return finished([pending(clouds, settings, kernel, rest=rest, chunk_bytes=chunk_bytes)])[0]


def known_distances(
    references: Tensor,
    distortions: Tensor,
    active: Tensor | None,
    mask: Tensor | None,
    chunk_bytes: int | None = None,
) -> BankDistances:
    """D² among the points of a bank, for the ``known`` of all clouds with these points.

    Where :func:`torch_mapss.core.kernel.worth_keeping` says so.

    Args:
        references: (F, S, M).
        distortions: (F, S, P, M).
        active: (F, S) bool, which sources are there; None: all.
        mask: (F, S, P) bool, which distortions are; None: all.
        chunk_bytes: working memory beside what is returned.
    """
    frames, sources, count, features = distortions.shape
    points = sources * (count + 1)
    layout = Layout((), sources, count, active, mask)
    size = frames_per_chunk(points, features, chunk_bytes or CHUNK_BYTES)
    device = references.device
    found = BankDistances(
        torch.empty(frames, points, points, dtype=torch.float64, device=device),
        torch.empty(frames, 1, features, dtype=torch.float64, device=device),
        torch.empty(frames, dtype=torch.float64, device=device),
    )
    valid = point_validity(layout, frames, device)
    for part in _slices(frames, size):
        cloud = gather(references[part], distortions[part].flatten(1, 2))
        there = None if valid is None else valid[part]
        for whole, values in zip(found, bank_distances(cloud.points, there)):
            whole[part] = values
    return found


class Pending(NamedTuple):
    """Frames that are scored, but for what their values would tell."""

    clouds: checks.Clouds
    runs: list[Callable[[bool], tuple[Tensor, ...]]]  # of each chunk, by whether it may look
    results: list[tuple[Tensor, ...]]  # of each chunk; the last of them: () bool, do it again
    looked: bool


def pending(
    clouds: checks.Clouds,
    settings: Settings,
    kernel: Kernel,
    *,
    rest: bool = False,
    chunk_bytes: int | None = None,
) -> Pending:
    """The work of :func:`score_frames`, queued on an accelerator without reading a value."""
    frames, sources, count, features = clouds.distortions.shape
    points = clouds.outputs.shape[1] + sources * (count + 1)
    look = not devices.is_far(devices.working_device(clouds.outputs.device))
    bytes_, most = _limits(chunk_bytes, look)
    size = frames_per_chunk(points, features, bytes_)
    inputs = clouds.outputs, clouds.references, clouds.distortions
    tracked = torch.is_grad_enabled() and any(x.requires_grad for x in inputs)
    squares = 10 if look else 15  # of N² numbers a frame: all N-1 columns are kept
    heavy = tracked and frames * 8 * (points * features + squares * points**2) > most
    runs: list[Callable[[bool], tuple[Tensor, ...]]] = []
    # Split, not sliced: the gradient of a slice is as large as the whole, once a chunk.
    chunks = zip(*(x.split(size) for x in inputs))
    for part, chunk in zip(_slices(frames, size), chunks):
        run = functools.partial(_chunk, clouds, part, settings, kernel, rest)
        runs.append(functools.partial(_run, run, chunk, heavy))
    return Pending(clouds, runs, [run(look) for run in runs], look)


def _limits(chunk_bytes: int | None, look: bool) -> tuple[int, int]:
    """Bytes of a chunk, and of a graph."""
    if chunk_bytes is None:
        return CHUNK_BYTES * (1 if look else FAR_CHUNKS), GRAPH_BYTES
    return chunk_bytes, GRAPH_BYTES * chunk_bytes // CHUNK_BYTES


def _run(
    run: Callable[..., tuple[Tensor, ...]], chunk: tuple[Tensor, ...], heavy: bool, look: bool
) -> tuple[Tensor, ...]:
    if heavy:
        return _Recomputed.apply(functools.partial(run, look), *chunk)
    return run(look, *chunk)


def finished(works: Sequence[Pending]) -> list[tuple[Tensor, ...]]:
    """The results of several :func:`pending` works, whose values are read together."""
    blind = [work for work in works if not work.looked]
    if blind:
        flags = torch.stack([results[-1] for work in blind for results in work.results])
        again = iter(flags.tolist())
        for work in blind:
            for place, run in enumerate(work.runs):
                if next(again):
                    work.results[place] = run(True)
    return [
        tuple(_finish(parts, work.clouds) for parts in [*zip(*work.results)][:-1]) for work in works
    ]


class _Recomputed(torch.autograd.Function):
    """``run(*inputs)`` that keeps its inputs alone and runs again in the backward pass.

    What ``torch.utils.checkpoint`` does, without a graph in the meantime: its many small nodes
    between large blocks keep the heap from shrinking, by some 200 KiB a frame.
    """

    @staticmethod
    def forward(
        ctx: Any, run: Callable[..., tuple[Tensor, ...]], *inputs: Tensor
    ) -> tuple[Tensor, ...]:
        ctx.run = run
        ctx.save_for_backward(*inputs)
        results = run(*inputs)
        ctx.mark_non_differentiable(*(x for x in results if not x.is_floating_point()))
        return results

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor | None, ...]:
        wanted = ctx.needs_input_grad[1:]
        saved = ctx.saved_tensors  # once: activation checkpointing hands them out once
        leaves = [x.detach().requires_grad_(w) for x, w in zip(saved, wanted)]
        with torch.enable_grad():
            results = ctx.run(*leaves)
        live = [(r, g) for r, g in zip(results, gradients) if r.requires_grad]
        if not live:
            return (None,) * (len(leaves) + 1)
        outputs, weights = zip(*live)
        chosen = [leaf for leaf, w in zip(leaves, wanted) if w]
        plain = [weight.detach() for weight in weights]
        found = torch.autograd.grad(outputs, chosen, plain, allow_unused=True)
        inputs = [x for x, w in zip(saved, wanted) if w]
        guarded = iter(
            g if g is None else once(g, "scores of frames", x) for g, x in zip(found, inputs)
        )
        return None, *(next(guarded) if w else None for w in wanted)


def _finish(parts: tuple[Tensor, ...], clouds: checks.Clouds) -> Tensor:
    dtype = torch.promote_types(
        torch.promote_types(clouds.outputs.dtype, clouds.references.dtype),
        torch.promote_types(clouds.distortions.dtype, torch.float32),
    )
    whole = torch.cat(parts)
    whole = whole.reshape(*clouds.lead, *whole.shape[1:]).to(clouds.outputs.device)
    return whole.to(dtype) if whole.is_floating_point() else whole


def _chunk(
    clouds: checks.Clouds,
    part: slice,
    settings: Settings,
    kernel: Kernel,
    rest: bool,
    look: bool,
    outputs: Tensor,
    references: Tensor,
    distortions: Tensor,
) -> tuple[Tensor, ...]:
    """The kernel's tensors of one chunk, then whether to do it again and ``look`` this time."""
    with torch.autocast(outputs.device.type, enabled=False):
        known = None if clouds.known is None else clouds.known.of(part)
        cloud = gather(outputs, references, distortions.flatten(1, 2), known=known)
        points = cloud.points
        active, mask = clouds.active, clouds.mask
        layout = Layout(
            clouds.attributed,
            references.shape[1],
            distortions.shape[2],
            None if active is None else active[part].to(points.device),
            None if mask is None else mask[part].to(points.device),
        )
        valid = point_validity(layout, len(points), points.device)
        broken = broken_points(points, valid)
        if look:
            _refuse(broken, layout, part.start, clouds.lead)
        else:
            points.masked_fill_(broken.any(-1)[:, None, None], 0.0)
        embedding = embed(cloud, valid, settings, rest=rest, look=look)
        results = kernel(embedding, layout, settings)
        again = broken.any()
        return *results, again if embedding.coarse is None else again | embedding.coarse.any()


def _refuse(broken: Tensor, layout: Layout, start: int, lead: torch.Size) -> None:
    """Raise ValueError naming the first frame and source with non-finite embeddings."""
    if not bool(broken.any()):
        return
    frame, point = (int(index) for index in broken.nonzero()[0])
    s, first = layout.sources, layout.outputs
    if point < first:
        what = f"the output of source {layout.attributed[point]}"
    elif point < first + s:
        what = f"the reference of source {point - first}"
    else:
        source, member = divmod(point - first - s, layout.distortions)
        what = f"distortion {member} of source {source}"
    raise ValueError(
        f"embeddings must be finite (and below 1e150): {what} holds NaN, infinite or huge values "
        f"in {checks.describe_frame(start + frame, lead)}. Repair it, or take its source out of "
        "that frame with active, or a distortion with mask."
    )
