"""Error and time of the incomplete gamma tail, compared with torch and SciPy.

    python benchmarks/special_accuracy.py [--points 120]

Draws k in [1e-2, 1e6] and x on both sides of it, compares with arbitrary precision (the oracle of
``tests/core/test_gamma.py``) and prints the largest relative errors by ranges of k. Points where
Q < 1e-300 are left out. One thread.
"""

from __future__ import annotations

import argparse
import sys
from itertools import pairwise
from pathlib import Path

import numpy as np
import scipy.special
import torch
from common import least_time, table
from torch import Tensor

from torch_mapss.core.gamma import gammaincc, log_gammaincc

sys.path.insert(0, str(Path(__file__).parents[1] / "tests" / "core"))
from test_gamma import oracle, with_gradients

DECADES = (-2, 0, 2, 4, 5, 6)
COLUMNS = ("value", "value_k", "value_x", "log", "log_k", "log_x")


def draw(low: float, high: float, count: int) -> list[tuple[float, float]]:
    """Pairs (k, x): half of x within a few sqrt(k) of k, half between 1e-6 k and 3 k + 30."""
    random = np.random.default_rng(int(100 + low))
    k = 10 ** random.uniform(low, high, count)
    near = np.abs(k + np.sqrt(k) * random.normal(0, 6, count))
    spread = (3 * k + 30) * 10 ** random.uniform(-6, 0, count)
    x = np.where(random.random(count) < 0.5, near, np.minimum(spread, k + 30 * np.sqrt(k) + 500))
    return [pair for pair in zip(k.tolist(), x.tolist()) if oracle(*pair)["value"] > 1e-300]


def worst(values: np.ndarray, points: list[tuple[float, float]], name: str) -> tuple[float, int]:
    """Largest relative error, and the index of its point."""
    errors = []
    for value, (k, x) in zip(values, points):
        expected = oracle(k, x)[name]
        is_representable = abs(expected) > 1e-300
        errors.append(float(abs(float(value) / expected - 1)) if is_representable else 0.0)
    index = int(np.argmax(errors))
    return errors[index], index


def print_accuracy(per_range: int) -> None:
    """Largest relative errors of the tail, of its log, and of their derivatives."""
    rows = []
    for low, high in pairwise(DECADES):
        points = draw(low, high, per_range if high < 6 else max(per_range // 4, 2))
        k, x = torch.tensor(points, dtype=torch.float64).unbind(-1)
        values = (*with_gradients(gammaincc, k, x), *with_gradients(log_gammaincc, k, x))
        errors = [worst(v.numpy(), points, name)[0] for v, name in zip(values, COLUMNS)]
        by_torch, index = worst(torch.special.gammaincc(k, x).numpy(), points, "value")
        by_scipy, _ = worst(scipy.special.gammaincc(k.numpy(), x.numpy()), points, "value")
        cells = [f"{e:.1e}" for e in (*errors, by_torch, by_scipy)]
        worst_point = f"{points[index][0]:.6g}, {points[index][1]:.6g}"
        rows.append([f"1e{low:+d} to 1e{high:+d}", *cells, worst_point])
    print(table(["k", *COLUMNS, "torch", "scipy", "k, x of torch's worst"], rows))


def both_slopes(k: Tensor, x: Tensor) -> None:
    """The log of the tail, and its derivatives by k and by x."""
    log_gammaincc(k.requires_grad_(), x.requires_grad_()).sum().backward()


def print_speed() -> None:
    """Seconds for some numbers of elements."""
    rows = []
    for count in (1_000, 10_000, 100_000):
        k, x = (200 * torch.rand(2, count, dtype=torch.float64)).unbind(0)
        functions = (
            lambda k=k, x=x: torch.special.gammaincc(k, x),
            lambda k=k, x=x: gammaincc(k, x),
            lambda k=k, x=x: both_slopes(k.detach(), x.detach()),
        )
        rows.append([count, *(f"{least_time(function, 7):.4f}" for function in functions)])
    print("\n" + table(["elements", "torch s", "ours s", "log Q and both slopes s"], rows))


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--points", type=int, default=120, help="drawn for each row of the table")
    options = parser.parse_args()
    torch.set_num_threads(1)
    print_accuracy(options.points)
    print_speed()


if __name__ == "__main__":
    main()
