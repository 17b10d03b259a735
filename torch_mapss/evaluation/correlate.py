"""Do scores agree with listeners? Results of ``evaluate`` and ratings -> correlations.

For every scenario, question and measure: SRCC and PCC over the systems of a track and source,
averaged as the paper does, and pooled over all stimuli beside it; intervals, p-values, and what the
errors of the scores themselves may change (radius and half-width [sec:propagate_ci_to_corr]).
"""

from __future__ import annotations

import itertools
import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from torch_mapss.bounds import correlation as propagation
from torch_mapss.bounds.frames import check_confidence
from torch_mapss.evaluation import correlation_errors, correlation_tables, io
from torch_mapss.evaluation.correlation_stats import (
    LEAST_SYSTEMS,
    METHODS,
    POOLINGS,
    Data,
    correlation,
    estimates,
    parts_of,
    usable,
)
from torch_mapss.evaluation.measures import COLUMNS as MEASURES
from torch_mapss.evaluation.measures import label
from torch_mapss.evaluation.ratings import KEYS, Joined, join, load_ratings
from torch_mapss.evaluation.results import load_results
from torch_mapss.evaluation.significance import holm

if TYPE_CHECKING:
    from matplotlib.figure import Figure
    from pandas import DataFrame

COLUMNS = (
    *("scenario", "question", "measure", "pooling", "tracks", "sources", "stimuli"),
    *("srcc", "srcc_low", "srcc_high", "pcc", "pcc_low", "pcc_high", "p", "p_pcc", "p_holm"),
    *("srcc_radius", "srcc_half_width", "pcc_radius", "pcc_half_width"),
    *("cluster", "clusters", "undefined", "reason"),
)
DIFFERENCES = (
    *("scenario", "question", "pooling", "method", "measure_a", "measure_b"),
    *("cluster", "clusters", "difference", "low", "high"),
)
UNITS = ("scenario", "question", "track", "source", "measure", "systems", "srcc", "pcc")


class Options(NamedTuple):
    """How correlations are computed."""

    confidence: float = 0.95
    draws: int = 2000  # of the bootstrap and of the permutations
    seed: int = 0
    convention: str = "derived"  # of radius and half-width: or as printed in the "paper"
    source_correlation: float = 0.0  # ρ_l: of the errors of the sources of one track
    cluster: str = "track"  # what intervals resample


@dataclass(frozen=True, eq=False)
class Correlation:
    """Correlations with listeners, and the stimuli behind them."""

    rows: DataFrame  # `COLUMNS`, one per scenario, question, measure, pooling
    differences: DataFrame  # `DIFFERENCES`, between measures
    units: DataFrame  # `UNITS`, one per track and source
    stimuli: DataFrame  # ratings and scores
    labels: Mapping[str, str]  # measure -> name in tables
    notes: tuple[str, ...]
    options: Options

    def summary(self) -> str:
        """A table for each scenario and question, to print."""
        return correlation_tables.text(self._page())

    def _repr_html_(self) -> str:
        """The same for notebooks."""
        return correlation_tables.html(self._page())

    def _page(self) -> correlation_tables.Page:
        about = [*self.notes, *_assumptions(self.options)]
        return correlation_tables.Page(self.rows, self.labels, about, self.options.confidence)

    def plot(self, question: str | None = None) -> Figure:
        """Scatter plots of ratings over scores, a panel for each measure; one question's.

        Raises:
            ImportError: matplotlib is missing.
            ValueError: no such question.
        """
        asked = list(self.stimuli["question"].unique())
        question = asked[0] if question is None else question
        if question not in asked:
            raise ValueError(f"question must be of {', '.join(asked)}, got {question!r}.")
        rows = self.rows[
            (self.rows["question"] == question) & (self.rows["pooling"] == "per_track")
        ]
        return correlation_tables.scatter(self.stimuli, rows, self.labels, question)

    def save(self, folder: str | os.PathLike[str]) -> str:
        """Write the tables (CSV, Markdown, LaTeX) and scatter plots to a folder.

        Returns:
            The folder.

        Raises:
            ValueError: the folder is a file, or cannot be made.
        """
        tables = {
            "correlations": self.rows,
            "differences": self.differences,
            "per_track": self.units,
            "stimuli": self.stimuli[[*KEYS, "rating", *self.labels]],
        }
        return correlation_tables.save(tables, self._page(), self.plot, folder)


def _assumptions(options: Options) -> list[str]:
    """What intervals resample and what p-values assume."""
    of = {"track": "tracks", "source": "sources", "system": "systems"}
    what = of.get(options.cluster, f"{options.cluster} (--cluster)")
    return [
        f"Intervals resample {what}: they hold for others like those, and take what was rated "
        "within each as given",
        "p per track exchanges the ratings within a track and source: it assumes that its outputs "
        "are independent of those of other tracks; the same systems in all tracks, or listeners "
        "who agree on a system, make it too small",
        "p pooled exchanges all ratings, as if all outputs were independent: too small where "
        "tracks differ",
    ]


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
    cluster: str = "track",
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
        measures: only these; all there are by default, but for diagnostics (B, log B).
        confidence: of intervals and half-widths, in (0, 1).
        draws: of bootstrap and permutations; p is at least 1/(draws + 1). 0: none of both.
        seed: of both.
        convention: of radius and half-width of the correlations where the results have bounds:
            ``"derived"``, or ``"paper"`` as printed.
        source_correlation: ρ_l in [-1, 1] of [eq:scenario_halfwidth_pcc].
        cluster: column of the ratings whose values are resampled by the intervals: "track"
            (default), "system", "source", or one of the file, e.g. "talker" or "condition".

    Returns:
        A :class:`Correlation`.

    Raises:
        ValueError: files that cannot be read or do not belong together, settings out of range.
    """
    options = _checked(Options(confidence, draws, seed, convention, source_correlation, cluster))
    outputs = scored_outputs(results, rivals)
    given = load_ratings(ratings, columns, cluster)
    joined = join(outputs, given, sources=sources, controls=controls)
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
) -> DataFrame:
    """The outputs of a results folder, with the scores of other measures beside them.

    Returns:
        ``track``, ``system``, ``source``, all scores and their ``_radius`` and ``_tail``.

    Raises:
        ValueError: no folder of results, or a table without the columns that name an output.
    """
    table = load_results(results).scores
    table = table[table["status"] != "failed"]
    if table.empty:
        raise ValueError(f"{io.shown(results)!r} holds no scored output.")
    parts = [f"{name}{part}" for name in MEASURES for part in ("", "_radius", "_tail")]
    found = table[["system", "source", *(name for name in parts if name in table)]]
    found = found.assign(track=table["mixture_id"]).reset_index(drop=True)
    key = _key(table, "mixture_id")
    for path in rivals:
        other = _rival(path)
        known = {one: place for place, one in enumerate(other.index)}
        places = np.array([known.get(one, -1) for one in key])
        if places.max() < 0:
            raise ValueError(
                f"no row of {io.shown(path)!r} belongs to an output of {io.shown(results)!r}: "
                "mixture_id, system and source_index must be those of its scores.csv."
            )
        for name in other:
            own = found.get(name, np.nan)
            found[name] = np.where(places >= 0, other[name].to_numpy()[places], own)
    return found


def _key(table: DataFrame, track: str) -> list[tuple[str, ...]]:
    """What names the outputs of a table."""
    names = (table[name].astype(str) for name in (track, "system", "source_index"))
    return list(zip(*([io.same_name(text.strip()) for text in column] for column in names)))


def _rival(path: str | os.PathLike[str]) -> DataFrame:
    """The measures of a table: the columns that hold a number, by mixture, system and index."""
    names = ["mixture_id", "system", "source_index"]
    content = "a table of other measures"
    words = io.read_table(path, names, content=content)
    numbers = [
        str(name)
        for name in words
        if name not in (*names, "source") and words[name].str.contains(r"\d").any()
    ]
    table = io.read_table(path, names, numbers, content)
    keys = _key(table, "mixture_id")
    if len({*keys}) < len(keys):
        raise ValueError(f"{io.shown(path)!r} has an output twice: {keys[-1]}.")
    return table[numbers].set_axis(keys, axis=0)


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
    from pandas import DataFrame

    stimuli = joined.stimuli.replace([np.inf, -np.inf], np.nan)  # as the logarithm of 0
    bounds = {f"{name}_{part}" for name in stimuli for part in ("radius", "tail")}
    other = {*KEYS, "is_system", "rating", "cluster", *bounds}
    known = [name for name in stimuli if name not in other]
    known.sort(key=lambda name: [*MEASURES].index(name) if name in MEASURES else len(MEASURES))
    if measures is None:
        names = [n for n in known if n not in MEASURES or not MEASURES[n].diagnostic]
    else:
        names = list(measures)
        unknown = [name for name in names if name not in known]
        if unknown:
            raise ValueError(
                f"measures has {', '.join(unknown)}, which the results lack; they have "
                f"{', '.join(known)}."
            )
    rows, differences, units = [], [], []
    for (scenario, question), own in stimuli.groupby(["scenario", "question"], sort=False):
        where = {"scenario": scenario, "question": question}
        data = {name: _data(own, name) for name in names}
        for pooling in POOLINGS:
            here, between = _correlated(where, data, pooling, options)
            rows += here
            differences += between
        units += _units(where, own, data)
    return Correlation(
        DataFrame(rows, columns=COLUMNS),
        DataFrame(differences, columns=DIFFERENCES),
        DataFrame(units, columns=UNITS),
        stimuli,
        {name: label(name, unit=False) if name in MEASURES else name for name in names},
        joined.notes,
        options,
    )


def _data(stimuli: DataFrame, measure: str) -> Data:
    """Scores and ratings as arrays."""

    def places(*columns: str) -> NDArray[np.int64]:
        return stimuli.groupby([*columns], sort=False).ngroup().to_numpy()

    bounds = [f"{measure}_radius", f"{measure}_tail"]
    return Data(
        scores=stimuli[measure].to_numpy(float),
        ratings=stimuli["rating"].to_numpy(float),
        unit=places("track", "source"),
        track=places("track"),
        cluster=places("cluster"),
        bounds=stimuli.reindex(columns=bounds).to_numpy(float),
    )


def _correlated(
    where: Mapping[str, Any], data: Mapping[str, Data], pooling: str, options: Options
) -> tuple[list[dict[str, Any]], list[dict[str, Any]]]:
    """Rows of ``correlations.csv`` and of ``differences.csv`` of one question and pooling."""
    about = {**where, "pooling": pooling, "cluster": options.cluster}
    rows, differences = {}, []
    for name, one in data.items():
        kept = usable(one, pooling)
        rows[name] = {**about, "measure": name, "tracks": len(np.unique(kept.track))}
        rows[name] |= {"sources": len(np.unique(kept.unit)), "stimuli": len(kept.scores)}
        rows[name] |= {"undefined": len(one.scores) - len(kept.scores), "reason": {}}
        rows[name] |= correlation_errors.propagated(
            kept,
            pooling,
            confidence=options.confidence,
            convention=options.convention,
            rho=options.source_correlation,
            seed=options.seed,
        )
    pairs = [(a, b) for a, b in itertools.combinations(data, 2) if {a, b} & {*MEASURES}]
    for method, p in zip(METHODS, ("p", "p_pcc")):
        made, between = estimates(
            data,
            pairs if options.draws else (),
            pooling,
            method,
            confidence=options.confidence,
            draws=options.draws,
            seed=options.seed,
        )
        for name, found in made.items():
            row = rows[name]
            row |= {method: found.value, f"{method}_low": found.low, f"{method}_high": found.high}
            row |= {p: found.p, "clusters": found.clusters}
            row["reason"] |= dict.fromkeys(found.reasons)
        for (a, b), found in between.items():
            row = {**about, "method": method, "measure_a": a, "measure_b": b}
            row |= {"clusters": found.clusters, "difference": found.value}
            differences.append({**row, "low": found.low, "high": found.high})
    for row, adjusted in zip(rows.values(), holm(np.array([row["p"] for row in rows.values()]))):
        row |= {"p_holm": adjusted, "reason": "; ".join(row["reason"])}
    return list(rows.values()), differences


def _units(
    where: Mapping[str, Any], stimuli: DataFrame, data: Mapping[str, Data]
) -> list[dict[str, Any]]:
    """The correlation of every track and source."""
    found = []
    for name, one in data.items():
        for part in parts_of(one.unit):
            track, source = stimuli[["track", "source"]].iloc[part[0]]
            own = one.kept(part[np.isfinite(one.scores[part])])
            row = {**where, "track": track, "source": source, "measure": name}
            for method in METHODS if len(own.scores) >= LEAST_SYSTEMS else ():
                row[method] = float(correlation(own.scores, own.ratings, method)[0])
            found.append({**row, "systems": len(own.scores)})
    return found
