"""Counts how often values are read off the device, where an accelerator would be waited for."""

from __future__ import annotations

import traceback
from collections import Counter
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any
from unittest import mock

import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode

import torch_mapss
from torch_mapss.core import devices

_PACKAGE = str(Path(torch_mapss.__file__).parent)
# Operators whose result, or whose size, the host has to know before it goes on.
_READS = {
    *("_local_scalar_dense", "nonzero", "bincount", "equal", "is_nonzero", "masked_select"),
    *("_unique2", "unique_dim", "unique_consecutive"),
}
_INDEXED = {"index", "index_put", "index_put_", "_index_put_impl_", "_unsafe_index"}


class Waits(TorchDispatchMode):
    """Counts reads of values, and plain copies of Python lists.

    :func:`torch_mapss.core.devices.upload` copies a list without waiting.
    """

    def __init__(self) -> None:
        super().__init__()
        self.reads: Counter[str] = Counter()  # by name
        self.lines: Counter[str] = Counter()  # the same, by line
        self.uploads: Counter[str] = Counter()

    def __torch_dispatch__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: Any = None
    ) -> Any:
        name = func._schema.name.removeprefix("aten::")
        masks = name in _INDEXED and any(_is_mask(index) for index in args[1])
        unsized = name == "repeat_interleave" and not (kwargs or {}).get("output_size")
        if name in _READS or masks or unsized:
            self.read(f"boolean {name}" if masks else name)
        if name == "lift_fresh" and not _line().endswith("of upload"):
            self.uploads[_line()] += 1
        return func(*args, **(kwargs or {}))

    def read(self, name: str) -> None:
        """Note one read."""
        self.reads[name] += 1
        self.lines[f"{name} at {_line()}"] += 1


def _is_mask(index: Tensor | None) -> bool:
    return index is not None and index.dtype in (torch.bool, torch.uint8)


def _line() -> str:
    ours = [frame for frame in traceback.extract_stack() if frame.filename.startswith(_PACKAGE)]
    if not ours:
        return "outside"
    return f"{ours[-1].filename}:{ours[-1].lineno} of {ours[-1].name}"


@contextmanager
def counted(*, far: bool = False) -> Iterator[Waits]:
    """Count inside; ``far`` takes the CPU for an accelerator, which should not be asked for values.

    ``tolist`` and ``cpu`` go past the dispatcher, so they are counted by themselves. ``numpy``
    refuses what is not on the CPU, and reads nothing from elsewhere.
    """
    waits = Waits()

    def watching(name: str) -> Any:
        original = getattr(Tensor, name)

        def method(self: Tensor, *args: Any, **kwargs: Any) -> Any:
            waits.read(name)
            return original(self, *args, **kwargs)

        return mock.patch.object(Tensor, name, method)

    with watching("tolist"), watching("cpu"), ExitStack() as stack:
        if far:
            stack.enter_context(mock.patch.object(devices, "is_accelerator", return_value=True))
        with waits:
            yield waits
