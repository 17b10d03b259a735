r"""Radius and tail of PS over a batch of frames.

**The PS radius is no approximation.** As b >= 0, distances only grow: :math:`A' = A + \delta_A`,
:math:`B' = B + \delta_B`, :math:`0 \le \delta \le \sqrt b`. With j* fixed,

.. math:: |PS' - PS| = \frac{|A\delta_B - B\delta_A|}{(A+B)(A'+B')}
          \le \frac{B\delta_A + A\delta_B}{(A+B)^2},

which is [eq:truncation_error_ps], without the Taylor step it is printed with.

**The derived tail of PS.** Â² = Δᵀ(Σ+εI)⁻¹Δ. Moving the mean by δ and the covariance by E changes
it to first order by :math:`-2\Delta^T\Sigma^{-1}\delta - \Delta^T\Sigma^{-1}E\Sigma^{-1}\Delta`.
With λ the least eigenvalue, :math:`|\Sigma^{-1}\Delta| \le A/\sqrt\lambda`, so this is at most

.. math:: \varepsilon = 2 A \Delta_\mu/\sqrt{\lambda} + A^2 \Delta_\Sigma/\lambda .

From squares to distances, ``|A-Â| (A+Â) <= ε`` and ``A+Â >= max(Â, |A-Â|)`` give
``|A-Â| <= min(√ε, ε/Â)``. The mean of n points of covariance Σ is off by sqrt(tr Σ/n) on average
and fluctuates about that by sqrt(2 λmax ln(2/δ)/n): both enter Δ_μ. Covariances concentrate like
sqrt(r/n) + (r + ln(2/δ))/n. Two clusters, two events each: every event gets δ/4. PS then moves by
at most its gradient norm times the hypotenuse of the two distance errors.
"""

from __future__ import annotations

import math
from typing import NamedTuple

import torch
from torch import Tensor

from torch_mapss.bounds.bootstrap import bootstrap_separation, half_width
from torch_mapss.bounds.effective import effective_size
from torch_mapss.bounds.schur import (
    REFERENCE_RIDGE,
    is_retained,
    nothing_discarded,
    schur_parts,
    whole_space,
)
from torch_mapss.bounds.settings import BoundSettings
from torch_mapss.core import linalg
from torch_mapss.core.diffusion_map import Embedding
from torch_mapss.core.mahalanobis import RIDGE, ridge_factor, rounding_floor
from torch_mapss.core.points import Points, presence, scored_outputs, split_points
from torch_mapss.core.separation import cluster_statistics, own_and_nearest
from torch_mapss.core.settings import Settings


class Sides(NamedTuple):
    """Distances of every output to its own cluster and to the closest foreign one."""

    distance: Tensor  # (F, S', 2) A and B, retained
    discarded: Tensor  # (F, S', 2) b = rᵀS⁻¹r of either
    cluster: Tensor  # (F, S', 2) int64, index of the cluster
    scored: Tensor  # (F, S') bool


class Spread(NamedTuple):
    """Spread of a cluster, for the tail of PS; eigenvalues of Σ^(d) as shares of the largest."""

    top: Tensor  # λmax
    floored: Tensor  # λ̃min / λmax
    rank: Tensor  # r, trace / λmax
    size: Tensor  # n_eff


def separation_widths(
    embedding: Embedding, points: Points, settings: Settings, options: BoundSettings
) -> tuple[Tensor, Tensor]:
    """Radius and tail of PS (F, S') of a batch of frames."""
    sides = separation_sides(embedding, points, settings)
    radius = _separation_radius(sides)
    if options.tail == "bootstrap":
        arguments = embedding, points, settings, options.draws, options.seed
        score, draws = bootstrap_separation(*arguments)
        tail = half_width(draws, score, options.confidence)
    else:
        tail = _separation_tail(sides, _spread(embedding, points, options), options)
    # Both distances are 0, or there is no map: PS is ½ by rule, bounded only by its range.
    undecided = (sides.distance.sum(-1) <= 0.0) | embedding.degenerate.unsqueeze(-1)
    tail = torch.where(undecided, 0.5, tail)
    if options.convention == "reference":
        unbounded = ~nothing_discarded(embedding, points)
        radius, tail = radius * unbounded, tail * unbounded
    return torch.where(sides.scored, radius, 0.0), torch.where(sides.scored, tail, 0.0)


def separation_sides(embedding: Embedding, points: Points, settings: Settings) -> Sides:
    """Retained and discarded parts of each output's two distances; j* follows the retained."""
    full = whole_space(embedding)
    outputs, clusters = split_points(full.coordinates, points)
    active, present = presence(points)
    mean, deviations, divisor = cluster_statistics(clusters, present)
    retained = is_retained(embedding, outputs.shape[-1])
    ridge = torch.full_like(retained, RIDGE, dtype=outputs.dtype)
    if settings.convention == "reference":
        ridge = ridge + REFERENCE_RIDGE * (~retained).to(ridge)
    factor = ridge_factor(deviations.mT @ deviations, divisor, ridge.unsqueeze(-2))
    delta = outputs.unsqueeze(-3) - mean.unsqueeze(-2)  # (F, S, S', D)
    inner, discarded = (form.mT for form in schur_parts(factor, delta, retained))
    cluster = own_and_nearest(inner, active, points)
    extra = RIDGE if settings.convention == "reference" else 0.0
    distance = (inner.gather(-1, cluster) + extra).sqrt()
    return Sides(distance, discarded.gather(-1, cluster), cluster, scored_outputs(points))


def _separation_radius(sides: Sides) -> Tensor:
    """[eq:truncation_error_ps]; 0 where PS is ½ by rule (its tail is vacuous there)."""
    total = sides.distance.sum(-1)
    weighted = (sides.distance.flip(-1) * sides.discarded.sqrt()).sum(-1)
    safe = torch.where(total > 0.0, total, 1.0)
    return torch.where(total > 0.0, weighted / safe.square(), 0.0)


def _spread(embedding: Embedding, points: Points, options: BoundSettings) -> Spread:
    """:class:`Spread` of every cluster, each field (F, S)."""
    _, clusters = split_points(embedding.coordinates, points)
    _, present = presence(points)
    _, deviations, divisor = cluster_statistics(clusters, present)
    covariance = deviations.mT @ deviations / divisor[..., None, None]
    ridge = RIDGE if options.convention == "reference" else 0.0
    bottom, top, trace = _extreme_eigenvalues(covariance, embedding.dimension.unsqueeze(-1))
    # A cluster whose points differ only by rounding has no shape: its eigenvalues are meaningless.
    point = top <= rounding_floor(embedding).unsqueeze(-1) * RIDGE
    bottom, top, trace = (torch.where(point, 0.0, x) for x in (bottom, top, trace))
    bottom, top = bottom + ridge, top + ridge
    trace = trace + ridge * embedding.dimension.unsqueeze(-1).to(trace.dtype)
    positive = top > 0.0
    safe = torch.where(positive, top, 1.0)
    share, rank = bottom / safe, torch.where(positive, trace / safe, 1.0)  # bottom is at most top
    size = effective_size(clusters, present, embedding.dimension, options.n_eff)
    if options.convention == "reference":
        return Spread(top, share.clamp(min=options.floor), rank, size.floor().clamp(min=3.0))
    # λmin(Σ + ε_r λmax I)
    return Spread(top, share + options.floor, rank, size.clamp(min=1.0))


def _extreme_eigenvalues(covariance: Tensor, dimension: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """Least and largest eigenvalue and trace of the leading d×d blocks of (F, S, D, D).

    Rows beyond d are zero. Their diagonal is set to the mean eigenvalue, which lies between the
    two extremes and so leaves both as they are.
    """
    trace = covariance.diagonal(dim1=-2, dim2=-1).sum(-1)
    index = torch.arange(covariance.shape[-1], device=covariance.device)
    beyond = index >= dimension.unsqueeze(-1)
    filler = torch.where(beyond, (trace / dimension).unsqueeze(-1), 0.0)
    filled = covariance + torch.diag_embed(filler)
    values = linalg.eigvalsh(filled.flatten(0, 1)).unflatten(0, filled.shape[:2]).clamp(min=0.0)
    return values[..., 0], values[..., -1], trace


def _separation_tail(sides: Sides, spread: Spread, options: BoundSettings) -> Tensor:
    """Half-width of PS [eq:aftermizath], in each of the three conventions."""
    a, b = sides.distance.unbind(-1)
    slope = torch.hypot(a, b) / torch.where(a + b > 0.0, a + b, 1.0).square()
    lead, reference = sides.cluster.shape[:-1], options.convention == "reference"
    picked = Spread(*(x.unsqueeze(-2).expand(*lead, -1).gather(-1, sides.cluster) for x in spread))
    if reference:  # the own cluster's size serves both
        picked = picked._replace(size=picked.size[..., :1])
    error = _distance_error(sides.distance, picked, options)
    if options.convention == "paper":
        return slope * error.sum(-1).sqrt()
    tail = slope * torch.linalg.vector_norm(error, dim=-1)
    return tail.clamp(max=1.0) if reference else tail


def _distance_error(distance: Tensor, spread: Spread, options: BoundSettings) -> Tensor:
    """ε(A) of [eq:temp_A] as printed, with Δ_μ of [eq:ps_mu] and Δ_Σ of [eq:ps_cov].

    In the derived convention ``|A - Â|`` from the error of A², see the module.
    """
    derived = options.convention == "derived"
    log = math.log(2.0 / ((1.0 - options.confidence) / (4.0 if derived else 2.0)))
    n, rank, mean = spread.size, spread.rank, (2.0 * log / spread.size).sqrt()  # over sqrt λmax
    of_rank = rank / n if options.convention == "paper" else (rank / n).sqrt()
    covariance = options.c * (of_rank + (rank + log) / n)  # over λmax
    if not derived:
        mean = (2.0 * spread.top * log / n).sqrt()
        return 2.0 * distance.sqrt() * mean * spread.floored.rsqrt() + distance * covariance
    squared = 2.0 * distance * (mean + (rank / n).sqrt()) * spread.floored.rsqrt()
    squared = squared + distance.square() * covariance / spread.floored
    safe = torch.where(distance > 0.0, distance, 1.0)
    return torch.where(distance > 0.0, torch.minimum(squared.sqrt(), squared / safe), 0.0)
