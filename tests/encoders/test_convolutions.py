"""Layer-norm convolutions with channels last: equal to the stock ones, and left out elsewhere."""

from __future__ import annotations

import copy
from typing import Any

import pytest
import torch
from checkpoints import FAMILIES, random_model, relative_error, write_checkpoint
from torch import Tensor, nn
from torch.profiler import profile
from torch.utils._python_dispatch import TorchDispatchMode
from waveforms import noise

from torch_mapss.encoders import load_encoder
from torch_mapss.encoders.wav2vec import ChannelsLastConvLayer, keep_channels_last


def feature_encoder(kind: str = "wav2vec2", large: bool = True, **changes: Any) -> Any:
    """The convolutions of a small random model, as transformers has them."""
    return random_model(kind, large, **changes).feature_extractor.requires_grad_(False)


def replaced(stock: Any) -> Any:
    """A copy with channels last."""
    model = nn.Module()
    model.feature_extractor = copy.deepcopy(stock)
    keep_channels_last(model)
    return model.feature_extractor


def are_replaced(features: Any) -> list[bool]:
    return [isinstance(layer, ChannelsLastConvLayer) for layer in features.conv_layers]


@pytest.mark.parametrize("kind", FAMILIES)
def test_equals_the_stock_convolutions(kind):
    stock = feature_encoder(kind)
    assert not any(are_replaced(replaced(feature_encoder(kind, large=False))))  # group norm
    ours, seen = replaced(stock), []
    assert all(are_replaced(ours))
    for features in (stock, ours):
        wave = noise(2, 1999).requires_grad_()
        actual = features(wave)
        weights = torch.linspace(-1.0, 1.0, actual.numel()).reshape(actual.shape)
        seen.append((actual.detach(), torch.autograd.grad((actual * weights).sum(), wave)[0]))
    (expected, slope), (actual, gradient) = seen
    assert actual.shape == expected.shape
    assert relative_error(actual, expected) < 1e-5
    assert relative_error(gradient, slope) < 1e-5


def test_other_kernels_no_bias_and_other_widths():
    changes: dict[str, Any] = {
        "conv_bias": False,
        "conv_kernel": (9, 4, 3, 5, 1, 2, 2),
        "conv_stride": (4, 3, 1, 2, 1, 2, 3),
        "conv_dim": (5, 1, 12, 3, 12, 7, 12),
    }
    stock = feature_encoder(**changes)
    ours = replaced(stock)
    assert all(are_replaced(ours))
    # A norm of one channel is its bias, so compare below it and above it.
    for layer in range(7):
        above = stock.conv_layers[layer].conv.in_channels
        x = torch.randn(2, above, 60, generator=torch.Generator().manual_seed(layer))
        expected, actual = stock.conv_layers[layer](x), ours.conv_layers[layer](x)
        assert actual.shape == expected.shape
        assert relative_error(actual, expected) < 1e-5


def test_gradient_against_differences():
    ours = replaced(feature_encoder(conv_dim=(3,) * 7).double())
    assert torch.autograd.gradcheck(ours, noise(1, 480).double().requires_grad_())


def copied(features: Any, wave: Tensor) -> list[int]:
    """Sizes of the tensors that are copied, forward and backward."""
    with profile(record_shapes=True) as seen:
        features(wave).sum().backward()
    copies = [event for event in seen.events() if event.name == "aten::copy_"]
    return [torch.Size(event.input_shapes[0]).numel() for event in copies]


def test_nothing_but_the_waveform_is_copied():
    stock = feature_encoder()
    wave = noise(3, 1999).requires_grad_()
    size = stock(wave).numel()  # the smallest of the activations
    assert max(copied(stock, wave)) > 10 * size
    windows = 3 * 10 * ((1999 - 10) // 5 + 1)  # of the first convolution, each 10 samples
    assert max(copied(replaced(stock), wave)) <= windows


class Convolutions(TorchDispatchMode):
    """The dimensions of the tensors that are convolved."""

    def __init__(self) -> None:
        super().__init__()
        self.dims: list[int] = []

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if func is torch.ops.aten.convolution.default:
            self.dims.append(args[0].dim())
        return func(*args, **(kwargs or {}))


def test_elsewhere_the_convolutions_stay_one_dimensional():
    ours = replaced(feature_encoder())
    with Convolutions() as present:
        expected = ours(noise(3, 1999))
    assert present.dims == [4] * 6  # the first is a product
    ours.to("meta")
    with Convolutions() as context:
        assert ours(noise(3, 1999).to("meta")).shape == expected.shape
    assert context.dims == [3] * 7


@pytest.mark.parametrize("around", ["nothing", "float64", "bfloat16", "meta", "autocast"])
def test_loaded_encoders_have_them_whatever_is_set_around(tmp_path, around):
    write_checkpoint(tmp_path, "wav2vec2", True, conv_dim=(128,) * 7)  # wide: bfloat16 would show
    before, generator = torch.get_default_dtype(), torch.get_rng_state()
    try:
        if around == "meta":
            with torch.device("meta"):
                encoder = load_encoder(tmp_path, layer=1)
        else:
            torch.set_default_dtype(
                {"float64": torch.float64, "bfloat16": torch.bfloat16}.get(around, before)
            )
            with torch.autocast("cpu", dtype=torch.bfloat16, enabled=around == "autocast"):
                encoder = load_encoder(tmp_path, layer=1)
    finally:
        torch.set_default_dtype(before)
    assert all(are_replaced(encoder.model.feature_extractor))
    assert torch.equal(torch.get_rng_state(), generator)
    assert not any(p.requires_grad for p in encoder.model.parameters())
