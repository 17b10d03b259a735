"""Several metrics of one scorer: what a MetricCollection updates once, and what it keeps apart."""

from __future__ import annotations

import functools

import pytest
import torch
from stub_scorers import Stub, leaking_pair, stub_scorer, waveform_count
from torchmetrics import MetricCollection

from torch_mapss import (
    MAPSS,
    Bleed,
    Clearance,
    Fidelity,
    PerceptualMatch,
    PerceptualSeparation,
    SourceScores,
)

near = functools.partial(torch.testing.assert_close, rtol=0, atol=1e-6, equal_nan=True)


def one_of_each(mapss: MAPSS) -> MetricCollection:
    return MetricCollection(
        {
            "clearance": Clearance(mapss),
            "fidelity": Fidelity(mapss),
            "ps": PerceptualSeparation(mapss),
            "ps by source": PerceptualSeparation(mapss, reduction="source"),
            "ps pooled": PerceptualSeparation(mapss, reduction="pesq"),
            "pm": PerceptualMatch(mapss),
            "log pm": PerceptualMatch(mapss, log=True),
        }
    )


def test_scores_of_one_measure_are_one_group():
    metrics = one_of_each(stub_scorer())
    metrics.update(*leaking_pair(2))
    groups = {frozenset(names) for names in metrics.compute_groups.values()}
    assert groups == {
        frozenset({"clearance", "fidelity"}),
        frozenset({"ps", "ps by source", "ps pooled"}),
        frozenset({"pm", "log pm"}),
    }


def test_a_group_scores_a_batch_once_and_gives_the_values_of_its_metrics():
    stub = Stub()
    mapss = stub_scorer(stub)
    metrics = one_of_each(mapss)
    alone = {name: metric.clone() for name, metric in metrics.items()}
    metrics.update(*leaking_pair(2))
    batch = leaking_pair(3, seed=1)
    stub.waveforms = 0
    metrics.update(*batch)
    # PS and PM have banks of MEMBERS each; clearance and fidelity have that of PS.
    assert stub.waveforms == 3 * waveform_count(3, measures=1)
    for metric in alone.values():
        metric.update(*leaking_pair(2))
        metric.update(*batch)
    for name, value in metrics.compute().items():
        near(value, alone[name].compute())


def test_nothing_stale_is_reused():
    stub = Stub()
    mapss = stub_scorer(stub)
    metric = PerceptualSeparation(mapss)
    preds, target = leaking_pair(2)
    before = metric(preds, target)
    preds.numpy()[:] = target  # the same tensor, other values, which torch has not noticed
    assert metric(preds, target) > before
    swapped = PerceptualSeparation(mapss, attributed=(1, 0))
    assert swapped(preds, target) < 0.5 < metric(preds, target)


@pytest.mark.parametrize("metric_class", [PerceptualSeparation, SourceScores])
def test_forward_costs_one_update(metric_class):
    stub = Stub()
    metric = metric_class(stub_scorer(stub, measures="separation"))
    batch = leaking_pair(2)
    for call in (metric.update, metric):
        stub.waveforms = 0
        call(*batch)
        assert stub.waveforms == waveform_count(2, measures=1)


@pytest.mark.filterwarnings("ignore")
def test_only_metrics_of_equal_settings_are_merged():
    preds, target = leaking_pair(2)
    fine, coarse = stub_scorer(), stub_scorer(energy=0.7)
    metrics = MetricCollection(
        {"fine": PerceptualSeparation(fine), "coarse": PerceptualSeparation(coarse)}
    )
    metrics.update(preds, torch.zeros_like(target))  # all sums equal: zero
    metrics.update(preds, target)
    values = metrics.compute()
    assert values["fine"] == PerceptualSeparation(fine)(preds, target)
    assert values["coarse"] == PerceptualSeparation(coarse)(preds, target)


def test_metrics_that_keep_unlike_histories_are_not_merged():
    preds, target = leaking_pair(2)
    mapss = stub_scorer()
    metrics = MetricCollection(
        {
            "of items": PerceptualSeparation(mapss, keep_items=True),
            "frames": PerceptualSeparation(mapss, reduction="none"),
            "frames of match": PerceptualMatch(mapss, reduction="none"),
        }
    )
    metrics.update(preds[..., :800], target[..., :800])  # a single frame each
    metrics.update(preds, target)
    assert metrics["of items"].item_scores().shape == (4, 2)
    values = metrics.compute()
    assert values["frames"].shape == values["frames of match"].shape == (4, 2, 9)
    frame_scores = mapss(preds, target)
    near(values["frames"][2:].nan_to_num(0.0), frame_scores.ps)
    near(values["frames of match"][2:].nan_to_num(0.0), frame_scores.pm)


def test_bleed_stands_beside_the_others():
    mapss = stub_scorer()
    preds, target = leaking_pair(2)
    target[:, 0, 2000:] = 0.0
    metrics = MetricCollection([Bleed(mapss), Clearance(mapss)])
    for _ in range(2):
        metrics.update(preds, target)
    pooled = mapss(preds, target).utterance()
    near(metrics.compute()["Bleed"], pooled.bleed_db.nanmean(1).mean())
    near(metrics.compute()["Clearance"], pooled.clearance.nanmean(1).mean())
