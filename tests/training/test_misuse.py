"""Losses, metrics and banks used together in ways that must not fail or mislead."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor

from torch_mapss import (
    MAPSS,
    Bleed,
    Clearance,
    ClearanceLoss,
    DecompositionLoss,
    DistortionBank,
    FidelityLoss,
    MAPSSLoss,
    PerceptualSeparation,
)


@pytest.fixture(scope="module")
def mapss() -> MAPSS:
    banks = {f"{kind}_bank": DistortionBank(kind, size=8) for kind in ("separation", "match")}
    return MAPSS("mel", **banks)


@pytest.fixture(scope="module")
def signals() -> tuple[Tensor, Tensor]:
    references = torch.randn(2, 2, 8000, generator=torch.Generator().manual_seed(0))
    return references + 0.3 * references.flip(1), references


def test_metrics_of_one_scorer_take_banks_of_their_own_measures(
    mapss: MAPSS, signals: tuple[Tensor, Tensor]
) -> None:
    estimates, references = signals
    pair = mapss.prepare(references, measures="decomposition")
    ps = mapss.prepare(references, measures="separation")
    metrics: list[tuple[Any, Any]] = [(Clearance(mapss), pair), (PerceptualSeparation(mapss), ps)]
    metrics.append((Bleed(mapss), ps))
    for gain in (1.0, 0.9, 0.8):
        for metric, bank in metrics:
            metric.update(gain * estimates, bank)
    expected = mapss(estimates, references).utterance()
    assert float(metrics[0][0].compute()) == pytest.approx(float(expected.clearance.mean()), 1e-4)
    assert float(metrics[1][0].compute()) == pytest.approx(float(expected.ps.mean()), 1e-4)


def test_a_bank_of_other_measures_is_refused(mapss: MAPSS, signals: tuple[Tensor, Tensor]) -> None:
    bank = mapss.prepare(signals[1], measures="decomposition")
    other = MAPSS("mel", measures="match", separation_bank=mapss.separation_bank,
                  match_bank=mapss.match_bank)  # fmt: skip
    with pytest.raises(ValueError, match="prepared for decomposition"):
        other(signals[0], bank)


def test_a_bank_serves_all_that_share_the_settings_of_its_measures(
    mapss: MAPSS, signals: tuple[Tensor, Tensor]
) -> None:
    """The encoder of PS and PM, here one whose weights are not at hand, does not matter."""
    estimates, references = signals
    loss = DecompositionLoss(local_files_only=True)
    bank = loss.prepare(references)
    metric = Clearance(MAPSS("mel", measures="decomposition"))
    expected = MAPSS("mel")(estimates, references).utterance().clearance.mean()
    assert float(metric(estimates, bank)) == pytest.approx(float(expected), 1e-5)
    given = MAPSS("mel").prepare(references)
    assert float(loss(estimates, given)) == pytest.approx(float(loss(estimates, bank)), 1e-5)
    assert "wav2vec2" not in repr(loss)
    with pytest.raises(ValueError, match=r"loudness -23\.0, here -30\.0"):
        MAPSS("mel", loudness=-30.0)(estimates, bank)
    with pytest.raises(TypeError, match="collate_fn"):
        type(bank).join([(references, bank)])  # type: ignore[list-item]


def test_distortion_alone_cannot_order_outputs(mapss: MAPSS) -> None:
    for make in (FidelityLoss, lambda m, pit: MAPSSLoss(m, separation=0, pit=pit)):
        with pytest.raises(ValueError, match="pit"):
            make(mapss, pit="loss")
    assert DecompositionLoss(mapss, pit="loss").pit == "loss"


def test_weights_that_are_changed_are_checked(mapss: MAPSS, signals: tuple[Tensor, Tensor]) -> None:
    loss = ClearanceLoss(mapss)
    loss.weights |= {"bleed": 0.1, "match": 0.1, "separation": 1.0}  # settings: their defaults
    assert bool(loss(*signals).isfinite())
    for wrong in ({"nonsense": 1.0}, {"clearance": -5.0}):
        spoilt = ClearanceLoss(mapss)
        spoilt.weights |= wrong
        with pytest.raises(ValueError, match=next(iter(wrong))):
            spoilt(*signals)


@pytest.mark.parametrize("name", ["clearance", "ps", "log_pm", "ps_pesq"])
def test_the_name_of_a_score_names_its_measure(name: str) -> None:
    with pytest.raises(ValueError, match="is a score of measure"):
        MAPSS("mel", measures=name)


def test_undefined_bleed_says_what_it_needs(mapss: MAPSS, signals: tuple[Tensor, Tensor]) -> None:
    metric = Bleed(mapss)
    metric.update(*signals)
    with pytest.warns(UserWarning, match="pauses"):
        assert metric.compute().isnan()


def test_long_clips_are_refused_to_be_recombined_for_the_right_reason() -> None:
    mapss = MAPSS("mel", segment=1.0, measures="decomposition")
    bank = mapss.prepare(torch.randn(2, 2, 24000, generator=torch.Generator().manual_seed(1)))
    with pytest.raises(ValueError, match="segments"):
        bank.recombined([[0, 1]])
