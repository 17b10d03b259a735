"""Derivatives of first order only, finite slopes at 0, and gradients of a narrower type."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor


class _Once(torch.autograd.Function):
    generate_vmap_rule = True

    @staticmethod
    def forward(derivative: Tensor, subject: str, *sources: Tensor) -> Tensor:
        return derivative.clone()

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Any, ...], output: Tensor) -> None:
        ctx.subject = inputs[1]

    @staticmethod
    def backward(ctx: Any, *_: Any) -> Any:
        raise RuntimeError(
            f"{ctx.subject} have first derivatives only, but a second one was asked for (as a "
            "gradient penalty or a Hessian does): it is not implemented. Detach the inputs, "
            "or differentiate once."
        )


def once(derivative: Tensor, subject: str, *sources: Tensor) -> Tensor:
    """``derivative``, which depends on ``sources``; differentiating it again is an error.

    Args:
        derivative: any shape.
        subject: plural noun for what has first derivatives only; the error message starts with it.
        sources: tensors that keep it connected to the graph; empty clones suffice.

    ``once_differentiable`` alone would not do: it watches the incoming gradient only, so a
    gradient penalty would silently take the derivative for a constant.
    """
    if not torch.is_grad_enabled():  # nobody records it
        return derivative
    return _Once.apply(derivative, subject, *sources)


def safe_sqrt(square: Tensor) -> Tensor:
    """Square root with derivative 0 at 0."""
    nonzero = square != 0.0  # NaN counts as non-zero, so it propagates
    return torch.where(nonzero, torch.where(nonzero, square, 1.0).sqrt(), 0.0)


class _Widen(torch.autograd.Function):
    """A cast to a wider type whose gradient, cast back, is clamped to the largest finite number.

    A slope of log PM easily reaches 1e8, and exceeds 1e38 next to a cluster whose points differ
    only by rounding. Half and single precision would turn such a slope into infinity, and an
    optimiser would turn that into NaN weights.
    """

    @staticmethod
    def forward(ctx: Any, x: Tensor, dtype: torch.dtype) -> Tensor:
        ctx.dtype = x.dtype
        return x.to(dtype)

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor, None]:  # type: ignore[override]
        return narrowed(gradient, ctx.dtype), None


def narrowed(gradient: Tensor, dtype: torch.dtype) -> Tensor:
    """``gradient`` in a narrower type, clamped to its largest finite number."""
    if gradient.dtype == dtype:
        return gradient
    largest = torch.finfo(dtype).max  # the cast alone would overflow to infinity
    return gradient.to(dtype).clamp_(-largest, largest)


def lifted(x: Tensor) -> Tensor:
    """``x`` in float32 or wider; its gradient comes back in the type of ``x``, and finite."""
    dtype = torch.promote_types(x.dtype, torch.float32)
    return x if x.dtype == dtype else _Widen.apply(x, dtype)  # type: ignore[no-untyped-call]
