"""All scores in one pass: their names, their values, and what torchmetrics does with them."""

from __future__ import annotations

import copy
import functools
import pickle

import fast_bss_eval
import pytest
import torch
from stub_scorers import Stub, leaking_pair, recorded, stub_scorer, waveform_count
from torchmetrics import MetricCollection

from torch_mapss import (
    Bleed,
    Clearance,
    Fidelity,
    PerceptualMatch,
    PerceptualSeparation,
    SourceScores,
    audio,
)

near = functools.partial(torch.testing.assert_close, rtol=0, atol=1e-6, equal_nan=True)
NAMES = [
    *("clearance", "fidelity", "ps", "pm", "log_pm", "bleed_db", "si_sdr"),
    *("log_pm_compressed", "ps_pesq"),
    *("attributed_distance", "foreign_distance", "log_foreign_distance"),
]


def with_pauses(batch: int, seed: int = 0) -> tuple[torch.Tensor, torch.Tensor]:
    preds, target = leaking_pair(batch, seed=seed)
    target[:, 0, 2400:] = 0.0
    return preds, target


def test_names_are_those_of_the_table():
    metric = SourceScores(stub_scorer())
    metric.update(*with_pauses(2))
    assert sorted(metric.compute()) == sorted(NAMES)
    alone = SourceScores(stub_scorer(measures=("bleed",)))
    alone.update(*with_pauses(2))
    assert sorted(alone.compute()) == ["bleed_db", "si_sdr"]


def test_values_are_those_of_the_metrics_of_single_scores():
    mapss = stub_scorer()
    metric = SourceScores(mapss)
    singles = {
        "clearance": Clearance(mapss),
        "fidelity": Fidelity(mapss),
        "ps": PerceptualSeparation(mapss),
        "ps_pesq": PerceptualSeparation(mapss, reduction="pesq"),
        "pm": PerceptualMatch(mapss),
        "log_pm": PerceptualMatch(mapss, log=True),
        "bleed_db": Bleed(mapss),
    }
    for seed in (0, 1):
        batch = with_pauses(3, seed)
        means = metric(*batch)
        for name, single in singles.items():
            near(means[name], single(*batch))
    means = metric.compute()
    for name, single in singles.items():
        near(means[name], single.compute())


def test_si_sdr_is_that_of_the_signals_at_their_true_lengths():
    preds, target = leaking_pair(3)
    target[2, 0] = 0.0  # which is left out
    lengths = [4000, 2400, 4000]
    metric = SourceScores(stub_scorer(), keep_items=True)
    metric.update(preds, target, lengths)
    rows = metric.item_scores()["si_sdr"]
    for item, samples in enumerate(lengths):
        expected = audio.si_sdr(preds[item, :, :samples], target[item, :, :samples])
        if item == 2:
            expected[0] = torch.nan
        near(rows[item], expected)
    near(metric.compute()["si_sdr"], rows.nanmean(1).mean())
    of_bank = SourceScores(metric.mapss)
    of_bank.update(preds, metric.mapss.prepare(target, lengths))
    torch.testing.assert_close(of_bank.compute()["si_sdr"], metric.compute()["si_sdr"])


def test_every_waveform_is_encoded_once():
    stub = Stub()
    metric = SourceScores(stub_scorer(stub))
    metric.update(*leaking_pair(2))
    # Two estimates of two mixtures have one level for PS and PM, and one for the pair.
    assert stub.waveforms == waveform_count(2) + 2 * 2


def test_outputs_in_any_order_and_attributed():
    mapss = stub_scorer()
    preds, target = leaking_pair(3)
    plain = SourceScores(mapss)(preds, target)
    permuted = SourceScores(mapss, pit="si_sdr")(preds.flip(1), target)
    for name, value in plain.items():
        near(permuted[name], value)
    alone = SourceScores(mapss, attributed=(1,))(preds[:, 1:], target)
    near(alone["si_sdr"], audio.si_sdr(preds[:, 1], target[:, 1]).mean())


def test_in_a_collection_names_carry_its_prefix():
    metrics = MetricCollection([SourceScores(stub_scorer())], prefix="val/")
    batch = with_pauses(2)
    metrics.update(*batch)
    metrics.update(*batch)
    assert set(metrics.compute()) == {f"val/{name}" for name in NAMES}
    assert set(metrics(*batch)) == {f"val/{name}" for name in NAMES}
    metrics.reset()
    _, messages = recorded(metrics.compute)
    assert len(messages) == 1  # torchmetrics' own, for compute before update


@pytest.mark.parametrize("copied", [copy.deepcopy, lambda m: pickle.loads(pickle.dumps(m))])
def test_copies_go_on_apart(copied):
    metric = SourceScores(stub_scorer(), keep_items=True)
    preds, target = with_pauses(2)
    metric(preds.requires_grad_(), target)
    twin = copied(metric)
    for name, value in metric.compute().items():
        near(twin.compute()[name], value)
        near(twin.item_scores()[name], metric.item_scores()[name])
    twin.update(*with_pauses(1, seed=4))
    assert len(twin.item_scores()["ps"]) == 3
    assert len(metric.item_scores()["ps"]) == 2


def test_each_score_has_the_gradient_of_its_own_metric():
    mapss = stub_scorer()
    preds, target = with_pauses(2)
    for name, metric_class in (("ps", PerceptualSeparation), ("fidelity", Fidelity)):
        leaves = [preds.clone().requires_grad_() for _ in range(2)]
        SourceScores(mapss)(leaves[0], target)[name].backward()
        metric_class(mapss)(leaves[1], target).backward()
        torch.testing.assert_close(leaves[0].grad, leaves[1].grad)
        assert leaves[0].grad.abs().sum() > 0


def test_an_undefined_score_is_nan_and_counted():
    metric = SourceScores(stub_scorer())
    preds, target = leaking_pair(4)  # no source pauses
    target[3, 0] = 0.0
    metric.update(preds, target)
    means, messages = recorded(metric.compute)
    assert means["bleed_db"].isnan()
    assert means["ps"].isfinite()
    assert messages == []
    assert metric.skipped["ps"] == 1
    assert metric.skipped["bleed_db"] == 4
    silent = SourceScores(stub_scorer())
    recorded(lambda: silent.update(preds, 0.0 * target))
    means, messages = recorded(silent.compute)
    assert all(value.isnan() for value in means.values())
    assert len(messages) == 1
    assert "all of the 4 items" in messages[0]


def test_refusals_name_a_remedy():
    with pytest.raises(RuntimeError, match=r"SourceScores\(\.\.\., keep_items=True\)"):
        SourceScores(stub_scorer()).item_scores()
    with pytest.raises(ValueError, match=r"^SourceScores\.update\(preds=estimates"):
        SourceScores(stub_scorer())(torch.randn(5), torch.randn(5))
    with pytest.raises(ValueError, match="reduction"):
        SourceScores(stub_scorer(), reduction="source")


BSS_NAMES = ("sdr", "sir", "sar")


def bss_by_hand(preds: torch.Tensor, target: torch.Tensor) -> torch.Tensor:
    """(B, 3, S') SDR, SIR and SAR as fast_bss_eval gives them."""
    ratios = fast_bss_eval.bss_eval_sources(
        target.double(), preds.double(), compute_permutation=False
    )
    return torch.stack(ratios[:3], 1).float()


def noisy_pair(batch: int) -> tuple[torch.Tensor, torch.Tensor]:
    preds, target = leaking_pair(batch)
    noise = torch.randn(preds.shape, generator=torch.Generator().manual_seed(1))
    return preds + 0.01 * noise, target


def test_bss_scores_are_those_of_fast_bss_eval():
    mapss = stub_scorer(measures="bleed")
    preds, target = noisy_pair(3)
    expected = bss_by_hand(preds, target)
    metric = SourceScores(mapss, bss=True, keep_items=True)
    means = metric(preds, target)
    assert sorted(means) == sorted(["bleed_db", "si_sdr", *BSS_NAMES])
    permuted = SourceScores(mapss, bss=True, pit="si_sdr")(preds.flip(1), target)
    alone = SourceScores(mapss, bss=True, attributed=(1,))(preds[:, 1:], target)
    for name, ratios in zip(BSS_NAMES, expected.unbind(1)):
        torch.testing.assert_close(means[name], ratios.mean(), rtol=0, atol=1e-4)
        torch.testing.assert_close(metric.item_scores()[name], ratios, rtol=0, atol=1e-4)
        torch.testing.assert_close(permuted[name], ratios.mean(), rtol=0, atol=1e-4)
        torch.testing.assert_close(alone[name], ratios[:, 1].mean(), rtol=0, atol=1e-4)


def test_bss_scores_of_silence_and_of_true_lengths():
    preds, target = noisy_pair(3)
    target[1, 0] = 0.0  # which has no ratio
    preds[2, 1] = 0.0  # which has the lowest SDR, and no other
    lengths = [3000, 4000, 4000]
    metric = SourceScores(stub_scorer(measures="bleed"), bss=True, keep_items=True)
    metric.update(preds, target, lengths)
    rows = torch.stack([metric.item_scores()[name] for name in BSS_NAMES], 1)
    cut = bss_by_hand(preds[:1, :, :3000], target[:1, :, :3000])
    torch.testing.assert_close(rows[:1], cut, rtol=0, atol=1e-4)
    assert rows[1].isnan().tolist() == [[True, False], [True, True], [True, False]]
    assert rows[2, 0, 1] == pytest.approx(-156.5, abs=0.1)
    assert rows[2].isnan().tolist() == [[False, False], [False, True], [False, True]]
    assert metric.skipped["sir"] == 1


def test_bss_scores_are_differentiable():
    preds, target = noisy_pair(2)
    leaf = preds.requires_grad_()
    SourceScores(stub_scorer(measures="bleed"), bss=True)(leaf, target)["sdr"].backward()
    by_hand = preds.detach().clone().requires_grad_()
    ratios = fast_bss_eval.bss_eval_sources(target, by_hand, compute_permutation=False)
    ratios[0].mean().backward()
    torch.testing.assert_close(leaf.grad, by_hand.grad, rtol=1e-3, atol=1e-5)


def test_bss_without_its_package_is_refused_at_once(monkeypatch):
    monkeypatch.setitem(__import__("sys").modules, "fast_bss_eval", None)
    with pytest.raises(ImportError, match=r"measures bss needs fast_bss_eval.*torch_mapss\[bss\]"):
        SourceScores(stub_scorer(), bss=True)
