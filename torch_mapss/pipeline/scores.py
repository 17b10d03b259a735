"""Results: frame scores, utterance scores, bounds.

Records of tensors; no maths beyond pooling. ``B`` mixtures, ``S'`` estimates, ``F`` frames.
"""

from __future__ import annotations

from collections import namedtuple
from dataclasses import dataclass, fields, replace
from typing import Any, NamedTuple, TypeVar

import torch
from torch import Tensor

from torch_mapss.core import checks, pooling
from torch_mapss.core.error_bounds import Bounds
from torch_mapss.pipeline.measures import MEASURES, mask_of, measure_of
from torch_mapss.score_table import ENERGY_MEASURES, SCORES, Score

# Fields with a defined-mask of their own -> name of the mask; all others are defined where
# ``active``. The ratio is fidelity without its cap, and also has a value where fidelity has none.
_DEFINED_FIELDS = {
    score.frame_field: score.defined_field
    for score in SCORES.values()
    if score.frame_field is not None
}
for _measure in MEASURES.values():
    _DEFINED_FIELDS |= {name: mask_of(name) for name in _measure.unscored}

#: Fields that have bounds.
BOUNDED = ("clearance", "fidelity", "ps", "pm")

Record = TypeVar("Record")


def check_table() -> None:
    """Raise ValueError for a record in the table of scores that nothing could compute."""
    for name, score in SCORES.items():
        if score.measure in ENERGY_MEASURES:
            continue
        if score.measure not in MEASURES:
            raise ValueError(
                f"score {name!r} is of measure {score.measure!r}, which is not in MEASURES of "
                "torch_mapss.pipeline.measures. Add the measure there."
            )
        if score.frame_field is None or not hasattr(pooling, str(score.pooling)):
            raise ValueError(
                f"score {name!r} must name the field of Scores that is pooled (frame_field) and a "
                f"function of torch_mapss.core.pooling (pooling), got {score.frame_field!r} and "
                f"{score.pooling!r}."
            )


check_table()


def with_pooled_scores(record: type[Record]) -> type[Record]:
    """A NamedTuple with the pooled scores of the table that it does not write out."""
    declared: tuple[str, ...] = record._fields  # type: ignore[attr-defined]
    pooled = [name for name, score in SCORES.items() if score.frame_field is not None]
    added = [name for name in pooled if name not in declared]
    if not added:
        return record
    make: Any = namedtuple  # whose names type checkers want to read here
    extended: type[Record] = make(record.__name__, (*declared, *added), module=record.__module__)
    extended.__doc__ = record.__doc__
    return extended


def with_frame_fields(record: type[Record]) -> type[Record]:
    """A class, not yet a dataclass, with the fields of all measures that it does not write out."""
    for measure in MEASURES.values():
        for name in measure.fields:
            if name not in record.__annotations__:
                record.__annotations__[name] = "Tensor | None"
                setattr(record, name, None)
    return record


@with_pooled_scores
class UtteranceScores(NamedTuple):
    """One number per estimate (B, S'); NaN where undefined or not computed."""

    clearance: Tensor  # (B, S') mean, [0, 1]
    fidelity: Tensor  # (B, S') 1 - RMS(1 - F), [0, 1]; NaN if undefined in most frames
    ps: Tensor  # (B, S') mean PS, [0, 1]
    pm: Tensor  # (B, S') mean PM, [0, 1]
    log_pm: Tensor  # (B, S') mean log PM, <= 0
    bleed_db: Tensor  # (B, S') mean power added in the own source's pauses, dB; lower is better
    ps_pesq: Tensor  # (B, S') PESQ-like pooling of PS, [1.085, 1.315]
    log_pm_compressed: Tensor  # (B, S') mean of -log(1 - log PM), <= 0: single frames count less
    attributed_distance: Tensor  # (B, S') mean A, to the source's own cluster (PS)
    foreign_distance: Tensor  # (B, S') mean B, to the closest other cluster (PS)
    log_foreign_distance: Tensor  # (B, S') mean log B
    frames: Tensor  # (B, S') int64, number of active frames


@dataclass(frozen=True)
@with_frame_fields
class Scores:
    """Frame scores of a batch; fields of measures that were not computed are None.

    Where a value is not :meth:`defined` it is 0, without gradient (``bleed_db``: NaN).
    """

    # (B, S', F) bool: own source and another one are active, and the frame was drawn. PS, PM and
    # fidelity are scored there; clearance also, and bleed only, in pauses of the source, see
    # `defined`.
    active: Tensor
    times: Tensor  # (F,) seconds, centre of the encoder's receptive field
    measures: tuple[str, ...]  # measures computed, see torch_mapss.pipeline.measures
    clearance: Tensor | None = None  # (B, S', F) in [0, 1], 1: as far away as the true source
    fidelity: Tensor | None = None  # (B, S', F) in [0, 1], 1: undistorted
    ps: Tensor | None = None  # (B, S', F) in [0, 1], 1: no leakage
    pm: Tensor | None = None  # (B, S', F) in [0, 1], 1: undistorted
    log_pm: Tensor | None = None  # (B, S', F) <= 0; still ranks where PM has saturated at 0
    bleed_db: Tensor | None = None  # (B, S', F) dB, level added in pauses of the own source
    attributed_distance: Tensor | None = None  # (B, S', F) A, to the source's own cluster (PS)
    foreign_distance: Tensor | None = None  # (B, S', F) B, to the closest other cluster (PS)
    distortion_ratio: Tensor | None = None  # (B, S', F) >= 0, 1 - fidelity without its cap
    clearance_defined: Tensor | None = None  # (B, S', F) bool: another source active, frame drawn
    fidelity_defined: Tensor | None = None  # (B, S', F) bool
    distortion_ratio_defined: Tensor | None = None  # (B, S', F) bool
    bleed_defined: Tensor | None = None  # (B, S', F) bool
    separation_dimension: Tensor | None = None  # (B, F) int64, d of PS's map; 0: nothing scored
    match_dimension: Tensor | None = None  # (B, F) int64, d of PM's map; 0: nothing scored

    def defined(self, field: str) -> Tensor:
        """(B, S', F) bool: where a field has a value.

        Raises:
            ValueError: the field was not computed.
        """
        self.of(field)
        return self.of(_DEFINED_FIELDS.get(field, "active"))

    def of(self, field: str) -> Tensor:
        """A field by name; ValueError if it does not exist or was not computed."""
        checks.check_choice(field, "field", [field_.name for field_ in fields(self)])
        values: Tensor | None = getattr(self, field)
        if values is None:
            raise ValueError(
                f"{field} was not computed: measures were {', '.join(self.measures)}. Ask for "
                f"measures={measure_of(field)!r} as well."
            )
        return values

    def utterance(self) -> UtteranceScores:
        """Pool frames to one number per estimate; NaN for measures that were not computed.

        The paper pools PM by its plain mean [eq:avg_pooling_pm].
        """
        size, device = self.active.shape[:2], self.active.device
        undefined = torch.full(size, torch.nan, dtype=torch.float32, device=device)
        pooled = {
            name: undefined if getattr(self, score.frame_field) is None else self._pooled(score)
            for name, score in SCORES.items()
            if score.frame_field is not None
        }
        return UtteranceScores(**pooled, frames=self.active.sum(-1))

    def _pooled(self, score: Score) -> Tensor:
        """(B, S') a score pooled over its frames."""
        assert score.frame_field is not None
        assert score.pooling is not None
        defined = self.defined(score.frame_field)
        value: Tensor = getattr(pooling, score.pooling)(self.of(score.frame_field), defined)
        if score.needs_majority:
            enough = 2 * defined.sum(-1) >= self.active.sum(-1)
            value = torch.where(enough, value, torch.nan)
        return value

    def detach(self) -> Scores:
        """The same numbers without a graph."""
        values = {f.name: getattr(self, f.name) for f in fields(self)}
        tensors = {name: x.detach() for name, x in values.items() if isinstance(x, Tensor)}
        return replace(self, **tensors)  # type: ignore[arg-type]


class ScoreBounds(NamedTuple):
    """Result of :meth:`torch_mapss.MAPSS.bounds`; None where a measure was not computed."""

    active: Tensor  # (B, S', F) bool, as in :class:`Scores`
    confidence: float
    clearance: Bounds | None = None  # radius 0, tail: jackknife over distortions
    fidelity: Bounds | None = None  # likewise
    ps: Bounds | None = None
    pm: Bounds | None = None
    utterance_clearance: Bounds | None = None  # (B, S') of the mean: jackknife of the pooled score
    utterance_fidelity: Bounds | None = None  # (B, S') of 1 - RMS(1 - F), likewise
    scores: Scores | None = None  # from the same maps; None if the bounds need other maps

    def of(self, field: str) -> Bounds:
        """The bounds of a field of :class:`Scores`.

        Raises:
            ValueError: the field has no bounds, or its measure was not computed.
        """
        checks.check_choice(field, "field", BOUNDED)
        bounds: Bounds | None = getattr(self, field)
        if bounds is None:
            raise ValueError(
                f"bounds of {field} were not computed. Ask for measures={measure_of(field)!r} as "
                "well."
            )
        return bounds
