"""A MAPSS with small banks, and comparisons of what it returns."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor

from torch_mapss import MAPSS, DistortionBank, Scores
from torch_mapss.encoders import Encoder, MelEncoder, as_encoder
from torch_mapss.pipeline import lazy_encoders


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


def refuse_transformers(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let only encoders without weights be made by a MAPSS."""

    def without_weights(choice: Any, **options: Any) -> Encoder:
        assert not isinstance(choice, str) or choice == "mel", f"loads the weights of {choice}"
        return as_encoder(choice, **options)

    monkeypatch.setattr(lazy_encoders, "as_encoder", without_weights)


class Counting(MelEncoder):
    """Mel that counts the waveforms passed to it."""

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
