"""Peak memory of scoring a long mixture, in a fresh process each.

    python benchmarks/memory.py [--seconds 15 30 60] [--sources 3] [--frames N]

Memory should grow linearly with duration. ``--frames`` scores a random subset, which needs the
same memory and less time.
"""

from __future__ import annotations

import argparse
import resource
import subprocess
import sys
import time

import torch

from torch_mapss import MAPSS


def voices(sources: int, seconds: float, rate: int = 16000) -> torch.Tensor:
    """Noise of a slowly changing level, one seed per source."""
    generator = torch.Generator().manual_seed(0)
    samples = int(seconds * rate)
    time_axis = torch.arange(samples) / rate
    level = torch.stack([1.2 + torch.sin(time_axis * (1 + s)) for s in range(sources)])
    return 0.1 * level * torch.randn(sources, samples, generator=generator)


def child(seconds: float, sources: int, frames: int | None) -> None:
    references = voices(sources, seconds)
    estimates = references + 0.1 * references.roll(1, 0)
    start = time.perf_counter()
    mapss = MAPSS("waveform")
    bank = mapss.prepare(references)
    prepared = time.perf_counter()
    mapss(estimates, bank, frames=frames)
    done = time.perf_counter()
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 2**20
    print(
        f"| {seconds:g} | {sources} | {bank.frames} | {bank.nbytes / 2**30:.2f} | {peak:.2f} "
        f"| {prepared - start:.1f} | {done - prepared:.1f} |",
        flush=True,
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--seconds", type=float, nargs="+", default=[15.0, 30.0, 60.0])
    parser.add_argument("--sources", type=int, default=3)
    parser.add_argument("--frames", type=int)
    parser.add_argument("--child", action="store_true", help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.child:
        child(arguments.seconds[0], arguments.sources, arguments.frames)
        return
    print(
        "| s | sources | frames | bank GiB | peak GiB | prepare s | score s |\n" + "|---" * 7 + "|"
    )
    for seconds in arguments.seconds:
        command = [sys.executable, __file__, "--child", "--seconds", str(seconds)]
        command += ["--sources", str(arguments.sources)]
        if arguments.frames is not None:
            command += ["--frames", str(arguments.frames)]
        subprocess.run(command, check=True)


if __name__ == "__main__":
    main()
