"""Embeddings of recorded audio for the benchmarks of the bounds, and random ones."""

from __future__ import annotations

import itertools
import json
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

import torch
from torch import Tensor

from torch_mapss import MAPSS
from torch_mapss.audio.files import load_audio
from torch_mapss.audio.waveforms import resample, to_mono
from torch_mapss.core.checks import Clouds
from torch_mapss.pipeline.frames import activity, chunks, gather
from torch_mapss.pipeline.inputs import admit
from torch_mapss.pipeline.records import ReferenceBank
from torch_mapss.pipeline.scoring import encoded_estimates


class Frames(NamedTuple):
    """What the functional interface takes, (F, …)."""

    outputs: Tensor
    references: Tensor
    distortions: Tensor
    options: dict[str, object]  # attributed, active, mask


def read(path: Path, rate: int) -> Tensor:
    wave, original = load_audio(path)
    return resample(to_mono(wave), original, rate)


def embedded(
    mapss: MAPSS, estimates: Tensor, bank: ReferenceBank, attributed: tuple[int, ...], step: int
) -> tuple[Frames, Frames]:
    """Every ``step``-th scored frame of one mixture, in the graphs of PS and of PM."""
    parts = encoded_estimates(mapss, admit(mapss, estimates, bank, attributed))
    found: tuple[list[Clouds], list[Clouds]] = ([], [])
    for part in parts:
        part = part._replace(where=part.where[::step])
        for piece in chunks([part], graph=False):
            active, _ = activity(piece, attributed)
            for place in (0, 1):
                found[place].append(gather(piece, place, attributed, active))
    return _joined(found[0]), _joined(found[1])


def _joined(clouds: list[Clouds]) -> Frames:
    options: dict[str, object] = {"attributed": clouds[0].attributed}
    sources, members = clouds[0].distortions.shape[1:3]
    shapes = {"active": (sources,), "mask": (sources, members)}
    for name, shape in shapes.items():
        given = [getattr(c, name) for c in clouds]
        if any(x is not None for x in given):
            every = [
                torch.ones(len(c.outputs), *shape, dtype=torch.bool) if x is None else x
                for c, x in zip(clouds, given, strict=True)
            ]
            options[name] = torch.cat(every)
    return Frames(
        torch.cat([c.outputs for c in clouds]),
        torch.cat([c.references for c in clouds]),
        torch.cat([c.distortions for c in clouds]),
        options,
    )


def speech_mixtures(
    data: Path, mapss: MAPSS, pairs: int, seconds: float, step: int
) -> Iterator[tuple[str, Frames, Frames]]:
    """Pairs of utterances of different speakers; estimates leak the other and carry noise.

    The leak of the first estimate is at -10 dB, of the second at -20 dB; white noise at -25 dB.
    """
    items = json.loads((data / "manifest.json").read_text(encoding="utf-8"))["items"]
    both = itertools.combinations(items, 2)
    chosen = [pair for pair in both if pair[0]["speaker"] != pair[1]["speaker"]]
    rate = mapss.grid.sample_rate
    generator = torch.Generator().manual_seed(0)
    for pair in chosen[:: max(1, len(chosen) // pairs)][:pairs]:
        waves = [read(data / item["path"], rate)[: int(seconds * rate)] for item in pair]
        references = torch.stack(waves) / torch.stack(waves).square().mean(-1, keepdim=True).sqrt()
        references = 0.05 * references
        noise = 0.05 * torch.randn(references.shape, generator=generator) * 10 ** (-25 / 20)
        leak = torch.tensor([[10 ** (-10 / 20)], [10 ** (-20 / 20)]]) * references.flip(0)
        estimates = (references + leak + noise).unsqueeze(0)
        bank = mapss.prepare(references.unsqueeze(0))
        yield "+".join(item["id"] for item in pair), *embedded(mapss, estimates, bank, (0, 1), step)


def random_frames(count: int, distortions: int, seed: int) -> Frames:
    """Frames from all over: far and near clusters, round and flat ones, good and bad outputs."""
    generator = torch.Generator().manual_seed(seed)

    def normal(*shape: int) -> Tensor:
        return torch.randn(count, *shape, generator=generator, dtype=torch.float64)

    def uniform(low: float, high: float, *shape: int) -> Tensor:
        return low + (high - low) * torch.rand(count, *shape, generator=generator).double()

    features = 32
    shape = torch.arange(1, features + 1).double() ** -uniform(0.0, 1.5, 1, 1)
    references = uniform(0.2, 2.0, 1, 1) * normal(2, features)
    size = uniform(0.5, 1.5, 2, distortions, 1)
    cluster = references.unsqueeze(2) + size * shape.unsqueeze(2) * normal(2, distortions, features)
    leak = uniform(-0.4, 0.4, 2, 1).clamp(min=0.0) * (references.flip(1) - references)
    outputs = references + leak + uniform(0.02, 1.0, 2, 1) * shape * normal(2, features)
    return Frames(outputs, references, cluster, {})
