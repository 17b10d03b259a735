"""Outputs in any order: ``pit="si_sdr"``, and torchmetrics' wrapper around the functions."""

from __future__ import annotations

import functools

import pytest
import torch
from lightning_utilities.core.imports import RequirementCache
from metric_pairs import FUNCTIONS
from stub_scorers import SAMPLES, leaking_pair, stub_scorer
from torchmetrics.audio import PermutationInvariantTraining
from torchmetrics.functional.audio import permutation_invariant_training

from torch_mapss import Fidelity, PerceptualSeparation
from torch_mapss.metrics import perceptual_match, perceptual_separation

near = functools.partial(torch.testing.assert_close, rtol=0, atol=1e-6, equal_nan=True)


@pytest.mark.parametrize("metric_class", [PerceptualSeparation, Fidelity])
def test_outputs_in_any_order_find_their_references(metric_class):
    mapss = stub_scorer()
    preds, target = leaking_pair(3, sources=3)
    orders = [[2, 0, 1], [0, 1, 2], [1, 0, 2]]
    shuffled = torch.stack([item[order] for item, order in zip(preds, orders)])
    for reduction in ("mean", "source", "none"):
        function = functools.partial(FUNCTIONS[metric_class], mapss=mapss, reduction=reduction)
        near(function(shuffled, target, pit="si_sdr"), function(preds, target))
        plain, metric = (metric_class(mapss, reduction=reduction, pit=p) for p in (None, "si_sdr"))
        for references in (target, mapss.prepare(target)):
            near(metric(shuffled, references), plain(preds, target))
    metric, plain = metric_class(mapss, pit="si_sdr"), metric_class(mapss)
    lengths = [SAMPLES, 2400, 3200]
    near(metric(shuffled, target, lengths), plain(preds, target, lengths))
    near(metric(shuffled[0], target[0]), plain(preds[0], target[0]))
    leaf_shuffled = shuffled.clone().requires_grad_()
    leaf_in_order = preds.clone().requires_grad_()
    metric(leaf_shuffled, target).backward()
    plain(leaf_in_order, target).backward()
    torch.testing.assert_close(leaf_shuffled.grad[0], leaf_in_order.grad[0, orders[0]])


def test_pit_needs_all_outputs_and_uses_trimmed_signals():
    mapss, (preds, target) = stub_scorer(), leaking_pair(2)
    with pytest.raises(ValueError, match="1 estimates for 2 references"):
        PerceptualSeparation(mapss, pit="si_sdr").update(preds[:, :1], target)
    trimmed = PerceptualSeparation(stub_scorer(trim=True), pit="si_sdr")
    value = trimmed(preds.flip(1)[..., :-100], target)
    near(value, PerceptualSeparation(mapss)(preds[..., :-100], target[..., :-100]))


@pytest.mark.parametrize("function", [perceptual_separation, perceptual_match])
def test_permutation_invariant_training(function):
    mapss, coarse = stub_scorer(), stub_scorer(energy=0.95)
    _, target = leaking_pair(3)
    preds = target + 0.1 * target.roll(1, 1)
    swapped = torch.stack([preds[0].flip(0), preds[1], preds[2].flip(0)])
    options = {"log": True} if function is perceptual_match else {}
    values, whole_mixtures = [], {"mode": "permutation-wise"}
    for scorer in (mapss, coarse):  # options are honoured
        bound = functools.partial(function, mapss=scorer, **options)
        value, order = permutation_invariant_training(swapped, target, bound, **whole_mixtures)
        assert order.tolist() == [[1, 0], [0, 1], [1, 0]]
        expected = function(preds, target, scorer, **options)
        # log PM lies in the millions here: float32 waveforms in another order of a batch move it.
        torch.testing.assert_close(value, expected, rtol=1e-5, atol=1e-5)
        metric = PermutationInvariantTraining(bound, **whole_mixtures)
        torch.testing.assert_close(metric(swapped, target), value.mean())
        values.append(value)
    assert not torch.equal(*values)
    if RequirementCache("torchmetrics>=1.8"):  # older ones drop keywords in this mode
        keywords = {**whole_mixtures, "mapss": mapss, **options}
        value, _ = permutation_invariant_training(swapped, target, function, **keywords)
        assert torch.equal(value, values[0])
    with pytest.raises(ValueError, match="mode='permutation-wise'"):
        permutation_invariant_training(preds, target, function, mode="speaker-wise", mapss=mapss)
