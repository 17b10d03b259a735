"""The measures: how each family of scores is computed, as one record of :data:`MEASURES`.

:mod:`torch_mapss.score_table` describes the scores themselves: names, ranges, meaning. A new
measure is a record here and its score function in :mod:`torch_mapss.core`; its fields are those of
:class:`~torch_mapss.Scores`. Preparing, scoring in memory and in segments, ``measures=`` and banks
on disk follow from the record.
"""

from __future__ import annotations

import functools
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from torch_mapss.core.decomposition import decomposition_scores
from torch_mapss.core.frame_batches import ScoreFunction
from torch_mapss.core.match import match_scores
from torch_mapss.core.separation import separation_scores
from torch_mapss.score_table import ENERGY_MEASURES, SCORES, scores_of


@dataclass(frozen=True)
class Measure:
    """A family of frame scores: its inputs, its score function and the fields that it fills.

    ``encoder`` and ``bank`` name arguments of :class:`~torch_mapss.MAPSS`; a measure without them
    reads only waveforms. Bounds for a measure with an encoder are made by ``NAME_errors`` in
    :mod:`torch_mapss.bounds.frames`; d of a map is the field ``NAME_dimension`` of the scores.
    """

    name: str
    # Fields of Scores that are not pooled; the mask FIELD_defined marks where each has a value.
    unscored: tuple[str, ...] = ()
    encoder: str = ""
    bank: str = ""
    score: ScoreFunction | None = None  # score function: points of frames -> fields by name
    least_members: int = 0  # fewest distortions in a cluster
    others: bool = False  # whether it reads the sum of the other references
    in_pauses: bool = False  # whether frames are scored in which the own source pauses
    spectrum: bool = False  # whether it takes an eigendecomposition, of d coordinates

    @functools.cached_property
    def fields(self) -> tuple[str, ...]:
        """Fields (B, S', F) of Scores that it fills: values in the table's order, then masks."""
        pooled = [SCORES[name] for name in scores_of([self.name])]
        values = dict.fromkeys(score.frame_field for score in pooled if score.frame_field)
        masks = dict.fromkeys(score.defined_field for score in pooled)
        own_masks = [name for name in masks if name != "active"]
        return (*values, *self.unscored, *own_masks, *map(mask_of, self.unscored))


def mask_of(unscored: str) -> str:
    """The field that says where a field without a score has a value."""
    return f"{unscored}_defined"


_ALL = (
    Measure(
        "decomposition",
        unscored=("distortion_ratio",),  # fidelity without its cap, for losses
        encoder="decomposition_encoder",
        bank="decomposition_bank",
        score=decomposition_scores,
        least_members=1,
        others=True,
        in_pauses=True,
    ),
    Measure(
        "separation",
        encoder="encoder",
        bank="separation_bank",
        score=separation_scores,
        least_members=1,  # PS takes the covariance of these and the reference
        spectrum=True,
    ),
    Measure(
        "match",
        encoder="match_encoder",
        bank="match_bank",
        score=match_scores,
        least_members=2,  # PM takes their variance
        spectrum=True,
    ),
    Measure("bleed"),
)

#: All measures by name, in the order of every table.
MEASURES: dict[str, Measure] = {measure.name: measure for measure in _ALL}


def measure_of(name: str) -> str:
    """Name of the measure that a score or another field of :class:`~torch_mapss.Scores` is from."""
    if name in SCORES:
        return SCORES[name].measure
    for measure in _ALL:
        if name in (*measure.fields, f"{measure.name}_dimension"):
            return measure.name
    return name


def checked_measures(
    measures: str | Iterable[str] | None, beside: Sequence[str] = ()
) -> tuple[str, ...]:
    """Names of measures in the order of :data:`MEASURES`; None: all.

    Args:
        measures: names of measures, or of scores, which stand for their measure.
        beside: names of measures that the caller computes itself; they come last.

    Raises:
        TypeError: neither a name nor several names.
        ValueError: a name is neither a measure nor a score, or there is none.
    """
    if measures is None:
        return tuple(MEASURES)
    names = (measures,) if isinstance(measures, str) else measures
    if not isinstance(names, Iterable):
        raise TypeError(f"measures must be a name or several, got {measures!r}.")
    computed = (*MEASURES, *beside)
    chosen: set[str] = set()
    for name in names:
        measure = measure_of(name) if isinstance(name, str) else None
        if measure not in computed:
            scores = ", ".join(scores_of(computed))
            elsewhere = measure in ENERGY_MEASURES
            hint = " Energy ratios are computed by torch_mapss.evaluate." if elsewhere else ""
            raise ValueError(
                f"measures must be names of measures ({', '.join(computed)}) or of their scores "
                f"({scores}), got {name!r}.{hint}"
            )
        chosen.add(measure)
    if not chosen:
        raise ValueError(f"measures must name at least one of {', '.join(computed)}, got none.")
    return tuple(name for name in computed if name in chosen)


def with_encoder(measures: Iterable[str]) -> list[Measure]:
    """Records of the named measures that compare embeddings."""
    return [MEASURES[name] for name in measures if MEASURES[name].encoder]
