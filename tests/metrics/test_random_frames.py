"""Random frames of a metric: other ones in every batch, the same for the same seed."""

from __future__ import annotations

import math

import pytest
import torch
from stub_scorers import SAMPLES, leaking_pair, stub_scorer
from torch import Tensor
from waveforms import voices

from torch_mapss import Clearance, PerceptualSeparation, SourceScores


def rising_leakage(seed: int) -> tuple[Tensor, Tensor]:
    """A clip whose estimates leak more and more towards its end."""
    target = voices(1, 2, SAMPLES, seed)
    leak = torch.linspace(0.0, 1.5, SAMPLES).square()
    return target + leak * target.flip(1), target


def test_the_mean_over_batches_is_unbiased():
    """Were the same frames drawn in every batch, no number of clips would help."""
    mapss = stub_scorer(measures="decomposition")
    drawn = Clearance(mapss, frames=2, keep_items=True)
    complete = Clearance(mapss, keep_items=True)
    for seed in range(150):
        batch = rising_leakage(seed)
        drawn.update(*batch)
        complete.update(*batch)
    errors = (drawn.item_scores() - complete.item_scores()).nanmean(1)
    errors = errors[errors.isfinite()]
    standard_error = float(errors.std()) / math.sqrt(len(errors))
    assert abs(float(errors.mean())) < 3.5 * standard_error
    assert standard_error < 0.02  # else the bound says little


@pytest.mark.parametrize("by_hand", [False, True], ids=["accumulated", "reset after each batch"])
def test_every_batch_has_a_draw_of_its_own(by_hand):
    batch = leaking_pair(2)
    metric = PerceptualSeparation(stub_scorer(), frames=4)
    values = []
    for _ in range(6):
        values.append(float(metric(*batch)))
        if by_hand:
            metric.reset()
    assert len(set(values)) == 6


def test_a_seed_makes_the_draws_again():
    batches = [leaking_pair(2, seed=seed) for seed in range(3)]

    def values(**options):
        metric = SourceScores(stub_scorer(), frames=5, **options)
        return [float(metric(*batch)["ps"]) for batch in batches]

    assert values() == values() == values(seed=0)
    assert values(seed=1) != values()
    updated = SourceScores(stub_scorer(), frames=5, keep_items=True)
    for batch in batches:
        updated.update(*batch)
    rows = updated.item_scores()["ps"].split(2)
    assert [float(row.nanmean(1).nanmean()) for row in rows] == pytest.approx(values())
    resumed = SourceScores(stub_scorer(), frames=5)
    resumed.draws = 2
    assert float(resumed(*batches[2])["ps"]) == values()[2]


def test_one_seed_is_that_of_banks_and_draws():
    metric = PerceptualSeparation(encoder="mel", seed=3)
    assert metric.mapss.separation_bank.seed == 3
    mapss = stub_scorer()
    assert PerceptualSeparation(mapss, seed=3, frames=4).mapss is mapss
