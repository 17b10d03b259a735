"""Squared Mahalanobis distances to a cluster under its ridge covariance."""

from __future__ import annotations

import math
from typing import Any

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable

from torch_mapss.core.diffusion_map import Embedding

RIDGE = 1e-6  # ε of [eq:ps_distance]


def ridge_factor(deviations: Tensor, count: Tensor) -> Tensor:
    """Cholesky factor of the ridge covariance of each cluster.

    Args:
        deviations: (..., n, D) points minus their centre; rows of absent points are zero.
        count: (...) divisor: number of points minus one, at least 1.

    Returns:
        (..., D, D) lower triangular L, LLᵀ = ΣΔΔᵀ/count + εI.
    """
    return scatter_factor(deviations.mT @ deviations, count)


def scatter_factor(scatter: Tensor, count: Tensor, ridge: Tensor | float = RIDGE) -> Tensor:
    """Like :func:`ridge_factor`, from scatter ΣΔΔᵀ (..., D, D); ``ridge``: number or (..., D)."""
    covariance = scatter / count[..., None, None]
    covariance.diagonal(dim1=-2, dim2=-1).add_(ridge)
    return torch.linalg.cholesky_ex(covariance).L


class _SquaredDistances(torch.autograd.Function):
    """y_r = Δ_rᵀ A⁻¹ Δ_r with A = XᵀX/n + εI, for rows X and right sides Δ.

    With z_r = A⁻¹Δ_r, dy_r = 2 z_rᵀ dΔ_r - z_rᵀ dA z_r and z_rᵀ dA z_r = (2/n) (X z_r)ᵀ dX z_r:
    one more triangular solve gives both gradients, without the derivative of the factor.
    """

    @staticmethod
    def forward(ctx: Any, deviations: Tensor, count: Tensor, rights: Tensor) -> Tensor:
        factor = ridge_factor(deviations, count)
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


def cluster_distances(deviations: Tensor, count: Tensor, rights: Tensor) -> Tensor:
    """Squared distance of ``rights`` under the ridge covariance of a cluster [eq:ps_distance].

    Args:
        deviations: (..., n, D), as in :func:`ridge_factor`.
        count: (...), as in :func:`ridge_factor`.
        rights: (..., R, D) vectors to measure.

    Returns:
        (..., R), differentiable in ``deviations`` and ``rights``.
    """
    return _SquaredDistances.apply(deviations, count, rights)


def squared_mahalanobis(factor: Tensor, deviations: Tensor) -> Tensor:
    """``|L⁻¹Δ|²`` (..., n) of the rows of ``deviations`` (..., n, D) [eq:ps_distance]."""
    whitened = torch.linalg.solve_triangular(factor, deviations.mT, upper=False)
    return whitened.square().sum(-2)


def rounding_floor(embedding: Embedding) -> Tensor:
    """(F,) largest squared distance that rounding alone can put between two coincident points.

    Coordinates are Φ = SV up to the backward error of eigh, at most about N·eps of their size,
    whatever the eigenvalue; the ridge turns a squared length into at most 1/ε times that. In
    float64 that bound costs nothing. In float32 it would swallow whole clusters, so 8·√N·eps is
    used instead, as observed on real frames.
    """
    coordinates, double = embedding.coordinates, embedding.precision == torch.float64
    points = coordinates.shape[-2]
    error = 64.0 * points if double else 8.0 * math.sqrt(points)
    size = coordinates.detach().abs().flatten(1).amax(-1)
    return (error * torch.finfo(embedding.precision).eps * size).square() / RIDGE
