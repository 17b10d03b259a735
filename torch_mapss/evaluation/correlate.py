"""Do scores agree with listeners? Results of ``evaluate`` and ratings -> correlations.

For every scenario, question and measure: SRCC and PCC over the systems of a track and source,
averaged as the paper does, and pooled over all stimuli beside it; intervals, p-values, and what the
errors of the scores themselves may change (radius and half-width [sec:propagate_ci_to_corr]).
"""

from __future__ import annotations

import csv
import itertools
import math
import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from torch_mapss.bounds import correlation as propagation
from torch_mapss.bounds.frames import check_confidence
from torch_mapss.evaluation import association, correlation_errors, files
from torch_mapss.evaluation.association import METHODS, POOLINGS, Cell, Data
from torch_mapss.evaluation.measures import LABELS as _LABELS
from torch_mapss.evaluation.measures import RANK, columns_of
from torch_mapss.evaluation.ratings import Joined, Scored, Stimulus, join, load_ratings
from torch_mapss.evaluation.results import load_results, records
from torch_mapss.evaluation.significance import holm

if TYPE_CHECKING:
    from matplotlib.figure import Figure

MEASURES = ("ps", "ps_pesq", "pm", "log_pm", RANK, "foreign_distance", "log_foreign_distance")
"""Measures that are correlated, where the results have them."""

LABELS = {**_LABELS, "ps_pesq": "PS (PESQ-like pooling)"}
BOUNDED = ("ps", "ps_pesq", "pm")
COLUMNS = (
    "scenario",
    "question",
    "measure",
    "pooling",
    "tracks",
    "sources",
    "stimuli",
    "srcc",
    "srcc_low",
    "srcc_high",
    "pcc",
    "pcc_low",
    "pcc_high",
    "p",
    "p_pcc",
    "p_holm",
    "srcc_radius",
    "srcc_half_width",
    "pcc_radius",
    "pcc_half_width",
    "undefined",
    "reason",
)
DIFFERENCES = (
    "scenario",
    "question",
    "pooling",
    "method",
    "measure_a",
    "measure_b",
    "tracks",
    "difference",
    "low",
    "high",
)
UNITS = ("scenario", "question", "track", "source", "measure", "systems", "srcc", "pcc")


class Options(NamedTuple):
    """How correlations are computed."""

    confidence: float = 0.95
    draws: int = 2000  # of the bootstrap and of the permutations
    seed: int = 0
    convention: str = "derived"  # of radius and half-width: or as printed in the "paper"
    source_correlation: float = 0.0  # ρ_l: of the errors of the sources of one track


@dataclass(frozen=True, eq=False)
class Correlation:
    """Correlations with listeners, and the stimuli behind them."""

    rows: tuple[dict[str, Any], ...]  # `COLUMNS`, one per scenario, question, measure, pooling
    differences: tuple[dict[str, Any], ...]  # `DIFFERENCES`, between measures
    units: tuple[dict[str, Any], ...]  # `UNITS`, one per track and source
    stimuli: tuple[Stimulus, ...]
    labels: Mapping[str, str]  # measure -> name in tables
    notes: tuple[str, ...]
    options: Options

    def table(self) -> list[dict[str, Any]]:
        """The rows of ``correlations.csv``, e.g. for ``pandas.DataFrame``."""
        return [dict(row) for row in self.rows]

    def summary(self) -> str:
        """A table for each scenario and question, to print."""
        from torch_mapss.evaluation import correlation_tables

        return correlation_tables.summary(self)

    def plot(self, question: str | None = None) -> Figure:
        """Scatter plots of ratings over scores, a panel for each measure; one question's."""
        from torch_mapss.evaluation import correlation_tables

        return correlation_tables.scatter(self, question)

    def save(self, folder: str | os.PathLike[str]) -> str:
        """Write the tables (CSV, Markdown, LaTeX) and scatter plots to a folder.

        Returns:
            The folder.

        Raises:
            ValueError: the folder is a file, or cannot be made.
        """
        from torch_mapss.evaluation import correlation_tables

        return correlation_tables.save(self, folder)


def correlate(
    results: str | os.PathLike[str],
    ratings: str | os.PathLike[str],
    *,
    columns: Mapping[str, str] | None = None,
    sources: Mapping[str, str] | None = None,
    controls: bool = False,
    rivals: Sequence[str | os.PathLike[str]] = (),
    measures: Sequence[str] | None = None,
    confidence: float = 0.95,
    draws: int = 2000,
    seed: int = 0,
    convention: str = "derived",
    source_correlation: float = 0.0,
) -> Correlation:
    """Correlate the scores of a results folder with ratings.

    Args:
        results: folder of ``torch-mapss evaluate``.
        ratings: CSV file, see :func:`torch_mapss.evaluation.ratings.load_ratings`.
        columns: names of its columns where they are not the usual ones.
        sources: source of the results -> source of the ratings, where names differ.
        controls: count hidden references and anchors too.
        rivals: CSV files of other measures of the same outputs: ``mixture_id, system,
            source_index`` and one column per measure.
        measures: only these; all there are by default.
        confidence: of intervals and half-widths, in (0, 1).
        draws: of bootstrap and permutations; p is at least 1/(draws + 1). 0: none of both.
        seed: of both.
        convention: of radius and half-width of the correlations where the results have bounds:
            ``"derived"``, or ``"paper"`` as printed.
        source_correlation: ρ_l in [-1, 1] of [eq:scenario_halfwidth_pcc].

    Returns:
        A :class:`Correlation`.

    Raises:
        ValueError: files that cannot be read or do not belong together, settings out of range.
    """
    options = _checked(Options(confidence, draws, seed, convention, source_correlation))
    outputs = scored_outputs(results, rivals)
    joined = join(outputs, load_ratings(ratings, columns), sources=sources, controls=controls)
    return correlate_stimuli(joined, measures, options)


def _checked(options: Options) -> Options:
    check_confidence(options.confidence)
    if options.convention not in propagation.CONVENTIONS:
        raise ValueError(
            f"convention must be of {', '.join(propagation.CONVENTIONS)}, got "
            f"{options.convention!r}."
        )
    if options.draws < 0:
        raise ValueError(f"draws must be at least 0, got {options.draws}.")
    if not -1.0 <= options.source_correlation <= 1.0:
        raise ValueError(
            f"source_correlation must lie in [-1, 1], got {options.source_correlation}."
        )
    return options


# ------------------------------------------------------------------------------------------------
# Results
# ------------------------------------------------------------------------------------------------


def scored_outputs(
    results: str | os.PathLike[str], rivals: Sequence[str | os.PathLike[str]] = ()
) -> list[Scored]:
    """The outputs of a results folder, with the scores of other measures beside them.

    Raises:
        ValueError: no folder of results, or a table without the columns that name an output.
    """
    others: dict[tuple[str, str, str], dict[str, float]] = {}
    for path in rivals:
        for line in _read(path, ("mixture_id", "system", "source_index")):
            names = "mixture_id", "system", "source_index", "source"
            values = {k: _number(v) for k, v in line.items() if k not in names}
            key = line["mixture_id"], line["system"], line["source_index"]
            others.setdefault(key, {}).update(values)
    found = []
    rows = records(load_results(results).scores)
    there = columns_of(MEASURES, rows)
    for row in rows:
        if row["status"] == "failed":
            continue
        scores = {n: _number(row[n]) for n in MEASURES if n in row and n in there}
        scores |= others.get((row["mixture_id"], row["system"], str(row["source_index"])), {})
        bounds = {
            name: (_number(row[f"{name}_radius"]), _number(row[f"{name}_tail"]))
            for name in BOUNDED
            if row.get(f"{name}_radius") is not None and row.get(f"{name}_tail") is not None
        }
        found.append(Scored(row["mixture_id"], row["system"], row["source"], scores, bounds))
    if not found:
        raise ValueError(f"{files.shown(results)!r} holds no scored output.")
    return found


def _read(path: str | os.PathLike[str], needed: Sequence[str]) -> list[dict[str, str]]:
    try:
        with open(path, encoding="utf-8", newline="") as file:
            reader = csv.DictReader(file)
            missing = [name for name in needed if name not in (reader.fieldnames or ())]
            rows = list(reader)
    except (OSError, UnicodeDecodeError) as error:
        raise ValueError(f"{files.shown(path)!r} cannot be read: {error}.") from None
    if missing:
        raise ValueError(f"{files.shown(path)!r} lacks the column(s) {', '.join(missing)}.")
    return rows


def _number(cell: str | float | None) -> float:
    """A finite number, else NaN: an empty cell, ``nan``, or the logarithm of 0."""
    try:
        value = math.nan if cell is None or cell == "" else float(cell)
    except ValueError:
        return math.nan
    return value if math.isfinite(value) else math.nan


# ------------------------------------------------------------------------------------------------
# Correlations
# ------------------------------------------------------------------------------------------------


def correlate_stimuli(
    joined: Joined, measures: Sequence[str] | None = None, options: Options | None = None
) -> Correlation:
    """Correlations of stimuli that have their scores already.

    Args:
        joined: of :func:`torch_mapss.evaluation.ratings.join`.
        measures: only these; all that any stimulus has by default, own ones first.
        options: how.

    Raises:
        ValueError: a measure that no stimulus has.
    """
    options = options or Options()
    there = dict.fromkeys(name for stimulus in joined.stimuli for name in stimulus.scores)
    names = [name for name in MEASURES if name in there]
    names += [name for name in there if name not in MEASURES]
    if measures is not None:
        unknown = [name for name in measures if name not in there]
        if unknown:
            raise ValueError(
                f"no {', '.join(unknown)} in the results; they have {', '.join(names)}."
            )
        names = list(measures)
    rows, differences, units = [], [], []
    for scenario, question, stimuli in grouped(joined.stimuli):
        where = {"scenario": scenario, "question": question}
        data = {name: data_of(stimuli, name) for name in names}
        for pooling in POOLINGS:
            here = [_row(where, stimuli, name, pooling, data[name], options) for name in names]
            for row, p in zip(here, holm(np.array([row["p"] for row in here]))):
                row["p_holm"] = float(p)
            rows += here
            differences += _differences(where, pooling, data, options)
        units += [unit for name in names for unit in _units(where, stimuli, name, data[name])]
    labels = {name: LABELS.get(name, name) for name in names}
    return Correlation(
        tuple(rows),
        tuple(differences),
        tuple(units),
        joined.stimuli,
        labels,
        joined.notes,
        options,
    )


def grouped(stimuli: Sequence[Stimulus]) -> list[tuple[str, str, list[Stimulus]]]:
    """The stimuli of every scenario and question, in order of appearance."""
    found: dict[tuple[str, str], list[Stimulus]] = {}
    for stimulus in stimuli:
        found.setdefault((stimulus.scenario, stimulus.question), []).append(stimulus)
    return [(*key, group) for key, group in found.items()]


def data_of(stimuli: Sequence[Stimulus], measure: str) -> Data:
    """Scores and ratings as arrays."""
    tracks = {name: k for k, name in enumerate(dict.fromkeys(s.track for s in stimuli))}
    units = {key: k for k, key in enumerate(dict.fromkeys((s.track, s.source) for s in stimuli))}
    return Data(
        np.array([s.scores.get(measure, math.nan) for s in stimuli]),
        np.array([s.rating for s in stimuli]),
        np.array([units[s.track, s.source] for s in stimuli]),
        np.array([tracks[s.track] for s in stimuli]),
    )


def _row(
    where: Mapping[str, str],
    stimuli: Sequence[Stimulus],
    measure: str,
    pooling: str,
    data: Data,
    options: Options,
) -> dict[str, Any]:
    kept = association.usable(data, pooling)
    row: dict[str, Any] = {**where, "measure": measure, "pooling": pooling}
    row |= {"tracks": len(np.unique(kept.track)), "sources": len(np.unique(kept.unit))}
    row |= {"stimuli": len(kept.scores), "undefined": len(data.scores) - len(kept.scores)}
    for method, p in zip(METHODS, ("p", "p_pcc")):
        found = association.estimate(
            Cell(kept, pooling, method),
            confidence=options.confidence,
            draws=options.draws,
            seed=options.seed,
        )
        row |= {method: found.value, f"{method}_low": found.low, f"{method}_high": found.high}
        row |= {p: found.p, "reason": found.reason}
    bounds = np.array([s.bounds.get(measure, (math.nan, math.nan)) for s in stimuli])
    return row | correlation_errors.propagated(
        data,
        bounds,
        np.isin(data.unit, kept.unit) & np.isfinite(data.scores),
        pooling,
        confidence=options.confidence,
        convention=options.convention,
        rho=options.source_correlation,
        seed=options.seed,
    )


def _differences(
    where: Mapping[str, str], pooling: str, data: Mapping[str, Data], options: Options
) -> list[dict[str, Any]]:
    """Every measure of this library against every other one."""
    found: list[dict[str, Any]] = []
    if options.draws < 1:
        return found
    for a, b in itertools.combinations(data, 2):
        if a not in MEASURES and b not in MEASURES:
            continue
        for method in METHODS:
            value, low, high, tracks = association.difference(
                data[a],
                data[b],
                pooling,
                method,
                confidence=options.confidence,
                draws=min(options.draws, 1000),
                seed=options.seed,
            )
            row = {**where, "pooling": pooling, "method": method, "measure_a": a, "measure_b": b}
            found.append({**row, "tracks": tracks, "difference": value, "low": low, "high": high})
    return found


def _units(
    where: Mapping[str, str], stimuli: Sequence[Stimulus], measure: str, data: Data
) -> list[dict[str, Any]]:
    """The correlation of every track and source."""
    names = {int(u): (s.track, s.source) for u, s in zip(data.unit, stimuli)}
    found = []
    for unit, (track, source) in names.items():
        here = (data.unit == unit) & np.isfinite(data.scores)
        values = data.scores[here], data.ratings[here]
        both = {m: association.correlation(*values, m) for m in METHODS}
        if here.sum() < association.LEAST_SYSTEMS:
            both = dict.fromkeys(METHODS, math.nan)
        row = {**where, "track": track, "source": source, "measure": measure}
        found.append({**row, "systems": int(here.sum()), **both})
    return found
