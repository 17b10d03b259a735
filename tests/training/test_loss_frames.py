"""Random frames of a loss: others in every call, the same in every evaluation."""

from __future__ import annotations

import math

import torch
from bursts import leaky, voices
from loss_cases import scorer

from torch_mapss import (
    SeparationLoss,
)


def test_random_frames_move_on_in_training_and_stay_in_evaluation(references):
    estimates = leaky(references)
    loss = SeparationLoss(scorer(), frames=5)
    bank = loss.mapss.prepare(references)
    training = [float(loss(estimates, bank)) for _ in range(4)]
    assert len(set(training)) == 4
    passes = []
    for _ in range(2):
        loss.eval()
        passes.append([float(loss(estimates, bank)) for _ in range(3)])
    assert passes[0] == passes[1]
    assert len(set(passes[0])) == 3  # else the mean over batches would be biased
    loss.train()
    fifth = float(loss(estimates, bank))
    resumed = SeparationLoss(loss.mapss, frames=5)
    resumed.draws = loss.draws - 1
    assert float(resumed(estimates, bank)) == fifth
    of_another_seed = SeparationLoss(loss.mapss, frames=5, seed=1)
    assert float(of_another_seed(estimates, bank)) not in training


def test_random_frames_estimate_the_loss_without_bias():
    references = voices(1, 2, 4800)
    estimates = leaky(references)
    loss = SeparationLoss(scorer(), frames=6)
    bank = loss.mapss.prepare(references)
    draws = torch.stack([loss(estimates, bank) for _ in range(25)])
    expected = SeparationLoss(loss.mapss)(estimates, bank)
    error = draws.std() / math.sqrt(len(draws))
    assert float((draws.mean() - expected).abs()) < 4.0 * float(error)
    assert float(draws.std()) > 0.0
