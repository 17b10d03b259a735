"""Half-precision estimates and autocast at the border of a loss."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext
from typing import Any

import torch
from torch import Tensor

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


class _Output(torch.autograd.Function):
    """The loss itself; backward, notes the scale that comes in."""

    @staticmethod
    def forward(ctx: Any, value: Tensor, scale: list[Tensor]) -> Tensor:
        ctx.scale = scale
        return value.clone()  # a view would disturb sharded training, which hooks into the output

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor, None]:
        ctx.scale[:] = [grad.detach().abs().max().float().clamp(min=1.0)]
        return grad, None


@contextmanager
def precisely(estimates: Tensor) -> Iterator[tuple[Tensor, Callable[[Tensor], Tensor]]]:
    """Estimates in float32 at least, outside of autocast, and what the loss leaves through.

    Args:
        estimates: as handed to the loss.

    Yields:
        The estimates, and a function to be applied to the loss: it connects a loss in which nothing
        is defined to the estimates all the same, and notes the scale of its gradient.
    """
    scale: list[Tensor] = []
    half = isinstance(estimates, Tensor) and estimates.dtype == torch.float16
    waves = _Lift.apply(estimates, scale) if half else estimates

    def leave(value: Tensor) -> Tensor:
        if waves.requires_grad and not value.requires_grad:  # zeros, whatever the estimates hold
            never = torch.zeros((), dtype=torch.bool, device=waves.device)
            value = value + torch.where(never, waves, 0.0).sum()
        return _Output.apply(value, scale)

    kind = estimates.device.type if isinstance(estimates, Tensor) else "cpu"
    available = torch.amp.is_autocast_available(kind)
    with torch.autocast(kind, enabled=False) if available else nullcontext():
        yield waves, leave
