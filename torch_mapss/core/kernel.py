"""Points -> Gaussian kernel at the median bandwidth, with its backward pass."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor

from torch_mapss.core import devices
from torch_mapss.core.autograd import narrowed, once

# Where the median is a smaller share than this of the largest squared norm, inner products lose too
# many digits (error about 1e-15 |x|^2), so the distances are computed from differences.
GRAM_RATIO = 1e-3
# Squared distances below this have too few digits left to divide by: the bandwidth is zero.
SMALLEST_BANDWIDTH = 1e-290

# --------------------------------------------------------------------------------------------
# Points -> kernel
# --------------------------------------------------------------------------------------------


class GaussianKernel(torch.autograd.Function):
    """Gaussian kernel at the median bandwidth: K_ij = exp(-D²_ij / s), s = c · median D² [eq:K].

    With G = dL/dK, E = -G ∘ K / s is dL/dD² at fixed s, and dL/ds = Σ G ∘ K ∘ D² / s² falls on the
    one or two pairs that make up the median. dL/dx_i = 2 Σ_j (E_ij + E_ji)(x_i - x_j), which is one
    product with a graph Laplacian. ``x`` holds the points of all groups; each group that requires
    grad gets its rows of that product. ``point_groups`` lists the groups, then one empty clone of
    each. We save the empty clones instead of the groups: saving the groups would keep them in
    memory. ``once`` needs a tensor tied to each group's graph; the clone is that tensor. Every
    gradient of a score leaves through here, and ``once`` refuses a second derivative.
    ``average_middle`` says whether the median of an even number is the mean of its two middle
    values, or the lower one.
    """

    @staticmethod
    def forward(
        ctx: Any,
        x: Tensor,
        valid: Tensor | None,
        factor: float,
        average_middle: bool,
        may_sync: bool,
        *point_groups: Tensor,
    ) -> tuple[Tensor, Tensor, Tensor, Tensor]:
        # D² = |x_i|² + |x_j|² - 2 x_i·x_j
        gram = x @ x.mT
        norms = gram.diagonal(dim1=-2, dim2=-1).clone()
        squared = gram.mul_(-2.0).add_(norms.unsqueeze(-1)).add_(norms.unsqueeze(-2))
        squared.clamp_(min=0.0).diagonal(dim1=-2, dim2=-1).zero_()
        lower, upper = middle_of_pairs(squared, valid, average_middle)
        imprecise = (lower + upper) / 2.0 < GRAM_RATIO * norms.amax(-1)
        if may_sync and bool(imprecise.any()):
            # Most points of these frames coincide. From differences they are at distance exactly 0.
            frames = imprecise.nonzero()[:, 0]
            apart = torch.cdist(x[frames], x[frames], compute_mode="donot_use_mm_for_euclid_dist")
            squared[frames] = apart.square_()
            present = None if valid is None else valid[frames]
            middle_values = middle_of_pairs(squared[frames], present, average_middle)
            lower[frames], upper[frames] = middle_values
            imprecise = torch.zeros_like(imprecise)
        median = (lower + upper) / 2.0
        degenerate = median < SMALLEST_BANDWIDTH
        scale = torch.where(degenerate, 1.0, factor * median)
        kernel = (squared / -scale[:, None, None]).exp_()
        if valid is not None:
            absent = ~valid
            kernel.masked_fill_(absent.unsqueeze(-1) | absent.unsqueeze(-2), 0.0)
        count = len(point_groups) // 2
        ctx.save_for_backward(
            x, squared, kernel, scale, lower, upper, degenerate, valid, *point_groups[count:]
        )
        ctx.factor, ctx.counts = factor, [group.shape[-2] for group in point_groups[:count]]
        ctx.mark_non_differentiable(squared, degenerate, imprecise)
        return kernel, squared, degenerate, imprecise

    @staticmethod
    def backward(ctx: Any, grad: Tensor, *_: Tensor) -> tuple[Tensor | None, ...]:
        # Read once: activation checkpointing returns them only once.
        x, squared, kernel, scale, lower, upper, degenerate, valid, *anchors = ctx.saved_tensors
        gradients: list[Tensor | None] = []
        with torch.no_grad():
            weighted = (grad * kernel).div_(-scale[:, None, None])
            weighted.masked_fill_(degenerate[:, None, None], 0.0)
            bandwidth = (weighted * squared).flatten(1).sum(-1) / -scale
            rounding = 64.0 * torch.finfo(x.dtype).eps * squared.flatten(1).amax(-1)
            for middle_value in (lower, upper):
                tied = _tied(squared, valid, middle_value, rounding)
                share = bandwidth * (ctx.factor / 2.0) / tied.sum((-2, -1)).clamp(min=1)
                weighted.add_(tied * share[:, None, None])
            first_row = 0
            for count, anchor, needs_gradient in zip(ctx.counts, anchors, ctx.needs_input_grad[5:]):
                gradient = _laplacian(weighted, first_row, count) @ x if needs_gradient else None
                first_row += count
                if gradient is not None:
                    gradient = narrowed(gradient, anchor.dtype).to(anchor.device)
                gradients.append(gradient)
        subject = "diffusion maps and the scores read off them"
        guarded = (
            None if gradient is None else once(gradient, subject, anchor)
            for gradient, anchor in zip(gradients, anchors)
        )
        return *[None] * 5, *guarded, *[None] * len(anchors)


def _tied(squared: Tensor, valid: Tensor | None, middle_value: Tensor, rounding: Tensor) -> Tensor:
    """(F, N, N) bool: pairs whose D² equals their frame's middle value (F,) up to rounding.

    An output equal to its reference makes every distance occur twice, two such outputs four times.
    The median of a group of ties moves with the mean of the group where it moves smoothly, so its
    slope falls on all of them alike.
    """
    low = (middle_value - rounding)[:, None, None]
    high = (middle_value + rounding)[:, None, None]
    tied = (squared >= low).logical_and_(squared <= high)
    return tied if valid is None else tied & valid.unsqueeze(-1) & valid.unsqueeze(-2)


def _laplacian(weighted: Tensor, first_row: int, count: int) -> Tensor:
    """Rows ``first_row`` to ``first_row + count`` of the Laplacian 2 (diag(W1) - W), W = E + Eᵀ."""
    rows = slice(first_row, first_row + count)
    laplacian = weighted[:, rows] + weighted[:, :, rows].mT
    degree = laplacian.sum(-1)
    laplacian = laplacian.mul_(-2.0)
    laplacian.diagonal(offset=first_row, dim1=-2, dim2=-1).add_(2.0 * degree)
    return laplacian


def middle_of_pairs(
    squared: Tensor, valid: Tensor | None, average_middle: bool
) -> tuple[Tensor, Tensor]:
    """The two middle values (F,) of D² over the pairs i < j of each frame.

    ``average_middle=False`` returns the lower value twice. Absent pairs are moved to -inf and +inf
    in such numbers that the median of the present pairs keeps its rank, so that one partition
    serves frames of any size.
    """
    count = squared.shape[-1]
    rows, columns = torch.triu_indices(count, count, 1, device=squared.device)
    values = squared.flatten(-2).index_select(-1, rows * count + columns)
    total = values.shape[-1]
    rank = (total + 1) // 2
    odd: Tensor | bool = total % 2 == 1
    if valid is not None:
        pair_present = valid[:, rows] & valid[:, columns]
        pair_count = pair_present.sum(-1)
        odd = pair_count % 2 == 1
        below = rank - (pair_count + 1) // 2
        position = (~pair_present).cumsum(-1)
        outside = torch.full_like(values, torch.inf)
        outside = torch.where(position <= below.unsqueeze(-1), -torch.inf, outside)
        values = torch.where(pair_present, values, outside)
    next_rank = min(rank, total - 1)
    if devices.is_accelerator(values.device):
        # Sorted, since kthvalue and median are not deterministic on accelerators.
        ordered = values.sort(-1).values
    else:  # ten times faster than sorting
        ordered = torch.from_numpy(np.partition(values.numpy(), (rank - 1, next_rank), axis=-1))
    lower, following = ordered[..., rank - 1].clone(), ordered[..., next_rank].clone()
    if not average_middle or odd is True:
        return lower, lower
    if isinstance(odd, Tensor):  # without any pair both are infinite
        following = torch.where(odd | ~torch.isfinite(following), lower, following)
    return lower, following


def gaussian_kernel(
    x: Tensor,
    point_groups: Sequence[Tensor],
    valid: Tensor | None,
    may_sync: bool,
    reference: bool = False,
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Gaussian kernel and D² (F, N, N), and two masks (F,): zero bandwidth, imprecise D².

    Args:
        x: points (F, N, M); modified in place (centred, absent points zero).
        point_groups: the tensors (F, n, M) that ``x`` was joined from; gradients go to them.
        valid: (F, N) bool, points that are present; None: all.
        may_sync: whether values may be read.
        reference: use the released implementation's exp(-D²/(2 σ²)) and lower middle value.
    """
    # Centring keeps inner products small. The kernel does not change when a frame is shifted, so no
    # gradient is needed here.
    if valid is None:
        x.sub_(x.mean(-2, keepdim=True))
    else:
        absent = ~valid.unsqueeze(-1)
        x.masked_fill_(absent, 0.0)
        x.sub_(x.sum(-2, keepdim=True) / valid.sum(-1).clamp(min=1)[:, None, None])
        x.masked_fill_(absent, 0.0)
    factor, average_middle = 1.0 + reference, not reference
    anchors = (group[:0].clone() for group in point_groups)
    return GaussianKernel.apply(x, valid, factor, average_middle, may_sync, *point_groups, *anchors)
