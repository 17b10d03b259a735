"""Do the assumptions behind the bounds hold on your data? Functions that measure them.

The bounds of [sec:bounds] rest on four things the paper looked at once: squared distances of a
cluster follow a Gamma distribution (PM itself needs this), neighbouring distortions are weakly
correlated (sum of autocorrelations 0.2, so n_eff = 0.7 n), frames more than g = 4 apart are
independent, and the errors of the sources of a trial are correlated by ρ_l. No gradients.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import torch
from torch import Tensor
from typing_extensions import Unpack

from torch_mapss.bounds.bootstrap import bootstrap_match, bootstrap_separation
from torch_mapss.bounds.effective import bartlett_sum, normal_quantile
from torch_mapss.bounds.match import MatchParts, fit_gamma, match_parts
from torch_mapss.core import checks
from torch_mapss.core.diffusion_map import embed
from torch_mapss.core.frame_batches import Scored, run, run_shaped
from torch_mapss.core.gamma import gammaincc
from torch_mapss.core.points import (
    Points,
    checked_points,
    presence,
    scored_outputs,
    split_points,
)
from torch_mapss.core.settings import MapOptions, Settings, map_settings


class GammaTest(NamedTuple):
    """How well a Gamma distribution fits the squared distances of a cluster."""

    statistic: Tensor  # (..., S') Kolmogorov-Smirnov distance in [0, 1], 0 where undefined
    p_value: Tensor  # (..., S') of that distance or more if the Gamma were given beforehand
    shape: Tensor  # (..., S') k
    scale: Tensor  # (..., S') θ


class BankCorrelation(NamedTuple):
    """Dependence along the bank's order."""

    total: Tensor  # (..., S) Σρ̂ up to the first insignificant lag; the paper saw 0.2
    share: Tensor  # (..., S) n_eff / n = 1/(1 + 2Σρ̂), at most 1; the paper takes 0.7


class FrameCorrelation(NamedTuple):
    """Dependence between frames."""

    correlation: Tensor  # (..., lags) autocorrelation at lags 1, 2, …; NaN where too few frames
    gap: Tensor  # (...) int64, g: the last lag before the first insignificant one; paper: 4


class SourceCorrelation(NamedTuple):
    """Correlation of the errors of the sources of a trial."""

    mean: Tensor  # () ρ_l, the mean over pairs of sources
    matrix: Tensor  # (S', S')


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
    given beforehand: p values are too large, and a small one is strong evidence against the fit.

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
    return GammaTest(**run_shaped(*points, settings, _gamma_test))


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
) -> BankCorrelation:
    """Σρ̂ of every cluster along the bank's order, Bartlett's rule [sec:bounds].

    Arguments and errors as :func:`torch_mapss.functional.perceptual_separation`.

    Returns:
        :class:`BankCorrelation` of (..., S) tensors, one for every cluster; 0 and 1 where the
        source is inactive.
    """
    settings = map_settings(**options)
    points = checked_points(outputs, references, distortions, attributed, active, mask, 1)
    total = run_shaped(*points, settings, _lag_sum)["total"]
    return BankCorrelation(total, 1.0 / (1.0 + 2.0 * total).clamp(min=1.0))


@torch.no_grad()
def frame_correlation(
    frames: Tensor, active: Tensor | None = None, lags: int = 20
) -> FrameCorrelation:
    """Autocorrelation of frame scores in time, and how far it reaches.

    A lag counts pairs of active frames exactly that far apart. It is insignificant where its
    size is below 1.96/sqrt(number of pairs), as in Bartlett's rule.

    Args:
        frames: (..., F) scores (or their errors) of consecutive frames.
        active: (..., F) bool, frames that count; all by default.
        lags: how many lags.

    Returns:
        :class:`FrameCorrelation`; ``gap`` is 0 where already lag 1 is insignificant, and ``lags``
        where none is.

    Raises:
        TypeError: not floating point, or active not bool.
        ValueError: shapes that do not fit, lags below 1 or not below F, NaN in active frames.
    """
    lags = checks.check_whole(lags, "lags", 1)
    frames, active = _check_frames(frames, active, lags)
    here = active.double()
    mean = (frames * here).sum(-1, keepdim=True) / here.sum(-1, keepdim=True).clamp(min=1.0)
    x = torch.where(active, frames - mean, 0.0)
    variance = x.square().sum(-1) / here.sum(-1).clamp(min=1.0)
    size = 2 * frames.shape[-1]
    products = _lagged_products(x, size)[..., 1 : lags + 1]
    pairs = _lagged_products(here, size)[..., 1 : lags + 1].round()
    some = (pairs > 1.0) & (variance > 0.0).unsqueeze(-1)
    scale = torch.where(some, pairs * variance.unsqueeze(-1), 1.0)
    rho = torch.where(some, products / scale, torch.nan)
    insignificant = ~(rho.abs() >= normal_quantile(0.95) / pairs.clamp(min=1.0).sqrt())
    return FrameCorrelation(rho, (insignificant.cumsum(-1) == 0).sum(-1))


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
) -> SourceCorrelation:
    """ρ_l: how the errors of the sources of one trial go together, by bootstrap.

    PS of two sources share their clusters, so a draw that moves one moves the other. PM of each
    reads only its own cluster, and distortions are drawn independently per source: its ρ_l is 0
    up to the number of draws.

    Args:
        outputs, references, distortions: (F, S', M), (F, S, M), (F, S, P, M), the frames of one
            trial (any leading dimensions are taken as its frames).
        measure: ``"separation"`` or ``"match"``.
        attributed, active, mask, options: as for the scores.
        draws: number of bootstrap draws.
        seed: of the draws.

    Returns:
        :class:`SourceCorrelation`, over all frames where both sources are active; NaN for a source
        that never is.

    Raises:
        TypeError, ValueError: as the scores; fewer than two outputs, or draws below 2.
    """
    checks.check_choice(measure, "measure", ("separation", "match"))
    draws, seed = checks.check_whole(draws, "draws", 2), checks.check_seed(seed)
    settings = map_settings(**options)
    least = 1 if measure == "separation" else 2
    points, _ = checked_points(outputs, references, distortions, attributed, active, mask, least)
    if outputs.shape[-2] < 2:
        raise ValueError("a correlation between sources needs at least 2 outputs, got 1.")
    resample = bootstrap_separation if measure == "separation" else bootstrap_match

    def resampled(points: Points, settings: Settings, may_sync: bool) -> Scored:
        embedding = embed(points, settings, may_sync=may_sync)
        _, scores = resample(embedding, points, settings, draws, seed)
        errors = torch.where(scored_outputs(points), scores - scores.mean(0), 0.0)
        return {"errors": errors.movedim(0, -1)}, embedding.again

    errors = run(points, settings, resampled)["errors"].double()  # (frames, S', draws)
    covariance = torch.einsum("fir,fjr->ij", errors, errors)
    scale = covariance.diagonal().sqrt()
    matrix = covariance / (scale.unsqueeze(-1) * scale)  # NaN for a source without any error
    same = torch.eye(len(matrix), dtype=torch.bool, device=matrix.device)
    return SourceCorrelation(matrix.masked_fill(same, torch.nan).nanmean(), matrix)


# --------------------------------------------------------------------------------------------
# Score functions
# --------------------------------------------------------------------------------------------


def _gamma_test(points: Points, settings: Settings, may_sync: bool) -> Scored:
    embedding = embed(points, settings, discarded=True, may_sync=may_sync)
    parts = match_parts(embedding, points, settings)
    fit, collapsed = fit_gamma(parts, embedding, settings)
    statistic = _kolmogorov_distance(parts, fit.k, fit.theta)
    statistic = torch.where(scored_outputs(points) & ~collapsed, statistic, 0.0)
    found = GammaTest(statistic, kolmogorov_tail(statistic, parts.members), fit.k, fit.theta)
    return found._asdict(), embedding.again


def _kolmogorov_distance(parts: MatchParts, k: Tensor, theta: Tensor) -> Tensor:
    """Largest distance between the fitted and the empirical distribution function."""
    g = torch.where(parts.present, parts.g, torch.inf).sort(-1).values
    present = torch.isfinite(g)
    x = torch.where(present, g, 0.0) / theta.unsqueeze(-1)
    fitted = 1.0 - gammaincc(k.unsqueeze(-1).expand_as(x), x)
    count = parts.members.clamp(min=1).to(g.dtype).unsqueeze(-1)
    index = torch.arange(g.shape[-1], dtype=g.dtype, device=g.device)
    above, below = (index + 1.0) / count - fitted, fitted - index / count
    return torch.where(present, torch.maximum(above, below), 0.0).amax(-1)


def kolmogorov_tail(statistic: Tensor, count: Tensor) -> Tensor:
    """P(distance >= statistic) for ``count`` points and a given distribution.

    Kolmogorov's limit 2 Σ_j (-1)^(j-1) exp(-2 j² λ²) at λ = (√n + 0.12 + 0.11/√n) D, Stephens'
    correction for finite n; below λ = 0.3 the tail is 1 to 1e-5.
    """
    root = count.clamp(min=1).to(statistic.dtype).sqrt()
    argument = (root + 0.12 + 0.11 / root) * statistic
    j = torch.arange(1, 21, dtype=statistic.dtype, device=statistic.device)
    terms = (-2.0 * (j * argument.clamp(min=0.3).unsqueeze(-1)).square()).exp()
    signs = torch.where(j % 2 == 1, 2.0, -2.0)
    return torch.where(argument < 0.3, 1.0, (terms * signs).sum(-1).clamp(0.0, 1.0))


def _lag_sum(points: Points, settings: Settings, may_sync: bool) -> Scored:
    embedding = embed(points, settings, may_sync=may_sync)
    _, clusters = split_points(embedding.coordinates, points)
    _, present = presence(points)
    return {"total": bartlett_sum(clusters, present, embedding.dimension)}, embedding.again


def _lagged_products(x: Tensor, size: int) -> Tensor:
    """Σ_f x_f x_(f+ℓ) for every lag ℓ from 0."""
    return torch.fft.irfft(torch.fft.rfft(x, n=size).abs().square(), n=size)


def _check_frames(frames: Tensor, active: Tensor | None, lags: int) -> tuple[Tensor, Tensor]:
    checks.check_floating(frames, "frames")
    if frames.ndim < 1 or not 1 <= lags < frames.shape[-1]:
        raise ValueError(
            f"lags must be at least 1 and below the number of frames, got {lags} for frames of "
            f"shape {tuple(frames.shape)} (frames last)."
        )
    if active is None:
        active = torch.ones_like(frames, dtype=torch.bool)
    active = checks.check_bool(active, "active", tuple(frames.shape))
    if bool((active & ~torch.isfinite(frames)).any()):
        raise ValueError(
            "frames must be finite where active. An undefined frame must be inactive: pass "
            "active=False there."
        )
    return torch.where(active, frames.double(), 0.0), active
