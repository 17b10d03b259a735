"""The metrics in torchmetrics' wrappers, alone and nested: as a stock metric of the same lines."""

from __future__ import annotations

import copy
import functools
import pickle
import warnings
from collections.abc import Callable
from typing import Any

import pytest
import torch
from test_metrics import METRICS, pair, small
from torch import Tensor
from torchmetrics import Metric, MetricCollection, MetricTracker, MinMaxMetric
from torchmetrics.wrappers import (
    BootStrapper,
    ClasswiseWrapper,
    MultioutputWrapper,
    MultitaskWrapper,
    Running,
)

from torch_mapss import PerceptualSeparation
from torch_mapss.metrics import states

Make = Callable[..., Metric]
NAMES = ["v", "d"]


class Stock(Metric):
    """Mean square of the error, in the plainest manner of torchmetrics."""

    full_state_update = False
    higher_is_better = True
    is_differentiable = True

    def __init__(self, reduction: str = "mean", **options: Any) -> None:
        super().__init__(**options)
        self.reduction = reduction
        self.add_state("total", torch.zeros(2), dist_reduce_fx="sum")
        self.add_state("count", torch.tensor(0), dist_reduce_fx="sum")

    def update(self, preds: Tensor, target: Tensor) -> None:
        self.total = self.total - (preds - target).square().mean(-1).sum(0)
        self.count = self.count + len(preds)

    def compute(self) -> Tensor:
        each = self.total / self.count
        return each if self.reduction == "source" else each.mean()


def named(make: Make, **options: Any) -> ClasswiseWrapper:
    return ClasswiseWrapper(make(reduction="source"), labels=NAMES, prefix="x-", **options)


def fed(metric: Any, *seeds: int) -> Any:
    for seed in seeds or (0,):
        metric.update(*pair(3, seed=seed))
    return metric


def by_class(make: Make) -> Any:
    return fed(named(make)), lambda m: (m.compute(), m(*pair(2, seed=3)), m.compute())


def by_class_without_labels(make: Make) -> Any:
    return fed(ClasswiseWrapper(make(reduction="source"), prefix="x-")), lambda m: m.compute()


def tracker(make: Make) -> Any:
    def lines(m: MetricTracker) -> Any:
        m.increment()
        fed(m, 1)
        return m.n_steps, m.compute_all(), m.best_metric(return_step=True)[1] in (0, 1)

    metric = MetricTracker(make())
    metric.increment()
    return fed(metric), lines


def tracker_by_class(make: Make) -> Any:
    def lines(m: MetricTracker) -> Any:
        m.increment()
        fed(m, 1)
        return m.compute(), sorted(m.best_metric())

    metric = MetricTracker(named(make), maximize=True)
    metric.increment()
    return fed(metric), lines


def tracker_of_a_collection(make: Make) -> Any:
    def lines(m: MetricTracker) -> Any:
        m.increment()
        fed(m, 1)
        return m.compute(), m.compute_all(), sorted(m.best_metric())

    both = {"source": named(make), "mean": make()}
    metric = MetricTracker(MetricCollection(both), maximize=True)
    metric.increment()
    return fed(metric), lines


def collection(make: Make) -> Any:
    def lines(m: MetricCollection) -> Any:
        found = m.compute(), m.clone(prefix="val/").compute(), m(*pair(2, seed=3))
        m.reset()
        return *found, fed(m, 4, 5).compute()

    parts = {"source": named(make), "mean": make(), "again": make(), "inner": MinMaxMetric(make())}
    return fed(MetricCollection(parts), 0, 1), lines


def collection_in_a_collection(make: Make) -> Any:
    inner = MetricCollection({"source": named(make)}, postfix="!")
    return fed(MetricCollection({"in": inner})), lambda m: (m.compute(), m(*pair(2)))


def smallest_and_largest(make: Make) -> Any:
    def lines(m: MinMaxMetric) -> Any:
        found = m.compute(), m(*pair(2, seed=3)), fed(m, 4).compute()
        m.reset()
        return *found, fed(m, 5).compute()

    return fed(MinMaxMetric(make())), lines


def bootstrapped(make: Make) -> Any:
    def lines(m: BootStrapper) -> Any:
        found = m.compute(), m(*pair(4, seed=3))
        m.reset()
        return *found, fed(m, 4).compute()

    return fed(BootStrapper(make(), num_bootstraps=2, quantile=0.5, raw=True)), lines


def bootstrapped_sources(make: Make) -> Any:
    metric = BootStrapper(make(reduction="source"), num_bootstraps=2)
    return fed(metric), lambda m: m.compute()


def of_each_item(make: Make) -> Any:
    metric = MultioutputWrapper(make(), num_outputs=3, output_dim=0, squeeze_outputs=False)
    return fed(metric), lambda m: (m.compute(), m(*pair(3, seed=3)))


def of_the_last(make: Make) -> Any:
    def lines(m: Running) -> Any:
        found = m.compute(), m(*pair(2, seed=3)), m.compute()
        m.reset()
        return *found, fed(m, 4).compute()

    return fed(Running(make(), window=2), 0, 1, 2), lines


def of_the_last_by_class(make: Make) -> Any:
    inner = Running(make(reduction="source"), window=2)
    return fed(ClasswiseWrapper(inner, labels=NAMES), 0, 1, 2), lambda m: m.compute()


def tasks(make: Make) -> Any:
    def batch(seed: int) -> tuple[dict[str, Tensor], ...]:
        return tuple(dict.fromkeys(("a", "b", "c"), x) for x in pair(2, seed=seed))

    def lines(m: MultitaskWrapper) -> Any:
        return m.compute(), m.clone(prefix="val/").compute(), m(*batch(3))

    parts = {"a": make(), "b": named(make), "c": MetricCollection({"in": make()})}
    metric = MultitaskWrapper(parts)
    metric.update(*batch(0))
    return metric, lines


def arithmetic(make: Make) -> Any:
    return fed((make() + make()) / 2), lambda m: (m.compute(), m(*pair(2)))


def module_dict(make: Make) -> Any:
    held = torch.nn.ModuleDict({"in": fed(named(make))})
    return held, lambda m: (type(m["in"]).__name__, m["in"].compute())


WRAPPED = [
    by_class,
    by_class_without_labels,
    tracker,
    tracker_by_class,
    tracker_of_a_collection,
    collection,
    collection_in_a_collection,
    smallest_and_largest,
    bootstrapped,
    bootstrapped_sources,
    of_each_item,
    of_the_last,
    of_the_last_by_class,
    tasks,
    arithmetic,
    module_dict,
]
COPIES = {"itself": lambda m: m, "deepcopy": copy.deepcopy}
COPIES["pickle"] = lambda m: pickle.loads(pickle.dumps(m))


def outline(value: Any) -> Any:
    """Types, names and shapes, without the numbers."""
    if isinstance(value, Tensor):
        return tuple(value.shape)
    if isinstance(value, dict):
        return {name: outline(entry) for name, entry in value.items()}
    if isinstance(value, tuple | list):
        return [outline(entry) for entry in value]
    return type(value).__name__ if isinstance(value, float) else value


def numbers(value: Any) -> list[Tensor]:
    if isinstance(value, dict):
        value = list(value.values())
    if isinstance(value, tuple | list):
        return [number for entry in value for number in numbers(entry)]
    return [value.double().flatten()] if isinstance(value, Tensor) else []


@pytest.mark.parametrize("copied", COPIES)
@pytest.mark.parametrize("wrapped", WRAPPED, ids=lambda w: w.__name__)
def test_wrapped_as_a_stock_metric_is(wrapped, copied):
    """Types, names and shapes are those of a stock metric; a copy has the numbers of its like."""
    mapss = small()
    expected = outline(told(wrapped, Stock, COPIES["itself"])[0])
    for metric_class in METRICS if copied == "itself" else METRICS[:1]:
        found, original = told(wrapped, functools.partial(metric_class, mapss), COPIES[copied])
        assert outline(found) == expected
        if copied != "itself":  # what was done to the copy has not been done to the other
            assert outline(original) == expected
            for one, other in zip(numbers(found), numbers(original)):
                torch.testing.assert_close(one, other, rtol=0, atol=1e-6)


def told(wrapped: Any, make: Make, copied: Callable[[Any], Any]) -> tuple[Any, Any]:
    """What the lines of a wrapped metric return of a copy, and then of the metric copied."""
    torch.manual_seed(0)
    metric, lines = wrapped(make)
    here, found = copied(metric), []
    assert type(here) is type(metric)
    for each in (here, metric)[: 1 if here is metric else 2]:
        torch.manual_seed(0)
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            found.append(lines(each))
    return found[0], found[-1]


CONVERSIONS = {
    "bfloat16": lambda m: m.to(torch.bfloat16),
    "half": lambda m: m.half(),
    "set_dtype": lambda m: m.set_dtype(torch.float16),
}


@pytest.mark.parametrize("convert", CONVERSIONS)
@pytest.mark.parametrize("wrap", [named, lambda make: Running(make(), window=3)])
def test_a_wrapper_that_is_converted_rounds_no_sum(wrap, convert):
    make = functools.partial(PerceptualSeparation, small(), keep_items=True)
    plain, converted = wrap(make), CONVERSIONS[convert](wrap(make))
    for metric in (plain, converted):
        fed(metric, 0, 1)
    inner = getattr(converted, "metric", None) or converted.base_metric
    for name, dtype in states.DTYPES.items():
        state = getattr(inner, name)
        found = {x.dtype for x in (state if isinstance(state, list) else [state])}
        assert found <= {dtype}, name
    for one, other in zip(numbers(converted.compute()), numbers(plain.compute())):
        torch.testing.assert_close(one, other, rtol=0, atol=1e-6)


def test_metrics_of_different_settings_stay_apart_when_converted():
    """A mark beyond the range of half precision would be infinite, and equal, in all of them."""
    one, two = small(), small(energy=0.7)
    both = {k: ClasswiseWrapper(PerceptualSeparation(m, reduction="source"), prefix=k) for k, m in
            (("one-", one), ("two-", two))}  # fmt: skip
    marks = [CONVERSIONS["set_dtype"](metric).metric.fingerprint for metric in both.values()]
    assert not torch.equal(*marks)
