"""Bartlett's effective sample size: the number of independent points in a cluster [sec:bounds]."""

from __future__ import annotations

from statistics import NormalDist

import torch
from torch import Tensor


def lag_correlations(clusters: Tensor, present: Tensor, dimension: Tensor) -> Tensor:
    """ρ̂_ℓ along the bank's order, averaged over the d retained coordinates [sec:bounds].

    ρ̂_ℓ of a coordinate is the Pearson correlation of x_1 … x_(n-ℓ) with x_(1+ℓ) … x_n. Sums of
    products of all lags come from one Fourier transform, the others from cumulative sums.

    Args:
        clusters: (F, S, n, D), zero beyond d.
        present: (F, S, n) bool; absent points leave the order.
        dimension: (F,) d.

    Returns:
        (F, S, n-1), lags 1 to n-1; a coordinate that does not vary counts as 0.
    """
    n = clusters.shape[-2]
    order = (~present).to(torch.uint8).argsort(dim=-1, stable=True)
    x = clusters.gather(-2, order.unsqueeze(-1).expand_as(clusters))
    is_member = present.gather(-1, order).unsqueeze(-1)
    count = present.sum(-1)[..., None, None]  # (F, S, 1, 1)
    x = torch.where(is_member, x - (x * is_member).sum(-2, keepdim=True) / count.clamp(min=1), 0.0)
    transform = torch.fft.rfft(x, n=2 * n, dim=-2)
    products = torch.fft.irfft(transform.abs().square(), n=2 * n, dim=-2)[..., 1:n, :]
    lag = torch.arange(1, n, device=x.device)[:, None]
    size = (count - lag).clamp(min=1).to(x.dtype)
    early, late = _ends(x, count, lag)
    early_square, late_square = _ends(x.square(), count, lag)
    covariance = products - early * late / size
    early, late = early_square - early.square() / size, late_square - late.square() / size
    rounding = 1e-12 * x.square().sum(-2, keepdim=True)
    varies = (early > rounding) & (late > rounding)
    scale = torch.where(varies, early * late, 1.0).sqrt()
    correlation = torch.where(varies, covariance / scale, 0.0)
    correlation = torch.where(count - lag >= 2, correlation, 0.0)
    return correlation.sum(-1) / dimension[:, None, None]


def _ends(x: Tensor, count: Tensor, lag: Tensor) -> tuple[Tensor, Tensor]:
    """Sums of the first and of the last count - ℓ rows of x (F, S, n, D), each (F, S, n-1, D)."""
    total = x.sum(-2, keepdim=True)
    head = x.cumsum(-2)
    last_row = (count - lag - 1).clamp(min=0)  # (F, S, n-1, 1)
    early = head.gather(-2, last_row.expand(*last_row.shape[:-1], x.shape[-1]))
    return early, total - head[..., : len(lag), :]


def bartlett_sum(clusters: Tensor, present: Tensor, dimension: Tensor) -> Tensor:
    """Σ_{ℓ≤L} ρ̂_ℓ, (F, S), up to and including the first insignificant lag L [sec:bounds]."""
    rho = lag_correlations(clusters, present, dimension)
    count = present.sum(-1, keepdim=True)
    lag = torch.arange(1, rho.shape[-1] + 1, device=rho.device)
    z = normal_quantile(0.95)
    insignificant = rho.abs() < z / (count - lag).clamp(min=1).to(rho.dtype).sqrt()
    usable = lag <= count - 2
    before = (insignificant & usable).cumsum(-1) - (insignificant & usable).to(torch.int64)
    return torch.where(usable & (before == 0), rho, 0.0).sum(-1)


def normal_quantile(confidence: float) -> float:
    """z_{c*}, c* = (1 + c)/2: half-width of a standard normal interval of that confidence."""
    return -NormalDist().inv_cdf((1.0 - confidence) / 2.0)


def effective_size(
    clusters: Tensor, present: Tensor, dimension: Tensor, n_eff: float | str
) -> Tensor:
    """n_eff (F, S) of every cluster: a share of its points, or Bartlett's, at most its size."""
    count = present.sum(-1).to(clusters.dtype)
    if not isinstance(n_eff, str):
        return n_eff * count
    correlation = bartlett_sum(clusters, present, dimension)
    return count / (1.0 + 2.0 * correlation).clamp(min=1.0)
