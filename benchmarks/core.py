"""Time and error of the kernels: scores of frames beside a bare ``torch.linalg.eigh``.

    python benchmarks/core.py [--frames 300] [--rounds 3]

The yardstick is what PS and PM cannot avoid: the inner products of the points of every frame and
the eigendecomposition of as many matrices of that size. Everything is timed in turn and the least
processor time of the rounds is taken. The error column is the largest deviation from the NumPy
oracles of the tests on three of the frames. Clearance and fidelity have banks of 20.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Callable
from functools import partial
from pathlib import Path

import numpy as np
import torch
from common import in_turn, table
from torch import Tensor

from torch_mapss import functional as F

TESTS = Path(__file__).resolve().parent.parent / "tests"

FEATURES = 1024


def frames(
    count: int, distortions: int = 68, sources: int = 2, features: int = FEATURES
) -> tuple[Tensor, Tensor, Tensor]:
    """Random clustered embeddings, float32: outputs, references, distortions."""
    generator = torch.Generator().manual_seed(0)

    def normal(*shape: int) -> Tensor:
        return torch.randn(count, *shape, features, generator=generator)

    centres = normal(sources, 1)
    strength = 0.5 * torch.rand(count, sources, distortions, 1, generator=generator)
    references = centres[:, :, 0] + 0.05 * normal(sources)
    outputs = references + 0.3 * normal(sources)
    return outputs, references, centres + strength * normal(sources, distortions)


def bare(points: Tensor) -> None:
    """Inner products and eigendecompositions, in float64."""
    for part in points.split(64):
        x = part.double()
        torch.linalg.eigh(x @ x.mT)


def forward(measure: Callable[..., Tensor], points: tuple[Tensor, ...]) -> None:
    with torch.no_grad():
        measure(*points)


def backward(measure: Callable[..., Tensor], points: tuple[Tensor, ...]) -> None:
    outputs = points[0].clone().requires_grad_()
    measure(outputs, *points[1:]).sum().backward()


def log_match(*points: Tensor) -> Tensor:
    return F.perceptual_match(*points, log=True)


def measures() -> dict[str, Callable[..., Tensor]]:
    return {
        "PS": F.perceptual_separation,
        "log PM": log_match,
        "clearance": F.clearance,
        "fidelity": F.fidelity,
    }


def error(name: str, points: tuple[Tensor, ...]) -> float:
    """Largest deviation from the oracle over three frames; of log PM relative to its size."""
    sys.path.insert(0, str(TESTS))
    import oracle
    import oracle_decomposition

    worst = 0.0
    for frame in range(3):
        one = [x[frame].double() for x in points]
        arrays = [x.numpy() for x in one]
        if name == "PS":
            known = oracle.separation(*arrays).ps
        elif name == "log PM":
            known = oracle.match(*arrays).log_pm
        else:
            pairs = [
                oracle_decomposition.pair(output, *arrays[1:], own)
                for own, output in enumerate(arrays[0])
            ]
            known = np.nan_to_num([getattr(pair, name) for pair in pairs])
        found = measures()[name](*one).numpy()
        size = abs(known).max() if name == "log PM" else 1.0
        worst = max(worst, float(abs(found - known).max()) / size)
    return worst


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--frames", type=int, default=300)
    parser.add_argument("--rounds", type=int, default=3)
    options = parser.parse_args()
    large, small = frames(options.frames), frames(options.frames, distortions=20)
    points = torch.cat([large[0], large[1], large[2].flatten(1, 2)], 1)
    runs: dict[str, Callable[[], None]] = {"bare eigh and products": partial(bare, points)}
    for name, measure in measures().items():
        given = small if name in ("clearance", "fidelity") else large
        runs[f"{name}, forward"] = partial(forward, measure, given)
        runs[f"{name}, forward and backward"] = partial(backward, measure, given)
    best = in_turn(runs, options.rounds)
    yard = best["bare eigh and products"]
    rows = []
    for name, seconds in best.items():
        measure = name.split(",")[0]
        given = small if measure in ("clearance", "fidelity") else large
        shown = f"{error(measure, given):.1e}" if measure in measures() else ""
        rows.append([name, f"{1e3 * seconds / options.frames:.2f}", f"{seconds / yard:.2f}", shown])
    print(f"{options.frames} frames of {FEATURES} features, 2 sources, N = {points.shape[1]}:\n")
    print(table(["step", "ms a frame", "ratio to bare", "error"], rows))


if __name__ == "__main__":
    main()
