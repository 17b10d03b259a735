"""Measurements of how well the assumptions behind the bounds hold on your data.

The bounds of [sec:bounds] rest on assumptions that the paper checked on one data set: squared
distances of a cluster follow a Gamma distribution (PM itself needs this), neighbouring distortions
are weakly correlated (sum of autocorrelations 0.2, so n_eff = 0.7 n), and the errors of the sources
of a trial are correlated by ρ_l. No gradients.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import torch
from torch import Tensor
from typing_extensions import Unpack

from torch_mapss.bounds.bootstrap import bootstrap_match, bootstrap_separation
from torch_mapss.bounds.effective import bartlett_sum
from torch_mapss.bounds.match import MatchFit, match_fit
from torch_mapss.core import checks, devices
from torch_mapss.core.diffusion_map import FrameMaps, score_function_from
from torch_mapss.core.frame_batches import run
from torch_mapss.core.gamma import gammaincc
from torch_mapss.core.points import Points, checked_points, presence, scored_outputs, split_points
from torch_mapss.core.settings import MapOptions, MapSettings, map_settings


class GammaTest(NamedTuple):
    """Goodness of fit of a Gamma distribution to the squared distances of a cluster."""

    statistic: Tensor  # (..., S') Kolmogorov-Smirnov distance in [0, 1], 0 where undefined
    p_value: Tensor  # (..., S') probability of this distance or more for a Gamma fixed beforehand
    shape: Tensor  # (..., S') k
    scale: Tensor  # (..., S') θ


@torch.no_grad()
def gamma_fit_test(
    outputs: Tensor,
    references: Tensor,
    distortions: Tensor,
    *,
    attributed: Sequence[int] | Tensor | None = None,
    active: Tensor | None = None,
    mask: Tensor | None = None,
    **options: Unpack[MapOptions],
) -> GammaTest:
    """Kolmogorov-Smirnov test of the Gamma fit that PM is read from, per cluster.

    k and θ are fitted to the same distances, which makes the statistic smaller than for a Gamma
    fixed beforehand. So p values are too large, and a small one is strong evidence against the fit.

    Args:
        outputs, references, distortions, attributed, active, mask, options: as for
            :func:`torch_mapss.functional.perceptual_match`.

    Returns:
        :class:`GammaTest` of (..., S') tensors; where a score is undefined or its cluster
        collapsed, statistic 0 and p 1.

    Raises:
        TypeError, ValueError: as the score.
    """
    settings = map_settings(**options)
    points = checked_points(outputs, references, distortions, attributed, active, mask, 2)
    return GammaTest(**run(points, settings, score_function_from(_gamma_test, complete=True)))


@torch.no_grad()
def bank_correlation(
    outputs: Tensor,
    references: Tensor,
    distortions: Tensor,
    *,
    attributed: Sequence[int] | Tensor | None = None,
    active: Tensor | None = None,
    mask: Tensor | None = None,
    **options: Unpack[MapOptions],
) -> tuple[Tensor, Tensor]:
    """Σρ̂ of every cluster in the order of its distortion bank, Bartlett's rule [sec:bounds].

    Arguments and errors as :func:`torch_mapss.functional.perceptual_separation`.

    Returns:
        (..., S) Σρ̂ up to the first insignificant lag (the paper saw 0.2), and (..., S) the share
        n_eff / n = 1/(1 + 2Σρ̂), at most 1 (the paper takes 0.7), of every cluster; 0 and 1 where
        the source is inactive.
    """
    settings = map_settings(**options)
    points = checked_points(outputs, references, distortions, attributed, active, mask, 1)

    def lag_sum(maps: FrameMaps, points: Points, _: MapSettings) -> dict[str, Tensor]:
        clusters, present = split_points(maps.coordinates, points)[1], presence(points)[1]
        return {"total": bartlett_sum(clusters, present, maps.dimension)}

    total = run(points, settings, score_function_from(lag_sum))["total"]
    return total, 1.0 / (1.0 + 2.0 * total).clamp(min=1.0)


@torch.no_grad()
def source_correlation(
    outputs: Tensor,
    references: Tensor,
    distortions: Tensor,
    *,
    measure: str = "separation",
    attributed: Sequence[int] | Tensor | None = None,
    active: Tensor | None = None,
    mask: Tensor | None = None,
    draws: int = 100,
    seed: int = 0,
    **options: Unpack[MapOptions],
) -> tuple[Tensor, Tensor]:
    """Correlation ρ_l of the errors of a trial's sources, by bootstrap.

    The PS of two sources uses the same clusters, so a draw that moves one moves the other. PM uses
    only the own cluster, and distortions are drawn independently per source, so its ρ_l is 0 up to
    the noise of the draws.

    Args:
        outputs, references, distortions: (F, S', M), (F, S, M), (F, S, P, M), the frames of one
            trial (any leading dimensions are taken as its frames).
        measure: ``"separation"`` or ``"match"``.
        attributed, active, mask, options: as for the scores.
        draws: number of bootstrap draws.
        seed: seed of the draws.

    Returns:
        () ρ_l, the mean over pairs of sources, and the (S', S') matrix, over all frames in which
        both sources are active; NaN for a source that never is.

    Raises:
        TypeError, ValueError: as the scores; fewer than two outputs, or draws below 2.
    """
    checks.check_choice(measure, "measure", ("separation", "match"))
    draws, seed = checks.check_whole(draws, "draws", 2), checks.check_seed(seed)
    settings = map_settings(**options)
    fewest_members = 1 if measure == "separation" else 2
    points = checked_points(
        outputs, references, distortions, attributed, active, mask, fewest_members
    )
    if outputs.shape[-2] < 2:
        raise ValueError("a correlation between sources needs at least 2 outputs, got 1.")
    resample = bootstrap_separation if measure == "separation" else bootstrap_match

    def resampled(maps: FrameMaps, points: Points, settings: MapSettings) -> dict[str, Tensor]:
        _, scores = resample(maps, points, settings, draws, seed)
        errors = torch.where(scored_outputs(points), scores - scores.mean(0), 0.0)
        return {"errors": errors.movedim(0, -1)}

    # (frames, S', draws)
    errors = run(points, settings, score_function_from(resampled))["errors"]
    errors = devices.wide(errors).reshape(-1, *errors.shape[-2:])
    covariance = torch.einsum("fir,fjr->ij", errors, errors)
    scale = covariance.diagonal().sqrt()
    matrix = covariance / (scale.unsqueeze(-1) * scale)  # NaN for a source without any error
    same = torch.eye(len(matrix), dtype=torch.bool, device=matrix.device)
    return matrix.masked_fill(same, torch.nan).nanmean(), matrix


# --------------------------------------------------------------------------------------------
# Score functions
# --------------------------------------------------------------------------------------------


def _gamma_test(maps: FrameMaps, points: Points, settings: MapSettings) -> dict[str, Tensor]:
    fit = match_fit(maps, points, settings)
    statistic = _kolmogorov_distance(fit)
    statistic = torch.where(scored_outputs(points) & ~fit.collapsed, statistic, 0.0)
    p_value = kolmogorov_tail(statistic, fit.members)
    return GammaTest(statistic, p_value, fit.k, fit.theta)._asdict()


def _kolmogorov_distance(fit: MatchFit) -> Tensor:
    """Largest distance between the fitted and the empirical distribution function."""
    g = torch.where(fit.present, fit.g, torch.inf).sort(-1).values
    present = torch.isfinite(g)
    x = torch.where(present, g, 0.0) / fit.theta.unsqueeze(-1)
    fitted = 1.0 - gammaincc(fit.k.unsqueeze(-1).expand_as(x), x)
    count = fit.members.clamp(min=1).to(g.dtype).unsqueeze(-1)
    index = torch.arange(g.shape[-1], dtype=g.dtype, device=g.device)
    above, below = (index + 1.0) / count - fitted, fitted - index / count
    return torch.where(present, torch.maximum(above, below), 0.0).amax(-1)


def kolmogorov_tail(statistic: Tensor, count: Tensor) -> Tensor:
    """P(distance >= statistic) for ``count`` points and a given distribution.

    Kolmogorov's limit at (√n + 0.12 + 0.11/√n) D, Stephens' correction for finite n.
    """
    from scipy.special import kolmogorov

    root = count.clamp(min=1).to(statistic.dtype).sqrt()
    argument = (root + 0.12 + 0.11 / root) * statistic
    return torch.from_numpy(kolmogorov(argument.cpu().numpy())).to(statistic.device)
