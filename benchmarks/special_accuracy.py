"""Error and time of the incomplete gamma tail, beside torch and SciPy.

    python benchmarks/special_accuracy.py [--points 120]

Draws k in [1e-2, 1e6] and x on both sides of it, compares with arbitrary precision (the oracle of
``tests/core/test_gamma.py``) and prints the largest relative errors per decade pair of k. Points
where Q < 1e-300 are left out. Single thread.
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
    """Half the points within a few sqrt(k) of k, half anywhere between 1e-6 k and 3 k + 30."""
    random = np.random.default_rng(int(100 + low))
    k = 10 ** random.uniform(low, high, count)
    near = np.abs(k + np.sqrt(k) * random.normal(0, 6, count))
    spread = (3 * k + 30) * 10 ** random.uniform(-6, 0, count)
    x = np.where(random.random(count) < 0.5, near, np.minimum(spread, k + 30 * np.sqrt(k) + 500))
    return [pair for pair in zip(k.tolist(), x.tolist()) if oracle(*pair)["value"] > 1e-300]


def worst(found: np.ndarray, points: list[tuple[float, float]], name: str) -> tuple[float, int]:
    """Largest relative error, and at which point."""
    errors = [
        float(abs(float(f) / oracle(*p)[name] - 1)) if abs(oracle(*p)[name]) > 1e-300 else 0.0
        for f, p in zip(found, points)
    ]
    place = int(np.argmax(errors))
    return errors[place], place


def accuracy(per_decade: int) -> None:
    rows = []
    for low, high in pairwise(DECADES):
        points = draw(low, high, per_decade if high < 6 else max(per_decade // 4, 2))
        k, x = torch.tensor(points, dtype=torch.float64).unbind(-1)
        found = (*with_gradients(gammaincc, k, x), *with_gradients(log_gammaincc, k, x))
        errors = [worst(f.numpy(), points, n)[0] for f, n in zip(found, COLUMNS)]
        by_torch, at = worst(torch.special.gammaincc(k, x).numpy(), points, "value")
        by_scipy, _ = worst(scipy.special.gammaincc(k.numpy(), x.numpy()), points, "value")
        cells = [f"{e:.1e}" for e in (*errors, by_torch, by_scipy)]
        where = f"{points[at][0]:.6g}, {points[at][1]:.6g}"
        rows.append([f"1e{low:+d} to 1e{high:+d}", *cells, where])
    print(table(["k", *COLUMNS, "torch", "scipy", "k, x of torch's worst"], rows))


def both_slopes(k: Tensor, x: Tensor) -> None:
    log_gammaincc(k.requires_grad_(), x.requires_grad_()).sum().backward()


def speed() -> None:
    rows = []
    for count in (1_000, 10_000, 100_000):
        k, x = (200 * torch.rand(2, count, dtype=torch.float64)).unbind(0)
        works = (
            lambda k=k, x=x: torch.special.gammaincc(k, x),
            lambda k=k, x=x: gammaincc(k, x),
            lambda k=k, x=x: both_slopes(k.detach(), x.detach()),
        )
        rows.append([count, *(f"{least_time(work, 7):.4f}" for work in works)])
    print("\n" + table(["elements", "torch s", "ours s", "log Q and both slopes s"], rows))


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--points", type=int, default=120, help="drawn of each row of the table")
    options = parser.parse_args()
    torch.set_num_threads(1)
    accuracy(options.points)
    speed()


if __name__ == "__main__":
    main()
