"""Do scores agree with listeners? Results of ``evaluate`` and ratings -> correlations.

For every scenario, question and measure: SRCC and PCC over the systems of a track and source,
averaged as the paper does, and pooled over all stimuli; intervals, p-values, and what the
errors of the scores themselves may change (radius and half-width [sec:propagate_ci_to_corr]).
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

from torch_mapss.bounds.correlation import CONVENTIONS, correlation_bounds, scenario_bounds
from torch_mapss.bounds.frames import check_confidence
from torch_mapss.core import checks
from torch_mapss.evaluation import correlation_stats as stats
from torch_mapss.evaluation import io
from torch_mapss.evaluation.correlation_stats import METHODS, Options
from torch_mapss.evaluation.correlation_tables import Correlation
from torch_mapss.evaluation.ratings import KEYS, Stimuli, join, load_ratings
from torch_mapss.evaluation.results import load_results
from torch_mapss.evaluation.significance import FEW, holm
from torch_mapss.score_table import SCORES, present, score_label

if TYPE_CHECKING:
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
_OUTPUT = ["mixture_id", "system", "source_index"]


def correlate(
    results: str | os.PathLike[str],
    ratings: str | os.PathLike[str],
    *,
    columns: Mapping[str, str] | None = None,
    sources: Mapping[str, str] | None = None,
    controls: bool = False,
    rivals: Sequence[str | os.PathLike[str]] = (),
    measures: Sequence[str] | None = None,
    **options: Any,
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
        options: of :class:`Options`, by name.

    Returns:
        A :class:`Correlation`.

    Raises:
        TypeError: an option that :class:`Options` lacks.
        ValueError: files that cannot be read or do not belong together, settings out of range.
    """
    how = Options(**options)
    check_confidence(how.confidence)
    checks.check_choice(how.convention, "convention", CONVENTIONS)
    checks.check_whole(how.draws, "draws", 0)
    checks.check_real(how.source_correlation, "source_correlation", "[-1, 1]")
    outputs = scored_outputs(results, rivals)
    given = load_ratings(ratings, columns, how.cluster)
    joined = join(outputs, given, sources=sources, controls=controls)
    return correlate_stimuli(joined, measures, how)


def scored_outputs(
    results: str | os.PathLike[str], rivals: Sequence[str | os.PathLike[str]] = ()
) -> DataFrame:
    """The outputs of a results folder, with the scores of other measures.

    Returns:
        ``track``, ``system``, ``source``, all scores and their ``_radius`` and ``_tail``.

    Raises:
        ValueError: no folder of results, or a table without the columns that name an output.
    """
    table = load_results(results).scores
    table = table[table["status"] != "failed"]
    if table.empty:
        raise ValueError(f"{io.shown(results)!r} holds no scored output.")
    parts = [f"{name}{part}" for name in SCORES for part in ("", "_radius", "_tail")]
    found = table[["system", "source", *(name for name in parts if name in table)]]
    found = found.assign(track=table["mixture_id"]).set_axis(_outputs(table), axis=0)
    for path in rivals:
        content = "a table of other measures"
        words = io.read_table(path, _OUTPUT, content=content)
        digits = [str(name) for name in words if words[name].str.contains(r"\d").any()]
        numbers = [name for name in digits if name not in (*_OUTPUT, "source")]
        other = io.read_table(path, _OUTPUT, numbers, content)
        other = other[numbers].set_axis(_outputs(other), axis=0)
        if not other.index.is_unique or not other.index.isin(found.index).any():
            raise ValueError(
                f"{io.shown(path)!r} must have one row for each output of {io.shown(results)!r}: "
                "mixture_id, system and source_index as in its scores.csv."
            )
        new = other.reindex(found.index)
        found[numbers] = new.fillna(found.reindex(columns=numbers))
    return found.reset_index(drop=True)


def _outputs(table: DataFrame) -> list[str]:
    """What names the outputs of a table."""
    names = table[_OUTPUT].astype(str).apply(lambda own: own.str.strip().map(io.same_name))
    return names.agg("\n".join, axis=1).tolist()


def correlate_stimuli(
    joined: Stimuli, measures: Sequence[str] | None = None, options: Options | None = None
) -> Correlation:
    """Correlations of stimuli that :func:`torch_mapss.evaluation.ratings.join` gave their scores.

    Raises:
        ValueError: a measure that no stimulus has.
    """
    from pandas import DataFrame

    options = options or Options()
    stimuli = joined.table.replace([np.inf, -np.inf], np.nan)  # as the logarithm of 0
    bounds = {f"{name}_{part}" for name in stimuli for part in ("radius", "tail")}
    apart = {*KEYS, "is_system", "rating", "cluster", *SCORES, *bounds}
    known = [*present(stimuli), *(name for name in stimuli if name not in apart)]
    names = [n for n in known if n not in SCORES or not SCORES[n].diagnostic]
    names = names if measures is None else list(measures)
    unknown = [name for name in names if name not in known]
    if unknown:
        raise ValueError(
            f"measures has {', '.join(unknown)}, which the results lack; they have "
            f"{', '.join(known)}."
        )
    rows, differences, units = [], [], []
    for (scenario, question), own in stimuli.groupby(["scenario", "question"], sort=False):
        unit = own.groupby(["track", "source"], sort=False).ngroup()
        own = own.assign(unit=unit, cluster=own["cluster"].factorize()[0])
        where = {"scenario": scenario, "question": question}
        for pooling in stats.POOLINGS:
            about = {**where, "pooling": pooling, "cluster": options.cluster}
            here, between = _correlated(own, names, pooling, options)
            rows += [about | row for row in here]
            differences += [about | row for row in between]
        units += [where | row for name in names for row in _units(own, name)]
    found = DataFrame(rows, columns=COLUMNS), DataFrame(differences, columns=DIFFERENCES)
    each = DataFrame(units, columns=UNITS)
    labels = {name: score_label(name, unit=False) if name in SCORES else name for name in names}
    return Correlation(*found, each, stimuli, labels, joined.notes, options)


def _correlated(
    stimuli: DataFrame, names: Sequence[str], pooling: str, options: Options
) -> tuple[list[dict[str, Any]], list[dict[str, Any]]]:
    """Rows of ``correlations.csv`` and of ``differences.csv`` of one question and pooling."""
    pairs = itertools.combinations(names, 2) if options.draws else ()
    keys = [*((name,) for name in names), *(pair for pair in pairs if {*pair} & {*SCORES})]
    counted = {key: stats.usable(stimuli, key, pooling) for key in keys}
    rows: dict[str, dict[str, Any]] = {}
    for name in names:
        own, reasons = counted[name,]
        rows[name] = {"measure": name, "tracks": own["track"].nunique(), "reasons": reasons}
        rows[name] |= {"stimuli": len(own), "undefined": len(stimuli) - len(own)}
        rows[name] |= {"sources": own.groupby(["track", "source"]).ngroups}
        rows[name] |= _errors(own, name, options)
    differences = []
    cells: dict[Any, stats.Cell] = {}  # pairs mostly count what each measure does
    together = defaultdict(list)  # intervals over the same clusters, at once
    for method, key in itertools.product(METHODS, keys):
        own, of = counted[key][0], []
        for name in key:
            which = name, method, own.index.to_numpy().tobytes()
            if which not in cells:
                cells[which] = stats.Cell(own, name, method)
            of.append(cells[which])
        value, clusters = reduce(sub, (cell.value for cell in of)), of[0].clusters
        if len(key) == 1:
            row, ends = rows[key[0]], (f"{method}_low", f"{method}_high")
            p = stats.permutation_p(of[0], draws=options.draws, seed=options.seed)
            row |= {method: value, "p" if method == "srcc" else "p_pcc": p}
        else:
            row, ends = dict(zip(("measure_a", "measure_b"), key)), ("low", "high")
            row |= {"method": method, "difference": value, "reasons": []}
            differences.append(row)
        row |= {"clusters": len(clusters), **dict.fromkeys(ends, math.nan)}
        if math.isnan(value):
            continue
        if options.draws == 0:
            row["reasons"].append("no draws: no interval, no p")
        if len(clusters) < 2:
            row["reasons"].append("one cluster: no interval")
        elif options.draws > 0:
            together[clusters.tobytes()].append((row, ends, of))
            if len(clusters) < FEW:
                row["reasons"].append(f"{len(clusters)} clusters: interval approximate")
    for same in together.values():
        for (row, ends, _), *found in zip(same, *stats.intervals([of for *_, of in same], options)):
            row |= dict(zip(ends, map(float, found)))
            if not np.isfinite(found).all():
                row["reasons"].append("no interval: undefined in some samples of clusters")
    for row, p in zip(rows.values(), holm(np.array([row["p"] for row in rows.values()]))):
        row |= {"p_holm": p, "reason": "; ".join(dict.fromkeys(row["reasons"]))}
    return [*rows.values()], differences


def _units(stimuli: DataFrame, name: str) -> Iterator[dict[str, Any]]:
    for (track, source), own in stimuli.groupby(["track", "source"], sort=False):
        x, m = own[[name, "rating"]].dropna().to_numpy(float).T
        row = {"track": track, "source": source, "measure": name, "systems": len(x)}
        for method in METHODS if len(x) >= stats.LEAST_SYSTEMS else ():
            row[method] = float(stats.correlation(x, m, method)[0])
        yield row


def _errors(stimuli: DataFrame, name: str, options: Options) -> dict[str, float]:
    """What the errors of the scores may change in SRCC and PCC [sec:propagate_ci_to_corr].

    Radius and half-width of each, over units; none where a score has no bounds.
    """
    columns = [name, f"{name}_radius", f"{name}_tail", "rating"]
    table = stimuli.reindex(columns=columns).to_numpy(float)
    if not len(table) or not np.isfinite(table).all():
        return {}
    units = stimuli.groupby("unit").indices.values()
    x, radius, half, m = (_padded(column[unit] for unit in units) for column in table.T)
    tracks = stimuli.drop_duplicates("unit").sort_values("unit").groupby("track").indices.values()
    found = {}
    for method, kind in zip(METHODS, ("spearman", "pearson")):
        how: dict[str, Any] = {"convention": options.convention, "seed": options.seed}
        one = correlation_bounds(x, radius, half, m, options.confidence, kind, **how)
        value, radii, widths = (
            _padded(part.numpy()[track] for track in tracks)
            for part in (one.value, one.radius, one.half_width)
        )
        whole = scenario_bounds(value, radii, widths, options.source_correlation)
        found[f"{method}_radius"] = float(whole.radius)
        found[f"{method}_half_width"] = float(whole.half_width)
    return found


def _padded(rows: Iterable[NDArray[Any]]) -> torch.Tensor:
    """(rows, longest), NaN after shorter ones."""
    tensors = [*map(torch.from_numpy, rows)]
    return torch.nn.utils.rnn.pad_sequence(tensors, batch_first=True, padding_value=math.nan)
