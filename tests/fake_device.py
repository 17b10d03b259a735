"""Tensors that only know their shape and claim to lie on a CUDA device, forward and backward.

Without such a device autograd's engine refuses them, so :func:`backward` walks the graph itself.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any
from unittest import mock

import numpy as np
import pytest
import torch
from torch import Tensor
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.utils._python_dispatch import TorchDispatchMode


class _Guesses(TorchDispatchMode):
    """Answers where a value is asked for: all is well everywhere, and sizes are 3."""

    def __torch_dispatch__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: Any = None
    ) -> Any:
        name = func._schema.name.removeprefix("aten::")
        if name == "_local_scalar_dense":
            return getattr(args[0], "guess", 3 if args[0].dtype != torch.bool else False)
        if name == "nonzero":
            return args[0].new_zeros((1, args[0].ndim), dtype=torch.int64)
        result = func(*args, **(kwargs or {}))
        if name == "all":
            result.guess = True
        return result


@contextmanager
def fake_device() -> Iterator[None]:
    """Within, ``torch.empty(..., device="cuda")`` works without any such device.

    An operator that is given tensors of two devices raises, as on a real one.
    """
    if torch.__version__ < "2.7":
        pytest.skip("torch 2.6 asks the CUDA driver when a graph is recorded, and aborts without")

    def array(tensor: Tensor) -> np.ndarray:
        return np.full(tensor.shape, 3 if tensor.dtype != torch.bool else True)

    def listed(tensor: Tensor) -> Any:
        return np.full(tensor.shape, 3 if tensor.dtype != torch.bool else False).tolist()

    _forget_kept_tensors()
    with (
        mock.patch.object(Tensor, "numpy", array),
        mock.patch.object(Tensor, "tolist", listed),
        mock.patch.object(torch.autograd, "grad", _grad),
        FakeTensorMode(),
        _Guesses(),
    ):
        try:
            yield
        finally:
            _forget_kept_tensors()


def _forget_kept_tensors() -> None:
    """Empty the package's caches: they keep tensors, which are real outside and not inside."""
    for name, module in list(sys.modules.items()):
        if name.startswith("torch_mapss"):
            for value in vars(module).values():
                clear = getattr(value, "cache_clear", None)
                if clear is not None:
                    clear()


def backward(score: Tensor) -> dict[Tensor, Tensor]:
    """The gradient of ``score.sum()`` in every leaf, with the devices of all steps compared.

    Raises:
        AssertionError: a gradient lies elsewhere than the tensor it belongs to, or differs from it
            in type or shape.
    """
    return _walked([score], [torch.ones_like(score)])


def _grad(outputs: Any, inputs: Any, weights: Any, allow_unused: bool = False) -> Any:
    """What the package asks of ``torch.autograd.grad``."""
    del allow_unused
    actual = _walked(outputs, weights)
    return tuple(actual.get(leaf) for leaf in inputs)


def _walked(outputs: Sequence[Tensor], weights: Sequence[Tensor]) -> dict[Tensor, Tensor]:
    """Gradients of the weighted sum of ``outputs`` in the leaves."""
    incoming: dict[Any, dict[int, Tensor]] = {}
    for output, weight in zip(outputs, weights):
        incoming.setdefault(output.grad_fn, {})[output.output_nr] = weight
    waiting = _arrows(list(incoming))
    ready = [root for root in incoming if waiting.get(root, 0) == 0]
    actual: dict[Tensor, Tensor] = {}
    with torch.no_grad():
        while ready:
            node = ready.pop()
            arguments = incoming.pop(node, {})
            if hasattr(node, "variable"):
                actual[node.variable] = arguments[0]
                continue
            for (target, position), gradient in _gradients(node, arguments):
                if gradient is not None:
                    gradient = _fitted(gradient, target._input_metadata[position], node)
                    slot = incoming.setdefault(target, {})
                    slot[position] = slot[position] + gradient if position in slot else gradient
                waiting[target] -= 1
                if waiting[target] == 0:
                    ready.append(target)
    return actual


def _arrows(roots: list[Any]) -> dict[Any, int]:
    """How many gradients every node of the graph waits for."""
    waiting: dict[Any, int] = {}
    seen, stack = set(roots), list(roots)
    while stack:
        for target, _ in stack.pop().next_functions:
            if target is not None:
                waiting[target] = waiting.get(target, 0) + 1
                if target not in seen:
                    seen.add(target)
                    stack.append(target)
    return waiting


def _gradients(node: Any, gradients: dict[int, Tensor]) -> list[tuple[tuple[Any, int], Any]]:
    """The arrows out of a node with the gradients that go along them."""
    arguments: list[Tensor | None] = []
    ours = isinstance(node, torch.autograd.function.BackwardCFunction)
    for position, template in enumerate(node._input_metadata):
        gradient = gradients.get(position)
        if gradient is None and ours and getattr(node, "materialize_grads", True):
            gradient = torch.zeros(template.shape, dtype=template.dtype, device=template.device)
        arguments.append(gradient)
    results = node.apply(*arguments) if ours else node(*arguments)
    results = results if isinstance(results, tuple) else (results,)
    arrows = list(node.next_functions)
    if ours:  # it returns one gradient for every argument, be it a tensor or not
        results = [g for g, expected in zip(results, node.needs_input_grad) if expected]
        arrows = [arrow for arrow in arrows if arrow[0] is not None]
        assert len(results) == len(arrows)
    return [(arrow, g) for arrow, g in zip(arrows, results) if arrow[0] is not None]


def _fitted(gradient: Tensor, reference: Any, node: Any) -> Tensor:
    assert gradient.device == reference.device, f"{node}: {gradient.device}, not {reference.device}"
    assert gradient.dtype == reference.dtype, f"{node}: {gradient.dtype}, not {reference.dtype}"
    return gradient.sum_to_size(reference.shape)  # what was broadcast comes back summed
