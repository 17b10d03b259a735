"""Points -> Gaussian kernel at the median bandwidth, with its backward pass."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from torch_mapss.core import checks
from torch_mapss.core.autograd import once

# Where the median is a smaller part than this of the largest squared norm, inner products lose
# too many digits of the distances (error about 1e-15 |x|^2): they are taken by differences.
GRAM_RATIO = 1e-3
# Squared distances below this have too few digits left to divide by: the bandwidth is zero.
SMALLEST_BANDWIDTH = 1e-290


# --------------------------------------------------------------------------------------------
# Points -> kernel
# --------------------------------------------------------------------------------------------


class GaussianKernel(torch.autograd.Function):
    """Gaussian kernel at the median bandwidth: K_ij = exp(-D²_ij / s), s = c · median D² [eq:K].

    With G = dL/dK, E = -G ∘ K / s is dL/dD² at fixed s, and dL/ds = Σ G ∘ K ∘ D² / s² falls on
    the one or two pairs the median is made of. dL/dx_i = 2 Σ_j (E_ij + E_ji)(x_i - x_j), which is
    one product with a graph Laplacian. ``x`` holds the rows of all parts; each part that wants a
    gradient gets its rows of that product. ``parts`` are these, then an empty clone of each: every
    gradient of a score leaves through here, and through the clones it refuses to be differentiated
    again (saving the parts themselves would take their memory).
    """

    @staticmethod
    def forward(
        ctx: Any,
        x: Tensor,
        valid: Tensor | None,
        factor: float,
        middle: bool,
        *parts: Tensor,
    ) -> tuple[Tensor, Tensor, Tensor]:
        squared, (lower, upper, median) = _distances_and_median(x, valid, middle)
        degenerate = median < SMALLEST_BANDWIDTH
        scale = torch.where(degenerate, 1.0, factor * median)
        kernel = (squared / -scale[:, None, None]).exp_()
        if valid is not None:
            kernel = kernel.masked_fill_(~_pairs(valid), 0.0)
        count = len(parts) // 2
        ctx.save_for_backward(
            x, squared, kernel, scale, lower, upper, degenerate, valid, *parts[count:]
        )
        ctx.factor, ctx.counts = factor, [part.shape[-2] for part in parts[:count]]
        ctx.mark_non_differentiable(squared, degenerate)
        return kernel, squared, degenerate

    @staticmethod
    def backward(
        ctx: Any, grad: Tensor, _squared: Tensor, _degenerate: Tensor
    ) -> tuple[Tensor | None, ...]:
        saved = ctx.saved_tensors  # once: activation checkpointing hands them out once
        anchors = saved[8:]
        with torch.no_grad():
            found = GaussianKernel._gradients(ctx, saved, grad)
        what = "diffusion maps and the scores read off them"
        guarded = (g if g is None else once(g, what, anchor) for g, anchor in zip(found, anchors))
        return *[None] * 4, *guarded, *[None] * len(anchors)

    @staticmethod
    def _gradients(ctx: Any, saved: Sequence[Any], grad: Tensor) -> list[Tensor | None]:
        x, squared, kernel, scale, lower, upper, degenerate, valid, *anchors = saved
        weighted = (grad * kernel).div_(-scale[:, None, None])
        weighted.masked_fill_(degenerate[:, None, None], 0.0)
        bandwidth = (weighted * squared).flatten(1).sum(-1) / -scale
        rounding = 64.0 * torch.finfo(x.dtype).eps * squared.flatten(1).amax(-1)
        for place in (lower, upper):
            frame, row, column, group = _tied(squared, valid, place, rounding)
            weighted[frame, row, column] += (bandwidth * (ctx.factor / 2.0) / group)[frame]
        found: list[Tensor | None] = []
        first = 0
        for count, anchor, wanted in zip(ctx.counts, anchors, ctx.needs_input_grad[4:]):
            gradient = None
            if wanted:
                gradient = _laplacian(weighted, first, count) @ x
                gradient = checks.narrowed(gradient, anchor.dtype).to(anchor.device)
            found.append(gradient)
            first += count
        return found


def _tied(
    squared: Tensor, valid: Tensor | None, place: Tensor, rounding: Tensor
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """The pairs whose D² equals, but for rounding, that of the flat index ``place`` of their frame.

    An output equal to its reference makes every distance come twice, two such outputs four times.
    The median of a group of ties moves with the mean of the group where it moves smoothly, so its
    slope falls on all of them alike.

    Returns:
        Frame, row and column of every such pair, (i, j) and (j, i), and the number in each frame.
    """
    value = squared.flatten(1).gather(1, place.unsqueeze(1)).squeeze(1)
    low, high = (value - rounding)[:, None, None], (value + rounding)[:, None, None]
    tied = (squared >= low).logical_and_(squared <= high)
    if valid is not None:
        tied.logical_and_(_pairs(valid))
    frame, row, column = tied.nonzero(as_tuple=True)
    return frame, row, column, torch.bincount(frame, minlength=len(squared)).clamp(min=1)


def _laplacian(weighted: Tensor, first: int, count: int) -> Tensor:
    """``count`` rows from ``first`` on of 2 (diag(W1) - W), W = E + Eᵀ."""
    rows = slice(first, first + count)
    laplacian = weighted[:, rows] + weighted[:, :, rows].mT
    degree = laplacian.sum(-1)
    laplacian = laplacian.mul_(-2.0)
    laplacian.diagonal(offset=first, dim1=-2, dim2=-1).add_(2.0 * degree)
    return laplacian


def _pairs(valid: Tensor) -> Tensor:
    return valid.unsqueeze(-1) & valid.unsqueeze(-2)


def _distances_and_median(
    x: Tensor, valid: Tensor | None, middle: bool
) -> tuple[Tensor, tuple[Tensor, Tensor, Tensor]]:
    """D² (F, N, N) and its median over pairs, accurate also where most points coincide."""
    squared, largest = _gram_distances(x)
    median = _median_of_pairs(squared, valid, middle)
    coarse = median[2] < GRAM_RATIO * largest
    if bool(coarse.any()):
        frames = coarse.nonzero()[:, 0]
        squared[frames] = _difference_distances(x[frames])
        again = _median_of_pairs(squared[frames], None if valid is None else valid[frames], middle)
        for whole, part in zip(median, again):
            whole[frames] = part
    return squared, median


def _gram_distances(x: Tensor) -> tuple[Tensor, Tensor]:
    """|x_i|² + |x_j|² - 2 x_i·x_j, and the largest |x_i|² of each frame."""
    gram = x @ x.mT
    norms = gram.diagonal(dim1=-2, dim2=-1).clone()
    squared = gram.mul_(-2.0).add_(norms.unsqueeze(-1)).add_(norms.unsqueeze(-2)).clamp_(min=0.0)
    squared.diagonal(dim1=-2, dim2=-1).zero_()
    return squared, norms.amax(-1)


def _difference_distances(x: Tensor) -> Tensor:
    """The same from differences: coincident points are at distance 0 exactly."""
    return torch.cdist(x, x, compute_mode="donot_use_mm_for_euclid_dist").square_()


def _median_of_pairs(
    squared: Tensor, valid: Tensor | None, middle: bool
) -> tuple[Tensor, Tensor, Tensor]:
    """Flat indices of the two middle pairs (i < j) of each frame, and their mean.

    ``middle=False`` takes the lower one twice. Absent pairs are moved out to -inf and +inf in
    such numbers that the middle of the present ones stays the middle of all: one rank serves
    frames of every size.
    """
    count = squared.shape[-1]
    rows, columns = torch.triu_indices(count, count, 1, device=squared.device)
    places = rows * count + columns
    values = squared.flatten(-2).index_select(-1, places)
    total = values.shape[-1]
    rank = (total + 1) // 2
    present = torch.full(values.shape[:1], total, device=values.device)
    if valid is not None:
        here = valid[:, rows] & valid[:, columns]
        present = here.sum(-1)
        below = rank - (present + 1) // 2
        position = (~here).cumsum(-1)
        outside = torch.where(position <= below.unsqueeze(-1), -torch.inf, torch.inf)
        values = torch.where(here, values, outside.to(values.dtype))
    if values.device.type == "cpu":
        lower = values.kthvalue(rank).values
    else:  # kthvalue and median have no deterministic form on accelerators, sort has
        lower = values.sort(-1).values[..., rank - 1]
    lower_place = (values == lower.unsqueeze(-1)).to(torch.uint8).argmax(-1)
    if not middle:
        return places[lower_place], places[lower_place], lower
    larger = torch.where(values > lower.unsqueeze(-1), values, torch.inf)
    next_value, next_place = larger.amin(-1), larger.argmin(-1)
    # The upper middle equals the lower one for an odd count, or where ties reach past the rank.
    reach = (values <= lower.unsqueeze(-1)).sum(-1)
    same = (present % 2 == 1) | (reach > rank) | ~torch.isfinite(next_value)
    upper = torch.where(same, lower, next_value)
    upper_place = torch.where(same, lower_place, next_place)
    return places[lower_place], places[upper_place], (lower + upper) / 2.0


def centre(points: Tensor, valid: Tensor | None) -> Tensor:
    """Points less the mean of their frame, absent ones at zero: keeps inner products small.

    In place. The kernel does not change when a frame moves, so nothing here has a gradient.
    """
    if valid is None:
        return points.sub_(points.mean(-2, keepdim=True))
    gone = ~valid.unsqueeze(-1)
    points.masked_fill_(gone, 0.0)
    count = valid.sum(-1).clamp(min=1)[:, None, None]
    return points.sub_(points.sum(-2, keepdim=True) / count).masked_fill_(gone, 0.0)
