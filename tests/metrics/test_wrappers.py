"""The metrics in torchmetrics' wrappers, alone and nested: as a stock metric of the same lines."""

from __future__ import annotations

import copy
import functools
import pickle
from collections.abc import Callable
from typing import Any

import pytest
import torch
from stub_scorers import leaking_pair, states_of, stub_scorer
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

pytestmark = pytest.mark.filterwarnings("ignore")
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
        means = self.total / self.count
        return means if self.reduction == "source" else means.mean()


def named(make: Make, **options: Any) -> ClasswiseWrapper:
    return ClasswiseWrapper(make(reduction="source"), labels=NAMES, prefix="x-", **options)


def several(make: Make) -> MetricCollection:
    return MetricCollection(
        {"source": named(make), "mean": make(), "again": make(), "inner": MinMaxMetric(make())}
    )


def tasks(make: Make) -> MultitaskWrapper:
    return MultitaskWrapper({"a": make(), "b": named(make), "c": MetricCollection({"in": make()})})


WRAPPED: dict[str, Callable[[Make], Any]] = {
    "by class": named,
    "without labels": lambda make: ClasswiseWrapper(make(reduction="source"), prefix="x-"),
    "tracker": lambda make: MetricTracker(make()),
    "tracker by class": lambda make: MetricTracker(named(make), maximize=True),
    "tracker of several": lambda make: MetricTracker(
        MetricCollection({"source": named(make), "mean": make()}), maximize=True
    ),
    "collection": several,
    "nested": lambda make: MetricCollection(
        {"in": MetricCollection({"source": named(make)}, postfix="!")}
    ),
    "extremes": lambda make: MinMaxMetric(make()),
    "bootstrap": lambda make: BootStrapper(make(), num_bootstraps=2, quantile=0.5, raw=True),
    "bootstrapped sources": lambda make: BootStrapper(make(reduction="source"), num_bootstraps=2),
    "of each item": lambda make: MultioutputWrapper(
        make(), num_outputs=3, output_dim=0, squeeze_outputs=False
    ),
    "running": lambda make: Running(make(), window=2),
    "running by class": lambda make: ClasswiseWrapper(
        Running(make(reduction="source"), window=2), labels=NAMES
    ),
    "tasks": tasks,
    "arithmetic": lambda make: (make() + make()) / 2,
}


def batch(metric: Any, seed: int) -> tuple[Any, ...]:
    signals = leaking_pair(3, seed=seed)
    if isinstance(metric, MultitaskWrapper):
        return tuple(dict.fromkeys(("a", "b", "c"), x) for x in signals)
    return signals


def used(metric: Any) -> Any:
    """The metric after two batches; a tracker in its first step."""
    if isinstance(metric, MetricTracker):
        metric.increment()
    for seed in (0, 1):
        metric.update(*batch(metric, seed))
    return metric


def lines(metric: Any) -> list[Any]:
    """What a user does with it from there on."""
    torch.manual_seed(0)
    if isinstance(metric, MetricTracker):
        metric.increment()
        metric.update(*batch(metric, 2))
        best = metric.best_metric()
        names = sorted(best) if isinstance(best, dict) else type(best).__name__
        return [metric.n_steps, metric.compute(), metric.compute_all(), names]
    values = [metric.compute(), metric(*batch(metric, 3)), metric.compute()]
    metric.reset()
    metric.update(*batch(metric, 4))
    return [*values, metric.compute()]


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


@pytest.mark.parametrize("wrapped", WRAPPED)
def test_wrapped_as_a_stock_metric_is(wrapped):
    """Types, names and shapes are those of a stock metric; a copy has the numbers of its like."""
    make = functools.partial(PerceptualSeparation, stub_scorer())
    torch.manual_seed(0)
    metric = used(torch.nn.ModuleDict({"in": WRAPPED[wrapped](make)})["in"])
    copied = pickle.loads(pickle.dumps(copy.deepcopy(metric)))
    assert type(copied) is type(metric)
    try:
        expected = outline(lines(used(WRAPPED[wrapped](Stock))))
    except TypeError as error:  # torchmetrics 1.4, of a tracker by class
        pytest.skip(f"this torchmetrics cannot do it with a stock metric either: {error}")
    values, original = lines(copied), lines(metric)
    assert outline(values) == outline(original) == expected
    for number, original_number in zip(numbers(values), numbers(original), strict=True):
        torch.testing.assert_close(number, original_number, rtol=0, atol=1e-6)


CONVERSIONS = {
    "bfloat16": lambda m: m.to(torch.bfloat16),
    "half": lambda m: m.half(),
    "set_dtype": lambda m: m.set_dtype(torch.float16),
}


@pytest.mark.parametrize("convert", CONVERSIONS)
@pytest.mark.parametrize("wrap", [named, lambda make: Running(make(), window=3)])
def test_a_wrapper_that_is_converted_rounds_no_sum(wrap, convert):
    make = functools.partial(PerceptualSeparation, stub_scorer(), keep_items=True)
    plain, converted = wrap(make), CONVERSIONS[convert](wrap(make))
    for metric in (plain, converted):
        used(metric)
    inner = getattr(converted, "metric", None) or converted.base_metric
    dtypes = {state.dtype for state in states_of(inner)}
    assert dtypes <= {torch.float64, torch.int64, torch.float32}
    for value, expected in zip(numbers(converted.compute()), numbers(plain.compute())):
        torch.testing.assert_close(value, expected, rtol=0, atol=1e-6)


def test_metrics_of_different_settings_stay_apart_when_converted():
    """A mark beyond the range of half precision would be infinite, and equal, in all of them."""
    marks = []
    for mapss in (stub_scorer(), stub_scorer(energy=0.7)):
        metric = ClasswiseWrapper(PerceptualSeparation(mapss, reduction="source"), prefix="x-")
        marks.append(CONVERSIONS["set_dtype"](metric).metric.fingerprint)
    assert not torch.equal(*marks)
