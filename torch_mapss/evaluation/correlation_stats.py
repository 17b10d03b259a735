"""Scores against ratings: correlations within and over tracks, intervals, p-values.

*Per track*: the correlation over the systems of one track and source [eq:ps_pcc_i], [eq:srcc_ps],
averaged over tracks and sources [eq:ps_pcc]. *Pooled*: one correlation over all stimuli, which also
counts that some tracks sound better than others, and compares scores between tracks.

*Intervals* are BCa bootstrap intervals over clusters of stimuli that share something: tracks by
default; or talkers, conditions, systems. Where a track has stimuli of several clusters, its
correlation is computed anew in every sample. *p-values* are of permutations: of the ratings within
a track and source, or pooled of all.

Ranks are average ranks; numbers equal but for rounding are tied
(:func:`~torch_mapss.evaluation.significance.merge_ties`).

Here `stimuli` is a table of one question and scenario: ``unit`` (index of the track and source),
``cluster`` (index of what is resampled), ``rating``, and the measures, NaN where undefined.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from functools import reduce
from operator import sub
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from torch_mapss.evaluation.significance import Bootstrap, bca, merge_ties, rounding

if TYPE_CHECKING:
    from pandas import DataFrame

POOLINGS = ("per_track", "pooled")
METHODS = ("srcc", "pcc")
LEAST_SYSTEMS = 3
# Numbers held at once by a block of permutations.
_BLOCK = 2**20
_Array = NDArray[Any]


class Options(NamedTuple):
    """How correlations are computed."""

    confidence: float = 0.95  # of intervals and half-widths, in (0, 1)
    draws: int = 2000  # of bootstrap and permutations; p is at least 1/(draws + 1). 0: none
    seed: int = 0  # of both
    convention: str = "derived"  # of radius and half-width, or "paper": as printed
    source_correlation: float = 0.0  # ρ_l in [-1, 1] of [eq:scenario_halfwidth_pcc]
    # What intervals resample: a column of the ratings, e.g. track, system, talker or condition.
    cluster: str = "track"


def usable(
    stimuli: DataFrame, measures: Sequence[str], pooling: str
) -> tuple[DataFrame, list[str]]:
    """The stimuli that count for all of some measures, and why others do not.

    Those with scores; per track, where there are enough of them that differ. Pooled, all are of
    one unit.
    """
    pooled = pooling == "pooled"
    least, what = (2, "stimuli") if pooled else (LEAST_SYSTEMS, "systems")
    stimuli = stimuli.assign(unit=0) if pooled else stimuli
    every, names = stimuli["unit"].nunique(), [*measures, "rating"]
    stimuli = stimuli.dropna(subset=names)
    units = stimuli.groupby("unit")[names]
    enough = units.size() >= least
    low, high = units.min()[enough], units.max()[enough]
    constant = high - low <= rounding(np.maximum(low.abs(), high.abs()))
    counts = {f"fewer than {least} {what} with a score": every - enough.sum()}
    counts |= {"scores do not vary": constant[names[0]].sum()}
    counts |= {"ratings do not vary": constant["rating"].sum()}
    of = "" if pooled else f"{{}} of {every} tracks and sources: "
    reasons = [of.format(count) + reason for reason, count in counts.items() if count]
    varied = constant.index[~constant.any(axis=1)]
    return stimuli if pooled else stimuli[stimuli["unit"].isin(varied)], reasons


def correlation(x: _Array, m: _Array, method: str, times: _Array | None = None) -> _Array:
    """PCC or SRCC of two (n,) vectors whose elements occur ``times`` (R, n) times each.

    Returns:
        (R,); NaN where one of the two does not vary. Memory linear in n.
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
    first = np.flatnonzero(np.r_[True, np.diff(x[order]) > 0.0])  # of each group of ties
    size = np.add.reduceat(times[:, order], first, axis=1)
    ranks = np.cumsum(size, axis=1) - size + (size + 1.0) / 2.0
    group = np.empty(len(x), dtype=int)
    group[order] = np.repeat(np.arange(len(first)), np.diff(np.r_[first, len(x)]))
    return ranks[:, group]


def _varies(x: _Array, times: _Array) -> _Array:
    """(R,) whether the values of (n,) that occur are not all the same."""
    present = times > 0.0
    return np.where(present, x, -np.inf).max(-1) > np.where(present, x, np.inf).min(-1)


class Cell:
    """One measure of usable stimuli against one question, for any sample of clusters."""

    def __init__(self, stimuli: DataFrame, measure: str, method: str) -> None:
        self.method, self.size = method, len(stimuli)
        self.clusters, index = np.unique(stimuli["cluster"], return_inverse=True)
        scores, ratings = stimuli[[measure, "rating"]].to_numpy(float).T
        #: Scores, ratings and indices of the clusters of every unit.
        units = stimuli.groupby("unit").indices.values()
        self.parts = [(scores[unit], ratings[unit], index[unit]) for unit in units]
        self._values = np.array([correlation(x, m, method)[0] for x, m, _ in self.parts])
        #: The correlation itself, NaN where it is undefined.
        self.value = float(self._values.mean()) if self.parts else math.nan
        # A unit within one cluster is drawn as a whole, and its correlation stays what it is.
        self._whole = all(np.ptp(own) == 0 for *_, own in self.parts)

    def sampled(self, times: _Array) -> _Array:
        """(R,) the correlation where cluster k occurs ``times[:, k]`` times, of (R, clusters)."""
        if self._whole:
            own = times[:, [index[0] for *_, index in self.parts]]
            return own @ self._values / own.sum(-1)
        drawn = ((x, m, self.method, times[:, index]) for x, m, index in self.parts)
        return np.nanmean([correlation(*one) for one in drawn], axis=0)


def intervals(wanted: Sequence[Sequence[Cell]], options: Options) -> tuple[_Array, _Array]:
    """(K,) ends of intervals over the same clusters: of the correlation of a cell, or of two less.

    All share the samples of the bootstrap.
    """
    cells = {cell for of in wanted for cell in of}

    def sampled(times: _Array) -> _Array:
        made = {cell: cell.sampled(times) for cell in cells}
        return np.stack([reduce(sub, (made[cell] for cell in of)) for of in wanted])

    how = Bootstrap(options.confidence, options.draws, options.seed)
    size = max(cell.size for cell in cells)
    return bca(sampled, len(wanted[0][0].clusters), how, size, scale=1.0)


def permutation_p(cell: Cell, *, draws: int = 2000, seed: int = 0) -> float:
    """Two-sided p-value of no association: the share of permutations at least as extreme.

    The identity counts as one of them, so that p is never 0: its least value is 1/(draws + 1).
    """
    if draws < 1 or math.isnan(cell.value):
        return math.nan
    rng, extreme = np.random.default_rng(seed), 0
    parts = [[_standard(v, cell.method) for v in (x, m)] for x, m, _ in cell.parts]
    block = max(1, _BLOCK // max(len(x) for x, _ in parts))
    for start in range(0, draws, block):
        total = np.zeros(min(block, draws - start))
        for x, m in parts:
            total += rng.permuted(np.tile(m, (len(total), 1)), axis=1) @ x
        extreme += int((np.abs(total / len(parts)) >= abs(cell.value) * (1.0 - 1e-9)).sum())
    return (1 + extreme) / (draws + 1)


def _standard(values: _Array, method: str) -> _Array:
    """Values (or their ranks), centred and of length 1: their products are correlations."""
    if method == "srcc":
        (values,) = _ranks(merge_ties(values), np.ones((1, len(values))))
    values = values - values.mean()
    return values / np.linalg.norm(values)
