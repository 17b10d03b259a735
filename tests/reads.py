"""Counts how often values are read off the device, where an accelerator would be waited for."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any
from unittest import mock

import torch
from torch.utils._python_dispatch import TorchDispatchMode

# Operators whose result, or its shape, depends on values: the host has to wait for them.
WAITING = (
    "_local_scalar_dense",
    "nonzero",
    "bincount",
    "_unique2",
    "unique_dim",
    "masked_select",
    "equal",
    "repeat_interleave",
)


class _Counting(TorchDispatchMode):
    def __init__(self, found: Counter[str]) -> None:
        super().__init__()
        self.found = found

    def __torch_dispatch__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: Any = None
    ) -> Any:
        name = func.overloadpacket._qualified_op_name.split("::")[1]
        if name in WAITING:
            self.found[name] += 1
        elif name in ("index", "index_put", "index_put_", "_index_put_impl_"):
            masks = [i for i in args[1] if i is not None and i.dtype == torch.bool]
            self.found["boolean " + name] += bool(masks)
        return func(*args, **(kwargs or {}))


@contextmanager
def counted() -> Iterator[Counter[str]]:
    """Within, every read adds to the counter under the name of what reads."""
    found: Counter[str] = Counter()

    def watching(name: str) -> Any:
        original = getattr(torch.Tensor, name)

        def method(self: torch.Tensor, *args: Any, **kwargs: Any) -> Any:
            found[name] += 1
            return original(self, *args, **kwargs)

        return mock.patch.object(torch.Tensor, name, method)

    with _Counting(found), watching("tolist"), watching("cpu"), watching("numpy"):
        yield found
    for name in [name for name, count in found.items() if count == 0]:
        del found[name]
