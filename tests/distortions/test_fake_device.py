"""Every family on a device that is not the CPU: all it makes lies there."""

from __future__ import annotations

import pytest
import torch
from fake_device import fake_device

from torch_mapss import DistortionBank
from torch_mapss.distortions import FAMILIES


@pytest.mark.parametrize("kind", ["separation", "match"])
@pytest.mark.parametrize("family", FAMILIES)
def test_copies_lie_where_the_references_do(family: str, kind: str) -> None:
    with fake_device():
        references = torch.empty(1, 2, 8000, device="cuda")
        found = DistortionBank(kind, only=[family])(references, 16_000)
        assert found.waveforms.device.type == found.mask.device.type == "cuda"
