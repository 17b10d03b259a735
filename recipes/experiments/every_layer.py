"""Every layer of an encoder in one pass, each as an encoder of its own."""

from __future__ import annotations

import hashlib
from collections.abc import Sequence

import torch
from torch import Tensor

from torch_mapss.encoders import Encoder, TransformerEncoder


class Layers:
    """Features of several layers of an encoder; every waveform goes through it once.

    Args:
        encoder: loaded at the highest layer that is wanted.
        layers: those wanted; (None,) for an encoder without layers.
        every: keep one frame in so many, which is also what memory there is for.
    """

    def __init__(self, encoder: Encoder, layers: Sequence[int | None], every: int = 1) -> None:
        self.encoder, self.layers, self.every = encoder, tuple(layers), every
        self.encoded = 0  # waveforms so far
        self._kept: dict[bytes, tuple[Tensor, ...]] = {}

    def features(self, waves: Tensor, layer: int | None) -> Tensor:
        """(n, T) -> (n, F, M) of one layer."""
        names = [hashlib.sha1(wave.cpu().numpy().tobytes()).digest() for wave in waves]
        new = {name: wave for name, wave in zip(names, waves) if name not in self._kept}
        if new:
            self.encoded += len(new)
            states = self._states(torch.stack([*new.values()]))
            self._kept.update(zip(new, zip(*states)))
        place = self.layers.index(layer)
        return torch.stack([self._kept[name][place] for name in names])

    @torch.no_grad()
    def _states(self, waves: Tensor) -> list[Tensor]:
        if isinstance(self.encoder, TransformerEncoder) and len(self.layers) > 1:
            states = self.encoder.hidden_states(waves)
            # Copies: a part of a state would keep the whole of it in memory.
            return [states[k][:, :: self.every].clone() for k in self.layers if k is not None]
        return [self.encoder(waves)[:, :: self.every].clone()]

    def forget(self) -> None:
        """Release what is kept, between two mixtures."""
        self._kept.clear()

    def view(self, layer: int | None) -> View:
        """One layer as an encoder of its own."""
        return View(self, layer)


class View:
    """What `MAPSS` takes for an encoder: one layer, on the frames that are kept."""

    def __init__(self, all_layers: Layers, layer: int | None) -> None:
        encoder = all_layers.encoder
        self.all_layers, self.layer, self.name = all_layers, layer, encoder.name
        self.sample_rate, self.receptive_field = encoder.sample_rate, encoder.receptive_field
        self.hop = encoder.hop * all_layers.every
        self.feature_size = encoder.feature_size

    def __call__(self, waves: Tensor) -> Tensor:
        """(n, T) -> (n, F, M)."""
        return self.all_layers.features(waves, self.layer)
