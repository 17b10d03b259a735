"""Incomplete gamma tail against arbitrary precision, SciPy, finite differences and its laws."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from functools import cache

import numpy as np
import pytest
import torch
from mpmath import mp, mpf
from torch import Tensor

from torch_mapss.core.gamma import gammaincc, log_gammaincc

FLOOR = 1e-300
Function = Callable[[Tensor, Tensor], Tensor]
BOTH = pytest.mark.parametrize("function", [gammaincc, log_gammaincc])


def lower_series(k: mpf, x: mpf) -> tuple[mpf, mpf]:
    """P and dP/dk from P = x^k e^-x / Gamma(k+1) sum x^n / (k+1)_n, term by term [DLMF 8.7.1]."""
    term, total, slope, harmonic, n = mpf(1), mpf(1), mpf(0), mpf(0), 0
    while n <= x - k or term * (1 + harmonic) > mp.eps * total * mpf(10) ** -5:
        n += 1
        step = 1 / (k + n)
        term *= x * step
        harmonic += step
        total += term
        slope -= term * harmonic
    p = mp.exp(k * mp.log(x) - x - mp.loggamma(k + 1)) * total
    return p, p * (mp.log(x) - mp.digamma(k + 1) + slope / total)


def log_upper_fraction(k: mpf, x: mpf) -> mpf:
    """log Q from the Legendre continued fraction [DLMF 8.9.2, even part], modified Lentz."""
    b = x + 1 - k
    c, d = mpf(10) ** 400, 1 / b
    value, n, change = d, 0, mpf(2)
    while abs(change - 1) > mp.eps * 10:
        n += 1
        a = -n * (n - k)
        b += 2
        d, c = 1 / (a * d + b), b + a / c
        change = c * d
        value *= change
    return k * mp.log(x) - x - mp.loggamma(k) + mp.log(value)


def from_series(k: mpf, x: mpf) -> tuple[mpf, mpf]:
    """log Q and its derivative in k, with digits to spare for 1 - P."""
    u = x / k - 1
    depth = max(0, float(k * (u - mp.log1p(u)) / mp.ln10)) if x > k else 0.0
    with mp.workdps(45 + int(depth)):
        p, p_k = lower_series(k, x)
        return mp.log1p(-p) if p < 0.5 else mp.log(1 - p), -p_k / (1 - p)


def from_fraction(k: mpf, x: mpf) -> tuple[mpf, mpf]:
    """log Q by the fraction and its derivative by a central difference in 90 digits."""
    with mp.workdps(90):
        h = k * mpf(10) ** -28
        slope = (log_upper_fraction(k + h, x) - log_upper_fraction(k - h, x)) / (2 * h)
        return log_upper_fraction(k, x), slope


@cache
def oracle(k: float, x: float) -> dict[str, mpf]:
    """Q, log Q and derivatives at the exact binary values of k and x."""
    with mp.workdps(45):
        shape, point = mpf(k), mpf(x)
        far = point > 1.3 * shape + 30
        log_q, log_q_k = (from_fraction if far else from_series)(shape, point)
        log_x_slope = -mp.exp((shape - 1) * mp.log(point) - point - mp.loggamma(shape) - log_q)
        log = {"log": log_q, "log_k": log_q_k, "log_x": log_x_slope}
        q = mp.exp(log_q)
        return {"value": q, "value_k": q * log_q_k, "value_x": q * log_x_slope, **log}


def pair_of(points: Sequence[tuple[float, float]]) -> tuple[Tensor, Tensor]:
    k, x = torch.tensor(points, dtype=torch.float64).unbind(-1)
    return k, x


def with_gradients(function: Function, k: Tensor, x: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """Value and elementwise derivatives through autograd; k and x of one shape."""
    k, x = k.detach().clone().requires_grad_(), x.detach().clone().requires_grad_()
    value = function(k, x)
    by_k, by_x = torch.autograd.grad(value.sum(), (k, x))
    return value.detach(), by_k, by_x


def assert_accurate(points: Sequence[tuple[float, float]], tolerance: float = 1e-10) -> None:
    """All six numbers at all points, in one call of the library each."""
    k, x = pair_of(points)
    actual: dict[str, list[float]] = {}
    for name, function in (("value", gammaincc), ("log", log_gammaincc)):
        columns = with_gradients(function, k, x)
        actual |= {name + end: c.tolist() for end, c in zip(("", "_k", "_x"), columns)}
    for i, point in enumerate(points):
        for name, expected in oracle(*point).items():
            error = abs(mpf(actual[name][i]) - expected)
            limit = max(tolerance * abs(expected), FLOOR)
            assert error <= limit, (name, point, actual[name][i], float(expected))


def around(k: float, widths: Sequence[float]) -> list[tuple[float, float]]:
    """Points x = k + c sqrt(k)."""
    return [(k, k + c * math.sqrt(k)) for c in widths if k + c * math.sqrt(k) > 0]


def log_grid() -> tuple[Tensor, Tensor]:
    """Every pair from far outside the promised range, edges included."""
    k = torch.logspace(-300, 300, 61, dtype=torch.float64)
    k = torch.cat([k, torch.tensor([0.5, 1.0, 10.0, 1e7, 1.7e308, math.inf])])
    x = torch.logspace(-300, 300, 61, dtype=torch.float64)
    x = torch.cat([x, torch.tensor([0.0, 5e-324, 0.5, 1.0, 1e8, 1.7e308, math.inf])])
    kk, xx = torch.meshgrid(k.double(), x.double(), indexing="ij")
    return kk.reshape(-1), xx.reshape(-1)


SHAPES = [0.01, 0.1, 0.37, 0.5, 0.97, 1.0, 1.02, 1.5, 2.0, 3.3, 9.99, 10.0, 10.01, 37.0, 250.0, 1e3]
POINTS = [1e-300, 1e-30, 1e-9, 1e-3, 0.1, 0.499, 0.5, 0.56, 0.999, 1.0, 1.7, 5.0, 12.0]
POINTS += [300.0, 720.0]
WIDTHS = [-30.0, -9.0, -2.0, -0.3, -1e-5, 0.0, 1e-7, 0.1, 1.0, 5.0, 20.0, 36.0]
FAR = [
    (k, x)
    for k in (0.01, 0.8, 1.0, 7.0, 200.0, 1e4, 1e6, 1e7)
    for x in (60.0, 750.0, 3e3, 1e5, 2e6, 1.6e7, 1e8)
    if x > 1.3 * k + 30
]
FAR_BELOW = [(40.0, 1e-3), (1e3, 200.0), (1e3, 450.0), (1e4, 7.5e3), (1e7, 9.9e6), (1e7, 10.0)]


@pytest.mark.parametrize(
    "points",
    [
        *([(k, x) for x in POINTS] for k in SHAPES),
        *(around(k, WIDTHS) for k in (1.3, 8.0, 30.0, 199.0, 2.7e3, 8e3)),
        [(1e7, 1e7 + 1.0)],
        FAR,
        FAR_BELOW,
    ],
    ids=lambda points: f"{points[0][0]:g}",
)
def test_values_and_slopes(points: list[tuple[float, float]]) -> None:
    """Small and moderate shapes, the transition at x = k, and far on either side of it."""
    assert_accurate(points)


@pytest.mark.slow
@pytest.mark.parametrize("k", [1e5, 1e6, 1e7])
def test_transition_of_large_shapes_in_full(k: float) -> None:
    assert_accurate(around(k, WIDTHS[::3]))


@pytest.mark.slow
def test_random_points() -> None:
    draw = np.random.default_rng(0)
    k = 10 ** draw.uniform(-2, 4, 500)
    near = k + np.sqrt(k) * draw.normal(0, 8, k.size)
    x = np.where(near > 0, near, 10 ** draw.uniform(-12, 8, k.size))
    assert_accurate(list(zip(k.tolist(), x.tolist())))


def log_q(k: mpf, x: float) -> mpf:
    return mp.log(mp.gammainc(k, x, mp.inf, regularized=True))


def test_oracle_agrees_with_mpmath() -> None:
    """The oracle itself, against mpmath's own function where that is reliable."""
    points = [(0.01, 0.3), (0.5, 1e-9), (3.3, 5.0), (9.99, 80.0), (37.0, 30.0), (37.0, 90.0)]
    with mp.workdps(40):
        for k, x in points:
            assert abs(log_q(mpf(k), x) / oracle(k, x)["log"] - 1) < 1e-25
            slope = mp.diff(log_q, (mpf(k), mpf(x)), (1, 0))
            assert abs(slope / oracle(k, x)["log_k"] - 1) < 1e-12


def test_closed_forms() -> None:
    """Q(1, x) = e^-x and Q(1/2, x) = erfc(sqrt x)."""
    x = torch.logspace(-8, 6, 57, dtype=torch.float64)
    torch.testing.assert_close(log_gammaincc(1.0, x), -x, rtol=1e-13, atol=0.0)
    half = gammaincc(0.5, x)
    torch.testing.assert_close(half, torch.erfc(x.sqrt()), rtol=1e-12, atol=1e-300)


@BOTH
def test_gradcheck(function: Function) -> None:
    points = [(0.3, 0.2), (0.3, 2.0), (0.9, 0.6), (1.5, 0.4), (4.0, 4.0), (12.0, 9.0), (50.0, 70.0)]
    k, x = (t.requires_grad_() for t in pair_of(points))
    assert torch.autograd.gradcheck(function, (k, x))
    assert torch.autograd.gradcheck(lambda x: function(k[:, None].detach(), x), (x,))
    assert torch.autograd.gradcheck(lambda k: function(k[:, None], x.detach()), (k,))


@BOTH
def test_same_value_with_and_without_gradients_and_on_repetition(function: Function) -> None:
    k, x = log_grid()
    actual, repeated = (with_gradients(function, k, x) for _ in range(2))
    assert torch.equal(actual[0], function(k, x))
    assert all(map(torch.equal, actual, repeated))


@BOTH
def test_second_derivatives_raise_instead_of_being_wrong(function: Function) -> None:
    k, x = (t.requires_grad_() for t in pair_of([(2.0, 3.0)]))
    (by_k,) = torch.autograd.grad(function(k, x).sum(), k, create_graph=True)
    with pytest.raises(RuntimeError, match="first derivatives only"):
        (x.sum() + by_k.sum()).backward()


@BOTH
def test_function_transforms(function: Function) -> None:
    k, x = pair_of([(0.3, 0.2), (0.3, 2.0), (4.0, 5.0), (50.0, 40.0)])
    slopes = torch.func.vmap(torch.func.grad(function, argnums=(0, 1)))(k, x)
    torch.testing.assert_close(slopes, with_gradients(function, k, x)[1:], rtol=1e-13, atol=0)


def test_rises_in_shape_and_falls_in_x() -> None:
    k = torch.logspace(-2, 7, 181, dtype=torch.float64)
    x = torch.logspace(-3, 8, 221, dtype=torch.float64)
    table = log_gammaincc(k[:, None], x)
    # Rounding of log Q is relative, so equal neighbours are allowed where Q rounds to 1.
    assert (table.diff(dim=0) >= 0).all()
    assert (table.diff(dim=1) <= 0).all()
    assert (table.diff(dim=1) < 0).double().mean() > 0.5


@BOTH
def test_continuous_across_the_region_borders(function: Function) -> None:
    """Values and slopes on both sides of k = 1, x = 1/2, x = k and k = 10 differ by a rounding."""
    borders = [(1.0, 0.3), (0.4, 0.5), (1.0, 0.5), (6.0, 6.0), (10.0, 11.0)]
    results = []
    for shift in (-1e-13, 1e-13):
        points = []
        for k, x in borders:
            shifted_k = k * (1 + shift) if k in (1.0, 10.0) else k
            shifted_x = x * (1 + shift) if x in (0.5, 6.0) else x
            points.append((shifted_k, shifted_x))
        results.append(with_gradients(function, *pair_of(points)))
    for low, high in zip(*results):
        torch.testing.assert_close(low, high, rtol=3e-12, atol=0)


def test_edges() -> None:
    k = torch.tensor([0.01, 1.0, 1e7], dtype=torch.float64)
    zero, infinity = torch.zeros_like(k), torch.full_like(k, math.inf)
    for function, top in ((gammaincc, 1.0), (log_gammaincc, 0.0)):
        value, *slopes = with_gradients(function, k, zero)
        assert (value == top).all()
        assert all((slope == 0).all() for slope in slopes)
    assert (gammaincc(k, infinity) == 0).all()
    value, *slopes = with_gradients(log_gammaincc, k, infinity)
    assert (value == -math.inf).all()
    assert all(slope.isfinite().all() for slope in slopes)


def test_finite_on_a_grid_of_extremes() -> None:
    k, x = log_grid()
    q, q_k, q_x = with_gradients(gammaincc, k, x)
    assert ((q >= 0) & (q <= 1)).all()
    log_q, log_k, log_x = with_gradients(log_gammaincc, k, x)
    assert (log_q <= 0).all()
    assert (log_q.isfinite() | x.isinf()).all()
    for slope, sign in ((q_k, 1), (log_k, 1), (q_x, -1), (log_x, -1)):
        assert slope.isfinite().all()
        assert (sign * slope >= 0).all()


@pytest.mark.parametrize("dtype", [torch.float32, torch.float16, torch.bfloat16])
@BOTH
def test_low_precision_gradients_stay_finite(function: Function, dtype: torch.dtype) -> None:
    k, x = log_grid()
    inside = k.to(dtype).isfinite() & (k.to(dtype) > 0) & x.to(dtype).isfinite()
    value, by_k, by_x = with_gradients(function, k[inside].to(dtype), x[inside].to(dtype))
    assert value.dtype == torch.float32
    assert by_k.dtype == by_x.dtype == dtype
    for result in (value, by_k, by_x):
        assert result.isfinite().all()


@BOTH
def test_float32_is_computed_in_float64(function: Function) -> None:
    k, x = (t.float() for t in pair_of([*around(3e3, WIDTHS), *around(1e6, WIDTHS), (0.3, 0.01)]))
    for low, high in zip(
        with_gradients(function, k, x), with_gradients(function, k.double(), x.double())
    ):
        torch.testing.assert_close(low, high.float(), rtol=1e-6, atol=1e-38)


@BOTH
def test_bad_input_is_nan_in_its_place_only(function: Function) -> None:
    nan = math.nan
    k = torch.tensor([2.0, 0.0, -1.0, nan, 2.0, 2.0, -math.inf, 3.0], dtype=torch.float64)
    x = torch.tensor([3.0, 1.0, 1.0, 1.0, -1.0, nan, 1.0, 0.0], dtype=torch.float64)
    good = torch.tensor([True, False, False, False, False, False, False, True])
    value, by_k, by_x = with_gradients(function, k, x)
    assert torch.equal(value.isnan(), ~good)
    assert (by_k[~good] == 0).all()
    assert (by_x[~good] == 0).all()
    expected = with_gradients(function, k[good], x[good])
    for result, alone in zip((value, by_k, by_x), expected):
        torch.testing.assert_close(result[good], alone, rtol=1e-14, atol=0)


@BOTH
def test_broadcast_strides_and_empty(function: Function) -> None:
    draw = torch.Generator().manual_seed(0)
    base = (torch.rand(4, 6, dtype=torch.float64, generator=draw) + 0.1).requires_grad_()
    k = base[:, ::2].T  # (3, 4), not contiguous
    x = 3 * torch.rand(5, 1, 4, dtype=torch.float64, generator=draw)
    full = function(k, x)
    assert full.shape == (5, 3, 4)
    alone = torch.stack([function(k[i, j], x[b, 0, j]) for b, i, j in np.ndindex(5, 3, 4)])
    torch.testing.assert_close(full.reshape(-1), alone, rtol=1e-14, atol=0)
    (together,) = torch.autograd.grad(full.sum(), base)
    (one_by_one,) = torch.autograd.grad(alone.sum(), base)
    torch.testing.assert_close(together, one_by_one, rtol=1e-13, atol=0)
    empty = torch.ones(0, 3, dtype=torch.float64, requires_grad=True)
    function(empty, torch.ones(3)).sum().backward()
    assert empty.grad is not None
    assert empty.grad.shape == (0, 3)


def test_devices_are_not_mixed_silently() -> None:
    elsewhere = torch.ones(2, device="meta")
    with pytest.raises(ValueError, match="one device"):
        gammaincc(torch.ones(2), elsewhere)
    assert gammaincc(torch.tensor(2.0), elsewhere).device == elsewhere.device
