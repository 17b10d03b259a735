"""How fast whole sets are scored: many short mixtures, and a few songs of four sources.

    python benchmarks/sets.py [--short 1000] [--songs 4] [--workers 1 2] [--against CHECKOUT]

One CPU thread per process. The table has mixtures a second by wall-clock time, from the start of
the processes to the tables on the disk, and the processor time of all processes. Its last column is
the share of the wall-clock time in which nothing is scored: starting processes, loading the
encoder, reading that is not in the background, writing. ``--against`` runs the command line of
another version in turn with this one's. The last table is about scoring alone: what a batch of
clips of one length would save.
"""

from __future__ import annotations

import argparse
import contextlib
import functools
import json
import os
import resource
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import soundfile
import torch
from common import in_turn, leaky, table, voices
from torch import Tensor

import torch_mapss
from torch_mapss.evaluation import engines, run, score_mixture
from torch_mapss.evaluation.manifest import Mixture


def write_set(folder: Path, count: int, seconds: float, sources: int, rate: int) -> list[Mixture]:
    """Write mixtures of synthetic voices, with the outputs of one system."""
    mixtures = []
    for number in range(count):
        truth = voices(seconds, sources, rate=rate, seed=number)
        references = _write_waves(folder, f"{number}-truth", truth, rate)
        estimates = _write_waves(folder, f"{number}-system", leaky(truth), rate)
        mixtures.append(Mixture(f"m{number}", references, {"system": estimates}, ""))
    return mixtures


def _write_waves(folder: Path, prefix: str, waves: Tensor, rate: int) -> tuple[str, ...]:
    """Write a file for each source; returns their paths."""
    paths = tuple(str(folder / f"{prefix}-{source}.wav") for source in range(len(waves)))
    for path, wave in zip(paths, waves):
        soundfile.write(path, wave.numpy(), rate, subtype="PCM_16")
    return paths


@contextlib.contextmanager
def engine(workers: int) -> Iterator[Any]:
    """The map of a number of worker processes; for one, that of this process."""
    if workers == 1:
        yield map
    else:
        with engines.process_map(workers, threads=1) as process_map:
            yield process_map


class Cost(NamedTuple):
    """Seconds that a run over a set took."""

    elapsed: float  # wall-clock time
    processor: float  # processor time of all processes
    scoring: float = 0.0  # wall-clock time spent on scoring, on average over the processes


def cost_of_run(mixtures: Sequence[Mixture], workers: int, out: Path) -> Cost:
    """Score a set with this package."""
    job = score_mixture.MixtureJob({"encoder": "mel", "measures": "decomposition"}, "cpu")
    scoring: list[float] = []
    write_scores = run.results_folder.write_scores

    def write_and_note(folder: str, scores: Any, order: Any) -> None:
        scoring.append(scores.seconds)
        write_scores(folder, scores, order)

    run.results_folder.write_scores = write_and_note
    try:
        began, processor = time.perf_counter(), _processor_seconds()
        with engine(workers) as workers_map:
            run.score_mixtures(mixtures, out, job, map=workers_map)
        elapsed = time.perf_counter() - began
    finally:
        run.results_folder.write_scores = write_scores
    return Cost(elapsed, _processor_seconds() - processor, sum(scoring) / workers)


def _processor_seconds() -> float:
    """Processor time of this process and of the finished ones that it started."""
    usages = map(resource.getrusage, (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN))
    return sum(usage.ru_utime + usage.ru_stime for usage in usages)


def cost_of_command(mixtures: Sequence[Mixture], checkout: Path, out: Path) -> Cost:
    """Score a set with the command line of a checkout, in one process."""
    entries = [
        {
            "mixture_id": mixture.name,
            "references": mixture.references,
            "systems": mixture.systems,
        }
        for mixture in mixtures
    ]
    manifest = out.with_suffix(".json")
    manifest.write_text(json.dumps(entries), encoding="utf-8")
    command = [sys.executable, "-m", "torch_mapss", "evaluate", str(manifest), "--out", str(out)]
    command += ["--encoder", "mel", "--measures", "decomposition", "--threads", "1", "--quiet"]
    began, processor = time.perf_counter(), _processor_seconds()
    environment = {**os.environ, "PYTHONPATH": str(checkout)}
    subprocess.run(command, env=environment, cwd=out.parent, check=True)
    return Cost(time.perf_counter() - began, _processor_seconds() - processor)


def cheapest(runs: dict[str, Callable[[Path], Cost]], rounds: int) -> dict[str, Cost]:
    """Name -> the cost of the round with the least processor time; all runs take turns."""
    best: dict[str, Cost] = {}
    for _ in range(rounds):
        for name, score_into in runs.items():
            with tempfile.TemporaryDirectory() as folder:
                cost = score_into(Path(folder, "results"))
            if name not in best or cost.processor < best[name].processor:
                best[name] = cost
    return best


def batch_rows(durations: Sequence[float]) -> list[list[str]]:
    """Clips of one duration (seconds) scored one by one and in a batch, a row for each duration."""
    mapss = torch_mapss.MAPSS("mel", measures="decomposition")
    batch, rows = 8, []
    for seconds in durations:
        references = voices(seconds, 2, batch=batch)
        estimates = leaky(references)

        def one_by_one(estimates: Tensor = estimates, references: Tensor = references) -> None:
            for estimate, reference in zip(estimates.split(1), references.split(1)):
                mapss(estimate, reference)

        in_one_batch = functools.partial(mapss, estimates, references)
        best = in_turn({"single": one_by_one, "batch": in_one_batch})
        milliseconds = [f"{1000 * cost / batch:.0f}" for cost in best.values()]
        rows.append([f"{seconds:g} s", *milliseconds, f"{best['single'] / best['batch']:.2f}"])
    return rows


def print_load() -> None:
    """Say whether other work runs on the machine, on which times depend."""
    load, processors = os.getloadavg()[0], os.cpu_count() or 1
    # The average of the last minute also holds what has just ended.
    if load > 0.75 * processors:
        print(
            f"Other work (load {load:.0f} on {processors} processors) ran beside this: mixtures a "
            "second say nothing of what more workers gain here. Processor times hold; they include "
            "the start of every process.\n"
        )
    else:
        print("One CPU thread a process; processor times include the start of every process.\n")


def costs_of_set(mixtures: Sequence[Mixture], options: argparse.Namespace) -> dict[str, Cost]:
    """Costs by number of workers and, with ``--against``, by version (here, there)."""
    runs: dict[str, Callable[[Path], Cost]] = {}
    for workers in options.workers:
        runs[str(workers)] = functools.partial(cost_of_run, mixtures, workers)
    if options.against is not None:
        checkouts = {"here": Path(torch_mapss.__file__).parents[1], "there": options.against}
        for version, checkout in checkouts.items():
            runs[version] = functools.partial(cost_of_command, mixtures, checkout)
    return cheapest(runs, options.rounds)


def parse(arguments: Sequence[str] | None) -> argparse.Namespace:
    """The command line."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--short", type=int, default=1000, help="mixtures of 1 s, two sources")
    parser.add_argument("--songs", type=int, default=4, help="of 20 s at 44.1 kHz, four sources")
    parser.add_argument(
        "--workers", type=int, nargs="+", default=[1, 2], help="numbers of processes to compare"
    )
    parser.add_argument("--rounds", type=int, default=1, help="of which the cheapest counts")
    parser.add_argument(
        "--clips", type=float, nargs="*", default=[1, 2, 4, 10], help="s, scored in one batch"
    )
    parser.add_argument("--against", type=Path, help="checkout of another version")
    return parser.parse_args(arguments)


def main(arguments: Sequence[str] | None = None) -> None:
    """Print the tables."""
    options = parse(arguments)
    torch.set_num_threads(1)
    print_load()
    sets = {"short": (options.short, 1.0, 2, 16_000), "songs": (options.songs, 20.0, 4, 44_100)}
    rows, versions = [], []
    for name, (count, seconds, sources, rate) in sets.items():
        with tempfile.TemporaryDirectory() as folder:
            mixtures = write_set(Path(folder), count, seconds, sources, rate)
            costs = costs_of_set(mixtures, options)
        for label, cost in costs.items():
            rate_and_cost = [f"{count / cost.elapsed:.2f}", f"{1000 * cost.processor / count:.0f}"]
            if label in ("here", "there"):
                versions.append([name, count, label, *rate_and_cost])
            else:
                share = max(0.0, 1.0 - cost.scoring / cost.elapsed)
                rows.append([name, count, label, *rate_and_cost, f"{100 * share:.0f} %"])
    columns = ["mixtures/s", "processor ms a mixture"]
    print(table(["set", "mixtures", "workers", *columns, "not scoring"], rows))
    if versions:
        print("\nBy the command line, in one process:\n")
        print(table(["set", "mixtures", "version", *columns], versions))
    if options.clips:
        print("\nClips of one length, scoring alone, processor ms a mixture:\n")
        columns = ["length", "one by one", "batches of 8", "ratio"]
        print(table(columns, batch_rows(options.clips)))


if __name__ == "__main__":
    main()
