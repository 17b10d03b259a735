"""Made-up sources, estimates of them, and a MAPSS with small banks."""

from __future__ import annotations

import math

import torch
from torch import Tensor

from torch_mapss import MAPSS, DistortionBank, Scores
from torch_mapss.encoders import MelEncoder

RATE = 16000


def noise(*shape: int, seed: int = 0, dtype: torch.dtype = torch.float32) -> Tensor:
    generator = torch.Generator().manual_seed(seed)
    return 0.1 * torch.randn(*shape, generator=generator, dtype=torch.float64).to(dtype)


def bursts(seconds: float, sources: int = 2, seed: int = 0, rate: int = RATE) -> Tensor:
    """Low-heavy noise whose sources come and go at rates of their own."""
    generator = torch.Generator().manual_seed(seed)
    samples = round(seconds * rate)
    noise = torch.randn(sources, samples, generator=generator)
    noise = noise + 4 * torch.nn.functional.avg_pool1d(noise.unsqueeze(1), 9, 1, 4).squeeze(1)
    time = torch.arange(samples) / rate
    beats = 1.7 + 0.6 * torch.arange(sources).unsqueeze(-1)
    return 0.05 * noise * (0.05 + (torch.sin(2 * math.pi * beats * time) > -0.4))


def leaky(references: Tensor, amount: float = 0.3) -> Tensor:
    return references + amount * references.flip(-2) + 0.01 * torch.sign(references)


def voices(batch: int = 1, sources: int = 2, samples: int = 8000, seed: int = 0) -> Tensor:
    """(B, S, T) noise and a moving tone, their levels moving too: one character per source."""
    generator = torch.Generator().manual_seed(seed)
    time = torch.arange(samples) / RATE
    waves = []
    for b in range(batch):
        for s in range(sources):
            noise = torch.randn(samples, generator=generator)
            tone = torch.sin(2 * torch.pi * (180 + 130 * s) * time + 3 * torch.sin(9 * time + b))
            level = 0.6 + 0.4 * torch.sin(2 * torch.pi * (2 + s) * time + s)
            waves.append(level * (0.15 * noise + 0.3 * tone))
    return torch.stack(waves).reshape(batch, sources, samples)


def small(encoder: object = "mel", size: int = 14, **options: object) -> MAPSS:
    banks = {"separation_bank": DistortionBank(size=size)}
    banks["match_bank"] = DistortionBank("match", size=size + 1)
    return MAPSS(encoder, **banks | options)  # type: ignore[arg-type]


def scores_of(mapss: MAPSS, estimates: Tensor, references: Tensor) -> Tensor:
    """(2, B, S') utterance PS and PM."""
    means = mapss(estimates, references).utterance()
    return torch.stack([means.ps, means.pm])


def by_hand(frames: Tensor, active: Tensor, weights: Tensor | None = None) -> float:
    """The mean over frames, then sources, then mixtures, of what is active: in loops."""
    weights = torch.ones_like(frames) if weights is None else weights
    mixtures = []
    for rows in zip(frames, active, weights):
        sources = [v[a] @ w[a].to(v) / w[a].sum() for v, a, w in zip(*rows) if a.any()]
        mixtures += [sum(sources) / len(sources)] if sources else []
    return float(sum(mixtures) / len(mixtures))


class Counting(MelEncoder):
    """Mel that counts the waveforms it is given."""

    waveforms = 0

    def forward(self, waveform: Tensor, memory: int | None = None) -> Tensor:
        self.waveforms += waveform[..., 0].numel()
        return super().forward(waveform, memory)


def assert_scores_equal(actual: Scores, expected: Scores, **tolerance: float) -> None:
    """PS, PM and distances of every frame, up to 1e-6 unless said otherwise."""
    tolerance = tolerance or {"rtol": 1e-6, "atol": 1e-6}
    for name in ("ps", "pm", "log_pm", "attributed_distance", "foreign_distance"):
        torch.testing.assert_close(getattr(actual, name), getattr(expected, name), **tolerance)
    assert torch.equal(actual.active, expected.active)
