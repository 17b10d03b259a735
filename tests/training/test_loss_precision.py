"""Half precision, autocast, and torch's own defaults around a loss."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from loss_cases import LOSSES, gradient, scorer
from torch_settings import AROUND, defaults
from waveforms import impaired

from torch_mapss import (
    MAPSSLoss,
    MatchLoss,
)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_under_autocast_the_numbers_are_those_of_a_call_outside(references, dtype):
    loss = MAPSSLoss(scorer(), si_sdr=0.1, pit="si_sdr")
    estimates = impaired(references)
    expected, expected_grad = gradient(loss, estimates, references)
    leaf = estimates.clone().requires_grad_()
    with torch.autocast("cpu", dtype=dtype):
        value = loss(leaf, references)
        inside, inside_grad = gradient(loss, estimates, references)  # backward pass inside
        half, half_grad = gradient(loss, estimates.to(dtype), references)
    value.backward()
    assert torch.equal(value, expected)
    assert torch.equal(leaf.grad, expected_grad)
    assert torch.equal(inside, expected)
    torch.testing.assert_close(inside_grad, expected_grad, rtol=2e-2, atol=1e-3)
    assert (half.dtype, half_grad.dtype) == (torch.float32, dtype)
    torch.testing.assert_close(half, expected, rtol=2e-2, atol=2e-2)


def test_overflow_under_a_gradient_scaler_stays_infinite(references):
    """The gradient is held at the end of float16 by itself, but not against the scale."""
    loss = MatchLoss(scorer(), mode="log")
    estimates = (0.01 * impaired(references)).half().requires_grad_()
    value = loss(estimates, references)
    (plain,) = torch.autograd.grad(value, estimates, retain_graph=True)
    assert bool(plain.isfinite().all())
    _, exact = gradient(loss, estimates.float(), references)
    beyond = exact.abs() > 65504.0
    (scaled,) = torch.autograd.grad(1024.0 * value, estimates)
    mild = (exact.abs() * 1024.0 > 66000.0) & ~beyond
    assert bool(beyond.any() & mild.any())
    assert bool((plain[beyond].abs() == 65504.0).all())
    assert bool(scaled[mild].isinf().all())


@pytest.mark.parametrize("around", AROUND, ids=str)
@pytest.mark.parametrize(("name", "references_as"), [("pair", "waveforms"), ("everything", "bank")])
def test_defaults_of_torch_change_no_loss(references, name, references_as, around):
    """As Lightning's "bf16-true" and a default device set them around a step."""
    options: dict[str, Any] = {"frames": 7, "pit": "si_sdr", "weighting": "energy"}
    loss = LOSSES[name](scorer(), **options)
    target = references if references_as == "waveforms" else loss.mapss.prepare(references)
    leaf = impaired(references).requires_grad_()
    expected = loss.eval()(leaf, target)
    loss.eval()
    with defaults(**around):
        value = loss(leaf, target)
    torch.testing.assert_close(value, expected, rtol=0, atol=0)
    slopes = [torch.autograd.grad(x, leaf)[0] for x in (value, expected)]
    torch.testing.assert_close(*slopes, rtol=0, atol=0)
