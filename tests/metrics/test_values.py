"""What a metric returns: means of the scores, and the functions that give them item by item."""

from __future__ import annotations

import functools

import pytest
import torch
from metric_pairs import FUNCTIONS, each_metric
from small_scorers import by_hand
from stub_scorers import SAMPLES, leaking_pair, stub_scorer

from torch_mapss import Bleed, Clearance, Fidelity, PerceptualMatch, PerceptualSeparation

near = functools.partial(torch.testing.assert_close, rtol=0, atol=1e-6, equal_nan=True)


def test_value_is_the_mean_over_frames_then_sources_then_items():
    mapss = stub_scorer()
    preds, target = leaking_pair(4, sources=3)
    target[1, 2] = 0.0  # a silent source leaves two
    target[2, :, : SAMPLES // 2] = 0.0  # fewer frames, same weight
    scores = mapss(preds, target)
    for metric, frames in (
        (PerceptualSeparation(mapss), scores.ps),
        (PerceptualMatch(mapss), scores.pm),
        (PerceptualMatch(mapss, log=True), scores.log_pm),
        (Clearance(mapss), scores.clearance),
        (PerceptualSeparation(mapss, reduction="pesq"), None),
    ):
        value = metric(preds, target)
        assert value.shape == ()
        assert value.dtype == torch.float32
        if frames is None:  # the paper's pooling
            expected = float(scores.utterance().ps_pesq.nanmean(1).mean())
            assert 1.085 < expected < 1.315
        else:
            expected = by_hand(frames, scores.active)
        assert float(value) == pytest.approx(expected, rel=1e-5)


@pytest.mark.parametrize("metric_class", [Clearance, Fidelity, PerceptualSeparation, Bleed])
def test_scores_of_items_are_the_same_whatever_the_reduction(metric_class):
    mapss = stub_scorer()
    preds, target = leaking_pair(3)
    target[:, 0, SAMPLES // 2 :] = 0.0
    preds[2, 1] = target[2, 0] + 0.01 * preds[2, 1]  # another source: fidelity is undefined
    pooled = getattr(mapss(preds, target).utterance(), metric_class.score_name)
    for reduction in ("mean", "source", "none"):
        metric = metric_class(mapss, reduction=reduction, keep_items=True)
        for items in (slice(0, 2), slice(2, 3)):
            metric.update(preds[items], target[items])
        near(metric.item_scores(), pooled)
    assert metric.compute().shape[:2] == pooled.shape


def test_fidelity_and_bleed_are_pooled_as_the_scores_are():
    mapss = stub_scorer()
    preds, target = leaking_pair(2)
    target[:, 0, SAMPLES // 2 :] = 0.0
    pooled = mapss(preds, target).utterance()
    for metric, values in ((Fidelity(mapss), pooled.fidelity), (Bleed(mapss), pooled.bleed_db)):
        torch.testing.assert_close(value := metric(preds, target), values.nanmean(1).mean())
    assert -40.0 < float(value) < 0.0
    by_source = Bleed(mapss, reduction="source", keep_items=True)
    by_source.update(preds, target)
    assert by_source.item_scores()[:, 1].isnan().all()  # never silent while the other one is not
    frames = Bleed(mapss, reduction="none")
    frames.update(preds, target)
    assert torch.equal(~frames.compute().isnan(), mapss(preds, target).defined("bleed_db"))
    assert not Bleed.higher_is_better
    silent = Bleed(mapss)(torch.zeros_like(preds), target)
    assert float(silent) == -100.0
    with pytest.warns(UserWarning, match="pauses"):
        assert Bleed(mapss)(*leaking_pair(1)).isnan()


@each_metric
def test_reductions(metric_class):
    """By source, and by frame at true lengths."""
    mapss = stub_scorer()
    preds, target = leaking_pair(3, sources=3)
    target[0, 1] = 0.0
    metric = metric_class(mapss, reduction="source", keep_items=True)
    metric.update(preds, target)
    rows = metric.item_scores()
    assert rows.isnan().nonzero().tolist() == [[0, 1]]
    torch.testing.assert_close(metric.compute(), rows.nanmean(0))
    preds, target = leaking_pair(2)
    metric = metric_class(mapss, reduction="none")
    metric.update(preds, target, lengths=[SAMPLES, 2400])
    metric.update(preds[:1, :, :1600], target[:1, :, :1600])
    frames, scores = metric.compute(), mapss(preds, target, lengths=[SAMPLES, 2400])
    assert frames.shape == (3, 2, 9)
    torch.testing.assert_close(frames[:2].nan_to_num(0.0), scores.of(metric.score_name))
    assert torch.equal(~frames[:2].isnan(), scores.defined(metric.score_name))
    assert frames[2].isnan().tolist() == [[False] * 3 + [True] * 6] * 2
    assert metric.item_scores().shape == (3, 2)


@pytest.mark.parametrize("metric_class", FUNCTIONS)
def test_functions_give_the_value_of_each_item(metric_class):
    """Of a batch, of a bank, of one estimate; differentiable as the class is."""
    mapss, function = stub_scorer(), FUNCTIONS[metric_class]
    preds, target = leaking_pair(3, sources=3)
    target[:, 0, SAMPLES // 2 :] = 0.0
    extra = ["pesq"] if metric_class is PerceptualSeparation else []
    for reduction in ("source", "none", *extra, "mean"):
        metric = metric_class(mapss, reduction=reduction, keep_items=True)
        metric.update(preds, target)
        values = function(preds, target, mapss, reduction=reduction)
        kept = metric.compute() if reduction == "none" else metric.item_scores()
        near(values, kept.nanmean(1) if reduction in ("mean", "pesq") else kept)
    bank = mapss.prepare(target)
    near(function(preds, bank, mapss, reduction="mean"), values)
    alone = function(preds[:, :1], target, mapss, attributed=(0,), reduction="source")
    near(metric_class(mapss, attributed=(0,))(preds[:, :1], target), alone.mean())
    leaf_of_metric = preds.clone().requires_grad_()
    leaf_of_function = preds.clone().requires_grad_()
    metric_class(mapss)(leaf_of_metric, target).backward()
    function(leaf_of_function, target, mapss).mean().backward()
    torch.testing.assert_close(leaf_of_metric.grad, leaf_of_function.grad)
    assert leaf_of_metric.grad.isfinite().all()
    assert leaf_of_metric.grad.abs().sum() > 0
    with pytest.raises(ValueError, match="unsqueeze"):
        function(preds[0], target[0], mapss)


@each_metric
@pytest.mark.filterwarnings("ignore")
def test_batches_do_not_matter_and_epochs_do_not_leak(metric_class):
    mapss = stub_scorer()
    preds, target = leaking_pair(10)
    preds[3], target[3] = 0.1, 0.0
    metric = metric_class(mapss)
    expected = metric(preds, target)
    for split in ((4, 4, 2), (1,) * 10):
        metric.reset()
        for p, t in zip(preds.split(split), target.split(split)):
            metric.update(p, t)
        near(metric.compute(), expected)
        assert metric.skipped == 1
    metric.reset()
    value_of_three = metric(preds[:3], target[:3])
    value_of_six = metric(preds[4:], target[4:])
    near(metric.compute(), expected)  # forward accumulates, and returns the value of its batch
    alone = metric_class(mapss)
    alone.update(preds[4:], target[4:])
    near(value_of_six, alone.compute())
    assert value_of_three != value_of_six
