"""Incomplete gamma tail against arbitrary precision, SciPy, finite differences and its laws."""

from __future__ import annotations

import math
from collections.abc import Callable
from functools import cache

import pytest
import torch
from mpmath import mp, mpf
from torch import Tensor

from torch_mapss.special import gammaincc, log_gammaincc

FLOOR = 1e-300
Derivative = Callable[[Tensor, Tensor], Tensor]


# ---- Oracle: power series or continued fraction in arbitrary precision, none of it quadrature ----


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
        q = mp.exp(log_q)
        return {
            "value": q,
            "value_k": q * log_q_k,
            "value_x": q * log_x_slope,
            "log": log_q,
            "log_k": log_q_k,
            "log_x": log_x_slope,
        }


def computed(k: float, x: float) -> dict[str, float]:
    """The same six numbers from the library, through autograd."""
    found: dict[str, float] = {}
    for name, function in (("value", gammaincc), ("log", log_gammaincc)):
        pair = torch.tensor([k, x], dtype=torch.float64, requires_grad=True)
        result = function(pair[0], pair[1])
        (grad,) = torch.autograd.grad(result, pair)
        found |= {
            name: float(result.detach()),
            f"{name}_k": float(grad[0]),
            f"{name}_x": float(grad[1]),
        }
    return found


def assert_close(k: float, x: float, tolerance: float = 1e-10) -> None:
    found = computed(k, x)
    for name, expected in oracle(k, x).items():
        error = abs(mpf(found[name]) - expected)
        assert error <= max(tolerance * abs(expected), FLOOR), (name, k, x, found[name], expected)


def shifted(k: float, widths: list[float]) -> list[tuple[float, float]]:
    """Points x = k + c sqrt(k)."""
    return [(k, k + c * math.sqrt(k)) for c in widths if k + c * math.sqrt(k) > 0]


WIDTHS = [-30.0, -9.0, -2.0, -0.3, -1e-5, 0.0, 1e-7, 0.1, 1.0, 5.0, 20.0, 36.0]
SHAPES = [0.01, 0.1, 0.37, 0.5, 0.97, 1.0, 1.02, 1.5, 2.0, 3.3, 9.99, 10.0, 10.01, 37.0, 250.0, 1e3]
POINTS = [
    1e-300,
    1e-30,
    1e-9,
    1e-3,
    0.1,
    0.499,
    0.5,
    0.56,
    0.999,
    1.0,
    1.7,
    5.0,
    12.0,
    300.0,
    720.0,
]
TRANSITION = [pair for k in (1.3, 8.0, 30.0, 199.0, 2.7e3, 1e5) for pair in shifted(k, WIDTHS)]
TRANSITION_LARGE = [
    (1e6, 1e6 - 4e3),
    (1e6, 1e6 + 1e3),
    (1e7, 1e7 + 1.0),
    pytest.param(1e7, 1e7 - 1e4, marks=pytest.mark.slow),
    pytest.param(1e7, 1e7 + 2e4, marks=pytest.mark.slow),
]
FAR = [
    (k, x)
    for k in (0.01, 0.8, 1.0, 7.0, 200.0, 1e4, 1e6, 1e7)
    for x in (60.0, 750.0, 3e3, 1e5, 2e6, 1.6e7, 1e8)
    if x > 1.3 * k + 30
]
FAR_BELOW = [(40.0, 1e-3), (1e3, 200.0), (1e3, 450.0), (1e4, 7.5e3), (1e7, 9.9e6), (1e7, 10.0)]


@pytest.mark.parametrize("k", SHAPES)
def test_small_and_moderate_shapes(k: float) -> None:
    for x in POINTS:
        assert_close(k, x)


@pytest.mark.parametrize(("k", "x"), TRANSITION + FAR + FAR_BELOW)
def test_transition_and_far_tails(k: float, x: float) -> None:
    assert_close(k, x)


@pytest.mark.parametrize(("k", "x"), TRANSITION_LARGE)
def test_transition_at_the_largest_shapes(k: float, x: float) -> None:
    assert_close(k, x)
