"""What is undefined: silence, padding, samples that are not finite."""

from __future__ import annotations

import math
import warnings

import pytest
import torch
from loss_cases import each_loss, gradient, scorer
from waveforms import impaired, voices

from torch_mapss import (
    DecompositionLoss,
    MAPSSLoss,
    MatchLoss,
    SeparationLoss,
)


@pytest.mark.parametrize("make", [SeparationLoss, MatchLoss, DecompositionLoss, MAPSSLoss])
def test_a_mixture_with_a_silent_reference_does_not_count(references, make):
    estimates = impaired(references)
    broken = references.clone()
    broken[1, 0] = 0.0
    keep = [0, 2]
    value, grad = gradient(make(scorer()), estimates, broken)
    expected, expected_grad = gradient(make(scorer()), estimates[keep], references[keep])
    torch.testing.assert_close(value, expected)
    assert float(grad[1].abs().max()) == 0.0
    torch.testing.assert_close(grad[keep], expected_grad)
    by_estimate, _ = gradient(make(scorer(), reduction="none"), estimates, broken)
    assert by_estimate[1].tolist() == [0.0, 0.0]
    assert float(by_estimate[keep].min()) > 0.0


@each_loss
def test_a_silent_estimate_costs_more_than_a_leaky_one(references, make):
    estimates = references + 0.3 * references.roll(1, -2)
    silent = estimates.clone()
    silent[1, 0] = 0.0
    loss = make(scorer(), reduction="none").eval()  # on one grid
    (value, _), (good, _) = (gradient(loss, e, references) for e in (silent, estimates))
    assert float(value[1, 0]) > float(good[1, 0])
    torch.testing.assert_close(value[[0, 2]], good[[0, 2]])


@pytest.mark.parametrize("si_sdr", [0.0, 0.1])
def test_nothing_defined_is_a_zero_with_one_warning(references, si_sdr):
    loss = MAPSSLoss(scorer(), si_sdr=si_sdr)
    silence = torch.zeros_like(references)
    with pytest.warns(UserWarning, match="no estimate of this batch of 3 can be scored") as caught:
        value, grad = gradient(loss, references, silence)
    assert (len(caught), float(value), float(grad.abs().max())) == (1, 0.0, 0.0)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        gradient(loss, references, silence)
    assert bool(loss.last.terms["match_loss"].isnan())


def test_padded_batches_score_as_the_mixtures_alone():
    references, lengths = voices(3, 2, 6400), (6400, 4000, 5200)
    estimates = impaired(references)
    for item, length in enumerate(lengths):
        references[item, :, length:] = 0.0
        estimates[item, :, length:] = 7.0  # whatever the padding holds
    loss = MAPSSLoss(scorer(), si_sdr=0.1, reduction="none", weighting="energy")
    value, grad = gradient(loss, estimates, references, lengths=lengths)
    for item, length in enumerate(lengths):
        span = slice(item, item + 1), slice(None), slice(length)
        alone, alone_grad = gradient(loss, estimates[span], references[span])
        torch.testing.assert_close(value[item], alone[0], rtol=1e-3, atol=1e-3)
        torch.testing.assert_close(grad[span], alone_grad, rtol=1e-2, atol=1e-5)
        assert float(grad[item, :, length:].abs().sum()) == 0.0


@pytest.mark.parametrize(("pit", "si_sdr"), [(None, 0.0), ("si_sdr", 0.0), (None, 0.1)])
def test_unchecked_samples_take_out_their_mixture(references, pit, si_sdr):
    estimates = impaired(references)
    broken = estimates.clone()
    broken[2, 1, 700] = math.nan
    loss = MAPSSLoss(scorer(check_finite=False), pit=pit, si_sdr=si_sdr)
    value, grad = gradient(loss, broken, references)
    expected, _ = gradient(loss, estimates[:2], references[:2])
    torch.testing.assert_close(value, expected)
    assert float(grad[2].abs().max()) == 0.0
