"""What a loss is: weighted means of the scores of frames, and terms of the caller's own."""

from __future__ import annotations

import math

import pytest
import torch
from loss_cases import EVERYTHING, gradient, scorer
from small_scorers import by_hand
from torch import Tensor, nn
from waveforms import impaired, voices

from torch_mapss import (
    MAPSS,
    BleedLoss,
    ClearanceLoss,
    DecompositionLoss,
    FidelityLoss,
    MAPSSLoss,
    MatchLoss,
    Scores,
    SeparationLoss,
    audio,
)
from torch_mapss.score_table import SCORES
from torch_mapss.training.terms import LOG_FLOOR, separation_loss


@pytest.mark.parametrize(
    ("loss", "weighting", "options", "of"),
    [
        (ClearanceLoss, None, {}, lambda s: 1 - s.clearance),
        (FidelityLoss, "energy", {}, lambda s: s.distortion_ratio),
        (DecompositionLoss, "mine", {}, lambda s: 1 - s.clearance + 2 * s.distortion_ratio),
        (SeparationLoss, None, {}, lambda s: 1 - s.ps),
        (SeparationLoss, "energy", {"mode": "log"}, lambda s: -s.ps.log()),
        (MatchLoss, "mine", {"mode": "log"}, lambda s: -s.log_pm),
        (MatchLoss, None, {"mode": "linear"}, lambda s: 1 - s.pm),
        (MatchLoss, "energy", {}, lambda s: (1 - s.log_pm).log()),
        (MAPSSLoss, "mine", {}, lambda s: 1 - s.ps + 0.1 * (1 - s.log_pm).log()),
        (
            *(
                MAPSSLoss,
                None,
                {"separation": 0, "match": 0.3, "match_mode": "log", "clearance": 0.5},
            ),
            lambda s: -0.3 * s.log_pm + 0.5 * (1 - s.clearance),
        ),
    ],
)
def test_values_are_means_of_the_scores(references, loss, weighting, options, of):
    references[1, :, 2400:] = 0.0  # mixtures of different numbers of scored frames
    mapss, estimates = scorer(), impaired(references)
    scores = mapss(estimates, references)
    weights = None
    if weighting == "energy":
        normal = audio.normalize_loudness(references, 16000)
        grid = mapss.config.grid
        weights = audio.frame_rms(normal, grid.receptive_field, grid.hop).square()
    if weighting == "mine":
        weights = torch.arange(scores.ps.numel()).reshape(scores.ps.shape) % 7 + 1.0
        weighting = lambda scores, bank: weights.to(scores.ps)  # noqa: E731
    value = loss(mapss, weighting=weighting, **options).eval()(estimates, references)
    expected = by_hand(of(scores), scores.active, weights)
    assert float(value) == pytest.approx(expected, rel=1e-4)
    assert (value.shape, value.dtype) == ((), torch.float32)


def test_reductions_agree(references):
    estimates = impaired(references)
    losses = MAPSSLoss(scorer(), reduction="none", si_sdr=0.1)(estimates, references)
    assert losses.shape == (3, 2)
    mean = losses.mean()
    expected = {"item": losses.mean(-1), "sum": losses.sum(), "mean": mean, "global": mean}
    for name, value in expected.items():  # "global": of one process
        loss = MAPSSLoss(scorer(), reduction=name, si_sdr=0.1)
        torch.testing.assert_close(loss(estimates, references), value)


def test_log_of_ps_goes_on_as_its_tangent():
    """A swapped pair has PS 0 in places: its loss is finite and still falls towards the own."""
    references = voices(1, 2, 4800).double()
    loss = SeparationLoss(scorer(), mode="log")
    swapped = references.flip(1)
    value, _ = gradient(loss, swapped, references)
    _, grad = gradient(loss, swapped + 1e-3 * voices(1, 2, 4800, seed=3).double(), references)
    assert float(value) > 5.0
    assert float(grad.abs().max()) > 0.0
    shares = torch.tensor([0.0, 0.5, 1.0 - 1e-9, 1.0 + 1e-9], dtype=torch.float64)
    ps = (LOG_FLOOR * shares).requires_grad_()
    scores = Scores(torch.ones(4, dtype=torch.bool), torch.zeros(4), ("separation",), ps=ps)
    values, _ = separation_loss(scores, "log")
    values.sum().backward()
    torch.testing.assert_close(values + math.log(LOG_FLOOR), (1.0 - shares).clamp(min=0.0))
    torch.testing.assert_close(ps.grad, torch.full_like(ps, -1.0 / LOG_FLOOR))


def test_bleed_loss_is_the_level_above_the_floor():
    references = voices(2, 2, 9600)
    references[:, 0, 4800:] = 0.0
    estimates = references + torch.tensor([[[0.1], [0.1]], [[0.001], [0.1]]]) * references.flip(1)
    scores = scorer()(estimates, references, measures="bleed")
    defined = scores.defined("bleed_db")
    assert defined.any(-1).tolist() == [[True, False]] * 2
    for floor in (-80.0, -40.0):
        loss = BleedLoss(scorer(), floor_db=floor, weighting="energy")
        value, grad = gradient(loss, estimates, loss.prepare(references))
        expected = by_hand((scores.bleed_db - floor).clamp(min=0.0), defined)
        assert float(value) == pytest.approx(expected, rel=1e-5)
        assert float(loss(estimates - 1e-7 * grad, references)) < float(value)
    assert float(grad[1].abs().max()) == 0.0  # below the floor
    assert (grad[0, 0, 5200:].abs() > 0.0).any()
    assert loss.last.defined.tolist() == [[True, False]] * 2
    silent = references.clone().requires_grad_()
    (grad,) = torch.autograd.grad(loss(silent, references), silent)
    assert not bool(grad.isnan().any())


class Mine(nn.Linear):  # a term that is trained
    def forward(self, e: Tensor, r: Tensor) -> Tensor:
        return self.weight[0, 0] * (e - r).abs().mean(-1)


def test_a_term_of_ones_own(references):
    estimates, seen = impaired(references), []

    def extra(e: Tensor, r: Tensor) -> Tensor:
        seen.append(r)
        return (e - r).abs().mean(-1)

    plain = SeparationLoss(scorer())(estimates, references)
    loss = MAPSSLoss(scorer(), match=0, extra=extra)
    expected = plain + (estimates - references).abs().mean()
    torch.testing.assert_close(loss(estimates, references), expected)
    assert torch.equal(seen[0], references)
    bank = loss.mapss.prepare(references)
    torch.testing.assert_close(loss(estimates, bank, waveforms=references), expected)
    with pytest.raises(ValueError, match="waveforms=references"):
        loss(estimates, bank)
    alone = loss(estimates[:, 1:], references, attributed=(1,))
    assert torch.equal(seen[-1], references[:, 1:])
    assert bool(alone.isfinite())
    trained_term = Mine(1, 1, bias=False)
    loss = MAPSSLoss(scorer(), extra=trained_term)
    assert [name for name, _ in loss.named_parameters()] == ["extra.weight"]
    loss(estimates, references).backward()
    assert float(trained_term.weight.grad) > 0.0
    with pytest.raises(ValueError, match=r"extra must return .* \(3, 2\) for reduction 'none'"):
        MAPSSLoss(scorer(), reduction="none", extra=lambda e, r: e.mean())(estimates, references)


def test_waveforms_beside_a_bank_are_its_references(references):
    loss = MAPSSLoss(scorer(trim=True), extra=lambda e, r: (e - r).square().mean(-1))
    estimates, bank = impaired(references), loss.mapss.prepare(references)
    expected = loss(estimates, references)
    leaf = references.clone().requires_grad_()
    torch.testing.assert_close(loss(estimates, bank, waveforms=leaf), expected)
    assert not loss(estimates, bank, waveforms=leaf).requires_grad
    longer = torch.nn.functional.pad(references, (0, 40), value=1.0)
    torch.testing.assert_close(loss(estimates, longer), expected)  # trimmed alike
    for wrong in (references[:1], references[:, :1], longer):
        with pytest.raises(ValueError, match=r"waveforms must be the references \(B, S, T\)"):
            loss(estimates, bank, waveforms=wrong)
    with pytest.raises(ValueError, match="waveforms must be finite"):
        loss(estimates, bank, waveforms=torch.full_like(references, math.nan))


def test_default_terms_have_similar_gradients():
    """Relative gradient norms within a factor of ten, from a good output to the mixture."""
    references = voices(2, 2, 4800)
    noise = torch.randn(references.shape, generator=torch.Generator().manual_seed(2))
    default = MAPSSLoss(MAPSS("mel"))  # with whole banks, which the weights are made for
    bank = default.mapss.prepare(references)
    for share in (0.1, 1.0):
        estimates = references + share * (references.flip(1) + 0.01 * noise)
        norms = []
        for name in ("separation", "match"):
            weights = {"separation": 0.0, "match": 0.0, name: default.weights[name]}
            _, grad = gradient(MAPSSLoss(default.mapss, **weights), estimates, bank)
            norms.append(float(grad.norm()))
        assert 0.1 < norms[0] / norms[1] < 10.0, (share, norms)


def test_record_of_the_last_call(references):
    references[1, 0] = 0.0
    loss = MAPSSLoss(scorer(), si_sdr=0.1)
    estimates = impaired(references).requires_grad_()
    loss(estimates, references)
    assert loss.last.defined.tolist() == [[True, True], [False, False], [True, True]]
    assert int(loss.last.skipped) == 1
    assert set(loss.last.terms) == {"separation_loss", "match_loss", "si_sdr_loss"}
    assert float(loss.last.terms["si_sdr_loss"]) < 0.0
    assert not any(term.requires_grad for term in loss.last.terms.values())


def test_terms_are_called_losses_and_fall_as_their_scores_rise(references):
    """So that curves of one name run one way in training and validation."""
    loss, values = EVERYTHING(scorer()), {}
    references[:, 0, 2400:] = 0.0
    for amount in (0.1, 0.5):
        loss(impaired(references, amount), references)
        values[amount] = loss.last.terms
    labels = {score.loss_term for score in SCORES.values() if score.loss_term}
    assert set(values[0.1]) == labels | {"si_sdr_loss"}
    for name in values[0.1]:
        assert values[0.1][name] < values[0.5][name], name


def test_another_sample_rate():
    references = voices(1, 2, 9600)
    loss = MAPSSLoss(scorer(sample_rate=32000), si_sdr=0.1, pit="si_sdr", weighting="energy")
    value, grad = gradient(loss, impaired(references), references)
    low = [audio.resample(x, 32000, 16000) for x in (impaired(references), references)]
    plain = MAPSSLoss(scorer(), si_sdr=0.1, weighting="energy")
    torch.testing.assert_close(value, plain(*low))
    assert grad.shape == references.shape
