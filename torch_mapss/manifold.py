r"""Diffusion maps: from points to coordinates whose distances are diffusion distances.

One frame holds N points :math:`x_i \in R^M`. With pairwise squared distances :math:`D^2`:

1. kernel :math:`K_{ij} = \exp(-D_{ij}^2/\sigma^2)`, :math:`\sigma^2` the median of :math:`D^2`
   over pairs [eq:K];
2. :math:`v = K1`, :math:`w = v^{-\alpha}`, :math:`K^{(\alpha)}_{ij} = w_i K_{ij} w_j`
   [eq:K_alpha_short], degrees :math:`\deg_i = w_i (Kw)_i`, :math:`\pi = \deg/\sum\deg`
   [eq:stat_dist];
3. :math:`P = \mathrm{diag}(\deg)^{-1} K^{(\alpha)}` [eq:P_short] is similar to the symmetric
   :math:`S = \deg^{-1/2} K^{(\alpha)} \deg^{-1/2} = c_i K_{ij} c_j`, :math:`c = w\,\deg^{-1/2}`,
   so :math:`Pu = \lambda u` with :math:`u = v/\sqrt\pi`, :math:`Sv = \lambda v`, and unit
   :math:`v` make :math:`\sum_i \pi_i u(i)^2 = 1`;
4. coordinates :math:`\lambda_\ell^t u_\ell` of the non-trivial pairs [eq:embedding_short], the
   first d of them retained [eq:truncation_threshold_short].

**The trivial pair** (:math:`\lambda_0 = 1`, :math:`v_0 = \sqrt\pi`) can be tied when the graph is
numerically disconnected, and then "the first column" is arbitrary. Here
:math:`S - 2\sqrt\pi\sqrt\pi^T` is decomposed instead: :math:`v_0` moves to eigenvalue -1 and
nothing else changes, so it is known by its place below the spectrum (the kernel is positive
semi-definite). Absent points get rows of zeros and the eigenvalue -2, so they end below it.

**Gradient.** Distances and covariances of :math:`\Phi = V_d \Lambda^t` do not change under
:math:`\Phi \to \Phi Q`, Q orthogonal. Write :math:`g = \partial L/\partial\Phi` and
:math:`A_{ij} = v_i^T g_j` (j retained). First-order perturbation of an eigenvector gives

.. math:: dL = \sum_j \sum_{i \ne j} A_{ij} \frac{\lambda_j^t}{\lambda_j - \lambda_i}
               v_i^T dS\, v_j + \sum_j t \lambda_j^{t-1} A_{jj}\, v_j^T dS\, v_j .

The invariance (differentiate :math:`L(\Phi e^{\epsilon B})`, B antisymmetric) reads
:math:`\lambda_i^t A_{ij} = \lambda_j^t A_{ji}` for two retained columns. Put in, their terms
combine to :math:`A_{ji} \lambda_i^{-t} (\lambda_i^{2t} - \lambda_j^{2t})/(\lambda_i - \lambda_j)`:
the gap has cancelled, and a multiple eigenvalue is as good as any other. Only gaps between
retained and discarded eigenvalues remain; the tie rule of :func:`retained_dimension` keeps them
open. With :math:`C_{ij}` a quarter of the coefficient of a retained pair (half on the diagonal),
or :math:`\tfrac12 A_{ij}\lambda_j^t/(\lambda_j - \lambda_i)` for discarded i, and
:math:`Y = V C`, :math:`\partial L/\partial S = Y V_d^T + V_d Y^T`.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable

from torch_mapss import _checks, _linalg
from torch_mapss._autograd import once
from torch_mapss._devices import working_device

CONVENTIONS = ("paper", "reference")
# Eigenvalues closer than this are one group at the cut: the smallest gap that still leaves the
# eigenspaces of a float64 decomposition (error about 1e-15) separable to five digits.
TIE = 1e-10
# Where the median is a smaller part than this of the largest squared norm, inner products lose
# too many digits of the distances (error about 1e-15 |x|^2): they are taken by differences.
GRAM_RATIO = 1e-3
# Squared distances below this have too few digits left to divide by: the bandwidth is zero.
SMALLEST_BANDWIDTH = 1e-290
# Relative size below which the departure of a gradient from rotation invariance is rounding.
INVARIANCE_TOLERANCE = 1e-6


@dataclass(frozen=True)
class DiffusionMap:
    """What :func:`diffusion_map` returns: the whole spectrum, and how much of it is kept."""

    eigenvalues: Tensor  # (..., N-1) non-trivial, descending, at least 0; 0 behind absent points
    dimension: Tensor  # (...) int64, d: how many coordinates are retained
    stationary: Tensor  # (..., N) π, sums to 1, 0 at absent points
    retained: Tensor  # (..., N, N-1) λ^t u, columns from d on are zero; differentiable
    coordinates: Tensor  # (..., N, N-1) λ^t u, all columns, detached


class Settings(NamedTuple):
    """How points become a map; see :func:`diffusion_map` for the meaning of each."""

    alpha: float = 1.0
    time: float = 1.0
    energy: float = 0.99
    convention: str = "paper"


def map_settings(alpha: float, time: float, energy: float, convention: str) -> Settings:
    """The settings of a diffusion map.

    Raises:
        TypeError: one is no number.
        ValueError: one is out of its range.
    """
    _checks.check_choice(convention, "convention", CONVENTIONS)
    for name, value in (("alpha", alpha), ("energy", energy)):
        _checks.check_real(value, name)
    if not 0.0 <= alpha <= 1.0:
        raise ValueError(
            f"alpha must lie in [0, 1], got {alpha}. It is the density exponent of the kernel: "
            "1 removes the sampling density, 0 keeps it."
        )
    if _checks.check_real(time, "time") <= 0.0:
        raise ValueError(f"time must be a positive number of diffusion steps, got {time}. Use 1.")
    if not 0.0 < energy <= 1.0:
        raise ValueError(
            f"energy must lie in (0, 1], got {energy}. It is the share of the eigenvalue sum "
            "that the kept coordinates reach; 0.99 is the paper's value."
        )
    return Settings(alpha, time, energy, convention)


class Embedding(NamedTuple):
    """The map of a chunk of frames, as the measures read it."""

    coordinates: Tensor  # (F, N, D) retained λ^t u, D = largest d; zero beyond d; differentiable
    dimension: Tensor  # (F,) int64, d
    squared_distances: Tensor  # (F, N, N) D² of the points, detached
    degenerate: Tensor  # (F,) bool: the bandwidth is zero and there is no map
    rest: Tensor | None = None  # (F, N, N-1) columns from d on, zero before; detached


# --------------------------------------------------------------------------------------------
# Points -> kernel
# --------------------------------------------------------------------------------------------


class _Kernel(torch.autograd.Function):
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
            found = _Kernel._gradients(ctx, saved, grad)
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
                gradient = _checks.narrowed(gradient, anchor.dtype).to(anchor.device)
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


def _centre(points: Tensor, valid: Tensor | None) -> Tensor:
    """Points less the mean of their frame, absent ones at zero: keeps inner products small.

    In place. The kernel does not change when a frame moves, so nothing here has a gradient.
    """
    if valid is None:
        return points.sub_(points.mean(-2, keepdim=True))
    gone = ~valid.unsqueeze(-1)
    points.masked_fill_(gone, 0.0)
    count = valid.sum(-1).clamp(min=1)[:, None, None]
    return points.sub_(points.sum(-2, keepdim=True) / count).masked_fill_(gone, 0.0)


# --------------------------------------------------------------------------------------------
# Kernel -> operator -> retained eigenvectors
# --------------------------------------------------------------------------------------------


class _Operator(torch.autograd.Function):
    """The deflated S [eq:P_short] of each kernel and √π [eq:stat_dist]; steps 2 and 3 above.

    Backward, with G = dL/dS (symmetric: :class:`_RetainedEigenvectors` makes it so), h = dL/d√π,
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


class _RetainedEigenvectors(torch.autograd.Function):
    """Φ = V_d Λ^t of a batch of symmetric matrices, with the backward derived at the top.

    ``count`` (F,) is the number of non-trivial eigenvalues of each frame, ``width`` bounds the
    number of columns returned (None: the largest d). ``invariant`` promises a gradient that is
    exactly rotation invariant up to rounding; without it the part that is not is added where the
    eigenvalues are simple, so that losses on single coordinates also get their derivative.
    """

    @staticmethod
    def forward(
        ctx: Any,
        s: Tensor,
        count: Tensor,
        settings: Settings,
        width: int | None,
        invariant: bool,
    ) -> tuple[Tensor, Tensor, Tensor, Tensor]:
        values, vectors = _linalg.eigh(s)
        nontrivial = _nontrivial(values, count)
        dimension = retained_dimension(nontrivial, count, settings.energy, settings.convention)
        columns = width or (int(dimension.max()) if len(dimension) else 1)
        kept = torch.arange(columns, device=s.device) < dimension.unsqueeze(-1)
        # An eigenvalue 0 within d (energy 1, a kernel of low rank) gives a column of zeros. It
        # shares its gap with the others as a discarded one does.
        kept = kept & (nontrivial[:, :columns] > 0.0)
        power = torch.where(kept, nontrivial[:, :columns].pow(settings.time), 0.0)
        phi = vectors[..., -columns:].flip(-1) * power.unsqueeze(-2)
        ctx.save_for_backward(values, vectors, kept)
        ctx.time, ctx.invariant = settings.time, invariant
        ctx.mark_non_differentiable(dimension, nontrivial, vectors)
        return phi, dimension, nontrivial, vectors

    @staticmethod
    @once_differentiable
    def backward(
        ctx: Any, g: Tensor, _dimension: Tensor, _nontrivial: Tensor, _vectors: Tensor
    ) -> tuple[Tensor, None, None, None, None]:
        values, vectors, kept = ctx.saved_tensors
        columns = kept.shape[-1]
        g = torch.where(kept.unsqueeze(-2), g, 0.0)
        descending = values.flip(-1)
        v_d = vectors[..., -columns:].flip(-1)
        a = vectors.mT @ g
        c = _discarded_coefficients(a, values, descending[:, :columns], ctx.time)
        norms = None if ctx.invariant else g.square().sum(-2).sqrt()
        top = a[:, -columns:].flip(-2)
        inner = _retained_coefficients(top, norms, descending[:, :columns], kept, ctx.time)
        # Rows of c that belong to retained eigenvectors are replaced, frame by frame of kept.
        rows = c[:, -columns:].flip(-2)
        both = kept.unsqueeze(-1) & kept.unsqueeze(-2)
        rows = torch.where(both, inner, torch.where(kept.unsqueeze(-2), rows, 0.0))
        c = torch.cat([c[:, :-columns], rows.flip(-2)], -2)
        y = vectors @ c
        half = y @ v_d.mT
        return half + half.mT, None, None, None, None


def _nontrivial(values: Tensor, count: Tensor) -> Tensor:
    """The N-1 largest eigenvalues, descending; below 0 (rounding) and beyond ``count`` 0."""
    descending = values.flip(-1)[..., :-1].clamp(min=0.0)
    index = torch.arange(descending.shape[-1], device=values.device)
    return torch.where(index < count.unsqueeze(-1), descending, 0.0)


def retained_dimension(
    eigenvalues: Tensor, count: Tensor, energy: float, convention: str
) -> Tensor:
    """d: the fewest eigenvalues that reach the share ``energy`` of their sum.

    [eq:truncation_threshold_short] with the sum over the N-1 non-trivial ones. In the paper
    convention a group tied at the cut is kept whole (gap at most 1e-10): half of it would be a
    choice of eigenbasis, and the score would depend on it.

    Args:
        eigenvalues: (..., N-1), descending, at least 0.
        count: (...), how many of them belong to present points.
        energy: τ in (0, 1].
        convention: ``"paper"`` or ``"reference"`` (no tie rule).

    Returns:
        (...) int64, between 1 and N-1.
    """
    cumulative = eigenvalues.cumsum(-1)
    total = cumulative[..., -1:]
    d = (cumulative < energy * total).sum(-1) + 1
    index = torch.arange(1, eigenvalues.shape[-1] + 1, device=eigenvalues.device)
    if convention != "reference":
        following = torch.nn.functional.pad(eigenvalues[..., 1:], (0, 1), value=-1.0)
        closed = (eigenvalues - following <= TIE) & (index < count.unsqueeze(-1))
        candidates = torch.where(closed | (index < d.unsqueeze(-1)), index[-1], index)
        d = candidates.amin(-1)
    return torch.minimum(d, count.clamp(min=1))


def _discarded_coefficients(a: Tensor, values: Tensor, kept_values: Tensor, time: float) -> Tensor:
    """½ A_ij λ_j^t / (λ_j - λ_i), rows i over the ascending spectrum, columns j retained."""
    lam = kept_values.clamp(min=0.0)
    gap = kept_values.unsqueeze(-2) - values.unsqueeze(-1)
    open_ = gap > 0.0
    factor = torch.where(open_, lam.pow(time).unsqueeze(-2) / torch.where(open_, gap, 1.0), 0.0)
    return 0.5 * a * factor


def _retained_coefficients(
    a: Tensor, norms: Tensor | None, values: Tensor, kept: Tensor, time: float
) -> Tensor:
    """C of the retained pairs: a quarter of a pair's coefficient, both ways; half on the diagonal.

    For a pair the column of the larger eigenvalue serves, so that the divisor is the larger
    power. With the column ``norms`` of g, what is not invariant is added.
    """
    lam = torch.where(kept & (values > 0.0), values, 0.0)
    positive = lam > 0.0
    safe = torch.where(positive, lam, 1.0)
    ratio = _divided_powers(lam, safe, positive, time)
    ahead = torch.triu(a.mT, 1)  # (i, j), i < j: A_ji, the column of the larger eigenvalue
    upper = 0.25 * ahead * ratio
    if norms is not None:
        upper = upper + torch.triu(_rotation_terms(a, norms, lam, safe, time), 1)
    own = time * safe.pow(time - 1.0) * a.diagonal(dim1=-2, dim2=-1) * positive
    return upper + upper.mT + torch.diag_embed(0.5 * own)


def _divided_powers(lam: Tensor, safe: Tensor, positive: Tensor, time: float) -> Tensor:
    """λ_i^-t (λ_i^2t - λ_j^2t)/(λ_i - λ_j) for λ_i ≥ λ_j > 0, without cancelling.

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


def _rotation_terms(a: Tensor, norms: Tensor, lam: Tensor, safe: Tensor, time: float) -> Tensor:
    """¼ (λ_j/λ_i)^t E_ij/(λ_j - λ_i), E_ij = λ_i^t A_ij - λ_j^t A_ji, where E is not rounding.

    E vanishes for a rotation-invariant loss. For any other the derivative exists only where the
    eigenvalues differ, and is 0 here where they do not.
    """
    power = safe.pow(time)
    p_i, p_j = power.unsqueeze(-1), power.unsqueeze(-2)
    e = p_i * a - p_j * a.mT
    size = p_i * norms.unsqueeze(-2) + p_j * norms.unsqueeze(-1)
    gap = lam.unsqueeze(-2) - lam.unsqueeze(-1)
    real = (e.abs() > INVARIANCE_TOLERANCE * size) & (gap.abs() > TIE)
    return torch.where(real, 0.25 * (p_j / p_i) * e / torch.where(real, gap, 1.0), 0.0)


# --------------------------------------------------------------------------------------------
# The whole stage
# --------------------------------------------------------------------------------------------


class Cloud(NamedTuple):
    """The points of a chunk of frames, and where their gradients go."""

    points: Tensor  # (F, N, M) float64, a copy without graph
    parts: tuple[Tensor, ...]  # (F, n, M) each, any floating type; their n add up to N


def gather(*parts: Tensor) -> Cloud:
    """Parts (F, n, M) as one cloud, on a device that has float64 (MPS has not: on the CPU)."""
    frames, _, features = parts[0].shape
    device = working_device(parts[0].device)
    count = sum(part.shape[1] for part in parts)
    points = torch.empty(frames, count, features, dtype=torch.float64, device=device)
    for rows, part in zip(points.split([part.shape[1] for part in parts], 1), parts):
        rows.copy_(part.detach())
    return Cloud(points, parts)


def embed(
    cloud: Cloud, valid: Tensor | None, settings: Settings, *, rest: bool = False
) -> Embedding:
    """Retained diffusion coordinates of a chunk of frames; see :func:`diffusion_map`.

    Args:
        cloud: N points a frame, finite where valid; its copy is used up (centred in place).
            Parts that want no gradient make the backward pass cheaper.
        valid: (F, N) bool or None.
        settings: of the map.
        rest: also return the coordinates from d on (detached), which error bounds read.
    """
    kernel, squared, degenerate = _kernel(cloud, valid, settings)
    s, root = _Operator.apply(kernel, valid, settings.alpha)
    count = _count(cloud.points, valid)
    phi, dimension, eigenvalues, vectors = _RetainedEigenvectors.apply(
        s, count, settings, None, True
    )
    inverse_root = _row_scale(root, settings.convention)
    coordinates = torch.where(degenerate[:, None, None], 0.0, phi * inverse_root.unsqueeze(-1))
    others = None
    if rest:
        with torch.no_grad():
            whole = _all_coordinates(vectors, eigenvalues, inverse_root, settings.time)
            index = torch.arange(whole.shape[-1], device=whole.device)
            omitted = (index >= dimension.unsqueeze(-1)) & ~degenerate.unsqueeze(-1)
            others = torch.where(omitted.unsqueeze(-2), whole, 0.0)
    return Embedding(coordinates, dimension, squared, degenerate, others)


def _kernel(
    cloud: Cloud, valid: Tensor | None, settings: Settings
) -> tuple[Tensor, Tensor, Tensor]:
    points = _centre(cloud.points, valid)
    parts = *cloud.parts, *(part[:0].clone() for part in cloud.parts)
    if settings.convention == "reference":  # exp(-D²/(2 σ²)), lower middle value
        return _Kernel.apply(points, valid, 2.0, False, *parts)
    return _Kernel.apply(points, valid, 1.0, True, *parts)


def _count(points: Tensor, valid: Tensor | None) -> Tensor:
    """Number of non-trivial eigenvalues of each frame, N_present - 1."""
    if valid is None:
        return torch.full(points.shape[:1], points.shape[-2] - 1, device=points.device)
    return (valid.sum(-1) - 1).clamp(min=0)


def _row_scale(root: Tensor, convention: str) -> Tensor:
    """π^-½ (0 at absent points) in the paper convention; unit eigenvectors in the reference's."""
    present = root > 0.0
    if convention == "reference":
        return present.to(root.dtype)
    return torch.where(present, 1.0 / torch.where(present, root, 1.0), 0.0)


def _all_coordinates(
    vectors: Tensor, eigenvalues: Tensor, inverse_root: Tensor, time: float
) -> Tensor:
    power = torch.where(eigenvalues > 0.0, eigenvalues.pow(time), 0.0)
    columns = vectors[..., 1:].flip(-1) * power.unsqueeze(-2)
    return columns * inverse_root.unsqueeze(-1)


def diffusion_map(
    points: Tensor,
    alpha: float = 1.0,
    time: float = 1.0,
    energy: float = 0.99,
    mask: Tensor | None = None,
    convention: str = "paper",
) -> DiffusionMap:
    """Diffusion map of every cloud of points in a batch [sec:dm_foundations_moved].

    Euclidean distances between rows of ``coordinates`` equal the diffusion distances
    [eq:diff_euclid_dist_equal_short]. Computed in float64 whatever the input, also under
    autocast. Where more than half of the pairs coincide the bandwidth is zero and there is no
    map: all coordinates of that frame are 0, d is 1 and no gradient flows.

    Args:
        points: (..., N, M) floating point, N at least 2.
        alpha: density exponent in [0, 1]; 1 removes the sampling density, 0 keeps it.
        time: diffusion time t, any positive number; larger values blur more.
        energy: τ in (0, 1], the share of the eigenvalue sum the retained coordinates reach.
        mask: (..., N) bool, False leaves a point out exactly as if it were never there.
        convention: ``"paper"`` (bandwidth: mean of the two middle values, u orthonormal under
            π) or ``"reference"`` (half-width kernel, lower middle value, unit eigenvectors).

    Returns:
        A :class:`DiffusionMap`. ``retained`` is differentiable: exactly, also at repeated
        eigenvalues, for everything that does not depend on the choice of eigenbasis.

    Raises:
        TypeError: ``points`` not floating point or ``mask`` not bool.
        ValueError: shapes that do not fit, N < 2, non-finite present points, settings out of
            range.
    """
    settings = map_settings(alpha, time, energy, convention)
    _checks.check_floating(points, "points")
    if points.ndim < 2 or points.shape[-2] < 2 or points.shape[-1] < 1:
        raise ValueError(
            f"points must have shape (..., N, M) with N >= 2 points of M >= 1 features, got "
            f"{tuple(points.shape)}."
        )
    lead, (n, m) = points.shape[:-2], points.shape[-2:]
    valid = None
    if mask is not None:
        valid = _checks.check_bool(mask, "mask", (*lead, n)).reshape(-1, n)
    with torch.autocast(points.device.type, enabled=False):
        cloud = gather(points.reshape(-1, n, m))
        if valid is not None:
            valid = valid.to(cloud.points.device)
        check_finite(cloud.points, valid, lead)
        return _assemble(cloud, valid, settings, lead)


def _assemble(
    cloud: Cloud, valid: Tensor | None, settings: Settings, lead: torch.Size
) -> DiffusionMap:
    kernel, _, degenerate = _kernel(cloud, valid, settings)
    s, root = _Operator.apply(kernel, valid, settings.alpha)
    n = cloud.points.shape[-2]
    phi, dimension, eigenvalues, vectors = _RetainedEigenvectors.apply(
        s, _count(cloud.points, valid), settings, n - 1, False
    )
    scale = _row_scale(root, settings.convention)
    gone = degenerate[:, None, None]
    whole = _all_coordinates(vectors, eigenvalues, scale.detach(), settings.time)
    return DiffusionMap(
        eigenvalues=torch.where(degenerate.unsqueeze(-1), 0.0, eigenvalues).reshape(*lead, n - 1),
        dimension=torch.where(degenerate, 1, dimension).reshape(lead),
        stationary=root.square().reshape(*lead, n),
        retained=torch.where(gone, 0.0, phi * scale.unsqueeze(-1)).reshape(*lead, n, n - 1),
        coordinates=torch.where(gone, 0.0, whole).reshape(*lead, n, n - 1).detach(),
    )


def check_finite(x: Tensor, valid: Tensor | None, lead: torch.Size) -> None:
    """Raise ValueError naming the first point whose squared norm is not finite (reads values).

    One non-finite matrix makes a whole batched ``eigh`` fail, so this comes before it.
    """
    norms = torch.linalg.vector_norm(x, dim=-1).square()
    bad = ~torch.isfinite(norms)
    if valid is not None:
        bad = bad & valid
    if bool(bad.any()):
        frame, point = (int(index) for index in bad.nonzero()[0])
        raise ValueError(
            f"points must be finite (and below 1e150), got NaN, infinite or huge values in "
            f"{_checks.describe_frame(frame, lead)}, point {point}. Leave it out with mask."
        )
