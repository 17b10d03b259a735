r"""Retained and discarded parts of a Mahalanobis distance.

**Truncation.** Order the coordinates retained first. Let :math:`LL^T = \Sigma + \epsilon I` be the
Cholesky factor of the full space and :math:`w = L^{-1}\Delta`. The leading block of L is the factor
of the retained block, its trailing block the factor of the Schur complement S, so
:math:`a = \sum_{\ell \le d} w_\ell^2` and :math:`b = r^T S^{-1} r = \sum_{\ell > d} w_\ell^2` of
[eq:sq_mahal_to_schur]: one factorisation gives both. (S must carry the ridge of the discarded
block, else a + b is not the full distance; [eq:schur] drops it.)
"""

from __future__ import annotations

import torch
from torch import Tensor

from torch_mapss.core.diffusion_map import FrameMaps
from torch_mapss.core.points import Points, point_validity

# Extra ridge of the released implementation on the Schur complement.
REFERENCE_RIDGE = 1e-9


def is_retained(maps: FrameMaps, width: int) -> Tensor:
    """(F, width) bool: columns below d."""
    index = torch.arange(width, device=maps.dimension.device)
    return index < maps.dimension.unsqueeze(-1)


def schur_parts(factor: Tensor, deviations: Tensor, retained: Tensor) -> tuple[Tensor, Tensor]:
    """a and b of [eq:sq_mahal_to_schur] for the rows of ``deviations``.

    Args:
        factor: (F, S, D, D) Cholesky factor of the ridge covariance, retained coordinates first.
        deviations: (F, S, n, D).
        retained: (F, D) bool.

    Returns:
        The retained and the discarded part of the squared distance, each (F, S, n).
    """
    whitened = torch.linalg.solve_triangular(factor, deviations.mT, upper=False)
    halves = torch.stack([retained, ~retained], -2).to(whitened.dtype).unsqueeze(1)
    inner, discarded = (halves @ whitened.square_()).unbind(-2)  # (F, S, 2, n)
    return inner, discarded


def nothing_discarded(maps: FrameMaps, points: Points) -> Tensor:
    """(F, 1) bool: d = N-1."""
    valid = point_validity(points)
    count = maps.coordinates.shape[-2] if valid is None else valid.sum(-1)
    return (maps.dimension == count - 1).unsqueeze(-1)
