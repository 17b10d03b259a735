"""PCC and SRCC with listeners, with radius and half-width, as [tab:ci_merged_like_main].

    python benchmarks/ward_correlation.py --data DIR_OF_WARD2018

``DIR_OF_WARD2018`` holds ``mapss.json`` (a manifest) and ``ratings.csv`` (track, system, question,
role, mean_rating). PS is held against ratings of interference, PM and log PM against quality.
"""

from __future__ import annotations

import argparse
import csv
import json
import math
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

import torch
from bounds_data import Frames, embedded, read
from bounds_page import table, write_section
from torch import Tensor

from torch_mapss import MAPSS
from torch_mapss.bounds.correlation import METHODS, correlation_bounds, scenario_bounds
from torch_mapss.bounds.frames import Bounds, match_bounds, separation_bounds
from torch_mapss.bounds.utterance import pool_match_bounds, pool_separation_bounds
from torch_mapss.functional import perceptual_match, perceptual_separation, pool_separation

QUESTIONS = {"PS": "interference", "PM": "quality"}
INTERVALS: dict[str, dict[str, Any]] = {
    "paper": {"convention": "paper"},
    "reference": {"convention": "reference"},
    "derived": {"convention": "derived"},
    "bootstrap": {"convention": "derived", "tail": "bootstrap", "draws": 30},
}


class Utterance(NamedTuple):
    """One system's score of one track and its error."""

    score: Tensor
    bounds: Bounds


def ratings(data: Path) -> dict[tuple[str, str, str], float]:
    """(track, system, question) -> mean rating."""
    with (data / "ratings.csv").open(encoding="utf-8") as lines:
        return {
            (row["track"], row["system"], row["question"]): float(row["mean_rating"])
            for row in csv.DictReader(lines)
        }


def separation_utterance(frames: Frames, step: int, options: dict[str, Any]) -> Utterance:
    """PESQ-like pooling; every scored frame stands for the ``step`` frames from it on."""
    graph = "reference" if options["convention"] == "reference" else "paper"
    score = perceptual_separation(*frames[:3], **frames.options, convention=graph)
    bound = separation_bounds(*frames[:3], **frames.options, **options)
    held = [x[:, 0].double().repeat_interleave(step) for x in (score, bound.radius, bound.tail)]
    pooled = pool_separation_bounds(*held, convention=_pooling(options))
    return Utterance(pool_separation(held[0]), pooled)


def match_utterance(frames: Frames, step: int, options: dict[str, Any]) -> Utterance:
    """The mean; every scored frame stands for the ``step`` frames from it on."""
    graph = "reference" if options["convention"] == "reference" else "paper"
    score = perceptual_match(*frames[:3], **frames.options, convention=graph)
    bound = match_bounds(*frames[:3], **frames.options, **options)
    held = [x[:, 0].double().repeat_interleave(step) for x in (score, bound.radius, bound.tail)]
    return Utterance(held[0].mean(), pool_match_bounds(*held[1:], convention=_pooling(options)))


def _pooling(options: dict[str, Any]) -> str:
    return "derived" if options["convention"] == "derived" else "paper"


Pool = Callable[[Frames, int, dict[str, Any]], Utterance]
POOLS: dict[str, Pool] = {"PS": separation_utterance, "PM": match_utterance}
Scored = dict[str, dict[str, Utterance]]  # system -> interval -> utterance


def scored(data: Path, step: int, tracks: int | None) -> dict[str, dict[str, Scored]]:
    """Measure -> track -> what its systems score."""
    mapss = MAPSS("mel")
    found: dict[str, dict[str, Scored]] = {"PS": {}, "PM": {}}
    manifest = json.loads((data / "mapss.json").read_text(encoding="utf-8"))
    for entry in manifest[:tracks]:
        rate = mapss.grid.sample_rate
        references = torch.stack([read(data / path, rate) for path in entry["references"]])
        bank = mapss.prepare(references.unsqueeze(0))
        track: dict[str, Scored] = {"PS": {}, "PM": {}}
        for system, paths in entry["systems"].items():
            if system.startswith("control:"):
                continue
            estimate = read(data / paths[0], rate)[None, None, : references.shape[-1]]
            both = embedded(mapss, estimate, bank, (0,), step)
            for measure, frames in zip(track, both, strict=True):
                track[measure][system] = {
                    name: POOLS[measure](frames, step, options)
                    for name, options in INTERVALS.items()
                }
        for measure, systems in track.items():
            found[measure][entry["mixture_id"]] = systems
        print(entry["mixture_id"], flush=True)
    return found


def correlated(
    tracks: dict[str, Scored], measure: str, listeners: dict[tuple[str, str, str], float]
) -> list[list[str]]:
    """Rows of the table for one measure."""
    most = max(map(len, tracks.values()))

    def column(value: Callable[[str, str], Any]) -> Tensor:
        """(tracks, systems), NaN where a track has fewer."""
        rows = [
            [float(value(track, system)) for system in systems] for track, systems in tracks.items()
        ]
        return torch.tensor([row + [math.nan] * (most - len(row)) for row in rows]).double()

    given = column(lambda track, system: listeners[track, system, QUESTIONS[measure]])
    rows = []
    for name in INTERVALS:
        score, radius, tail = (
            column(partial(_value, tracks, name, field)) for field in ("score", "radius", "tail")
        )
        cells = [measure, name, f"{radius.nanmean():.3f}", f"{tail.nanmean():.3f}"]
        for method in reversed(METHODS):
            one = correlation_bounds(score, radius, tail, given, method=method)
            mean = scenario_bounds(*(x.unsqueeze(-1) for x in one[:3]))
            cells += [f"{mean.value:.2f}", f"{mean.radius:.1%}", f"{mean.half_width:.1%}"]
        rows.append(cells)
    return rows


def _value(tracks: dict[str, Scored], name: str, field: str, track: str, system: str) -> Tensor:
    utterance = tracks[track][system][name]
    return utterance.score if field == "score" else getattr(utterance.bounds, field)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--data", type=Path, required=True)
    parser.add_argument("--step", type=int, default=5, help="score every n-th frame")
    parser.add_argument("--tracks", type=int, help="only the first ones")
    arguments = parser.parse_args()
    start = time.perf_counter()
    found, listeners = (
        scored(arguments.data, arguments.step, arguments.tracks),
        ratings(arguments.data),
    )
    rows = [row for m, tracks in found.items() for row in correlated(tracks, m, listeners)]
    header = ["measure", "interval", "mean radius", "mean half-width", "SRCC", "its radius"]
    header += ["95 % half-width", "PCC", "its radius", "95 % half-width"]
    count = sum(map(len, found["PS"].values()))
    which = "every frame"
    if arguments.step > 1:
        which = f"one frame in {arguments.step} (each standing for those up to the next)"
    text = f"""## Correlation with listeners (`ward_correlation.py`)

{len(found["PS"])} songs, {count} stimuli, the target voice alone, `mel` encoder,
{which}. PS (PESQ-like pooling) against interference
ratings, mean PM against quality; correlations over the systems of a song, averaged over songs as
independent trials; `reference` with its own scores. Mean radius and half-width are
those of an utterance, on the scale of its score (pooled PS spans 0.23). The SRCC radius covers
every order within the radii; no correlation is bounded by more than the way to -1 or 1.

{table(header, rows)}

{time.perf_counter() - start:.0f} s.
"""
    write_section("ward", text)


if __name__ == "__main__":
    main()
