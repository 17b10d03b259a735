"""Layer-norm convolutions that keep the channels last, so that nothing is copied.

The feature encoders of "large" models normalise over the channels after each convolution:
conv -> transpose -> norm -> transpose -> activation. The norm wants the channels last in memory and
torch's one-dimensional convolution wants time last, so both copy: on a CPU a fifth of what these
layers take, and far more of their backward pass (`benchmarks/results/encoders.md`). A
two-dimensional convolution of height 1 takes channels that come last as they are, and with it every
transpose is a view. Group-norm models ("base") have no transposes and gain nothing.
"""

from __future__ import annotations

import copy
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

_PARTS = {"conv", "layer_norm", "activation"}
_SAME = 1e-4  # relative; rounding is 1e-6, another formula far above


class ChannelsLastConvLayer(nn.Module):
    """Convolution over time, layer norm over channels, activation; (B, C, T) -> (B, C', T').

    Equal to the layer it is made of up to rounding, with its submodules under their names, so that
    checkpoints fit. The result of a CPU is laid out (B, T', C'). Elsewhere the convolution stays
    one-dimensional: the gain was measured on a CPU alone.

    Args:
        layer: a layer that `is_layer_norm_convolution`.
    """

    def __init__(self, layer: Any) -> None:
        super().__init__()
        self.conv = layer.conv
        self.layer_norm = layer.layer_norm
        self.activation = layer.activation

    def forward(self, hidden_states: Tensor) -> Tensor:
        """(B, C, T) -> (B, C', T')."""
        frames = self.layer_norm(self._convolved(hidden_states))
        return self.activation(frames).transpose(-2, -1)

    def _convolved(self, x: Tensor) -> Tensor:
        """(B, C, T) -> (B, T', C')."""
        weight, bias, (stride,) = self.conv.weight, self.conv.bias, self.conv.stride
        if x.device.type != "cpu":
            return self.conv(x).transpose(-2, -1)
        if x.shape[1] == 1:  # windows of the waveform, a product with each
            return F.linear(x.squeeze(1).unfold(-1, weight.shape[-1], stride), weight[:, 0], bias)
        frames = F.conv2d(x.unsqueeze(2), weight.unsqueeze(2), bias, (1, stride))
        return frames.squeeze(2).transpose(-2, -1)


def keep_channels_last(model: Any) -> None:
    """Replace the layer-norm convolutions of a wav2vec-like model, in place.

    A model whose layers look or compute otherwise (other norms, another version of transformers) is
    left as it is.

    Args:
        model: a model of transformers; it may be without storage.
    """
    layers = getattr(getattr(model, "feature_extractor", None), "conv_layers", None)
    if not isinstance(layers, nn.ModuleList) or not all(map(is_layer_norm_convolution, layers)):
        return
    if not all(map(_computes_the_same, {type(layer): layer for layer in layers}.values())):
        return
    for index, layer in enumerate(layers):
        layers[index] = ChannelsLastConvLayer(layer)


def is_layer_norm_convolution(layer: Any) -> bool:
    """Whether a layer holds a plain convolution, a norm over its channels and an activation."""
    if {name for name, _ in layer.named_children()} != _PARTS or layer._parameters:
        return False
    conv, norm = layer.conv, layer.layer_norm
    if type(conv) is not nn.Conv1d or type(norm) is not nn.LayerNorm:
        return False
    plain = (conv.groups, conv.dilation, conv.padding) == (1, (1,), (0,))
    return plain and norm.normalized_shape == (conv.out_channels,)


def _computes_the_same(layer: Any) -> bool:
    """Whether a layer does what `ChannelsLastConvLayer` makes of it, tried on numbers."""
    try:
        stock = copy.deepcopy(layer).to_empty(device="cpu").float().eval()
        for tensor in stock.state_dict().values():
            tensor.copy_(_numbers(*tensor.shape))
        conv = stock.conv
        x = _numbers(1, conv.in_channels, conv.kernel_size[0] + 3 * conv.stride[0])
        with torch.no_grad(), torch.autocast("cpu", enabled=False):
            expected, found = stock(x), ChannelsLastConvLayer(stock)(x)
        close = (found - expected).abs().max() <= _SAME * expected.abs().max()
        return found.shape == expected.shape and bool(close)
    except Exception:  # whatever a layer of another make wants of its caller
        return False


def _numbers(*shape: int) -> Tensor:
    """Without a pattern, and without drawing from a generator that others draw from."""
    count = torch.Size(shape).numel()
    return torch.arange(count, dtype=torch.float32, device="cpu").mul(1.7).sin().reshape(shape)
