r"""PS and PM of system outputs: where they fall among the clusters of a diffusion map.

The cluster of source j is its reference and distortions (outputs are points of the graph, but
never of a cluster). All clusters of all frames are handled in one batch: absent points and
inactive sources carry weight 0, and coordinates beyond a frame's d are zero in every point, so
with the ridge :math:`\Sigma + \epsilon I` they change no distance. Each ridge matrix is
factorised once, by Cholesky, for all its right sides: with :math:`LL^T = \Sigma + \epsilon I`,
:math:`\Delta^T(\Sigma + \epsilon I)^{-1}\Delta = |L^{-1}\Delta|^2`.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable

from torch_mapss import _checks
from torch_mapss._autograd import once
from torch_mapss.manifold import Embedding, Settings, embed, gather
from torch_mapss.special import gammaincc, log_gammaincc

RIDGE = 1e-6  # ε of [eq:ps_distance]
# Working memory of one chunk of frames, and how much a graph may hold before it is recomputed.
CHUNK_BYTES = 96 * 2**20
GRAPH_BYTES = 3 * 2**29
LOG_ZERO = math.log(torch.finfo(torch.float64).tiny)  # stands for log 0, which is not finite


class Layout(NamedTuple):
    """Which rows of a frame's points are what, and which of them are there."""

    attributed: tuple[int, ...]  # source of each output
    sources: int
    distortions: int  # of each source
    active: Tensor | None  # (F, S)
    mask: Tensor | None  # (F, S, P)

    @property
    def outputs(self) -> int:
        return len(self.attributed)


class Distances(NamedTuple):
    """The two halves of PS."""

    own: Tensor  # (F, S') A, to the attributed cluster
    foreign: Tensor  # (F, S') B, to the closest other active cluster
    defined: Tensor  # (F, S') bool: attributed source active, and another one


class GammaFit(NamedTuple):
    """Moment-matched Gamma of a cluster's squared distances, and the output's own."""

    shape: Tensor  # (F, S') k
    scale: Tensor  # (F, S') θ
    distance: Tensor  # (F, S') a, squared
    collapsed: Tensor  # (F, S') bool: no Gamma can be fitted
    defined: Tensor  # (F, S') bool


# --------------------------------------------------------------------------------------------
# Points and clusters
# --------------------------------------------------------------------------------------------


def presence(layout: Layout, frames: int, device: torch.device) -> tuple[Tensor, Tensor]:
    """Active sources (F, S) and present cluster points (F, S, P+1), reference first."""
    active = layout.active
    if active is None:
        active = torch.ones(frames, layout.sources, dtype=torch.bool, device=device)
    present = active.unsqueeze(-1).expand(frames, layout.sources, layout.distortions + 1)
    if layout.mask is not None:
        there = torch.nn.functional.pad(layout.mask, (1, 0), value=True)
        present = present & there
    return active, present


def point_validity(layout: Layout, frames: int, device: torch.device) -> Tensor | None:
    """(F, N) which points enter the graph, in the order outputs, references, distortions."""
    if layout.active is None and layout.mask is None:
        return None
    active, present = presence(layout, frames, device)
    parts = active[:, list(layout.attributed)], present[..., 0], present[..., 1:].flatten(1)
    return torch.cat(parts, -1)


def split_points(coordinates: Tensor, layout: Layout) -> tuple[Tensor, Tensor]:
    """Outputs (F, S', D) and clusters (F, S, P+1, D), reference first."""
    s, p = layout.sources, layout.distortions
    outputs, references, distortions = coordinates.split([layout.outputs, s, s * p], -2)
    distortions = distortions.unflatten(-2, (s, p))
    return outputs, torch.cat([references.unsqueeze(-2), distortions], -2)


def ridge_factor(deviations: Tensor, count: Tensor) -> Tensor:
    """Cholesky factor of the ridge covariance of every cluster.

    Args:
        deviations: (..., n, D) points less their centre, rows of absent points zero.
        count: (...) the divisor, number of points less one, at least 1.

    Returns:
        (..., D, D) lower triangular L, LLᵀ = ΣΔΔᵀ/count + εI.
    """
    covariance = deviations.mT @ deviations / count[..., None, None]
    covariance.diagonal(dim1=-2, dim2=-1).add_(RIDGE)
    return torch.linalg.cholesky_ex(covariance).L


class _SquaredDistances(torch.autograd.Function):
    """y_r = Δ_rᵀ A⁻¹ Δ_r, A = XᵀX/n + εI, of rows X and right sides Δ.

    With z_r = A⁻¹Δ_r, dy_r = 2 z_rᵀ dΔ_r - z_rᵀ dA z_r and z_rᵀ dA z_r = (2/n) (X z_r)ᵀ dX z_r:
    one more triangular solve gives both gradients, without the derivative of the factor.
    """

    @staticmethod
    def forward(ctx: Any, deviations: Tensor, count: Tensor, rights: Tensor) -> Tensor:
        factor = ridge_factor(deviations, count)
        whitened = torch.linalg.solve_triangular(factor, rights.mT, upper=False)
        ctx.save_for_backward(deviations, count, factor, whitened)
        return whitened.square().sum(-2)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor, None, Tensor]:
        deviations, count, factor, whitened = ctx.saved_tensors
        z = torch.linalg.solve_triangular(factor.mT, whitened, upper=True)  # (..., D, R)
        of_rights = (z * (2.0 * grad.unsqueeze(-2))).mT
        of_deviations = (deviations @ z) @ of_rights / -count[..., None, None]
        return of_deviations, None, of_rights


def cluster_distances(deviations: Tensor, count: Tensor, rights: Tensor) -> Tensor:
    """Squared distance of ``rights`` under the ridge covariance of a cluster [eq:ps_distance].

    Args:
        deviations: (..., n, D) and count (...): as for :func:`ridge_factor`.
        rights: (..., R, D).

    Returns:
        (..., R), differentiable in deviations and rights.
    """
    return _SquaredDistances.apply(deviations, count, rights)


def squared_mahalanobis(factor: Tensor, deviations: Tensor) -> Tensor:
    """|L⁻¹Δ|² of the rows of ``deviations`` (..., n, D) [eq:ps_distance], (..., n)."""
    whitened = torch.linalg.solve_triangular(factor, deviations.mT, upper=False)
    return whitened.square().sum(-2)


def rounding_floor(coordinates: Tensor) -> Tensor:
    """(F,) squared distance that rounding alone can give two coincident points.

    Coordinates are Φ = SV up to the backward error of eigh, about N·eps of their size, whatever
    the eigenvalue; the ridge turns a squared length into at most 1/ε of it.
    """
    error = 64.0 * coordinates.shape[-2] * torch.finfo(coordinates.dtype).eps
    size = coordinates.detach().abs().flatten(1).amax(-1)
    return (error * size).square() / RIDGE


def _safe_sqrt(squared: Tensor) -> Tensor:
    """Square root with derivative 0 at 0."""
    positive = squared > 0.0
    return torch.where(positive, torch.where(positive, squared, 1.0).sqrt(), 0.0)


# --------------------------------------------------------------------------------------------
# PS
# --------------------------------------------------------------------------------------------


def cluster_statistics(clusters: Tensor, present: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """Mean (F, S, D), deviations (F, S, n, D) and divisor n - 1 (F, S) of [eq:mu]."""
    weight = present.unsqueeze(-1).to(clusters.dtype)
    count = present.sum(-1)
    mean = (clusters * weight).sum(-2) / count.clamp(min=1).unsqueeze(-1)
    deviations = (clusters - mean.unsqueeze(-2)) * weight
    return mean, deviations, (count - 1).clamp(min=1)


def all_distances(embedding: Embedding, layout: Layout) -> tuple[Tensor, Tensor]:
    """Squared distance of every output to every cluster (F, S', S), and active sources (F, S)."""
    outputs, clusters = split_points(embedding.coordinates, layout)
    active, present = presence(layout, len(outputs), outputs.device)
    mean, deviations, divisor = cluster_statistics(clusters, present)
    delta = outputs.unsqueeze(-3) - mean.unsqueeze(-2)  # (F, S, S', D)
    return cluster_distances(deviations, divisor, delta).mT, active


def separation_distances(embedding: Embedding, layout: Layout, settings: Settings) -> Distances:
    """A, B and j* of [eq:B] for every output of a chunk of frames."""
    squared, active = all_distances(embedding, layout)
    own_index = torch.tensor(layout.attributed, device=squared.device)
    own_index = own_index.expand(len(squared), -1).unsqueeze(-1)
    everyone = torch.arange(layout.sources, device=squared.device)
    foreign = (everyone != own_index) & active.unsqueeze(-2)
    defined = active.gather(-1, own_index.squeeze(-1)) & foreign.any(-1)
    nearest = torch.where(foreign, squared.detach(), torch.inf).argmin(-1, keepdim=True)
    both = torch.cat([_pick(squared, own_index), _pick(squared, nearest)], -1)
    both = torch.where(defined.unsqueeze(-1), both, 0.0)
    if settings.convention == "reference":
        both = torch.where(defined.unsqueeze(-1), (both + RIDGE).sqrt(), 0.0)
        a, b = both.unbind(-1)
    else:
        a, b = _safe_sqrt(both).unbind(-1)
    return Distances(a, b, defined & ~embedding.degenerate.unsqueeze(-1))


def _pick(values: Tensor, index: Tensor) -> Tensor:
    """values[..., index] by a one-hot sum: its backward is deterministic on every device."""
    everyone = torch.arange(values.shape[-1], device=values.device)
    return torch.where(everyone == index, values, 0.0).sum(-1, keepdim=True)


def separation_parts(
    embedding: Embedding, layout: Layout, settings: Settings
) -> tuple[Tensor, Tensor, Tensor]:
    """PS, A and B (F, S') of one map, see :func:`separation`."""
    distances = separation_distances(embedding, layout, settings)
    ps = separation(embedding, layout, settings, distances)
    return ps, distances.own, distances.foreign


def separation(
    embedding: Embedding, layout: Layout, settings: Settings, distances: Distances | None = None
) -> Tensor:
    """PS [eq:PS_final] (F, S'); 0 where it is not defined, ½ where there is no map."""
    if distances is None:
        distances = separation_distances(embedding, layout, settings)
    a, b, defined = distances.own, distances.foreign, distances.defined
    if settings.convention == "reference":
        ps = 1.0 - a / (a + b + RIDGE)
    else:
        some = a + b > 0.0
        ps = torch.where(some, b / torch.where(some, a + b, 1.0), 0.5)
    ps = torch.where(embedding.degenerate.unsqueeze(-1), 0.5, torch.where(defined, ps, 0.0))
    return torch.where(scored_outputs(layout, len(ps), ps.device), ps, 0.0)


def scored_outputs(layout: Layout, frames: int, device: torch.device) -> Tensor:
    """(F, S') whether the source of an output is active together with another one."""
    active, _ = presence(layout, frames, device)
    return active[:, list(layout.attributed)] & (active.sum(-1, keepdim=True) >= 2)


# --------------------------------------------------------------------------------------------
# PM
# --------------------------------------------------------------------------------------------


def attributed_deviations(
    embedding: Embedding, layout: Layout
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """What PM reads, centred at the reference of each output's source.

    Returns:
        Distortions (F, S', P, D), rows of absent ones zero; outputs (F, S', D); which
        distortions are present (F, S', P); and their number N_p (F, S').
    """
    outputs, clusters = split_points(embedding.coordinates, layout)
    _, present = presence(layout, len(outputs), outputs.device)
    index = list(layout.attributed)
    clusters, present = clusters[:, index], present[:, index]
    reference = clusters[..., :1, :]
    there = present[..., 1:]
    deviations = (clusters[..., 1:, :] - reference) * there.unsqueeze(-1)
    return deviations, outputs - reference.squeeze(-2), there, there.sum(-1)


def masked_moments(values: Tensor, there: Tensor, count: Tensor) -> tuple[Tensor, Tensor]:
    """Mean and unbiased variance along the last axis over the present values [eq:stats_pm]."""
    mean = torch.where(there, values, 0.0).sum(-1) / count.clamp(min=1)
    centred = torch.where(there, values - mean.unsqueeze(-1), 0.0)
    return mean, centred.square().sum(-1) / (count - 1).clamp(min=1)


def gamma_fit(embedding: Embedding, layout: Layout, settings: Settings) -> GammaFit:
    """k, θ [eq:gamma_matching] and a of every output of a chunk of frames.

    A cluster is collapsed where the mean or variance of its squared distances is not positive,
    up to what rounding gives coincident points; so is the distance of an output to its reference
    zero.
    """
    deviations, output, there, count = attributed_deviations(embedding, layout)
    both = torch.cat([deviations, output.unsqueeze(-2)], -2)
    squared = cluster_distances(deviations, (count - 1).clamp(min=1), both)
    floor = rounding_floor(embedding.coordinates).unsqueeze(-1)
    g, a = squared[..., :-1], squared[..., -1]
    a = torch.where(a <= floor, 0.0, a)
    if settings.convention == "reference":
        g, a = g + RIDGE, a + RIDGE
    mean, variance = masked_moments(g, there, count)
    collapsed = is_collapsed(mean, variance, floor, settings)
    scored = scored_outputs(layout, len(mean), mean.device)
    safe = collapsed | ~scored | embedding.degenerate.unsqueeze(-1)
    mean, variance = torch.where(safe, 1.0, mean), torch.where(safe, 1.0, variance)
    return GammaFit(
        shape=mean.square() / variance,
        scale=variance / mean,
        distance=torch.where(scored, a, 0.0),
        collapsed=collapsed,
        defined=scored & ~embedding.degenerate.unsqueeze(-1),
    )


def is_collapsed(mean: Tensor, variance: Tensor, floor: Tensor, settings: Settings) -> Tensor:
    """Where a cluster's squared distances have no positive mean or variance beyond rounding."""
    mean, variance = mean.detach(), variance.detach()
    least = floor + RIDGE if settings.convention == "reference" else floor
    spread = (16.0 * torch.finfo(mean.dtype).eps * mean).square()
    return (mean <= least) | (variance <= spread)


def match_parts(embedding: Embedding, layout: Layout, settings: Settings) -> tuple[Tensor, Tensor]:
    """PM and log PM (F, S') of one map, see :func:`match`."""
    fit = gamma_fit(embedding, layout, settings)
    return tuple(  # type: ignore[return-value]
        match(embedding, layout, settings, log=log, fit=fit) for log in (False, True)
    )


def match(
    embedding: Embedding,
    layout: Layout,
    settings: Settings,
    *,
    log: bool,
    fit: GammaFit | None = None,
) -> Tensor:
    """PM [eq:pm_gamma_mm_short] or log PM (F, S'); 0 where it is not defined."""
    if fit is None:
        fit = gamma_fit(embedding, layout, settings)
    plain = fit.defined & ~fit.collapsed
    x = torch.where(plain, fit.distance / fit.scale, 0.0)
    score = (log_gammaincc if log else gammaincc)(fit.shape, x)
    if settings.convention == "reference" and not log:
        score = torch.where(score < 1e-16, 0.0, score)  # 1 - cdf, which rounds to 0 there
    return torch.where(plain, score, _without_fit(fit, embedding, layout, log))


def _without_fit(fit: GammaFit, embedding: Embedding, layout: Layout, log: bool) -> Tensor:
    """The collapse rule: 1 if the output coincides with its reference, else 0; no gradient.

    log PM of 0 is the log of the smallest normal number rather than -inf: it enters means.
    """
    rows = torch.arange(layout.outputs, device=fit.distance.device)
    references = torch.tensor(layout.attributed, device=rows.device) + layout.outputs
    apart = embedding.squared_distances[:, rows, references]
    degenerate = embedding.degenerate.unsqueeze(-1)
    same = torch.where(degenerate, apart <= 0.0, fit.distance.detach() <= 0.0)
    one, zero = (0.0, LOG_ZERO) if log else (1.0, 0.0)
    value = torch.where(same, one, zero).to(fit.distance.dtype)
    return torch.where(scored_outputs(layout, len(value), value.device), value, 0.0)


# --------------------------------------------------------------------------------------------
# Chunks
# --------------------------------------------------------------------------------------------

Kernel = Callable[[Embedding, Layout, Settings], tuple[Tensor, ...]]


def frames_per_chunk(points: int, features: int) -> int:
    """How many frames of N points and M features fit the working memory of a chunk."""
    each = 8 * (2 * points * features + 8 * points * points)
    return max(1, CHUNK_BYTES // each)


def _slices(frames: int, size: int) -> Iterator[slice]:
    """At least one, empty where there are no frames."""
    return (slice(start, min(start + size, frames)) for start in range(0, max(frames, 1), size))


def score_frames(
    clouds: _checks.Clouds, settings: Settings, kernel: Kernel, *, rest: bool = False
) -> tuple[Tensor, ...]:
    """Run ``kernel`` on the maps of all frames, in chunks of bounded memory.

    Without gradients a chunk's work is dropped at once. With them, a batch whose graph would
    exceed ``GRAPH_BYTES`` is recomputed chunk by chunk in the backward pass.

    Args:
        clouds: validated embeddings, see :func:`torch_mapss._checks.check_clouds`.
        settings: of the map.
        kernel: (embedding, layout, settings) -> tensors with leading frames.
        rest: whether the kernel reads the discarded coordinates.

    Returns:
        The kernel's tensors over all frames, leading dimensions restored, on the device of the
        input; floating point ones in float64 if the input is, else in float32.
    """
    frames, sources, count, features = clouds.distortions.shape
    points = clouds.outputs.shape[1] + sources * (count + 1)
    size = frames_per_chunk(points, features)
    inputs = clouds.outputs, clouds.references, clouds.distortions
    tracked = torch.is_grad_enabled() and any(x.requires_grad for x in inputs)
    heavy = tracked and frames * 8 * (points * features + 10 * points**2) > GRAPH_BYTES
    results = []
    # Split, not sliced: the gradient of a slice is as large as the whole, once a chunk.
    chunks = zip(*(x.split(size) for x in inputs))
    for part, chunk in zip(_slices(frames, size), chunks):
        run: Callable[..., tuple[Tensor, ...]] = functools.partial(
            _chunk, clouds, part, settings, kernel, rest
        )
        if heavy:
            run = functools.partial(_Recomputed.apply, run)
        results.append(run(*chunk))
    dtype = torch.promote_types(
        torch.promote_types(clouds.outputs.dtype, clouds.references.dtype),
        torch.promote_types(clouds.distortions.dtype, torch.float32),
    )
    return tuple(_finish(parts, clouds, dtype) for parts in zip(*results))


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


def _finish(parts: tuple[Tensor, ...], clouds: _checks.Clouds, dtype: torch.dtype) -> Tensor:
    whole = torch.cat(parts)
    whole = whole.reshape(*clouds.lead, *whole.shape[1:]).to(clouds.outputs.device)
    return whole.to(dtype) if whole.is_floating_point() else whole


def _chunk(
    clouds: _checks.Clouds,
    part: slice,
    settings: Settings,
    kernel: Kernel,
    rest: bool,
    outputs: Tensor,
    references: Tensor,
    distortions: Tensor,
) -> tuple[Tensor, ...]:
    with torch.autocast(outputs.device.type, enabled=False):
        cloud = gather(outputs, references, distortions.flatten(1, 2))
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
        _check_embeddings(points, valid, layout, part.start, clouds.lead)
        return kernel(embed(cloud, valid, settings, rest=rest), layout, settings)


def _check_embeddings(
    points: Tensor, valid: Tensor | None, layout: Layout, start: int, lead: torch.Size
) -> None:
    """Raise ValueError naming the first frame and source with non-finite embeddings."""
    norms = torch.linalg.vector_norm(points, dim=-1).square()
    bad = ~torch.isfinite(norms)
    if valid is not None:
        bad = bad & valid
    if not bool(bad.any()):
        return
    frame, point = (int(index) for index in bad.nonzero()[0])
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
        f"in {_checks.describe_frame(start + frame, lead)}. Repair it, or take its source out of "
        "that frame with active, or a distortion with mask."
    )
