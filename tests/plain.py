"""PS and PM by plain autograd through ``torch.linalg.eigh``: a second route to the gradient.

Right where the spectrum is simple, lost (NaN or infinite) where it is not. One frame, no masks,
paper convention; written for clearness.
"""

from __future__ import annotations

import torch
from torch import Tensor

from torch_mapss.core.gamma import log_gammaincc


def coordinates(points: Tensor, energy: float = 0.99, time: float = 1.0) -> Tensor:
    """(..., N, M) -> (..., N, N-1), columns from d on are zero."""
    n = points.shape[-2]
    squared = (points.unsqueeze(-2) - points.unsqueeze(-3)).square().sum(-1)
    rows, columns = torch.triu_indices(n, n, 1)
    pairs = squared[..., rows, columns].sort(-1).values
    total = pairs.shape[-1]
    bandwidth = (pairs[..., (total - 1) // 2] + pairs[..., total // 2]) / 2.0
    kernel = torch.exp(-squared / bandwidth[..., None, None])
    v = kernel.sum(-1)
    kernel = kernel / (v.unsqueeze(-1) * v.unsqueeze(-2))
    degree = kernel.sum(-1)
    symmetric = kernel / (degree.unsqueeze(-1) * degree.unsqueeze(-2)).sqrt()
    values, vectors = torch.linalg.eigh(symmetric)
    lam, vectors = values.flip(-1)[..., 1:], vectors.flip(-1)[..., 1:]
    share = lam.clamp(min=0.0).cumsum(-1)
    before = torch.nn.functional.pad(share[..., :-1], (1, 0))
    lam = torch.where(before < energy * share[..., -1:], lam, 0.0)
    pi = degree / degree.sum(-1, keepdim=True)
    return vectors * lam.pow(time).unsqueeze(-2) / pi.sqrt().unsqueeze(-1)


def _squared(delta: Tensor, deviations: Tensor, divisor: int) -> Tensor:
    covariance = deviations.mT @ deviations / divisor
    ridged = covariance + 1e-6 * torch.eye(covariance.shape[-1], dtype=covariance.dtype)
    return (delta * torch.linalg.solve(ridged, delta.mT).mT).sum(-1)


def scores(outputs: Tensor, references: Tensor, distortions: Tensor) -> tuple[Tensor, Tensor]:
    """PS and log PM, (..., S) each."""
    s, p = distortions.shape[-3:-1]
    psi = coordinates(torch.cat([outputs, references, distortions.flatten(-3, -2)], -2))
    out, ref, dist = psi.split([s, s, s * p], -2)
    dist = dist.unflatten(-2, (s, p))
    to = []
    for j in range(s):
        cluster = torch.cat([ref[..., j : j + 1, :], dist[..., j, :, :]], -2)
        mean = cluster.mean(-2, keepdim=True)
        to.append(_squared(out - mean, cluster - mean, p).sqrt())
    distance = torch.stack(to, -1)  # (..., S', S)
    ps, log_pm = [], []
    for i in range(s):
        others = [j for j in range(s) if j != i]
        a, b = distance[..., i, i], distance[..., i, others].amin(-1)
        ps.append(b / (a + b))
        centre = ref[..., i : i + 1, :]
        deviations = dist[..., i, :, :] - centre
        g = _squared(deviations, deviations, p - 1)
        own = _squared(out[..., i : i + 1, :] - centre, deviations, p - 1)[..., 0]
        k, theta = g.mean(-1).square() / g.var(-1), g.var(-1) / g.mean(-1)
        log_pm.append(log_gammaincc(k, own / theta))
    return torch.stack(ps, -1), torch.stack(log_pm, -1)
