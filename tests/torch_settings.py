"""Defaults of torch that Lightning and others set around a step."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import torch

AROUND = [{"dtype": torch.bfloat16}, {"device": "meta"}]


@contextmanager
def defaults(dtype: torch.dtype | None = None, device: str | None = None) -> Iterator[None]:
    """The defaults of torch that Lightning and others set around a step."""
    before = torch.get_default_dtype()
    try:
        torch.set_default_dtype(dtype or before)
        torch.set_default_device(device)
        yield
    finally:
        torch.set_default_dtype(before)
        torch.set_default_device(None)
