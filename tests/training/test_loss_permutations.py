"""Outputs in any order: the permutation that a loss takes."""

from __future__ import annotations

import functools

import pytest
import torch
from loss_cases import LOSSES, gradient, scorer
from waveforms import impaired, voices

from torch_mapss import (
    DistortionBank,
    FidelityLoss,
    MAPSSLoss,
    SeparationLoss,
)


@pytest.mark.parametrize("pit", ["si_sdr", "loss"])
def test_permutations_are_found_for_each_mixture(pit):
    references = voices(2, 3, 4800)
    estimates = impaired(references, 0.2)
    shuffled = torch.stack([estimates[0, [2, 0, 1]], estimates[1]])
    options = {"reduction": "none", "extra": lambda e, r: 50.0 * (e - r).abs().mean(-1)}
    plain, loss = MAPSSLoss(scorer(), **options), MAPSSLoss(scorer(), pit=pit, **options)
    expected, value = plain(estimates, references), loss(shuffled, references)
    assert loss.last.order.tolist() == [[1, 2, 0], [0, 1, 2]]
    torch.testing.assert_close(value[0], expected[0, [2, 0, 1]])  # where the estimates stand
    torch.testing.assert_close(value[1], expected[1])
    _, grad = gradient(loss, shuffled, references)
    _, straight = gradient(plain, estimates, references)
    torch.testing.assert_close(grad[0], straight[0, [2, 0, 1]])


def test_permutation_by_loss_is_the_least_and_sees_the_same_random_frames(references):
    estimates = impaired(references, 0.9)
    loss = SeparationLoss(scorer(), reduction="item")
    of_orders = torch.stack([loss(estimates, references), loss(estimates.flip(1), references)])
    permuted = SeparationLoss(scorer(), reduction="item", pit="loss")(estimates, references)
    torch.testing.assert_close(permuted, of_orders.min(0).values)
    swapped = impaired(references).flip(1)
    plain = SeparationLoss(scorer(), frames=7, seed=4)
    loss = SeparationLoss(scorer(), frames=7, seed=4, pit="loss")
    for _ in range(2):
        torch.testing.assert_close(loss(swapped, references), plain(swapped.flip(1), references))


def test_permutations_that_make_no_sense(references, monkeypatch):
    monkeypatch.setattr(DistortionBank, "measure", None)  # refused before anything is distorted
    with pytest.raises(ValueError, match="one estimate per reference"):
        SeparationLoss(scorer(), pit="si_sdr")(references[:, :1], references, attributed=(0,))
    five_sources = voices(1, 5, 2400)
    with pytest.raises(ValueError, match="at most 4 sources, got 5"):
        SeparationLoss(scorer(), pit="loss")(five_sources, five_sources)
    for make in (FidelityLoss, functools.partial(MAPSSLoss, separation=0)):
        with pytest.raises(ValueError, match="pit"):  # distortion alone orders no outputs
            make(scorer(), pit="loss")


def test_inside_a_permutation_wrapper(references):
    """torchmetrics' wrapper, whole mixtures at a time; speaker by speaker is refused."""
    from torchmetrics.functional.audio import permutation_invariant_training as pit

    loss = SeparationLoss(scorer(), reduction="item", mode="log")
    estimates = impaired(references)
    swapped = torch.cat([estimates[:1].flip(1), estimates[1:]])
    best, order = pit(swapped, references, loss, mode="permutation-wise", eval_func="min")
    torch.testing.assert_close(best, loss(estimates, references))
    assert order.tolist() == [[1, 0], [0, 1], [0, 1]]
    with pytest.raises(ValueError, match="no value speaker by speaker"):
        pit(swapped, references, loss, mode="speaker-wise", eval_func="min")


def test_swapped_arguments_are_recognised_by_their_gradients(references):
    estimates = impaired(references).requires_grad_()
    for loss in (make(scorer()) for make in LOSSES.values()):
        with pytest.raises(ValueError, match="estimates first"):
            loss(references, estimates)
        with torch.no_grad():  # nothing tells them apart in validation
            loss(references, estimates)
        with pytest.raises(TypeError, match="estimates must be a tensor"):
            loss(loss.mapss.prepare(references), estimates)
