"""Mixtures of several lengths: they share encoder calls, and each scores as if it were alone."""

from __future__ import annotations

import functools
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
import small_scorers
import torch
from checkpoints import write_checkpoint, write_whisper
from torch import Tensor
from waveforms import RATE, impaired, voices

from torch_mapss import MAPSS, DistortionBank, ReferenceBank
from torch_mapss.encoders import load_encoder

LENGTHS = (5600, 5033, 4600)
FIELDS = ("ps", "pm", "log_pm", "attributed_distance", "foreign_distance")


small = functools.partial(small_scorers.small, size=8)


def alone(mapss: MAPSS, estimates: Tensor, references: Tensor, lengths: Sequence[int]) -> list[Any]:
    """Scores of each mixture on its own, without its padding."""
    return [
        mapss(estimates[k : k + 1, :, :n], references[k : k + 1, :, :n])
        for k, n in enumerate(lengths)
    ]


def assert_scores_equal(batch_scores: Any, scores_by_item: Sequence[Any], digits: float) -> None:
    for k, item_scores in enumerate(scores_by_item):
        frames = item_scores.ps.shape[-1]
        assert torch.equal(batch_scores.active[k : k + 1, :, :frames], item_scores.active)
        assert not batch_scores.active[k, :, frames:].any()
        for name in FIELDS:
            values = getattr(batch_scores, name)[k : k + 1, :, :frames]
            torch.testing.assert_close(values, getattr(item_scores, name), rtol=digits, atol=digits)


def transformer(folder: Path, family: str, layer: int = 2) -> Any:
    """In float64: that scores are equal must not hang on rounding, which distances magnify."""
    if family == "whisper":
        write_whisper(folder)
    else:
        write_checkpoint(folder, family.removesuffix("-base"), not family.endswith("-base"))
    return load_encoder(folder, layer=layer, dtype=torch.float64)


@pytest.mark.parametrize(
    "name", ["mel", "waveform", "both", "wav2vec2", "hubert-base", "wavlm", "whisper"]
)
def test_scores_and_gradients_are_those_of_each_alone(tmp_path, name):
    if name == "both":
        mapss = small("waveform", match_encoder="mel")
    else:
        mapss = small(name if name in ("mel", "waveform") else transformer(tmp_path, name))
    references = voices(3, samples=5600).double()
    estimates = impaired(references)
    for item, length in enumerate(LENGTHS):
        estimates[item, :, length:] = torch.nan  # padding may hold anything
    scores = mapss(estimates.requires_grad_(), references, lengths=LENGTHS)
    (scores.ps.sum() - scores.log_pm.sum()).backward()
    gradients = []
    for k, n in enumerate(LENGTHS):
        estimate = impaired(references)[k : k + 1, :, :n].requires_grad_()
        item_scores = mapss(estimate, references[k : k + 1, :, :n])
        (item_scores.ps.sum() - item_scores.log_pm.sum()).backward()
        difference = (estimates.grad[k, :, :n] - estimate.grad[0]).norm()
        assert float(difference / estimate.grad.norm()) < 1e-6
        assert float(estimates.grad[k, :, n:].abs().sum()) == 0.0
        gradients.append(item_scores)
    assert_scores_equal(scores, gradients, 1e-6)


def test_members_that_are_missing_in_some_lengths():
    """Fewer spectral peaks mean fewer notches: rounds of unlike length, and masks of their own."""
    bank = DistortionBank("match", only=("notch", "echo", "clipping"))
    mapss = small(match_bank=bank)
    references = voices(3, samples=5600)
    time = torch.arange(5600) / RATE
    tone = torch.sin(2 * torch.pi * 440 * time) * (1 + 0.5 * torch.sin(11 * time))
    references[1] = torch.stack([tone, tone.flip(0).roll(9)])
    estimates = impaired(references)
    batch_scores = mapss(estimates, references, lengths=LENGTHS)
    counts = [
        g.encoded["match"].distortions.shape[2] for g in mapss.prepare(references, LENGTHS).groups
    ]
    assert len(set(counts)) > 1
    scores_by_item = alone(mapss, estimates, references, LENGTHS)
    assert_scores_equal(batch_scores, scores_by_item, 1e-5)
    banks = [mapss.prepare(references[k : k + 1, :, :5000]) for k in (1, 2)]
    joined = ReferenceBank.join(banks)  # of one length, so one group, with a mask
    assert joined.groups[0].encoded["match"].mask is not None
    item_scores = [mapss(estimates[k : k + 1, :, :5000], bank) for k, bank in zip((1, 2), banks)]
    assert_scores_equal(mapss(estimates[1:3, :, :5000], joined), item_scores, 1e-5)


def test_silent_and_inactive_sources_among_other_lengths():
    mapss = small()
    references = voices(3, samples=5600)
    references[1, 0] = 0.0  # silent throughout: no frame is scored
    references[2, 1, :2000] = 0.0  # inactive at first
    estimates = impaired(references)
    estimates[0, 0] = 0.0  # a silent estimate of an active source is scored
    with pytest.warns(UserWarning, match=r"mixtures \[1\] have no frame"):
        batch_scores = mapss(estimates, references, lengths=LENGTHS)
    assert not batch_scores.active[1].any()
    assert batch_scores.active[0].any()
    with pytest.warns(UserWarning, match="have no frame"):
        scores_by_item = alone(mapss, estimates, references, LENGTHS)
    assert_scores_equal(batch_scores, scores_by_item, 1e-5)
