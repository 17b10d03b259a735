r"""Radius and tail of PM over a batch of frames.

**Two corners.** Q(k, a/θ) rises with k (a Gamma(k + h) variable is a Gamma(k) variable plus an
independent non-negative one, so its tail is larger) and falls with x = a/θ (the tail of a
distribution), hence rises with θ and falls with a. On a box its maximum is therefore at
(k₊, θ₊, a₋), its minimum at (k₋, θ₋, a₊); both are corners, and the largest ``|Q - Q₀|`` over the
eight corners, and over the box, is the larger of those two changes.

**The derived tail of PM.** [eq:sig_b_pm] mixes R² with σ. For g in [0, R] the bound is one of σ²:
``|σ²-σ̂²| <= v = R² sqrt(2 ln(2/δ)/N_p) + 3R² ln(2/δ)/N_p``, and as above
``|σ-σ̂| <= min(√v, v/σ̂)``. The **derived radius** of PM needs no C₁, C₂: the full-space k and θ are
computed, and the box takes their true distance from the retained ones.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import NamedTuple

import torch
from torch import Tensor

from torch_mapss.bounds.bootstrap import bootstrap_match, half_width
from torch_mapss.bounds.schur import (
    REFERENCE_RIDGE,
    is_retained,
    nothing_discarded,
    schur_parts,
)
from torch_mapss.bounds.settings import BoundSettings
from torch_mapss.core.diffusion_map import FrameMaps
from torch_mapss.core.gamma import gammaincc
from torch_mapss.core.mahalanobis import RIDGE, ridge_factor, rounding_floor
from torch_mapss.core.match import attributed_deviations, gamma_parameters, is_collapsed, moments
from torch_mapss.core.points import Points, scored_outputs
from torch_mapss.core.settings import MapSettings

# Guards of the released implementation: on a variance, on divisors, on an upper limit.
_REFERENCE_VARIANCE, _REFERENCE_DIVISOR, _REFERENCE_LIMIT = 1e-12, 1e-9, 1e-12


class MatchFit(NamedTuple):
    """Squared distances from the reference, split at d, and the Gamma of the retained parts."""

    g: Tensor  # (F, S', P) of the distortions, retained
    gaps: Tensor  # (F, S', P) part added by discarded coordinates [eq:diff_sq_mahal]
    a: Tensor  # (F, S') of the output, retained
    gap_a: Tensor  # (F, S') [eq:diff_sq_mahal_out]
    present: Tensor  # (F, S', P) bool
    members: Tensor  # (F, S') N_p
    collapsed: Tensor  # (F, S') bool: there is no fit, and what follows is that of moments 1
    mean: Tensor  # (F, S') of g
    variance: Tensor  # (F, S')
    k: Tensor  # (F, S') [eq:gamma_matching]
    theta: Tensor  # (F, S')


Point = tuple[Tensor, Tensor, Tensor]  # k, θ, a


# Half the sides of a box of k, θ and a about a point, and the lower limits of its corners.
Box = tuple[Point, tuple[float, float, float]]
_FLOORS = 1e-12, 1e-12, 0.0


def match_widths(
    maps: FrameMaps, points: Points, settings: MapSettings, options: BoundSettings
) -> tuple[Tensor, Tensor]:
    """Radius and tail of PM (F, S') of a batch of frames."""
    fit = match_fit(maps, points, settings)
    centre, boxes = (fit.k, fit.theta, fit.a), [_radius_box(fit, options)]
    if options.tail == "bootstrap":
        (radius,) = corner_maxima(centre, boxes)
        score, draws = bootstrap_match(maps, points, settings, options.draws, options.seed)
        tail = half_width(draws, score, options.confidence)
    else:
        radius, tail = corner_maxima(centre, [*boxes, _tail_box(fit, options)])
    radius, tail = torch.where(fit.collapsed, 0.0, radius), torch.where(fit.collapsed, 1.0, tail)
    scored = scored_outputs(points)
    if options.convention == "reference":
        scored = scored & ~nothing_discarded(maps, points)
    return torch.where(scored, radius, 0.0), torch.where(scored, tail, 0.0)


def match_fit(maps: FrameMaps, points: Points, settings: MapSettings) -> MatchFit:
    """:class:`MatchFit` of every output of a batch of frames, from complete maps."""
    assert maps.all_coordinates is not None
    deviations, output, present, count = attributed_deviations(maps.all_coordinates, points)
    rows = torch.cat([deviations, output.unsqueeze(-2)], -2)
    divisor = (count - 1).clamp(min=1)
    if settings.convention == "reference":
        retained, discarded = _reference_parts(rows, present, divisor, maps)
    else:
        factor = ridge_factor(deviations.mT @ deviations, divisor)
        retained, discarded = schur_parts(factor, rows, is_retained(maps, rows.shape[-1]))
    floor = rounding_floor(maps.coordinates, settings).unsqueeze(-1)
    g, a = retained[..., :-1], retained[..., -1]
    a = torch.where(a <= floor, 0.0, a)
    gaps, gap_a = torch.where(present, discarded[..., :-1], 0.0), discarded[..., -1]

    mean, variance = moments(g, present, count)
    # These distances are plain in every convention: no 1e-6 on top of the floor.
    collapsed = is_collapsed(mean, variance, floor, settings._replace(convention="paper"))
    collapsed = collapsed | maps.degenerate.unsqueeze(-1)
    mean, variance = torch.where(collapsed, 1.0, mean), torch.where(collapsed, 1.0, variance)
    if settings.convention == "reference":
        variance = variance + _REFERENCE_VARIANCE
    parameters = gamma_parameters(mean, variance)
    return MatchFit(g, gaps, a, gap_a, present, count, collapsed, mean, variance, *parameters)


def _reference_parts(
    rows: Tensor, present: Tensor, divisor: Tensor, maps: FrameMaps
) -> tuple[Tensor, Tensor]:
    """a and b of [eq:sq_mahal_to_schur] as the released implementation has them, by blocks.

    Σ_d and Σ_m are about the mean of the deviations, C_dm about the reference. The matrix need not
    be positive, so b may have either sign. The retained block ends at the largest d of the batch
    and the discarded one begins at the smallest; coordinates that a frame lacks are padded with
    rows of the identity.
    """
    deviations = rows[..., :-1, :]
    mean = deviations.sum(-2, keepdim=True) / (divisor + 1)[..., None, None]
    centred = torch.where(present.unsqueeze(-1), deviations - mean, 0.0)
    n = divisor[..., None, None]
    inside = is_retained(maps, rows.shape[-1]).unsqueeze(1)  # (F, 1, D)
    smallest_dimension = int(maps.dimension.min()) if len(rows) else 0
    head, tail = slice(0, maps.coordinates.shape[-1]), slice(smallest_dimension, None)
    of_d, of_m = inside[..., head], ~inside[..., tail]

    def block(points: Tensor, present: Tensor, ridge: float) -> Tensor:
        points = points * present.unsqueeze(-2)
        matrix = points.mT @ points / n
        diagonal = torch.full_like(points[..., 0, :], ridge).masked_fill_(~present, 1.0)
        matrix.diagonal(dim1=-2, dim2=-1).add_(diagonal)
        return matrix

    top = torch.linalg.cholesky_ex(block(centred[..., head], of_d, RIDGE)).L
    retained, discarded = rows[..., head] * of_d.unsqueeze(-2), rows[..., tail] * of_m.unsqueeze(-2)
    cross = retained[..., :-1, :].mT @ discarded[..., :-1, :] / n
    right = torch.cat([cross, retained.mT], -1)
    whitened = torch.linalg.solve_triangular(top, right, upper=False)
    cross, delta = whitened.split([cross.shape[-1], rows.shape[-2]], -1)
    schur = block(centred[..., tail], of_m, RIDGE + REFERENCE_RIDGE) - cross.mT @ cross
    residual = discarded.mT - cross.mT @ delta
    solved = torch.linalg.ldl_solve(*torch.linalg.ldl_factor(schur), residual)
    return delta.square().sum(-2), (residual * solved).sum(-2)


def corner_maxima(centre: Point, boxes: Sequence[Box]) -> list[Tensor]:
    """Largest change of Q over each box [eq:pm_corner_radius].

    Two corners suffice, see the module; those of all boxes are evaluated together.
    """
    corners = [centre]
    for half, floors in boxes:
        lower, upper = [], []
        for x, h, floor in zip(centre, half, floors):
            lower.append((x - h.abs()).clamp(min=floor))
            upper.append((x + h.abs()).clamp(min=floor))
        corners += [(upper[0], upper[1], lower[2]), (lower[0], lower[1], upper[2])]
    k, theta, a = (torch.stack(values) for values in zip(*corners))
    at_centre, *at_corners = gammaincc(k, a / theta).unbind(0)
    return [
        torch.maximum(highest - at_centre, at_centre - lowest).clamp(min=0.0)
        for highest, lowest in zip(at_corners[::2], at_corners[1::2])
    ]


def _radius_box(fit: MatchFit, options: BoundSettings) -> Box:
    """Box for the radius [eq:ps_bias]: by [eq:pm_k_bias] and [eq:pm_theta_bias], or exact."""
    mean, variance = moments(fit.g + fit.gaps, fit.present, fit.members)
    if options.convention == "derived":
        floored = torch.where(variance > 0.0, variance, fit.variance)
        k, theta = gamma_parameters(torch.where(mean > 0.0, mean, fit.mean), floored)
        half = options.c1 * (k - fit.k), options.c2 * (theta - fit.theta), fit.gap_a
        return half, _FLOORS
    reference = options.convention == "reference"
    guard = _REFERENCE_DIVISOR if reference else 0.0
    variance = variance + (_REFERENCE_VARIANCE if reference else 0.0)
    largest = torch.where(fit.present, fit.gaps, -torch.inf).amax(-1)
    largest = torch.where(torch.isfinite(largest), largest, 0.0)  # no distortion: not scored
    count = fit.members.to(fit.a.dtype)
    factor = largest * count / (count - 1).clamp(min=1)
    half = (
        options.c1 * factor * (mean + fit.mean) / fit.variance,
        options.c2 * factor * (variance + fit.variance) / (fit.mean.square() + guard),
        fit.gap_a,
    )
    return half, (1e-6, 1e-6, 1e-8) if reference else _FLOORS


def _tail_box(fit: MatchFit, options: BoundSettings) -> Box:
    """Box for the tail [eq:pm_prob_tail]: moments by Bernstein, k and θ to first order."""
    log = math.log(6.0 / (1.0 - options.confidence))  # ln(2/(δ/3))
    count = fit.members.clamp(min=1).to(fit.a.dtype)  # an integer divides in float32
    over_n = log / count
    sigma = fit.variance.sqrt()
    reference = options.convention == "reference"
    if reference:
        largest = torch.where(fit.present, fit.g, 0.0).amax(-1) + _REFERENCE_LIMIT
        delta_a = largest * (2.0 * over_n).sqrt()
    else:  # R over the full space
        largest = torch.where(fit.present, fit.g + fit.gaps, 0.0).amax(-1)
        delta_a = largest * over_n.sqrt()
    delta_mu = (2.0 * fit.variance * over_n).sqrt() + 3.0 * largest * over_n
    if options.convention == "derived":  # bounds σ² and converts
        of_variance = largest.square() * ((2.0 * over_n).sqrt() + 3.0 * over_n)
        delta_sigma = torch.minimum(of_variance.sqrt(), of_variance / sigma)
    else:  # [eq:sig_b_pm] as printed
        delta_sigma = largest * (2.0 * over_n).sqrt() + 3.0 * largest.square() * over_n
    guard = _REFERENCE_DIVISOR if reference else 0.0
    by_mu = 2.0 * fit.mean / (fit.variance + guard), fit.variance / (fit.mean.square() + guard)
    by_sigma = 2.0 * fit.mean.square() / (sigma**3 + guard), 2.0 * sigma / (fit.mean + guard)
    limit_a = options.cap * fit.a + (_REFERENCE_LIMIT if reference else 0.0)
    half = (
        torch.minimum(by_mu[0] * delta_mu + by_sigma[0] * delta_sigma, options.cap * fit.k),
        torch.minimum(by_mu[1] * delta_mu + by_sigma[1] * delta_sigma, options.cap * fit.theta),
        torch.minimum(delta_a, limit_a),
    )
    return half, (1e-12, 1e-12, 1e-8) if reference else _FLOORS
