"""Cost of clearance and fidelity, compared with PS and PM, the encoder, and an earlier version.

    python benchmarks/pair.py [--seconds 10] [--encoder mel] [--rounds 3] [--before COMMIT]

Preparing (distorting, normalising, encoding), scoring of all frames, and forward with backward are
timed for the pair alone and for PS and PM alone, in turn in one process: processor seconds, the
minimum of the rounds. The real-time factor is the time of preparing and scoring over the duration.

``--before`` extracts the package of another commit into a temporary folder and times the pair of
both versions in two processes that run in turn, never at once: on voices, whose pauses 0.4.0 did
not score, and on noises without pauses, where both score the same frames.
"""

from __future__ import annotations

import argparse
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path

import torch
from common import RATE, in_turn, leaky, table, voices

from torch_mapss import MAPSS

HERE = Path(__file__).resolve().parent
PAIR, PAPER = "clearance, fidelity", "PS, PM"
SETS = {PAIR: ("decomposition",), PAPER: ("separation", "match")}


def step(mapss: MAPSS, estimates: torch.Tensor, bank: object, measures: tuple[str, ...]) -> None:
    """Forward and backward to the estimates."""
    leaf = estimates.clone().requires_grad_()
    scores = mapss(leaf, bank, measures=measures)
    fields = ("clearance", "fidelity") if "decomposition" in measures else ("ps", "log_pm")
    sum(getattr(scores, name).sum() for name in fields).backward()


def functions_of(
    references: torch.Tensor, encoder: str, names: tuple[str, ...]
) -> dict[str, Callable[[], None]]:
    """Name -> a function to time, for the sets of measures with these names in ``SETS``."""
    estimates = leaky(references)
    mapss = MAPSS(encoder)

    def score(bank: object, measures: tuple[str, ...]) -> None:
        with torch.no_grad():
            mapss(estimates, bank, measures=measures)

    runs: dict[str, Callable[[], None]] = {}
    for name in names:
        measures = SETS[name]
        bank = mapss.prepare(references, measures=measures)
        runs[f"preparing {name}"] = partial(mapss.prepare, references, measures=measures)
        runs[f"scoring {name}"] = partial(score, bank, measures)
        runs[f"forward and backward, {name}"] = partial(step, mapss, estimates, bank, measures)
    return runs


# ------------------------------------------------------------------------------------------------
# An earlier version
# ------------------------------------------------------------------------------------------------


def answer(options: argparse.Namespace) -> None:
    """Run each step that a line of the input names as SIGNAL/STEP; print its processor seconds."""
    functions = {
        name: functions_of(signal, options.encoder, (PAIR,))
        for name, signal in signals(options.seconds).items()
    }
    for line in sys.stdin:
        signal, step = line.strip().split("/")
        began = time.process_time()
        functions[signal][step]()
        print(time.process_time() - began, flush=True)


def worker(package: Path, options: argparse.Namespace) -> subprocess.Popen[str]:
    """A process that runs steps with the package of a folder, see :func:`answer`."""
    command = [sys.executable, __file__, "--answer", "--seconds", str(options.seconds)]
    command += ["--encoder", options.encoder]
    environment = {**os.environ, "PYTHONPATH": str(package)}
    pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "text": True, "bufsize": 1}
    return subprocess.Popen(command, env=environment, **pipes)


def signals(seconds: float) -> dict[str, torch.Tensor]:
    """References (1, 2, T): voices, which pause, and noises, which do not."""
    generator = torch.Generator("cpu").manual_seed(0)
    noises = 0.05 * torch.randn(1, 2, round(seconds * RATE), generator=generator)
    return {"voices": voices(seconds).unsqueeze(0), "noises": noises}


def seconds_in(process: subprocess.Popen[str], name: str) -> float:
    """Processor seconds of a step SIGNAL/STEP in a worker."""
    assert process.stdin is not None
    assert process.stdout is not None
    print(name, file=process.stdin, flush=True)
    return float(process.stdout.readline())


def two_versions(options: argparse.Namespace, steps: list[str]) -> str:
    """Table of both versions: minimum seconds over the rounds, and their ratio."""
    archive = ["git", "-C", str(HERE.parent), "archive", options.before, "torch_mapss"]
    with tempfile.TemporaryDirectory() as folder:
        packed = subprocess.run(archive, stdout=subprocess.PIPE, check=True).stdout
        subprocess.run(["tar", "-x", "-C", folder], input=packed, check=True)
        with worker(Path(folder), options) as before, worker(HERE.parent, options) as after:
            rows = []
            for signal in signals(options.seconds):
                total_before = total_after = 0.0
                for step in steps:
                    rounds_before, rounds_after = [], []
                    for _ in range(1 + options.rounds):
                        rounds_before.append(seconds_in(before, f"{signal}/{step}"))
                        rounds_after.append(seconds_in(after, f"{signal}/{step}"))
                    # The first round warms up.
                    fastest_before, fastest_after = min(rounds_before[1:]), min(rounds_after[1:])
                    rows.append(row_of(signal, step, fastest_before, fastest_after))
                    total_before += fastest_before
                    total_after += fastest_after
                rows.append(row_of(signal, "all three", total_before, total_after))
            for process in (before, after):
                assert process.stdin is not None
                process.stdin.close()
    return table(["signal", "step", f"{options.before} s", "now s", "now to before"], rows)


def row_of(signal: str, step: str, before: float, after: float) -> list[str]:
    """A row of the table of two versions, of processor seconds."""
    return [signal, step, f"{before:.3f}", f"{after:.3f}", f"{after / before:.2f}"]


# ------------------------------------------------------------------------------------------------


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--seconds", type=float, default=10.0, help="duration of the mixture")
    parser.add_argument("--encoder", default="mel", help="of PS and PM")
    parser.add_argument("--rounds", type=int, default=3, help="of which the fastest counts")
    parser.add_argument("--before", metavar="COMMIT", help="of an earlier version to compare with")
    parser.add_argument("--answer", action="store_true", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.answer:
        answer(options)
        return
    references = voices(options.seconds).unsqueeze(0)
    estimates, mapss = leaky(references), MAPSS(options.encoder)

    def encode() -> None:
        with torch.no_grad():
            mapss.encoder(estimates)

    runs = {"encoding the estimates": encode} | functions_of(references, options.encoder, (*SETS,))
    best = in_turn(runs, options.rounds)
    rows = []
    for name, seconds in best.items():
        of_paper = best.get(name.replace(PAIR, PAPER), 0.0)
        ratio = f"{seconds / of_paper:.3f}" if PAIR in name else ""
        rows.append([name, f"{seconds:.3f}", ratio])
    bank = mapss.prepare(references, measures="decomposition")
    frames, pauses = (len(clips) for clips in (bank.groups[0].scored, bank.groups[0].pauses))
    print(
        f"{options.seconds:g} s, 2 sources at {RATE} Hz, encoder {options.encoder}, {frames} "
        f"frames of two active sources and {pauses} of pauses, {torch.get_num_threads()} threads:\n"
    )
    print(table(["step", "s", "ratio to PS, PM"], rows))
    for name in SETS:
        seconds = best[f"preparing {name}"] + best[f"scoring {name}"]
        print(f"\nReal-time factor of {name}: {seconds / options.seconds:.3f}.")
    if options.before:
        print("\nThe pair of two versions, in turn:\n")
        print(two_versions(options, [name for name in runs if PAIR in name]))


if __name__ == "__main__":
    main()
