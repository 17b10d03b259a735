"""Hidden states of several layers of one Whisper from a single pass, to compare its layers.

An encoder stops at its layer, so layers 0 to 4 of one clip would take five passes. Here the encoder
of the highest layer runs once; the input of each of its blocks is the state of the layer below.
States are cached until `SharedPass.forget`, because each layer asks for the same clips in turn.
"""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from typing import Any

import toolkit
import torch
from torch import Tensor

from torch_mapss.encoders import Encoder
from torch_mapss.encoders.custom import CustomEncoder
from torch_mapss.encoders.whisper import WhisperEncoder


def hidden_states(encoder: WhisperEncoder, waveform: Tensor) -> list[Tensor]:
    """(N, F, M) of every layer up to the encoder's own, for waveforms (N, T)."""
    blocks = encoder.model.encoder.layers
    chunks_by_block: list[list[Tensor]] = [[] for _ in blocks]  # inputs: long clips come in chunks
    hooks = []
    for block, chunks in zip(blocks, chunks_by_block):

        def keep_input(_: Any, inputs: tuple[Tensor, ...], chunks: list[Tensor] = chunks) -> None:
            chunks.append(inputs[0])

        hooks.append(block.register_forward_pre_hook(keep_input))
    try:
        features = encoder(waveform)
    finally:
        for hook in hooks:
            hook.remove()
    frames = features.shape[-2]
    return [*(torch.cat(chunks)[:, :frames] for chunks in chunks_by_block), features]


class SharedPass:
    """One pass for all layers of a Whisper.

    Args:
        encoder: of the highest layer that will be asked for.
    """

    def __init__(self, encoder: WhisperEncoder) -> None:
        self.encoder = encoder
        self._states: dict[bytes, list[Tensor]] = {}  # by the digest of the waveforms

    def states(self, waveform: Tensor) -> list[Tensor]:
        """`hidden_states`, computed once for equal waveforms."""
        content = hashlib.blake2b(waveform.contiguous().numpy().tobytes())
        content.update(repr(tuple(waveform.shape)).encode())
        key = content.digest()
        if key not in self._states:
            self._states[key] = hidden_states(self.encoder, waveform)
        return self._states[key]

    def forget(self) -> None:
        """Free the states: the next clips are others."""
        self._states.clear()

    def layer(self, index: int) -> Encoder:
        """The encoder of one layer, which reads its states off the shared pass."""
        return CustomEncoder(_Layer(self, index))


class _Layer:
    def __init__(self, shared: SharedPass, index: int) -> None:
        encoder = shared.encoder
        self.shared, self.layer, self.name = shared, index, encoder.name
        self.sample_rate, self.hop = encoder.sample_rate, encoder.hop
        self.receptive_field, self.feature_size = encoder.receptive_field, encoder.feature_size

    def __call__(self, waveform: Tensor) -> Tensor:
        return self.shared.states(waveform)[self.layer]


def shared_passes(encoders: Sequence[str], device: str | None = None) -> dict[str, SharedPass]:
    """Model -> its pass, for every Whisper with several layers among the encoders.

    Args:
        encoders: as for `toolkit.load`; front ends made of layers count as these layers, local
            attention apart: it is another pass.
        device: of the weights.
    """
    layers: dict[str, set[int]] = {}
    for encoder in encoders:
        for name in encoder.removesuffix(":standardised").split("+"):
            model, layer = toolkit.model_and_layer(name)
            if layer is not None:
                layers.setdefault(model, set()).add(layer)
    passes = {}
    for model, indices in layers.items():
        if len(indices) > 1:
            highest = toolkit.load(f"{model}@{max(indices)}", device)
            if isinstance(highest, WhisperEncoder):
                passes[model] = SharedPass(highest)
    return passes
