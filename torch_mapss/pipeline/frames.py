"""Embeddings of frames: the interface for both kinds of clips, and clips in memory.

Scoring goes through the frames of clips block by block. The loop asks each block for one measure's
points at a time, and so need not know whether they are read from memory (here) or made on demand
(:mod:`~torch_mapss.pipeline.segments`).
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterator, Mapping, Sequence

import torch
from torch import Tensor

from torch_mapss.core.points import Points
from torch_mapss.pipeline.bank import EncodedClips
from torch_mapss.pipeline.measures import MEASURES

Embeddings = Mapping[str, Tensor]  # by measure


class Block(ABC):
    """A few frames of the mixtures of one length.

    Args:
        item: (n,) index of each frame's mixture among these clips.
        frame: (n,) index of each frame in its mixture.
        measures: measures to compute in at least some of the frames.
        has_pauses: whether only one source is active in some of the frames.
    """

    def __init__(
        self, item: Tensor, frame: Tensor, measures: Sequence[str], has_pauses: bool
    ) -> None:
        self.item = item
        self.frame = frame
        self.measures = measures
        self.has_pauses = has_pauses

    def rows(self, measure: str) -> Tensor | slice:
        """Index of the frames, among the n, in which a measure is computed; all by default."""
        return slice(None)

    @abstractmethod
    def clusters(self, measure: str) -> tuple[Points, Tensor]:
        """References and distortions in a measure's rows, without outputs, and which are finite.

        Called once per measure.
        """

    @abstractmethod
    def outputs(self, measure: str, call: int) -> Tensor:
        """(rows, S', M) embedded estimates of a call, which is named by its index."""


class ClipFrames(ABC):
    """All frames of the mixtures of one length."""

    @abstractmethod
    def blocks(self, scored: Tensor, pauses: Tensor) -> Iterator[Block]:
        """Yield the frames to score, as many at a time as memory allows.

        Args:
            scored: (n, 2) int64, item and frame, with at least two active sources: for all
                measures.
            pauses: (m, 2) int64 with one active source, for measures that score pauses.
        """


class EncodedFrames(ClipFrames):
    """Frames of clips that are held encoded in memory, as are the estimates.

    Args:
        clips: clips of the bank.
        estimates: embeddings (b, S', F, M) by measure, one mapping per call.
        frames_at_once: most frames in a block; None: all.
    """

    def __init__(
        self, clips: EncodedClips, estimates: Sequence[Embeddings], frames_at_once: int | None
    ) -> None:
        self.clips = clips
        self.estimates = estimates
        self.frames_at_once = frames_at_once

    def blocks(self, scored: Tensor, pauses: Tensor) -> Iterator[Block]:
        """See :class:`ClipFrames`; frames of pauses form separate blocks."""
        measures = list(self.estimates[0])
        in_pauses = [name for name in measures if MEASURES[name].in_pauses]
        for frames, names, has_pauses in (
            (scored, measures, False),
            (pauses, in_pauses, True),
        ):
            for batch in frames.split(self.frames_at_once or max(1, len(frames))):
                if len(batch):
                    item, frame = batch.unbind(-1)
                    yield EncodedBlock(self, item, frame, names, has_pauses)


class EncodedBlock(Block):
    """Frames whose embeddings are gathered from memory."""

    def __init__(
        self,
        clip_frames: EncodedFrames,
        item: Tensor,
        frame: Tensor,
        measures: Sequence[str],
        has_pauses: bool,
    ) -> None:
        super().__init__(item, frame, measures, has_pauses)
        self._clips = clip_frames.clips
        self._estimates = clip_frames.estimates

    def clusters(self, measure: str) -> tuple[Points, Tensor]:
        """See :class:`Block`; all finite, since the bank excludes other frames."""
        finite = torch.ones_like(self.frame, dtype=torch.bool)
        return self._clips.encoded[measure].points(self.item, self.frame), finite

    def outputs(self, measure: str, call: int) -> Tensor:
        """See :class:`Block`."""
        return self._estimates[call][measure].transpose(1, 2)[self.item, self.frame]
