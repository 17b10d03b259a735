"""Time and error of the kernels: scores of frames, relative to a bare ``torch.linalg.eigh``.

    python benchmarks/core.py [--frames 300] [--rounds 3]

The yardstick is what PS and PM cannot avoid: the inner products of the points of every frame, and
the eigendecomposition of as many matrices of that size. All steps are timed in turn; the minimum
processor time of the rounds counts. The error is the largest deviation from the NumPy oracles of
the tests over three frames. Clearance and fidelity have banks of 20 distortions.
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
    """Inner products and eigendecompositions of points (F, N, M), in float64."""
    for frames_of_chunk in points.split(64):
        x = frames_of_chunk.double()
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
    """Largest deviation from the oracle over three frames; for log PM relative to its size."""
    sys.path.insert(0, str(TESTS))
    import oracle
    import oracle_decomposition

    worst = 0.0
    for frame in range(3):
        points_of_frame = [x[frame].double() for x in points]
        outputs, references, distortions = arrays = [x.numpy() for x in points_of_frame]
        if name == "PS":
            expected = oracle.separation(*arrays).ps
        elif name == "log PM":
            expected = oracle.match(*arrays).log_pm
        else:
            pairs = [
                oracle_decomposition.pair(output, references, distortions, source)
                for source, output in enumerate(outputs)
            ]
            expected = np.nan_to_num([getattr(pair, name) for pair in pairs])
        scores = measures()[name](*points_of_frame).numpy()
        size = abs(expected).max() if name == "log PM" else 1.0
        worst = max(worst, float(abs(scores - expected).max()) / size)
    return worst


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--frames", type=int, default=300, help="frames of each run")
    parser.add_argument("--rounds", type=int, default=3, help="of which the fastest counts")
    options = parser.parse_args()
    large, small = frames(options.frames), frames(options.frames, distortions=20)
    points = torch.cat([large[0], large[1], large[2].flatten(1, 2)], 1)
    runs: dict[str, Callable[[], None]] = {"bare eigh and products": partial(bare, points)}
    points_of_measure = {"PS": large, "log PM": large, "clearance": small, "fidelity": small}
    for name, measure in measures().items():
        runs[f"{name}, forward"] = partial(forward, measure, points_of_measure[name])
        runs[f"{name}, forward and backward"] = partial(backward, measure, points_of_measure[name])
    best = in_turn(runs, options.rounds)
    bare_seconds = best["bare eigh and products"]
    rows = []
    for step, seconds in best.items():
        name = step.split(",")[0]
        deviation = ""
        if name in points_of_measure:
            deviation = f"{error(name, points_of_measure[name]):.1e}"
        milliseconds = f"{1e3 * seconds / options.frames:.2f}"
        rows.append([step, milliseconds, f"{seconds / bare_seconds:.2f}", deviation])
    print(f"{options.frames} frames of {FEATURES} features, 2 sources, N = {points.shape[1]}:\n")
    print(table(["step", "ms a frame", "ratio to bare", "error"], rows))


if __name__ == "__main__":
    main()
