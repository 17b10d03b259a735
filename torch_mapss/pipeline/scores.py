"""What comes out: frame scores, utterance scores, bounds.

Records of tensors; no maths beyond pooling. ``B`` mixtures, ``S'`` estimates, ``F`` frames.
"""

from __future__ import annotations

from dataclasses import dataclass, fields, replace
from typing import NamedTuple

import torch
from torch import Tensor

from torch_mapss.core.frame_batches import Bounds
from torch_mapss.core.pooling import (
    masked_mean,
    pool_fidelity,
    pool_log_match_compressed,
    pool_power_db,
    pool_separation,
)
from torch_mapss.pipeline.measures import MEASURE_OF


class UtteranceScores(NamedTuple):
    """One number per estimate (B, S'); NaN where undefined or not computed."""

    clearance: Tensor  # (B, S') mean, [0, 1]
    fidelity: Tensor  # (B, S') 1 - RMS(1 - F), [0, 1]; NaN if undefined in most frames
    ps: Tensor  # (B, S') mean PS, [0, 1]
    pm: Tensor  # (B, S') mean PM, [0, 1]
    log_pm: Tensor  # (B, S') mean log PM, <= 0
    bleed_db: Tensor  # (B, S') mean power in the own source's pauses, dB; lower is better
    ps_pesq: Tensor  # (B, S') PESQ-like pooling of PS, [1.085, 1.315]
    log_pm_compressed: Tensor  # (B, S') mean of -log(1 - log PM), <= 0: single frames count less
    frames: Tensor  # (B, S') int64, how many frames are scored


@dataclass(frozen=True)
class Scores:
    """Frame scores of a batch. None where a measure was not computed.

    Where a value is not :meth:`defined` it is 0, without gradient (``bleed_db``: NaN).
    """

    active: Tensor  # (B, S', F) bool: scored: source and at least one other active, frame drawn
    times: Tensor  # (F,) seconds, centre of the encoder's receptive field
    measures: tuple[str, ...]  # those computed, see torch_mapss.pipeline.measures
    clearance: Tensor | None = None  # (B, S', F) in [0, 1], 1: no leakage
    fidelity: Tensor | None = None  # (B, S', F) in [0, 1], 1: undistorted
    ps: Tensor | None = None  # (B, S', F) in [0, 1], 1: no leakage
    pm: Tensor | None = None  # (B, S', F) in [0, 1], 1: undistorted
    log_pm: Tensor | None = None  # (B, S', F) <= 0; keeps ranking where PM has saturated at 0
    bleed_db: Tensor | None = None  # (B, S', F) dB, level where only other sources are active
    attributed_distance: Tensor | None = None  # (B, S', F) A, to the source's own cluster (PS)
    foreign_distance: Tensor | None = None  # (B, S', F) B, to the closest other cluster (PS)
    distortion_ratio: Tensor | None = None  # (B, S', F) >= 0, 1 - fidelity without its cap
    clearance_defined: Tensor | None = None  # (B, S', F) bool
    fidelity_defined: Tensor | None = None  # (B, S', F) bool
    separation_dimension: Tensor | None = None  # (B, F) int64, d of PS's map; 0: nothing scored
    match_dimension: Tensor | None = None  # (B, F) int64, d of PM's map; 0: nothing scored

    def defined(self, field: str) -> Tensor:
        """(B, S', F) bool: where a field has a value.

        Raises:
            ValueError: the field was not computed.
        """
        if field == "bleed_db":
            return ~self.of(field).isnan()
        if field in ("clearance", "distortion_ratio"):
            return self.active & self.of("clearance_defined")
        if field == "fidelity":
            return self.active & self.of("fidelity_defined")
        self.of(field)
        return self.active

    def of(self, field: str) -> Tensor:
        """A field by name; ValueError where it was not computed."""
        values: Tensor | None = getattr(self, field)
        if values is None:
            raise ValueError(
                f"{field} was not computed: measures were {', '.join(self.measures)}. Ask for "
                f"measures={MEASURE_OF.get(field, field)!r} as well."
            )
        return values

    def utterance(self) -> UtteranceScores:
        """Pool frames to one number per estimate; NaN for what was not computed.

        PM's paper pooling is its plain mean [eq:avg_pooling_pm].
        """
        blank = torch.full(self.active.shape[:2], torch.nan, device=self.active.device)
        found = dict.fromkeys(UtteranceScores._fields, blank)
        if self.clearance is not None:
            found["clearance"] = masked_mean(self.clearance, self.defined("clearance"))
            there = self.defined("fidelity")
            found["fidelity"] = pool_fidelity(self.of("fidelity"), there, self.active)
        if self.ps is not None:
            found["ps"] = masked_mean(self.ps, self.active)
            found["ps_pesq"] = pool_separation(self.ps, self.active)
        if self.log_pm is not None:
            found["pm"] = masked_mean(self.of("pm"), self.active)
            found["log_pm"] = masked_mean(self.log_pm, self.active)
            found["log_pm_compressed"] = pool_log_match_compressed(self.log_pm, self.active)
        if self.bleed_db is not None:
            found["bleed_db"] = pool_power_db(self.bleed_db, self.defined("bleed_db"))
        return UtteranceScores(**found | {"frames": self.active.sum(-1)})

    def detach(self) -> Scores:
        """The same numbers without a graph."""
        values = {f.name: getattr(self, f.name) for f in fields(self)}
        tensors = {name: x.detach() for name, x in values.items() if isinstance(x, Tensor)}
        return replace(self, **tensors)  # type: ignore[arg-type]


class ScoreBounds(NamedTuple):
    """What :meth:`torch_mapss.MAPSS.bounds` returns; None where a measure was not computed."""

    active: Tensor  # (B, S', F) bool, as in :class:`Scores`
    confidence: float
    clearance: Bounds | None = None  # radius 0, tail: jackknife over distortions
    fidelity: Bounds | None = None  # likewise
    ps: Bounds | None = None
    pm: Bounds | None = None
    scores: Scores | None = None  # read off the same maps; None where the bounds need others

    def of(self, field: str) -> Bounds | None:
        """The bounds of a field of :class:`Scores`, if it has any."""
        found: Bounds | None = getattr(self, field, None)
        return found if isinstance(found, Bounds) else None
