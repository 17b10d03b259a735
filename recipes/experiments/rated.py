"""Scores held against listeners: correlations by track, with intervals over tracks.

Ratings are the CSV of ``torch-mapss correlate``: ``track, system, question, mean_rating``, and
``source`` where there are several. ``track`` is the manifest's mixture_id; where outputs of several
mixtures were rated against each other (one condition a mixture), a further column names what they
have in common. Systems called ``control:NAME`` are hidden references and anchors.
"""

from __future__ import annotations

import csv
import math
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import toolkit
from numpy.typing import NDArray
from scipy import stats
from torch import Tensor

METHODS: dict[str, Callable[..., Any]] = {"SRCC": stats.spearmanr, "PCC": stats.pearsonr}
CONTROL = "control:"


class Estimate(NamedTuple):
    """A mean over tracks with its interval."""

    value: float
    low: float  # of the 95 % interval over tracks (BCa bootstrap)
    high: float
    tracks: int

    def __str__(self) -> str:
        if math.isnan(self.low):
            return toolkit.number(self.value)
        return f"{self.value:.2f} [{self.low:.2f}, {self.high:.2f}]"


class Ratings:
    """Mean ratings of outputs.

    Args:
        path: of the CSV file.
        unit: column over whose outputs correlations are taken.

    Raises:
        SystemExit: the file lacks a column.
    """

    def __init__(self, path: Path, unit: str = "track") -> None:
        with open(path, encoding="utf-8-sig", newline="") as file:
            rows = list(csv.DictReader(file))
        lacking = {"track", "system", "question", "mean_rating", unit} - set(
            rows[0] if rows else ()
        )
        if lacking:
            raise SystemExit(f"{path} lacks the columns {', '.join(sorted(lacking))}.")
        self.questions = tuple(dict.fromkeys(row["question"] for row in rows))
        self._found: dict[tuple[str, str, str], dict[str, float]] = {}
        self._units: dict[str, str] = {}
        for row in rows:
            self._units[row["track"]] = row[unit]
            key = row["track"], row["system"].removeprefix(CONTROL), row.get("source") or ""
            self._found.setdefault(key, {})[row["question"]] = float(row["mean_rating"])

    def unit(self, track: str) -> str:
        """What a track is compared within."""
        return self._units.get(track, track)

    def of(self, track: str, system: str, source: str) -> dict[str, float]:
        """By question; of a track with ratings of one source, whatever its name is."""
        name = track, system.removeprefix(CONTROL)
        exact = self._found.get((*name, source))
        if exact is None:
            fitting = [said for key, said in self._found.items() if key[:2] == name]
            exact = fitting[0] if len(fitting) == 1 else {}
        return exact

    def outputs(
        self, mixture: toolkit.Mixture, controls: bool = False
    ) -> Iterator[tuple[str, int, Tensor]]:
        """System, source and wave of every output that was rated."""
        for system, place, output in mixture.outputs(controls):
            if self.of(mixture.name, system, mixture.sources[place]):
                yield system, place, output


# ------------------------------------------------------------------------------------------------
# Correlations
# ------------------------------------------------------------------------------------------------

Row = Mapping[str, str]


def by_track(
    rows: Iterable[Row], measure: str, question: str, ratings: Ratings, method: str = "SRCC"
) -> dict[tuple[str, str], float]:
    """Correlation over the systems of every unit and source, where it is defined.

    Args:
        rows: with ``mixture``, ``system``, ``source`` and the measure; controls are left out.
        measure: column of the scores.
        question: of the ratings.
        ratings: of the outputs.
        method: a key of `METHODS`.
    """
    pairs: dict[tuple[str, str], list[tuple[float, float]]] = {}
    for row in rows:
        said = ratings.of(row["mixture"], row["system"], row["source"])
        score = float(row[measure] or "nan")
        if question in said and math.isfinite(score) and not row["system"].startswith(CONTROL):
            unit = ratings.unit(row["mixture"]), row["source"]
            pairs.setdefault(unit, []).append((score, said[question]))
    found = {unit: _correlated(np.array(both), method) for unit, both in pairs.items()}
    return {unit: value for unit, value in found.items() if math.isfinite(value)}


def _correlated(pairs: NDArray[Any], method: str) -> float:
    if len(pairs) < 3 or (np.ptp(pairs, axis=0) == 0).any():
        return math.nan
    return float(METHODS[method](*pairs.T)[0])


def averaged(values: Iterable[float]) -> Estimate:
    """Mean with its interval over tracks."""
    found = np.array(list(values))
    mean = float(found.mean()) if len(found) else math.nan
    if len(found) < 3 or np.ptp(found) == 0:
        return Estimate(mean, math.nan, math.nan, len(found))
    drawn = stats.bootstrap((found,), np.mean, rng=np.random.default_rng(toolkit.SEED))
    low, high = map(float, drawn.confidence_interval)
    return Estimate(mean, low, high, len(found))


def difference(one: Mapping[Any, float], other: Mapping[Any, float]) -> Estimate:
    """By how much the first correlates better, paired over tracks."""
    return averaged(one[track] - other[track] for track in one if track in other)


def by_condition(
    rows: toolkit.Rows,
    column: str,
    measures: Sequence[str],
    ratings: Ratings,
    **here: str,
) -> dict[str, list[Estimate]]:
    """Each condition, a value of ``column`` -> SRCC of the measures with a question.

    Args:
        rows: of all conditions.
        column: that names the condition.
        measures: columns of scores.
        ratings: of the outputs.
        here: ``question``, and values of other columns.
    """
    question = here.pop("question")
    found = {}
    for name in rows.distinct(column):
        inside = rows.where(**here, **{column: name})
        tracks = [by_track(inside, measure, question, ratings) for measure in measures]
        found[name] = [averaged(track.values()) for track in tracks]
    return found


def misplaced(
    rows: Sequence[Row], measure: str, question: str, ratings: Ratings
) -> dict[str, list[float]]:
    """By how many ranks each system is placed higher than by the listeners, in each unit."""
    units: dict[tuple[str, str], list[tuple[str, float, float]]] = {}
    for row in rows:
        said = ratings.of(row["mixture"], row["system"], row["source"])
        score = float(row[measure] or "nan")
        if question in said and math.isfinite(score) and not row["system"].startswith(CONTROL):
            unit = ratings.unit(row["mixture"]), row["source"]
            units.setdefault(unit, []).append((row["system"], score, said[question]))
    found: dict[str, list[float]] = {}
    for group in units.values():
        systems, scores, rated = zip(*group)
        for system, off in zip(systems, stats.rankdata(scores) - stats.rankdata(rated)):
            found.setdefault(system, []).append(float(off))
    return found
