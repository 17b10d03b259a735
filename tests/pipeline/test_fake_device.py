"""The whole way from waveforms to scores on a device that is not the CPU, forward and backward.

Run on tensors without values (``fake_device``), so no such device is needed.
"""

from __future__ import annotations

import warnings
from collections.abc import Iterator
from typing import Any

import pytest
import torch
from fake_device import backward, fake_device
from torch import Tensor

from torch_mapss import MAPSS, DistortionBank, MAPSSLoss
from torch_mapss.audio.loudness import normalize_loudness
from torch_mapss.pipeline.copies import Encoding


@pytest.fixture(autouse=True)
def fake(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """A fake device, on which no embedding is broken, and no memory is to be measured."""
    monkeypatch.setattr(Encoding, "check", lambda _: None)
    with fake_device(), warnings.catch_warnings():
        warnings.simplefilter("ignore")  # nothing is known of any value: no frame need be scored
        yield


class Frames:
    """The waveform's frames, encoded by calls that lengths share."""

    sample_rate, hop, receptive_field, local = 16_000, 320, 400, True

    def __call__(self, waveform: Tensor) -> Tensor:
        return waveform.unfold(-1, 400, 320).sin()


def mapss_of(encoder: Any = "waveform", **options: Any) -> MAPSS:
    banks = {f"{kind}_bank": DistortionBank(kind, size=4) for kind in ("separation", "match")}
    return MAPSS(encoder, decomposition_encoder=encoder, memory="1GiB", **banks, **options)


# Made outside of the fake device, whose tensors have no values to choose filters by.
SCORER, FRAMES = mapss_of(align_polarity=True), mapss_of(Frames())


def signals(*shape: int, requires_grad: bool = True) -> tuple[Tensor, Tensor]:
    estimates = torch.empty(*shape, 4000, device="cuda", requires_grad=requires_grad)
    return estimates, torch.empty(*shape, 4000, device="cuda")


def assert_slopes(score: Tensor, leaf: Tensor) -> None:
    assert score.device.type == "cuda"
    (gradient,) = backward(score).values()
    assert (gradient.device, gradient.shape) == (leaf.device, leaf.shape)


def test_scores_and_their_gradients() -> None:
    estimates, references = signals(1, 3)
    bank = SCORER.prepare(references)
    assert bank.device.type == "cuda"
    scores = SCORER(estimates, bank)
    found = [x for x in vars(scores).values() if isinstance(x, Tensor) and x.ndim == 3]
    assert {x.device.type for x in found} == {"cuda"}
    names = ("ps", "log_pm", "pm", "clearance", "distortion_ratio")
    assert_slopes(torch.stack([getattr(scores, name).sum() for name in names]).sum(), estimates)


def test_a_step_of_training_with_lengths() -> None:
    estimates, references = signals(2, 2)
    loss = MAPSSLoss(FRAMES)
    assert_slopes(loss(estimates, references, lengths=(4000, 3300)), estimates)


def test_scores_and_bounds_of_two_systems() -> None:
    estimates, references = signals(1, 3, requires_grad=False)
    for found in SCORER.bound_systems([estimates, estimates], SCORER.prepare(references)):
        parts = (found.scores.ps, *found.ps, *found.pm, *found.fidelity)
        assert {x.device.type for x in parts} == {"cuda"}


def test_loudness() -> None:
    waves = torch.empty(2, 16_000, device="cuda", requires_grad=True)
    assert_slopes(normalize_loudness(waves, 16_000).sum(), waves)
