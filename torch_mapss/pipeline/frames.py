"""Embeddings of frames: of clips that are in memory, and what both kinds of clips have in common.

Scoring goes through the frames of clips block by block. What a block compares is asked of it by
measure, so that the loop is the same whether embeddings are read from memory (here) or made on
demand (:mod:`~torch_mapss.pipeline.segments`).
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterator, Mapping, Sequence

import torch
from torch import Tensor

from torch_mapss.core.points import Points
from torch_mapss.pipeline.bank import EncodedClips

Embeddings = Mapping[str, Tensor]  # by measure


class Block(ABC):
    """A few frames of the mixtures of one length.

    Args:
        item: (n,) of each frame, the mixture's index among these clips.
        frame: (n,) its index in the mixture.
    """

    def __init__(self, item: Tensor, frame: Tensor) -> None:
        self.item = item
        self.frame = frame

    @abstractmethod
    def clusters(self, measure: str) -> tuple[Points, Tensor]:
        """References and distortions of n frames, without outputs; and which are finite, (n,).

        Asked for once for each measure.
        """

    @abstractmethod
    def outputs(self, measure: str, call: int) -> Tensor:
        """(n, S', M) embedded estimates of a call, by its index."""


class ClipFrames(ABC):
    """All frames of the mixtures of one length."""

    @abstractmethod
    def blocks(self, frames: Tensor) -> Iterator[Block]:
        """The ``frames`` (n, 2) as item and frame, as many at a time as memory allows."""


class EncodedFrames(ClipFrames):
    """Frames of clips that are encoded, as are the estimates.

    Args:
        clips: of the bank.
        estimates: of each call, (b, S', F, M) by measure.
        frames_at_once: of a block; None: all.
    """

    def __init__(
        self, clips: EncodedClips, estimates: Sequence[Embeddings], frames_at_once: int | None
    ) -> None:
        self.clips = clips
        self.estimates = estimates
        self.frames_at_once = frames_at_once

    def blocks(self, frames: Tensor) -> Iterator[Block]:
        """See :class:`ClipFrames`."""
        for some in frames.split(self.frames_at_once or max(1, len(frames))):
            if len(some):
                yield EncodedBlock(self.clips, self.estimates, *some.unbind(-1))


class EncodedBlock(Block):
    """Frames whose embeddings are gathered from memory."""

    def __init__(
        self, clips: EncodedClips, estimates: Sequence[Embeddings], item: Tensor, frame: Tensor
    ) -> None:
        super().__init__(item, frame)
        self._clips = clips
        self._estimates = estimates

    def clusters(self, measure: str) -> tuple[Points, Tensor]:
        """See :class:`Block`; frames with bad embeddings are none of those to be scored."""
        finite = torch.ones_like(self.frame, dtype=torch.bool)
        return self._clips.encoded[measure].points(self.item, self.frame), finite

    def outputs(self, measure: str, call: int) -> Tensor:
        """See :class:`Block`."""
        return self._estimates[call][measure].transpose(1, 2)[self.item, self.frame]
