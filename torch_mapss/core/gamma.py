r"""Upper regularised incomplete gamma function, differentiable in both arguments.

``gammaincc(k, x)`` is the tail :math:`Q(k, x) = \Gamma(k, x) / \Gamma(k)` of a Gamma variable of
shape ``k`` and unit scale, ``log_gammaincc(k, x)`` its logarithm, which still has a slope where Q
underflows. ``torch.special.gammaincc`` has no derivative in ``k`` and no logarithm.

**Derivation.** Substituting :math:`t = x e^{s}` in :math:`\Gamma(k, x) = \int_x^\infty t^{k-1}
e^{-t} dt` and :math:`t = x e^{-s}` in :math:`\gamma(k, x)` [DLMF 8.2.1, 8.2.2] gives

.. math::
    Q = D \int_0^\infty e^{-(x-k)s - x h(s)} ds, \qquad
    P = D \int_0^\infty e^{-(k-x)s - x h(-s)} ds,

with :math:`D = x^k e^{-x} / \Gamma(k)` and :math:`h(z) = e^z - 1 - z \ge 0`. On the side used (Q
for x >= k, P for x < k) both exponents fall steadily from 0, are as wide as
min(1 / ``|x - k|``, 1 / sqrt x) and nothing cancels, for every k: no transition region at x = k is
left to treat apart. Write :math:`\langle s \rangle` for the mean of s under the integrand and I for
the integral. Then

.. math::
    \partial_k \log Q = \log x - \psi(k) + \langle s \rangle, \quad
    \partial_k \log P = \log x - \psi(k) - \langle s \rangle, \quad
    \partial_x Q = -D / x, \quad \partial_x \log Q = -1 / (x I),

sums of one sign (log x - psi(k) has the sign of x - k up to 1 / 2k, which <s> ~ 0.8 / sqrt k
outweighs). So every derivative keeps its relative accuracy. The integrals are Gauss-Legendre sums
over [0, L] with L, from closed bounds, slightly beyond where the exponent is -40.

For k < 1 and x < 1/2 the integrand is wider than one rule can cover, and the power series
[DLMF 8.7.1; Gautschi, ACM TOMS 5 (1979) 466-481, section 4.1] takes over. D for large k follows
Temme, SIAM J. Math. Anal. 10 (1979) 757-766: ``k log x - x - lgamma(k)`` would cancel terms of size
k log k, ``-k phi(x / k - 1)`` with phi(u) = u - log(1 + u) does not.

``torch.special.gammaincc`` is not used even without gradients: for k from 20 to 1e7 with x within a
third of k it misses 1e-10, by up to 2e-9 at k = 21 and 2e-8 at k = 7e6
(``benchmarks/special_accuracy.py``), and a single code path keeps the values equal with and without
gradients.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor

from torch_mapss.core import devices
from torch_mapss.core.autograd import once

_WHAT = "gammaincc and log_gammaincc"  # subject of the error about second derivatives
# Exponent at which the integrals are cut: exp(-40) = 4e-18 of the largest value.
_CUT = 40.0
# Points of the Gauss-Legendre rule: errors reach rounding level (1e-15) from 40 on.
_POINTS = 44
# From here on Stirling's series (seven terms) is exact to rounding.
_STIRLING_FROM = 10.0
# Most numbers held at once in the sums over the points: 512 KiB per array.
_BLOCK = 2**16
# Arguments are held inside these limits, so no square or quotient leaves the float64 range.
_SMALLEST, _LARGEST = 1e-300, 1e300
# exp() below this stays finite in float64.
_EXP_LIMIT = 700.0


_nodes, _weights = np.polynomial.legendre.leggauss(_POINTS)
_RULE = (0.5 * (_nodes + 1.0)).tolist(), (0.5 * _weights).tolist()  # on [0, 1]
# Bernoulli numbers B_2 ... B_14.
_BERNOULLI = (1 / 6, -1 / 30, 1 / 42, -1 / 30, 5 / 66, -691 / 2730, 7 / 6)
# log Gamma(k) = (k - 1/2) log k - k + log(2 pi) / 2 + sum B_2n / (2n (2n-1) k^(2n-1)) [DLMF 5.11.1]
_LOG_GAMMA_TAIL = tuple(b / (2 * n * (2 * n - 1)) for n, b in enumerate(_BERNOULLI, 1))
# log k - psi(k) = 1 / 2k + sum B_2n / (2n k^2n) [DLMF 5.11.2]
_DIGAMMA_TAIL = tuple(b / (2 * n) for n, b in enumerate(_BERNOULLI, 1))
# log Gamma(1 + k) + log(1 + k) = (1 - gamma) k + sum (-1)^n (zeta(n) - 1) k^n / n [DLMF 5.7.3];
# zeta(n) - 1 is Hurwitz's zeta function, the sum from 2 on.
_ORDERS = torch.arange(2.0, 16.0, dtype=torch.float64, device="cpu")
_ZETA_MINUS_ONE = torch.special.zeta(_ORDERS, 2.0).tolist()
_LOG_GAMMA_ONE = (1.0 - float(np.euler_gamma),) + tuple(
    (-1) ** n * excess / n for n, excess in enumerate(_ZETA_MINUS_ONE, 2)
)
# h(z) = z^2 (1/2! + z/3! + ...), phi = u r - 2 r^3 (1/3 + r^2 / 5 + ...)
_EXP_TAIL = tuple(1.0 / math.factorial(n) for n in range(2, 15))
_ATANH_TAIL = tuple(1.0 / (2 * n + 1) for n in range(1, 12))


class _Tail(NamedTuple):
    """Q, log Q and their first derivatives, all of one shape."""

    value: Tensor
    value_k: Tensor
    value_x: Tensor
    log: Tensor
    log_k: Tensor
    log_x: Tensor


def _polynomial(z: Tensor, coefficients: Sequence[float]) -> Tensor:
    """Horner sum of ``coefficients[n] * z**n``."""
    total = torch.full_like(z, coefficients[-1])
    for coefficient in reversed(coefficients[:-1]):
        total = total.mul_(z).add_(coefficient)
    return total


def _density(k: Tensor, x: Tensor) -> tuple[Tensor, Tensor]:
    """log D = k log x - x - log Gamma(k), and its derivative log x - psi(k) in k."""
    large = k >= _STIRLING_FROM
    big = torch.where(large, k, _STIRLING_FROM)
    # log(x / k) and phi(u) = u - log(1 + u) at u = x / k - 1. Near u = 0 the quotient would round
    # the difference away, so log1p is used, and log(1 + u) = 2 atanh r with r = u / (2 + u), for
    # which u - 2 r = u r exactly.
    u = (x - big) / big
    near = u.abs() < 0.3
    v = torch.where(near, u, 0.0)
    r = v / (2.0 + v)
    log_ratio = torch.where(near, torch.log1p(v), (x / big).clamp_min(_SMALLEST).log())
    series = v * r - 2.0 * r**3 * _polynomial(r * r, _ATANH_TAIL)
    phi = torch.where(near, series, u - log_ratio)
    # Stirling's series for log Gamma and psi.
    inverse, square = 1.0 / big, 1.0 / big**2
    log_gamma_star = inverse * _polynomial(square, _LOG_GAMMA_TAIL)
    asymptotic = 0.5 * (big.log() - math.log(2 * math.pi)) - big * phi - log_gamma_star
    gap = 0.5 * inverse + square * _polynomial(square, _DIGAMMA_TAIL)

    low = torch.where(large, 1.0, k)
    log_x = x.log()
    direct = low * log_x - x - torch.lgamma(low)
    return (
        torch.where(large, asymptotic, direct),
        torch.where(large, log_ratio + gap, log_x - torch.digamma(low)),
    )


def _integrals(k: Tensor, x: Tensor, above: Tensor) -> tuple[Tensor, Tensor]:
    """log I and <s> of one side: Q where ``above``, else P.

    L is an upper bound, nearly tight, of the s where the exponent reaches the cut. Above, where it
    is (x - k) s + x h(s), h(s) >= s^2 / 2 gives the root of a quadratic, and
    s = log1p((cut + k s) / x), the same equation solved for exp(s), tightens any upper bound.
    Below, where it is (k - x) s + x h(-s), h(-s) >= s^2 / (2 + s) gives the positive root of
    k s^2 - b s - 2 cut with b = cut - 2 (k - x), in a form without cancellation for either sign
    of b.
    """
    a = x - k
    reach_above = 2.0 * _CUT / (a + torch.hypot(a, (2.0 * _CUT * x).sqrt()))
    for _ in range(3):
        reach_above = torch.minimum(reach_above, torch.log1p((_CUT + k * reach_above) / x))
    b = _CUT - 2.0 * (k - x)
    root = b.abs() + torch.hypot(b, (8.0 * _CUT * k).sqrt())
    reach_below = torch.where(b > 0, 0.5 * root / k, 4.0 * _CUT / root)
    reach = torch.where(above, reach_above, reach_below)  # L

    side = torch.where(above, torch.ones_like(x), -1.0)
    slope = side * a
    # The points of the rule go first, (points, 1, ..., 1). Blocks of them bound the memory of large
    # inputs; small ones take all points at once.
    column = (-1,) + (1,) * x.dim()
    nodes, weights = (devices.upload(values, x.device).view(column) for values in _RULE)
    block = min(_POINTS, max(1, _BLOCK // max(1, x.numel())))
    total, moment = torch.zeros_like(x), torch.zeros_like(x)
    for node, weight in zip(nodes.split(block), weights.split(block), strict=True):
        s = reach * node
        z = side * s
        # h(z) = exp(z) - 1 - z, by its series near 0 where the difference would cancel.
        series = _polynomial(z.clamp(-0.3, 0.3), _EXP_TAIL) * z * z
        h = torch.where(z.abs() < 0.3, series, torch.expm1(z) - z)
        mass = weight * torch.exp(-slope * s - x * h)
        total += mass.sum(0)
        moment += (node * mass).sum(0)
    return reach.log() + total.log(), reach * (moment / total)


def _by_quadrature(k: Tensor, x: Tensor) -> _Tail:
    """All k >= 1, and k < 1 with x >= 1/2. Above is Q = D I, below is Q = 1 - P with P = D I."""
    above = (x >= k) | (k < 1.0)
    log_density, density_k = _density(k, x)
    log_integral, mean = _integrals(k, x, above)
    value_x = -torch.exp(log_density - x.log())

    log_q = log_density + log_integral
    log_q_k = density_k + mean
    # Through logarithms: at tiny k, Q may underflow while Q times 1 / k does not.
    value_k = torch.exp(log_q + log_q_k.clamp_min(_SMALLEST).log())
    log_x = -torch.exp(-log_integral - x.log())
    upper = _Tail(log_q.exp(), value_k, value_x, log_q, log_q_k, log_x)
    p = torch.exp(torch.where(above, -1.0, log_q))
    lower = _from_lower(p, 1.0 - p, p * (mean - density_k), value_x)
    return _select(above, upper, lower)


def _from_lower(p: Tensor, q: Tensor, value_k: Tensor, value_x: Tensor) -> _Tail:
    """The record from P, Q and the derivatives of Q; log Q is relatively accurate at both ends."""
    small = p < 0.5
    log = torch.where(small, torch.log1p(-torch.where(small, p, 0.0)), q.log())
    return _Tail(q, value_k, value_x, log, value_k / q, value_x / q)


def _by_series(k: Tensor, x: Tensor) -> _Tail:
    """k < 1 and x < 1/2: P = e^w S, S = 1 + k sum_{n>=1} (-x)^n / ((k + n) n!) [DLMF 8.7.1].

    e^w = x^k / Gamma(1 + k). Q = -expm1(w) - e^w (S - 1) has two positive parts, and so has
    dP/dk = e^w ((log x - psi(1 + k)) S + dS/dk) two negative ones.
    """
    power, series, series_k = torch.ones_like(x), torch.zeros_like(x), torch.zeros_like(x)
    for n in range(1, 16):
        power = power * (-x / n)
        term = power / (k + n)
        series += term
        series_k += n * term / (k + n)
    # log Gamma(1 + k), by its series where k is small and lgamma would lose its relative accuracy.
    small = k < 0.1
    v = torch.where(small, k, 0.0)
    log_gamma_small = v * _polynomial(v, _LOG_GAMMA_ONE) - torch.log1p(v)
    log_gamma = torch.where(small, log_gamma_small, torch.lgamma(1.0 + k))
    log_x = x.log()
    w = k * log_x - log_gamma
    scale, total = w.exp(), 1.0 + k * series
    p = scale * total
    q = -torch.expm1(w) - scale * k * series
    value_k = -scale * ((log_x - torch.digamma(1.0 + k)) * total + series_k)
    value_x = -torch.exp((k.log() + w - x - log_x).clamp_max(_EXP_LIMIT))
    return _from_lower(p, torch.where(p < 0.5, 1.0 - p, q), value_k, value_x)


def _select(condition: Tensor, yes: _Tail, no: _Tail) -> _Tail:
    return _Tail(*(torch.where(condition, a, b) for a, b in zip(yes, no, strict=True)))


class _GammaTail(torch.autograd.Function):
    """Q and log Q with their derivatives, for any float64 input of one shape.

    ``largest`` are the bounds of the derivatives in k and in x.
    """

    generate_vmap_rule = True

    @staticmethod
    def forward(k: Tensor, x: Tensor, largest: Sequence[float]) -> Any:
        good, zero, infinite = (k > 0) & (x >= 0), x == 0, torch.isinf(x)
        inside = good & ~zero
        safe_k = torch.where(inside, k, 1.0).clamp(_SMALLEST, _LARGEST)
        safe_x = torch.where(inside, x, 1.0).clamp_max(_LARGEST)
        # Two regions. Elements of the other region get a harmless argument, so that they cannot
        # spoil this one.
        series = (safe_k < 1.0) & (safe_x < 0.5)
        by_series = _by_series(torch.where(series, safe_k, 0.5), torch.where(series, safe_x, 0.25))
        by_quadrature = _by_quadrature(*(torch.where(series, 1.0, t) for t in (safe_k, safe_x)))
        tail = _select(series, by_series, by_quadrature)
        # Edges and bad input.
        edge, nan = torch.zeros_like(x), torch.full_like(x, math.nan)
        tail = _select(zero, _Tail(edge + 1.0, edge, edge, edge, edge, edge), tail)
        tail = tail._replace(log=torch.where(infinite, -math.inf, tail.log))
        tail = _select(good, tail, _Tail(nan, edge, edge, nan, edge, edge))
        slopes = tail.value_k, tail.log_k, tail.value_x, tail.log_x
        limits = largest[0], largest[0], largest[1], largest[1]
        return tail.value, tail.log, *(t.clamp(-m, m) for t, m in zip(slopes, limits))

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Any, ...], output: tuple[Tensor, ...]) -> None:
        ctx.mark_non_differentiable(*output[2:])
        ctx.save_for_backward(*inputs[:2], *output[2:])
        ctx.set_materialize_grads(False)  # often only one of the two is used

    @staticmethod
    def backward(ctx: Any, value: Tensor | None, log: Tensor | None, *_: Any) -> Any:
        k, x, *slopes = ctx.saved_tensors
        gradients: list[Tensor | None] = []
        for of_value, of_log, needed in zip(slopes[::2], slopes[1::2], ctx.needs_input_grad):
            pairs = [(g, s) for g, s in ((value, of_value), (log, of_log)) if g is not None]
            terms = [g * once(s, _WHAT, k, x) for g, s in pairs] if needed else []
            gradients.append(sum(terms[1:], terms[0]) if terms else None)
        return *gradients, None


def both_tails(k: Tensor | float, x: Tensor | float) -> tuple[Tensor, Tensor]:
    """Both :func:`gammaincc` and :func:`log_gammaincc`, from one quadrature."""
    arguments = []
    for name, value, companion in (("k", k, x), ("x", x, k)):
        if not isinstance(value, Tensor):
            device = companion.device if isinstance(companion, Tensor) else None
            value = torch.tensor(value, device=device)
        if value.is_complex():
            raise TypeError(
                f"{name} must be real, got dtype {value.dtype}: the incomplete gamma function is "
                f"computed for real arguments only. Pass {name}.real if the imaginary part is zero."
            )
        arguments.append(value)
    shape, point = arguments
    if shape.dim() > 0 and point.dim() > 0 and shape.device != point.device:
        raise ValueError(
            f"k and x must lie on one device, got {shape.device} and {point.device}: they cannot "
            "be combined element by element. Move one, e.g. k.to(x.device)."
        )
    # A scalar follows the other argument, as in torch's own arithmetic.
    device = shape.device if shape.dim() > 0 else point.device
    dtype = torch.result_type(shape, point)
    real = dtype.is_floating_point
    dtype = torch.promote_types(dtype, torch.float32) if real else torch.get_default_dtype()
    # Gradients stay below the largest finite number of their type.
    largest = [torch.finfo(t.dtype).max if t.is_floating_point() else math.inf for t in arguments]
    working = devices.working_device(device)
    pair = torch.broadcast_tensors(*(t.to(working).to(torch.float64) for t in arguments))
    value, log, *_ = _GammaTail.apply(*pair, largest)
    return value.to(dtype).to(device), log.to(dtype).to(device)


def gammaincc(k: Tensor | float, x: Tensor | float) -> Tensor:
    """Upper regularised incomplete gamma function Q(k, x), differentiable in both arguments.

    The probability that a Gamma variable of shape ``k`` and scale 1 exceeds ``x``: 1 at x = 0,
    falling to 0. Computed in float64 for every input type; on devices without float64 (MPS), on the
    CPU, and the result is moved back. It has no data-dependent loop, does not synchronise the
    device, and gives equal results on repetition.

    Accuracy (float64): relative error below 1e-10 for Q and both derivatives, for k in [1e-2, 1e7]
    and x in [0, 1e8], where they exceed 1e-300; usually near 1e-14. Beyond that range the formulas
    keep working for k and x in [1e-300, 1e300] and lose digits only as the inputs' own rounding
    does (a relative change of 1e-16 in x moves log Q by about 1e-16 ``|x - k|``); arguments beyond
    these limits are clamped to them.

    Args:
        k: Shape of the Gamma distribution, > 0, any shape that broadcasts with ``x``.
        x: Where the tail starts, >= 0; ``inf`` gives 0.

    Returns:
        Q in [0, 1], of the broadcast shape and the promoted dtype; integers give the default dtype,
        float16 and bfloat16 give float32. Elements with k <= 0, x < 0 or NaN are NaN and send
        gradient 0, so that a later ``torch.where`` can mask them. At x = 0 both derivatives are 0
        (for k < 1 the true slope in x is infinite). Derivatives are clamped to the largest finite
        number of the input's dtype. There are no second derivatives.

    Raises:
        TypeError: An argument is complex.
        ValueError: The arguments lie on different devices (a scalar may).
        RuntimeError: The shapes do not broadcast, or a second derivative is asked for.

    Source: DLMF 8.2.4; method in the module's text.
    """
    return both_tails(k, x)[0]


def log_gammaincc(k: Tensor | float, x: Tensor | float) -> Tensor:
    """Logarithm of :func:`gammaincc`, with a value and a slope also where Q underflows.

    Same arguments, types, treatment of bad input and range as :func:`gammaincc`. Relative accuracy
    1e-10 holds for log Q and its derivatives at any depth of the tail (log Q = -1e8 too); where
    Q is 1 minus something tiny, log Q = -P is relatively accurate down to 1e-300.

    Args:
        k: Shape of the Gamma distribution, > 0, any shape that broadcasts with ``x``.
        x: Where the tail starts, >= 0; ``inf`` gives -inf (with the finite slopes at 1e300).

    Returns:
        log Q <= 0, of the broadcast shape and the dtype of :func:`gammaincc`.

    Raises:
        TypeError: An argument is complex.
        ValueError: The arguments lie on different devices (a scalar may).
        RuntimeError: The shapes do not broadcast, or a second derivative is asked for.

    Source: DLMF 8.2.4; method in the module's text.
    """
    return both_tails(k, x)[1]
