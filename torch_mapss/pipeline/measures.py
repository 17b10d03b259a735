"""The measures: each is one record of :data:`MEASURES`.

A new one is a record here and its score function in :mod:`torch_mapss.core`; its fields are those
of :class:`~torch_mapss.Scores`, its columns those of ``UtteranceScores``. Preparing, scoring in
memory and in segments, ``measures=`` and banks on disk follow from the record; bounds, a metric and
a term of the losses are added where those of the others are.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from torch_mapss.core import checks
from torch_mapss.core.decomposition import decomposition_scores
from torch_mapss.core.frame_batches import Score
from torch_mapss.core.match import match_scores
from torch_mapss.core.separation import separation_scores


@dataclass(frozen=True)
class Measure:
    """What is computed of every frame, from what, and where it goes.

    ``encoder`` and ``bank`` name arguments of :class:`~torch_mapss.MAPSS`; a measure without them
    reads waveforms alone. Bounds of those with an encoder are made by ``NAME_errors`` in
    :mod:`torch_mapss.bounds.frames`; d of a map is the field ``NAME_dimension`` of the scores.
    """

    name: str
    fields: tuple[str, ...]  # of Scores that it fills, (B, S', F); those to be shown come first
    columns: tuple[str, ...]  # of UtteranceScores
    encoder: str | None = None
    bank: str | None = None
    score: Score | None = None  # points of frames -> fields by name
    least_members: int = 0  # distortions that a cluster needs
    others: bool = False  # whether it reads the sum of the other references
    spectrum: bool = False  # whether it takes an eigendecomposition, of d coordinates


_ALL = (
    Measure(
        "decomposition",
        ("clearance", "fidelity", "distortion_ratio", "clearance_defined", "fidelity_defined"),
        ("clearance", "fidelity"),
        encoder="decomposition_encoder",
        bank="decomposition_bank",
        score=decomposition_scores,
        least_members=1,
        others=True,
    ),
    Measure(
        "separation",
        ("ps", "attributed_distance", "foreign_distance"),
        ("ps", "ps_pesq"),
        encoder="encoder",
        bank="separation_bank",
        score=separation_scores,
        least_members=1,  # PS takes a covariance of them and the reference
        spectrum=True,
    ),
    Measure(
        "match",
        ("pm", "log_pm"),
        ("pm", "log_pm", "log_pm_compressed"),
        encoder="match_encoder",
        bank="match_bank",
        score=match_scores,
        least_members=2,  # PM takes a variance of them
        spectrum=True,
    ),
    Measure("bleed", ("bleed_db",), ("bleed_db",)),
)

#: All measures by name, in the order of every table.
MEASURES: dict[str, Measure] = {measure.name: measure for measure in _ALL}
#: The measure that gives a score of frames or of utterances.
MEASURE_OF = {
    score: m.name for m in _ALL for score in (*m.fields, *m.columns, f"{m.name}_dimension")
}


def checked_measures(measures: str | Iterable[str] | None) -> tuple[str, ...]:
    """Names of measures in the order of :data:`MEASURES`; None: all.

    Raises:
        TypeError: neither a name nor several.
        ValueError: a name that is no measure, or none at all.
    """
    if measures is None:
        return tuple(MEASURES)
    given = (measures,) if isinstance(measures, str) else measures
    if not isinstance(given, Iterable):
        raise TypeError(f"measures must be a name or several, got {measures!r}.")
    names = list(given)
    for name in names:
        if name in MEASURE_OF:
            measure = MEASURE_OF[name]
            raise ValueError(
                f"{name!r} is a score of measure {measure!r}: pass measures={measure!r}."
            )
        checks.check_choice(name, "measures", tuple(MEASURES))
    if not names:
        raise ValueError(f"measures must name at least one of {', '.join(MEASURES)}, got none.")
    return tuple(name for name in MEASURES if name in names)


def with_encoder(measures: Iterable[str]) -> list[Measure]:
    """Those of the measures that compare embeddings."""
    return [MEASURES[name] for name in measures if MEASURES[name].encoder is not None]
