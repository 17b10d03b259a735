r"""A plain bootstrap over the distortions: scores of resampled clusters, on an unchanged map.

The sampled unit is the distortion, and it is common to all frames: one draw resamples the same
members of the bank, with replacement, in every frame (where members are masked, as large a share of
those present). A draw is a vector of counts w, and every statistic a weighted sum, so no point is
ever copied:

.. math:: \mu^* = \tfrac1n \sum_p w_p x_p, \qquad
   (n-1)\Sigma^* = \sum_p w_p (x_p - c)(x_p - c)^T - n (\mu^* - c)(\mu^* - c)^T,

c any fixed centre. The reference of a cluster always stays. No gradients.
"""

from __future__ import annotations

import torch
from torch import Tensor
from torch.nn.functional import pad

from torch_mapss.core import devices
from torch_mapss.core.diffusion_map import FrameMaps
from torch_mapss.core.gamma import gammaincc
from torch_mapss.core.mahalanobis import RIDGE, ridge_factor, rounding_floor, squared_mahalanobis
from torch_mapss.core.match import attributed_deviations, gamma_parameters, is_collapsed, moments
from torch_mapss.core.points import Points, presence, split_points
from torch_mapss.core.separation import cluster_statistics, own_and_nearest, ratio
from torch_mapss.core.settings import MapSettings

# Working memory of one block of draws.
DRAW_BYTES = 96 * 2**20


def half_width(draws: Tensor, score: Tensor, confidence: float) -> Tensor:
    """The ``confidence`` quantile of ``|draw - score|`` over draws (R, ...), shape (...)."""
    return quantile((draws - score).abs(), confidence)


def quantile(values: Tensor, level: float) -> Tensor:
    """Quantile along the first axis, linear between order statistics (torch's limits the size)."""
    ordered = values.sort(0).values
    position = level * (len(ordered) - 1)
    below = int(position)
    return torch.lerp(ordered[below], ordered[min(below + 1, len(ordered) - 1)], position - below)


def resampled_counts(present: Tensor, draws: int, seed: int) -> Tensor:
    """Number of times that each distortion is drawn.

    Args:
        present: (F, S, P) bool.
        draws: R.
        seed: equal seeds draw equal members on every device, whatever the batch.

    Returns:
        (R, F, S, P) counts; each (R, F, S) sums to the number present. The F axis is 1 where all
        distortions are present everywhere.
    """
    sources, members = present.shape[1:]
    generator = torch.Generator("cpu").manual_seed(seed)
    # Members come first, so members that pad a batch do not change the draws of the others.
    shape = members, draws, sources
    uniform = torch.rand(shape, generator=generator, dtype=torch.float64, device="cpu")
    uniform = uniform.permute(1, 2, 0).to(present.device).unsqueeze(1)
    if bool(present.all()):
        present = present[:1]
    count = present.sum(-1, keepdim=True)  # (F, S, 1)
    member_index = torch.minimum((uniform * count).long(), (count - 1).clamp(min=0))
    counted = (torch.arange(members, device=present.device) < count).expand_as(member_index)
    tally = torch.zeros(member_index.shape, dtype=torch.float64, device=present.device)
    tally.scatter_add_(-1, member_index, counted.to(tally.dtype))
    position = (present.cumsum(-1) - 1).clamp(min=0).expand_as(member_index)
    return torch.where(present, tally.gather(-1, position), 0.0)


def _blocks(weights: Tensor, frames: int, width: int) -> tuple[Tensor, ...]:
    """``weights`` (R, ...) in blocks of draws whose statistics fit the working memory."""
    points = weights.shape[-1] + width
    bytes_per_draw = 8 * frames * weights.shape[-2] * width * 2 * points
    return weights.split(max(1, DRAW_BYTES // max(bytes_per_draw, 1)))


def _weighted_scatter(weights: Tensor, deviations: Tensor) -> Tensor:
    """Σ_p w_p x_p x_pᵀ: (R, F, S, n), (F, S, n, D) -> (R, F, S, D, D)."""
    return (deviations.mT * weights.unsqueeze(-2)) @ deviations


# --------------------------------------------------------------------------------------------
# PS
# --------------------------------------------------------------------------------------------


def bootstrap_separation(
    maps: FrameMaps, points: Points, settings: MapSettings, draws: int, seed: int
) -> tuple[Tensor, Tensor]:
    """PS (F, S') of the original clusters, and of every draw (R, F, S')."""
    outputs, clusters = split_points(maps.coordinates, points)
    active, present = presence(points)
    centre, deviations, divisor = cluster_statistics(clusters, present)
    counts = pad(resampled_counts(present[..., 1:], draws, seed), (1, 0), value=1.0)
    delta = outputs.unsqueeze(-3) - centre.unsqueeze(-2)  # (F, S, S', D)
    ridge = RIDGE if settings.convention == "reference" else 0.0
    once = pad(present[None, ..., 1:].to(clusters.dtype), (1, 0), value=1.0)

    def scores(weights: Tensor) -> Tensor:
        squared = _resampled_distances(weights, deviations, delta, divisor).mT
        own_and_foreign = squared.gather(-1, own_and_nearest(squared, active, points))
        a, b = (own_and_foreign + ridge).sqrt().unbind(-1)
        return ratio(a, b, settings.convention)

    blocks = _blocks(counts, len(outputs), clusters.shape[-1])
    return scores(once)[0], torch.cat([scores(block) for block in blocks])


def _resampled_distances(
    weights: Tensor, deviations: Tensor, delta: Tensor, divisor: Tensor
) -> Tensor:
    """Squared distances of the outputs to the clusters of every draw, (R, F, S, S')."""
    n = (divisor + 1)[..., None]
    shift = (weights.unsqueeze(-2) @ deviations).squeeze(-2) / n  # (R, F, S, D) μ* - c
    scatter = _weighted_scatter(weights, deviations)
    scatter = scatter - n.unsqueeze(-1) * shift.unsqueeze(-1) * shift.unsqueeze(-2)
    from_mean = delta - shift.unsqueeze(-2)
    return squared_mahalanobis(ridge_factor(scatter, divisor), from_mean)


# --------------------------------------------------------------------------------------------
# PM
# --------------------------------------------------------------------------------------------


def bootstrap_match(
    maps: FrameMaps, points: Points, settings: MapSettings, draws: int, seed: int
) -> tuple[Tensor, Tensor]:
    """PM (F, S') of the original clusters, and of every draw (R, F, S').

    Draws whose resampled cluster is collapsed (all squared distances equal) have no fit; as in the
    score, PM is then 1 if the output coincides with its reference, else 0.
    """
    deviations, output, present, count = attributed_deviations(maps.coordinates, points)
    members = presence(points)[1][..., 1:]
    counts = devices.select(resampled_counts(members, draws, seed), points.attributed, 2)
    rows = torch.cat([deviations, output.unsqueeze(-2)], -2)
    ridge = RIDGE if settings.convention == "reference" else 0.0
    floor = rounding_floor(maps.coordinates, settings).unsqueeze(-1)

    def scores(weights: Tensor) -> Tensor:
        factor = ridge_factor(_weighted_scatter(weights, deviations), (count - 1).clamp(min=1))
        squared = squared_mahalanobis(factor, rows)
        a = squared[..., -1]
        a = torch.where(a <= floor, 0.0, a) + ridge
        mean, variance = moments(squared[..., :-1] + ridge, weights, count)
        collapsed = is_collapsed(mean, variance, floor, settings)
        mean, variance = (torch.where(collapsed, 1.0, x) for x in (mean, variance))
        k, theta = gamma_parameters(mean, variance)
        score = gammaincc(k, a / theta)  # [eq:pm_gamma_mm_short]
        return torch.where(collapsed, (a <= 0.0).to(score.dtype), score)

    blocks = _blocks(counts, len(output), rows.shape[-1])
    return scores(present.unsqueeze(0).to(rows.dtype))[0], torch.cat([scores(w) for w in blocks])
