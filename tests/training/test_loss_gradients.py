"""Gradients of the whole chain: against differences, at kinks, from bad starts."""

from __future__ import annotations

import functools

import pytest
import torch
from clouds import numerical_derivative
from loss_cases import EVERYTHING, LOSSES, each_loss, gradient, scorer
from torch import Tensor
from waveforms import impaired, noise, voices

from torch_mapss import (
    DecompositionLoss,
    MAPSSLoss,
    MatchLoss,
    SeparationLoss,
)


def with_silence(references: Tensor) -> tuple[Tensor, Tensor]:
    references, estimates = references.clone(), impaired(references)
    references[..., 0, 1000:2000] = 0.0
    estimates[..., 0, 900:2100] = 0.0
    return estimates, references


def clipped(references: Tensor) -> tuple[Tensor, Tensor]:
    limit = 0.3 * references.abs().amax()
    return impaired(references).clamp(-limit, limit), references


CASES = {"leaky": lambda r: (impaired(r), r), "silent spans": with_silence, "clipped": clipped}


CHAINS = {
    "1-ps": SeparationLoss,
    "-log pm": functools.partial(MatchLoss, mode="log"),
    "pair": DecompositionLoss,
    "all": functools.partial(MAPSSLoss, separation_mode="log", si_sdr=0.1, weighting="energy"),
}


@pytest.mark.parametrize(
    ("encoder", "case"), [*(("mel", case) for case in CASES), ("waveform", "silent spans")]
)
@pytest.mark.parametrize("make", CHAINS.values(), ids=CHAINS)
def test_the_whole_chain_against_differences(case, encoder, make):
    """Waveform, loudness, encoder, manifold, loss: in float64, along a random direction."""
    estimates, references = CASES[case](voices(1, 2, 2400, seed=1).double())
    loss = make(scorer(encoder))
    bank = loss.mapss.prepare(references)
    generator = torch.Generator().manual_seed(2)
    direction = torch.randn(estimates.shape, generator=generator, dtype=torch.float64)
    _, grad = gradient(loss, estimates, bank)
    slope = float((grad * direction).sum())
    errors = []
    # Rounding spoils small steps and curvature large ones; where lies between differs by case.
    for h in (1e-6, 3e-7, 3e-6, 1e-7, 1e-5):
        call = functools.partial(loss, references=bank)
        difference = float(numerical_derivative(call, [estimates], [direction], h))
        errors.append(abs(difference / slope - 1.0))
        if errors[-1] < 1e-5:
            return
    pytest.fail(f"slope {slope}, relative errors of the differences {errors}")


def one_sided(f, x: Tensor, direction: Tensor, h: float) -> Tensor:
    """Slope of f from x along the direction, of second order."""
    return (4.0 * f(x + h * direction) - f(x + 2.0 * h * direction) - 3.0 * f(x)) / (2.0 * h)


@pytest.mark.parametrize("encoder", ["mel", "waveform"])
@pytest.mark.parametrize(("measure", "equal"), [("ps", 1), ("ps", 2), ("log_pm", 1)])
def test_the_slope_at_an_output_equal_to_its_reference(encoder, measure, equal):
    """Every distance comes twice there, so the median may tie, and PM sits on its top.

    Those are kinks: the gradient of each frame must lie between the slopes on both sides, and
    where these agree, equal them.
    """
    references = voices(1, 2, 2000, seed=1).double()
    estimates = impaired(references)
    estimates[:, :equal] = references[:, :equal]
    mapss = scorer(encoder)
    bank = mapss.prepare(references)

    def frames(e: Tensor) -> Tensor:
        scores = mapss(e, bank)
        return getattr(scores, measure)[scores.active]

    generator = torch.Generator().manual_seed(2)
    direction = torch.randn(estimates.shape, generator=generator, dtype=torch.float64)
    leaf = estimates.clone().requires_grad_()
    gradients = [torch.autograd.grad(frame, leaf, retain_graph=True)[0] for frame in frames(leaf)]
    slopes = torch.stack([(gradient * direction).sum() for gradient in gradients])
    right = one_sided(frames, estimates, direction, 1e-6)
    left = -one_sided(frames, estimates, -direction, 1e-6)
    low, high = torch.minimum(left, right), torch.maximum(left, right)
    slack = 1e-4 * torch.maximum(low.abs(), high.abs()) + 1e-5 * float(slopes.abs().max())
    assert bool(((slopes >= low - slack) & (slopes <= high + slack)).all())
    assert int((high - low < slack).sum()) >= len(slopes) // 4  # the others may hide anything
    assert float(slopes.abs().max()) > 0.0


@each_loss
@pytest.mark.filterwarnings("ignore:no estimate")
def test_identical_sources(make):
    """Clusters of one place, and outputs in it: finite, also where all points coincide."""
    twins = voices(1, 1, 3000).double().expand(-1, 2, -1).clone()
    loss = make(scorer())
    _, grad = gradient(loss, impaired(twins), twins)
    # Nothing can be clear of a source that is its own.
    assert (float(grad.abs().max()) > 0.0) == (make is not DecompositionLoss)
    gradient(loss, twins, twins)


STARTS = {
    "silence": torch.zeros_like,
    "noise": lambda r: noise(*r.shape, seed=5),
    "permuted": lambda r: r.flip(1),
    "equal outputs": lambda r: r.sum(1, keepdim=True).expand_as(r).clone(),
}


FROM_BAD_STARTS = LOSSES | {
    "separation": functools.partial(SeparationLoss, mode="log"),
    "match": functools.partial(MAPSSLoss, match=1.0, match_mode="log", si_sdr=0.1),
    "linear": SeparationLoss,
}


@pytest.mark.parametrize("steps", [2, pytest.param(250, marks=pytest.mark.slow)])
@pytest.mark.parametrize("kind", STARTS)
@pytest.mark.parametrize("make", [*FROM_BAD_STARTS.values()], ids=FROM_BAD_STARTS)
def test_steps_from_bad_starts(kind, make, steps):
    loss, references = make(scorer()), voices(2, 2, 2400, seed=3)
    bank = loss.mapss.prepare(references)
    estimates = STARTS[kind](references).requires_grad_()
    descent = (torch.optim.SGD if make is EVERYTHING else torch.optim.Adam)([estimates], lr=1e-2)
    for _ in range(steps):
        descent.zero_grad()
        value = loss(estimates, bank)
        value.backward()
        assert bool(value.isfinite())
        assert bool(estimates.grad.isfinite().all())
        descent.step()
