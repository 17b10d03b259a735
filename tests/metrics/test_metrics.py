"""The torchmetrics metrics: what torchmetrics expects, what is encoded, what is undefined.

Two processes: test_ddp. Wrappers: test_wrappers. Logged by Lightning: test_lightning.
"""

from __future__ import annotations

import copy
import functools
import gc
import math
import pickle
import warnings
from contextlib import contextmanager

import pytest
import torch
from bursts import by_hand, voices
from lightning_utilities.core.imports import RequirementCache
from torch import Tensor
from torchmetrics import MetricCollection
from torchmetrics.audio import PermutationInvariantTraining
from torchmetrics.functional.audio import permutation_invariant_training

from torch_mapss import (
    MAPSS,
    Bleed,
    Clearance,
    DistortionBank,
    Fidelity,
    PerceptualMatch,
    PerceptualSeparation,
)
from torch_mapss.metrics import (
    bleed,
    clearance,
    fidelity,
    perceptual_match,
    perceptual_separation,
    shared_batch,
)

RATE, SAMPLES, MEMBERS = 8000, 4000, 3
METRICS = (PerceptualSeparation, PerceptualMatch)
PAIRS = {
    PerceptualSeparation: perceptual_separation,
    PerceptualMatch: perceptual_match,
    Clearance: clearance,
    Fidelity: fidelity,
    Bleed: bleed,
}
each_metric = pytest.mark.parametrize("metric_class", [*METRICS, Clearance, Fidelity])
same = functools.partial(torch.testing.assert_close, rtol=0, atol=0, equal_nan=True)
near = functools.partial(torch.testing.assert_close, rtol=0, atol=1e-6, equal_nan=True)


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


def banks() -> dict[str, DistortionBank]:
    return {f"{k}_bank": DistortionBank(k, size=MEMBERS) for k in ("separation", "match")}


def small(encoder=None, **options) -> MAPSS:
    encoder = encoder or Stub()
    return MAPSS(encoder, decomposition_encoder=encoder, **banks(), **options)


def pair(batch: int, sources: int = 2, seed: int = 0) -> tuple[Tensor, Tensor]:
    """Estimates that leak more from item to item, and their references."""
    target = voices(batch, sources, SAMPLES, seed)
    leak = torch.linspace(0.05, 0.6, batch).reshape(-1, 1, 1)
    noise = torch.randn(target.shape, generator=torch.Generator().manual_seed(seed + 1))
    return target + leak * target.roll(1, 1) + 0.02 * noise, target


def waveforms(items: int, measures: int = 2, sources: int = 2) -> int:
    """Every estimate, reference and distortion once."""
    return items * sources * (2 + measures * MEMBERS)


def states_of(metric) -> list[Tensor]:
    found = [getattr(metric, name) for name in metric._defaults]
    return [x for state in found for x in (state if isinstance(state, list) else [state])]


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


def test_fidelity_and_bleed_are_pooled_as_the_scores_are():
    mapss = small()
    preds, target = pair(2)
    target[:, 0, SAMPLES // 2 :] = 0.0
    pooled = mapss(preds, target).utterance()
    for metric, values in ((Fidelity(mapss), pooled.fidelity), (Bleed(mapss), pooled.bleed_db)):
        torch.testing.assert_close(value := metric(preds, target), values.nanmean(1).mean())
    assert -40.0 < float(value) < 0.0
    each = Bleed(mapss, reduction="source", keep_items=True)
    each.update(preds, target)
    assert each.item_scores()[:, 1].isnan().all()  # never silent while the other one is not
    frames = Bleed(mapss, reduction="none")
    frames.update(preds, target)
    assert torch.equal(~frames.compute().isnan(), mapss(preds, target).defined("bleed_db"))
    assert not Bleed.higher_is_better
    silent = Bleed(mapss)(torch.zeros_like(preds), target)
    assert float(silent) == Bleed.plot_lower_bound == -100.0
    with pytest.warns(UserWarning, match="pauses"):
        assert Bleed(mapss)(*pair(1)).isnan()


@each_metric
def test_reductions(metric_class):
    """By source, and by frame at true lengths."""
    mapss = small()
    preds, target = pair(3, sources=3)
    target[0, 1] = 0.0
    metric = metric_class(mapss, reduction="source", keep_items=True)
    metric.update(preds, target)
    rows = metric.item_scores()
    assert rows.isnan().nonzero().tolist() == [[0, 1]]
    torch.testing.assert_close(metric.compute(), rows.nanmean(0))
    preds, target = pair(2)
    metric = metric_class(mapss, reduction="none")
    metric.update(preds, target, lengths=[SAMPLES, 2400])
    metric.update(preds[:1, :, :1600], target[:1, :, :1600])
    frames, scores = metric.compute(), mapss(preds, target, lengths=[SAMPLES, 2400])
    assert frames.shape == (3, 2, 9)
    torch.testing.assert_close(frames[:2].nan_to_num(0.0), scores.of(metric.value.field))
    assert torch.equal(~frames[:2].isnan(), scores.defined(metric.value.field))
    assert frames[2].isnan().tolist() == [[False] * 3 + [True] * 6] * 2
    assert metric.item_scores().shape == (3, 2)


@pytest.mark.parametrize("metric_class", PAIRS)
def test_functions_give_the_value_of_each_item(metric_class):
    """Of a batch, of a bank, of one estimate; differentiable as the class is."""
    mapss, function = small(), PAIRS[metric_class]
    preds, target = pair(3, sources=3)
    target[:, 0, SAMPLES // 2 :] = 0.0
    extra = ["pesq"] if metric_class is PerceptualSeparation else []
    for reduction in ("source", "none", *extra, "mean"):
        metric = metric_class(mapss, reduction=reduction, keep_items=True)
        metric.update(preds, target)
        found = function(preds, target, mapss, reduction=reduction)
        kept = metric.compute() if reduction == "none" else metric.item_scores()
        near(found, kept.nanmean(1) if reduction in ("mean", "pesq") else kept)
    bank = mapss.prepare(target)
    near(function(preds, bank, mapss, reduction="mean"), found)
    alone = function(preds[:, :1], target, mapss, attributed=(0,), reduction="source")
    near(metric_class(mapss, attributed=(0,))(preds[:, :1], target), alone.mean())
    one, two = preds.clone().requires_grad_(), preds.clone().requires_grad_()
    metric_class(mapss)(one, target).backward()
    function(two, target, mapss).mean().backward()
    torch.testing.assert_close(one.grad, two.grad)
    assert one.grad.isfinite().all()
    assert one.grad.abs().sum() > 0
    with pytest.raises(ValueError, match="unsqueeze"):
        function(preds[0], target[0], mapss)


@each_metric
@pytest.mark.filterwarnings("ignore")
def test_batches_do_not_matter_and_epochs_do_not_leak(metric_class):
    mapss = small()
    preds, target = pair(10)
    preds[3], target[3] = 0.1, 0.0
    metric = metric_class(mapss)
    whole = metric(preds, target)
    for split in ((4, 4, 2), (1,) * 10):
        metric.reset()
        for p, t in zip(preds.split(split), target.split(split)):
            metric.update(p, t)
        near(metric.compute(), whole)
        assert metric.skipped == 1
    metric.reset()
    first, second = (metric(preds[part], target[part]) for part in (slice(3), slice(4, 10)))
    near(metric.compute(), whole)  # forward accumulates, and returns the value of its batch
    alone = metric_class(mapss)
    alone.update(preds[4:], target[4:])
    near(second, alone.compute())
    assert first != second


@pytest.mark.parametrize("metric_class", [PerceptualSeparation, Fidelity])
def test_outputs_in_any_order_find_their_references(metric_class):
    mapss = small()
    preds, target = pair(3, sources=3)
    orders = [[2, 0, 1], [0, 1, 2], [1, 0, 2]]
    shuffled = torch.stack([item[order] for item, order in zip(preds, orders)])
    for reduction in ("mean", "source", "none"):
        function = functools.partial(PAIRS[metric_class], mapss=mapss, reduction=reduction)
        near(function(shuffled, target, pit="si_sdr"), function(preds, target))
        plain, metric = (metric_class(mapss, reduction=reduction, pit=p) for p in (None, "si_sdr"))
        for given in (target, mapss.prepare(target)):
            near(metric(shuffled, given), plain(preds, target))
    metric, plain = metric_class(mapss, pit="si_sdr"), metric_class(mapss)
    lengths = [SAMPLES, 2400, 3200]
    near(metric(shuffled, target, lengths), plain(preds, target, lengths))
    near(metric(shuffled[0], target[0]), plain(preds[0], target[0]))
    one, two = shuffled.clone().requires_grad_(), preds.clone().requires_grad_()
    metric(one, target).backward()
    plain(two, target).backward()
    torch.testing.assert_close(one.grad[0], two.grad[0, orders[0]])


def test_pit_needs_all_outputs_and_is_found_in_what_is_trimmed():
    mapss, (preds, target) = small(), pair(2)
    with pytest.raises(ValueError, match="1 estimates for 2 references"):
        PerceptualSeparation(mapss, pit="si_sdr").update(preds[:, :1], target)
    trimmed = PerceptualSeparation(small(trim=True), pit="si_sdr")
    value = trimmed(preds.flip(1)[..., :-100], target)
    near(value, PerceptualSeparation(mapss)(preds[..., :-100], target[..., :-100]))


def test_options_reach_the_mapss():
    preds, target = pair(2)
    metric = PerceptualSeparation(encoder=Stub(), energy=0.8, trim=True, **banks())
    expected = small(energy=0.8, trim=True)(preds[..., :-5], target).utterance().ps.mean()
    torch.testing.assert_close(metric(preds[..., :-5], target), expected)
    assert "encoder='stub', value='ps', reduction='mean'" in repr(metric)
    assert "value='log_pm'" in repr(PerceptualMatch(small(), log=True, frames=5))
    assert "frames=5" in repr(PerceptualMatch(small(), log=True, frames=5))
    alone = Clearance()  # loads no weights of the default encoder
    assert "encoder='mel'" in repr(alone)
    assert float(alone(torch.randn(1, 2, 8000), torch.randn(1, 2, 8000))) < 1.0
    assert alone.mapss.config.encoders["encoder"]._encoder is None
    for make, error, message in (
        (lambda: PerceptualSeparation(small(), pit="loss"), ValueError, "pit"),
        (lambda: PerceptualSeparation(small(), pit="si_sdr", attributed=(0,)), ValueError, "pit"),
        (lambda: PerceptualSeparation(small(), encoder="mel", energy=0.8), ValueError, "energy"),
        (lambda: PerceptualSeparation("mel"), TypeError, "encoder='mel'"),
        (lambda: PerceptualMatch(small(), reduction="pesq"), ValueError, "reduction"),
        (lambda: PerceptualMatch(small(), frames=0), ValueError, "frames"),
        (lambda: PerceptualMatch(small(), no_such_name=1), ValueError, "no_such_name"),
    ):
        with pytest.raises(error, match=message):
            make()


@pytest.mark.parametrize(
    ("groups", "mode"), [(True, "plain"), (False, "inference"), (True, "half")]
)
def test_metrics_of_one_scorer_score_a_batch_together(groups, mode):
    """From the second batch on, every waveform is encoded once for all measures."""
    stub = Stub()
    mapss = small(stub)
    metrics = MetricCollection(
        {
            "ps": PerceptualSeparation(mapss),
            "pm": PerceptualMatch(mapss),
            "log": PerceptualMatch(mapss, log=True),
            "each": PerceptualSeparation(mapss, reduction="source", pit="si_sdr"),
        },
        compute_groups=groups,
    )
    alike = waveforms(2) + waveforms(2, measures=1)  # with and without permutation
    for seed, call in enumerate((metrics.update, metrics, metrics.update, metrics)):
        preds, target = pair(2, seed=seed)
        stub.waveforms = 0
        if mode == "half":
            preds, target = preds.half(), target.half()
        with torch.inference_mode(mode == "inference"):
            call(preds, target)
        again = 2 * 2 * 2  # references and estimates, for the second measure
        assert stub.waveforms == alike + (again if seed == 0 else 0)


def test_nothing_stale_is_reused():
    stub = Stub()
    mapss = small(stub)
    metric = PerceptualSeparation(mapss)
    preds, target = pair(2)
    before = metric(preds, target)
    preds.numpy()[:] = target  # the same tensor, other values, which torch has not noticed
    assert metric(preds, target) > before
    target.mul_(torch.tensor([1.0, 0.2]).reshape(2, 1))
    for reset in (False, True):
        stub.waveforms = 0
        if reset:
            metric.reset()
        metric(preds, target)
        assert stub.waveforms == waveforms(2, measures=1)
    other = PerceptualSeparation(mapss, attributed=(1, 0))
    assert other(preds, target) < 0.5 < metric(preds, target)


def test_states_hold_no_graph_and_do_not_grow_and_a_mapss_goes_with_its_metrics():
    mapss = small()
    metric, kept = Fidelity(mapss), Fidelity(mapss, keep_items=True)
    preds, target = pair(1)
    sizes = []
    for _ in range(3):
        leaf = preds.clone().requires_grad_()
        for each in (metric, kept):
            each(leaf, target)
            each.update(leaf, target)
            assert not any(x.requires_grad for x in states_of(each))
        del leaf
        gc.collect()
        sizes.append((sum(x.numel() for x in states_of(metric)), living_graphs()))
    assert sizes[1] == sizes[-1]
    assert len(kept.item_scores()) == 6
    assert all(h.device.type == "cpu" for h in kept.history)
    kept.reset()
    assert len(kept.item_scores()) == 0
    assert mapss not in shared_batch._LAST
    with pytest.raises(RuntimeError, match="keep_items=True"):
        metric.item_scores()
    metric.update(preds, target)
    count = len(shared_batch._LAST)
    del metric, kept, each, mapss
    gc.collect()
    assert len(shared_batch._LAST) < count


def living_graphs() -> int:
    """Tensors in memory that have a graph."""
    found = recorded(lambda: [x for x in gc.get_objects() if type(x) is Tensor])[0]
    return sum(x.grad_fn is not None for x in found)


@each_metric
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


@each_metric
def test_nothing_defined_is_nan_and_one_warning(metric_class):
    for attributed, sources in ((None, 1), ((2, 0), 2)):
        options = {"reduction": "source", "attributed": attributed, "keep_items": True}
        metric = metric_class(small(), **options)
        value, messages = recorded(metric.compute)
        assert value.flatten().isnan().tolist() == [True] * sources
        assert metric.item_scores().shape == (0, 0)
        assert len(messages) == 1
    metric = metric_class(small())
    value, messages = recorded(metric.compute)
    assert (math.isnan(value), value.shape, len(messages)) == (True, (), 1)
    preds, target = pair(2)
    target[:, 0] = 0.0
    recorded(lambda: metric.update(preds, target))
    value, messages = recorded(metric.compute)
    assert (math.isnan(value), value.shape, len(messages)) == (True, (), 1)
    assert "all of the 2 items" in messages[0]
    assert metric.skipped == 2


@pytest.mark.parametrize("call", ["update", "forward"])
def test_a_refused_batch_leaves_the_metric_as_it_was(call):
    metric = PerceptualMatch(small(), keep_items=True)
    metric.update(*pair(3))
    before = metric.compute().clone()
    with pytest.raises(ValueError, match=r"^PerceptualMatch\.update\(preds=estimates.*shape"):
        getattr(metric, call)(torch.randn(5), torch.randn(5))
    assert metric.compute() == before
    assert len(metric.item_scores()) == 3
    preds, target = pair(1, seed=3)
    metric.update(preds.requires_grad_(), target)
    assert not metric.item_sum.requires_grad


def test_a_metric_moves_its_sums_and_its_mapss_but_not_its_history():
    mapss = small(Weighted())
    metric = PerceptualSeparation(mapss, keep_items=True)
    metric.update(*pair(1))
    metric.to("meta")
    assert metric.device.type == metric.item_sum.device.type == "meta"
    assert mapss.encoder.function.weight.device.type == "meta"
    assert metric.history[0].device.type == "cpu"


@contextmanager
def defaults(dtype: torch.dtype | None = None, device: str | None = None):
    """The defaults of torch that Lightning and others set around a step."""
    before = torch.get_default_dtype()
    try:
        torch.set_default_dtype(dtype or before)
        torch.set_default_device(device)
        yield
    finally:
        torch.set_default_dtype(before)
        torch.set_default_device(None)


AROUND = [{"dtype": torch.bfloat16}, {"device": "meta"}]
CALLS = {
    "update": lambda metric, batch: metric.update(*batch),
    "forward": lambda metric, batch: metric(*batch),
    "compute": lambda metric, batch: metric.compute(),
    "item_scores": lambda metric, batch: metric.item_scores(),
    "function": lambda metric, batch: PAIRS[type(metric)](*batch, metric.mapss),
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
        return [value, *states_of(metric)[1:], metric.compute()]  # without the fingerprint

    for found, expected in zip(called(**around), called(), strict=True):
        same(found, expected)


COPIES = {
    "deepcopy": copy.deepcopy,
    "clone": lambda m: m.clone(),
    "pickle": lambda m: pickle.loads(pickle.dumps(m)),
}


@pytest.mark.parametrize("metric_class", [PerceptualSeparation, Fidelity])
@pytest.mark.parametrize("copied", COPIES)
def test_copies_before_use_and_right_after_a_call_with_a_graph(metric_class, copied):
    mapss = small(Weighted())
    metric = metric_class(mapss, keep_items=True)
    fresh = COPIES[copied](metric)
    preds, target = pair(2)
    value = metric(preds.requires_grad_(), target)
    other = COPIES[copied](metric)
    assert other.compute() == metric.compute()
    same(other.item_scores(), metric.item_scores())
    shared = other.mapss.encoder.function is mapss.encoder.function
    assert shared == (copied != "pickle")
    near(fresh(preds.detach(), target), metric.compute())
    other.update(*pair(1, seed=4))
    assert (int(metric.seen), len(metric.history)) == (2, 1)
    assert other.compute() != metric.compute()
    value.backward()


@each_metric
def test_saving_holds_no_encoder_and_starts_nothing_collective(metric_class, monkeypatch):
    def never(*args, **kwargs):
        raise AssertionError("a collective was started")

    model, other = torch.nn.Module(), torch.nn.Module()
    model.metric, other.metric = (metric_class(small(Weighted())) for _ in range(2))
    model.metric.update(*pair(2))
    with monkeypatch.context() as patched:
        for name in ("all_gather", "all_reduce", "barrier", "broadcast"):
            patched.setattr(torch.distributed, name, never)
        patched.setattr(torch.distributed, "is_initialized", lambda: True)
        pickle.dumps(model.metric)
        assert not model.state_dict()
        assert not list(model.parameters())
        model.metric.persistent(True)
        saved = model.state_dict()
    assert "metric.item_sum" in saved
    assert not any("weight" in name for name in saved)
    other.metric.persistent(True)
    other.load_state_dict(saved)
    with pytest.warns(UserWarning, match="before the ``update``"):
        assert other.metric.compute() == model.metric.compute()


@pytest.mark.filterwarnings("ignore")
def test_only_metrics_of_equal_settings_are_merged():
    preds, target = pair(2)
    one, two = small(), small(energy=0.7)
    metrics = MetricCollection({"one": PerceptualSeparation(one), "two": PerceptualSeparation(two)})
    metrics.update(preds, torch.zeros_like(target))  # all sums equal: zero
    metrics.update(preds, target)
    found = metrics.compute()
    assert found["one"] == PerceptualSeparation(one)(preds, target)
    assert found["two"] == PerceptualSeparation(two)(preds, target)
    each, none = ({"keep_items": True}, {"reduction": "none"})
    kept = {"each": PerceptualSeparation(one, **each), "none": PerceptualSeparation(one, **none)}
    metrics = MetricCollection(kept)
    metrics.update(preds[..., :800], target[..., :800])  # a single frame each
    metrics.update(preds, target)
    assert metrics["each"].item_scores().shape == (4, 2)
    assert metrics.compute()["none"].shape == (4, 2, 9)
    each = PerceptualSeparation(one, reduction="source")
    metrics = MetricCollection({"mean": PerceptualSeparation(one), "each": each})
    metrics.update(preds, target)
    assert list(metrics.compute_groups.values()) == [["each", "mean"]]
    metrics.update(*pair(2, seed=3))
    torch.testing.assert_close(metrics.compute()["each"].mean(), metrics.compute()["mean"])


@pytest.mark.parametrize("function", [perceptual_separation, perceptual_match])
def test_permutation_invariant_training(function):
    mapss, other = small(), small(energy=0.95)
    _, target = pair(3)
    preds = target + 0.1 * target.roll(1, 1)
    swapped = torch.stack([preds[0].flip(0), preds[1], preds[2].flip(0)])
    options = {"log": True} if function is perceptual_match else {}
    values, whole = [], {"mode": "permutation-wise"}
    for scorer in (mapss, other):  # options are honoured
        bound = functools.partial(function, mapss=scorer, **options)
        value, order = permutation_invariant_training(swapped, target, bound, **whole)
        assert order.tolist() == [[1, 0], [0, 1], [1, 0]]
        expected = function(preds, target, scorer, **options)
        # log PM lies in the millions here: float32 waveforms in another order of a batch move it.
        torch.testing.assert_close(value, expected, rtol=1e-5, atol=1e-5)
        metric = PermutationInvariantTraining(bound, **whole)
        torch.testing.assert_close(metric(swapped, target), value.mean())
        values.append(value)
    assert not torch.equal(*values)
    if RequirementCache("torchmetrics>=1.8"):  # older ones drop keywords in this mode
        given = {**whole, "mapss": mapss, **options}
        keywords, _ = permutation_invariant_training(swapped, target, function, **given)
        assert torch.equal(keywords, values[0])
    with pytest.raises(ValueError, match="mode='permutation-wise'"):
        permutation_invariant_training(preds, target, function, mode="speaker-wise", mapss=mapss)


def test_plots() -> None:
    matplotlib = pytest.importorskip("matplotlib")
    matplotlib.use("Agg")
    from matplotlib import pyplot

    style = dict(matplotlib.rcParams)
    mapss, (preds, target) = small(), pair(1)
    target[0, :, 2400:] = 0.0
    found = {}
    for name, metric in {
        "pair": Clearance(mapss),
        "frames": PerceptualSeparation(mapss, reduction="none"),
        "log": PerceptualMatch(mapss, log=True),
        "pesq": PerceptualSeparation(mapss, reduction="pesq"),
        "source": PerceptualSeparation(mapss, reduction="source"),
    }.items():
        value = metric(preds.requires_grad_(), target)
        figure, found[name] = metric.plot()
        assert isinstance(figure, pyplot.Figure)
        own = pyplot.subplots()[1]
        assert name == "frames" or metric.plot([value, value], own)[1] is own
    assert found["pair"].get_ylabel() == Clearance(mapss).value.label
    low, high = found["pair"].get_ylim()
    assert -0.2 < low <= 0 < 1 <= high < 1.2
    axes = found["frames"]
    assert (axes.get_xlabel(), axes.get_ylim()) == ("time (s)", (0.0, 1.0))
    times, values = axes.lines[0].get_data()
    assert times[0] == pytest.approx(0.05)  # the middle of the first 100 ms
    assert math.isnan(values[-1])
    assert found["log"].get_ylabel() == "log PM (nats)"
    log = PerceptualMatch(mapss, log=True)
    assert (log.plot_lower_bound, log.plot_upper_bound) == (None, 0.0)
    assert found["pesq"].get_ylim()[0] > 1.0
    legend = found["source"].get_legend().get_texts()
    assert [t.get_text() for t in legend] == ["Source 0", "Source 1"]
    pyplot.close("all")
    assert dict(matplotlib.rcParams) == style
