"""Embeddings of frames: the interface for both kinds of clips, and clips in memory.

Scoring goes through the frames of clips block by block. The loop asks each block for one measure's
embeddings at a time, and so need not know whether they are read from memory (here) or made on
demand (:mod:`~torch_mapss.pipeline.segments`).
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterator, Mapping, Sequence

import torch
from torch import Tensor

from torch_mapss.core.points import Points
from torch_mapss.pipeline.bank import PreparedClips
from torch_mapss.pipeline.measures import MEASURES


class Block(ABC):
    """A few frames of the mixtures of one length."""

    item: Tensor  # (n,) index of each frame's mixture among these clips
    frame: Tensor  # (n,) index of each frame in its mixture
    measures: Sequence[str]  # to compute in at least some of the frames
    has_pauses: bool  # whether only one source is active in some of the frames

    @abstractmethod
    def read(self, measure: str) -> tuple[Tensor | slice, Points, Tensor, list[Tensor]]:
        """Embeddings of a measure; called once for each.

        Returns:
            Four values for the rows, which are the frames in which the measure is computed:

            1. index of the rows among the n frames;
            2. their references and distortions, as points without outputs;
            3. (rows,) bool, whether these references and distortions are finite;
            4. their embedded estimates (rows, S', M), one tensor per call.
        """


class StoredBlock(Block):
    """Frames whose embeddings are gathered from memory.

    Args:
        clips: clips of the bank.
        estimates: embeddings (b, S', F, M) by measure, one mapping per call.
        pairs: (n, 2) int64, item and frame.
        measures, has_pauses: see :class:`Block`.
    """

    def __init__(
        self,
        clips: PreparedClips,
        estimates: Sequence[Mapping[str, Tensor]],
        pairs: Tensor,
        measures: Sequence[str],
        has_pauses: bool,
    ) -> None:
        self.item, self.frame = pairs.unbind(-1)
        self.measures = measures
        self.has_pauses = has_pauses
        self._clips = clips
        self._estimates = estimates

    def read(self, measure: str) -> tuple[Tensor | slice, Points, Tensor, list[Tensor]]:
        """See :class:`Block`; all are finite, since the bank excludes other frames."""
        finite = torch.ones_like(self.frame, dtype=torch.bool)
        clusters = self._clips.encoded[measure].points(self.item, self.frame)
        outputs = [
            by_measure[measure].transpose(1, 2)[self.item, self.frame]
            for by_measure in self._estimates
        ]
        return slice(None), clusters, finite, outputs


def stored_blocks(
    clips: PreparedClips,
    estimates: Sequence[Mapping[str, Tensor]],
    frames_at_once: int | None,
    scored: Tensor,
    pauses: Tensor,
) -> Iterator[StoredBlock]:
    """Yield the frames of clips in memory, those of pauses in separate blocks.

    Args:
        clips: clips of the bank.
        estimates: embeddings (b, S', F, M) by measure, one mapping per call.
        frames_at_once: most frames in a block; None: all.
        scored: (n, 2) int64, item and frame, with at least two active sources: for all measures.
        pauses: (m, 2) int64 with one active source, for measures that score pauses.
    """
    measures = list(estimates[0])
    in_pauses = [name for name in measures if MEASURES[name].in_pauses]
    for pairs in scored.split(frames_at_once or max(1, len(scored))):
        if len(pairs):
            yield StoredBlock(clips, estimates, pairs, measures, has_pauses=False)
    for pairs in pauses.split(frames_at_once or max(1, len(pauses))):
        if len(pairs):
            yield StoredBlock(clips, estimates, pairs, in_pauses, has_pauses=True)
