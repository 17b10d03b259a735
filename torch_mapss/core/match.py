"""PM: the Gamma tail of an output among its source's distortions."""

from __future__ import annotations

import math
from typing import NamedTuple

import torch
from torch import Tensor

from torch_mapss.core.diffusion_map import Embedding, read_map
from torch_mapss.core.gamma import both_tails
from torch_mapss.core.mahalanobis import RIDGE, cluster_distances, rounding_floor
from torch_mapss.core.points import Points, presence, scored_outputs, split_points
from torch_mapss.core.settings import Settings

LOG_ZERO = math.log(torch.finfo(torch.float64).tiny)  # stands for log 0, which is not finite


class GammaFit(NamedTuple):
    """Moment-matched Gamma of a cluster's squared distances, and the output's own."""

    shape: Tensor  # (F, S') k
    scale: Tensor  # (F, S') θ
    distance: Tensor  # (F, S') a, squared
    collapsed: Tensor  # (F, S') bool: no Gamma can be fitted
    defined: Tensor  # (F, S') bool


# --------------------------------------------------------------------------------------------
# PM
# --------------------------------------------------------------------------------------------


def attributed_deviations(
    embedding: Embedding, points: Points
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """What PM reads, centred at the reference of each output's source.

    Returns:
        Distortions (F, S', P, D), rows of absent ones zero; outputs (F, S', D); which
        distortions are present (F, S', P); and their number N_p (F, S').
    """
    outputs, clusters = split_points(embedding.coordinates, points)
    _, present = presence(points)
    clusters, present = points.of_outputs(clusters), points.of_outputs(present)
    reference = clusters[..., :1, :]
    present = present[..., 1:]
    deviations = (clusters[..., 1:, :] - reference) * present.unsqueeze(-1)
    return deviations, outputs - reference.squeeze(-2), present, present.sum(-1)


def moments(values: Tensor, weights: Tensor, count: Tensor) -> tuple[Tensor, Tensor]:
    """Mean and unbiased variance along the last axis of values counted ``weights`` times.

    [eq:stats_pm]; weights are bool, or whole numbers whose sum is ``count``.
    """
    mean = (weights * values).sum(-1) / count.clamp(min=1)
    squares = weights * (values - mean.unsqueeze(-1)).square()
    return mean, squares.sum(-1) / (count - 1).clamp(min=1)


def gamma_fit(embedding: Embedding, points: Points, settings: Settings) -> GammaFit:
    """k, θ [eq:gamma_matching] and a of every output of a batch of frames.

    A cluster is collapsed where the mean or variance of its squared distances is not positive,
    up to what rounding gives coincident points; so is the distance of an output to its reference
    zero.
    """
    deviations, output, present, count = attributed_deviations(embedding, points)
    both = torch.cat([deviations, output.unsqueeze(-2)], -2)
    squared = cluster_distances(deviations, (count - 1).clamp(min=1), both)
    floor = rounding_floor(embedding).unsqueeze(-1)
    g, a = squared[..., :-1], squared[..., -1]
    a = torch.where(a <= floor, 0.0, a)
    if settings.convention == "reference":
        g, a = g + RIDGE, a + RIDGE
    mean, variance = moments(g, present, count)
    collapsed = is_collapsed(mean, variance, floor, settings)
    scored = scored_outputs(points)
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
    spread = (16.0 * torch.finfo(settings.precision).eps * mean).square()
    return (mean <= least) | (variance <= spread)


def of_match(embedding: Embedding, points: Points, settings: Settings) -> dict[str, Tensor]:
    """PM, log PM and d (F, S') of one map."""
    pm, log_pm = match_parts(embedding, points, settings)
    dimension = embedding.dimensions(len(points.attributed))
    return {"pm": pm, "log_pm": log_pm, "match_dimension": dimension}


#: The score function of PM.
match_scores = read_map(of_match)


def match_parts(embedding: Embedding, points: Points, settings: Settings) -> tuple[Tensor, Tensor]:
    """PM [eq:pm_gamma_mm_short] and log PM (F, S') of one map; 0 where they are not defined."""
    fit = gamma_fit(embedding, points, settings)
    plain = fit.defined & ~fit.collapsed
    score, log_score = both_tails(fit.shape, torch.where(plain, fit.distance / fit.scale, 0.0))
    if settings.convention == "reference":
        score = torch.where(score < 1e-16, 0.0, score)  # 1 - cdf, which rounds to 0 there
    without, log_without = _without_fit(fit, embedding, points)
    return torch.where(plain, score, without), torch.where(plain, log_score, log_without)


def _without_fit(fit: GammaFit, embedding: Embedding, points: Points) -> tuple[Tensor, Tensor]:
    """The collapse rule: PM 1 if the output coincides with its reference, else 0; no gradient.

    log PM of 0 is the log of the smallest normal number rather than -inf: it enters means.
    """
    same = coincides(embedding, points, fit.distance.detach() <= 0.0)
    scored = scored_outputs(points)
    one = (same & scored).to(fit.distance.dtype)
    return one, torch.where(scored & ~same, LOG_ZERO, 0.0).to(fit.distance.dtype)


def coincides(embedding: Embedding, points: Points, on_reference: Tensor) -> Tensor:
    """(F, S') whether an output is its reference: as coordinates say, or, without a map, points."""
    outputs = len(points.attributed)
    rows = torch.arange(outputs, device=on_reference.device)
    apart = embedding.squared_distances[:, rows, outputs + points.source_index()]
    return torch.where(embedding.degenerate.unsqueeze(-1), apart <= 0.0, on_reference)
