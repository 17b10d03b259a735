"""Choice of device, devices without float64, and copies that do not synchronise an accelerator.

Work in float64 runs on the CPU, within the graph, where a device lacks it (Apple's MPS).

Reading a value from an accelerator (``bool(x.any())``, ``int(d.max())``, ``nonzero``) synchronises
it: the host waits for all work queued there. So does a plain copy of a Python list onto it. On the
CPU both cost nothing.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

#: Types of devices that compute in float32 at most.
WITHOUT_FLOAT64 = ("mps",)


def best_device() -> torch.device:
    """The fastest device available: CUDA, else MPS, else the CPU."""
    if torch.cuda.is_available():
        return torch.device("cuda")
    return torch.device("mps" if torch.backends.mps.is_available() else "cpu")


def device_name(device: torch.device) -> str:
    """Readable name of ``device``, such as ``cuda:0 (NVIDIA H200)``."""
    if device.type != "cuda":
        return str(device)
    return f"{device} ({torch.cuda.get_device_name(device)})"


def with_index(device: torch.device) -> torch.device:
    """``device``, with the index of the current GPU if it is CUDA without an index.

    Each thread has its own current GPU: in another thread, "cuda" may mean the first one.
    """
    if device.type != "cuda" or device.index is not None:
        return device
    return torch.device("cuda", torch.cuda.current_device())


def working_device(device: torch.device) -> torch.device:
    """A device with float64: ``device`` itself, or the CPU."""
    return torch.device("cpu") if device.type in WITHOUT_FLOAT64 else device


def wide(x: Tensor) -> Tensor:
    """``x`` in float64, on its :func:`working_device`."""
    return x.to(working_device(x.device)).double()


def back(x: Tensor, device: torch.device) -> Tensor:
    """``x`` on ``device``, in float32 if the device has no float64."""
    if x.dtype == torch.float64 and device.type in WITHOUT_FLOAT64:
        x = x.float()
    # From pageable memory the CUDA driver takes its own copy of the bytes before it returns, so
    # this need not synchronise.
    return x.to(device, non_blocking=device.type == "cuda" and x.device.type == "cpu")


def is_accelerator(device: torch.device) -> bool:
    """Whether reading a value from ``device`` synchronises it."""
    return device.type != "cpu"


def upload(values: Sequence[float] | Sequence[int], device: torch.device) -> Tensor:
    """Copy a few numbers from the host to ``device`` as a tensor, without synchronising.

    Whole numbers become int64, others float64 (where the device has it).
    """
    are_whole = all(isinstance(value, int) for value in values)
    dtype = torch.int64 if are_whole else torch.float64
    return back(torch.tensor(values, dtype=dtype, device="cpu"), device)


def select(x: Tensor, index: Sequence[int], dim: int) -> Tensor:
    """Select entries of ``x`` along ``dim`` without synchronising; ``x`` itself if they are all."""
    if tuple(index) == tuple(range(x.shape[dim])):
        return x
    return x.index_select(dim, upload(index, x.device))


def select_sources(x: Tensor, order: Tensor) -> Tensor:
    """Select sources of ``x`` (B, S, ...) by an ``order`` (B, S') that differs by mixture."""
    return x[torch.arange(len(order), device=order.device).unsqueeze(-1), order]


def restore_order(x: Tensor, order: Tensor | None) -> Tensor:
    """Undo :func:`select_sources` for a permutation (B, S); None: nothing was permuted."""
    return x if order is None else select_sources(x, order.argsort(-1))
