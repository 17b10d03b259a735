"""Encodes waveforms on the frames that encoders share."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import torch
from torch import Tensor

from torch_mapss.encoders import Encoder
from torch_mapss.encoders.base import broken, is_usable
from torch_mapss.pipeline.config import Config
from torch_mapss.pipeline.measures import MEASURES
from torch_mapss.pipeline.memory import Budget


class Embedder:
    """Encodes waveforms in bounded memory, and records whether encoders gave usable numbers.

    Args:
        config: settings of the scorer.
        budget: working memory.
    """

    def __init__(self, config: Config, budget: Budget) -> None:
        self.config = config
        self.budget = budget
        # Of each call whether it gave usable numbers, and what the error message states if not.
        self._outcomes: list[tuple[Tensor, tuple[Any, ...]]] = []

    def embed(
        self,
        encoder: Encoder,
        waves: Tensor,
        frames: Tensor | None = None,
        length: int | None = None,
    ) -> Tensor:
        """Embed ``frames`` (None: all) of waveforms (..., T) as (..., F, M).

        Samples beyond ``length`` are passed only to encoders with an overhang.
        """
        if length is not None and encoder.overhang == 0:
            waves = waves[..., :length]
        embeddings = encoder(waves, self.budget.embeddings)
        if embeddings.numel():
            description = encoder, embeddings.shape, embeddings.dtype, embeddings.device
            self._outcomes.append((is_usable(embeddings), description))
        shared = self.config.grid.shared(embeddings, encoder)
        return shared if frames is None else shared[..., frames, :]

    def by_measure(
        self,
        measures: Iterable[str],
        waves: Tensor,
        frames: Tensor | None = None,
        length: int | None = None,
    ) -> dict[str, Tensor]:
        """Embeddings by measure; an encoder that several measures share encodes once."""
        encoders = {name: self.config.encoders[MEASURES[name].encoder].load() for name in measures}
        distinct = dict.fromkeys(encoders.values())
        embeddings = {encoder: self.embed(encoder, waves, frames, length) for encoder in distinct}
        return {name: embeddings[encoder] for name, encoder in encoders.items()}

    def check(self) -> None:
        """Raise RuntimeError if a call gave no finite number; reads an accelerator once."""
        outcomes, self._outcomes = self._outcomes, []
        if not outcomes:
            return
        flags = torch.stack([usable for usable, _ in outcomes]).tolist()
        for is_fine, (_, description) in zip(flags, outcomes):
            if not is_fine:
                raise RuntimeError(broken(*description))
