"""Correlations of scores with listeners' ratings, by track, with intervals over tracks.

Ratings are the CSV file of ``torch-mapss correlate``: ``track, system, question, mean_rating``, and
``source`` where a track has several. ``track`` is the manifest's mixture_id; where outputs of
several mixtures were rated against each other (one condition a mixture), a further column names
what they have in common. Systems called ``control:NAME`` are hidden references and anchors.

Correlations and intervals are those of :mod:`torch_mapss.evaluation.correlation_stats`.
"""

from __future__ import annotations

import argparse
import itertools
import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import pandas as pd
import toolkit
from scipy import stats
from torch import Tensor

from torch_mapss.evaluation import correlation_stats
from torch_mapss.evaluation.correlation_stats import CorrelationSettings, SampledCorrelation

METHODS = {"srcc": "SRCC", "pcc": "PCC"}
CONTROL = "control:"
SETTINGS = CorrelationSettings(seed=toolkit.SEED)

Row = Mapping[str, str]


class Estimate(NamedTuple):
    """A correlation, or a difference of two, with its interval."""

    value: float
    low: float  # of the 95 % interval over tracks (BCa bootstrap)
    high: float
    tracks: int  # number of units: a source of a track is one

    def __str__(self) -> str:
        if not (math.isfinite(self.low) and math.isfinite(self.high)):
            return toolkit.number(self.value)
        return f"{self.value:.2f} [{self.low:.2f}, {self.high:.2f}]"


def add_unit_option(parser: argparse.ArgumentParser) -> None:
    """The column over whose outputs correlations are taken."""
    parser.add_argument(
        "--unit",
        default="track",
        metavar="COLUMN",
        help="of the ratings: outputs with one value of it are compared (default: %(default)s)",
    )


UNDEFINED = Estimate(math.nan, math.nan, math.nan, 0)


class Ratings:
    """Mean ratings of outputs.

    Args:
        path: CSV file of ratings.
        unit: column of the file; outputs with one value of it are compared with each other.

    Raises:
        SystemExit: the file lacks a column.
    """

    def __init__(self, path: Path, unit: str = "track") -> None:
        table = pd.read_csv(path, dtype=str, keep_default_na=False, encoding="utf-8-sig")
        missing = {"track", "system", "question", "mean_rating", unit} - set(table)
        if missing:
            raise SystemExit(f"{path} lacks the columns {', '.join(sorted(missing))}.")
        self.questions = tuple(table["question"].unique())
        self._units = dict(zip(table["track"], table[unit]))
        self._by_output: dict[tuple[str, str, str], dict[str, float]] = {}
        for row in table.to_dict("records"):
            key = row["track"], row["system"].removeprefix(CONTROL), row.get("source", "")
            self._by_output.setdefault(key, {})[row["question"]] = float(row["mean_rating"])

    def unit(self, track: str) -> str:
        """The value of the unit's column for a track."""
        return self._units.get(track, track)

    def of(self, track: str, system: str, source: str) -> dict[str, float]:
        """Question -> mean rating; where a track has one rated source, its name may differ."""
        output = track, system.removeprefix(CONTROL)
        if (*output, source) in self._by_output:
            return self._by_output[(*output, source)]
        candidates = [rating for key, rating in self._by_output.items() if key[:2] == output]
        return candidates[0] if len(candidates) == 1 else {}

    def outputs(
        self, mixture: toolkit.Mixture, controls: bool = False
    ) -> Iterator[tuple[str, int, Tensor]]:
        """System, source index and waveform (T,) of every output that was rated."""
        for system, source_index, output in mixture.outputs(controls):
            if self.of(mixture.name, system, mixture.sources[source_index]):
                yield system, source_index, output


# ------------------------------------------------------------------------------------------------
# Correlations
# ------------------------------------------------------------------------------------------------


def stimuli(
    rows: Iterable[Row], measures: Sequence[str], question: str, ratings: Ratings
) -> pd.DataFrame:
    """One line per rated output of a system, as `correlation_stats` takes them.

    Args:
        rows: with ``mixture``, ``system``, ``source`` and the measures; controls are left out.
        measures: columns of scores.
        question: which question of the ratings.
        ratings: mean ratings of the outputs.

    Returns:
        Indexed by mixture, system and source: ``unit_name`` and its number ``unit``, ``cluster``,
        ``rating`` and the measures, NaN where undefined.
    """
    lines = []
    for row in rows:
        rating = ratings.of(row["mixture"], row["system"], row["source"])
        if question in rating and not row["system"].startswith(CONTROL):
            unit = ratings.unit(row["mixture"])
            scores = {name: float(row.get(name) or "nan") for name in measures}
            output = {name: row[name] for name in ("mixture", "system", "source")}
            unit_name = f"{unit} {row['source']}"
            lines.append(
                {**output, "track": unit, "unit_name": unit_name, "rating": rating[question]}
                | scores
            )
    keys = ["mixture", "system", "source"]
    table = pd.DataFrame(lines, columns=[*keys, "track", "unit_name", "rating", *measures])
    table = table.assign(unit=table["unit_name"].factorize()[0])
    return table.assign(cluster=table["track"].factorize()[0]).set_index(keys)


def correlation(
    table: pd.DataFrame, *measures: str, method: str = "srcc", pooling: str = "per_track"
) -> Estimate:
    """Correlation of a measure with the ratings, or the difference of two such correlations.

    Args:
        table: from `stimuli`.
        measures: one column of scores; or two, then the correlation of the first minus that of the
            second, over the outputs that have both.
        method: a key of `METHODS`.
        pooling: ``"per_track"`` averages the correlations within tracks and sources, ``"pooled"``
            is one correlation over all outputs.
    """
    if table[[*measures]].isna().any(axis=1).all():
        return UNDEFINED
    usable, _ = correlation_stats.usable_stimuli(table, measures, pooling)
    terms = [SampledCorrelation(usable, name, method) for name in measures]
    values = [term.value for term in terms]
    value = values[0] - values[1] if len(values) > 1 else values[0]
    count = usable["unit"].nunique() if pooling == "per_track" else len(usable)
    if math.isnan(value) or len(terms[0].clusters) < 2:
        return Estimate(value, math.nan, math.nan, count)
    (low,), (high,) = correlation_stats.intervals([terms], SETTINGS)
    return Estimate(value, float(low), float(high), count)


def lowest_correlation(table: pd.DataFrame, measures: Sequence[str]) -> float:
    """The lowest of SRCC and PCC of some measures, averaged over tracks and sources."""
    values = [
        correlation(table, name, method=method).value
        for name, method in itertools.product(measures, METHODS)
    ]
    return min(values)


def by_unit(table: pd.DataFrame, measure: str, method: str = "srcc") -> dict[str, float]:
    """Unit -> correlation over its systems, where it is defined; a unit is a source of a track."""
    usable, _ = correlation_stats.usable_stimuli(table, [measure], "per_track")
    return {
        str(name): SampledCorrelation(group, measure, method).value
        for name, group in usable.groupby("unit_name", sort=False)
    }


def by_condition(
    rows: toolkit.Rows,
    column: str,
    measures: Sequence[str],
    ratings: Ratings,
    *,
    question: str,
    **values: Any,
) -> dict[str, list[Estimate]]:
    """Condition (a value of ``column``) -> SRCC of each measure with a question.

    Args:
        rows: scores under all conditions.
        column: names the condition.
        measures: columns of scores.
        ratings: mean ratings of the outputs.
        question: which question of the ratings.
        values: of other columns; only rows that have them count.
    """
    estimates = {}
    for condition in rows.distinct(column):
        rows_of_condition = rows.where(**values, **{column: condition})
        table = stimuli(rows_of_condition, measures, question, ratings)
        estimates[condition] = [correlation(table, name) for name in measures]
    return estimates


def misplaced(table: pd.DataFrame, measure: str) -> dict[str, list[float]]:
    """System -> by how many ranks it is placed higher than by the listeners, in each unit."""
    offsets: dict[str, list[float]] = {}
    for _, group in table.dropna(subset=measure).groupby("unit_name", sort=False):
        offset = stats.rankdata(group[measure]) - stats.rankdata(group["rating"])
        for system, ranks in zip(group.index.get_level_values("system"), offset):
            offsets.setdefault(system, []).append(float(ranks))
    return offsets
