"""Encoders of the user's own, and embeddings that no score can use."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor, nn
from waveforms import noise

from torch_mapss.encoders import (
    CustomEncoder,
    Encoder,
    as_encoder,
)
from torch_mapss.encoders.base import is_usable


class Stub(nn.Module):
    """Mean of each frame, and its double."""

    sample_rate, hop, receptive_field = 8_000, 100, 200

    def __init__(self) -> None:
        super().__init__()
        self.scale = nn.Parameter(torch.tensor([1.0, 2.0]))

    def forward(self, wave: Tensor) -> Tensor:
        assert wave.dim() == 2
        return wave.unfold(-1, 200, 100).mean(-1, keepdim=True) * self.scale


def test_own_encoder():
    stub = Stub()
    encoder = as_encoder(stub)
    assert isinstance(encoder, CustomEncoder)
    assert as_encoder(encoder) is encoder
    wave = noise(2, 3, 1000).requires_grad_()
    frames = encoder(wave)
    assert frames.shape == (2, 3, encoder.frame_count(1000), 2)
    frames.sum().backward()
    assert wave.grad.abs().sum() > 0
    assert stub.scale.grad is None
    assert not encoder.train().function.training
    for cast in (encoder.half, encoder.bfloat16, encoder.double):  # it keeps its precision
        cast()
        assert stub.scale.dtype == torch.float32
        assert torch.equal(encoder(wave.double()), frames)
    stub.forward = lambda wave: wave.new_full((2, 9, 40), 2000.0).half()  # type: ignore[method-assign]
    assert encoder(noise(2, 1000)).dtype == torch.float32
    assert encoder.to("meta").function.scale.device.type == "meta"


def test_own_encoder_may_belong_to_a_model_that_is_trained():
    stub = nn.Sequential(nn.Dropout(0.5), Stub())
    for name in ("sample_rate", "hop", "receptive_field"):
        setattr(stub, name, getattr(Stub, name))
    encoder = as_encoder(stub)
    parent = nn.ModuleDict({"shared": stub}).train().requires_grad_(True)
    earlier = encoder(noise(2, 1000))
    assert parent["shared"] is stub
    assert torch.equal(earlier, encoder(noise(2, 1000)))
    assert not earlier.requires_grad


class Late(Encoder):
    """An encoder that gives a frame too few."""

    def _encode(self, flat: Tensor) -> Tensor:
        return flat.unfold(-1, 200, 100)[:, 1:]


@pytest.mark.parametrize(
    ("output", "message"),
    [
        (lambda wave: wave, r"gave \(2, 1000\)"),
        (lambda wave: wave.new_zeros(2, 8, 3), r"\(2, 9, M\), but gave \(2, 8, 3\)"),
        (lambda wave: None, "gave NoneType"),
        (lambda wave: wave.new_ones(2, 9, 3) > 0, "torch.bool"),
        (lambda wave: wave.new_zeros(2, 9, 3).to(torch.complex64), "take the magnitude"),
    ],
)
def test_own_encoder_with_other_frames(output, message):
    stub = Stub()
    stub.forward = output  # type: ignore[method-assign]
    with pytest.raises(ValueError, match=message):
        as_encoder(stub)(noise(2, 1000))
    late = Late(name="late", sample_rate=8_000, hop=100, receptive_field=200, feature_size=200)
    with pytest.raises(ValueError, match=r"'late'.*\(2, 9, M\), but gave \(2, 8, 200\)"):
        late(noise(2, 1000))


@pytest.mark.parametrize("value", [float("nan"), float("inf"), -1e37])
def test_embeddings_beyond_use(value):
    embeddings = torch.full((2, 3, 4), value)
    assert not is_usable(embeddings)
    embeddings[1, 2, 3] = 1.0  # a single valid place: the caller can name the bad ones
    assert is_usable(embeddings)
