"""How fast whole sets are scored: many short mixtures, and a few songs of four sources.

    python benchmarks/sets.py [--short 1000] [--songs 4] [--workers 1 2] [--against CHECKOUT]

One CPU thread per process. Mixtures a second by the clock, from the start of the processes to the
tables on the disk, and the processor time of all processes. The last column is the share of the
clock's time in which nothing is scored: starting, loading the encoder, reading what is not read in
the background, writing. ``--against`` runs the command line of another version in turn with this
one's. The last table is about scoring alone: what a batch of clips of one length would save.
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
    """Mixtures of made-up voices, with one system, as files."""
    mixtures = []
    for number in range(count):
        truth = voices(seconds, sources, rate=rate, seed=number)
        paths = {}
        for name, waves in {"truth": truth, "system": leaky(truth)}.items():
            paths[name] = tuple(_written(folder, number, name, waves, rate))
        mixture = Mixture(f"m{number}", paths["truth"], {"system": paths["system"]}, "")
        mixtures.append(mixture)
    return mixtures


def _written(folder: Path, number: int, name: str, waves: Tensor, rate: int) -> Iterator[str]:
    for source, wave in enumerate(waves):
        path = folder / f"{number}-{name}-{source}.wav"
        soundfile.write(path, wave.numpy(), rate, subtype="PCM_16")
        yield str(path)


@contextlib.contextmanager
def engine(workers: int) -> Iterator[Any]:
    """The map of so many processes; of this one alone if it is one."""
    if workers == 1:
        yield map
    else:
        with engines.process_map(workers, threads=1) as process_map:
            yield process_map


class Cost(NamedTuple):
    """What a run over a set took."""

    elapsed: float  # seconds by the clock
    processor: float  # seconds, of all processes
    scoring: float = 0.0  # seconds by the clock that one of its processes scored, on average


def cost_of_run(mixtures: Sequence[Mixture], workers: int, out: Path) -> Cost:
    """Score the whole set."""
    job = score_mixture.MixtureJob({"encoder": "mel", "measures": "decomposition"}, "cpu")
    scoring: list[float] = []
    write_scores = run.results_folder.write_scores

    def noting(folder: str, scores: Any, order: Any) -> None:
        scoring.append(scores.seconds)
        write_scores(folder, scores, order)

    run.results_folder.write_scores = noting
    try:
        begun, processor = time.perf_counter(), _processor_seconds()
        with engine(workers) as workers_map:
            run.run(mixtures, out, job, map=workers_map)
        elapsed = time.perf_counter() - begun
    finally:
        run.results_folder.write_scores = write_scores
    return Cost(elapsed, _processor_seconds() - processor, sum(scoring) / workers)


def _processor_seconds() -> float:
    """Of this process and of those that it waited for."""
    usages = map(resource.getrusage, (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN))
    return sum(usage.ru_utime + usage.ru_stime for usage in usages)


def cost_of_command(mixtures: Sequence[Mixture], checkout: Path, out: Path) -> Cost:
    """Score the whole set by the command line of a checkout, in one process."""
    entries = [
        {"mixture_id": m.name, "references": [*m.references], "systems": {**m.systems}}
        for m in mixtures
    ]
    manifest = out.with_suffix(".json")
    manifest.write_text(json.dumps(entries), encoding="utf-8")
    command = [sys.executable, "-m", "torch_mapss", "evaluate", str(manifest), "--out", str(out)]
    command += ["--encoder", "mel", "--measures", "decomposition", "--threads", "1", "--quiet"]
    begun, processor = time.perf_counter(), _processor_seconds()
    environment = {**os.environ, "PYTHONPATH": str(checkout)}
    subprocess.run(command, env=environment, cwd=out.parent, check=True)
    return Cost(time.perf_counter() - begun, _processor_seconds() - processor)


def cheapest(runs: dict[str, Callable[[Path], Cost]], rounds: int) -> dict[str, Cost]:
    """The run of each that took the least processor time, all of them in turn."""
    costs: dict[str, list[Cost]] = {name: [] for name in runs}
    for _ in range(rounds):
        for name, scored_in in runs.items():
            with tempfile.TemporaryDirectory() as folder:
                costs[name].append(scored_in(Path(folder, "results")))
    return {name: min(of_run, key=lambda cost: cost.processor) for name, of_run in costs.items()}


def batch_rows(counts: Sequence[float]) -> list[list[str]]:
    """Clips of one length scored one by one, and in one batch, for some numbers of seconds."""
    mapss = torch_mapss.MAPSS("mel", measures="decomposition")
    batch, rows = 8, []
    for seconds in counts:
        references = voices(seconds, 2, batch=batch)
        estimates = leaky(references)

        def one_by_one(estimates: Tensor = estimates, references: Tensor = references) -> None:
            for pair in zip(estimates.split(1), references.split(1)):
                mapss(*pair)

        together = functools.partial(mapss, estimates, references)
        alone, batched = in_turn({"alone": one_by_one, "batch": together}).values()
        milliseconds = [f"{1000 * cost / batch:.0f}" for cost in (alone, batched)]
        rows.append([f"{seconds:g} s", *milliseconds, f"{alone / batched:.2f}"])
    return rows


def main(arguments: Sequence[str] | None = None) -> None:
    """Print the tables."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--short", type=int, default=1000, help="mixtures of 1 s, two sources")
    parser.add_argument("--songs", type=int, default=4, help="of 20 s at 44.1 kHz, four sources")
    parser.add_argument("--workers", type=int, nargs="+", default=[1, 2])
    parser.add_argument("--rounds", type=int, default=1, help="of which the cheapest counts")
    parser.add_argument(
        "--clips", type=float, nargs="*", default=[1, 2, 4, 10], help="s, scored in one batch"
    )
    parser.add_argument("--against", type=Path, help="checkout of another version")
    options = parser.parse_args(arguments)
    torch.set_num_threads(1)
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
    sets = {"short": (options.short, 1.0, 2, 16_000), "songs": (options.songs, 20.0, 4, 44_100)}
    rows, versions = [], []
    for name, (count, seconds, sources, rate) in sets.items():
        with tempfile.TemporaryDirectory() as folder:
            mixtures = write_set(Path(folder), count, seconds, sources, rate)
            runs: dict[str, Callable[[Path], Cost]] = {}
            for workers in options.workers:
                runs[str(workers)] = functools.partial(cost_of_run, mixtures, workers)
            checkouts = {"here": Path(torch_mapss.__file__).parents[1], "there": options.against}
            for version, checkout in checkouts.items():
                if options.against is not None:
                    runs[version] = functools.partial(cost_of_command, mixtures, checkout)
            costs = cheapest(runs, options.rounds)
        for label, cost in costs.items():
            rate_and_cost = [f"{count / cost.elapsed:.2f}", f"{1000 * cost.processor / count:.0f}"]
            if label in checkouts:
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
