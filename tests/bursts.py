"""Noise whose sources come and go, estimates of it, and a MAPSS with small banks."""

from __future__ import annotations

import math

import torch
from torch import Tensor

from torch_mapss import MAPSS, DistortionBank

RATE = 16000


def bursts(seconds: float, sources: int = 2, seed: int = 0, rate: int = RATE) -> Tensor:
    """Low-heavy noise whose sources come and go at rates of their own."""
    generator = torch.Generator().manual_seed(seed)
    samples = round(seconds * rate)
    noise = torch.randn(sources, samples, generator=generator)
    noise = noise + 4 * torch.nn.functional.avg_pool1d(noise.unsqueeze(1), 9, 1, 4).squeeze(1)
    time = torch.arange(samples) / rate
    beats = 1.7 + 0.6 * torch.arange(sources).unsqueeze(-1)
    return 0.05 * noise * (0.05 + (torch.sin(2 * math.pi * beats * time) > -0.4))


def leaky(references: Tensor) -> Tensor:
    return references + 0.3 * references.flip(-2) + 0.01 * torch.sign(references)


def small(encoder: object = "mel", **options: object) -> MAPSS:
    return MAPSS(
        encoder,  # type: ignore[arg-type]
        separation_bank=DistortionBank(size=14),
        match_bank=DistortionBank("match", size=15),
        **options,  # type: ignore[arg-type]
    )
