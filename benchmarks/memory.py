"""Peak memory of scoring a long mixture, in a fresh process each.

    python benchmarks/memory.py [--seconds 60 120 600] [--segment 60] [--encoder mel] [--frames N]
        [--page]

Peak is above the start: beside the interpreter, torch, and the references and estimates that are
handed over. With ``--segment`` it should not grow with duration but for a few copies of the
waveforms; without, linearly, by the embeddings of every distortion.
``--encoder 1024`` stands for a large transformer: 1024 features a frame, random projections of the
waveform, which hears a segment as a clip of its own. ``--dry`` leaves the graphs out, which take
nearly all the time and their share of the budget alone: for a look at long files. ``--page`` puts
the rows on the page of results.
"""

from __future__ import annotations

import argparse
import subprocess
import sys
import time
from typing import Any

import torch
from scaling_page import machine, put_rows

from torch_mapss import MAPSS

COLUMNS = ["encoder", "s", "sources", "segment", "frames", "bank MiB"]
COLUMNS += ["peak GiB", "prepare s", "score s"]


def voices(sources: int, seconds: float, rate: int = 16000) -> torch.Tensor:
    """Noise of a slowly changing level, one seed per source."""
    generator = torch.Generator().manual_seed(0)
    samples = int(seconds * rate)
    time_axis = torch.arange(samples) / rate
    level = torch.stack([1.2 + torch.sin(time_axis * (1 + s)) for s in range(sources)])
    return 0.1 * level * torch.randn(sources, samples, generator=generator)


class Projection:
    """1024 random features of every 25 ms, 50 times a second."""

    sample_rate, hop, receptive_field, feature_size = 16000, 320, 400, 1024

    def __init__(self) -> None:
        generator = torch.Generator().manual_seed(0)
        self.weight = torch.randn(400, 1024, generator=generator) / 20

    def __call__(self, waves: torch.Tensor) -> torch.Tensor:
        return torch.tanh(waves.unfold(-1, 400, 320) @ self.weight)


def resident(field: str) -> float:
    """GiB of this process: VmRSS now, VmHWM at its highest."""
    with open("/proc/self/status", encoding="ascii") as file:
        lines = dict(line.split(":", 1) for line in file)
    return int(lines[field].split()[0]) / 2**20


def forget_peak() -> None:
    """Let VmHWM begin anew from VmRSS."""
    with open("/proc/self/clear_refs", "w", encoding="ascii") as file:
        file.write("5")


def without_graphs() -> None:
    """Let the core return zeros."""
    from torch_mapss.pipeline import scoring, segments

    def nothing(clouds: Any, *_: Any, **__: Any) -> Any:
        return tuple(clouds.outputs[..., 0].clone() for _ in range(4))

    segments.score_frames = nothing  # type: ignore[assignment]
    scoring.pending = nothing  # type: ignore[assignment]
    scoring.finished = list  # type: ignore[assignment]


def child(options: argparse.Namespace) -> None:
    seconds = options.seconds[0]
    references = voices(options.sources, seconds)
    estimates = references + 0.1 * references.roll(1, 0)
    encoder = Projection() if options.encoder == "1024" else options.encoder
    mapss = MAPSS(encoder, segment=options.segment, memory=options.memory)
    small = references[:, :16000]
    mapss(small, small, frames=4)  # loads what is loaded once
    if options.dry:
        without_graphs()
    forget_peak()
    before = resident("VmRSS")
    start = time.perf_counter()
    bank = mapss.prepare(references)
    prepared = time.perf_counter()
    mapss(estimates, bank, frames=options.frames)
    done = time.perf_counter()
    row = [options.encoder, f"{seconds:g}", str(options.sources), f"{options.segment or 'none'}"]
    row += [f"{options.frames or bank.frames}{' (dry)' if options.dry else ''}"]
    row += [f"{bank.nbytes / 2**20:.0f}", f"{resident('VmHWM') - before:.2f}"]
    row += [f"{prepared - start:.0f}", f"{done - prepared:.0f}"]
    print("| " + " | ".join(row) + " |", flush=True)


INTRO = """## Memory of long mixtures (`memory.py`)

Peak of the process above the start, in GiB: beside the interpreter, torch and the waveforms that
are handed over. `1024` stands for a transformer of 1024 features 50 times a second, which hears a
segment as a clip of its own. All frames are scored; *dry*: encoded, but not scored. Times are those
of a busy machine: {machine}."""


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--seconds", type=float, nargs="+", default=[60.0, 120.0, 600.0])
    parser.add_argument("--sources", type=int, default=2)
    parser.add_argument("--segment", type=float)
    parser.add_argument("--memory", default="auto")
    parser.add_argument("--encoder", default="mel", help="a name, or 1024")
    parser.add_argument("--frames", type=int)
    parser.add_argument("--dry", action="store_true")
    parser.add_argument("--page", action="store_true", help="put the rows on the page of results")
    parser.add_argument("--child", action="store_true", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.child:
        child(options)
        return
    print("| " + " | ".join(COLUMNS) + " |\n" + "|---" * len(COLUMNS) + "|", flush=True)
    for seconds in options.seconds:
        command = [sys.executable, __file__, "--child", *sys.argv[1:], "--seconds", str(seconds)]
        line = subprocess.run(command, check=True, stdout=subprocess.PIPE, text=True).stdout
        print(line, end="", flush=True)
        if options.page:
            row = [cell.strip() for cell in line.splitlines()[-1].strip("| \n").split(" | ")]
            put_rows("memory", INTRO.format(machine=machine()), COLUMNS, [row], keys=5)


if __name__ == "__main__":
    main()
