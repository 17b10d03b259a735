"""The losses under test, on a scorer whose calls take milliseconds, and gradients of them."""

from __future__ import annotations

import functools
from typing import Any

import pytest
import torch
from small_scorers import small
from torch import Tensor

from torch_mapss import DecompositionLoss, MAPSSLoss, MatchLoss, SeparationLoss

EVERYTHING = functools.partial(MAPSSLoss, clearance=1.0, fidelity=2.0, bleed=0.01, si_sdr=0.1)
LOSSES: dict[str, Any] = {
    "separation": SeparationLoss,
    "match": MatchLoss,
    "pair": DecompositionLoss,
    "everything": EVERYTHING,
}
scorer = functools.cache(functools.partial(small, size=8))
each_loss = pytest.mark.parametrize("make", LOSSES.values(), ids=LOSSES)


def gradient(
    loss: Any, estimates: Tensor, *arguments: Any, **options: Any
) -> tuple[Tensor, Tensor]:
    """A loss and its gradient, both checked to be finite."""
    leaf = estimates.detach().clone().requires_grad_()
    value = loss(leaf, *arguments, **options)
    (grad,) = torch.autograd.grad(value.sum(), leaf)
    assert bool(value.isfinite().all())
    assert bool(grad.isfinite().all())
    return value.detach(), grad
