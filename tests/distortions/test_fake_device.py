"""Every family on a device that is not the CPU: all it makes lies there."""

from __future__ import annotations

import pytest
import torch
from fake_device import fake_device

from torch_mapss import DistortionBank
from torch_mapss.distortions import FAMILIES


@pytest.mark.parametrize("kind", ["separation", "match"])
def test_copies_and_pieces_lie_where_the_references_do(kind: str) -> None:
    with fake_device():
        references = torch.empty(1, 2, 4000, device="cuda", requires_grad=True)
        bank = DistortionBank(kind, size=len(FAMILIES))  # one of each
        actual = bank(references, 16_000)
        assert actual.waveforms.device.type == actual.mask.device.type == "cuda"
        assert not actual.waveforms.requires_grad  # a bank is a constant: there is no backward pass
        measured = bank.measure(references, 16_000)
        piece = references[..., 2000:]
        made = bank.chunks(piece, 16_000, range(2), 4, measured=measured, start=2000)
        assert {(x.device.type, x.shape[-1]) for _, x, _ in made} == {("cuda", 2000)}
