"""Settings of the losses: what is refused, what may change, what is shared."""

from __future__ import annotations

import copy
import functools
import math
import pickle

import pytest
import torch
from loss_cases import scorer
from small_scorers import refuse_transformers
from waveforms import impaired, voices

from torch_mapss import (
    MAPSS,
    Bleed,
    BleedLoss,
    Clearance,
    ClearanceLoss,
    DecompositionLoss,
    MAPSSLoss,
    MatchLoss,
    PerceptualSeparation,
    SeparationLoss,
)
from torch_mapss.metrics import clearance
from torch_mapss.training.terms import match_loss, separation_loss


def test_a_loss_prepares_and_loads_what_it_needs(references, monkeypatch):
    """No weights of the default encoder where clearance, fidelity and bleed are all there is."""
    refuse_transformers(monkeypatch)
    loss = MAPSSLoss(clearance=1.0, fidelity=2.0, bleed=0.1, separation=0.0, match=0.0)
    bank = loss.prepare(references)
    assert list(bank.groups[0].encoded) == ["decomposition"]
    assert bool(loss(impaired(references), bank).isfinite())
    assert loss.measures == loss.mapss.config.measures == ("decomposition", "bleed")
    shown = repr(DecompositionLoss(scorer(), frames=7))
    assert "clearance=1.0, fidelity=2.0" in shown
    assert "frames=7" in shown
    assert "floor_db=-30" in repr(BleedLoss(scorer(), floor_db=-30.0))
    shown = repr(MAPSSLoss(scorer(), separation_mode="log"))
    assert "separation_mode='log', match_mode='log1p'" in shown


@pytest.mark.parametrize("wrong", ["lgo", "", None])
def test_a_mode_that_there_is_not_cannot_be_set(wrong):
    scores = scorer()(voices(1, 2, 4800), voices(1, 2, 4800))
    for make, setting in ((SeparationLoss, "separation_mode"), (MatchLoss, "match_mode")):
        with pytest.raises(ValueError, match=setting):
            make(scorer(), mode=wrong)
    for term, setting in ((separation_loss, "separation_mode"), (match_loss, "match_mode")):
        with pytest.raises(ValueError, match=setting):
            term(scores, mode=wrong)


def test_a_term_may_be_replaced_by_another_of_its_kind(references):
    estimates = impaired(references)
    loss = SeparationLoss(scorer())
    loss.terms["separation"] = functools.partial(separation_loss, mode="log")
    expected = SeparationLoss(scorer(), mode="log")(estimates, references)
    torch.testing.assert_close(loss(estimates, references), expected)


def test_a_seed_is_that_of_banks_and_draws():
    loss = SeparationLoss(encoder="mel", seed=3)
    assert (loss.seed, loss.mapss.separation_bank.seed) == (3, 3)
    assert PerceptualSeparation(encoder="mel", seed=3).mapss.separation_bank.seed == 3
    assert SeparationLoss(scorer(), seed=3).mapss is scorer()


def test_an_encoder_beside_a_scorer_is_refused_also_the_default():
    for encoder in ("wav2vec2-large", "mel"):
        with pytest.raises(ValueError, match="encoder cannot be applied"):
            SeparationLoss(scorer(), encoder=encoder)


@pytest.mark.parametrize(
    ("name", "value"),
    [
        *(("reduction", "median"), ("weighting", "loud"), ("pit", "sdr"), ("frames", 0)),
        *(("seed", 2**70), ("separation", -1.0), ("match", math.nan), ("floor_db", math.nan)),
        *(("separation_mode", "log1p"), ("match_mode", "exp")),
    ],
)
def test_bad_settings(name, value):
    with pytest.raises(ValueError, match=name):
        MAPSSLoss(scorer(), **{name: value})
    with pytest.raises(ValueError, match="every term"):
        MAPSSLoss(scorer(), separation=0, match=0)


@pytest.mark.parametrize("options", [{"weight": -1}, {"rate": 16000}, {"measures": "match"}])
@pytest.mark.parametrize(
    "make",
    [DecompositionLoss, Clearance, functools.partial(clearance, torch.zeros(1), torch.zeros(1))],
    ids=["loss", "metric", "function"],
)
def test_options_that_do_nothing_are_refused(make, options):
    with pytest.raises((TypeError, ValueError), match=next(iter(options))):
        make(encoder="mel", **options)


def test_weights_may_change_between_calls(references):
    loss = MAPSSLoss(scorer(), match=0.0)
    estimates = impaired(references)
    loss(estimates, references)
    loss.weights["match"] = 0.1
    expected = MAPSSLoss(loss.mapss)
    torch.testing.assert_close(loss(estimates, references), expected(estimates, references))
    pair = ClearanceLoss(scorer())
    pair.weights |= {"bleed": 0.1, "match": 0.1, "separation": 1.0}  # settings: their defaults
    assert bool(pair(estimates, references).isfinite())
    none = dict.fromkeys(("separation", "match"), 0.0)
    fidelity = none | {"fidelity": 1.0}
    for wrong, message, pit in (
        ({"no": 1.0}, "no", None),
        ({"match": -5.0}, "match", None),
        (none, "every", None),
        (fidelity, "needs a term of leakage", "loss"),
    ):
        spoilt = MAPSSLoss(scorer(), pit=pit)
        spoilt.weights |= wrong
        with pytest.raises(ValueError, match=message):
            spoilt(estimates, references)


def test_bad_weights(references):
    for weighting, error, message in (
        (lambda s, b: -s.ps, ValueError, "at least 0"),
        (lambda s, b: s.ps * math.nan, ValueError, "finite"),
        (lambda s, b: s.ps[..., :2], ValueError, "weighting must return"),
        (lambda s, b: 1.0, TypeError, "tensor"),
    ):
        with pytest.raises(error, match=message):
            SeparationLoss(scorer(), weighting=weighting)(impaired(references), references)


def test_copies_and_pickles_right_after_a_step(references):
    loss = MAPSSLoss(scorer(), frames=7, si_sdr=0.1, pit="si_sdr")
    estimates = impaired(references).requires_grad_()
    loss(estimates, references).backward()
    twin, revived = copy.deepcopy(loss), pickle.loads(pickle.dumps(loss))
    assert twin.draws == revived.draws == loss.draws
    expected = loss(estimates, references)
    torch.testing.assert_close(twin(estimates, references), expected)
    torch.testing.assert_close(revived(estimates, references), expected)


def test_metrics_of_one_scorer_take_banks_of_their_own_measures(references):
    mapss, estimates = scorer(), impaired(references)
    pair = mapss.prepare(references, measures="decomposition")
    ps = mapss.prepare(references, measures="separation")
    metrics = [(Clearance(mapss), pair), (PerceptualSeparation(mapss), ps), (Bleed(mapss), ps)]
    for gain in (1.0, 0.9, 0.8):
        for metric, bank in metrics:
            metric.update(gain * estimates, bank)
    expected = mapss(estimates, references).utterance()
    assert float(metrics[0][0].compute()) == pytest.approx(float(expected.clearance.mean()), 1e-4)
    assert float(metrics[1][0].compute()) == pytest.approx(float(expected.ps.mean()), 1e-4)


def test_a_bank_serves_all_that_share_the_settings_of_its_measures(references):
    """The encoder of PS and PM, here one whose weights are not at hand, does not matter."""
    estimates = impaired(references)
    loss = DecompositionLoss(local_files_only=True)
    bank = loss.prepare(references)
    metric = Clearance(MAPSS("mel", measures="decomposition"))
    expected = MAPSS("mel")(estimates, references).utterance().clearance.mean()
    assert float(metric(estimates, bank)) == pytest.approx(float(expected), 1e-5)
    bank_of_all = MAPSS("mel").prepare(references)
    assert float(loss(estimates, bank_of_all)) == pytest.approx(float(loss(estimates, bank)), 1e-5)
    assert "wav2vec2" not in repr(loss)
    with pytest.raises(ValueError, match=r"loudness -23\.0, here -30\.0"):
        MAPSS("mel", loudness=-30.0)(estimates, bank)
    with pytest.raises(TypeError, match="collate_fn"):
        type(bank).join([(references, bank)])
