"""Squared Mahalanobis distances to a cluster under its ridge covariance."""

from __future__ import annotations

import math
from typing import Any

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable

from torch_mapss.core.settings import PRECISIONS, MapSettings

RIDGE = 1e-6  # ε of [eq:ps_distance]


def ridge_factor(scatter: Tensor, count: Tensor, ridge: Tensor | float = RIDGE) -> Tensor:
    """Cholesky factor of the ridge covariance of each cluster.

    Args:
        scatter: (..., D, D) ΣΔΔᵀ over the points of the cluster, Δ their deviations from its
            centre.
        count: (...) divisor: number of points minus one, at least 1.
        ridge: ε, a number or (..., D), one for each coordinate.

    Returns:
        (..., D, D) lower triangular L, LLᵀ = ΣΔΔᵀ/count + εI.
    """
    covariance = scatter / count[..., None, None]
    covariance.diagonal(dim1=-2, dim2=-1).add_(ridge)
    return torch.linalg.cholesky_ex(covariance).L


class ClusterDistances(torch.autograd.Function):
    """Squared distances to a cluster under its ridge covariance [eq:ps_distance].

    ``ClusterDistances.apply(deviations, count, rights)`` is y_r = Δ_rᵀ A⁻¹ Δ_r (..., R) with
    A = XᵀX/n + εI. ``deviations`` (..., n, D) are the rows X: the points of the cluster minus its
    centre, 0 where a point is absent. ``count`` (...) is the divisor n, at least 1. ``rights``
    (..., R, D) are the vectors Δ to measure.

    With z_r = A⁻¹Δ_r, dy_r = 2 z_rᵀ dΔ_r - z_rᵀ dA z_r and z_rᵀ dA z_r = (2/n) (X z_r)ᵀ dX z_r:
    one more triangular solve gives both gradients, without the derivative of the factor.
    """

    @staticmethod
    def forward(ctx: Any, deviations: Tensor, count: Tensor, rights: Tensor) -> Tensor:
        factor = ridge_factor(deviations.mT @ deviations, count)
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


def squared_mahalanobis(factor: Tensor, deviations: Tensor) -> Tensor:
    """``|L⁻¹Δ|²`` (..., n) of the rows of ``deviations`` (..., n, D) [eq:ps_distance]."""
    whitened = torch.linalg.solve_triangular(factor, deviations.mT, upper=False)
    return whitened.square().sum(-2)


def rounding_floor(coordinates: Tensor, settings: MapSettings) -> Tensor:
    """(F,) largest squared distance that rounding alone can put between two coincident points.

    Coordinates are Φ = SV up to the backward error of eigh, at most about N·eps of their size,
    whatever the eigenvalue; the ridge turns a squared length into at most 1/ε times that. In
    float64 that bound costs nothing. In float32 it would swallow whole clusters, so 8·√N·eps is
    used instead, as observed on real frames.

    Args:
        coordinates: (F, N, D) coordinates of the points of each frame.
        settings: settings of the map; only the precision is used.
    """
    points = coordinates.shape[-2]
    error = 64.0 * points if settings.eigh == "float64" else 8.0 * math.sqrt(points)
    size = coordinates.detach().abs().flatten(1).amax(-1)
    return (error * torch.finfo(PRECISIONS[settings.eigh]).eps * size).square() / RIDGE
