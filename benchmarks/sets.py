"""How fast whole sets are scored: many short mixtures, and a few songs of four sources.

    python benchmarks/sets.py [--short 1000] [--songs 4] [--workers 1 2]

One CPU thread per process. Mixtures a second by the clock, from the start of the processes to the
tables on the disk. The last column is the share of that time in which nothing is scored: starting,
loading the encoder, reading what is not read in the background, writing.
"""

from __future__ import annotations

import argparse
import contextlib
import tempfile
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import soundfile
import torch
from common import leaky, table, voices
from torch import Tensor

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


def seconds_of(mixtures: Sequence[Mixture], workers: int, out: Path) -> tuple[float, float]:
    """Seconds of the whole set by the clock, and those that a scorer alone takes."""
    job = score_mixture.MixtureJob({"encoder": "mel", "measures": "decomposition"}, "cpu")
    scoring: list[float] = []
    write_scores = run.results_folder.write_scores

    def noting(folder: str, scores: Any, order: Any) -> None:
        scoring.append(scores.seconds)
        write_scores(folder, scores, order)

    run.results_folder.write_scores = noting
    try:
        begun = time.perf_counter()
        with engine(workers) as workers_map:
            run.run(mixtures, out, job, map=workers_map)
        elapsed = time.perf_counter() - begun
    finally:
        run.results_folder.write_scores = write_scores
    return elapsed, sum(scoring) / workers


def main(arguments: Sequence[str] | None = None) -> None:
    """Print the table."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--short", type=int, default=1000, help="mixtures of 1 s, two sources")
    parser.add_argument("--songs", type=int, default=4, help="of 20 s at 44.1 kHz, four sources")
    parser.add_argument("--workers", type=int, nargs="+", default=[1, 2])
    options = parser.parse_args(arguments)
    torch.set_num_threads(1)
    sets = {"short": (options.short, 1.0, 2, 16_000), "songs": (options.songs, 20.0, 4, 44_100)}
    rows = []
    for name, (count, seconds, sources, rate) in sets.items():
        with tempfile.TemporaryDirectory() as folder:
            mixtures = write_set(Path(folder), count, seconds, sources, rate)
            for workers in options.workers:
                out = Path(folder, f"results{workers}")
                elapsed, scoring = seconds_of(mixtures, workers, out)
                share = max(0.0, 1.0 - scoring / elapsed)
                rows.append(
                    [name, count, workers, f"{count / elapsed:.2f}", f"{100 * share:.0f} %"]
                )
    print(table(["set", "mixtures", "workers", "mixtures/s", "not scoring"], rows))


if __name__ == "__main__":
    main()
