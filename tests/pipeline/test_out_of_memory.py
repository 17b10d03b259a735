"""Where a device runs out of memory: work goes on within half of it, and nothing is lost."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import pytest
import torch
from bursts import bursts, leaky, small
from torch import Tensor

from torch_mapss import MAPSS
from torch_mapss.core import frame_batches, linalg
from torch_mapss.encoders import MelEncoder
from torch_mapss.pipeline import scoring as stage
from torch_mapss.pipeline.memory import Allowance, Budget

NAMES = ("ps", "pm", "log_pm", "attributed_distance", "foreign_distance")
# What may ask for memory while estimates are encoded and scored.
PLACES: dict[str, tuple[Any, str]] = {
    "encoding": (MelEncoder, "_encode"),
    "gathering the bank": (stage, "bank_frames"),
    "gathering estimates": (stage, "gather"),
    "eigendecomposition": (linalg, "eigh"),
}


class Failing:
    """Stands for a function that finds no memory at some of its calls."""

    def __init__(self, original: Callable[..., Any], fails: set[int]) -> None:
        self.original, self.fails, self.calls = original, fails, 0

    def __call__(self, *given: Any, **options: Any) -> Any:
        self.calls += 1
        if self.calls in self.fails:
            raise torch.OutOfMemoryError("no memory left")
        return self.original(*given, **options)


@contextmanager
def without_memory(place: str, fails: set[int]) -> Iterator[Failing]:
    where, name = PLACES[place]
    failing = Failing(getattr(where, name), fails)

    def called(*given: Any, **options: Any) -> Any:
        return failing(*given, **options)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(where, name, called)
        yield failing


@pytest.fixture
def pieces(monkeypatch: pytest.MonkeyPatch) -> None:
    """Small pieces of frames, so that a failure falls in the middle."""
    monkeypatch.setattr(Budget, "gathered", property(lambda self: self.total // 256))


def made() -> tuple[MAPSS, Tensor, Any]:
    references = torch.stack([bursts(1.2, seed=s) for s in range(2)]).double()
    mapss = small(memory=2**27)
    return mapss, leaky(references), mapss.prepare(references)


def scores_of(mapss: MAPSS, estimates: Tensor, bank: Any, place: str) -> list[Any]:
    several = place in ("distances", "encoding")
    given = [estimates, estimates.flip(-2)] if several else [estimates]
    return mapss.score_systems(given, bank)


def assert_alike(one: Any, other: Any) -> None:
    assert torch.equal(one.active, other.active)
    assert one.active.any()
    for name in NAMES:
        torch.testing.assert_close(getattr(one, name), getattr(other, name), rtol=1e-9, atol=1e-12)


def of_memory(caught: list[warnings.WarningMessage]) -> list[str]:
    return [str(w.message) for w in caught if "ran out of memory" in str(w.message)]


@pytest.mark.usefixtures("pieces")
@pytest.mark.parametrize("fails", [{1}, {2}, {1, 2}], ids=str)
@pytest.mark.parametrize("place", PLACES)
def test_scores_are_the_same(place: str, fails: set[int]) -> None:
    mapss, estimates, bank = made()
    expected = scores_of(mapss, estimates, bank, place)
    with without_memory(place, fails) as failing, warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        found = scores_of(mapss, estimates, bank, place)
    assert failing.calls > max(fails)
    for one, other in zip(expected, found):
        assert_alike(one, other)
    (message,) = of_memory(caught)
    assert f"memory={2**27 // 2 ** len(fails)}" in message


@pytest.mark.usefixtures("pieces")
@pytest.mark.parametrize("place", ["encoding", "gathering the bank"])
def test_bounds_are_the_same(place: str) -> None:
    mapss, estimates, bank = made()
    expected = mapss.bounds(estimates, bank, frames=30)
    with without_memory(place, {1}), warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        found = mapss.bounds(estimates, bank, frames=30)
    assert len(of_memory(caught)) == 1
    assert_alike(expected.scores, found.scores)
    for ours, theirs in zip((*found.ps, *found.pm), (*expected.ps, *expected.pm)):
        torch.testing.assert_close(ours, theirs, rtol=1e-9, atol=1e-12)


def slopes(mapss: MAPSS, estimates: Tensor, bank: Any) -> Tensor:
    leaf = estimates.clone().requires_grad_()
    (slope,) = torch.autograd.grad(mapss(leaf, bank).ps.sum(), leaf)
    return slope


@pytest.mark.parametrize("place", ["gathering estimates", "eigendecomposition"])
def test_with_a_graph_frames_are_begun_anew(place: str) -> None:
    mapss, estimates, bank = made()
    expected = slopes(mapss, estimates, bank)
    with (
        without_memory(place, {1}),
        pytest.warns(UserWarning, match="ran out of memory"),
    ):
        found = slopes(mapss, estimates, bank)
    torch.testing.assert_close(found, expected, rtol=1e-9, atol=1e-12)


def test_half_a_budget_recomputes_larger_graphs(monkeypatch: pytest.MonkeyPatch) -> None:
    """Which is what lets scores with gradients go on: a graph that no longer fits is not kept."""
    mapss, estimates, bank = made()
    expected = slopes(mapss, estimates, bank)
    sizes = []
    for part in (bank.groups[0].separation, bank.groups[0].match):
        points = 2 * (part.distortions.shape[2] + 2)
        sizes.append(len(bank.groups[0].scored) * 8 * (points * 80 + 10 * points**2))
    allowed = mapss.budget(estimates.device).frames  # 3/4 of which is too little after halving
    monkeypatch.setattr(
        frame_batches, "GRAPH_BYTES", max(sizes) * 3 // 2 * frame_batches.BATCH_BYTES // allowed
    )
    run, recomputed = frame_batches._Recomputed.forward, []

    def noted(*given: Any) -> Any:
        recomputed.append(True)
        return run(*given)

    monkeypatch.setattr(frame_batches._Recomputed, "forward", noted)
    slopes(mapss, estimates, bank)
    assert not recomputed
    with without_memory("eigendecomposition", {1}), pytest.warns(UserWarning, match="memory"):
        found = slopes(mapss, estimates, bank)
    assert recomputed
    torch.testing.assert_close(found, expected, rtol=1e-9, atol=1e-12)


def test_where_nothing_is_left_the_error_says_what_to_do() -> None:
    mapss, estimates, bank = made()
    always = set(range(1, 100))
    with (
        without_memory("eigendecomposition", always) as failing,
        pytest.raises(torch.OutOfMemoryError, match=r"no memory left\n.*fewer frames"),
    ):
        mapss(estimates, bank)
    assert failing.calls == 4  # 128, 64, 32, 16 MiB


def test_an_encoder_that_keeps_all_activations_fails_at_once() -> None:
    mapss, estimates, bank = made()
    leaf = estimates.requires_grad_()
    with (
        without_memory("encoding", {1}) as failing,
        pytest.raises(torch.OutOfMemoryError, match=r"no memory left\n.*activation_checkpointing"),
    ):
        mapss(leaf, bank)
    assert failing.calls == 1


def test_an_encoder_that_recomputes_goes_on() -> None:
    mapss, estimates, bank = made()
    expected = slopes(mapss, estimates, bank)
    mapss.encoder.activation_checkpointing = True
    with (
        without_memory("encoding", {1}),
        pytest.warns(UserWarning, match="ran out of memory"),
    ):
        found = slopes(mapss, estimates, bank)
    torch.testing.assert_close(found, expected, rtol=1e-9, atol=1e-12)


def test_an_allowance_stays_lowered() -> None:
    allowed = Allowance(Budget(2**30))
    failing = Failing(lambda budget: budget.total, {1, 2, 5})
    with pytest.warns(UserWarning, match="within 0.25 GiB"):
        assert allowed.spend(failing) == 2**28
    assert allowed.spend(failing) == 2**28
    with pytest.warns(UserWarning, match="within 0.125 GiB"):
        assert allowed.spend(failing) == 2**27
