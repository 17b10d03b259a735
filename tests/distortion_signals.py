"""Signals that distortions are tested on, and what some members of the paper's banks are set to."""

from __future__ import annotations

import math

import scipy.signal
import torch
from torch import Tensor

RATE = 16000
TONES = {100: 0.02, 500: 0.04, 1000: 0.06, 4000: 0.08}  # Hz -> amplitude in the bank of PS


def white(*shape: int, seed: int = 0, level: float = 0.1) -> Tensor:
    generator = torch.Generator().manual_seed(seed)
    return level * torch.randn(*shape, generator=generator, dtype=torch.float64)


def rms(wave: Tensor) -> Tensor:
    return wave.square().mean(-1).sqrt()


def speechlike(sources: int, length: int, seed: int = 0) -> Tensor:
    """Low-heavy noise in bursts: peaks, quantiles and gaps differ per source."""
    noise = scipy.signal.lfilter([1], [1, -0.9], white(sources, length, seed=seed))
    time = torch.arange(length, dtype=torch.float64) / RATE
    return 0.2 * torch.from_numpy(noise) * (0.02 + (torch.sin(2 * math.pi * 2.3 * time) > -0.3))
