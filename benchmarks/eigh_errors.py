"""What `eigh="float32"` changes on real frames: the measurement of section `eigh` of `cpu.py`."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import torch
import training_gradients
from torch import Tensor

from torch_mapss import MAPSS, audio
from torch_mapss.core import checks
from torch_mapss.core.frame_batches import Kernel, score_frames
from torch_mapss.core.scores import (
    MATCH_SCORES,
    SEPARATION_SCORES,
    match_scores,
    separation_scores,
)
from torch_mapss.core.settings import Settings

SECONDS = 3.0  # of every file
FRAMES = 60  # of every mixture, at most, among those where all sources are active
ENCODERS = ("mel", "waveform")
# Outputs, references, distortions, and which of these there are; frames first.
Points = tuple[Tensor, Tensor, Tensor, Tensor | None]
HEADING = [
    "| encoder | error of | values | median | mean | p99 | max | frames with another d |",
    "|---|---|---|---|---|---|---|---|",
]


def table(root: Path) -> Iterator[list[str]]:
    """The rows of one encoder after the other."""
    for encoder in ENCODERS:
        found: dict[str, list[Tensor]] = {}
        for both in both_measures(root, encoder):
            for points, kernel in zip(both, (separation_scores, match_scores)):
                for name, values in errors(points, kernel).items():
                    found.setdefault(name, []).append(values)
        every = {name: torch.cat(parts).double().numpy() for name, parts in found.items()}
        yield [row(encoder, name, every) for name in every if not name.startswith("d of")]


def row(encoder: str, name: str, every: dict[str, np.ndarray]) -> str:
    """Quantiles of one error, and how often d of its map is another."""
    values = every[name]
    middle, high = np.quantile(values, [0.5, 0.99])
    share = every["d of PS" if "PS" in name else "d of PM"].mean()
    return (
        f"| {encoder} | {name} | {len(values)} | {middle:.1e} | {values.mean():.1e} | {high:.1e} | "
        f"{values.max():.1e} | {100.0 * share:.2f} % |"
    )


def both_measures(root: Path, encoder: str) -> Iterator[tuple[Points, Points]]:
    """Embeddings of every output of every system, for PS and for PM, in float64."""
    mapss = MAPSS(encoder)
    for item in json.loads((root / "mapss.json").read_text(encoding="utf-8")):
        references = training_gradients.read_all(root, item["references"], SECONDS)
        (group,) = mapss.prepare(references).groups
        there = group.active[0].all(0).nonzero().squeeze(-1)
        frames = there[torch.linspace(0, len(there) - 1, min(FRAMES, len(there))).long()]

        def points(part: Any, outputs: Tensor, frames: Tensor = frames) -> Points:
            every = outputs, part.references[0], part.distortions[0]
            outputs, *clusters = (x[..., frames, :].movedim(-2, 0).double() for x in every)
            mask = None if part.mask is None else part.mask.expand(len(frames), -1, -1)
            return outputs, clusters[0], clusters[1], mask

        for paths in item["systems"].values():
            waves = training_gradients.read_all(root, paths, SECONDS)[0]
            with torch.no_grad():
                outputs = mapss.encoder(audio.normalize_loudness(waves, mapss.sample_rate))
            yield points(group.separation, outputs), points(group.match, outputs)


def solved(points: Points, kernel: Kernel, eigh: str) -> tuple[dict[str, Tensor], Tensor]:
    """Scores of a measure with d, and the slopes of the score that losses use, by frame."""
    outputs, references, distortions, mask = points
    outputs = outputs.clone().requires_grad_()
    clouds = checks.check_clouds(outputs, references, distortions, None, None, mask, 2)
    found = score_frames(clouds, Settings(eigh=eigh), kernel)
    names = SEPARATION_SCORES if kernel is separation_scores else MATCH_SCORES
    scores = dict(zip(names, found))
    scored = scores["ps" if "ps" in scores else "log_pm"]
    (slope,) = torch.autograd.grad(scored.sum(), outputs)
    return {name: values.detach() for name, values in scores.items()}, slope.flatten(1)


def errors(points: Points, kernel: Kernel) -> dict[str, Tensor]:
    """Errors of one measure: of scores and d one for every output, of slopes for every frame."""
    (low, slope), (high, true) = (solved(points, kernel, x) for x in ("float32", "float64"))
    moved = (slope - true).norm(dim=-1) / true.norm(dim=-1)
    apart = {name: (low[name] - high[name]).abs().flatten() for name in high}
    if kernel is separation_scores:
        differs = apart["separation_dimension"] > 0
        return {"PS": apart["ps"], "gradient of PS, relative": moved, "d of PS": differs}
    return {
        "PM": apart["pm"],
        "log PM, relative": apart["log_pm"] / high["log_pm"].abs().flatten(),
        "gradient of log PM, relative": moved,
        "d of PM": apart["match_dimension"] > 0,
    }
