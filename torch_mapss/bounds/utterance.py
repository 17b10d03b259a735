r"""Frames -> utterance: bounds through the pooling of the scores [sec:propagate_ci_to_corr].

A frame's error has two parts. The **radius** b is a bias of unknown sign: it does not average out,
and the radius of a mean is the mean radius. The **tail** p is a random error, read as a Gaussian
one of scale σ = p/z (z the normal quantile of its confidence, which cancels wherever the result is
again a half-width). Frames more than g apart count as independent. Split them into g + 1 classes
of every (g+1)-th frame: within a class variances add, across classes standard deviations do, so

.. math:: Var \sum_f w_f\zeta_f \le (g+1) \sum_f w_f^2\sigma_f^2 ,

and never more than :math:`(\sum_f |w_f|\sigma_f)^2`, whatever the dependence.

**PESQ-like pooling** is :math:`s(u)`, u the root mean square over windows of p-means. By the
inequality of Minkowski u changes by at most u(b). As s is convex up to u = 2.8, s(u + u(b)) - s(u)
bounds the change of the score; the slope at u, as printed, is a little less. Its gradient in frame
f is :math:`s'(u) w_f`,

.. math:: w_f = \sum_m \frac{\ell_m}{M u} \frac{1}{W} \left(\frac{v_f}{\ell_m}\right)^{p-1} ,

the sum over the windows f lies in. ``convention="derived"`` uses these; ``"paper"`` follows
[eq:pesq_pool_b], [eq:pesq_pool_h], which divide both parts by sqrt(M), which is correct for
neither.

**One rule for the half-width of a mean score**, in :func:`torch_mapss.evaluate` with
``bounds=True``: frames -> utterance by :func:`pool_match_bounds` with its defaults, radius plus
tail, for PS and PM alike, and for clearance and fidelity by the jackknife of the pooled score, see
:mod:`torch_mapss.bounds.decomposition`; utterances -> sources, mixtures, sets by the mean of
half-widths. That mean does not shrink with their number: every mixture is compared with the same
distortions, so that their errors may be correlated. It bounds the effect of truncation and of
finitely many distortions on the score of these very signals. A bootstrap over files answers a
different question: how far the mean over another set of files might lie.
"""

from __future__ import annotations

import math

import torch
from torch import Tensor

from torch_mapss.bounds.settings import POOLED_CONVENTIONS
from torch_mapss.core import checks, pooling
from torch_mapss.core.autograd import lifted
from torch_mapss.core.error_bounds import Bounds

GAP = 4  # g: frames further apart are independent, by the paper's experiments


@torch.no_grad()
def pool_match_bounds(
    radius: Tensor,
    tail: Tensor,
    active: Tensor | None = None,
    *,
    gap: int = GAP,
    convention: str = "paper",
) -> Bounds:
    """Bounds of the mean over active frames [eq:avg_pool_b], [eq:avg_pool_h].

    Args:
        radius: (..., F) of every frame.
        tail: (..., F) half-widths; the result is a half-width of the same confidence.
        active: (..., F) bool, frames that count; all by default.
        gap: g, number of frames over which errors stay dependent. Larger is safer and wider.
        convention: ``"derived"`` never exceeds the mean of the tails, which the errors cannot
            exceed whatever their dependence (this matters for fewer than g + 1 frames).

    Returns:
        :class:`~torch_mapss.bounds.Bounds` of (...) tensors; NaN where no frame is active.

    Raises:
        TypeError: not floating point, active not bool, or gap not whole.
        ValueError: shapes that do not fit, negative or NaN bounds in active frames, gap below 0.
    """
    gap = _check_settings(convention, gap)
    radius, tail, active = _frames(radius, tail, active)
    count = active.sum(-1).clamp(min=1).to(tail.dtype)
    mean = pooling.masked_mean(radius, active)
    width = (pooling.masked_mean(tail.square(), active) * (gap + 1) / count).sqrt()
    if convention == "derived":
        width = torch.minimum(width, pooling.masked_mean(tail, active))
    return Bounds.of(mean, width)


@torch.no_grad()
def pool_separation_bounds(
    frames: Tensor,
    radius: Tensor,
    tail: Tensor,
    active: Tensor | None = None,
    window: int = 20,
    hop: int = 10,
    p: float = 6,
    *,
    gap: int = GAP,
    convention: str = "paper",
) -> Bounds:
    """Bounds of :func:`torch_mapss.functional.pool_separation` [eq:pesq_pool_b], [eq:pesq_pool_h].

    Fewer than ``window`` active frames make one shorter window, as in the score.

    Args:
        frames: (..., F) PS of every frame.
        radius, tail, active: as in :func:`pool_match_bounds`.
        window, hop, p: settings that the score was pooled with.
        gap: g of the derived convention (the printed formula has none).
        convention: ``"paper"`` as printed, or ``"derived"``: see the module's notes.

    Returns:
        :class:`~torch_mapss.bounds.Bounds` of (...) tensors on the scale of the score (its whole
        range is 0.23 wide); NaN where no frame is active.

    Raises:
        TypeError, ValueError: as :func:`pool_match_bounds`, or window, hop or p below 1.
    """
    gap = _check_settings(convention, gap)
    window, hop, p = pooling.check_windows(window, hop, p)
    radius, tail, active = _frames(radius, tail, active, frames)
    values = torch.where(active, lifted(frames), 0.0).abs()
    windows = pooling.windows_of(values, active, window, hop)
    level = pooling.window_level(windows, p)
    if convention == "derived":
        shift = pooling.window_level(pooling.windows_of(radius, active, window, hop), p)
        bias = pooling.pesq_score(level + shift) - pooling.pesq_score(level)
        errors = _pooling_gradient(windows, active, level, p) * tail
        width = math.sqrt(gap + 1) * errors.square().sum(-1).sqrt()
        width = pooling.pesq_slope(level) * torch.minimum(width, errors.sum(-1))
    else:
        scale = math.ceil(window / hop) * windows.number.to(tail.dtype).rsqrt()
        scale = scale * pooling.pesq_slope(level)
        bias = scale * pooling.masked_mean(radius.square(), active).sqrt()
        width = scale * pooling.masked_mean(tail.square(), active).sqrt()
    bias, width = (torch.where(active.any(-1), x, torch.nan) for x in (bias, width))
    return Bounds.of(bias, width)


def _pooling_gradient(windows: pooling.Windows, active: Tensor, level: Tensor, p: float) -> Tensor:
    """w (..., F), the gradient of u; where a window is all 0, the steepest one-sided slope."""
    values, inside, number, position = windows
    size = windows.size().to(values.dtype).unsqueeze(-1)  # (..., windows, 1)
    mean = pooling.window_means(windows, p).unsqueeze(-1)
    positive = mean > 0.0
    inner = (values / torch.where(positive, mean, 1.0)).pow(p - 1.0) / size
    inner = torch.where(positive, inner, size.pow(-1.0 / p)) * inside
    count = number.to(values.dtype)[..., None, None]
    above = level[..., None, None] > 0.0
    outer = mean / (count * torch.where(above, level[..., None, None], 1.0))
    outer = torch.where(above, outer, count.rsqrt())
    by_window = (outer * inner).flatten(-2)
    joined = values.new_zeros(*active.shape[:-1], max(active.shape[-1], position.shape[-1]))
    joined.scatter_add_(-1, position.flatten().expand_as(by_window), by_window)
    weights = torch.zeros_like(active, dtype=values.dtype)
    joined = joined[..., : active.shape[-1]]
    return weights.scatter(-1, pooling.joined_order(active), joined)


def _check_settings(convention: str, gap: int) -> int:
    """The gap; frames further apart than it count as independent."""
    checks.check_choice(convention, "convention", POOLED_CONVENTIONS)
    return checks.check_whole(gap, "gap", 0)


def _frames(
    radius: Tensor, tail: Tensor, active: Tensor | None, frames: Tensor | None = None
) -> tuple[Tensor, Tensor, Tensor]:
    """Radius, tail, active of one shape (..., F); the bounds 0 where inactive."""
    fields = {"radius": radius, "tail": tail} | ({} if frames is None else {"frames": frames})
    for name, values in fields.items():
        checks.check_floating(values, name)
    if len({x.shape for x in fields.values()}) > 1 or radius.ndim < 1 or radius.shape[-1] == 0:
        listed = ", ".join(f"{name} {tuple(x.shape)}" for name, x in fields.items())
        raise ValueError(
            f"frame bounds must have one shape (..., F) with F of at least 1, got {listed}. Frames "
            "are the last axis; pass active to leave some out."
        )
    if active is None:
        active = torch.ones_like(radius, dtype=torch.bool)
    active = checks.check_bool(active, "active", tuple(radius.shape))
    for name, values in fields.items():
        bad = active & ~(values >= 0.0)
        if bool(bad.any()):
            index = tuple(bad.nonzero()[0].tolist())
            raise ValueError(
                f"{name} must be at least 0 in active frames, got {float(values[index])} at index "
                f"{index}. An undefined frame must be inactive: pass active=False there."
            )
    radius, tail = (torch.where(active, lifted(x), 0.0) for x in (radius, tail))
    return radius, tail, active
