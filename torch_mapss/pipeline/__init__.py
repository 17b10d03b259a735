"""Waveforms -> frame scores: admit, normalise, encode, choose frames, score, place."""

from __future__ import annotations

from torch_mapss.pipeline.mapss import MAPSS
from torch_mapss.pipeline.records import (
    FrameBounds,
    ReferenceBank,
    ScoreBounds,
    Scores,
    UtteranceScores,
)

__all__ = ["MAPSS", "FrameBounds", "ReferenceBank", "ScoreBounds", "Scores", "UtteranceScores"]
