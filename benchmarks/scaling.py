"""How time and memory grow with duration, sources, mixtures and systems, and one picture of it.

    python benchmarks/scaling.py [--axis seconds sources mixtures systems] [--encoder mel]
        [--frames-per-second 50] [--small]

Every point is a fresh process with one thread. Time is processor seconds: of preparing, of scoring,
and of the eigenproblems in it; memory is the peak above the start. ``mel`` has 50 frames a second;
fewer are drawn at random. An exponent is the slope of the log of the time over the log of the size,
from the second point on: 1 is linear.

Each axis is a section of ``results/scaling.md`` and may be run by itself, as may some of its sizes;
the picture ``results/scaling.png`` shows all that the page holds. ``--small`` takes banks of twelve
distortions: a section of its own, to see ten minutes of audio in one.
"""

from __future__ import annotations

import argparse
import json
import math
import subprocess
import sys
import time
from collections.abc import Sequence
from typing import Any

import torch
from memory import forget_peak, resident, voices
from scaling_page import PAGE, kept_rows, machine, put_rows

from torch_mapss import MAPSS, DistortionBank

AXES = {
    "seconds": (1, 5, 20, 60, 180, 600),
    "sources": (2, 3, 4, 6, 8),
    "mixtures": (1, 4, 16, 64),
    "systems": (1, 2, 8, 32),
}
BASE = {"seconds": 4, "sources": 2, "mixtures": 1, "systems": 1}
SEGMENT = 30.0
SMALL = 12  # distortions
SHORT_SEGMENT = 1.5  # of the axis of systems: several systems share a pass over segments
COLUMNS = ["size", "prepare s", "score s", "of it eigh s", "both s", "peak GiB"]
INTRO = """## Time and memory over {axis} (`scaling.py --axis {axis}{option}`)

{point}, {banks}; encoder `{encoder}`, {frames} scored frames a second. {segments} Processor seconds
on {machine}."""


class Stopwatch:
    """Processor seconds spent in ``torch.linalg.eigh``."""

    def __init__(self) -> None:
        self.seconds, self._eigh = 0.0, torch.linalg.eigh
        torch.linalg.eigh = self

    def __call__(self, *given: Any, **options: Any) -> Any:
        start = time.process_time()
        found = self._eigh(*given, **options)
        self.seconds += time.process_time() - start
        return found


def measure(
    point: dict[str, int], encoder: str, rate: float, small: bool = False
) -> dict[str, float]:
    """Processor seconds and GiB above the start of one point."""
    torch.set_num_threads(1)
    references = voices(point["sources"], point["seconds"])
    batch = references.repeat(point["mixtures"], 1, 1)
    systems = [batch + 0.1 * (k + 1) * batch.roll(1, 1) for k in range(point["systems"])]
    banks = {
        f"{kind}_bank": DistortionBank(kind, size=SMALL)
        for kind in ("separation", "match")
        if small
    }
    mapss = MAPSS(encoder, segment=segment_of(point), **banks)
    mapss(references[:, :16000], references[:, :16000], frames=2)
    frames = max(1, round(rate * point["seconds"] * point["mixtures"]))
    eigh = Stopwatch()
    forget_peak()
    before, start = resident("VmRSS"), time.process_time()
    bank = mapss.prepare(batch)
    prepared = time.process_time()
    mapss.score_systems(systems, bank, frames=frames)
    return {
        "prepare": prepared - start,
        "score": time.process_time() - prepared,
        "eigh": eigh.seconds,
        "memory": resident("VmHWM") - before,
    }


def segment_of(point: dict[str, int]) -> float:
    return SHORT_SEGMENT if point.get("short") else SEGMENT


def exponent(sizes: Sequence[float], values: Sequence[float]) -> float:
    """Slope of a line through the logs, from the second point on: the first is overhead."""
    x = [math.log(size) for size in sizes[1:]]
    y = [math.log(max(value, 1e-9)) for value in values[1:]]
    mx, my = sum(x) / len(x), sum(y) / len(y)
    spread = sum((a - mx) ** 2 for a in x)
    return sum((a - mx) * (b - my) for a, b in zip(x, y)) / spread if spread else math.nan


def run_axis(axis: str, sizes: Sequence[int], options: argparse.Namespace) -> None:
    """The points of one axis, each in a process of its own, into the axis's section."""
    rate, section = options.frames_per_second, axis + options.small * "-small"
    base = BASE | ({"short": 1} if axis == "systems" else {})
    others = [f"{BASE[name]} {name}" for name in BASE if name != axis]
    intro = INTRO.format(
        axis=axis,
        option=" --small" if options.small else "",
        banks=f"banks of {SMALL}" if options.small else "full banks",
        point=", ".join(others).replace("1 mixtures", "1 mixture").replace("1 systems", "1 system"),
        encoder=options.encoder,
        frames=f"{rate:g}",
        segments=f"Longer clips in segments of {segment_of(base):g} s.",
        machine=machine(),
    )
    for size in sizes:
        point = json.dumps(base | {axis: size})
        command = [sys.executable, __file__, "--point", point, "--encoder", options.encoder]
        command += ["--frames-per-second", str(rate), *(["--small"] if options.small else [])]
        line = subprocess.run(command, check=True, stdout=subprocess.PIPE, text=True).stdout
        found = json.loads(line.splitlines()[-1])
        row = [str(size), *(f"{found[name]:.2f}" for name in ("prepare", "score", "eigh"))]
        row += [f"{found['prepare'] + found['score']:.2f}", f"{found['memory']:.3f}"]
        rows = points(section)
        rows = sorted([r for r in rows if r[0] != row[0]] + [row], key=lambda r: float(r[0]))
        put_rows(section, intro, COLUMNS, rows + slopes(rows, axis == "seconds"), keys=1)


def points(section: str) -> list[list[str]]:
    """The rows of a section's table that are no exponents."""
    return [row for row in kept_rows(section) if not row[0].startswith("exponent")]


def slopes(rows: list[list[str]], lengths: bool) -> list[list[str]]:
    """The rows of exponents under a table; of lengths, those in segments apart as well.

    Copies of a clip in segments are made twice, for the levels and for the scores: a step between
    the longest clip that is whole and the shortest that is not, which is no growth.
    """
    columns = [[float(cell) for cell in column] for column in zip(*rows, strict=True)]
    found = {"exponent": columns}
    if lengths:
        place = sum(size <= SEGMENT for size in columns[0])
        first = max(place - 1, 0)  # which `exponent` leaves out
        found["exponent, in segments"] = [column[first:] for column in columns]
    return [
        [name, *(f"{exponent(given[0], column):.2f}" for column in given[1:])]
        for name, given in found.items()
        if len(given[0]) > 2
    ]


def draw() -> None:
    """Time and memory over size, a panel for each axis of the page, both scales logarithmic."""
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot

    sections = [axis + end for axis in AXES for end in ("", "-small")]
    stored = {name: points(name) for name in sections}
    stored = {axis: rows for axis, rows in stored.items() if rows}
    figure, panels = pyplot.subplots(
        2,
        len(stored),
        figsize=(3.0 * len(stored), 5.5),
        sharex="col",
        sharey="row",
        squeeze=False,
        layout="constrained",
    )
    for (axis, rows), time_panel, memory_panel in zip(stored.items(), *panels, strict=True):
        size, prepare, score, eigh, both, memory = (
            [float(cell) for cell in column] for column in zip(*rows, strict=True)
        )
        time_panel.loglog(size, prepare, "o-", label="preparing")
        time_panel.loglog(size, score, "s-", label="scoring")
        time_panel.loglog(size, eigh, "^:", label="eigh in it")
        power = 3 if axis == "sources" else 1
        guide = [both[-1] * (s / size[-1]) ** power for s in size]
        label = f"size{'³' if power == 3 else ''}"
        time_panel.loglog(size, guide, "k--", linewidth=0.8, label=label)
        time_panel.legend(fontsize="x-small")
        memory_panel.loglog(size, memory, "o-", color="tab:purple")
        memory_panel.set_xlabel(axis.replace("-small", f", banks of {SMALL}"))
        for panel in (time_panel, memory_panel):
            panel.set_xticks(size, [f"{s:g}" for s in size])
            panel.minorticks_off()
            panel.grid(True, alpha=0.3)
    panels[0][0].set_ylabel("processor seconds")
    panels[1][0].set_ylabel("peak memory, GiB")
    figure.savefig(PAGE.with_suffix(".png"), dpi=90)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--axis", nargs="*", choices=tuple(AXES), default=list(AXES))
    parser.add_argument("--sizes", type=int, nargs="+", help="of the axis: some points alone")
    parser.add_argument("--encoder", default="mel")
    parser.add_argument("--frames-per-second", type=float, default=50.0)
    parser.add_argument("--small", action="store_true", help=f"banks of {SMALL}")
    parser.add_argument("--point", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.point:
        point = json.loads(options.point)
        rate, small = options.frames_per_second, options.small
        print(json.dumps(measure(point, options.encoder, rate, small)))
        return
    for axis in options.axis:
        run_axis(axis, options.sizes or AXES[axis], options)
    draw()


if __name__ == "__main__":
    main()
