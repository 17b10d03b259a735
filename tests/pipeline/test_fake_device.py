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

OPTIONS: dict[str, dict[str, Any]] = {
    "paper": {},
    "reference": {"convention": "reference"},
    "float32 eigh": {"eigh": "float32"},
    "signs aligned": {"align_polarity": True},
}


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
    banks = {f"{kind}_bank": DistortionBank(kind, size=12) for kind in ("separation", "match")}
    return MAPSS(encoder, decomposition_encoder=encoder, memory="1GiB", **banks, **options)


# Made outside of the fake device, whose tensors have no values to choose filters by.
SCORERS = {name: mapss_of(**options) for name, options in OPTIONS.items()}
FRAMES = mapss_of(Frames())


def signals(requires_grad: bool = True) -> tuple[Tensor, Tensor]:
    estimates = torch.empty(1, 3, 8000, device="cuda", requires_grad=requires_grad)
    return estimates, torch.empty(1, 3, 8000, device="cuda")


def assert_slopes(score: Tensor, leaf: Tensor) -> None:
    assert score.device.type == "cuda"
    (gradient,) = backward(score).values()
    assert (gradient.device, gradient.shape) == (leaf.device, leaf.shape)


@pytest.mark.parametrize("options", OPTIONS)
def test_scores_and_their_gradients(options: str) -> None:
    estimates, references = signals()
    mapss = SCORERS[options]
    bank = mapss.prepare(references)
    assert bank.device.type == "cuda"
    scores = mapss(estimates, bank)
    found = [x for x in vars(scores).values() if isinstance(x, Tensor) and x.ndim == 3]
    assert {x.device.type for x in found} == {"cuda"}
    names = ("ps", "log_pm", "pm", "clearance", "distortion_ratio")
    assert_slopes(torch.stack([getattr(scores, name).sum() for name in names]).sum(), estimates)


@pytest.mark.parametrize("lengths", [None, (8000, 7300, 7900)])
def test_a_step_of_training(lengths: tuple[int, ...] | None) -> None:
    estimates = torch.empty(3, 2, 8000, device="cuda", requires_grad=True)
    references = torch.empty(3, 2, 8000, device="cuda")
    loss = MAPSSLoss(FRAMES if lengths else SCORERS["paper"])
    assert_slopes(loss(estimates, references, lengths=lengths), estimates)


def test_bounds_and_several_systems() -> None:
    estimates, references = signals(requires_grad=False)
    mapss = SCORERS["paper"]
    bank = mapss.prepare(references)
    bounds = mapss.bounds(estimates, bank)
    assert {x.device.type for x in (*bounds.ps, *bounds.pm, *bounds.fidelity)} == {"cuda"}
    for scores in mapss.score_systems([estimates, estimates], bank):
        assert scores.ps.device.type == "cuda"


def test_loudness() -> None:
    waves = torch.empty(2, 16_000, device="cuda", requires_grad=True)
    assert_slopes(normalize_loudness(waves, 16_000).sum(), waves)
