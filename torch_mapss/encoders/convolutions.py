"""Layer-norm convolutions that keep the channels last, so that nothing is copied.

The feature encoders of "large" models normalise over the channels after each convolution:
conv -> transpose -> norm -> transpose -> activation. The norm wants the channels last in memory and
torch's one-dimensional convolution wants time last, so both copy: on a CPU a fifth of what these
layers take, and far more of their backward pass (`benchmarks/results/encoders.md`). A
two-dimensional convolution of height 1 takes channels that come last as they are, and with it every
transpose is a view. Group-norm models ("base") have no transposes and gain nothing.
"""

from __future__ import annotations

from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

_SAME = 1e-4  # relative; rounding is 1e-6, another formula far above


class ChannelsLastConvLayer(nn.Module):
    """Convolution over time, layer norm over channels, activation; (B, C, T) -> (B, C', T').

    Equal to the layer it is made of up to rounding, with its submodules under their names, so that
    checkpoints fit. The result of a CPU is laid out (B, T', C'). Elsewhere the convolution stays
    one-dimensional: the gain was measured on a CPU alone.

    Args:
        layer: a layer with `conv`, `layer_norm` and `activation`, in this order.
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

    A model whose layers compute otherwise (other norms, another version of transformers) is left
    as it is: every layer is tried on a few numbers first.
    """
    layers = getattr(getattr(model, "feature_extractor", None), "conv_layers", [])
    found = [_replacement(layer) for layer in layers]
    if all(layer is not None for layer in found):
        for index, layer in enumerate(found):
            layers[index] = layer


def _replacement(layer: Any) -> ChannelsLastConvLayer | None:
    """None if it would not compute the same."""
    try:
        other = ChannelsLastConvLayer(layer)
        conv = layer.conv
        count = conv.in_channels * (conv.kernel_size[0] + 3 * conv.stride[0])
        # Without a pattern, and without drawing from a generator that others draw from.
        x = torch.arange(count, dtype=torch.float32, device="cpu").mul(1.7).sin()
        x = x.reshape(1, conv.in_channels, -1)
        with torch.no_grad(), torch.autocast("cpu", enabled=False):
            expected, values = layer(x), other(x)
        close = (values - expected).abs().max() <= _SAME * expected.abs().max()
        return other if values.shape == expected.shape and bool(close) else None
    except Exception:  # whatever a layer of another make needs of its caller
        return None
