"""Compiled steps: what stands in them leaves the graph, and the numbers are the eager ones."""

from __future__ import annotations

import pytest
import torch
from stub_scorers import leaking_pair, stub_scorer
from torch import Tensor

from torch_mapss import MAPSS, MAPSSLoss, PerceptualMatch, PerceptualSeparation
from torch_mapss import functional as F
from torch_mapss.metrics import perceptual_match, perceptual_separation

pytestmark = pytest.mark.filterwarnings("ignore")


def compiled(function, backend: str = "eager"):
    torch._dynamo.reset()
    return torch.compile(function, backend=backend)


def updating(mapss: MAPSS):
    """A step of metrics that are made before, as a compiled module holds them."""
    classes = (PerceptualSeparation, PerceptualMatch)
    metrics = [metric_class(mapss, pit="si_sdr", keep_items=True) for metric_class in classes]

    def step(preds: Tensor, target: Tensor) -> Tensor:
        values = []
        for metric in metrics:
            metric.reset()
            metric.update(preds, target)
            values += [metric(preds, target), metric.compute()]
        return torch.stack(values)

    return step


def bank_of(target: Tensor, mapss: MAPSS) -> Tensor:
    encoded = mapss.prepare(target).groups[0].encoded
    return torch.stack([encoded[name].distortions.sum() for name in ("separation", "match")])


def embeddings(preds: Tensor, target: Tensor) -> Tensor:
    """Of twelve points a source, read off the signals."""
    points = target[..., : 12 * 8].unflatten(-1, (12, 8))
    outputs = preds[..., 96:104]
    ps = F.perceptual_separation(outputs, target[..., 96:104], points)
    return ps + F.perceptual_match(outputs, target[..., 96:104], points, log=True)


STEPS = {
    "MAPSS": lambda m: lambda p, t: m(p, t).ps,
    "bank": lambda m: lambda p, t: m(p, m.prepare(t)).log_pm,
    "prepare": lambda m: lambda p, t: bank_of(t, m),
    "bounds": lambda m: lambda p, t: m.bounds(p, t).pm.total,
    "functions": lambda m: (
        lambda p, t: perceptual_separation(p, t, m) + perceptual_match(p, t, m, pit="si_sdr")
    ),
    "metrics": updating,
    "loss": lambda m: lambda p, t: MAPSSLoss(m, si_sdr=0.1, pit="si_sdr")(p, t),
    "embeddings": lambda m: embeddings,
    "distortions": lambda m: lambda p, t: m.separation_bank(t, 8000).waveforms.sum((-1, -2)),
    "encoder": lambda m: lambda p, t: MAPSS("mel").encoder(p),
}


@pytest.mark.slow
@pytest.mark.parametrize("name", STEPS)
def test_a_compiled_call_gives_the_eager_result(name):
    step, (preds, target) = STEPS[name](stub_scorer()), leaking_pair(2)
    expected = step(preds, target)
    torch.testing.assert_close(compiled(step)(preds, target), expected, rtol=1e-5, atol=1e-6)


@pytest.mark.slow
@pytest.mark.parametrize("name", ["MAPSS", "functions", "loss"])
def test_a_compiled_call_has_the_eager_gradient(name):
    """With the graph before the call and behind it, as in a training step."""
    step, (preds, target) = STEPS[name](stub_scorer()), leaking_pair(2)
    gain = torch.ones(2, 1, requires_grad=True)

    def whole(p: Tensor, t: Tensor) -> Tensor:
        return (step(p * gain.sin(), t) * 2.0).sum() + gain.sum()

    (expected,) = torch.autograd.grad(whole(preds, target), gain)
    (grad,) = torch.autograd.grad(compiled(whole, "aot_eager")(preds, target), gain)
    torch.testing.assert_close(grad, expected)


def test_compiled_code_calls_the_eager_function(monkeypatch):
    """Without the compiler, which takes seconds to load: what is called is what it leaves alone."""
    left_out = []
    monkeypatch.setattr(torch.compiler, "is_compiling", lambda: not left_out)
    monkeypatch.setattr(torch.compiler, "disable", lambda f: left_out.append(f) or f)
    (preds, target), mapss = leaking_pair(1), stub_scorer()
    singles = lambda p, t: perceptual_match(p, t, mapss), PerceptualMatch(mapss)
    steps = {name: make(mapss) for name, make in STEPS.items() if name != "encoder"}
    for step in (*steps.values(), *singles, PerceptualSeparation(mapss).update):
        left_out.clear()
        step(preds, target)
        assert left_out
