"""The core on a device that is not the CPU: every tensor it makes lies there, forward and backward.

Run on tensors without values (``fake_device``), so no such device is needed.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from fake_device import backward, fake_device
from torch import Tensor

from torch_mapss import functional as F
from torch_mapss.bounds import diagnostics, utterance
from torch_mapss.core import frame_batches
from torch_mapss.core.points import Points
from torch_mapss.core.settings import MapSettings

FRAMES, SOURCES, DISTORTIONS, FEATURES = 5, 3, 6, 4
SCORES: dict[str, Callable[..., Any]] = {
    "separation": F.perceptual_separation,
    "distances": lambda *x, **o: sum(F.separation_distances(*x, **o)),
    "clearance": lambda *x, **o: F.clearance(*x, others=x[1] + 1.0, **o),
    "fidelity": lambda *x, **o: F.fidelity(*x, others=x[1] + 1.0, **o),
    "match": F.perceptual_match,
    "log match": lambda *x, **o: F.perceptual_match(*x, log=True, **o),
}
OPTIONS: tuple[dict[str, Any], ...] = (
    {},
    {"attributed": (2,), "time": 1.5, "max_dimension": 2},
    {"convention": "reference", "eigh": "float32"},
)


def cloud(dtype: torch.dtype = torch.float32, outputs: int = SOURCES) -> tuple[Tensor, ...]:
    shapes = (outputs,), (SOURCES,), (SOURCES, DISTORTIONS)
    template = {"dtype": dtype, "device": "cuda"}
    made = [torch.empty(FRAMES, *shape, FEATURES, **template) for shape in shapes]
    return made[0].requires_grad_(), made[1], made[2].requires_grad_()


def assert_there(score: Tensor, *leaves: Tensor) -> None:
    assert score.device.type == "cuda"
    gradients = backward(score.sum())
    assert set(gradients) == {leaf for leaf in leaves if leaf.requires_grad}
    for leaf, gradient in gradients.items():
        assert (gradient.device, gradient.shape) == (leaf.device, leaf.shape)


@pytest.mark.parametrize("settings", OPTIONS)
def test_scores_and_their_gradients(settings: dict[str, Any]) -> None:
    with fake_device():
        points = cloud(outputs=len(settings.get("attributed", range(SOURCES))))
        score = F.perceptual_separation(*points, **settings)
        assert_there(score + F.perceptual_match(*points, log=True, **settings), *points)


def test_absent_sources_and_distortions() -> None:
    with fake_device():
        points = cloud(torch.float64)
        active = torch.ones(FRAMES, SOURCES, dtype=torch.bool, device="cuda")
        mask = torch.ones(FRAMES, SOURCES, DISTORTIONS, dtype=torch.bool, device="cuda")
        scores = [score(*points, active=active, mask=mask) for score in SCORES.values()]
        assert_there(torch.stack(scores), *points)


def test_recomputed_in_chunks(monkeypatch: pytest.MonkeyPatch) -> None:
    points = SOURCES * (DISTORTIONS + 2)
    two = 2 * 8 * (2 * points * FEATURES + 8 * points**2)
    monkeypatch.setattr(frame_batches, "ACCELERATOR_BATCHES", 1)
    monkeypatch.setattr(frame_batches, "BATCH_BYTES", two)
    monkeypatch.setattr(frame_batches, "GRAPH_BYTES", 0)
    with fake_device():
        arguments = cloud()
        batches = frame_batches.start(
            Points(*arguments, tuple(range(SOURCES))),
            MapSettings(),
            lambda *_: ({}, torch.tensor(False)),
        )
        assert len(batches) == 3  # of two frames
        assert_there(F.perceptual_separation(*arguments), *arguments)


def test_the_map_of_points() -> None:
    with fake_device():
        points = torch.empty(2, 9, 3, device="cuda", requires_grad=True)
        mask = torch.ones(2, 9, dtype=torch.bool, device="cuda")
        actual = F.diffusion_map(points, mask=mask)
        tensors = [x for x in vars(actual).values() if isinstance(x, torch.Tensor)]
        assert {x.device.type for x in tensors} == {"cuda"}
        assert_there(actual.retained, points)


@pytest.mark.parametrize("convention", ["paper", "reference", "derived"])
def test_bounds(convention: str) -> None:
    with fake_device():
        points = cloud()
        for tail in ("concentration", "bootstrap"):
            options: dict[str, Any] = {"convention": convention, "tail": tail, "draws": 3}
            actual = F.separation_bounds(*points, n_eff="bartlett", **options)
            assert {x.device.type for x in actual} == {"cuda"}
            assert {x.device.type for x in F.match_bounds(*points, **options)} == {"cuda"}


def test_bounds_of_the_map_and_of_utterances_and_what_they_assume() -> None:
    with fake_device():
        points = cloud()
        frames, radius, tail = (torch.empty(2, 3, 50, device="cuda") for _ in range(3))
        actual = (
            F.truncation_bounds(F.diffusion_map(torch.empty(2, 9, 3, device="cuda"))),
            utterance.pool_match_bounds(radius, tail),
            utterance.pool_separation_bounds(frames, radius, tail),
            diagnostics.gamma_fit_test(*points),
            diagnostics.bank_correlation(*points),
            diagnostics.source_correlation(*points, draws=3),
        )
        assert {x.device.type for record in actual for x in record} == {"cuda"}


def test_the_incomplete_gamma_function_and_pooling() -> None:
    with fake_device():
        k, x = (torch.empty(7, 2, device="cuda", requires_grad=True) for _ in range(2))
        for tail in (F.gammaincc, F.log_gammaincc):
            assert_there(tail(k, x), k, x)
        assert F.gammaincc(k, 2.0).device.type == "cuda"
        frames = torch.empty(2, 3, 50, device="cuda", requires_grad=True)
        active = torch.ones(2, 3, 50, dtype=torch.bool, device="cuda")
        for pooled in (F.pool_match(frames, active), F.pool_separation(frames, active)):
            assert_there(pooled, frames)


class _Astray(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor) -> Tensor:
        return x.clone()

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> Tensor:
        return grad.cpu()


def test_tensors_on_another_device_are_noticed() -> None:
    with fake_device():
        x = torch.empty(3, device="cuda", requires_grad=True)
        with pytest.raises(RuntimeError, match="device"):
            x * torch.ones(3)
        with pytest.raises(AssertionError, match="cpu"):
            backward(_Astray.apply(x * 2.0).sum())
