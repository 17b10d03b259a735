"""Correlation of scores with listeners' ratings.

For every scenario, question and measure: SRCC and PCC over the systems of a track and source,
averaged as in the paper, and pooled over all stimuli; intervals, p-values, and the effect of errors
in the scores themselves (radius and half-width [sec:propagate_ci_to_corr]).

:func:`correlate` reads a results folder and a file of ratings. :func:`correlate_table` takes any
table that has both; recipes and pages call it, so that correlations are computed only here.

Correlations are of *agreement*: the sign of a score for which lower is better (bleed) is flipped,
so that +1 means agreement with listeners for every score.
"""

from __future__ import annotations

import itertools
import math
import os
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from functools import reduce
from operator import sub
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from numpy.typing import NDArray

from torch_mapss.bounds.correlation import correlation_bounds, scenario_bounds
from torch_mapss.bounds.settings import POOLED_CONVENTIONS, check_confidence
from torch_mapss.core import checks
from torch_mapss.evaluation import correlation_stats as stats
from torch_mapss.evaluation import io
from torch_mapss.evaluation.correlation_stats import METHODS, CorrelationSettings
from torch_mapss.evaluation.correlation_tables import Correlation, is_sign_flipped
from torch_mapss.evaluation.csv_input import read_csv_table
from torch_mapss.evaluation.ratings import KEYS, join, load_ratings
from torch_mapss.evaluation.results import Results, load_results
from torch_mapss.evaluation.significance import FEW, holm
from torch_mapss.score_table import SCORES, score_label, score_names, scores_in

if TYPE_CHECKING:
    from pandas import DataFrame

CORRELATION_COLUMNS = (
    *("scenario", "question", "measure", "pooling", "tracks", "sources", "stimuli"),
    *("srcc", "srcc_low", "srcc_high", "pcc", "pcc_low", "pcc_high", "p", "p_pcc", "p_holm"),
    *("srcc_radius", "srcc_half_width", "pcc_radius", "pcc_half_width"),
    *("cluster", "clusters", "undefined", "reason"),
)
DIFFERENCE_COLUMNS = (
    *("scenario", "question", "pooling", "method", "measure_a", "measure_b"),
    *("cluster", "clusters", "difference", "low", "high"),
)
UNIT_COLUMNS = ("scenario", "question", "track", "source", "measure", "systems", "srcc", "pcc")
# Optional columns of a table of stimuli, with their defaults.
_DEFAULTS = {"scenario": "all", "question": "rating", "source": "", "system": ""}
_OUTPUT = ["mixture_id", "system", "source_index"]


def correlate(
    results: Results | str | os.PathLike[str],
    ratings: str | os.PathLike[str],
    *,
    columns: Mapping[str, str] | None = None,
    sources: Mapping[str, str] | None = None,
    controls: bool = False,
    rivals: Sequence[str | os.PathLike[str]] = (),
    measures: Sequence[str] | None = None,
    **settings: Any,
) -> Correlation:
    """Correlate the scores of a results folder with ratings.

    Args:
        results: folder of ``torch-mapss evaluate``, or a result of ``load_results``.
        ratings: CSV file, see :func:`torch_mapss.evaluation.ratings.load_ratings`.
        columns: names of its columns if they are not the usual ones.
        sources: source of the results -> source of the ratings, where names differ.
        controls: whether to include hidden references and anchors.
        rivals: CSV files of other measures of the same outputs, higher is better: ``mixture_id,
            system, source_index`` and one column per measure.
        measures: names of measures, scores or columns of ``rivals`` to correlate; all except
            diagnostics (B, log B) by default.
        settings: fields of :class:`CorrelationSettings`.

    Returns:
        A :class:`Correlation`.

    Raises:
        TypeError: a setting is not in :class:`CorrelationSettings`.
        ValueError: files cannot be read or do not belong together, or settings are out of range.
    """
    checked = checked_settings(**settings)
    outputs = scored_outputs(results, rivals)
    rated, notes_on_ratings = load_ratings(ratings, columns, checked.cluster)
    stimuli, notes = join(outputs, rated, sources=sources, controls=controls)
    return correlate_stimuli(stimuli, measures, checked, (*notes, *notes_on_ratings))


def correlate_table(
    table: DataFrame, measures: str | Sequence[str] | None = None, **settings: Any
) -> Correlation:
    """Correlate scores with ratings in one table.

    Use it without a results folder or a file of ratings; it gives the same numbers as
    :func:`correlate`.

    Args:
        table: one row per rated output. Outputs are compared within a ``track``, and ``rating`` is
            higher for better ones; further columns are scores and other measures, NaN where
            undefined. The sign of scores for which lower is better is flipped; other measures must
            be higher for better outputs. ``source``, ``system``, ``question`` and ``scenario`` may
            be absent.
        measures: columns to correlate, or names of measures (families); all but diagnostics by
            default.
        settings: fields of :class:`CorrelationSettings`; ``cluster`` is a column of the table.

    Returns:
        A :class:`Correlation`. Its ``rows`` have the mean over tracks with interval and p for
        every measure, ``differences`` those of pairs of measures, ``units`` the correlation of
        every track and source.

    Raises:
        TypeError: a setting that is not in :class:`CorrelationSettings`.
        ValueError: columns that are missing, no rating, or settings out of range.

    Example:
        >>> import pandas
        >>> rated = pandas.DataFrame({"track": ["t"] * 4, "system": [*"abcd"]})
        >>> rated = rated.assign(rating=[1, 2, 3, 4], ps=[0.1, 0.3, 0.2, 0.9])
        >>> rated = rated.assign(bleed_db=[-10.0, -30.0, -20.0, -40.0])
        >>> correlation = correlate_table(rated, draws=0)
        >>> rows = correlation.rows
        >>> rows[rows["pooling"] == "per_track"][["measure", "srcc"]].to_numpy().tolist()
        [['ps', 0.8], ['bleed_db', 0.8]]
    """
    checked = checked_settings(**settings)
    needed = ["track", "rating", *{checked.cluster} - {"source", "system"}]
    lacking = [name for name in needed if name not in table]
    if lacking:
        raise ValueError(
            f"table must have the columns {', '.join(needed)}, and lacks {', '.join(lacking)}; it "
            f"has {', '.join(map(str, table.columns))}."
        )
    absent = {name: text for name, text in _DEFAULTS.items() if name not in table}
    stimuli = table.assign(**absent).dropna(subset="rating").reset_index(drop=True)
    if stimuli.empty:
        raise ValueError("table holds no rating: `rating` is empty or NaN in every row.")
    stimuli["cluster"] = stimuli[checked.cluster].astype(str)
    return correlate_stimuli(stimuli, measures, checked)


def checked_settings(**settings: Any) -> CorrelationSettings:
    """Check settings; TypeError and ValueError as in :func:`correlate_table`."""
    unknown = sorted({*settings} - {*CorrelationSettings._fields})
    if unknown:
        raise TypeError(
            f"settings must be of {', '.join(CorrelationSettings._fields)}, got "
            f"{', '.join(unknown)}."
        )
    checked = CorrelationSettings(**settings)
    checks.check_choice(checked.convention, "convention", POOLED_CONVENTIONS)
    correlation = checks.check_real(checked.source_correlation, "source_correlation", "[-1, 1]")
    return checked._replace(
        confidence=check_confidence(checked.confidence),
        source_correlation=correlation,
        draws=checks.check_whole(checked.draws, "draws", 0),
    )


def scored_outputs(
    results: Results | str | os.PathLike[str], rivals: Sequence[str | os.PathLike[str]] = ()
) -> DataFrame:
    """Outputs of a results folder, with other measures added.

    Returns:
        ``track``, ``system``, ``source``, all scores and their ``_radius`` and ``_tail``.

    Raises:
        ValueError: not a results folder, or a table without the columns that name an output.
    """
    results = load_results(results)
    folder = io.shown(results.folder)
    rows = results.scores[results.scores["status"] != "failed"]
    if rows.empty:
        raise ValueError(f"{folder!r} holds no scored output.")
    names = [name + suffix for name, suffix in itertools.product(SCORES, ("", "_radius", "_tail"))]
    outputs = rows[["system", "source", *(name for name in names if name in rows)]]
    outputs = outputs.assign(track=rows["mixture_id"]).set_axis(_output_keys(rows), axis=0)
    for path in rivals:
        rival = _rival_scores(path)
        if not rival.index.is_unique or not rival.index.isin(outputs.index).any():
            raise ValueError(
                f"{io.shown(path)!r} must have one row for each output of {folder!r}: "
                "mixture_id, system and source_index as in its scores.csv."
            )
        columns = [*rival.columns]
        aligned = rival.reindex(outputs.index)
        outputs[columns] = aligned.fillna(outputs.reindex(columns=columns))
    return outputs.reset_index(drop=True)


def _rival_scores(path: str | os.PathLike[str]) -> DataFrame:
    """Numeric columns in a table of other measures, by output."""
    content = "a table of other measures"
    texts = read_csv_table(path, _OUTPUT, content=content)
    with_digits = [name for name in texts if texts[name].str.contains(r"\d").any()]
    measures = [str(name) for name in with_digits if name not in (*_OUTPUT, "source")]
    table = read_csv_table(path, _OUTPUT, measures, content)
    return table[measures].set_axis(_output_keys(table), axis=0)


def _output_keys(table: DataFrame) -> list[str]:
    """Key of each output in a table, as one text."""
    texts = table[_OUTPUT].astype(str)
    names = texts.apply(lambda column: column.str.strip().map(io.same_name))
    return names.agg("\n".join, axis=1).tolist()


def correlate_stimuli(
    stimuli: DataFrame,
    measures: str | Sequence[str] | None = None,
    settings: CorrelationSettings | None = None,
    notes: tuple[str, ...] = (),
) -> Correlation:
    """Correlations for the stimuli that :func:`torch_mapss.evaluation.ratings.join` returns.

    ``notes`` on them are printed with the result.

    Raises:
        ValueError: a measure that no stimulus has.
    """
    from pandas import DataFrame

    settings = settings or CorrelationSettings()
    stimuli = stimuli.replace([np.inf, -np.inf], np.nan)  # such as the logarithm of 0
    names = _measures_of(stimuli, measures)
    oriented = _oriented(stimuli, names)
    rows, differences, units = [], [], []
    for (scenario, question), group in oriented.groupby(["scenario", "question"], sort=False):
        unit = group.groupby(["track", "source"], sort=False).ngroup()
        group = group.assign(unit=unit, cluster=group["cluster"].factorize()[0])
        keys = {"scenario": scenario, "question": question}
        for pooling in stats.POOLINGS:
            head = {**keys, "pooling": pooling, "cluster": settings.cluster}
            measure_rows, difference_rows = correlated(group, names, pooling, settings)
            rows += [head | row for row in measure_rows]
            differences += [head | row for row in difference_rows]
        for name in names:
            units += [keys | row for row in _unit_rows(group, name)]
    return Correlation(
        rows=DataFrame(rows, columns=CORRELATION_COLUMNS),
        differences=DataFrame(differences, columns=DIFFERENCE_COLUMNS),
        units=DataFrame(units, columns=UNIT_COLUMNS),
        stimuli=stimuli,
        labels={n: score_label(n, unit=False) if n in SCORES else n for n in names},
        notes=notes,
        settings=settings,
    )


def _measures_of(stimuli: DataFrame, measures: str | Sequence[str] | None) -> list[str]:
    """Columns to correlate: those asked for, or all scores and measures except diagnostics."""
    bounds = {f"{name}_{suffix}" for name in stimuli for suffix in ("radius", "tail")}
    described = {*KEYS, "is_system", "rating", "cluster", *SCORES, *bounds}
    numeric = stimuli.select_dtypes("number").columns
    rivals = [str(name) for name in stimuli if name not in described and name in numeric]
    available = [*scores_in(stimuli), *rivals]
    if measures is not None:
        return [*score_names(measures, available)]
    return [name for name in available if name not in SCORES or not SCORES[name].diagnostic]


def _oriented(stimuli: DataFrame, names: Sequence[str]) -> DataFrame:
    """Stimuli with every measure oriented so that higher is better."""
    return stimuli.assign(**{name: -stimuli[name] for name in names if is_sign_flipped(name)})


def correlated(
    stimuli: DataFrame, names: Sequence[str], pooling: str, settings: CorrelationSettings
) -> tuple[list[dict[str, Any]], list[dict[str, Any]]]:
    """Rows of ``correlations.csv`` and of ``differences.csv`` of one question and pooling."""
    pairs = itertools.combinations(names, 2) if settings.draws else ()
    pairs_of_scores = [pair for pair in pairs if {*pair} & {*SCORES}]
    keys = [*((name,) for name in names), *pairs_of_scores]
    usable = {key: stats.usable_stimuli(stimuli, key, pooling) for key in keys}
    rows: dict[str, dict[str, Any]] = {}
    for name in names:
        counted, reasons = usable[name,]
        rows[name] = {"measure": name, "tracks": counted["track"].nunique(), "reasons": reasons}
        rows[name] |= {"stimuli": len(counted), "undefined": len(stimuli) - len(counted)}
        rows[name] |= {"sources": counted.groupby(["track", "source"]).ngroups}
        rows[name] |= _error_columns(counted, name, settings)
    differences = []
    # Kept, since two measures are mostly compared on the same stimuli as each one alone.
    correlations: dict[Any, stats.SampledCorrelation] = {}
    same_clusters = defaultdict(list)  # intervals over the same clusters are made at once
    for method, key in itertools.product(METHODS, keys):
        counted, terms = usable[key][0], []
        for name in key:
            identity = name, method, counted.index.to_numpy().tobytes()
            if identity not in correlations:
                correlations[identity] = stats.SampledCorrelation(counted, name, method)
            terms.append(correlations[identity])
        value, clusters = reduce(sub, (term.value for term in terms)), terms[0].clusters
        if len(key) == 1:
            row, ends = rows[key[0]], (f"{method}_low", f"{method}_high")
            p = stats.permutation_p(terms[0], draws=settings.draws, seed=settings.seed)
            row |= {method: value, "p" if method == "srcc" else "p_pcc": p}
        else:
            row, ends = dict(zip(("measure_a", "measure_b"), key)), ("low", "high")
            row |= {"method": method, "difference": value, "reasons": []}
            differences.append(row)
        row |= {"clusters": len(clusters), **dict.fromkeys(ends, math.nan)}
        if math.isnan(value):
            continue
        if settings.draws == 0:
            row["reasons"].append("no draws: no interval, no p")
        if len(clusters) < 2:
            row["reasons"].append("one cluster: no interval")
        elif settings.draws > 0:
            same_clusters[clusters.tobytes()].append((row, ends, terms))
            if len(clusters) < FEW:
                row["reasons"].append(f"{len(clusters)} clusters: interval approximate")
    for waiting in same_clusters.values():
        _add_intervals(waiting, settings)
    adjusted = holm(np.array([row["p"] for row in rows.values()]))
    for row, p in zip(rows.values(), adjusted):
        row |= {"p_holm": p, "reason": "; ".join(dict.fromkeys(row["reasons"]))}
    return [*rows.values()], differences


def _add_intervals(waiting: Sequence[Any], settings: CorrelationSettings) -> None:
    """Fill in the intervals of rows over the same clusters.

    Args:
        waiting: row, names of its two ends, and correlations (the second is subtracted).
        settings: settings of the bootstrap.
    """
    lows, highs = stats.intervals([terms for *_, terms in waiting], settings)
    for (row, names, _), low, high in zip(waiting, lows, highs):
        row |= dict(zip(names, (float(low), float(high))))
        if not np.isfinite([low, high]).all():
            row["reasons"].append("no interval: undefined in some samples of clusters")


def _unit_rows(stimuli: DataFrame, name: str) -> Iterator[dict[str, Any]]:
    """Rows of ``per_track.csv`` of one measure."""
    for (track, source), unit in stimuli.groupby(["track", "source"], sort=False):
        x, m = unit[[name, "rating"]].dropna().to_numpy(float).T
        row = {"track": track, "source": source, "measure": name, "systems": len(x)}
        for method in METHODS if len(x) >= stats.LEAST_SYSTEMS else ():
            row[method] = float(stats.correlation(x, m, method)[0])
        yield row


def _error_columns(
    stimuli: DataFrame, name: str, settings: CorrelationSettings
) -> dict[str, float]:
    """Effect of errors in the scores on SRCC and PCC [sec:propagate_ci_to_corr].

    Radius and half-width of each, over units; none if the score has no bounds.
    """
    columns = [name, f"{name}_radius", f"{name}_tail", "rating"]
    table = stimuli.reindex(columns=columns).to_numpy(float)
    if not len(table) or not np.isfinite(table).all():
        return {}
    units = stimuli.groupby("unit").indices.values()
    x, radius, half_width, m = (_padded(column, units) for column in table.T)
    tracks = stimuli.drop_duplicates("unit").sort_values("unit").groupby("track").indices.values()
    errors = {}
    for method, kind in zip(METHODS, ("spearman", "pearson")):
        options: dict[str, Any] = {"convention": settings.convention, "seed": settings.seed}
        units_bounds = correlation_bounds(
            x, radius, half_width, m, settings.confidence, kind, **options
        )
        fields = units_bounds.value, units_bounds.radius, units_bounds.half_width
        values, radii, half_widths = (_padded(field.numpy(), tracks) for field in fields)
        scenario = scenario_bounds(values, radii, half_widths, settings.source_correlation)
        errors[f"{method}_radius"] = float(scenario.radius)
        errors[f"{method}_half_width"] = float(scenario.half_width)
    return errors


def _padded(column: NDArray[Any], groups: Iterable[Any]) -> torch.Tensor:
    """(groups, longest) values of a column at the row numbers of each group, padded with NaN."""
    tensors = [torch.from_numpy(column[rows]) for rows in groups]
    return torch.nn.utils.rnn.pad_sequence(tensors, batch_first=True, padding_value=math.nan)
