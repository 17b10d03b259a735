"""Scores of systems over mixtures -> rows of a comparison: intervals, tests, ranks, groups."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import combinations
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from torch_mapss.evaluation import io, significance
from torch_mapss.evaluation.measures import COLUMNS, present, text
from torch_mapss.evaluation.significance import Array

if TYPE_CHECKING:
    from pandas import DataFrame

APPROXIMATE = f"interval approximate (n < {significance.FEW})"
TOO_SMALL = "n too small to order"
#: The manifest names hidden references and anchors so.
CONTROL = "control:"
#: How mixtures may be weighted, and the column of ``items.csv`` that says how much each counts.
WEIGHTS = {"equal": None, "duration": "seconds", "sources": "references"}
# A mixture that lies so many standard deviations of the others from their mean moves the mean.
_FAR = 10.0


@dataclass(frozen=True)
class Scores:
    """One number per mixture, system and measure."""

    mixtures: tuple[str, ...]  # n
    systems: tuple[str, ...]  # s
    values: Mapping[str, Array] = field(repr=False)  # measure -> (n, s), NaN undefined
    given: NDArray[np.bool_] = field(repr=False)  # (n, s) the pair was to be scored
    weights: Array = field(repr=False)  # (n,)
    errors: Mapping[str, Array] = field(repr=False)  # measure -> (n, s), standard error of excerpts
    failures: Mapping[tuple[str, str], str] = field(repr=False)  # (system, mixture) -> reason

    def failed(self, system: str) -> tuple[str, ...]:
        """The mixtures that could not be scored for a system."""
        return tuple(mixture for one, mixture in self.failures if one == system)


@dataclass(frozen=True, eq=False)
class Tables:
    """What a comparison found."""

    pairs: DataFrame = field(repr=False)  # comparison.csv: every pair of systems
    ranking: DataFrame = field(repr=False)  # ranking.csv: the systems of a measure, best first
    sources: DataFrame = field(repr=False)  # sources.csv: the means of every source name
    scores: Scores
    alpha: float  # groups are of tests at this level
    confidence: float  # of the intervals
    weight: str  # of mixtures, one of WEIGHTS


class Estimate(NamedTuple):
    """A mean (difference) over mixtures and its interval; NaN where undefined."""

    n: int
    mean: float
    low: float
    high: float


def gathered(
    items: DataFrame, weight: str, systems: Sequence[str] | None, references: bool
) -> Scores:
    """The rows of ``items.csv`` as arrays; the same pair twice must have the same scores.

    Raises:
        ValueError: the same pair with other scores, an unknown system, or no system left.
    """
    items = items.copy()
    for name in ("mixture_id", "system"):  # the same text in two Unicode forms is one name
        spelling: dict[str, str] = {}
        items[name] = [spelling.setdefault(io.same_name(one), one) for one in items[name]]
    items = _chosen(items, systems, references)
    measures = present(items.columns, ranked=True)
    key = ["mixture_id", "system"]
    unlike = items.groupby(key)[list(measures)].nunique(dropna=False).gt(1).any(axis=1)
    if unlike.any():
        mixture, system = unlike.index[unlike.to_numpy()][0]
        raise ValueError(
            f"mixture {mixture!r}, system {system!r} occurs twice, with unlike scores. Give the "
            "systems names of their own."
        )
    items = items.drop_duplicates(key)
    mixtures, names = items["mixture_id"].unique(), items["system"].unique()

    def table(column: str) -> Array:
        wide = items.pivot(index="mixture_id", columns="system", values=column)
        return wide.reindex(index=mixtures, columns=names).to_numpy(dtype=float, na_value=np.nan)

    values = {measure: table(measure) for measure in measures}
    scored = {m: v for m, v in values.items() if np.isfinite(v).any()}
    errors = {m: table(f"{m}_se") for m in measures if f"{m}_se" in items}
    failed = items[items["status"] == "failed"] if "status" in items else items[:0]
    column = WEIGHTS[weight]
    weights = np.ones(len(mixtures))
    if column is not None:  # a mixture that failed has no length, and no score to be weighted
        known = items.groupby("mixture_id", sort=False)[column].max()[mixtures].to_numpy(float)
        weights = np.where(known > 0.0, known, 1.0)
    return Scores(
        tuple(mixtures),
        tuple(names),
        scored or values,
        ~np.isnan(table("_given")),
        weights,
        errors,
        dict(zip(zip(failed["system"], failed["mixture_id"]), failed.get("reason", ()))),
    )


def _chosen(items: DataFrame, systems: Sequence[str] | None, references: bool) -> DataFrame:
    """The rows of the systems that are asked for."""
    known = list(items["system"].unique())
    kept = [name for name in known if references or not name.startswith(CONTROL)]
    if systems is not None:
        wanted = [io.same_name(name) for name in systems]
        unknown = [n for n in wanted if n not in map(io.same_name, known)]
        if unknown:
            raise ValueError(
                f"systems has {io.listed(map(repr, unknown))}, which the results lack; they have "
                f"{io.listed(map(repr, known), 12)}."
            )
        kept = [name for name in kept if io.same_name(name) in wanted]
    if not kept and known:
        raise ValueError(
            "no system is left to compare; the results have "
            f"{io.listed(map(repr, known), 12)}, and those named {CONTROL}NAME are left out."
        )
    return items[items["system"].isin(kept)].assign(_given=1.0)


def all_rows(
    scores: Scores, alpha: float, confidence: float, weight: str, seed: int
) -> tuple[list[dict[str, Any]], list[dict[str, Any]]]:
    """Pairs and ranking, measure after measure: the rows of ``comparison.csv``, ``ranking.csv``."""
    found = _estimates(scores, confidence, seed)
    pairs, ranking = [], []
    for measure in scores.values:
        tests = {
            (a, b): _test(scores, measure, a, b)
            for a, b in combinations(range(len(scores.systems)), 2)
        }
        rows = [
            _pair_row(scores, measure, a, b, found[measure, a, b], test, alpha)
            for (a, b), test in tests.items()
        ]
        p = np.array([row["p_wilcoxon"] for row in rows], dtype=float)
        least = np.array([test.least_p if test else np.nan for test in tests.values()])
        for row, adjusted in zip(rows, significance.holm_of_testable(p, least, alpha)):
            row |= {"p_holm": adjusted, "weight": weight}
        pairs += rows
        ranking += _ranked(scores, measure, found, rows, alpha, weight)
    return pairs, ranking


def _estimates(
    scores: Scores, confidence: float, seed: int
) -> dict[tuple[str, int, int | None], Estimate]:
    """Of every (measure, system, None) the mean, of every (measure, a, b) the mean difference.

    What is defined in the same mixtures is resampled together: the same draws, one product.
    """
    systems = range(len(scores.systems))
    wanted: list[tuple[int, int | None]] = [(a, None) for a in systems]
    wanted += list(combinations(systems, 2))
    together: dict[bytes, list[tuple[str, int, int | None]]] = {}
    for measure in scores.values:
        for a, b in wanted:
            defined = np.isfinite(_column(scores, measure, a, b))
            together.setdefault(defined.tobytes(), []).append((measure, a, b))
    found = {}
    for mask, keys in together.items():
        defined = np.frombuffer(mask, dtype=bool)
        values = np.column_stack([_column(scores, *key)[defined] for key in keys])
        made = significance.mean_intervals(
            values,
            scores.weights[defined],
            confidence=confidence,
            seed=seed,
            scale=np.array([_scale(scores, *key) for key in keys]),
        )
        for key, *numbers in zip(keys, *made):
            found[key] = Estimate(int(defined.sum()), *map(float, numbers))
    return found


def _column(scores: Scores, measure: str, a: int, b: int | None) -> Array:
    """(n,) values of a system, or differences of two."""
    values = scores.values[measure]
    return values[:, a] if b is None else values[:, a] - values[:, b]


def _scale(scores: Scores, measure: str, a: int, b: int | None) -> float:
    """The largest magnitude of the scores of one system or two, whose rounding counts."""
    values = np.abs(scores.values[measure][:, [a] if b is None else [a, b]])
    return float(np.max(values, where=np.isfinite(values), initial=0.0))


def _test(scores: Scores, measure: str, a: int, b: int) -> significance.PairedTest | None:
    """Of the first being better, on the mixtures that both have; None: fewer than two."""
    differences = _column(scores, measure, a, b)
    differences = differences[np.isfinite(differences)]
    if len(differences) < 2:
        return None
    better = 1.0 if COLUMNS[measure].higher_is_better else -1.0
    return significance.paired_test(better * differences, _scale(scores, measure, a, b))


def _pair_row(
    scores: Scores,
    measure: str,
    a: int,
    b: int,
    estimate: Estimate,
    test: significance.PairedTest | None,
    alpha: float,
) -> dict[str, Any]:
    count = estimate.n
    row: dict[str, Any] = {
        "measure": measure,
        "system_a": scores.systems[a],
        "system_b": scores.systems[b],
        "n": count,
        "undefined": int((scores.given[:, a] & scores.given[:, b]).sum()) - count,
        "note": "n < 2",
    }
    if test is None:
        return row | {"p_wilcoxon": np.nan}
    notes = [APPROXIMATE] if count < significance.FEW else []
    if test.least_p > alpha:
        notes.append(f"cannot reject: the smallest attainable p is {test.least_p:.2g}")
    row |= {"difference": estimate.mean, "low": estimate.low, "high": estimate.high}
    row |= {"wins": test.wins, "ties": test.ties, "losses": test.losses}
    return row | {"p_wilcoxon": test.p, "effect": test.effect, "note": "; ".join(notes)}


def family_of(pairs: Sequence[Mapping[Any, Any]], alpha: float) -> tuple[int, int]:
    """Mixtures of the largest pair, and the pairs that Holm counts: those that may reject."""
    counts = [row["n"] for row in pairs if row["p_wilcoxon"] == row["p_wilcoxon"]]
    testable = [n for n in counts if significance.least_holm_p(n, 1) <= alpha]
    return max(counts, default=0), len(testable or counts)


def _ranked(
    scores: Scores,
    measure: str,
    found: Mapping[Any, Estimate],
    pairs: Sequence[Mapping[str, Any]],
    alpha: float,
    weight: str,
) -> list[dict[str, Any]]:
    """The systems of one measure, best mean first, with their groups."""
    made = [found[measure, system, None] for system in range(len(scores.systems))]
    better = 1.0 if COLUMNS[measure].higher_is_better else -1.0
    means = better * np.array([one.mean for one in made])
    order = np.argsort(-np.nan_to_num(means, nan=-np.inf), kind="stable").tolist()
    too_small = significance.least_holm_p(*family_of(pairs, alpha)) > alpha and len(made) > 1
    groups = significance.letters(_different(scores.systems, order, pairs, alpha))
    rows = []
    for system, group in zip(order, groups):
        name, one = scores.systems[system], made[system]
        notes = [APPROXIMATE] if 2 <= one.n < significance.FEW else []
        notes += [TOO_SMALL] if too_small else []
        notes += list(_warnings(scores, measure, system))
        rows.append(
            {"measure": measure, "system": name, "n": one.n, "mean": one.mean}
            | {"low": one.low, "high": one.high, "group": group if one.n else ""}
            | {"undefined": int(scores.given[:, system].sum()) - one.n, "weight": weight}
            | {"note": "; ".join(notes)}
        )
    return rows


def _warnings(scores: Scores, measure: str, system: int) -> Iterable[str]:
    """What a reader of a system's mean must know."""
    failed = scores.failed(scores.systems[system])
    if failed:
        yield f"failed: {io.listed(failed, 3)}"
    values = scores.values[measure][:, system]
    mixture = outlier(values)
    if mixture is not None:
        mean, others = np.nanmean(values), np.nanmean(np.delete(values, mixture))
        if text(measure, mean) != text(measure, others):
            yield (
                f"{scores.mixtures[mixture]} moves the mean: {text(measure, mean)} with it, "
                f"{text(measure, others)} without"
            )
    if measure in scores.errors:
        errors = scores.errors[measure][np.isfinite(values), system]
        if np.isfinite(errors).any():  # of a mean of independent excerpts
            error = np.sqrt(np.nansum(errors**2)) / np.isfinite(errors).sum()
            yield f"standard error from excerpts {error:.2g}"


def outlier(values: Array) -> int | None:
    """The one value of (n,) that moves their mean by more than the others vary; None: no such one.

    With n values it lies more than n, and at least 10, standard deviations of the others from
    their mean.
    """
    place = np.flatnonzero(np.isfinite(values))
    kept = values[place]
    if len(kept) < 4:
        return None
    k = int(np.argmax(np.abs(kept - np.median(kept))))
    others = np.delete(kept, k)
    far = abs(kept[k] - others.mean()) > max(_FAR, len(kept)) * others.std(ddof=1)
    return int(place[k]) if far else None


def _different(
    systems: Sequence[str],
    order: Sequence[int],
    pairs: Sequence[Mapping[str, Any]],
    alpha: float,
) -> NDArray[np.bool_]:
    """Which systems differ significantly, in ``order``."""
    place = {systems[system]: rank for rank, system in enumerate(order)}
    found = np.zeros((len(order), len(order)), dtype=bool)
    for row in pairs:
        if row["p_holm"] <= alpha:  # not where it is NaN
            a, b = place[row["system_a"]], place[row["system_b"]]
            found[a, b] = found[b, a] = True
    return found


def source_rows(scores: Scores, rows: DataFrame) -> list[dict[str, Any]]:
    """The mean of every measure, source name and system, over mixtures: of ``scores.csv``."""
    if rows.empty:
        return []
    weight = dict(zip(map(io.same_name, scores.mixtures), scores.weights))
    systems = {io.same_name(name): name for name in scores.systems}
    names = {name: rows[name].map(io.same_name) for name in ("mixture_id", "system", "source")}
    rows = rows.drop_duplicates(["mixture_id", "system", "source"]).assign(
        weight=names["mixture_id"].map(weight),
        system=names["system"].map(systems),
        source=names["source"],
    )
    found = []
    for measure in (name for name in scores.values if name in rows):
        there = rows.dropna(subset=[measure, "system", "weight"])
        for (source, system), own in there.groupby(["source", "system"], sort=False):
            mean = np.average(own[measure], weights=own["weight"])
            row = {"measure": measure, "source": source, "system": system}
            found.append({**row, "n": len(own), "mean": mean})
    return found
