"""Public functions where torch has another default device and dtype: the same numbers."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
import torch
from public_calls import CALLS, same

from torch_mapss import metrics


@pytest.fixture
def plain_defaults() -> Iterator[None]:
    """Torch's own defaults again after the test."""
    yield
    torch.set_default_dtype(torch.float32)
    torch.set_default_device(None)  # "cpu" would leave a mode in which every method runs twice


@pytest.mark.usefixtures("plain_defaults")
@pytest.mark.parametrize("name", CALLS)
@pytest.mark.parametrize("dtype", [torch.float64, torch.bfloat16])
def test_other_defaults_change_no_number(name: str, dtype: torch.dtype) -> None:
    # torchmetrics makes a metric on the default device: it is asked for.
    device = "cpu" if name in metrics.__all__ else "meta"
    expected = CALLS[name]()
    torch.set_default_dtype(dtype)
    torch.set_default_device(device)
    result = CALLS[name]()
    assert torch.get_default_dtype() == dtype
    assert torch.get_default_device().type == device
    torch.set_default_device("cpu")
    assert same(result, expected)
