"""The torchmetrics metrics: what torchmetrics expects, what is encoded, what is undefined."""

from __future__ import annotations

import copy
import functools
import gc
import math
import pickle
import warnings
from contextlib import contextmanager, nullcontext

import numpy as np
import pytest
import torch
from checkpoints import write_checkpoint
from lightning_utilities.core.imports import RequirementCache
from torch import Tensor
from torchmetrics import MetricCollection, MetricTracker, MinMaxMetric
from torchmetrics.audio import PermutationInvariantTraining
from torchmetrics.functional.audio import permutation_invariant_training
from torchmetrics.wrappers import BootStrapper

from torch_mapss import (
    MAPSS,
    DistortionBank,
    PerceptualMatch,
    PerceptualSeparation,
    evaluate,
)
from torch_mapss.metrics import perceptual_match, perceptual_separation
from torch_mapss.metrics import shared_batch as shared

RATE, SAMPLES, MEMBERS = 8000, 4000, 6
METRICS = (PerceptualSeparation, PerceptualMatch)
FUNCTIONS = (perceptual_separation, perceptual_match)


class Stub:
    """Log energies of twelve bands in frames of 100 ms; counts the waveforms it is given."""

    name, sample_rate, hop, receptive_field, feature_size = "stub", RATE, 400, 800, 12

    def __init__(self) -> None:
        self.waveforms = 0

    def __call__(self, waveform: Tensor) -> Tensor:
        self.waveforms += len(waveform)
        frames = waveform.unfold(-1, 800, 400)
        bands = torch.fft.rfft(frames).abs()[..., 1:241].unflatten(-1, (12, 20))
        return (bands.square().sum(-1) + 1e-2).log()


class Weighted(torch.nn.Module):
    """An encoder with a weight, so that copies of it can be told."""

    name, sample_rate, hop, receptive_field, feature_size = "weighted", RATE, 400, 800, 4

    def __init__(self) -> None:
        super().__init__()
        self.weight = torch.nn.Parameter(torch.linspace(-1, 1, 3200).reshape(800, 4).sin())

    def forward(self, waveform: Tensor) -> Tensor:
        return waveform.unfold(-1, 800, 400) @ self.weight


def small(encoder=None, **options) -> MAPSS:
    return MAPSS(
        encoder or Stub(),
        separation_bank=DistortionBank("separation", size=MEMBERS),
        match_bank=DistortionBank("match", size=MEMBERS),
        **options,
    )


def voices(batch: int, sources: int = 2, samples: int = SAMPLES, seed: int = 0) -> Tensor:
    generator = torch.Generator().manual_seed(seed)
    time = torch.arange(samples) / RATE
    shape = batch, sources, 1
    pitch = 200 + 600 * torch.rand(shape, generator=generator)
    noise = torch.randn(batch, sources, samples, generator=generator)
    return torch.sin(2 * torch.pi * pitch * time) * (1.2 + torch.sin(30 * time)) + 0.3 * noise


def pair(batch: int, sources: int = 2, seed: int = 0) -> tuple[Tensor, Tensor]:
    """Estimates that leak more from item to item, and their references."""
    target = voices(batch, sources, seed=seed)
    leak = torch.linspace(0.05, 0.6, batch).reshape(-1, 1, 1)
    noise = torch.randn(target.shape, generator=torch.Generator().manual_seed(seed + 1))
    return target + leak * target.roll(1, 1) + 0.02 * noise, target


def waveforms(items: int, measures: int = 2, sources: int = 2) -> int:
    """Every estimate, reference and distortion once."""
    return items * sources * (2 + measures * MEMBERS)


def plain_mean(frames: Tensor, active: Tensor) -> float:
    """Frame -> source -> item -> set, in loops."""
    items = []
    for item, on in zip(frames.tolist(), active.tolist()):
        means = []
        for row, live in zip(item, on):
            kept = [value for value, yes in zip(row, live) if yes]
            if kept:
                means.append(sum(kept) / len(kept))
        if means:
            items.append(sum(means) / len(means))
    return sum(items) / len(items)


# ------------------------------------------------------------------------------------------------
# Values
# ------------------------------------------------------------------------------------------------


def test_value_is_the_mean_over_frames_then_sources_then_items():
    mapss = small()
    preds, target = pair(4, sources=3)
    target[1, 2] = 0.0  # a silent source leaves two
    target[2, :, : SAMPLES // 2] = 0.0  # fewer frames, same weight
    scores = mapss(preds, target)
    for metric, frames in (
        (PerceptualSeparation(mapss), scores.ps),
        (PerceptualMatch(mapss), scores.pm),
        (PerceptualMatch(mapss, log=True), scores.log_pm),
    ):
        value = metric(preds, target)
        assert value.shape == ()
        assert value.dtype == torch.float32
        assert float(value) == pytest.approx(plain_mean(frames, scores.active), rel=1e-5)


@pytest.mark.parametrize("metric_class", METRICS)
def test_source_reduction_averages_each_place(metric_class):
    mapss = small()
    preds, target = pair(3, sources=3)
    target[0, 1] = 0.0
    metric = metric_class(mapss, reduction="source", keep_items=True)
    metric.update(preds, target)
    rows = metric.item_scores()
    assert rows[0, 1].isnan()
    assert not rows.isnan()[1:].any()
    torch.testing.assert_close(metric.compute(), rows.nanmean(0))
    function = FUNCTIONS[METRICS.index(metric_class)]
    torch.testing.assert_close(
        function(preds, target, mapss, reduction="source"), rows, equal_nan=True
    )


def test_pesq_reduction_is_the_papers_pooling():
    mapss = small()
    preds, target = pair(3)
    pooled = mapss(preds, target).utterance().ps_pesq
    metric = PerceptualSeparation(mapss, reduction="pesq")
    metric.update(preds, target)
    torch.testing.assert_close(metric.compute(), pooled.mean())
    assert 1.085 < float(metric.compute()) < 1.315
    found = perceptual_separation(preds, target, mapss, reduction="pesq")
    torch.testing.assert_close(found, pooled.mean(1))


@pytest.mark.parametrize("metric_class", METRICS)
def test_none_gives_frame_scores_at_true_lengths(metric_class):
    mapss = small()
    preds, target = pair(2)
    metric = metric_class(mapss, reduction="none")
    metric.update(preds, target, lengths=[SAMPLES, 2400])
    metric.update(preds[:1, :, :1600], target[:1, :, :1600])
    frames = metric.compute()
    scores = mapss(preds, target, lengths=[SAMPLES, 2400])
    expected = scores.ps if metric_class is PerceptualSeparation else scores.pm
    assert frames.shape == (3, 2, 9)
    torch.testing.assert_close(frames[:2].nan_to_num(0.0), expected)
    assert torch.equal(~frames[:2].isnan(), scores.active)
    assert frames[2, :, 3:].isnan().all()
    assert not frames[2, :, :3].isnan().any()
    assert metric.item_scores().shape == (3, 2)


@pytest.mark.parametrize("split", [(10,), (4, 4, 2), (1,) * 10])
def test_batches_do_not_matter(split):
    mapss = small()
    preds, target = pair(10)
    preds[3], target[3] = 0.1, 0.0
    for metric in (PerceptualSeparation(mapss), PerceptualMatch(mapss)):
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            whole = metric(preds, target)
            metric.reset()
            for p, t in zip(preds.split(split), target.split(split)):
                metric.update(p, t)
        torch.testing.assert_close(metric.compute(), whole, rtol=0, atol=1e-6)
        assert metric.skipped == 1


@pytest.mark.parametrize("metric_class", METRICS)
def test_forward_is_update_and_compute(metric_class):
    mapss = small()
    (p, t), (q, u) = pair(2), pair(3, seed=5)
    forward, updated, single = (metric_class(mapss) for _ in range(3))
    first, second = forward(p, t), forward(q, u)
    updated.update(p, t)
    torch.testing.assert_close(first, updated.compute())
    updated.update(q, u)
    torch.testing.assert_close(forward.compute(), updated.compute())
    single.update(q, u)
    torch.testing.assert_close(second, single.compute())
    assert first != second


def test_epochs_do_not_leak_into_each_other():
    mapss = small()
    metric = PerceptualSeparation(mapss)
    values = []
    for seed in (1, 2):
        preds, target = pair(3, seed=seed)
        metric.update(preds, target)
        values.append((metric.compute(), perceptual_separation(preds, target, mapss).mean()))
        metric.reset()
    for found, expected in values:
        torch.testing.assert_close(found, expected, rtol=0, atol=1e-6)


def test_unbatched_input_and_banks_score_alike():
    mapss = small()
    preds, target = pair(1)
    bank = mapss.prepare(target)
    values = []
    for given in ((preds, target), (preds[0], target[0]), (preds, bank)):
        metric = PerceptualMatch(mapss)
        metric.update(*given)
        values.append(metric.compute())
        metric.reset()
    assert values[0] == values[1] == values[2]


def test_one_estimate_of_two_references():
    mapss = small()
    preds, target = pair(3)
    metric = PerceptualSeparation(mapss, attributed=(1,))
    value = metric(preds[:, 1:], target)
    torch.testing.assert_close(value, mapss(preds[:, 1:], target, (1,)).utterance().ps.mean())
    with pytest.raises(ValueError, match="attributed"):
        PerceptualSeparation(mapss)(preds[:, 1:], target)


def plain_half_width(bounds, active: Tensor) -> float:
    """[eq:avg_pool_b], [eq:avg_pool_h] with g = 4 for every source; mean over sources, items."""
    items = []
    for radius, tail, on in zip(bounds.radius.numpy(), bounds.tail.numpy(), active.numpy()):
        rows = [(r[a], t[a]) for r, t, a in zip(radius, tail, on) if a.any()]
        widths = [r.mean() + np.sqrt(5.0 * (t**2).sum()) / len(t) for r, t in rows]
        items += [np.mean(widths)] if widths else []
    return float(np.mean(items))


def test_half_width_of_the_mean():
    mapss = small()
    preds, target = pair(2)
    bounds = mapss.bounds(preds, target, 0.9)
    for metric_class, name in zip(METRICS, ("ps", "pm")):
        metric = metric_class(mapss, half_width=0.9)
        metric.update(preds, target)
        found = metric.compute()
        assert set(found) == {name, f"{name}_half_width"}
        expected = plain_half_width(getattr(bounds, name), bounds.active)
        assert float(found[f"{name}_half_width"]) == pytest.approx(expected, rel=1e-5)
        plain = metric_class(mapss)
        torch.testing.assert_close(found[name], plain(preds, target))
        few = metric_class(mapss, half_width=0.9, frames=5)
        some = mapss.bounds(*pair(2), 0.9, frames=5)
        expected = plain_half_width(getattr(some, name), some.active)
        value = few(*pair(2))[f"{name}_half_width"]
        assert float(value) == pytest.approx(expected, rel=1e-5)
    with pytest.raises(ValueError, match="half_width"):
        PerceptualMatch(mapss, half_width=0.9, log=True)
    with pytest.raises(ValueError, match="confidence"):
        PerceptualMatch(mapss, half_width=1.5)


def test_half_widths_of_a_mixture_are_those_of_evaluate():
    mapss = small()
    preds, target = pair(1, sources=3)
    report = evaluate(estimates=preds[0], references=target[0], mapss=mapss, bounds=True)
    for metric_class, name in zip(METRICS, ("ps", "pm")):
        metric = metric_class(mapss, half_width=0.95)
        value = metric(preds, target)[f"{name}_half_width"]
        parts = [(getattr(r, f"{name}_radius"), getattr(r, f"{name}_tail")) for r in report.rows]
        assert float(value) == pytest.approx(np.mean([a + b for a, b in parts]), rel=1e-5)


@pytest.mark.parametrize("metric_class", METRICS)
def test_permuted_outputs_find_their_references(metric_class):
    mapss = small()
    preds, target = pair(3, sources=3)
    orders = [[2, 0, 1], [0, 1, 2], [1, 0, 2]]
    shuffled = torch.stack([item[order] for item, order in zip(preds, orders)])
    function = FUNCTIONS[METRICS.index(metric_class)]
    for reduction in ("mean", "source", "none"):
        expected = function(preds, target, mapss, reduction=reduction)
        found = function(shuffled, target, mapss, reduction=reduction, pit="si_sdr")
        torch.testing.assert_close(found, expected, equal_nan=True)
        plain, metric = (metric_class(mapss, reduction=reduction, pit=p) for p in (None, "si_sdr"))
        for given in (target, mapss.prepare(target)):
            torch.testing.assert_close(metric(shuffled, given), plain(preds, target))
    few = metric_class(mapss, pit="si_sdr")
    plain = metric_class(mapss)
    lengths = [SAMPLES, 2400, 3200]
    few.update(shuffled, target, lengths)
    plain.update(preds, target, lengths)
    assert few.compute() == plain.compute()
    few.reset()
    few.update(shuffled[0], target[0])
    assert few.compute() == metric_class(mapss)(preds[0], target[0])


def test_permutation_costs_no_encoding_and_keeps_gradients():
    stub = Stub()
    mapss = small(stub)
    metrics = MetricCollection([m(mapss, pit="si_sdr") for m in METRICS])
    preds, target = pair(2)
    swapped, straight = (x.clone().requires_grad_() for x in (preds.flip(1), preds))
    stub.waveforms = 0
    values = metrics(swapped, target)
    assert stub.waveforms == waveforms(2)
    sum(values.values()).backward()
    sum(m(mapss)(straight, target) for m in METRICS).backward()
    torch.testing.assert_close(swapped.grad.flip(1), straight.grad)


def test_permutations_that_make_no_sense_are_refused():
    mapss = small()
    preds, target = pair(2)
    with pytest.raises(ValueError, match=r"pit='si_sdr' looks for .* attributed=\(0,\) states it"):
        PerceptualSeparation(mapss, pit="si_sdr", attributed=(0,))
    with pytest.raises(ValueError, match="pit must be one of 'si_sdr', got 'loss'"):
        PerceptualMatch(mapss, pit="loss")
    with pytest.raises(ValueError, match="there are 1 estimates for 2 references"):
        PerceptualSeparation(mapss, pit="si_sdr").update(preds[:, :1], target)
    broken = preds.clone()
    broken[1, 0, 3] = torch.nan
    with pytest.raises(ValueError, match="item 1, source 0"):
        PerceptualSeparation(mapss, pit="si_sdr").update(broken, target)
    trimmed = PerceptualSeparation(small(trim=True), pit="si_sdr")
    value = trimmed(preds.flip(1)[..., :-100], target)
    expected = PerceptualSeparation(mapss)(preds[..., :-100], target[..., :-100])
    torch.testing.assert_close(value, expected)


def test_options_reach_the_mapss():
    preds, target = pair(2)
    banks = {
        "separation_bank": DistortionBank("separation", size=MEMBERS),
        "match_bank": DistortionBank("match", size=MEMBERS),
    }
    metric = PerceptualSeparation(encoder=Stub(), energy=0.8, trim=True, **banks)
    value = metric(preds[..., :-5], target)
    expected = small(energy=0.8, trim=True)(preds[..., :-5], target).utterance().ps.mean()
    torch.testing.assert_close(value, expected)
    with pytest.raises(ValueError, match="4000"):
        PerceptualSeparation(small())(preds[..., :-5], target)
    with pytest.raises(ValueError, match=r"energy, encoder cannot be applied"):
        PerceptualSeparation(small(), encoder="mel", energy=0.8)
    with pytest.raises(TypeError, match="encoder='mel'"):
        PerceptualSeparation("mel")
    with pytest.raises(ValueError, match="reduction"):
        PerceptualMatch(small(), reduction="pesq")
    with pytest.raises(ValueError, match="nothing_of_this_name"):
        PerceptualMatch(small(), nothing_of_this_name=1)


# ------------------------------------------------------------------------------------------------
# What is encoded
# ------------------------------------------------------------------------------------------------


def test_update_and_forward_encode_every_waveform_once():
    stub = Stub()
    mapss = small(stub)
    for metric_class in METRICS:
        metric = metric_class(mapss)
        for call, seed in ((metric.update, 1), (metric, 2)):
            stub.waveforms = 0
            call(*pair(3, seed=seed))
            assert stub.waveforms == waveforms(3, measures=1)


@pytest.mark.parametrize("groups", [True, False])
@pytest.mark.parametrize("mode", ["plain", "graph", "inference", "half"])
def test_a_collection_encodes_every_waveform_once(groups, mode):
    stub = Stub()
    mapss = small(stub)
    metrics = MetricCollection(
        {
            "ps": PerceptualSeparation(mapss),
            "pm": PerceptualMatch(mapss),
            "log": PerceptualMatch(mapss, log=True),
            "each": PerceptualSeparation(mapss, reduction="source"),
        },
        compute_groups=groups,
    )
    for seed in range(2):
        for call in (metrics.update, metrics):
            preds, target = pair(2, seed=10 * seed + (call is metrics))
            stub.waveforms = 0
            if mode == "half":
                preds, target = preds.half(), target.half()
            preds.requires_grad_(mode == "graph")
            with torch.inference_mode(mode == "inference"):
                call(preds, target)
            assert stub.waveforms == waveforms(2)


def test_bounds_are_computed_once_for_both():
    stub = Stub()
    mapss = small(stub)
    metrics = MetricCollection([m(mapss, half_width=0.9) for m in METRICS])
    assert set(metrics(*pair(2))) == {"ps", "ps_half_width", "pm", "pm_half_width"}
    assert stub.waveforms == waveforms(2)


def test_nothing_stale_is_reused():
    stub = Stub()
    mapss = small(stub)
    metric = PerceptualSeparation(mapss)
    preds, target = pair(2)
    before = metric(preds, target)
    preds.copy_(target)  # the same tensor, other values
    assert metric(preds, target) > before
    target.mul_(torch.tensor([1.0, 0.2]).reshape(2, 1))
    stub.waveforms = 0
    metric(preds, target)
    assert stub.waveforms == waveforms(2, measures=1)
    stub.waveforms = 0
    metric.reset()
    metric(preds, target)
    assert stub.waveforms == waveforms(2, measures=1)


def test_a_changed_tensor_with_a_graph_is_scored_anew():
    mapss = small()
    leaf, target = pair(1)
    leaf.requires_grad_()
    preds = leaf * 1.0
    first = PerceptualSeparation(mapss)(preds, target)
    with torch.no_grad():
        changed = target + 0.7 * target.roll(1, 1)
    preds.mul_(0.0).add_(changed)
    assert PerceptualSeparation(mapss)(preds, target) < first


def test_equal_estimates_of_two_graphs_keep_their_own_gradient():
    mapss = small()
    preds, target = pair(1)
    one, two = preds.clone().requires_grad_(), preds.clone().requires_grad_()
    values = PerceptualSeparation(mapss)(one, target), PerceptualSeparation(mapss)(two, target)
    sum(values).backward()
    torch.testing.assert_close(one.grad, two.grad)
    assert one.grad.abs().sum() > 0


# ------------------------------------------------------------------------------------------------
# Gradients and memory
# ------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("place", [0, 1])
def test_forward_is_differentiable_like_the_function(place):
    mapss = small()
    preds, target = pair(2)
    one, two = preds.clone().requires_grad_(), preds.clone().requires_grad_()
    options = {"log": True} if place else {}
    METRICS[place](mapss, **options)(one, target).backward()
    FUNCTIONS[place](two, target, mapss, **options).mean().backward()
    torch.testing.assert_close(one.grad, two.grad)
    assert one.grad.isfinite().all()
    assert one.grad.abs().sum() > 0


def test_no_state_requires_a_gradient_and_no_graph_stays():
    mapss = small()
    metrics = MetricCollection([m(mapss, keep_items=True) for m in METRICS])
    preds, target = pair(2)
    preds.requires_grad_()
    values = metrics(preds, target)
    metrics.update(preds, target)
    for metric in metrics.values():
        states = [getattr(metric, name) for name in metric._defaults]
        flat = [x for state in states for x in (state if isinstance(state, list) else [state])]
        assert not any(x.requires_grad for x in flat)
        assert all(h.device.type == "cpu" for h in metric.history)
    metrics.reset()
    values = metrics(preds, target)
    assert shared._LAST[mapss]() is not None
    del values
    gc.collect()
    assert shared._LAST[mapss]() is None


def state_bytes(metric) -> int:
    return len(pickle.dumps({name: getattr(metric, name) for name in metric._defaults}))


def test_state_has_constant_size_and_history_goes_with_reset():
    mapss = small()
    preds, target = pair(1)
    metric, kept = PerceptualSeparation(mapss), PerceptualSeparation(mapss, keep_items=True)
    for m in (metric, kept):
        m.update(preds, target)
    once = state_bytes(metric)
    for _ in range(20):
        metric.update(preds, target)
        kept.update(preds, target)
    assert state_bytes(metric) == once
    assert len(kept.item_scores()) == 21
    kept.reset()
    assert len(kept.item_scores()) == 0
    assert mapss not in shared._LAST
    with pytest.raises(RuntimeError, match="keep_items=True"):
        metric.item_scores()


def test_a_mapss_is_freed_with_its_metrics():
    mapss = small()
    metric = PerceptualSeparation(mapss)
    metric.update(*pair(1))
    count = len(shared._LAST)
    del metric, mapss
    gc.collect()
    assert len(shared._LAST) < count


# ------------------------------------------------------------------------------------------------
# Undefined
# ------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("metric_class", METRICS)
def test_an_undefined_item_is_skipped_and_counted(metric_class):
    mapss = small()
    preds, target = pair(8)
    target[5, 0] = 0.0
    metric = metric_class(mapss, keep_items=True)
    with pytest.warns(UserWarning, match=r"mixtures \[5\]"):
        metric.update(preds, target)
    good = [i for i in range(8) if i != 5]
    torch.testing.assert_close(metric.compute(), metric_class(mapss)(preds[good], target[good]))
    assert metric.skipped == 1
    assert metric.item_scores().isnan().all(1).nonzero().flatten().tolist() == [5]


def recorded(call):
    with warnings.catch_warnings(record=True) as found:
        warnings.simplefilter("always")
        value = call()
    return value, [str(w.message) for w in found]


@pytest.mark.parametrize("metric_class", METRICS)
def test_nothing_defined_is_nan_and_one_warning(metric_class):
    metric = metric_class(small())
    value, messages = recorded(metric.compute)
    assert math.isnan(value)
    assert len(messages) == 1
    preds, target = pair(2)
    target[:, 0] = 0.0
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        metric.update(preds, target)
    value, messages = recorded(metric.compute)
    assert math.isnan(value)
    assert value.shape == ()
    assert len(messages) == 1
    assert "none of the 2 items" in messages[0]
    assert metric.skipped == 2


def test_sources_that_never_meet_are_undefined():
    preds, target = pair(1)
    target[0, 0, SAMPLES // 2 :] = 0.0
    target[0, 1, : SAMPLES // 2 + 800] = 0.0
    metric = PerceptualSeparation(small(), reduction="source")
    with pytest.warns(UserWarning, match="no frame"):
        metric.update(preds, target)
    with pytest.warns(UserWarning, match="undefined"):
        assert metric.compute().isnan().all()


def test_a_silent_estimate_is_scored_low():
    preds, target = pair(2)
    preds[1, 0] = 0.0
    metric = PerceptualSeparation(small(), keep_items=True)
    metric.update(preds, target)
    rows = metric.item_scores()
    assert metric.skipped == 0
    assert rows.isfinite().all()
    assert rows[1, 0] < rows[0].min()


# ------------------------------------------------------------------------------------------------
# Shapes, types, devices
# ------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("metric_class", METRICS)
@pytest.mark.parametrize(
    ("preds", "target"),
    [
        ((SAMPLES,), (SAMPLES,)),
        ((1, 2, 2, SAMPLES), (1, 2, 2, SAMPLES)),
        ((1, 1, 2, 2, SAMPLES), (1, 1, 2, 2, SAMPLES)),
        ((2, SAMPLES), (1, 2, SAMPLES)),
        ((3, 2, SAMPLES), (1, 2, SAMPLES)),
        ((2, 2, SAMPLES), (2, 2, SAMPLES - 1)),
        ((2, 3, SAMPLES), (2, 2, SAMPLES)),
        ((2, 1, SAMPLES), (2, 1, SAMPLES)),
        ((0, 2, SAMPLES), (0, 2, SAMPLES)),
    ],
)
def test_wrong_shapes_are_refused_by_name(metric_class, preds, target):
    metric = metric_class(small())
    with pytest.raises(ValueError, match=rf"^{metric_class.__name__}\.update\(preds=estimates"):
        metric.update(torch.randn(preds), torch.randn(target))
    assert int(metric.seen) == 0


@pytest.mark.parametrize("function", FUNCTIONS)
def test_functions_do_not_guess_the_batch(function):
    with pytest.raises(ValueError, match="unsqueeze"):
        function(torch.randn(2, SAMPLES), torch.randn(2, SAMPLES), small())


def test_arrays_and_non_finite_samples_are_refused():
    metric = PerceptualSeparation(small())
    preds, target = pair(2)
    with pytest.raises(TypeError, match=r"preds must be a tensor of shape .* ndarray"):
        metric.update(preds.numpy(), target)
    with pytest.raises(TypeError, match=r"target must be .* ReferenceBank, got list"):
        metric.update(preds, target.tolist())
    preds[1, 0, 7] = torch.nan
    with pytest.raises(ValueError, match="item 1, source 0"):
        metric.update(preds, target)
    with pytest.raises(ValueError, match="one length for each of the 2"):
        metric.update(target, target, lengths=4000)


@pytest.mark.parametrize("call", ["update", "forward"])
def test_a_refused_batch_leaves_the_metric_as_it_was(call):
    metric = PerceptualMatch(small(), keep_items=True)
    metric.update(*pair(3))
    before = metric.compute().clone()
    with pytest.raises(ValueError, match="shape"):
        getattr(metric, call)(torch.randn(5), torch.randn(5))
    assert metric.compute() == before
    assert len(metric.item_scores()) == 3
    preds, target = pair(1, seed=3)
    metric.update(preds.requires_grad_(), target)
    assert not metric.item_sum.requires_grad


@pytest.mark.parametrize("metric_class", METRICS)
def test_devices_are_named_with_the_call_that_fixes_it(metric_class):
    metric = metric_class(small())
    preds, target = pair(1)
    with pytest.raises(
        ValueError, match=r"the metric on cpu, preds on meta, target on meta: move"
    ) as e:
        metric.update(preds.to("meta"), target.to("meta"))
    assert "metric.to('meta')" in str(e.value)
    assert "plain dict" in str(e.value)
    with pytest.raises(ValueError, match=r"preds on meta, target on cpu: .*\.to\(device\)"):
        metric(preds.to("meta"), target)


def test_a_metric_moves_its_sums_and_its_mapss_but_not_its_history():
    mapss = small(Weighted())
    metric = PerceptualSeparation(mapss, keep_items=True)
    metric.update(*pair(1))
    metric.to("meta")
    assert metric.device.type == metric.item_sum.device.type == "meta"
    assert mapss.encoder.function.weight.device.type == "meta"
    assert metric.history[0].device.type == "cpu"


@pytest.mark.parametrize("types", [("half", "half"), ("half", "float"), ("float", "half")])
@pytest.mark.parametrize("metric_class", METRICS)
def test_half_precision_input(metric_class, types):
    mapss = small()
    preds, target = (0.1 * x for x in pair(2))
    expected = metric_class(mapss)(preds, target)
    value = metric_class(mapss)(getattr(preds, types[0])(), getattr(target, types[1])())
    assert value.dtype == torch.float32
    torch.testing.assert_close(value, expected, rtol=0, atol=2e-2)


def test_conversions_leave_sums_and_encoder_in_full_precision():
    mapss = small(Weighted())
    metric = PerceptualSeparation(mapss)
    expected = metric(*pair(2)).double()
    holder = torch.nn.ModuleDict({"metric": metric}).half()
    assert metric.item_sum.dtype == torch.float64
    assert mapss.encoder.function.weight.dtype == torch.float32
    assert holder["metric"].compute() == expected
    metric.set_dtype(torch.float64)
    assert metric.compute().dtype == torch.float64
    metric.set_dtype(torch.float16)
    assert metric.item_sum.dtype == torch.float64
    assert metric.compute().dtype == torch.float32


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_a_converted_metric_rounds_nothing(dtype):
    mapss = small()
    for options in ({}, {"half_width": 0.9}, {"reduction": "source"}, {"reduction": "none"}):
        plain, converted = (PerceptualSeparation(mapss, **options) for _ in range(2))
        torch.nn.ModuleDict({"metric": converted}).to(dtype)
        for metric in (plain, converted):
            metric.update(*pair(3))
        values = plain.compute(), converted.compute()
        torch.testing.assert_close(values[1], values[0], rtol=0, atol=0)


@contextmanager
def defaults(dtype: torch.dtype | None = None, device: str | None = None, everywhere: bool = False):
    """The defaults of torch that Lightning and others set around a step, or once for all."""
    before = torch.get_default_dtype()
    torch.set_default_dtype(dtype or before)
    if everywhere:
        torch.set_default_device(device)
    try:
        with torch.device(device) if device and not everywhere else nullcontext():
            yield
    finally:
        torch.set_default_dtype(before)
        if everywhere:
            torch.set_default_device(None)


@pytest.mark.parametrize("around", [{"dtype": torch.bfloat16}, {"device": "meta"}], ids=str)
@pytest.mark.parametrize("rate", [16_000, 44_100])
def test_defaults_of_torch_change_no_score(around, rate):
    """Quantiles of the match bank, lengths of resampled signals, generators on the CPU."""
    preds, target = (x.repeat(1, 1, 3) for x in pair(1))
    bank = DistortionBank("match", only=("lowpass", "highpass", "noise"))
    options = {"sample_rate": rate, "match_bank": bank}

    def scores() -> tuple[Tensor, ...]:
        mapss = MAPSS("mel", separation_bank=DistortionBank("separation", size=MEMBERS), **options)
        leaf = preds.clone().requires_grad_()
        with torch.device("cpu"):  # a metric itself is made on the default device, as any is
            metric = PerceptualMatch(mapss, log=True, reduction="none", frames=7)
        metric.update(preds, target)
        value = perceptual_match(leaf, target, mapss, log=True)
        value.sum().backward()
        bounds = mapss.bounds(preds, mapss.prepare(target), frames=3)
        return value.detach(), metric.compute(), leaf.grad, bounds.pm.tail

    expected = scores()
    with defaults(**around):
        found = scores()
    for one, other in zip(found, expected):
        torch.testing.assert_close(one, other, rtol=0, atol=0, equal_nan=True)


AROUND = [{"dtype": torch.bfloat16}, {"device": "meta"}, {"device": "meta", "everywhere": True}]
CALLS = {
    "update": lambda metric, batch: metric.update(*batch),
    "forward": lambda metric, batch: metric(*batch),
    "compute": lambda metric, batch: metric.compute(),
    "item_scores": lambda metric, batch: metric.item_scores(),
    "function": lambda metric, batch: FUNCTIONS[METRICS.index(type(metric))](*batch, metric.mapss),
}


@pytest.mark.parametrize("around", AROUND, ids=str)
@pytest.mark.parametrize("call", CALLS)
@pytest.mark.parametrize("metric_class", METRICS)
def test_defaults_of_torch_disturb_no_single_call(metric_class, call, around):
    """All else is done outside, so that no other call can make good what this one does wrong."""

    def called(**around):
        metric = metric_class(small(), reduction="none")
        metric.update(*pair(2))
        batch = [x[..., :4000] for x in pair(1, seed=1)]
        before = torch.get_default_dtype(), torch.get_default_device()
        with defaults(**around):
            within = torch.get_default_dtype(), torch.get_default_device()
            value = CALLS[call](metric, batch)
            assert (torch.get_default_dtype(), torch.get_default_device()) == within
        assert (torch.get_default_dtype(), torch.get_default_device()) == before
        names = sorted({*metric._defaults} - {"fingerprint"})  # which tells two encoders apart
        states = [getattr(metric, name) for name in names]
        flat = [x for state in states for x in (state if isinstance(state, list) else [state])]
        return [value, *flat, metric.compute()]

    for found, expected in zip(called(**around), called(), strict=True):
        torch.testing.assert_close(found, expected, rtol=0, atol=0, equal_nan=True)


# ------------------------------------------------------------------------------------------------
# Copies, files, collections, wrappers
# ------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("metric_class", METRICS)
@pytest.mark.parametrize("copied", [copy.deepcopy, lambda m: m.clone()])
def test_copies_right_after_a_call_with_a_graph(metric_class, copied):
    mapss = small(Weighted())
    metric = metric_class(mapss, keep_items=True)
    preds, target = pair(2)
    metric(preds.requires_grad_(), target)
    other = copied(metric)
    assert other.compute() == metric.compute()
    assert other.mapss.encoder.function is mapss.encoder.function
    other.update(*pair(1, seed=4))
    assert int(metric.seen) == 2
    assert len(metric.history) == 1
    assert other.compute() != metric.compute()


def test_pretrained_weights_are_shared_by_metrics_and_copies(tmp_path):
    write_checkpoint(tmp_path / "tiny", "wav2vec2")
    folder = str(tmp_path / "tiny")
    banks = {
        "separation_bank": DistortionBank("separation", size=MEMBERS),
        "match_bank": DistortionBank("match", size=MEMBERS),
    }
    ps, pm = (m(encoder=folder, layer=1, **banks) for m in METRICS)
    copies = [pm, ps.clone(), pickle.loads(pickle.dumps(ps))]
    for other in copies:
        assert other.mapss.encoder.model is ps.mapss.encoder.model
    preds, target = pair(1, sources=2)
    value = ps(preds, target)
    assert 0.0 <= float(value) <= 1.0
    assert copies[1](preds, target) == copies[2](preds, target) == value
    assert len(pickle.dumps(ps)) < 100_000


@pytest.mark.parametrize("metric_class", METRICS)
def test_pickle_before_and_after_use(metric_class):
    metric = metric_class(small(), keep_items=True)
    fresh = pickle.loads(pickle.dumps(metric))
    batch = pair(2)
    metric.update(*batch)
    used = pickle.loads(pickle.dumps(metric))
    assert fresh(*batch) == used.compute() == metric.compute()
    torch.testing.assert_close(used.item_scores(), metric.item_scores())


def test_state_dict_is_free_of_the_encoder():
    model = torch.nn.Module()
    model.metric = PerceptualSeparation(small(Weighted()))
    assert not model.state_dict()
    assert not list(model.parameters())
    model.metric.persistent(True)
    model.metric.update(*pair(2))
    saved = model.state_dict()
    assert "metric.item_sum" in saved
    assert not any("weight" in name for name in saved)
    other = torch.nn.Module()
    other.metric = PerceptualSeparation(small(Weighted()))
    other.metric.persistent(True)
    other.load_state_dict(saved)
    with pytest.warns(UserWarning, match="before the ``update``"):
        assert other.metric.compute() == model.metric.compute()


def test_collection_clones_with_a_prefix():
    mapss = small()
    metrics = MetricCollection([m(mapss) for m in METRICS])
    clone = metrics.clone(prefix="val/")
    batch = pair(2)
    found = clone(*batch)
    assert set(found) == {"val/PerceptualSeparation", "val/PerceptualMatch"}
    assert clone["PerceptualSeparation"].mapss is clone["PerceptualMatch"].mapss
    expected = metrics(*batch)
    assert found["val/PerceptualMatch"] == expected["PerceptualMatch"]
    nested = torch.nn.ModuleDict({"a": clone})
    assert nested["a"].compute().keys() == found.keys()


def test_metrics_of_different_settings_are_never_merged():
    preds, target = pair(2)
    one, two = small(), small(energy=0.7)
    metrics = MetricCollection({"one": PerceptualSeparation(one), "two": PerceptualSeparation(two)})
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        metrics.update(preds, torch.zeros_like(target))  # all sums equal: zero
    metrics.update(preds, target)
    found = metrics.compute()
    assert found["one"] == PerceptualSeparation(one)(preds, target)
    assert found["two"] == PerceptualSeparation(two)(preds, target)
    assert found["one"] != found["two"]


def test_frames_and_items_of_one_frame_are_never_merged():
    mapss = small()
    kept = {
        "each": PerceptualSeparation(mapss, keep_items=True),
        "none": PerceptualSeparation(mapss, reduction="none"),
    }
    metrics = MetricCollection(kept)
    preds, target = pair(2)
    metrics.update(preds[..., :800], target[..., :800])  # a single frame each
    metrics.update(preds, target)
    assert metrics["each"].item_scores().shape == (4, 2)
    assert metrics.compute()["none"].shape == (4, 2, 9)


def test_equal_metrics_are_merged():
    mapss = small()
    pairs = {
        "mean": PerceptualSeparation(mapss),
        "each": PerceptualSeparation(mapss, reduction="source"),
    }
    metrics = MetricCollection(pairs)
    metrics.update(*pair(2))
    assert list(metrics.compute_groups.values()) == [["each", "mean"]]
    metrics.update(*pair(2, seed=3))
    found = metrics.compute()
    torch.testing.assert_close(found["each"].mean(), found["mean"])


def test_wrappers():
    mapss = small()
    batch = pair(4)
    expected = PerceptualSeparation(mapss)(*batch)
    smallest = MinMaxMetric(PerceptualSeparation(mapss))
    assert smallest(*batch)["raw"] == expected

    boot = BootStrapper(PerceptualSeparation(mapss), num_bootstraps=3)
    torch.manual_seed(0)
    boot.update(*batch)
    assert boot.compute()["std"] > 0

    tracker = MetricTracker(PerceptualSeparation(mapss))
    for seed in (0, 1):
        tracker.increment()
        tracker.update(*(batch if seed == 0 else (batch[1], batch[1])))
    best, step = tracker.best_metric(return_step=True)
    assert step == 1
    assert best > expected


def test_several_updates_summed_by_arithmetic():
    mapss = small()
    both = (PerceptualSeparation(mapss) + PerceptualMatch(mapss)) / 2
    batch = pair(2)
    both.update(*batch)
    parts = [m(mapss)(*batch) for m in METRICS]
    torch.testing.assert_close(both.compute(), sum(parts) / 2)


@pytest.mark.parametrize("function", FUNCTIONS)
def test_permutation_invariant_training(function):
    mapss, other = small(), small(energy=0.95)
    _, target = pair(3)
    preds = target + 0.1 * target.roll(1, 1)
    swapped = torch.stack([preds[0].flip(0), preds[1], preds[2].flip(0)])
    options = {"log": True} if function is perceptual_match else {}
    values = []
    for scorer in (mapss, other):  # options are honoured
        bound = functools.partial(function, mapss=scorer, **options)
        value, order = permutation_invariant_training(
            swapped, target, bound, mode="permutation-wise"
        )
        assert order.tolist() == [[1, 0], [0, 1], [1, 0]]
        expected = function(preds, target, scorer, **options)
        # log PM lies in the millions here: float32 waveforms in another order of a batch move it.
        torch.testing.assert_close(value, expected, rtol=1e-5, atol=1e-5)
        metric = PermutationInvariantTraining(bound, mode="permutation-wise")
        torch.testing.assert_close(metric(swapped, target), value.mean())
        values.append(value)
    assert not torch.equal(*values)
    if RequirementCache("torchmetrics>=1.8"):  # older ones drop keywords in this mode
        keywords, _ = permutation_invariant_training(
            swapped, target, function, mode="permutation-wise", mapss=mapss, **options
        )
        assert torch.equal(keywords, values[0])


@pytest.mark.parametrize("function", FUNCTIONS)
def test_speaker_wise_mode_is_refused_with_the_reason(function):
    preds, target = pair(3)
    with pytest.raises(ValueError, match=r"no speaker-wise value, use mode='permutation-wise'"):
        permutation_invariant_training(preds, target, function, mode="speaker-wise", mapss=small())


def test_class_attributes():
    for metric_class in METRICS:
        assert metric_class.higher_is_better
        assert metric_class.is_differentiable
        assert metric_class.full_state_update is False
        assert (metric_class.plot_lower_bound, metric_class.plot_upper_bound) == (0.0, 1.0)


# ------------------------------------------------------------------------------------------------
# Plots
# ------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("given", ["computed", "value", "list", "axes"])
@pytest.mark.parametrize("metric_class", METRICS)
def test_plot(metric_class, given):
    matplotlib = pytest.importorskip("matplotlib")
    matplotlib.use("Agg")
    from matplotlib import pyplot

    style = dict(matplotlib.rcParams)
    mapss = small()
    metric = metric_class(mapss)
    preds, target = pair(2)
    value = metric(preds.requires_grad_(), target)
    own = pyplot.subplots()[1] if given == "axes" else None
    figure, axes = metric.plot({"value": value, "list": [value, value]}.get(given), own)
    assert isinstance(figure, matplotlib.figure.Figure)
    assert own is None or axes is own
    assert axes.get_ylabel().startswith("Perceptual")
    assert axes.get_ylabel().endswith("(0 to 1)")
    low, high = axes.get_ylim()
    assert -0.2 < low <= 0
    assert 1 <= high < 1.2
    assert dict(matplotlib.rcParams) == style
    pyplot.close("all")


def test_plot_of_other_ranges_and_of_frames():
    matplotlib = pytest.importorskip("matplotlib")
    matplotlib.use("Agg")
    from matplotlib import pyplot

    mapss = small()
    preds, target = pair(1)
    target[0, :, 2400:] = 0.0
    frames = PerceptualSeparation(mapss, reduction="none")
    frames.update(preds, target)
    _, axes = frames.plot()
    assert axes.get_xlabel() == "time (s)"
    assert axes.get_ylim() == (0.0, 1.0)
    times, values = axes.lines[0].get_data()
    assert times[0] == pytest.approx(0.05)  # the middle of the first 100 ms
    assert math.isnan(values[-1])
    log = PerceptualMatch(mapss, log=True)
    log.update(preds, target)
    assert log.plot()[1].get_ylabel() == "log PM (nats)"
    pooled = PerceptualSeparation(mapss, reduction="pesq")
    pooled.update(preds, target)
    assert pooled.plot()[1].get_ylim()[0] > 1.0
    each = PerceptualSeparation(mapss, reduction="source")
    each.update(preds, target)
    legend = each.plot()[1].get_legend()
    assert [t.get_text() for t in legend.get_texts()] == ["Source 0", "Source 1"]
    pyplot.close("all")


def test_sources_before_any_update_are_nan():
    for attributed, sources in ((None, 1), ((2, 0), 2)):
        metric = PerceptualSeparation(
            small(), reduction="source", attributed=attributed, keep_items=True
        )
        with pytest.warns(UserWarning, match="before the ``update``"):
            assert metric.compute().flatten().isnan().tolist() == [True] * sources
        assert metric.item_scores().shape == (0, 0)
