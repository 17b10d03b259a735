"""Scorers of stub encoders with tiny banks, and signals for them: a batch takes milliseconds."""

from __future__ import annotations

import warnings
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor
from waveforms import voices

from torch_mapss import MAPSS, DistortionBank

RATE, SAMPLES, MEMBERS = 8000, 4000, 3


class Stub:
    """Log energies of twelve bands in frames of 100 ms; counts the waveforms passed to it."""

    name, sample_rate, hop, receptive_field, feature_size = "stub", RATE, 400, 800, 12

    def __init__(self) -> None:
        self.waveforms = 0

    def __call__(self, waveform: Tensor) -> Tensor:
        self.waveforms += len(waveform)
        frames = waveform.unfold(-1, 800, 400)
        bands = torch.fft.rfft(frames).abs()[..., 1:241].unflatten(-1, (12, 20))
        return (bands.square().sum(-1) + 1e-2).log()


class Weighted(torch.nn.Module):
    """An encoder with a weight, so that copies of it can be told apart."""

    name, sample_rate, hop, receptive_field, feature_size = "weighted", RATE, 400, 800, 4

    def __init__(self) -> None:
        super().__init__()
        self.weight = torch.nn.Parameter(torch.linspace(-1, 1, 3200).reshape(800, 4).sin())

    def forward(self, waveform: Tensor) -> Tensor:
        return waveform.unfold(-1, 800, 400) @ self.weight


def banks() -> dict[str, DistortionBank]:
    return {f"{k}_bank": DistortionBank(k, size=MEMBERS) for k in ("separation", "match")}


def stub_scorer(encoder: Any = None, **options: Any) -> MAPSS:
    encoder = encoder or Stub()
    return MAPSS(encoder, decomposition_encoder=encoder, **banks(), **options)


def leaking_pair(batch: int, sources: int = 2, seed: int = 0) -> tuple[Tensor, Tensor]:
    """Estimates that leak more from item to item, and their references."""
    target = voices(batch, sources, SAMPLES, seed)
    leak = torch.linspace(0.05, 0.6, batch).reshape(-1, 1, 1)
    noise = torch.randn(target.shape, generator=torch.Generator().manual_seed(seed + 1))
    return target + leak * target.roll(1, 1) + 0.02 * noise, target


def waveform_count(items: int, measures: int = 2, sources: int = 2) -> int:
    """Every estimate, reference and distortion once."""
    return items * sources * (2 + measures * MEMBERS)


def states_of(metric: Any) -> list[Tensor]:
    """All tensors among the states of a metric, those of lists one by one."""
    tensors: list[Tensor] = []
    for state in metric.metric_state.values():
        tensors += state if isinstance(state, list) else [state]
    return tensors


def recorded(call: Callable[[], Any]) -> tuple[Any, list[str]]:
    """What a call returns, and the warnings it gives."""
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        value = call()
    return value, [str(warning.message) for warning in caught]
