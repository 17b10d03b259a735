"""Half-precision estimates and autocast at the border of a loss."""

from __future__ import annotations

from contextlib import AbstractContextManager, nullcontext
from typing import Any

import torch
from torch import Tensor

from torch_mapss.training.terms import Term

# ------------------------------------------------------------------------------------------------
# Precision
# ------------------------------------------------------------------------------------------------
#
# -log PM of a hopeless output can have slopes beyond 65504, where float16 ends. The gradient of
# float16 estimates is therefore held at that limit. A GradScaler multiplies the loss, and finds
# out by infinities that it multiplied too much: what lies beyond the limit only because the
# gradient coming in was larger than 1 stays infinite for it to see.


class _Lift(torch.autograd.Function):
    """float16 -> float32; backward, held within float16 before scaling."""

    @staticmethod
    def forward(ctx: Any, waves: Tensor, scale: list[Tensor]) -> Tensor:
        ctx.scale = scale
        return waves.float()

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor, None]:
        limit = torch.finfo(torch.float16).max * ctx.scale[-1]
        return grad.clamp(-limit, limit).to(torch.float16), None


class Output(torch.autograd.Function):
    """The loss itself; backward, notes the scale that comes in."""

    @staticmethod
    def forward(ctx: Any, value: Tensor, scale: list[Tensor]) -> Tensor:
        ctx.scale = scale
        return value.view_as(value)

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor, None]:
        ctx.scale[:] = [grad.detach().abs().max().float().clamp(min=1.0)]
        return grad, None


def lifted_estimates(estimates: Tensor, scale: list[Tensor]) -> Tensor:
    if isinstance(estimates, Tensor) and estimates.dtype == torch.float16:
        return _Lift.apply(estimates, scale)
    return estimates


def without_autocast(estimates: object) -> AbstractContextManager[Any]:
    kind = estimates.device.type if isinstance(estimates, Tensor) else "cpu"
    if not torch.amp.is_autocast_available(kind):
        return nullcontext()
    return torch.autocast(kind, enabled=False)


def returned(term: Term, order: Tensor) -> Term:
    """The term with its values back in the places of the estimates."""
    back = order.argsort(-1)
    return term._replace(values=term.values.gather(1, back), defined=term.defined.gather(1, back))
