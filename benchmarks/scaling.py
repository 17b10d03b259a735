"""How time and memory grow with duration, sources and systems.

    python benchmarks/scaling.py [--axis seconds sources systems] [--sizes 1 5 20] [--encoder mel]
        [--measures separation match]

Every point is a fresh process with one thread. Times are processor seconds of preparing and of
scoring all frames; memory is the peak without that of interpreter, torch and waveforms. Clips
longer than 30 s are scored in segments. An exponent is the slope of the log of the time over the
log of the size, from the second point on: 1 is linear. ``--encoder 1024`` stands for a large
transformer: 1024 random features a frame. ``--picture FILE`` draws the points.
"""

from __future__ import annotations

import argparse
import json
import math
import statistics
import subprocess
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch
from common import RATE, forget_peak, leaky, resident, table, voices

from torch_mapss import MAPSS

AXES = {"seconds": (1, 5, 20, 60, 180), "sources": (2, 3, 4, 6), "systems": (1, 2, 8)}
BASE = {"seconds": 4, "sources": 2, "systems": 1}
SEGMENT = 30.0


class Projection:
    """1024 random features of every 25 ms, 50 times a second."""

    sample_rate, hop, receptive_field, feature_size = RATE, 320, 400, 1024

    def __init__(self) -> None:
        generator = torch.Generator().manual_seed(0)
        self.weight = torch.randn(400, 1024, generator=generator) / 20

    def __call__(self, waves: torch.Tensor) -> torch.Tensor:
        return torch.tanh(waves.unfold(-1, 400, 320) @ self.weight)


def measure(point: dict[str, int], encoder: str, measures: Sequence[str]) -> dict[str, float]:
    """Processor seconds, and GiB above those before the run, of one point."""
    torch.set_num_threads(1)
    references = voices(point["seconds"], point["sources"])
    systems = [leaky(references, 0.1 * (k + 1)) for k in range(point["systems"])]
    mapss = MAPSS(
        Projection() if encoder == "1024" else encoder, segment=SEGMENT, measures=measures
    )
    mapss(references[:, :RATE], references[:, :RATE], frames=2)  # imports and caches are filled
    forget_peak()
    memory_before, began = resident("VmRSS"), time.process_time()
    bank = mapss.prepare(references)
    prepared = time.process_time()
    mapss.score_systems(systems, bank)
    return {
        "prepare": prepared - began,
        "score": time.process_time() - prepared,
        "memory": resident("VmHWM") - memory_before,
    }


def exponent(sizes: Sequence[float], values: Sequence[float]) -> float:
    """Slope of a line through the logs, from the second point on: the first is mostly overhead."""
    x = [math.log(size) for size in sizes[1:]]
    y = [math.log(max(value, 1e-9)) for value in values[1:]]
    return statistics.linear_regression(x, y).slope if len(x) > 1 else math.nan


def run_axis(axis: str, sizes: Sequence[int], options: argparse.Namespace) -> dict[int, Any]:
    """Size -> measured values of the points of one axis, each in its own process."""
    points = {}
    for size in sizes:
        point = json.dumps(BASE | {axis: size})
        command = [sys.executable, __file__, "--point", point, "--encoder", options.encoder]
        command += ["--measures", *options.measures]
        line = subprocess.run(command, check=True, stdout=subprocess.PIPE, text=True).stdout
        points[size] = json.loads(line.splitlines()[-1])
    return points


def show(axis: str, points: dict[int, dict[str, float]], options: argparse.Namespace) -> None:
    """Print the table of one axis."""
    fixed = ", ".join(f"{BASE[name]} {name}" for name in BASE if name != axis)
    rows = []
    for size, values in points.items():
        cells = [f"{values[name]:.2f}" for name in ("prepare", "score", "memory")]
        rows.append([size, *cells])
    if len(points) > 2:
        slopes = []
        for name in ("prepare", "score"):
            seconds = [values[name] for values in points.values()]
            slopes.append(f"{exponent(list(points), seconds):.2f}")
        rows.append(["exponent", *slopes, ""])
    print(f"Over {axis} ({fixed}; {', '.join(options.measures)}; encoder {options.encoder}):\n")
    print(table([axis, "prepare s", "score s", "peak GiB"], rows) + "\n", flush=True)


def draw(points_by_axis: dict[str, dict[int, dict[str, float]]], path: Path) -> None:
    """Time and memory over size, a column of panels for each axis, all scales logarithmic."""
    from matplotlib.figure import Figure

    columns = len(points_by_axis)
    figure = Figure(figsize=(3.2 * columns, 5.5), layout="constrained")
    panels = figure.subplots(2, columns, sharex="col", squeeze=False)
    for (axis, points), upper, lower in zip(points_by_axis.items(), *panels):
        sizes = list(points)
        for name, label in (("prepare", "preparing"), ("score", "scoring")):
            upper.loglog(sizes, [v[name] for v in points.values()], "o-", label=label)
        lower.loglog(sizes, [v["memory"] for v in points.values()], "o-", color="tab:purple")
        upper.legend(fontsize="x-small")
        upper.set_ylabel("processor seconds")
        lower.set_ylabel("peak memory, GiB")
        lower.set_xlabel(axis)
    figure.savefig(path, dpi=90)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument(
        "--axis", nargs="*", choices=tuple(AXES), default=list(AXES), help="what grows"
    )
    parser.add_argument("--sizes", type=int, nargs="+", help="points on the axis, in its unit")
    parser.add_argument("--encoder", default="mel", help="name of an encoder, or 1024")
    parser.add_argument("--measures", nargs="+", default=["separation", "match"], help="to score")
    parser.add_argument("--picture", type=Path, help="file to draw the points into")
    parser.add_argument("--point", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.point:
        print(json.dumps(measure(json.loads(options.point), options.encoder, options.measures)))
        return
    points_by_axis = {}
    for axis in options.axis:
        points_by_axis[axis] = run_axis(axis, options.sizes or AXES[axis], options)
        show(axis, points_by_axis[axis], options)
    if options.picture is not None:
        draw(points_by_axis, options.picture)


if __name__ == "__main__":
    main()
