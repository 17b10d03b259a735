"""PM: the Gamma tail probability of an output among its source's distortions."""

from __future__ import annotations

import math

import torch
from torch import Tensor

from torch_mapss.core import devices
from torch_mapss.core.diffusion_map import FrameMaps, score_function_from
from torch_mapss.core.gamma import both_tails
from torch_mapss.core.mahalanobis import RIDGE, ClusterDistances, rounding_floor
from torch_mapss.core.points import Points, presence, scored_outputs, split_points
from torch_mapss.core.settings import PRECISIONS, MapSettings

LOG_ZERO = math.log(torch.finfo(torch.float64).tiny)  # in place of log 0, which is not finite


def gamma_parameters(mean: Tensor, variance: Tensor) -> tuple[Tensor, Tensor]:
    """Shape k and scale θ of the Gamma distribution with these moments [eq:gamma_matching]."""
    return mean.square() / variance, variance / mean


# --------------------------------------------------------------------------------------------
# PM
# --------------------------------------------------------------------------------------------


def attributed_deviations(
    coordinates: Tensor, points: Points
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Distortions and outputs, centred at the reference of each output's source.

    Args:
        coordinates: (F, N, D) coordinates of all points of the frames.
        points: points of the frames.

    Returns:
        Distortions (F, S', P, D), zero where absent; outputs (F, S', D); mask (F, S', P) of the
        distortions that are present; and their number N_p (F, S').
    """
    outputs, clusters = split_points(coordinates, points)
    _, present = presence(points)
    clusters = devices.select(clusters, points.attributed, 1)
    present = devices.select(present, points.attributed, 1)
    reference = clusters[..., :1, :]
    present = present[..., 1:]
    deviations = (clusters[..., 1:, :] - reference) * present.unsqueeze(-1)
    return deviations, outputs - reference.squeeze(-2), present, present.sum(-1)


def moments(values: Tensor, weights: Tensor, count: Tensor) -> tuple[Tensor, Tensor]:
    """Mean and unbiased variance along the last axis, each value counted ``weights`` times.

    [eq:stats_pm]; ``weights`` are bool, or whole numbers that sum to ``count``.
    """
    mean = (weights * values).sum(-1) / count.clamp(min=1)
    squares = weights * (values - mean.unsqueeze(-1)).square()
    return mean, squares.sum(-1) / (count - 1).clamp(min=1)


def is_collapsed(mean: Tensor, variance: Tensor, floor: Tensor, settings: MapSettings) -> Tensor:
    """Mask of clusters whose squared distances have a mean or variance of 0, up to rounding."""
    mean, variance = mean.detach(), variance.detach()
    smallest_mean = floor + RIDGE if settings.convention == "reference" else floor
    spread = (16.0 * torch.finfo(PRECISIONS[settings.eigh]).eps * mean).square()
    return (mean <= smallest_mean) | (variance <= spread)


def of_match(maps: FrameMaps, points: Points, settings: MapSettings) -> dict[str, Tensor]:
    """PM [eq:pm_gamma_mm_short], log PM and d (F, S') of one map; 0 where undefined.

    A cluster is collapsed where the mean or variance of its squared distances is 0 up to the
    rounding of coincident points. There, and without a map, no Gamma can be fitted: PM is 1 if the
    output coincides with its reference, else 0, without gradient. The log of a PM of 0 is the log
    of the smallest normal number rather than -inf, since it enters means.
    """
    deviations, output, present, count = attributed_deviations(maps.coordinates, points)
    offsets = torch.cat([deviations, output.unsqueeze(-2)], -2)
    squared = ClusterDistances.apply(deviations, (count - 1).clamp(min=1), offsets)
    floor = rounding_floor(maps.coordinates, settings).unsqueeze(-1)
    g, a = squared[..., :-1], squared[..., -1]
    a = torch.where(a <= floor, 0.0, a)
    as_released = settings.convention == "reference"
    if as_released:
        g, a = g + RIDGE, a + RIDGE
    mean, variance = moments(g, present, count)
    scored, no_map = scored_outputs(points), maps.degenerate.unsqueeze(-1)
    fitted = scored & ~no_map & ~is_collapsed(mean, variance, floor, settings)
    mean, variance = torch.where(fitted, mean, 1.0), torch.where(fitted, variance, 1.0)
    k, theta = gamma_parameters(mean, variance)
    score, log_score = both_tails(k, torch.where(fitted, a / theta, 0.0))
    if as_released:
        score = torch.where(score < 1e-16, 0.0, score)  # as 1 - cdf, which rounds to 0 there

    outputs = len(points.attributed)
    rows = torch.arange(outputs, device=a.device)
    references = outputs + devices.upload(points.attributed, points.device)
    apart = maps.squared_distances[:, rows, references]
    same = torch.where(no_map, apart, a.detach()) <= 0.0
    log_zero = torch.zeros_like(a).masked_fill(scored & ~same, LOG_ZERO)
    return {
        "pm": torch.where(fitted, score, (scored & same).to(score.dtype)),
        "log_pm": torch.where(fitted, log_score, log_zero),
        "match_dimension": maps.dimension.unsqueeze(-1).expand(-1, outputs),
    }


#: The score function of PM.
match_scores = score_function_from(of_match)
