"""Random frames and grids of a loss: others in every call, the same in every evaluation."""

from __future__ import annotations

import math

import pytest
import torch
from loss_cases import EVERYTHING, gradient, scorer
from torch import Tensor
from waveforms import RATE, impaired, noise, voices

from torch_mapss import (
    MAPSS,
    ClearanceLoss,
    DecompositionLoss,
    FidelityLoss,
    MAPSSLoss,
    MatchLoss,
    SeparationLoss,
)
from torch_mapss.pipeline.frame_draws import grid_shift


def test_random_frames_move_on_in_training_and_stay_in_evaluation(references):
    estimates = impaired(references)
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
    estimates = impaired(references)
    loss = SeparationLoss(scorer(), frames=6)
    bank = loss.mapss.prepare(references)
    draws = torch.stack([loss(estimates, bank) for _ in range(25)])
    expected = SeparationLoss(loss.mapss)(estimates, bank)
    error = draws.std() / math.sqrt(len(draws))
    assert float((draws.mean() - expected).abs()) < 4.0 * float(error)
    assert float(draws.std()) > 0.0


# ------------------------------------------------------------------------------------------------
# Where the frames begin
# ------------------------------------------------------------------------------------------------

OF_THE_PAIR = (ClearanceLoss, FidelityLoss, DecompositionLoss, EVERYTHING)


@pytest.mark.parametrize("make", OF_THE_PAIR, ids=["clearance", "fidelity", "pair", "everything"])
def test_in_training_every_call_has_a_grid_of_its_own(references, make):
    """The loss of a call is that of both signals without the samples before its grid."""
    estimates = impaired(references)
    loss, on_one_grid = make(scorer(), seed=3), make(scorer(), seed=3).eval()
    values = []
    for draw in range(4):
        offset = int(grid_shift(3, draw) * 320)
        value, grad = gradient(loss, estimates, references)
        cut = estimates[..., offset:], references[..., offset:]
        expected, expected_grad = gradient(on_one_grid, *cut)
        torch.testing.assert_close(value, expected)
        torch.testing.assert_close(grad[..., offset:], expected_grad)
        assert (grad[..., :offset] == 0.0).all()
        values.append(float(value))
    assert len(set(values)) == 4
    resumed = make(scorer(), seed=3)
    resumed.draws = 2
    assert float(resumed(estimates, references)) == values[2]
    assert float(make(scorer(), seed=4)(estimates, references)) not in values


def test_grids_are_spread_over_a_hop():
    shares = torch.tensor([grid_shift(seed, draw) for seed in range(4) for draw in range(500)])
    assert shares.min() >= 0.0
    assert shares.max() < 1.0
    counts = shares.histc(8, 0.0, 1.0)
    assert counts.min() > 180  # of 250, with a standard deviation of 15
    assert counts.max() < 320


def test_evaluation_banks_and_the_paper_s_measures_have_one_grid(references):
    estimates = impaired(references)
    pair = DecompositionLoss(scorer())
    bank = pair.prepare(references)
    with_bank = {float(pair(estimates, bank)) for _ in range(3)}
    in_evaluation = {float(pair.eval()(estimates, references)) for _ in range(3)}
    assert with_bank == in_evaluation
    assert len(with_bank) == 1
    for loss in (SeparationLoss(scorer()), MatchLoss(scorer()), MAPSSLoss(scorer(), si_sdr=0.1)):
        assert len({float(loss(estimates, references)) for _ in range(3)}) == 1


def test_a_grid_of_another_rate_of_padded_clips_and_of_a_single_frame(references):
    mapss = scorer(sample_rate=32000)
    loss = DecompositionLoss(mapss, si_sdr=0.1, reduction="item", weighting="energy", pit="si_sdr")
    estimates, lengths = impaired(references).flip(1), torch.tensor([4800, 3300, 800])
    first_draw = int(grid_shift(0, 0) * 640)
    assert first_draw > 1
    values = loss(estimates, references, lengths=lengths)  # the last clip has one frame: no shift
    torch.testing.assert_close(values, loss.eval()(estimates, references, lengths=lengths))
    loss.train()
    loss.draws = 0
    spans = estimates[:2], references[:2]
    values = loss(*spans, lengths=lengths[:2])
    cut = (signal[..., first_draw:] for signal in spans)
    torch.testing.assert_close(values, loss.eval()(*cut, lengths=lengths[:2] - first_draw))


def test_a_term_of_ones_own_sees_whole_signals(references):
    seen = []

    def extra(waves: Tensor, truth: Tensor) -> Tensor:
        seen.append((waves, truth))
        return (waves - truth).abs().mean(-1)

    estimates = impaired(references)
    loss = DecompositionLoss(scorer(), pit="loss")
    loss.extra = extra
    loss(estimates.flip(1), references, lengths=[4800, 4800, 4000])
    for signals, handed_in in zip(seen[0], (estimates, references)):
        assert torch.equal(signals[:2], handed_in[:2])
        assert torch.equal(signals[2, :, :4000], handed_in[2, :, :4000])
        assert (signals[2, :, 4000:] == 0.0).all()


def test_samples_before_a_grid_are_checked_as_all_others(references):
    spoilt = references.clone()
    spoilt[0, 1, 0] = math.nan
    loss = DecompositionLoss(scorer())
    with pytest.raises(ValueError, match=r"references must be finite.* the first at sample 0"):
        loss(impaired(references), spoilt)
    with pytest.raises(ValueError, match=r"estimates must be finite.* the first at sample 0"):
        loss(spoilt, references)


@pytest.mark.slow
def test_training_on_drawn_grids_leaves_nothing_between_them():
    """With a bank of one grid fidelity is 0.04 lower between its frames than on them."""
    references = voices(samples=6000)
    mapss = MAPSS("mel", measures="decomposition")
    loss = DecompositionLoss(mapss)
    estimates = references + 0.5 * noise(*references.shape) + 0.2 * references.flip(1)
    estimates.requires_grad_()
    optimizer = torch.optim.Adam([estimates], lr=4e-3)
    for _ in range(60):
        optimizer.zero_grad()
        loss(estimates, references).backward()
        optimizer.step()
    fidelity = []
    for milliseconds in (0, 5, 10, 15):
        offset = milliseconds * RATE // 1000
        shifted = estimates.detach()[..., offset:], references[..., offset:]
        fidelity.append(float(mapss(*shifted).utterance().fidelity.mean()))
    assert min(fidelity) > 0.95
    assert max(fidelity) - min(fidelity) < 0.02
