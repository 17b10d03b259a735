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

from torch_mapss.evaluation.significance import FEW, bca, is_constant, merge_ties

POOLINGS = ("per_track", "pooled")
METHODS = ("srcc", "pcc")
LEAST_SYSTEMS = 3
# Numbers held at once by a block of permutations.
_BLOCK = 2**20
_Array = NDArray[Any]


class Data(NamedTuple):
    """The stimuli of one question and scenario, and one measure of them."""

    scores: _Array  # (n,) NaN where undefined
    ratings: _Array  # (n,)
    unit: _Array  # (n,) index of the track and source
    track: _Array  # (n,) index of the track
    cluster: _Array  # (n,) index of what is resampled
    bounds: _Array  # (n, 2) radius and half-width of each score, NaN without

    def subset(self, keep: _Array) -> Data:
        """Some of the stimuli."""
        return Data(*(part[keep] for part in self))


class Estimate(NamedTuple):
    """A correlation, or a difference of two."""

    value: float
    low: float
    high: float
    clusters: int
    p: float = math.nan  # of permutations, of a correlation alone
    reasons: tuple[str, ...] = ()  # why something is NaN or approximate


def usable(data: Data, pooling: str) -> tuple[Data, list[str]]:
    """The stimuli that count, and why others do not.

    Those with a score; per track, where there are enough of them that differ.
    """
    units = data.unit
    data = data.subset(np.isfinite(data.scores) & np.isfinite(data.ratings))
    pooled = pooling == "pooled"
    parts = [np.arange(len(data.unit))] if pooled else parts_of(data.unit)
    least, what = (2, "stimuli") if pooled else (LEAST_SYSTEMS, "systems")
    enough = [part for part in parts if len(part) >= least]
    constant = {
        f"{name} do not vary": [is_constant(values[part]) for part in enough]
        for name, values in (("scores", data.scores), ("ratings", data.ratings))
    }
    every = 1 if pooled else len(np.unique(units))
    counts = {f"fewer than {least} {what} with a score": every - len(enough)}
    counts |= {reason: sum(found) for reason, found in constant.items()}
    of = "" if pooled else f"{{}} of {every} tracks and sources: "
    reasons = [of.format(count) + reason for reason, count in counts.items() if count]
    if not pooled:
        good = [part for part, *same in zip(enough, *constant.values()) if not any(same)]
        data = data.subset(np.sort(np.concatenate([np.empty(0, int), *good])))
    return data, reasons


def parts_of(unit: _Array) -> list[_Array]:
    """The places of every unit."""
    order = np.argsort(unit, kind="stable")
    cuts = np.flatnonzero(np.diff(unit[order])) + 1
    return np.split(order, cuts) if len(unit) else []


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
        every = [np.arange(len(data.unit))]
        self.parts = parts_of(data.unit) if pooling == "per_track" else every
        self._values = np.array([self._of(part)[0] for part in self.parts])
        #: The correlation itself, NaN where it is undefined.
        self.value = float(self._values.mean()) if len(self._values) else math.nan
        # A unit within one cluster is drawn as a whole, and its correlation stays what it is.
        self._whole = pooling == "per_track" and all(
            len({*self._place[part].tolist()}) == 1 for part in self.parts
        )

    def _of(self, part: _Array, times: _Array | None = None) -> _Array:
        own = None if times is None else times[:, self._place[part]]
        return correlation(self.data.scores[part], self.data.ratings[part], self.method, own)

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
    keys: Sequence[tuple[str, ...]],
    pooling: str,
    method: str,
    *,
    confidence: float = 0.95,
    draws: int = 2000,
    seed: int = 0,
) -> dict[tuple[str, ...], Estimate]:
    """Correlations of measures, and differences of pairs of them, with their intervals.

    Args:
        data: one measure each of the same stimuli, in order.
        keys: names of a measure, or of two: their difference is over what both have.
        pooling, method: as of :class:`Cell`.
        confidence, draws, seed: of the bootstrap, whose samples all of them share, and of the
            permutations; 0 draws: none.

    Returns:
        By key; what is undefined is NaN, with the reasons.
    """
    cells: dict[tuple[bytes, ...], Cell] = {}  # what counts for two measures is often all of one
    wanted: dict[tuple[str, ...], list[Cell]] = {}
    found: dict[tuple[str, ...], Estimate] = {}
    together: dict[bytes, list[tuple[str, ...]]] = {}  # the same clusters are resampled at once
    for key in keys:
        parts, reasons = _shared([data[name] for name in key], pooling)
        of = wanted[key] = []
        for part in parts:
            content = tuple(array.tobytes() for array in part)
            if content not in cells:
                cells[content] = Cell(part, pooling, method)
            of.append(cells[content])
        value, clusters = float(_difference([cell.value for cell in of])), len(of[0].clusters)
        if math.isfinite(value):
            reasons += _limits(clusters, draws)
            if clusters > 1 and draws > 0:
                together.setdefault(of[0].clusters.tobytes(), []).append(key)
        p = permutation_p(of[0], draws=draws, seed=seed) if len(of) == 1 else math.nan
        found[key] = Estimate(value, math.nan, math.nan, clusters, p, tuple(reasons))
    for same in together.values():
        ends = _intervals([wanted[key] for key in same], confidence, draws, seed)
        for key, low, high in zip(same, *ends):
            found[key] = found[key]._replace(low=float(low), high=float(high))
            if not (math.isfinite(low) and math.isfinite(high)):
                reason = "no interval: undefined in some samples of clusters"
                found[key] = found[key]._replace(reasons=(*found[key].reasons, reason))
    return found


def _difference(values: Sequence[Any]) -> Any:
    """The value itself of one measure, the difference of two."""
    return values[0] - values[1] if len(values) > 1 else values[0]


def _shared(data: Sequence[Data], pooling: str) -> tuple[list[Data], list[str]]:
    """Measures on the stimuli and units that all of them have, and why some do not count."""
    both: Any = np.ones(len(data[0].scores), dtype=bool)
    if len(data) > 1:  # of one alone it is told what has no score
        both = np.logical_and.reduce([np.isfinite(one.scores) for one in data])
    found = [usable(one.subset(both), pooling) for one in data]
    parts, reasons = [part for part, _ in found], found[0][1]
    if pooling == "per_track" and len(parts) > 1:
        shared = np.intersect1d(parts[0].unit, parts[1].unit)
        parts = [part.subset(np.isin(part.unit, shared)) for part in parts]
    return parts, reasons


def _intervals(
    wanted: Sequence[Sequence[Cell]], confidence: float, draws: int, seed: int
) -> tuple[_Array, _Array]:
    """(K,) ends of the intervals of correlations or their differences over the same clusters."""
    cells = {id(cell): cell for of in wanted for cell in of}

    def sampled(times: _Array) -> _Array:
        made = {key: cell.sampled(times) for key, cell in cells.items()}
        return np.stack([_difference([made[id(cell)] for cell in of]) for of in wanted])

    return bca(
        sampled,
        len(wanted[0][0].clusters),
        confidence=confidence,
        draws=draws,
        seed=seed,
        size=max(len(cell.data.unit) for cell in cells.values()),
        scale=1.0,
    )


def _limits(clusters: int, draws: int) -> list[str]:
    """What a correlation over so many clusters lacks."""
    reasons = ["no draws: no interval, no p"] if draws < 1 else []
    if clusters < 2:
        return [*reasons, "one cluster: no interval"]
    if draws > 0 and clusters < FEW:
        reasons.append(f"{clusters} clusters: interval approximate")
    return reasons


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
