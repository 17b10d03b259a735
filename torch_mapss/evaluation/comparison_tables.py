"""Rows of ``items.csv`` -> tables of a comparison: every pair of systems, and their ranking."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from itertools import combinations
from typing import TYPE_CHECKING

import numpy as np

from torch_mapss.evaluation import io, significance
from torch_mapss.evaluation.manifest import CONTROL
from torch_mapss.evaluation.significance import FEW, Array, Bootstrap
from torch_mapss.score_table import SCORES, present, score_text

if TYPE_CHECKING:
    from pandas import DataFrame, Series

PAIR_COLUMNS = (
    *("measure", "system_a", "system_b", "n", "difference", "low", "high"),
    *("p_wilcoxon", "p_holm", "wins", "ties", "losses", "effect", "undefined", "weight", "note"),
)
RANK_COLUMNS = (
    *("measure", "system", "n", "mean", "low", "high", "group", "undefined", "weight", "note"),
)
SOURCE_COLUMNS = ("measure", "source", "system", "n", "mean")
_APPROXIMATE = f"interval approximate (n < {FEW})"
#: How mixtures may be weighted, and the column of ``items.csv`` that says how much each counts.
WEIGHTS = {"equal": "given", "duration": "seconds", "sources": "references"}
_KEY = ["mixture_id", "system"]


@dataclass(frozen=True)
class Scores:
    """One number per mixture, system and measure."""

    values: Mapping[str, DataFrame] = field(repr=False)  # by measure: mixtures x systems, or NaN
    errors: Mapping[str, DataFrame] = field(repr=False)  # likewise: standard errors of excerpts
    given: DataFrame = field(repr=False)  # likewise, bool: the pair was to be scored
    weights: Series = field(repr=False)  # by mixture
    failures: Mapping[tuple[str, str], str]  # (system, mixture) -> reason
    rows: DataFrame = field(repr=False)  # of every estimate, by mixture and source

    def difference(self, measure: str, a: str, b: str) -> Series:
        """By mixture, ``a`` less ``b``: over the sources of both, where one left out some."""
        means = [self.values[measure][name] for name in (a, b)]
        if self.unlike.any():
            own, other = (self.rows[self.rows["system"] == name][measure] for name in (a, b))
            both = own.index.intersection(other.index)
            common = (one[both].groupby("mixture_id").mean() for one in (own, other))
            means = [mean.mask(self.unlike, one) for mean, one in zip(means, common)]
        difference = means[0] - means[1]
        size = np.maximum(means[0].abs(), means[1].abs())
        equal = difference.abs() <= significance.rounding(size, np.float32)  # as scores are
        return difference.mask(equal, 0.0)

    @cached_property
    def unlike(self) -> Series:
        """By mixture, whether some systems left out sources that others estimated."""
        mixtures = self.rows.groupby("mixture_id")
        fewest = self.rows.groupby(["mixture_id", "source"]).size().groupby("mixture_id").min()
        found = fewest < mixtures["system"].nunique()
        return found.reindex(self.given.index, fill_value=False)


def scores_of(
    items: DataFrame, rows: DataFrame, weight: str, systems: Sequence[str] | None, references: bool
) -> Scores:
    """Of the rows of ``items.csv`` and ``scores.csv``; the rest as for :func:`torch_mapss.compare`.

    Raises:
        ValueError: the same pair twice with unlike scores, an unknown system, or no system left.
    """
    items = _chosen(_one_spelling(items, _KEY), systems, references)
    measures = list(present(items, ranked=True))
    unlike = items.groupby(_KEY)[measures].nunique(dropna=False).gt(1).any(axis=1)
    if unlike.any():
        mixture, system = unlike.index[unlike.to_numpy()][0]
        raise ValueError(
            f"mixture {mixture!r}, system {system!r} occurs twice, with unlike scores. Give the "
            "systems names of their own."
        )
    items = items.drop_duplicates(_KEY).assign(given=1.0)
    mixtures, names = items["mixture_id"].unique(), items["system"].unique()

    def table(column: str) -> DataFrame:
        wide = items.pivot(index="mixture_id", columns="system", values=column)
        wide = wide.reindex(index=mixtures, columns=names).astype(float)
        return wide.where(np.isfinite(wide))

    values = {measure: table(measure) for measure in measures}
    scored = {measure: own for measure, own in values.items() if own.notna().any(axis=None)}
    errors = {name: table(f"{name}_se") for name in measures if f"{name}_se" in items}
    weights = table(WEIGHTS[weight]).max(axis=1)
    weights = weights.where(weights > 0.0, 1.0)  # a failed mixture has no score and no length
    failed = items[items["status"] == "failed"]
    reasons = dict(zip(zip(failed["system"], failed["mixture_id"]), failed["reason"]))
    key = [*_KEY, "source"]
    rows = _one_spelling(rows, key).drop_duplicates(key)
    rows = rows[rows["system"].isin(names)].set_index(["mixture_id", "source"])
    return Scores(scored or values, errors, table("given").notna(), weights, reasons, rows)


def _one_spelling(table: DataFrame, columns: Sequence[str]) -> DataFrame:
    """The same text in two Unicode forms is one name, in the form that comes first."""
    found = {c: table.groupby(table[c].map(io.same_name))[c].transform("first") for c in columns}
    return table.assign(**found)


def _chosen(items: DataFrame, systems: Sequence[str] | None, references: bool) -> DataFrame:
    known = {io.same_name(name): name for name in items["system"]}
    wanted = [*known] if systems is None else [*map(io.same_name, systems)]
    names = [known.get(n) for n in wanted if references or not n.startswith(CONTROL)]
    if known and (None in names or not names):
        raise ValueError(
            f"systems must be of those of the results, {io.listed(map(repr, known.values()), 12)} "
            f"(--no-references, in Python references=False, leaves out {CONTROL}NAME), got "
            f"{io.listed(map(repr, wanted))}."
        )
    return items[items["system"].isin(names)]


def pairs_and_ranking(
    scores: Scores, alpha: float, weight: str, bootstrap: Bootstrap
) -> tuple[DataFrame, DataFrame]:
    """``comparison.csv`` and ``ranking.csv``, measure after measure."""
    import pandas

    pairs, ranking = [], []
    for measure, found in _means(scores, bootstrap).groupby("measure", sort=False):
        single, found["weight"] = found["system_b"].isna(), weight
        pairs.append(_tested(scores, str(measure), found[~single], alpha))
        ranking.append(_ranked(scores, str(measure), found[single], pairs[-1], alpha))
    tested = pandas.concat(pairs, ignore_index=True)[[*PAIR_COLUMNS]]
    tested = tested.astype(dict.fromkeys(("wins", "ties", "losses"), "Int64"))  # NA without a test
    return tested, pandas.concat(ranking, ignore_index=True)[[*RANK_COLUMNS]]


def _means(scores: Scores, bootstrap: Bootstrap) -> DataFrame:
    """n, mean, low, high of every system (with no ``system_b``) and of all pairs' differences."""
    from pandas import DataFrame

    rows, columns = [], []
    for measure, values in scores.values.items():
        largest = values.abs().max().fillna(0.0)
        for a, b in [*((name, None) for name in values), *combinations(values, 2)]:
            columns.append(values[a] if b is None else scores.difference(measure, str(a), str(b)))
            scale = max(largest[name] for name in (a, b) if name is not None)
            rows.append({"measure": measure, "system_a": a, "system_b": b, "scale": scale})
    table = DataFrame(rows)
    weights, scale = scores.weights.to_numpy(), table["scale"].to_numpy()
    found = significance.mean_intervals(np.column_stack(columns), weights, bootstrap, scale)
    return table.assign(**found._asdict())


def _tested(scores: Scores, measure: str, means: DataFrame, alpha: float) -> DataFrame:
    """The pairs of one measure: tests of the first's being better, on the mixtures of both."""
    from pandas import DataFrame

    better = 1.0 if SCORES[measure].higher_is_better else -1.0
    tests = []
    for a, b, n, scale in means[["system_a", "system_b", "n", "scale"]].itertuples(index=False):
        test = {"undefined": int((scores.given[a] & scores.given[b]).sum()) - n, "note": "n < 2"}
        if n >= 2:
            differences = better * scores.difference(measure, a, b).dropna().to_numpy()
            test |= significance.paired_test(differences, scale)._asdict()
            notes = [_APPROXIMATE] if n < FEW else []
            if test["least_p"] > alpha:
                notes.append(f"cannot reject: the smallest attainable p is {test['least_p']:.2g}")
            test["note"] = "; ".join(notes)
        tests.append(test)
    columns = [*significance.PairedTest._fields, "undefined", "note"]
    pairs = means.join(DataFrame(tests, means.index, columns))
    p = significance.holm(pairs["p_wilcoxon"].to_numpy(float), pairs["least_p"], alpha)
    return pairs.assign(p_holm=p, difference=pairs["mean"].where(pairs["n"] >= 2))


def _ranked(
    scores: Scores, measure: str, means: DataFrame, pairs: DataFrame, alpha: float
) -> DataFrame:
    """The systems of one measure, best mean first, with their groups."""
    means = means.rename(columns={"system_a": "system"}).reset_index(drop=True)
    means["undefined"] = scores.given.sum().to_numpy() - means["n"]
    lower = not SCORES[measure].higher_is_better
    means = means.sort_values("mean", ascending=lower, kind="stable")
    different = np.zeros((len(means), len(means)), dtype=bool)
    different[np.triu_indices(len(means), 1)] = pairs["p_holm"] <= alpha
    order = means.index.to_numpy(int)
    groups = significance.letters((different | different.T)[np.ix_(order, order)])
    too_small = len(means) > 1 and significance.least_holm_p(*family_of(pairs, alpha)) > alpha
    notes = []
    for name, n in zip(means["system"], means["n"]):
        remarks = [_APPROXIMATE] if 2 <= n < FEW else []
        remarks += ["n too small to order"] if too_small else []
        failed = [mixture for one, mixture in scores.failures if one == name]
        remarks += [f"failed: {io.listed(failed, 3)}"] if failed else []
        notes.append("; ".join([*remarks, *warnings(scores, measure, name)]))
    return means.assign(group=np.where(means["n"] > 0, groups, ""), note=notes)


def family_of(pairs: DataFrame, alpha: float) -> tuple[int, int]:
    """Mixtures of the largest pair, and the pairs that Holm counts: those that may reject."""
    counts = pairs["n"][pairs["p_wilcoxon"].notna()]
    testable = [n for n in counts if significance.least_holm_p(n, 1) <= alpha]
    return max(counts, default=0), len(testable or counts)


def warnings(scores: Scores, measure: str, system: str) -> Iterator[str]:
    """What a reader of a system's mean must know."""
    values = scores.values[measure][system].dropna()
    index = outlier(values.to_numpy())
    if index is not None:
        name = values.index[index]
        both = score_text(measure, values.mean()), score_text(measure, values.drop(name).mean())
        if both[0] != both[1]:
            yield f"{name} moves the mean: {both[0]} with it, {both[1]} without"
    if measure in scores.errors:  # of means of independent excerpts
        errors = scores.errors[measure][system][values.index].dropna()
        if len(errors):
            error = np.sqrt((errors**2).mean() / len(values))
            yield f"standard error from excerpts {error:.2g}"


def outlier(values: Array) -> int | None:
    """Where one of (n,) lies max(n, 10) standard deviations of the others from their mean."""
    if len(values) < 4:
        return None
    index = int(np.argmax(np.abs(values - np.median(values))))
    others = np.delete(values, index)
    far = abs(values[index] - others.mean()) > max(10, len(values)) * others.std(ddof=1)
    return index if far else None


def source_means(scores: Scores) -> DataFrame:
    """The mean of every measure, source name and system, over mixtures: of ``scores.csv``."""
    from pandas import DataFrame

    rows = scores.rows.reset_index()
    rows = rows.assign(weight=rows["mixture_id"].map(scores.weights)).dropna(subset="weight")
    measures = [measure for measure in scores.values if measure in rows]
    long = rows.melt([*_KEY, "source", "weight"], measures, "measure", "mean").dropna(subset="mean")
    groups = long.groupby(["measure", "source", "system"], sort=False)
    means = [(*n, len(own), np.average(own["mean"], weights=own["weight"])) for n, own in groups]
    return DataFrame(means, columns=SOURCE_COLUMNS)
