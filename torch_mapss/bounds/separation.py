r"""Radius and tail of PS over a batch of frames.

**The PS radius is a rigorous bound.** As b >= 0, distances only grow: :math:`A' = A + \delta_A`,
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
from collections.abc import Sequence

import torch
from torch import Tensor

from torch_mapss.bounds.bootstrap import bootstrap_separation, half_width
from torch_mapss.bounds.effective import effective_size
from torch_mapss.bounds.schur import (
    REFERENCE_RIDGE,
    is_retained,
    nothing_discarded,
    schur_parts,
)
from torch_mapss.bounds.settings import BoundSettings
from torch_mapss.core import linalg
from torch_mapss.core.diffusion_map import FrameMaps
from torch_mapss.core.mahalanobis import RIDGE, ridge_factor, rounding_floor
from torch_mapss.core.points import Points, presence, scored_outputs, split_points
from torch_mapss.core.separation import cluster_statistics, own_and_nearest
from torch_mapss.core.settings import MapSettings


def separation_widths(
    maps: FrameMaps, points: Points, settings: MapSettings, options: BoundSettings
) -> tuple[Tensor, Tensor]:
    """Radius and tail of PS (F, S') of a batch of frames."""
    distance, discarded, cluster = separation_sides(maps, points, settings)
    total = distance.sum(-1)
    is_apart = total > 0.0
    # [eq:truncation_error_ps]; 0 where PS is ½ by rule.
    weighted = (distance.flip(-1) * discarded.sqrt()).sum(-1)
    radius = weighted / torch.where(is_apart, total, 1.0).square()
    radius = torch.where(is_apart, radius, 0.0)
    if options.tail == "bootstrap":
        score, draws = bootstrap_separation(maps, points, settings, options.draws, options.seed)
        tail = half_width(draws, score, options.confidence)
    else:
        spread = cluster_spread(maps, points, settings, options)
        tail = _separation_tail(distance, cluster, spread, options)
    # Both distances are 0, or there is no map: PS is ½ by rule, bounded only by its range.
    undecided = (total <= 0.0) | maps.degenerate.unsqueeze(-1)
    tail = torch.where(undecided, 0.5, tail)
    if options.convention == "reference":
        unbounded = ~nothing_discarded(maps, points)
        radius, tail = radius * unbounded, tail * unbounded
    scored = scored_outputs(points)
    return torch.where(scored, radius, 0.0), torch.where(scored, tail, 0.0)


def separation_sides(
    maps: FrameMaps, points: Points, settings: MapSettings
) -> tuple[Tensor, Tensor, Tensor]:
    """Distances of every output to its own cluster and to the closest foreign one.

    j* follows the retained coordinates.

    Returns:
        A and B (F, S', 2), retained; b = rᵀS⁻¹r of either, discarded, (F, S', 2); and the index of
        the two clusters (F, S', 2), int64.
    """
    assert maps.all_coordinates is not None
    outputs, clusters = split_points(maps.all_coordinates, points)
    active, present = presence(points)
    mean, deviations, divisor = cluster_statistics(clusters, present)
    retained = is_retained(maps, outputs.shape[-1])
    ridge = torch.full_like(retained, RIDGE, dtype=outputs.dtype)
    if settings.convention == "reference":
        ridge = ridge + REFERENCE_RIDGE * (~retained).to(ridge)
    factor = ridge_factor(deviations.mT @ deviations, divisor, ridge.unsqueeze(-2))
    delta = outputs.unsqueeze(-3) - mean.unsqueeze(-2)  # (F, S, S', D)
    inner, discarded = (form.mT for form in schur_parts(factor, delta, retained))
    cluster = own_and_nearest(inner, active, points)
    extra = RIDGE if settings.convention == "reference" else 0.0
    distance = (inner.gather(-1, cluster) + extra).sqrt()
    return distance, discarded.gather(-1, cluster), cluster


def cluster_spread(
    maps: FrameMaps, points: Points, settings: MapSettings, options: BoundSettings
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Spread of every cluster (F, S), for the tail of PS, from the eigenvalues of Σ^(d).

    Returns:
        λmax; λ̃min / λmax, floored; the rank r, trace / λmax; and n_eff.
    """
    _, clusters = split_points(maps.coordinates, points)
    _, present = presence(points)
    _, deviations, divisor = cluster_statistics(clusters, present)
    covariance = deviations.mT @ deviations / divisor[..., None, None]
    ridge = RIDGE if options.convention == "reference" else 0.0
    dimension = maps.dimension.unsqueeze(-1)
    bottom, top, trace = _extreme_eigenvalues(covariance, dimension)
    # A cluster whose points differ only by rounding has no shape: its eigenvalues are meaningless.
    point = top <= rounding_floor(maps.coordinates, settings).unsqueeze(-1) * RIDGE
    bottom, top, trace = (torch.where(point, 0.0, x) for x in (bottom, top, trace))
    bottom, top, trace = bottom + ridge, top + ridge, trace + ridge * dimension.to(trace.dtype)
    positive = top > 0.0
    safe = torch.where(positive, top, 1.0)
    share, rank = bottom / safe, torch.where(positive, trace / safe, 1.0)  # bottom is at most top
    size = effective_size(clusters, present, maps.dimension, options.n_eff)
    if options.convention == "reference":
        return top, share.clamp(min=options.floor), rank, size.floor().clamp(min=3.0)
    return top, share + options.floor, rank, size.clamp(min=1.0)  # λmin(Σ + ε_r λmax I)


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


def _separation_tail(
    distance: Tensor, cluster: Tensor, spread: Sequence[Tensor], options: BoundSettings
) -> Tensor:
    """Half-width of PS [eq:aftermizath] (F, S'), in each of the three conventions.

    ε(A) of [eq:temp_A] as printed, with Δ_μ of [eq:ps_mu] and Δ_Σ of [eq:ps_cov]; in the derived
    convention ``|A - Â|`` from the error of A², see the module.
    """
    derived, reference = options.convention == "derived", options.convention == "reference"
    lead = cluster.shape[:-1]
    of_clusters = [x.unsqueeze(-2).expand(*lead, -1).gather(-1, cluster) for x in spread]
    top, floored, rank, n = of_clusters  # (F, S', 2)
    if reference:  # the own cluster's size serves both
        n = n[..., :1]
    log = math.log(2.0 / ((1.0 - options.confidence) / (4.0 if derived else 2.0)))
    of_rank = rank / n if options.convention == "paper" else (rank / n).sqrt()
    covariance = options.c * (of_rank + (rank + log) / n)  # over λmax
    if derived:
        mean = (2.0 * log / n).sqrt() + (rank / n).sqrt()  # over sqrt λmax
        squared = 2.0 * distance * mean * floored.rsqrt()
        squared = squared + distance.square() * covariance / floored
        positive = distance > 0.0
        error = torch.minimum(squared.sqrt(), squared / torch.where(positive, distance, 1.0))
        error = torch.where(positive, error, 0.0)
    else:
        mean = (2.0 * top * log / n).sqrt()
        error = 2.0 * distance.sqrt() * mean * floored.rsqrt() + distance * covariance

    a, b = distance.unbind(-1)
    slope = torch.hypot(a, b) / torch.where(a + b > 0.0, a + b, 1.0).square()
    if options.convention == "paper":
        return slope * error.sum(-1).sqrt()
    tail = slope * torch.linalg.vector_norm(error, dim=-1)
    return tail.clamp(max=1.0) if reference else tail
