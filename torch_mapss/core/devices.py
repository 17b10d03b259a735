"""Devices that have no float64 (Apple's MPS): what needs it runs on the CPU, within the graph."""

from __future__ import annotations

import torch
from torch import Tensor

_WITHOUT_FLOAT64 = ("mps",)


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
