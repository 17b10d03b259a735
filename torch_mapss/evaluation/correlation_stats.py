"""Scores against ratings: correlations within and over tracks, intervals, p-values.

*Per track*: the correlation over the systems of one track and source [eq:ps_pcc_i], [eq:srcc_ps],
averaged over tracks and sources [eq:ps_pcc]. *Pooled*: one correlation over all stimuli, which also
reflects that some tracks sound better than others, and compares scores between tracks.

*Intervals* are BCa bootstrap intervals over clusters of related stimuli: tracks by default, or
talkers, conditions, systems. If a track has stimuli of several clusters, its correlation is
recomputed in every sample. *p-values* are from permutations of the ratings within a track and
source, or, pooled, of all ratings.

Ranks are average ranks; numbers that differ only by rounding are tied
(:func:`~torch_mapss.evaluation.significance.merge_ties`).

Here `stimuli` is a table of one question and scenario: ``unit`` (index of the track and source),
``cluster`` (index of what is resampled), ``rating``, and the measures, NaN where undefined.
Measures are *oriented*: higher is better.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from functools import reduce
from operator import sub
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from torch_mapss.evaluation.significance import bca, merge_ties, rounding

if TYPE_CHECKING:
    from pandas import DataFrame

POOLINGS = ("per_track", "pooled")
METHODS = ("srcc", "pcc")
LEAST_SYSTEMS = 3
# Numbers held at once by a block of permutations.
_BLOCK = 2**20
_Array = NDArray[Any]


class CorrelationSettings(NamedTuple):
    """Settings of correlations."""

    confidence: float = 0.95  # of intervals and half-widths, in (0, 1)
    draws: int = 2000  # number for bootstrap and permutations; p is at least 1/(draws + 1). 0: none
    seed: int = 0  # seed of both
    convention: str = "derived"  # of radius and half-width, or "paper": as printed
    source_correlation: float = 0.0  # ρ_l in [-1, 1] of [eq:scenario_halfwidth_pcc]
    # Unit that intervals resample: a column of the ratings, e.g. track, system, talker or
    # condition.
    cluster: str = "track"


def usable_stimuli(
    stimuli: DataFrame, measures: Sequence[str], pooling: str
) -> tuple[DataFrame, list[str]]:
    """Stimuli that count for all of the measures, and the reasons why others do not.

    A stimulus needs all scores. Per track, a unit counts only with enough systems, and if scores
    and ratings vary; pooled, all stimuli are one unit.
    """
    pooled = pooling == "pooled"
    fewest, counted = (2, "stimuli") if pooled else (LEAST_SYSTEMS, "systems")
    stimuli = stimuli.assign(unit=0) if pooled else stimuli
    unit_count, columns = stimuli["unit"].nunique(), [*measures, "rating"]
    stimuli = stimuli.dropna(subset=columns)
    units = stimuli.groupby("unit")[columns]
    enough = units.size() >= fewest
    low, high = units.min()[enough], units.max()[enough]
    constant = high - low <= rounding(np.maximum(low.abs(), high.abs()))
    counts = {f"fewer than {fewest} {counted} with a score": unit_count - enough.sum()}
    counts |= {"scores do not vary": constant[columns[0]].sum()}
    counts |= {"ratings do not vary": constant["rating"].sum()}
    share = "" if pooled else f"{{}} of {unit_count} tracks and sources: "
    reasons = [share.format(count) + reason for reason, count in counts.items() if count]
    varied = constant.index[~constant.any(axis=1)]
    return stimuli if pooled else stimuli[stimuli["unit"].isin(varied)], reasons


def correlation(x: _Array, m: _Array, method: str, times: _Array | None = None) -> _Array:
    """PCC or SRCC of two (n,) vectors whose elements occur ``times`` (R, n) times each.

    Returns:
        (R,); NaN if one of the two does not vary. Memory is linear in n.
    """
    times = np.ones((1, len(x))) if times is None else times
    x, m = merge_ties(x), merge_ties(m)
    varies = _varies(x, times) & _varies(m, times)
    x, m = (_ranks(v, times) if method == "srcc" else v for v in (x, m))
    total = times.sum(-1, keepdims=True)
    x, m = (v - (times * v).sum(-1, keepdims=True) / total for v in (x, m))
    scale = np.sqrt((times * x * x).sum(-1) * (times * m * m).sum(-1))
    varies &= scale > 0.0
    value = (times * x * m).sum(-1) / np.where(varies, scale, 1.0)
    return np.where(varies, np.clip(value, -1.0, 1.0), math.nan)


def _ranks(x: _Array, times: _Array) -> _Array:
    """(R, n) average ranks of (n,) values that occur ``times`` (R, n) times."""
    order = np.argsort(x, kind="stable")
    group_starts = np.flatnonzero(np.r_[True, np.diff(x[order]) > 0.0])  # of ties
    size = np.add.reduceat(times[:, order], group_starts, axis=1)
    ranks = np.cumsum(size, axis=1) - size + (size + 1.0) / 2.0
    group = np.empty(len(x), dtype=int)
    group[order] = np.repeat(np.arange(len(group_starts)), np.diff(np.r_[group_starts, len(x)]))
    return ranks[:, group]


def _varies(x: _Array, times: _Array) -> _Array:
    """(R,) bool, whether those of the (n,) values that occur differ."""
    present = times > 0.0
    return np.where(present, x, -np.inf).max(-1) > np.where(present, x, np.inf).min(-1)


class SampledCorrelation:
    """One measure of usable stimuli against one question, for any sample of clusters."""

    def __init__(self, stimuli: DataFrame, measure: str, method: str) -> None:
        self.method, self.size = method, len(stimuli)
        self.clusters, index = np.unique(stimuli["cluster"], return_inverse=True)
        scores, ratings = stimuli[[measure, "rating"]].to_numpy(float).T
        rows_of_units = stimuli.groupby("unit").indices.values()
        #: Scores, ratings and indices of the clusters of every unit.
        self.units = [(scores[rows], ratings[rows], index[rows]) for rows in rows_of_units]
        self._values = np.array([correlation(x, m, method)[0] for x, m, _ in self.units])
        #: The correlation itself, NaN where it is undefined.
        self.value = float(self._values.mean()) if self.units else math.nan
        # A unit within one cluster is drawn as a whole, so its correlation does not change.
        self._undivided = all(np.ptp(clusters) == 0 for *_, clusters in self.units)

    def sampled(self, times: _Array) -> _Array:
        """Correlations (R,) if cluster k occurs ``times[:, k]`` times; ``times``: (R, clusters)."""
        if self._undivided:
            weights = times[:, [clusters[0] for *_, clusters in self.units]]
            return weights @ self._values / weights.sum(-1)
        values = [correlation(x, m, self.method, times[:, index]) for x, m, index in self.units]
        return np.nanmean(values, axis=0)


def intervals(
    terms_of_rows: Sequence[Sequence[SampledCorrelation]], settings: CorrelationSettings
) -> tuple[_Array, _Array]:
    """Ends (K,) of intervals over the same clusters.

    Args:
        terms_of_rows: K rows of one correlation, or of two of which the second is subtracted.
        settings: confidence, draws and seed. All rows share the samples of the bootstrap.
    """
    correlations = {term for terms in terms_of_rows for term in terms}

    def sampled(times: _Array) -> _Array:
        values = {term: term.sampled(times) for term in correlations}
        rows = []
        for terms in terms_of_rows:
            rows.append(reduce(sub, [values[term] for term in terms]))
        return np.stack(rows)

    return bca(
        sampled,
        units=len(terms_of_rows[0][0].clusters),
        size=max(term.size for term in correlations),
        scale=1.0,
        confidence=settings.confidence,
        draws=settings.draws,
        seed=settings.seed,
    )


def permutation_p(sampled: SampledCorrelation, *, draws: int = 2000, seed: int = 0) -> float:
    """Two-sided p-value of no association: the share of permutations at least as extreme.

    The identity counts as one of them, so that p is at least 1/(draws + 1).
    """
    if draws < 1 or math.isnan(sampled.value):
        return math.nan
    rng, extreme = np.random.default_rng(seed), 0
    method = sampled.method
    units = [(_standardised(x, method), _standardised(m, method)) for x, m, _ in sampled.units]
    block = max(1, _BLOCK // max(len(x) for x, _ in units))
    for drawn in range(0, draws, block):
        total = np.zeros(min(block, draws - drawn))
        for x, m in units:
            total += rng.permuted(np.tile(m, (len(total), 1)), axis=1) @ x
        threshold = abs(sampled.value) * (1.0 - 1e-9)
        extreme += int((np.abs(total / len(units)) >= threshold).sum())
    return (1 + extreme) / (draws + 1)


def _standardised(values: _Array, method: str) -> _Array:
    """Values (or their ranks), centred and of length 1, so that their products are correlations."""
    if method == "srcc":
        (values,) = _ranks(merge_ties(values), np.ones((1, len(values))))
    values = values - values.mean()
    return values / np.linalg.norm(values)
