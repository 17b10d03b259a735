"""Half-precision estimates and autocast at the border of a loss."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext
from typing import Any

import torch
from torch import Tensor

# -log PM of a hopeless output can have slopes beyond 65504, where float16 ends. The gradient of
# float16 estimates is therefore held at that limit. A GradScaler multiplies the loss, and
# infinities tell it that the factor was too large. So gradients that exceed the limit only because
# the incoming gradient was larger than 1 stay infinite.


class _ClampedHalf(torch.autograd.Function):
    """Cast float16 to float32; the backward pass clamps to the range of float16 before scaling."""

    @staticmethod
    def forward(ctx: Any, waves: Tensor, scale: list[Tensor]) -> Tensor:
        ctx.scale = scale
        return waves.float()

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor, None]:
        limit = torch.finfo(torch.float16).max * ctx.scale[-1]
        return grad.clamp(-limit, limit).to(torch.float16), None


class _Output(torch.autograd.Function):
    """Pass the loss through; the backward pass notes the incoming scale."""

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
    """Yield estimates in at least float32, outside of autocast, and a function for the loss.

    Args:
        estimates: argument of the loss.

    Yields:
        The estimates, and a function to apply to the loss. It connects even a loss without a
        defined item to the estimates, and notes the scale of its gradient.
    """
    scale: list[Tensor] = []
    half = isinstance(estimates, Tensor) and estimates.dtype == torch.float16
    waves = _ClampedHalf.apply(estimates, scale) if half else estimates

    def leave(value: Tensor) -> Tensor:
        if waves.requires_grad and not value.requires_grad:  # zeros, whatever the estimates contain
            never = torch.zeros((), dtype=torch.bool, device=waves.device)
            value = value + torch.where(never, waves, 0.0).sum()
        return _Output.apply(value, scale)

    kind = estimates.device.type if isinstance(estimates, Tensor) else "cpu"
    available = torch.amp.is_autocast_available(kind)
    with torch.autocast(kind, enabled=False) if available else nullcontext():
        yield waves, leave
