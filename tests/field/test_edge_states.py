"""Metrics over epochs, copies and processes.

Two processes, one of them without a batch, and saving on one rank alone: test_metrics_ddp. Values
logged by Lightning as objects: test_lightning. Trackers and bootstraps: test_metrics.
"""

from __future__ import annotations

import copy
import gc
import pickle
import warnings

import pytest
import torch
from edge import MEMBERS, Stub, leaky, scores_of, small, voices
from torchmetrics import MetricCollection

from torch_mapss import PerceptualMatch, PerceptualSeparation

METRICS = (PerceptualSeparation, PerceptualMatch)
each_metric = pytest.mark.parametrize("metric_class", METRICS)
near = torch.testing.assert_close
pytestmark = pytest.mark.filterwarnings("ignore:mixtures")


@pytest.fixture(scope="module")
def items() -> tuple[torch.Tensor, torch.Tensor]:
    references = voices(10, seconds=0.25)
    return leaky(references), references


@each_metric
def test_compute_before_any_update_is_nan_and_one_warning(mapss, metric_class):
    with pytest.warns(UserWarning) as told:  # noqa: PT030
        value = metric_class(mapss).compute()
    assert value.isnan()
    assert value.ndim == 0
    assert len(told) == 1


@each_metric
def test_saving_one_metric_starts_nothing_collective(mapss, metric_class, items, monkeypatch):
    metric = metric_class(mapss)
    metric.update(*(x[:1] for x in items))

    def never(*args, **kwargs):
        raise AssertionError("a collective was started")

    for name in ("all_gather", "all_reduce", "barrier", "broadcast"):
        monkeypatch.setattr(torch.distributed, name, never)
    monkeypatch.setattr(torch.distributed, "is_initialized", lambda: True)
    holder = torch.nn.ModuleDict({"val": metric})
    holder.state_dict()
    pickle.dumps(metric)


def test_nested_metrics_and_their_clones(mapss, items):
    batch = [x[:2] for x in items]
    collection = MetricCollection({"ps": PerceptualSeparation(mapss), "pm": PerceptualMatch(mapss)})
    holder = torch.nn.ModuleDict({"val": collection.clone(prefix="val/"), "one": collection["ps"]})
    holder["val"].update(*batch)
    holder["one"].update(*batch)
    values = holder["val"].compute()
    assert sorted(values) == ["val/pm", "val/ps"]
    assert all(value.isfinite() for value in values.values())
    near(holder["one"].compute(), values["val/ps"])
    assert collection["pm"].seen == 0


@each_metric
def test_epochs_are_plain_means_and_do_not_leak(mapss, metric_class, items):
    estimates, references = items
    each = scores_of(mapss, estimates, references)[int(metric_class is PerceptualMatch)].mean(-1)
    manual, called = metric_class(mapss), metric_class(mapss)
    for epoch in (range(0, 6), range(6, 10)):
        for start in range(epoch.start, epoch.stop, 2):
            manual.update(estimates[start : start + 2], references[start : start + 2])
            called(estimates[start : start + 2], references[start : start + 2])
        expected = each[list(epoch)].mean()
        near(manual.compute(), expected, rtol=0, atol=1e-6)
        near(called.compute(), expected, rtol=0, atol=1e-6)
        manual.reset()
        called.reset()


@each_metric
def test_a_call_encodes_no_more_than_an_update(metric_class, items):
    counts = []
    for call in ("update", "forward"):
        stub = Stub()
        getattr(metric_class(small(stub)), call)(*(x[:2] for x in items))
        counts.append((stub.calls, stub.waveforms))
    assert counts[0] == counts[1]
    assert counts[0][1] == 2 * 2 * (2 + MEMBERS)


@each_metric
@pytest.mark.parametrize(
    "copied", [copy.deepcopy, lambda m: m.clone(), lambda m: pickle.loads(pickle.dumps(m))]
)
def test_copies_right_after_a_call_with_a_graph(mapss, metric_class, copied, items):
    estimates, references = (x[:2] for x in items)
    metric = metric_class(mapss)
    fresh = copied(metric)
    value = metric(estimates.requires_grad_(), references)
    twin = copied(metric)
    near(twin.compute(), metric.compute(), rtol=0, atol=0)
    fresh.update(estimates.detach(), references)
    near(fresh.compute(), metric.compute(), rtol=0, atol=1e-6)
    value.backward()


def test_copies_share_a_module_encoder_and_pickles_carry_it(items):
    class Weighted(torch.nn.Module):
        name, sample_rate, hop, receptive_field = "weighted", 16000, 320, 400

        def __init__(self):
            super().__init__()
            self.weight = torch.nn.Parameter(torch.randn(400, 4))

        def forward(self, waveform):
            return waveform.unfold(-1, 400, 320) @ self.weight

    metric = PerceptualSeparation(small(Weighted()))
    twin = copy.deepcopy(metric)
    one, other = (m.mapss.encoder.function.weight for m in (metric, twin))
    assert one.data_ptr() == other.data_ptr()


@each_metric
def test_any_split_of_an_epoch_gives_one_value(mapss, metric_class, items):
    values = []
    for sizes in ([1] * 10, [4, 4, 2], [10]):
        metric = metric_class(mapss)
        for estimates, references in zip(items[0].split(sizes), items[1].split(sizes)):
            metric.update(estimates, references)
        values.append(metric.compute())
    halves = [metric_class(mapss) for _ in range(2)]
    for rank, metric in enumerate(halves):
        metric.update(items[0][rank::2], items[1][rank::2])
    # What a sum over ranks does to the states.
    for name, reduction in halves[0]._reductions.items():
        parts = torch.stack([getattr(metric, name) for metric in halves])
        setattr(
            halves[0],
            name,
            parts.sum(0) if "sum" in reduction.__name__ else parts.amax(0),
        )
    values.append(halves[0].compute())
    for value in values[1:]:
        near(value, values[0], rtol=0, atol=1e-6)


@each_metric
def test_the_default_value_is_a_scalar_for_loggers(mapss, metric_class, items):
    batch = [x[:2] for x in items]
    metric, by_source = metric_class(mapss), metric_class(mapss, reduction="source")
    for m in (metric, by_source):
        m.update(*batch)
    value = metric.compute()
    assert value.shape == ()
    assert value.dtype == torch.float32
    assert 0.0 <= float(value) <= 1.0
    assert by_source.compute().shape == (2,)
    assert "log_dict" in (PerceptualSeparation.__doc__ or "")


@pytest.mark.slow
@each_metric
def test_states_neither_grow_nor_hold_graphs(mapss, metric_class, items):
    metric = metric_class(mapss)
    batch = [x[:1] for x in items]
    sizes = []
    for _ in range(5):
        estimates = batch[0].clone().requires_grad_()
        metric(estimates, batch[1])
        metric.update(estimates, batch[1])
        del estimates
        states = [getattr(metric, name) for name in metric._defaults]
        assert not any(state.requires_grad for state in states)
        gc.collect()
        sizes.append((sum(s.numel() for s in states), living_graphs()))
    assert sizes[1] == sizes[-1]


def living_graphs() -> int:
    """Tensors in memory that hang on a graph."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return sum(type(x) is torch.Tensor and x.grad_fn is not None for x in gc.get_objects())


def test_history_is_asked_for_kept_on_the_cpu_and_freed(mapss, items):
    metric = PerceptualSeparation(mapss, keep_items=True)
    for start in (0, 2):
        metric.update(items[0][start : start + 2], items[1][start : start + 2])
    assert all(part.device.type == "cpu" for part in metric.history)
    assert metric.item_scores().shape == (4, 2)
    metric.reset()
    assert metric.history == []
    with pytest.raises(RuntimeError, match="keep_items=True"):
        PerceptualSeparation(mapss).item_scores()
