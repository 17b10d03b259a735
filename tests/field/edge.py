"""Inputs for the edge cases: short signals, stub encoders, gradients that must be finite."""

from __future__ import annotations

import math
from typing import Any

import torch
from torch import Tensor

from torch_mapss import MAPSS, DistortionBank

RATE = 16_000
MEMBERS = 6


def small(encoder: Any = "mel", **options: Any) -> MAPSS:
    """A scorer with six distortions a source: a call takes milliseconds."""
    return MAPSS(
        encoder,
        separation_bank=DistortionBank("separation", size=MEMBERS),
        match_bank=DistortionBank("match", size=MEMBERS),
        **options,
    )


def voices(batch: int = 1, sources: int = 2, seconds: float = 0.5, seed: int = 0) -> Tensor:
    """(B, S, T) harmonic tones with moving level over a little noise, all sounding throughout.

    Sources do not depend on how many there are: the first two of three are those of two.
    """
    time = torch.arange(round(seconds * RATE), dtype=torch.float64) / RATE
    waves = []
    for item in range(batch):
        for source in range(sources):
            generator = torch.Generator().manual_seed(1000 * seed + 10 * item + source)
            pitch = 140.0 * 1.7**source * (1.0 + 0.1 * torch.rand(1, generator=generator).double())
            tone = sum((math.tau * k * pitch * time + k).sin() / k for k in range(1, 6))
            level = 0.6 + 0.3 * (math.tau * (2 + source) * time + item).sin()
            noise = torch.randn(len(time), generator=generator, dtype=torch.float64)
            waves.append(0.2 * level * tone + 0.02 * noise)
    return torch.stack(waves).reshape(batch, sources, -1).float()


def leaky(references: Tensor, amount: float = 0.3) -> Tensor:
    """Estimates with some of the next source and a little noise in them."""
    noise = torch.randn(references.shape, generator=torch.Generator().manual_seed(99))
    mixed = references + amount * references.roll(1, -2)
    return mixed + 0.01 * references.abs().amax().clamp(min=1e-3) * noise.to(references)


class Stub:
    """Frames of 400 samples, hop 320, as log energies of eight bands; counts calls and signals."""

    name, sample_rate, hop, receptive_field, feature_size = "stub", RATE, 320, 400, 8

    def __init__(self) -> None:
        self.calls = self.waveforms = 0

    def __call__(self, waveform: Tensor) -> Tensor:
        self.calls += 1
        self.waveforms += len(waveform)
        frames = waveform.unfold(-1, 400, 320)
        bands = torch.fft.rfft(frames).abs()[..., 1:161].unflatten(-1, (8, 20))
        return (bands.square().sum(-1) + 1e-2).log()


def scores_of(mapss: MAPSS, estimates: Tensor, references: Tensor, **options: Any) -> Tensor:
    """(2, B, S') utterance PS and PM, NaN where undefined."""
    found = mapss(estimates, references, **options).utterance()
    return torch.stack([found.ps, found.pm])


def in_range(scores: Tensor) -> bool:
    """Every score is NaN or within [0, 1] exactly."""
    return bool((scores.isnan() | ((scores >= 0.0) & (scores <= 1.0))).all())


def gradient(function: Any, estimates: Tensor, *arguments: Any, **options: Any) -> tuple:
    """Value of a loss and its gradient, both found to be finite."""
    leaf = estimates.detach().clone().requires_grad_()
    value = function(leaf, *arguments, **options)
    (slope,) = torch.autograd.grad(value.sum(), leaf)
    assert bool(value.isfinite().all())
    assert bool(slope.isfinite().all())
    return value.detach(), slope
