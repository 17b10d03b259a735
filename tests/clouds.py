"""Embeddings of a few sources and numerical derivatives, for the tests of core and bounds.

``released`` is ``benchmarks/golden_reference.py``, which made the numbers of ``golden(...)``
with the released implementation.
"""

from __future__ import annotations

import importlib
import sys
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

import numpy as np
import torch
from torch import Tensor

HERE = Path(__file__).parent

sys.path.append(str(HERE.parent / "benchmarks"))
released = importlib.import_module("golden_reference")


def golden(bits: int) -> Mapping[str, np.ndarray]:
    """Scores and bounds of the released implementation, computed in so many bits."""
    return np.load(HERE / "golden" / f"golden_float{bits}.npz")


def clouds(
    *lead: int,
    sources: int = 2,
    distortions: int = 12,
    features: int = 8,
    seed: int = 0,
    spread: float = 0.5,
    away: float = 0.3,
) -> tuple[Tensor, Tensor, Tensor]:
    """Outputs (..., S, M), references (..., S, M), distortions (..., S, P, M) in float64.

    Clusters with unit-distance centres; distortions of mixed strength around their reference,
    outputs near it.
    """
    generator = torch.Generator().manual_seed(seed)

    def normal(*shape: int) -> Tensor:
        return torch.randn(*lead, *shape, generator=generator, dtype=torch.float64)

    centres = normal(sources, 1, features)
    references = centres[..., 0, :] + 0.05 * normal(sources, features)
    strength = spread * (0.3 + normal(sources, distortions, 1).abs())
    distorted = centres + strength * normal(sources, distortions, features)
    return references + away * normal(sources, features), references, distorted


def numerical_derivative(
    f: Callable[..., Tensor], arguments: Sequence[Tensor], direction: Sequence[Tensor], h: float
) -> Tensor:
    """Central difference of f along a direction, two steps extrapolated to order h^4."""

    def difference(step: float) -> Tensor:
        ahead = f(*[a + step * d for a, d in zip(arguments, direction)])
        back = f(*[a - step * d for a, d in zip(arguments, direction)])
        return (ahead - back) / (2.0 * step)

    return (4.0 * difference(h / 2.0) - difference(h)) / 3.0


def assert_derivative(
    f: Callable[..., Tensor],
    arguments: Sequence[Tensor],
    direction: Sequence[Tensor],
    *,
    rtol: float = 1e-5,
    atol: float = 1e-8,
) -> None:
    """Autograd of the scalar f along a direction equals its central difference.

    At one of three steps: a long one may cross a kink (the median changes its pair, d its value),
    a short one drowns in rounding where f is large.
    """
    leaves = [a.detach().clone().requires_grad_() for a in arguments]
    gradients = torch.autograd.grad(f(*leaves), leaves, allow_unused=True)
    exact = sum(float((g * d).sum()) for g, d in zip(gradients, direction) if g is not None)
    actual = []
    for h in (2e-6, 1e-5, 1e-4):
        with torch.no_grad():
            actual.append(float(numerical_derivative(f, arguments, direction, h)))
        if abs(actual[-1] - exact) <= atol + rtol * abs(actual[-1]):
            return
    raise AssertionError(f"derivative {exact}, differences {actual}")


def random_direction(arguments: Sequence[Tensor], seed: int) -> list[Tensor]:
    generator = torch.Generator().manual_seed(seed)
    return [torch.randn(a.shape, generator=generator, dtype=a.dtype) for a in arguments]
