"""Which device to take, and devices without float64 (Apple's MPS).

What needs float64 runs on the CPU there, within the graph.
"""

from __future__ import annotations

import torch
from torch import Tensor

_WITHOUT_FLOAT64 = ("mps",)


def best_device() -> torch.device:
    """The fastest device that is there: CUDA, else MPS, else the CPU."""
    if torch.cuda.is_available():
        return torch.device("cuda")
    return torch.device("mps" if torch.backends.mps.is_available() else "cpu")


def device_name(device: torch.device) -> str:
    """``device`` for people: ``cuda:0 (NVIDIA H200)``."""
    if device.type != "cuda":
        return str(device)
    return f"{device} ({torch.cuda.get_device_name(device)})"


def working_device(device: torch.device) -> torch.device:
    """Where float64 is to be had: the device itself, or the CPU."""
    return torch.device("cpu") if device.type in _WITHOUT_FLOAT64 else device


def wide(x: Tensor) -> Tensor:
    """``x`` in float64, on its :func:`working_device`."""
    return x.to(working_device(x.device)).double()


def back(x: Tensor, device: torch.device) -> Tensor:
    """``x`` on ``device``; float64 becomes float32 where there is none."""
    if x.dtype == torch.float64 and device.type in _WITHOUT_FLOAT64:
        x = x.float()
    return x.to(device)
