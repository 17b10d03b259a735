"""Scores against ratings: correlations within and over tracks, intervals, p-values.

*Per track*: the correlation over the systems of one track and source [eq:ps_pcc_i], [eq:srcc_ps],
averaged over tracks and sources [eq:ps_pcc]. *Pooled*: one correlation over all stimuli, which also
counts that some tracks sound better than others, and compares scores between tracks.

*Intervals* are BCa bootstrap intervals over clusters of stimuli that share something: tracks by
default, for the outputs of one track share its sources; or talkers, conditions, systems. Where a
track has stimuli of several clusters, its correlation is computed anew in every sample.

*p-values* are of permutations. Per track they exchange ratings within a track and source, which
assumes that its outputs are exchangeable if scores say nothing; pooled ones exchange all ratings,
as if all stimuli were independent, and are too small where tracks (or clusters) differ.

Ranks are average ranks; numbers equal but for rounding are tied
(:func:`~torch_mapss.evaluation.significance.merge_ties`).
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from torch_mapss.evaluation.significance import bca, is_constant, merge_ties

POOLINGS = ("per_track", "pooled")
METHODS = ("srcc", "pcc")
LEAST_SYSTEMS = 3
FEW_CLUSTERS = 10
# Numbers held at once by a block of permutations.
_BLOCK = 2**20
_Array = NDArray[Any]


class Data(NamedTuple):
    """The stimuli of one question and scenario, and one measure of them."""

    scores: _Array  # (n,) NaN where undefined
    ratings: _Array  # (n,)
    unit: _Array  # (n,) index of the track and source
    cluster: _Array  # (n,) index of what is resampled

    def kept(self, keep: _Array) -> Data:
        """Some of the stimuli."""
        return Data(*(part[keep] for part in self))


class Estimate(NamedTuple):
    """A correlation, or a difference of two."""

    value: float
    low: float
    high: float
    clusters: int
    reasons: tuple[str, ...] = ()  # why something is NaN or approximate


def usable(data: Data, pooling: str) -> Data:
    """The stimuli that count: with a score, and per track with enough others to be compared to."""
    keep = np.isfinite(data.scores) & np.isfinite(data.ratings)
    if pooling == "per_track":
        for unit in np.unique(data.unit):
            here = keep & (data.unit == unit)
            values = data.scores[here], data.ratings[here]
            if here.sum() < LEAST_SYSTEMS or any(map(is_constant, values)):
                keep &= data.unit != unit
    return data.kept(keep)


# ------------------------------------------------------------------------------------------------
# Correlations
# ------------------------------------------------------------------------------------------------


def correlation(x: _Array, m: _Array, method: str, times: _Array | None = None) -> _Array:
    """PCC or SRCC of two (n,) vectors whose elements occur ``times`` (R, n) times each.

    Returns:
        (R,); NaN where one of the two does not vary. Memory linear in n.
    """
    times = np.ones((1, len(x))) if times is None else times
    if len(x) == 0:
        return np.full(len(times), math.nan)
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
    there = times > 0.0
    return np.where(there, x, -np.inf).max(-1) > np.where(there, x, np.inf).min(-1)


class Cell:
    """One measure against one question, in one pooling, for any sample of clusters.

    Args:
        data: of :func:`usable`.
        pooling: ``"per_track"`` or ``"pooled"``.
        method: ``"srcc"`` or ``"pcc"``.
    """

    def __init__(self, data: Data, pooling: str, method: str) -> None:
        self.data, self.method = data, method
        self.clusters, self._place = np.unique(data.cluster, return_inverse=True)
        units = np.unique(data.unit) if pooling == "per_track" else [None]
        self.parts = [
            np.arange(len(data.unit)) if unit is None else np.flatnonzero(data.unit == unit)
            for unit in units
        ]
        self._values = np.array([self._of(part)[0] for part in self.parts])
        # A unit within one cluster is drawn as a whole, and its correlation stays what it is.
        self._whole = pooling == "per_track" and all(
            len({*self._place[part].tolist()}) == 1 for part in self.parts
        )

    def _of(self, part: _Array, times: _Array | None = None) -> _Array:
        own = None if times is None else times[:, self._place[part]]
        return correlation(self.data.scores[part], self.data.ratings[part], self.method, own)

    @property
    def value(self) -> float:
        """The correlation itself, NaN where it is undefined."""
        return float(self._values.mean()) if len(self._values) else math.nan

    def sampled(self, times: _Array) -> _Array:
        """(R,) the correlation where cluster k occurs ``times[:, k]`` times, of (R, clusters)."""
        if self._whole:
            own = times[:, [self._place[part[0]] for part in self.parts]]
            return own @ self._values / own.sum(-1)
        found = np.stack([self._of(part, times) for part in self.parts])
        there = np.isfinite(found)
        return np.where(there, found, 0.0).sum(0) / np.where(there.any(0), there.sum(0), math.nan)


# ------------------------------------------------------------------------------------------------
# Intervals and p-values
# ------------------------------------------------------------------------------------------------


def estimates(
    data: Mapping[str, Data],
    pairs: Sequence[tuple[str, str]],
    pooling: str,
    method: str,
    *,
    confidence: float = 0.95,
    draws: int = 2000,
    seed: int = 0,
) -> tuple[dict[str, Estimate], dict[tuple[str, str], Estimate]]:
    """Correlations of every measure, and differences of pairs of them, with their intervals.

    Args:
        data: one measure each of the same stimuli, in order.
        pairs: names of measures; a difference is over what both have.
        pooling, method: as of :class:`Cell`.
        confidence, draws, seed: of the bootstrap, whose samples all of them share; 0 draws: none.

    Returns:
        By measure, and by pair; what is undefined is NaN, with the reasons.
    """
    cells = {name: Cell(usable(one, pooling), pooling, method) for name, one in data.items()}
    statistics: dict[Any, list[Cell]] = {name: [cell] for name, cell in cells.items()}
    for a, b in pairs:
        statistics[a, b] = _on_both(data[a], data[b], pooling, method)
    found = {}
    together: dict[bytes, list[Any]] = {}  # what has the same clusters is resampled at once
    for key, of in statistics.items():
        value = of[0].value - (of[1].value if len(of) > 1 else 0.0)
        count = len(of[0].clusters)
        found[key] = Estimate(
            value, math.nan, math.nan, count, _reasons(value, count, draws, pooling)
        )
        if math.isfinite(value) and count > 1 and draws > 0:
            together.setdefault(of[0].clusters.tobytes(), []).append(key)
    for keys in together.values():
        for key, low, high in zip(
            keys, *_intervals([statistics[k] for k in keys], confidence, draws, seed)
        ):
            known = found[key]
            if not (math.isfinite(low) and math.isfinite(high)):
                known = known._replace(reasons=("too few for an interval",))
            found[key] = known._replace(low=float(low), high=float(high))
    return {name: found[name] for name in data}, {pair: found[pair] for pair in pairs}


def _on_both(one: Data, other: Data, pooling: str, method: str) -> list[Cell]:
    """Two measures on the stimuli and units that both have."""
    both = np.isfinite(one.scores) & np.isfinite(other.scores)
    parts = [usable(data.kept(both), pooling) for data in (one, other)]
    if pooling == "per_track":
        shared = np.intersect1d(parts[0].unit, parts[1].unit)
        parts = [data.kept(np.isin(data.unit, shared)) for data in parts]
    return [Cell(data, pooling, method) for data in parts]


def _intervals(
    statistics: Sequence[Sequence[Cell]], confidence: float, draws: int, seed: int
) -> tuple[_Array, _Array]:
    """(K,) ends of the intervals of correlations or their differences over the same clusters."""

    def sampled(times: _Array) -> _Array:
        return np.stack(
            [
                np.subtract(*made) if len(made) > 1 else made[0]
                for made in ([cell.sampled(times) for cell in of] for of in statistics)
            ]
        )

    first = statistics[0][0]
    size = max(len(cell.data.scores) for of in statistics for cell in of)
    return bca(
        sampled,
        len(first.clusters),
        confidence=confidence,
        draws=draws,
        seed=seed,
        size=size,
        scale=1.0,
    )


def _reasons(value: float, clusters: int, draws: int, pooling: str) -> tuple[str, ...]:
    if not math.isfinite(value):
        if pooling == "pooled":
            return ("scores or ratings do not vary, or fewer than two are there",)
        return (
            f"no track and source with {LEAST_SYSTEMS} systems or more whose scores and ratings "
            "vary",
        )
    if draws < 1:
        return ("no draws: no interval, no p",)
    if clusters < 2:
        return ("one cluster: no interval",)
    return (f"{clusters} clusters: interval approximate",) if clusters < FEW_CLUSTERS else ()


def permutation_p(cell: Cell, *, draws: int = 2000, seed: int = 0) -> float:
    """Two-sided p-value of no association: the share of permutations at least as extreme.

    The identity counts as one of them, so that p is never 0: its least value is 1/(draws + 1).
    """
    if draws < 1 or not math.isfinite(cell.value):
        return math.nan
    rng = np.random.default_rng(seed)
    extreme, data = 0, cell.data
    parts = [
        [_standard(v[part], cell.method) for v in (data.scores, data.ratings)]
        for part in cell.parts
    ]
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
