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

import torch.nn.functional as F
from torch import Tensor, nn


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
    """Replace the layer-norm convolutions of transformers in a wav2vec-like model, in place."""
    layers = model.feature_extractor.conv_layers
    for index, layer in enumerate(layers):
        if isinstance(getattr(layer, "layer_norm", None), nn.LayerNorm):
            layers[index] = ChannelsLastConvLayer(layer)
