r"""The conformal convention of PM: the output counted among its distortions.

PM asks which share of the distortions lies farther from the reference than the output does. In the
other conventions the distortions are measured by a covariance that they are part of, and the output
by one that it is no part of. Their own squared distances add up to
:math:`(N_p - 1)\,\mathrm{tr}\,\Sigma(\Sigma + \epsilon I)^{-1}` whatever the data, while that of an
output from the same distribution is larger by about :math:`N_p/(N_p - d - 1)`. With d near N_p the
share is biased towards 0. Here the output is one of the points.

**Leverages.** Let :math:`\Delta_1 \dots \Delta_n`, :math:`n = N_p + 1`, be the deviations of the
distortions and the output from the reference, on the d retained coordinates of the paper's map, and

.. math::
    S = \frac1n \sum_i \Delta_i \Delta_i^T, \quad \rho = \kappa\,\mathrm{tr}(S)/d, \quad
    h_i = \Delta_i^T (S + \rho I)^{-1} \Delta_i .

S and :math:`\rho` are symmetric functions of the n points, so h treats all of them alike.

**Rank form.** :math:`p = (1 + \#\{p : h_p \ge h_{out}\})/(N_p + 1)`, the output's rank among the n.
If the n deviations are exchangeable, :math:`P(p \le u) \le u` for every u and every n, whatever
their distribution, the encoder and d (full conformal prediction). The map does not spoil it:
permuting points permutes coordinates, and the order of the other points is the same for all.
A designed bank is no exchangeable sample of what separators do: valid under exchangeability is all
that can be said. p is at least 1/(N_p + 1).

**Smooth form.** Taken out of S at the same ridge (Sherman and Morrison), a point lies at

.. math:: r_i = \Delta_i^T (S - \Delta_i\Delta_i^T/n + \rho I)^{-1} \Delta_i
              = \frac{h_i}{1 - h_i/n},

which rises with h and stays below nd/κ, since ρ is at least :math:`\kappa|\Delta_i|^2/(nd)`. A
shifted log-normal is fitted to the distortions, :math:`\log(r_p + c\,\bar r)` of mean μ and
deviation σ, with the mean :math:`\bar r` of the r_p. The shift is for *neutral* distortions: a gate
that changes nothing has r = 0 up to rounding, whose logarithm would be the whole fit. r is not
negative, so

.. math:: \mathrm{PM} = P(r \ge r_{out} \mid r \ge 0)
              = \Phi(-z(r_{out}))/\Phi(-z(0)), \quad z(r) = (\log(r + c\,\bar r) - \mu)/\sigma ,

1 for an output equal to its reference, with gradients through r, S and ρ. It has no guarantee.

**Gradient.** With :math:`z_i = (S + \rho I)^{-1}\Delta_i`, rows X and weights g of dL/dh,

.. math:: dL = 2\sum_i g_i z_i^T d\Delta_i - \langle W, d(S + \rho I)\rangle, \quad
              W = \sum_i g_i z_i z_i^T,

and :math:`d(S + \rho I) = \frac1n(dX^TX + X^TdX) + \frac{2\kappa}{nd}\langle X, dX\rangle I`: one
triangular solve more gives both terms.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable

from torch_mapss.core.diffusion_map import Embedding
from torch_mapss.core.layout import Layout, scored_outputs
from torch_mapss.core.mahalanobis import RIDGE, rounding_floor
from torch_mapss.core.match import LOG_ZERO, attributed_deviations, coincides, masked_moments

KAPPA = 0.1  # κ, ridge as a share of the mean variance
SHIFT = 0.1  # c, shift of the log-normal as a share of the mean distance
TIED = 1e-9  # relative difference of leverages, and deviation of log r, that rounding can make


class Leverages(NamedTuple):
    """h of the distortions and of the output of every cluster."""

    distortions: Tensor  # (F, S', P); what absent ones hold has no meaning
    output: Tensor  # (F, S')
    there: Tensor  # (F, S', P) bool
    members: Tensor  # (F, S') N_p
    floor: Tensor  # (F, S') h that rounding alone can give a point on its reference


class LogNormalFit(NamedTuple):
    """Where an output and its reference lie in the fit to log(r + c r̄) of its distortions."""

    output: Tensor  # (F, S') z(r_out)
    nearest: Tensor  # (F, S') z(0)
    deviation: Tensor  # (F, S') σ; 1 where collapsed
    collapsed: Tensor  # (F, S') bool: the distances are 0, or equal, up to rounding


class _Leverages(torch.autograd.Function):
    """h_i = Δ_iᵀ(S + ρI)⁻¹Δ_i of all rows, and ρ (not differentiable)."""

    @staticmethod
    def forward(
        ctx: Any, rows: Tensor, count: Tensor, dimension: Tensor, kappa: float
    ) -> tuple[Tensor, Tensor]:
        matrix = rows.mT @ rows / count[..., None, None]
        diagonal = matrix.diagonal(dim1=-2, dim2=-1)
        ridge = kappa * diagonal.sum(-1) / dimension
        diagonal.add_(torch.where(ridge > 0.0, ridge, 1.0).unsqueeze(-1))
        factor = torch.linalg.cholesky_ex(matrix).L
        whitened = torch.linalg.solve_triangular(factor, rows.mT, upper=False)
        ctx.save_for_backward(rows, count, dimension, factor, whitened)
        ctx.kappa = kappa
        ctx.mark_non_differentiable(ridge)
        return whitened.square().sum(-2), ridge

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad: Tensor, _ridge: Tensor) -> tuple[Tensor, None, None, None]:
        rows, count, dimension, factor, whitened = ctx.saved_tensors
        z = torch.linalg.solve_triangular(factor.mT, whitened, upper=True)  # (..., D, n)
        weighted = (z * (2.0 * grad.unsqueeze(-2))).mT
        trace = (weighted.mT * z).sum((-2, -1))  # 2 tr W
        through_ridge = (ctx.kappa * trace / (count * dimension))[..., None, None] * rows
        through_s = (rows @ z) @ weighted / count[..., None, None]
        return weighted - through_s - through_ridge, None, None, None


def leverages(embedding: Embedding, layout: Layout) -> Leverages:
    """h of every output and its distortions of a chunk of frames."""
    deviations, output, there, count = attributed_deviations(embedding, layout)
    rows = torch.cat([deviations, output.unsqueeze(-2)], -2)
    points = (count + 1).to(rows.dtype)
    dimension = embedding.dimension.clamp(min=1).to(rows.dtype).unsqueeze(-1).expand_as(points)
    h, ridge = _Leverages.apply(rows, points, dimension, KAPPA)
    # (error/√ρ)² for the squared length error² that rounding gives two coincident points.
    error = rounding_floor(embedding).unsqueeze(-1) * RIDGE
    floor = error / torch.where(ridge > 0.0, ridge, 1.0)
    return Leverages(h[..., :-1], h[..., -1], there, count, floor)


def match_rank(embedding: Embedding, layout: Layout, found: Leverages | None = None) -> Tensor:
    """The rank form of PM (F, S'), without gradient; 0 where it is not defined.

    An output equal to a distortion must tie with it. √h is a length, so rounding moves it by at
    most that of the points over √ρ, beside the relative error of h itself.
    """
    if found is None:
        found = leverages(embedding, layout)
    lengths, floor = found.distortions.detach().sqrt(), found.floor.sqrt()
    reach = found.output.detach().sqrt() * (1.0 - 0.5 * TIED) - floor
    beyond = (found.there & (lengths >= reach.unsqueeze(-1))).sum(-1)
    rank = (1 + beyond).to(lengths.dtype) / (1 + found.members)
    same = coincides(embedding, layout, found.output <= found.floor)
    of_degenerate = torch.where(same, 1.0, 1.0 / (1 + found.members).to(rank.dtype))
    rank = torch.where(embedding.degenerate.unsqueeze(-1), of_degenerate, rank)
    return torch.where(scored_outputs(layout, len(rank), rank.device), rank, 0.0)


def log_normal_fit(found: Leverages, degenerate: Tensor) -> LogNormalFit:
    """The shifted log-normal of every cluster and where its output lies.

    Args:
        found: of :func:`leverages`.
        degenerate: (F,) bool, frames without a map.
    """
    points = (found.members + 1).to(found.output.dtype)
    h = torch.cat([found.distortions, found.output.unsqueeze(-1)], -1)
    r = h / (1.0 - h / points.unsqueeze(-1))
    distances = torch.where(found.there, r[..., :-1], 0.0)
    r_out = torch.where(found.output <= found.floor, 0.0, r[..., -1])
    mean = distances.sum(-1) / found.members.clamp(min=1)
    none = (mean.detach() <= found.floor) | degenerate.unsqueeze(-1)
    shift = SHIFT * torch.where(none, 1.0, mean)
    logs = (distances + shift.unsqueeze(-1)).log()
    middle, variance = masked_moments(logs, found.there, found.members)
    collapsed = none | (variance.detach() <= TIED**2)
    deviation = torch.where(collapsed, 1.0, variance).sqrt()
    nearest = (shift.log() - middle) / deviation
    output = ((torch.where(collapsed, 0.0, r_out) + shift).log() - middle) / deviation
    return LogNormalFit(output, nearest, deviation, collapsed)


def log_match(embedding: Embedding, layout: Layout, found: Leverages | None = None) -> Tensor:
    """Log of the smooth form of PM (F, S'); 0 where it is not defined.

    Of a collapsed cluster PM is 1 if the output coincides with its reference, else 0, without
    gradient, as in the other conventions.
    """
    if found is None:
        found = leverages(embedding, layout)
    fit = log_normal_fit(found, embedding.degenerate)
    log_tail = torch.special.log_ndtr
    score = (log_tail(-fit.output) - log_tail(-fit.nearest)).clamp(max=0.0)
    same = coincides(embedding, layout, found.output <= found.floor)
    score = torch.where(fit.collapsed, torch.where(same, 0.0, LOG_ZERO).to(score), score)
    return torch.where(scored_outputs(layout, len(score), score.device), score, 0.0)


def smooth_match(embedding: Embedding, layout: Layout) -> tuple[Tensor, Tensor]:
    """The smooth form of PM and its logarithm (F, S')."""
    log = log_match(embedding, layout)
    return _exponential(log, layout), log


def conformal_parts(embedding: Embedding, layout: Layout) -> tuple[Tensor, Tensor, Tensor]:
    """PM, log PM and the rank form (F, S') of one map."""
    found = leverages(embedding, layout)
    log = log_match(embedding, layout, found)
    return _exponential(log, layout), log, match_rank(embedding, layout, found)


def _exponential(log: Tensor, layout: Layout) -> Tensor:
    """PM of log PM: 0 where that stands for log 0, and where it is not defined."""
    scored = scored_outputs(layout, len(log), log.device)
    return torch.where(scored & (log > LOG_ZERO), log.exp(), 0.0)
