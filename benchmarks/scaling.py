"""How time and memory grow with duration, sources, mixtures and systems, and one picture of it.

    python benchmarks/scaling.py [--axis seconds sources mixtures systems] [--encoder mel]
        [--frames-per-second 2] [--out benchmarks/results/scaling]

Every point is a fresh process with one thread. Time is processor seconds of preparing and scoring,
memory the peak above the start. An exponent is the slope of the log of the time over the log of the
size from the second point on: 1 is linear. Frames are drawn (a share of the duration), as the
graphs take the same time in every frame; ``--frames-per-second 50`` is all of ``mel``.
"""

from __future__ import annotations

import argparse
import json
import math
import subprocess
import sys
import time
from collections.abc import Sequence

import torch
from memory import resident, voices

from torch_mapss import MAPSS

AXES = {
    "seconds": (1, 5, 20, 60, 180, 600),
    "sources": (2, 3, 4, 6, 8),
    "mixtures": (1, 4, 16, 64),
    "systems": (1, 2, 8, 32),
}
BASE = {"seconds": 4, "sources": 2, "mixtures": 1, "systems": 1}
SEGMENT = 30.0


def measure(point: dict[str, int], encoder: str, rate: float) -> dict[str, float]:
    """Processor seconds and GiB above the start of one point."""
    torch.set_num_threads(1)
    references = voices(point["sources"], point["seconds"])
    batch = references.expand(point["mixtures"], -1, -1)
    systems = [batch + 0.1 * (k + 1) * batch.roll(1, 1) for k in range(point["systems"])]
    # Several systems of one short mixture share a pass as well: of segments of a second.
    segment = 1.5 if point["systems"] > 1 else SEGMENT
    mapss = MAPSS(encoder, segment=segment)
    mapss(references[:, :16000], references[:, :16000], frames=2)
    frames = max(1, round(rate * point["seconds"] * point["mixtures"]))
    before, start = resident("VmRSS"), time.process_time()
    bank = mapss.prepare(batch)
    prepared = time.process_time()
    mapss.score_systems(systems, bank, frames=frames)
    return {
        "prepare": prepared - start,
        "score": time.process_time() - prepared,
        "memory": resident("VmHWM") - before,
    }


def exponent(sizes: Sequence[float], values: Sequence[float]) -> float:
    """Slope of a line through the logs, from the second point on: the first is overhead."""
    x = [math.log(size) for size in sizes[1:]]
    y = [math.log(max(value, 1e-9)) for value in values[1:]]
    mx, my = sum(x) / len(x), sum(y) / len(y)
    spread = sum((a - mx) ** 2 for a in x)
    return sum((a - mx) * (b - my) for a, b in zip(x, y)) / spread if spread else math.nan


def run_axis(
    axis: str, sizes: Sequence[int], options: argparse.Namespace
) -> list[dict[str, float]]:
    """The points of one axis, each in a process of its own, as rows of a table."""
    found = []
    for size in sizes:
        point = json.dumps(BASE | {axis: size})
        command = [sys.executable, __file__, "--point", point, "--encoder", options.encoder]
        command += ["--frames-per-second", str(options.frames_per_second)]
        line = subprocess.run(command, check=True, capture_output=True, text=True).stdout
        found.append(json.loads(line.splitlines()[-1]))
        row = found[-1]
        total = row["prepare"] + row["score"]
        print(
            f"| {axis} | {size} | {row['prepare']:.1f} | {row['score']:.1f} | {total:.1f} "
            f"| {row['memory']:.2f} |",
            flush=True,
        )
    total = [row["prepare"] + row["score"] for row in found]
    if len(found) > 2:
        slopes = exponent(sizes, total), exponent(sizes, [row["memory"] for row in found])
        print(f"| {axis} | exponent | | | {slopes[0]:.2f} | {slopes[1]:.2f} |", flush=True)
    return found


def draw(results: dict[str, tuple[Sequence[int], list[dict[str, float]]]], path: str) -> None:
    """Time and memory over size, a panel for each axis, both scales logarithmic."""
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot

    figure, panels = pyplot.subplots(
        2, len(results), figsize=(3.2 * len(results), 5.5), squeeze=False, layout="constrained"
    )
    for (axis, (sizes, rows)), time_panel, memory_panel in zip(results.items(), *panels):
        time_panel.loglog(sizes, [r["prepare"] for r in rows], "o-", label="prepare")
        time_panel.loglog(sizes, [r["score"] for r in rows], "s-", label="score")
        memory_panel.loglog(sizes, [max(r["memory"], 1e-3) for r in rows], "o-")
        memory_panel.set_xlabel(axis)
        for panel in (time_panel, memory_panel):
            panel.grid(True, which="both", alpha=0.3)
    panels[0][0].set_ylabel("processor seconds")
    panels[0][0].legend()
    panels[1][0].set_ylabel("peak memory above the start, GiB")
    figure.savefig(path, dpi=100)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--axis", nargs="+", choices=tuple(AXES), default=list(AXES))
    parser.add_argument("--most", type=int, help="leave larger sizes out")
    parser.add_argument("--encoder", default="mel")
    parser.add_argument("--frames-per-second", type=float, default=2.0)
    parser.add_argument("--out", help="where to draw the picture: PATH.png")
    parser.add_argument("--point", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.point:
        point = json.loads(options.point)
        print(json.dumps(measure(point, options.encoder, options.frames_per_second)))
        return
    print("| axis | size | prepare s | score s | both s | peak GiB |\n" + "|---" * 6 + "|")
    results = {}
    for axis in options.axis:
        sizes = [size for size in AXES[axis] if options.most is None or size <= options.most]
        results[axis] = (sizes, run_axis(axis, sizes, options))
    if options.out:
        draw(results, f"{options.out}.png")


if __name__ == "__main__":
    main()
