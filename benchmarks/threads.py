"""What idle threads cost on a CPU: `OMP_WAIT_POLICY`, `GOMP_SPINCOUNT`, one thread; with a load.

    python benchmarks/threads.py [--rounds 3]

Scores and bounds of 3 s of noise (mel, two sources, full banks), prepared and scored in a process
of its own for each setting, in turn; alone and beside two processes that only compute. Threads that
spin while they wait cost more than all else on a busy machine, so the command line makes them sleep
(`OMP_WAIT_POLICY=passive`, set before torch loads, unless something of the kind is set).
"""

from __future__ import annotations

import argparse
import contextlib
import os
import resource
import statistics
import subprocess
import sys
import time
from collections.abc import Iterator

from common import leaky, table, voices

SETTINGS: dict[str, dict[str, str]] = {
    "as torch has it": {},
    "OMP_WAIT_POLICY=passive": {"OMP_WAIT_POLICY": "passive"},
    "GOMP_SPINCOUNT=0": {"GOMP_SPINCOUNT": "0"},
    "OMP_NUM_THREADS=1": {"OMP_NUM_THREADS": "1"},
}
OURS = ("OMP_WAIT_POLICY", "GOMP_SPINCOUNT", "KMP_BLOCKTIME", "OMP_NUM_THREADS", "MKL_NUM_THREADS")


@contextlib.contextmanager
def busy(count: int) -> Iterator[None]:
    """So many processes that do nothing but compute."""
    code = "while True: sum(range(10000))"
    others = [subprocess.Popen([sys.executable, "-c", code]) for _ in range(count)]
    try:
        yield
    finally:
        for other in others:
            other.kill()
            other.wait()


def child() -> None:
    """Bounds and scores of three seconds, after the modules are loaded."""
    from torch_mapss import MAPSS

    references = voices(3.0)
    mapss = MAPSS("mel", measures=("separation", "match"))
    start, used = time.perf_counter(), resource.getrusage(resource.RUSAGE_SELF)
    mapss.bounds(leaky(references), references)
    spent = resource.getrusage(resource.RUSAGE_SELF)
    cpu = spent.ru_utime + spent.ru_stime - used.ru_utime - used.ru_stime
    print(time.perf_counter() - start, cpu)


def one_run(given: dict[str, str]) -> tuple[float, float]:
    environment = {name: value for name, value in os.environ.items() if name not in OURS}
    command = [sys.executable, __file__, "--child"]
    done = subprocess.run(
        command, env={**environment, **given}, capture_output=True, text=True, check=True
    )
    wall, cpu = done.stdout.split()
    return float(wall), float(cpu)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--child", action="store_true", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.child:
        child()
        return
    rows = []
    for load in (0, 2):
        found: dict[str, list[tuple[float, float]]] = {name: [] for name in SETTINGS}
        with busy(load):
            for _ in range(options.rounds):
                for name, given in SETTINGS.items():
                    found[name].append(one_run(given))
        for name, runs in found.items():
            wall, cpu = zip(*runs, strict=True)
            rows.append(
                [load, name, f"{statistics.median(wall):.1f}", f"{max(wall):.1f}",
                 f"{statistics.median(cpu):.1f}"]
            )  # fmt: skip
    header = ["other processes", "setting", "median s", "worst s", "processor s"]
    print(table(header, rows))


if __name__ == "__main__":
    main()
