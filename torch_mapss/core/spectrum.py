"""Kernel -> operator -> retained eigenvectors, with gradients at repeated eigenvalues."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable

from torch_mapss.core import linalg
from torch_mapss.core.settings import PRECISIONS, MapSettings

# Eigenvalues closer than this are one group at the cut. In float64 it is the smallest gap that
# still separates the eigenspaces (error about 1e-15) to five digits; in float32 (error about 1e-7)
# five digits would tie most of the spectrum, so one digit must do.
TIE = {"float64": 1e-10, "float32": 1e-6}
# Relative size below which a gradient's departure from rotation invariance is rounding.
INVARIANCE_TOLERANCE = 1e-6


# --------------------------------------------------------------------------------------------
# Kernel -> operator -> retained eigenvectors
# --------------------------------------------------------------------------------------------


class Operator(torch.autograd.Function):
    """The deflated S [eq:P_short] of each kernel and √π [eq:stat_dist].

    Steps 2 and 3 of :mod:`torch_mapss.core.diffusion_map`.

    Backward, with G = dL/dS (symmetric: :class:`RetainedEigenvectors` makes it so), h = dL/d√π,
    q = Kw and r = h - 4G√π, which the deflation adds to:

        γ = dL/dc = 2 (G∘K) c,   dL/ddeg = ½ (r∘√π - γ∘c)/deg - ½ (r·√π)/Σdeg,
        dL/dq = w ∘ dL/ddeg,   dL/dw = γ∘c/w + q ∘ dL/ddeg + K dL/dq,   dL/dv = -α w/v ∘ dL/dw,
        dL/dK_ij = c_i G_ij c_j + dL/dq_i w_j + dL/dv_i.
    """

    @staticmethod
    def forward(
        ctx: Any, kernel: Tensor, valid: Tensor | None, alpha: float
    ) -> tuple[Tensor, Tensor]:
        v = kernel.sum(-1)
        if valid is not None:
            v = torch.where(valid, v, 1.0)
        w = v.pow(-alpha)
        degree = w * (kernel @ w.unsqueeze(-1)).squeeze(-1)
        total = degree.sum(-1, keepdim=True)  # absent points have rows of zeros
        if valid is not None:
            degree = torch.where(valid, degree, 1.0)
            total = torch.where(total > 0.0, total, 1.0)
        c, root = w * degree.rsqrt(), (degree / total).sqrt()
        if valid is not None:
            c, root = torch.where(valid, c, 0.0), torch.where(valid, root, 0.0)
        s = (kernel * c.unsqueeze(-1)).mul_(c.unsqueeze(-2))
        s.baddbmm_(root.unsqueeze(-1), root.unsqueeze(-2), alpha=-2.0)
        if valid is not None:
            s.diagonal(dim1=-2, dim2=-1).sub_(2.0 * (~valid).to(s.dtype))
        ctx.save_for_backward(kernel, v, w, degree, total, c, root, valid)
        ctx.alpha = alpha
        return s, root

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, g: Tensor, h: Tensor) -> tuple[Tensor, None, None]:
        kernel, v, w, degree, total, c, root, valid = ctx.saved_tensors
        of_c = 2.0 * _times(g * kernel, c)
        of_root = (h - 4.0 * _times(g, root)) * root
        of_degree = 0.5 * ((of_root - of_c * c) / degree - of_root.sum(-1, keepdim=True) / total)
        if valid is not None:
            of_degree = torch.where(valid, of_degree, 0.0)
        of_q = w * of_degree
        of_w = of_c * c / w + of_degree * degree / w + _times(kernel, of_q)
        of_v = -ctx.alpha * of_w * w / v
        of_kernel = (g * c.unsqueeze(-1)).mul_(c.unsqueeze(-2))
        of_kernel.baddbmm_(of_q.unsqueeze(-1), w.unsqueeze(-2)).add_(of_v.unsqueeze(-1))
        return of_kernel, None, None


def _times(matrix: Tensor, vector: Tensor) -> Tensor:
    """(F, N, N) and (F, N) -> (F, N)."""
    return (matrix @ vector.unsqueeze(-1)).squeeze(-1)


class RetainedEigenvectors(torch.autograd.Function):
    """Retained coordinates Φ = V_d Λ^t of a batch of symmetric matrices.

    The backward is derived in :mod:`torch_mapss.core.diffusion_map`.

    ``count`` (F,) is the number of non-trivial eigenvalues of each frame, ``width`` bounds the
    number of columns returned (None: the largest d). ``invariant`` promises an incoming gradient
    that is rotation invariant up to rounding. Without this promise the part that is not invariant
    is added where the eigenvalues are simple, so that losses on single coordinates also get their
    derivative.
    """

    @staticmethod
    def forward(
        ctx: Any,
        s: Tensor,
        count: Tensor,
        settings: MapSettings,
        width: int | None,
        invariant: bool,
    ) -> tuple[Tensor, Tensor, Tensor, Tensor]:
        values, vectors = (x.to(s.dtype) for x in linalg.eigh(s.to(PRECISIONS[settings.eigh])))
        # The N-1 largest, descending; set to 0 if negative (rounding) or beyond ``count``.
        nontrivial = values.flip(-1)[..., :-1].clamp(min=0.0)
        index = torch.arange(nontrivial.shape[-1], device=values.device)
        nontrivial = torch.where(index < count.unsqueeze(-1), nontrivial, 0.0)
        dimension = retained_dimension(nontrivial, count, settings)
        columns = width or (int(dimension.max()) if len(dimension) else 1)
        inside = index[:columns] < dimension.unsqueeze(-1)
        # An eigenvalue 0 within d (energy 1, a kernel of low rank) gives a column of zeros. Its gap
        # to the others is treated as that of a discarded one.
        inside = inside & (nontrivial[:, :columns] > 0.0)
        power = torch.where(inside, nontrivial[:, :columns].pow(settings.time), 0.0)
        phi = vectors[..., -columns:].flip(-1) * power.unsqueeze(-2)
        ctx.save_for_backward(values, vectors, inside)
        ctx.settings, ctx.invariant = settings, invariant
        ctx.mark_non_differentiable(dimension, nontrivial, vectors)
        return phi, dimension, nontrivial, vectors

    @staticmethod
    @once_differentiable
    def backward(
        ctx: Any, g: Tensor, _dimension: Tensor, _nontrivial: Tensor, _vectors: Tensor
    ) -> tuple[Tensor, None, None, None, None]:
        values, vectors, inside = ctx.saved_tensors
        columns = inside.shape[-1]
        g = torch.where(inside.unsqueeze(-2), g, 0.0)
        retained = values.flip(-1)[:, :columns]
        v_d = vectors[..., -columns:].flip(-1)
        a = vectors.mT @ g
        # ½ A_ij λ_j^t / (λ_j - λ_i), rows i over the ascending spectrum, columns j retained.
        gap = retained.unsqueeze(-2) - values.unsqueeze(-1)
        power = retained.clamp(min=0.0).pow(ctx.settings.time).unsqueeze(-2)
        c = 0.5 * a * torch.where(gap > 0.0, power / torch.where(gap > 0.0, gap, 1.0), 0.0)
        norms = None if ctx.invariant else g.square().sum(-2).sqrt()
        inner = _retained_coefficients(
            a[:, -columns:].flip(-2), norms, retained, inside, ctx.settings
        )
        # Rows of c that belong to retained eigenvectors are replaced, frame by frame.
        rows = c[:, -columns:].flip(-2)
        both_retained = inside.unsqueeze(-1) & inside.unsqueeze(-2)
        rows = torch.where(both_retained, inner, torch.where(inside.unsqueeze(-2), rows, 0.0))
        half = vectors @ torch.cat([c[:, :-columns], rows.flip(-2)], -2) @ v_d.mT
        return half + half.mT, None, None, None, None


def retained_dimension(eigenvalues: Tensor, count: Tensor, settings: MapSettings) -> Tensor:
    """d: the fewest eigenvalues that reach the share ``energy`` of their sum.

    [eq:truncation_threshold_short] with the sum over the N-1 non-trivial ones. In the paper
    convention a group tied at the cut (gap at most ``TIE``) is retained whole: keeping half of it
    would mean choosing an eigenbasis, and the score would depend on the choice.

    Args:
        eigenvalues: (..., N-1), descending, at least 0.
        count: (...), number of eigenvalues that belong to present points.
        settings: ``energy`` is τ; the reference ``convention`` has no tie rule; ``max_dimension``
            is the largest d. A tied group that the limit would cut is dropped whole, except the
            leading group, without which nothing would be left.

    Returns:
        (...) int64, between 1 and N-1.
    """
    cumulative = eigenvalues.cumsum(-1)
    total = cumulative[..., -1:]
    d = (cumulative < settings.energy * total).sum(-1) + 1
    index = torch.arange(1, eigenvalues.shape[-1] + 1, device=eigenvalues.device)
    max_dimension, tie = settings.max_dimension, TIE[settings.eigh]
    if settings.convention != "reference":
        following = torch.nn.functional.pad(eigenvalues[..., 1:], (0, 1), value=-1.0)
        tied = (eigenvalues - following <= tie) & (index < count.unsqueeze(-1))
        may_cut = ~tied  # a cut behind this eigenvalue splits no group
        d = torch.where(may_cut & (index >= d.unsqueeze(-1)), index, index[-1]).amin(-1)
        if max_dimension is not None:
            d_within = torch.where(may_cut & (index <= max_dimension), index, 0).amax(-1)
            leading_group = torch.where(may_cut, index, index[-1]).amin(-1)
            d_limited = torch.where(d_within > 0, d_within, leading_group)
            d = torch.where(d > max_dimension, d_limited, d)
    elif max_dimension is not None:
        d = d.clamp(max=max_dimension)
    return torch.minimum(d, count.clamp(min=1))


def _retained_coefficients(
    a: Tensor, norms: Tensor | None, values: Tensor, inside: Tensor, settings: MapSettings
) -> Tensor:
    """Block of C for retained pairs: a quarter of a pair's coefficient, half on the diagonal.

    Each pair is read from the column of the larger eigenvalue, so that the divisor is the larger
    power. If the column ``norms`` of g are given, the part that is not invariant is added.
    """
    lam = torch.where(inside & (values > 0.0), values, 0.0)
    positive = lam > 0.0
    safe = torch.where(positive, lam, 1.0)
    ratio = _divided_powers(lam, safe, positive, settings.time)
    ahead = torch.triu(a.mT, 1)  # (i, j), i < j: A_ji, the column of the larger eigenvalue
    upper = 0.25 * ahead * ratio
    if norms is not None:
        upper = upper + torch.triu(_rotation_terms(a, norms, lam, safe, settings), 1)
    diagonal = (
        settings.time * safe.pow(settings.time - 1.0) * a.diagonal(dim1=-2, dim2=-1) * positive
    )
    return upper + upper.mT + torch.diag_embed(0.5 * diagonal)


def _divided_powers(lam: Tensor, safe: Tensor, positive: Tensor, time: float) -> Tensor:
    """λ_i^-t (λ_i^2t - λ_j^2t)/(λ_i - λ_j) for λ_i ≥ λ_j > 0, without cancellation.

    With L = log(λ_j/λ_i) ≤ 0 it is λ_i^(t-1) expm1(2tL)/expm1(L), and 2 t λ_i^(t-1) at L = 0.
    """
    if time == 1.0:
        ratio = (lam.unsqueeze(-1) + lam.unsqueeze(-2)) / safe.unsqueeze(-1)
    else:
        log = (safe.log().unsqueeze(-2) - safe.log().unsqueeze(-1)).clamp(max=0.0)
        equal = log > -1e-300
        quotient = torch.expm1(2.0 * time * log) / torch.where(equal, -1.0, torch.expm1(log))
        quotient = torch.where(equal, 2.0 * time, quotient)
        ratio = safe.pow(time - 1.0).unsqueeze(-1) * quotient
    return torch.where(positive.unsqueeze(-1) & positive.unsqueeze(-2), ratio, 0.0)


def _rotation_terms(
    a: Tensor, norms: Tensor, lam: Tensor, safe: Tensor, settings: MapSettings
) -> Tensor:
    """¼ (λ_j/λ_i)^t E_ij/(λ_j - λ_i), E_ij = λ_i^t A_ij - λ_j^t A_ji, where E is not rounding.

    E vanishes for a rotation-invariant loss. For any other loss the derivative exists only where
    the eigenvalues differ; where they do not, it is set to 0.
    """
    power = safe.pow(settings.time)
    p_i, p_j = power.unsqueeze(-1), power.unsqueeze(-2)
    e = p_i * a - p_j * a.mT
    size = p_i * norms.unsqueeze(-2) + p_j * norms.unsqueeze(-1)
    gap = lam.unsqueeze(-2) - lam.unsqueeze(-1)
    real = (e.abs() > INVARIANCE_TOLERANCE * size) & (gap.abs() > TIE[settings.eigh])
    return torch.where(real, 0.25 * (p_j / p_i) * e / torch.where(real, gap, 1.0), 0.0)
