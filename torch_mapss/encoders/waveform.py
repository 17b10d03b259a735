"""The waveform itself as features: the paper's ablation, and the cheapest encoder."""

from __future__ import annotations

import torch
from torch import Tensor

from torch_mapss.encoders.base import Encoder


class WaveformEncoder(Encoder):
    """Raw frames of 400 samples every 320, at 16 kHz: a strided view, without a copy.

    Args:
        dtype: float32 or float64; None keeps the waveform's own (half precision becomes float32).
    """

    def __init__(self, dtype: torch.dtype | None = None) -> None:
        super().__init__(
            name="waveform",
            sample_rate=16_000,
            hop=320,
            receptive_field=400,
            feature_size=400,
            dtype=dtype,
        )
        self.local = True

    def _encode(self, flat: Tensor) -> Tensor:
        return flat.unfold(-1, self.receptive_field, self.hop)

    def _item_bytes(self, samples: int) -> int:
        return 0
