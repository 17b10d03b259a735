"""Counting what makes the host wait for an accelerator, on the CPU."""

from __future__ import annotations

import traceback
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode

from torch_mapss.core import devices

# Operators whose result, or whose size, the host has to know before it goes on.
_READS = {
    *("_local_scalar_dense", "nonzero", "bincount", "equal", "is_nonzero", "masked_select"),
    *("_unique2", "unique_dim", "unique_consecutive"),
}
_INDEXED = {"index", "index_put", "index_put_", "_index_put_impl_", "_unsafe_index"}


class Waits(TorchDispatchMode):
    """Counts reads of values, and plain copies of Python lists, by the line that asks for them.

    :func:`torch_mapss.core.devices.placed` copies a list without waiting.
    """

    def __init__(self) -> None:
        super().__init__()
        self.reads: Counter[str] = Counter()
        self.uploads: Counter[str] = Counter()

    def __torch_dispatch__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: Any = None
    ) -> Any:
        name = func._schema.name.removeprefix("aten::")
        masks = name in _INDEXED and any(_is_mask(index) for index in args[1])
        unsized = name == "repeat_interleave" and not (kwargs or {}).get("output_size")
        if name in _READS or masks or unsized:
            self.reads[f"{name} at {_line()}"] += 1
        if name == "lift_fresh" and not _line().endswith("of placed"):
            self.uploads[_line()] += 1
        return func(*args, **(kwargs or {}))


def _is_mask(index: Tensor | None) -> bool:
    return index is not None and index.dtype in (torch.bool, torch.uint8)


def _line() -> str:
    ours = [frame for frame in traceback.extract_stack() if "torch_mapss" in frame.filename]
    if not ours:
        return "outside"
    return f"{ours[-1].filename}:{ours[-1].lineno} of {ours[-1].name}"


@contextmanager
def counted(monkeypatch: pytest.MonkeyPatch) -> Iterator[Waits]:
    """Count inside, with the CPU taken for an accelerator: it must not be asked for values.

    ``tolist``, ``cpu`` and ``numpy`` go past the dispatcher, so they are counted by themselves.
    """
    waits = Waits()
    with monkeypatch.context() as patch, waits:
        patch.setattr(devices, "is_far", lambda device: True)
        for name in ("tolist", "cpu", "numpy"):
            original = getattr(Tensor, name)

            def watched(self: Tensor, *given: Any, of: Any = original, as_: str = name) -> Any:
                waits.reads[f"{as_} at {_line()}"] += 1
                return of(self, *given)

            patch.setattr(Tensor, name, watched)
        yield waits
