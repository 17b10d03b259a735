"""Time and error of the core: manifold and scores beside a bare ``torch.linalg.eigh``.

    python benchmarks/core.py [--frames 500] [--repeats 3] [--kept]

The yardstick is what cannot be avoided: the inner products of the points of every frame and the
eigendecomposition of as many matrices of that size. Everything is timed in one run, alternating,
and the best of the repeats is taken. The error column compares with the NumPy oracle of the tests
on a few of the same frames. The last lines score many frames in a fresh process and print the
memory that scoring took beside the embeddings. With ``--kept`` instead: frames whose bank keeps the
distances among its points, beside the same frames without, in turn.
"""

from __future__ import annotations

import argparse
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from torch_mapss import functional as F
from torch_mapss.core import checks, frame_batches, linalg
from torch_mapss.core.scores import match_scores, separation_scores
from torch_mapss.core.settings import Settings

ROOT = Path(__file__).resolve().parent.parent


def frames(
    count: int, features: int, distortions: int = 68, sources: int = 2
) -> tuple[Tensor, Tensor, Tensor]:
    """Random clustered embeddings, float32: N = sources * (distortions + 2) points a frame."""
    generator = torch.Generator().manual_seed(0)

    def normal(*shape: int) -> Tensor:
        return torch.randn(count, *shape, generator=generator)

    centres = normal(sources, 1, features)
    strength = 0.5 * torch.rand(count, sources, distortions, 1, generator=generator)
    references = centres[:, :, 0] + 0.05 * normal(sources, features)
    outputs = references + 0.3 * normal(sources, features)
    return outputs, references, centres + strength * normal(sources, distortions, features)


def bare(points: Tensor, eigh: Callable[[Tensor], object] = torch.linalg.eigh) -> None:
    """The unavoidable part: inner products and eigendecomposition, in float64."""
    for part in points.split(64):
        x = part.double()
        eigh(x @ x.mT)


def forward(measure: Callable[..., Tensor], *embeddings: Tensor) -> None:
    with torch.no_grad():
        measure(*embeddings)


def backward(measure: Callable[..., Tensor], every: bool, *embeddings: Tensor) -> None:
    leaves = [x.clone().requires_grad_(every or i == 0) for i, x in enumerate(embeddings)]
    measure(*leaves).sum().backward()


def log_match(*embeddings: Tensor) -> Tensor:
    return F.perceptual_match(*embeddings, log=True)


def error(measure: Callable[..., Tensor], *embeddings: Tensor) -> float:
    """Largest deviation from the oracle over the first three frames."""
    sys.path.insert(0, str(ROOT / "tests"))
    import oracle

    worst = 0.0
    for frame in range(3):
        one = [x[frame].double().numpy() for x in embeddings]
        separated = measure is F.perceptual_separation
        known = oracle.separation(*one).ps if separated else oracle.match(*one).log_pm
        found = measure(*[x[frame].double() for x in embeddings]).numpy()
        size = 1.0 if separated else abs(known).max()
        worst = max(worst, float(abs(found - known).max()) / size)
    return worst


def timed(run: Callable[[], None]) -> float:
    start = time.perf_counter()
    run()
    return time.perf_counter() - start


def compare(count: int, repeats: int) -> None:
    embeddings = frames(count, 1024)
    points = torch.cat([embeddings[0], embeddings[1], embeddings[2].flatten(1, 2)], 1)
    ps, log_pm = F.perceptual_separation, log_match
    runs: dict[str, Callable[[], None]] = {
        "bare eigh + products": lambda: bare(points),
        "the same, eigh in threads": lambda: bare(points, linalg.eigh),
        "PS, forward": lambda: forward(ps, *embeddings),
        "log PM, forward": lambda: forward(log_pm, *embeddings),
        "PS, forward + backward to outputs": lambda: backward(ps, False, *embeddings),
        "PS, forward + backward to all": lambda: backward(ps, True, *embeddings),
        "log PM, forward + backward to outputs": lambda: backward(log_pm, False, *embeddings),
        "log PM, forward + backward to all": lambda: backward(log_pm, True, *embeddings),
    }
    best = dict.fromkeys(runs, float("inf"))
    for _ in range(repeats):
        for name, run in runs.items():
            best[name] = min(best[name], timed(run))
    yard = best["bare eigh + products"]
    print(
        f"{count} frames, N = {points.shape[1]}, M = 1024, 2 sources, "
        f"{torch.get_num_threads()} threads, torch {torch.__version__}"
    )
    print("| step | s | ratio to bare | error |\n|---|---|---|---|")
    for name, seconds in best.items():
        measure = ps if name.startswith("PS") else log_pm
        shown = f"{error(measure, *embeddings):.1e}" if "ward" in name else ""
        print(f"| {name} | {seconds:.2f} | {seconds / yard:.2f} | {shown} |")


KEPT_HEADING = (
    "| features | score | pass | ratio | middle half | error |",
    "|---|---|---|---|---|---|",
)


def kept(features: int, count: int = 27, repeats: int = 9) -> list[str]:
    """Rows: time with the distances among the bank's points kept over that without, in turn."""
    points = [x.double() for x in frames(count, features)]
    plain = checks.check_clouds(*points, None, None, None, 1)
    ready = plain._replace(known=frame_batches.known_distances(*points[1:], None, None))
    rows = []
    for name, kernel, place in (("PS", separation_scores, 0), ("log PM", match_scores, 1)):
        for backwards in (False, True):
            ratios, worst = [], 0.0
            for _ in range(repeats):
                found = []
                for clouds in (plain, ready):
                    start = time.perf_counter()
                    found.append(kept_pass(clouds, kernel, place, backwards))
                    found.append(time.perf_counter() - start)
                ratios.append(found[3] / found[1])
                for ours, theirs in zip(found[2], found[0]):
                    worst = max(worst, float((ours - theirs).abs().max() / theirs.abs().max()))
            low, middle, high = (float(q) for q in np.quantile(ratios, [0.25, 0.5, 0.75]))
            what = "forward + backward to outputs" if backwards else "forward"
            half = f"{low:.2f} to {high:.2f}"
            rows.append(f"| {features} | {name} | {what} | {middle:.2f} | {half} | {worst:.0e} |")
    return rows


def kept_pass(clouds: checks.Clouds, kernel: Any, place: int, backwards: bool) -> list[Tensor]:
    """The scores, and their slopes if asked for."""
    if not backwards:
        with torch.no_grad():
            return [frame_batches.score_frames(clouds, Settings(), kernel)[place]]
    leaf = clouds.outputs.clone().requires_grad_()
    score = frame_batches.score_frames(clouds._replace(outputs=leaf), Settings(), kernel)[place]
    (slope,) = torch.autograd.grad(score.sum(), leaf)
    return [score.detach(), slope]


def memory(count: int, features: int) -> None:
    """Peak memory of scoring beside that of the embeddings alone, each in a process of its own."""
    peaks = []
    for mode in ("hold", "score", "train"):
        command = [sys.executable, __file__, "--child", mode, str(count), str(features)]
        done = subprocess.run(command, capture_output=True, text=True, check=True)
        peaks.append(int(done.stdout))
    held = peaks[0]
    print(
        f"{count} frames, M = {features}: embeddings and program {held} MiB, scoring adds "
        f"{peaks[1] - held} MiB, forward + backward adds {peaks[2] - held} MiB"
    )


def child(mode: str, count: int, features: int) -> None:
    few = frames(100, features)  # repeated: making so many at once would need more than scoring
    embeddings = tuple(x.repeat(-(-count // 100), *[1] * (x.ndim - 1))[:count] for x in few)
    if mode == "score":
        forward(F.perceptual_separation, *embeddings)
    if mode == "train":
        leaf = embeddings[0].requires_grad_()
        F.perceptual_separation(leaf, *embeddings[1:]).sum().backward()
    print(peak_mib())


def peak_mib() -> int:
    """Peak resident memory of this process alone (``ru_maxrss`` begins at the parent's)."""
    for line in Path("/proc/self/status").read_text().splitlines():
        if line.startswith("VmHWM"):
            return int(line.split()[1]) // 1024
    raise RuntimeError("VmHWM is not to be read here; the memory lines need Linux.")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--frames", type=int, default=500)
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--kept", action="store_true", help="distances of the bank, kept or not")
    parser.add_argument("--memory-frames", type=int, default=10_000, help="of the memory line")
    parser.add_argument("--child", nargs=3, help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.child:
        mode, count, features = arguments.child
        child(mode, int(count), int(features))
        return
    if arguments.kept:
        print("\n".join(KEPT_HEADING))
        for features in (80, 240, 400, 1024):
            print("\n".join(kept(features)), flush=True)
        return
    compare(arguments.frames, arguments.repeats)
    memory(arguments.memory_frames, 64)


if __name__ == "__main__":
    main()
