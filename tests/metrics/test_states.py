"""States: what they hold, copies, devices, and batches that are refused or undefined."""

from __future__ import annotations

import copy
import functools
import gc
import math
import pickle
import weakref

import pytest
import torch
from metric_pairs import each_metric
from stub_scorers import Weighted, leaking_pair, recorded, states_of, stub_scorer
from torch import Tensor

from torch_mapss import Fidelity, PerceptualMatch, PerceptualSeparation

same = functools.partial(torch.testing.assert_close, rtol=0, atol=0, equal_nan=True)
near = functools.partial(torch.testing.assert_close, rtol=0, atol=1e-6, equal_nan=True)


def test_states_hold_no_graph_and_do_not_grow_and_a_mapss_goes_with_its_metrics():
    mapss = stub_scorer()
    metric, kept = Fidelity(mapss), Fidelity(mapss, keep_items=True)
    preds, target = leaking_pair(1)
    sizes = []
    for _ in range(3):
        leaf = preds.clone().requires_grad_()
        for used in (metric, kept):
            used(leaf, target)
            used.update(leaf, target)
            assert not any(x.requires_grad for x in states_of(used))
        del leaf
        gc.collect()
        sizes.append((sum(x.numel() for x in states_of(metric)), living_graphs()))
    assert sizes[1] == sizes[-1]
    assert len(kept.item_scores()) == 6
    assert all(h.device.type == "cpu" for h in kept.history)
    kept.reset()
    assert len(kept.item_scores()) == 0
    with pytest.raises(RuntimeError, match="keep_items=True"):
        metric.item_scores()
    metric.update(preds, target)
    scorer = weakref.ref(mapss)
    del metric, kept, used, mapss
    gc.collect()
    assert scorer() is None


def living_graphs() -> int:
    """Tensors in memory that have a graph."""
    tensors, _ = recorded(lambda: [x for x in gc.get_objects() if type(x) is Tensor])
    return sum(tensor.grad_fn is not None for tensor in tensors)


@each_metric
def test_an_undefined_item_is_skipped_and_counted(metric_class):
    mapss = stub_scorer()
    preds, target = leaking_pair(8)
    target[5, 0] = 0.0
    metric = metric_class(mapss, keep_items=True)
    with pytest.warns(UserWarning, match=r"mixtures \[5\]"):
        metric.update(preds, target)
    good = [i for i in range(8) if i != 5]
    torch.testing.assert_close(metric.compute(), metric_class(mapss)(preds[good], target[good]))
    assert metric.skipped == 1
    assert metric.item_scores().isnan().all(1).nonzero().flatten().tolist() == [5]


@each_metric
def test_nothing_defined_is_nan_and_one_warning(metric_class):
    for attributed, sources in ((None, 1), ((2, 0), 2)):
        options = {"reduction": "source", "attributed": attributed, "keep_items": True}
        metric = metric_class(stub_scorer(), **options)
        value, messages = recorded(metric.compute)
        assert value.flatten().isnan().tolist() == [True] * sources
        assert metric.item_scores().shape == (0, 0)
        assert len(messages) == 1
    metric = metric_class(stub_scorer())
    value, messages = recorded(metric.compute)
    assert (math.isnan(value), value.shape, len(messages)) == (True, (), 1)
    preds, target = leaking_pair(2)
    target[:, 0] = 0.0
    recorded(lambda: metric.update(preds, target))
    value, messages = recorded(metric.compute)
    assert (math.isnan(value), value.shape, len(messages)) == (True, (), 1)
    assert "all of the 2 items" in messages[0]
    assert metric.skipped == 2


@pytest.mark.parametrize("call", ["update", "forward"])
def test_a_refused_batch_leaves_the_metric_as_it_was(call):
    metric = PerceptualMatch(stub_scorer(), keep_items=True)
    metric.update(*leaking_pair(3))
    before = metric.compute().clone()
    with pytest.raises(ValueError, match=r"^PerceptualMatch\.update\(preds=estimates.*shape"):
        getattr(metric, call)(torch.randn(5), torch.randn(5))
    assert metric.compute() == before
    assert len(metric.item_scores()) == 3
    preds, target = leaking_pair(1, seed=3)
    metric.update(preds.requires_grad_(), target)
    assert not metric.item_sum.requires_grad


def test_a_metric_moves_its_sums_and_its_mapss_but_not_its_history():
    mapss = stub_scorer(Weighted())
    metric = PerceptualSeparation(mapss, keep_items=True)
    metric.update(*leaking_pair(1))
    metric.to("meta")
    assert metric.device.type == metric.item_sum.device.type == "meta"
    assert mapss.encoder.function.weight.device.type == "meta"
    assert metric.history[0].device.type == "cpu"


COPIES = {
    "deepcopy": copy.deepcopy,
    "clone": lambda m: m.clone(),
    "pickle": lambda m: pickle.loads(pickle.dumps(m)),
}


@pytest.mark.parametrize("metric_class", [PerceptualSeparation, Fidelity])
@pytest.mark.parametrize("copied", COPIES)
def test_copies_before_use_and_right_after_a_call_with_a_graph(metric_class, copied):
    mapss = stub_scorer(Weighted())
    metric = metric_class(mapss, keep_items=True)
    fresh = COPIES[copied](metric)
    preds, target = leaking_pair(2)
    value = metric(preds.requires_grad_(), target)
    twin = COPIES[copied](metric)
    assert twin.compute() == metric.compute()
    same(twin.item_scores(), metric.item_scores())
    shared = twin.mapss.encoder.function is mapss.encoder.function
    assert shared == (copied != "pickle")
    near(fresh(preds.detach(), target), metric.compute())
    twin.update(*leaking_pair(1, seed=4))
    assert (int(metric.seen), len(metric.item_scores())) == (2, 2)
    assert twin.compute() != metric.compute()
    value.backward()


@each_metric
def test_saving_holds_no_encoder_and_starts_nothing_collective(metric_class, monkeypatch):
    def never(*args, **kwargs):
        raise AssertionError("a collective was started")

    model, loaded = torch.nn.Module(), torch.nn.Module()
    model.metric, loaded.metric = (metric_class(stub_scorer(Weighted())) for _ in range(2))
    model.metric.update(*leaking_pair(2))
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
    loaded.metric.persistent(True)
    loaded.load_state_dict(saved)
    with pytest.warns(UserWarning, match="before the ``update``"):
        assert loaded.metric.compute() == model.metric.compute()
