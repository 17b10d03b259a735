"""Tables of a comparison from the rows of ``items.csv``: pairs of systems, and their ranking.

Systems are *ranked* on the mixtures in which all of them have a score: means over other mixtures
would compare the mixtures. Two systems are *tested* on all mixtures in which both have a score.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from itertools import combinations
from typing import TYPE_CHECKING, Any

import numpy as np

from torch_mapss.evaluation import io, significance
from torch_mapss.evaluation.manifest import CONTROL
from torch_mapss.evaluation.significance import FEW, Array
from torch_mapss.score_table import SCORES, score_text

if TYPE_CHECKING:
    from pandas import DataFrame, Series

COMPARISON_COLUMNS = (
    *("measure", "system_a", "system_b", "n", "difference", "low", "high"),
    *("p_wilcoxon", "p_holm", "wins", "ties", "losses", "effect", "undefined", "weight", "note"),
)
RANKING_COLUMNS = (
    *("measure", "system", "n", "mean", "low", "high", "group", "undefined", "left_out"),
    *("weight", "note"),
)
SOURCE_COLUMNS = ("measure", "source", "system", "n", "mean")
CONTROL_COLUMNS = ("measure", "system", "n", "mean")
_APPROXIMATE = f"interval approximate (n < {FEW})"
#: Weightings of mixtures -> column of ``items.csv`` that holds the weight.
WEIGHTS = {"equal": "requested", "duration": "seconds", "sources": "references"}
_ITEM = ["mixture_id", "system"]


@dataclass(frozen=True)
class ComparedScores:
    """One number per mixture, system and score."""

    values: Mapping[str, DataFrame] = field(repr=False)  # by score: mixtures x systems, or NaN
    errors: Mapping[str, DataFrame] = field(repr=False)  # likewise: standard errors of excerpts
    requested: DataFrame = field(repr=False)  # likewise, bool: whether the system was to be scored
    weights: Series = field(repr=False)  # by mixture
    failures: Mapping[tuple[str, str], str]  # (system, mixture) -> reason
    rows: DataFrame = field(repr=False)  # rows of every estimate, by mixture and source
    _differences: dict[tuple[str, str, str], Series] = field(default_factory=dict, repr=False)
    _ranked: dict[str, DataFrame] = field(default_factory=dict, repr=False)

    @property
    def systems(self) -> tuple[str, ...]:
        """Names of the systems."""
        return tuple(map(str, self.requested))

    def ranked_values(self, measure: str) -> DataFrame:
        """(mixtures x systems) scores to rank by, restricted to what all systems have.

        These are the mixtures in which all have a score and, where some left out sources, the mean
        over the sources that all estimated. A system without any value of this score does not
        exclude mixtures. If no mixture has a score for all systems, each system keeps the scores of
        its own mixtures, whose means are only for information (see :meth:`can_rank`).
        """
        if measure not in self._ranked:
            values = self.values[measure]
            systems = values.columns[values.notna().any()]
            values = self._over_shared_sources(measure, values)
            common = values[values[systems].notna().all(axis=1)]
            self._ranked[measure] = common if len(common) else self.values[measure]
        return self._ranked[measure]

    def can_rank(self, measure: str) -> bool:
        """Whether at least one mixture has a score for all systems that have any."""
        values = self.ranked_values(measure)
        systems = values.columns[self.values[measure].notna().any()]
        return bool(values[systems].notna().all(axis=1).any())

    def _over_shared_sources(self, measure: str, values: DataFrame) -> DataFrame:
        """Scores whose means use only the sources that all systems estimated in a mixture."""
        if not self.is_uneven.any():
            return values
        rows = self.rows[self.is_uneven[self.rows.index.get_level_values("mixture_id")].to_numpy()]
        systems = rows.groupby("mixture_id")["system"].transform("nunique")
        shared = rows[rows.groupby(level=[0, 1])["system"].transform("nunique") == systems]
        means = shared.groupby(["mixture_id", "system"])[measure].mean().unstack()
        changed = values[self.is_uneven].index
        values = values.copy()
        values.loc[changed] = means.reindex(index=changed, columns=values.columns)
        return values

    def lead(self, measure: str, system: str, rival: str) -> Series:
        """By mixture, how much better ``system`` is than ``rival``; NaN if one has no score."""
        direction = 1.0 if SCORES[measure].higher_is_better else -1.0
        return direction * self.difference(measure, system, rival)

    def difference(self, measure: str, a: str, b: str) -> Series:
        """By mixture, ``a`` minus ``b``, over their common sources if one left out some."""
        key = measure, a, b
        if key not in self._differences:
            self._differences[key] = self._difference(measure, a, b)
        return self._differences[key]

    def _difference(self, measure: str, a: str, b: str) -> Series:
        means = [self.values[measure][name] for name in (a, b)]
        if self.is_uneven.any():
            scores = [self.rows[self.rows["system"] == name][measure] for name in (a, b)]
            in_both = scores[0].index.intersection(scores[1].index)
            common = [by_source[in_both].groupby("mixture_id").mean() for by_source in scores]
            means = [mean.mask(self.is_uneven, shared) for mean, shared in zip(means, common)]
        difference = means[0] - means[1]
        size = np.maximum(means[0].abs(), means[1].abs())
        equal = difference.abs() <= significance.rounding(size, np.float32)  # as scores are
        return difference.mask(equal, 0.0)

    @cached_property
    def is_uneven(self) -> Series:
        """By mixture, whether a system left out sources that another system estimated."""
        mixtures = self.rows.groupby("mixture_id")
        by_source = self.rows.groupby(["mixture_id", "source"]).size()
        fewest = by_source.groupby("mixture_id").min()
        is_uneven = fewest < mixtures["system"].nunique()
        return is_uneven.reindex(self.requested.index, fill_value=False)

    def missing_estimates(self) -> dict[str, dict[str, list[str]]]:
        """By system and mixture, the sources that it lacks although another system has them."""
        mixtures, sources = self.rows.index.get_level_values(0), self.rows.index.get_level_values(1)
        everywhere = {*zip(mixtures, sources)}
        missing: dict[str, dict[str, list[str]]] = {}
        for system in self.systems:
            estimated = {*self.rows.index[self.rows["system"] == system]}
            for mixture, source in sorted(everywhere - estimated):
                missing.setdefault(system, {}).setdefault(mixture, []).append(source)
        return missing


def compared_scores(
    items: DataFrame,
    rows: DataFrame,
    weight: str,
    systems: Sequence[str] | None,
    controls: bool,
    measures: Sequence[str],
) -> ComparedScores:
    """Scores ``measures`` to compare, from the rows of ``items.csv`` and ``scores.csv``.

    Raises:
        ValueError: a mixture and system occur twice with different scores, a system is unknown, or
            none is left.
    """
    items = _chosen(_one_spelling(items, _ITEM), systems, controls)
    is_ambiguous = items.groupby(_ITEM)[[*measures]].nunique(dropna=False).gt(1).any(axis=1)
    if is_ambiguous.any():
        mixture, system = is_ambiguous.index[is_ambiguous.to_numpy()][0]
        raise ValueError(
            f"mixture {mixture!r}, system {system!r} occurs twice, with different scores. Give "
            "the systems different names."
        )
    items = items.drop_duplicates(_ITEM).assign(requested=1.0)
    mixtures, names = items["mixture_id"].unique(), items["system"].unique()

    def table(column: str) -> DataFrame:
        wide = items.pivot(index="mixture_id", columns="system", values=column)
        wide = wide.reindex(index=mixtures, columns=names).astype(float)
        return wide.where(np.isfinite(wide))

    values = {measure: table(measure) for measure in measures}
    scored = {measure: wide for measure, wide in values.items() if wide.notna().any(axis=None)}
    errors = {name: table(f"{name}_se") for name in measures if f"{name}_se" in items}
    weights = table(WEIGHTS[weight]).max(axis=1)
    weights = weights.where(weights > 0.0, 1.0)  # failed mixtures have no score and no duration
    failed = items[items["status"] == "failed"]
    reasons = dict(zip(zip(failed["system"], failed["mixture_id"]), failed["reason"]))
    key = [*_ITEM, "source"]
    rows = _one_spelling(rows, key).drop_duplicates(key)
    rows = rows[rows["system"].isin(names)].set_index(["mixture_id", "source"])
    requested = table("requested").notna()
    return ComparedScores(scored or values, errors, requested, weights, reasons, rows)


def _one_spelling(table: DataFrame, columns: Sequence[str]) -> DataFrame:
    """Unify names that differ only in their Unicode form; the first form is kept."""
    spelled = {
        column: table.groupby(table[column].map(io.same_name))[column].transform("first")
        for column in columns
    }
    return table.assign(**spelled)


def without_controls(names: Sequence[str]) -> list[str]:
    """Systems to rank: all but hidden references and anchors, unless there is nothing else."""
    systems = [name for name in names if not name.startswith(CONTROL)]
    return systems or [*names]


def _chosen(items: DataFrame, systems: Sequence[str] | None, controls: bool) -> DataFrame:
    """Rows of the systems to compare, including controls that are named or asked for."""
    spellings = {io.same_name(name): name for name in items["system"]}
    if systems is None:
        chosen = [*spellings] if controls else without_controls([*spellings])
    else:
        chosen = [*map(io.same_name, systems)]
    names = [spellings.get(name) for name in chosen]
    if spellings and (None in names or not names):
        raise ValueError(
            "systems must be among those of the results, "
            f"{io.listed(map(repr, spellings.values()), 12)}, got "
            f"{io.listed(map(repr, chosen))}."
        )
    return items[items["system"].isin(names)]


def comparison_and_ranking(
    scores: ComparedScores,
    alpha: float,
    weight: str,
    ceilings: Mapping[tuple[str, str], float],
    *,
    confidence: float,
    seed: int,
) -> tuple[DataFrame, DataFrame]:
    """Tables ``comparison.csv`` and ``ranking.csv``, one score after the other.

    ``ceilings``: share of frames at the highest value, by score and system.
    """
    import pandas

    compared, ranking = [], []
    all_means = _means(scores, confidence, seed)
    for measure, means in all_means.groupby("measure", sort=False):
        of_system = means["system_b"].isna()
        means["weight"] = weight
        name = str(measure)
        compared.append(_tested(scores, name, means[~of_system], alpha))
        ranking.append(_ranked(scores, name, means[of_system], compared[-1], alpha, ceilings))
    tested = pandas.concat(compared, ignore_index=True)[[*COMPARISON_COLUMNS]]
    tested = tested.astype(dict.fromkeys(("wins", "ties", "losses"), "Int64"))  # NA without a test
    return tested, pandas.concat(ranking, ignore_index=True)[[*RANKING_COLUMNS]]


def _means(scores: ComparedScores, confidence: float, seed: int) -> DataFrame:
    """Means with intervals: of each system, and of the differences of each two systems.

    Columns are n, mean, low and high; rows without ``system_b`` are single systems, over the
    mixtures that all have. One table holds both, because columns that are defined in the same
    mixtures share their bootstrap samples.
    """
    from pandas import DataFrame

    rows, columns = [], []
    for measure, values in scores.values.items():
        largest = values.abs().max().fillna(0.0)
        ranked = scores.ranked_values(measure).reindex(values.index)
        for system in scores.systems:
            columns.append(ranked[system])
            head = {"measure": measure, "system_a": system, "system_b": None}
            rows.append({**head, "scale": largest[system]})
        for a, b in combinations(scores.systems, 2):
            columns.append(scores.difference(measure, a, b))
            head = {"measure": measure, "system_a": a, "system_b": b}
            rows.append({**head, "scale": max(largest[a], largest[b])})
    table = DataFrame(rows)
    weights, scale = scores.weights.to_numpy(), table["scale"].to_numpy()
    n, mean, low, high = significance.mean_intervals(
        np.column_stack(columns), weights, scale, confidence=confidence, seed=seed
    )
    return table.assign(n=n, mean=mean, low=low, high=high)


def _tested(scores: ComparedScores, measure: str, means: DataFrame, alpha: float) -> DataFrame:
    """Tests of each two systems in one score, for whether the first is better."""
    from pandas import DataFrame

    tests = []
    for a, b, n, scale in means[["system_a", "system_b", "n", "scale"]].itertuples(index=False):
        both_requested = int((scores.requested[a] & scores.requested[b]).sum())
        test = {"undefined": both_requested - n, "note": "n < 2"}
        if n >= 2:
            leads = scores.lead(measure, a, b).dropna().to_numpy()
            test |= significance.paired_test(leads, scale)._asdict()
            notes = [_APPROXIMATE] if n < FEW else []
            if test["least_p"] > alpha:
                smallest_p = significance.p_text(test["least_p"])
                notes.append(f"cannot reject: the smallest attainable p is {smallest_p}")
            test["note"] = "; ".join(notes)
        tests.append(test)
    columns = [*significance.PairedTest._fields, "undefined", "note"]
    compared = means.join(DataFrame(tests, means.index, columns))
    p = significance.holm(compared["p_wilcoxon"].to_numpy(float), compared["least_p"], alpha)
    return compared.assign(p_holm=p, difference=compared["mean"].where(compared["n"] >= 2))


def _ranked(
    scores: ComparedScores,
    measure: str,
    means: DataFrame,
    compared: DataFrame,
    alpha: float,
    ceilings: Mapping[tuple[str, str], float],
) -> DataFrame:
    """Systems in one score, best mean first, with their groups."""
    means = means.rename(columns={"system_a": "system"}).reset_index(drop=True)
    scored = scores.values[measure].notna().sum().to_numpy()
    means["undefined"] = scores.requested.sum().to_numpy() - scored
    means["left_out"] = scored - means["n"]
    lower = not SCORES[measure].higher_is_better
    means = means.sort_values("mean", ascending=lower, kind="stable")
    different = np.zeros((len(means), len(means)), dtype=bool)
    # Rows of ``compared`` are the pairs (0, 1), (0, 2), ... as itertools.combinations gives them.
    different[np.triu_indices(len(means), 1)] = compared["p_holm"] <= alpha
    order = means.index.to_numpy(int)
    groups = significance.letters((different | different.T)[np.ix_(order, order)])
    smallest_holm_p = significance.least_holm_p(*family_of(compared, alpha))
    too_small = len(means) > 1 and smallest_holm_p > alpha
    is_ranked = scores.can_rank(measure)
    notes = []
    rows: Any = means.itertuples()
    for row in rows:
        remarks = [_APPROXIMATE] if 2 <= row.n < FEW else []
        remarks += [] if is_ranked else ["mean over its own mixtures, not ranked"]
        remarks += ["n too small to order"] if too_small else []
        failed = [mixture for system, mixture in scores.failures if system == row.system]
        remarks += [f"failed: {io.listed(failed, 3)}"] if failed else []
        if row.left_out:
            remarks.append(f"{row.left_out} mixtures left out: other systems have no score there")
        share = ceilings.get((measure, row.system), 0.0)
        remarks += [f"{100 * share:.0f} % of frames at the ceiling"] if share > 0.5 else []
        notes.append("; ".join([*remarks, *mean_warnings(scores, measure, row.system)]))
    has_group = (means["n"] > 0) & is_ranked
    return means.assign(group=np.where(has_group, groups, ""), note=notes)


def family_of(compared: DataFrame, alpha: float) -> tuple[int, int]:
    """Most mixtures that two systems share, and the number of tests in Holm's family."""
    counts = compared["n"][compared["p_wilcoxon"].notna()]
    testable = [n for n in counts if significance.least_holm_p(n, 1) <= alpha]
    return max(counts, default=0), len(testable or counts)


def mean_warnings(scores: ComparedScores, measure: str, system: str) -> Iterator[str]:
    """Warnings about a system's mean."""
    values = scores.ranked_values(measure)[system].dropna()
    index = outlier(values.to_numpy())
    if index is not None:
        name = values.index[index]
        before = score_text(measure, values.mean())
        after = score_text(measure, values.drop(name).mean())
        if before != after:
            yield f"{name} moves the mean: {before} with it, {after} without"
    if measure in scores.errors:  # of means of independent excerpts
        errors = scores.errors[measure][system][values.index].dropna()
        if len(errors):
            error = np.sqrt((errors**2).mean() / len(values))
            yield f"standard error from excerpts {error:.2g}"


def outlier(values: Array) -> int | None:
    """Index of a value over max(n, 10) standard deviations from the mean of the rest, or None."""
    if len(values) < 4:
        return None
    index = int(np.argmax(np.abs(values - np.median(values))))
    remaining = np.delete(values, index)
    distance = abs(values[index] - remaining.mean())
    return index if distance > max(10, len(values)) * remaining.std(ddof=1) else None


def source_means(scores: ComparedScores) -> DataFrame:
    """Means over mixtures by score, source name and system, from the rows of ``scores.csv``."""
    from pandas import DataFrame

    rows = scores.rows.reset_index()
    rows = rows.assign(weight=rows["mixture_id"].map(scores.weights)).dropna(subset="weight")
    measures = [measure for measure in scores.values if measure in rows]
    head = [*_ITEM, "source", "weight"]
    long = rows.melt(head, measures, "measure", "mean").dropna(subset="mean")
    means = [
        (*names, len(group), np.average(group["mean"], weights=group["weight"]))
        for names, group in long.groupby(["measure", "source", "system"], sort=False)
    ]
    return DataFrame(means, columns=SOURCE_COLUMNS)


def control_means(items: DataFrame, systems: Sequence[str], measures: Sequence[str]) -> DataFrame:
    """Means by score of the controls that are not among the ranked systems."""
    from pandas import DataFrame

    control = items["system"].str.startswith(CONTROL) & ~items["system"].isin(systems)
    long = items[control].melt(_ITEM, [*measures], "measure", "mean").dropna(subset="mean")
    means = [
        (*names, len(group), group["mean"].mean())
        for names, group in long.groupby(["measure", "system"], sort=False)
    ]
    return DataFrame(means, columns=CONTROL_COLUMNS)
