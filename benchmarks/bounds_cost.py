"""Time of the bounds beside that of the scores they belong to, in one run.

    OMP_NUM_THREADS=1 python benchmarks/bounds_cost.py

A bound makes the map of its frame again, so a bound call that takes less than twice the score call
adds less than the scores take. Ratios count, times depend on the machine; each is the best of
several rounds, taken in turn.
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Callable
from functools import partial
from typing import Any

import torch
from bounds_page import table, write_section
from torch import Tensor

from torch_mapss.bounds.frames import match_bounds, separation_bounds
from torch_mapss.functional import perceptual_match, perceptual_separation

ROWS: dict[str, dict[str, Any]] = {
    "paper": {},
    "paper, Bartlett": {"n_eff": "bartlett"},
    "reference": {"convention": "reference"},
    "derived": {"convention": "derived"},
    "bootstrap, 50 draws": {"tail": "bootstrap", "draws": 50},
}


def frames(count: int, sources: int, features: int, seed: int = 0) -> tuple[Tensor, ...]:
    """Clusters of 70 distortions whose maps keep about 40 coordinates, as recorded speech does."""
    generator = torch.Generator().manual_seed(seed)
    shape = torch.arange(1, features + 1) ** -0.7
    references = torch.randn(count, sources, features, generator=generator)
    cluster = torch.randn(count, sources, 70, features, generator=generator)
    cluster = references.unsqueeze(2) + 2.0 * shape * cluster
    outputs = references + shape * torch.randn(references.shape, generator=generator)
    return outputs, references, cluster


def best_of(calls: dict[str, Callable[[], Any]], rounds: int) -> dict[str, float]:
    """The least time of every call over ``rounds`` rounds through all of them."""
    least = dict.fromkeys(calls, float("inf"))
    for _ in range(rounds):
        for name, call in calls.items():
            start = time.perf_counter()
            call()
            least[name] = min(least[name], time.perf_counter() - start)
    return least


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--frames", type=int, default=24)
    parser.add_argument("--sources", type=int, nargs="+", default=[2, 3])
    parser.add_argument("--rounds", type=int, default=5)
    arguments = parser.parse_args()
    rows = []
    for sources in arguments.sources:
        points = frames(arguments.frames, sources, 512)
        for measure, score, bound in (
            ("PS", perceptual_separation, separation_bounds),
            ("PM", perceptual_match, match_bounds),
        ):
            calls: dict[str, Callable[[], Any]] = {"score": partial(score, *points)}
            for name, options in ROWS.items():
                if measure == "PS" or "n_eff" not in options:
                    calls[name] = partial(bound, *points, **options)
            taken = best_of(calls, arguments.rounds)
            for name in list(taken)[1:]:
                each = [1e3 * taken[key] / arguments.frames for key in ("score", name)]
                cells = [f"{each[0]:.1f}", f"{each[1]:.1f}", f"{each[1] / each[0]:.2f}"]
                rows.append([measure, str(sources), name, *cells])
    header = ["measure", "sources", "bounds", "score, ms a frame", "bounds, ms a frame", "ratio"]
    text = f"""## Cost (`bounds_cost.py`)

70 distortions, 512 features, {torch.get_num_threads()} thread, best of {arguments.rounds} rounds.
Below 2, bounds (which make the map again) add less than the score takes.

{table(header, rows)}
"""
    write_section("cost", text)


if __name__ == "__main__":
    main()
