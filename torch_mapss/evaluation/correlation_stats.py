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
from collections.abc import Iterator, Mapping, Sequence
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
    track: _Array  # (n,) index of the track
    cluster: _Array  # (n,) index of what is resampled
    bounds: _Array  # (n, 2) radius and half-width of each score, NaN without

    def kept(self, keep: _Array) -> Data:
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


def usable(data: Data, pooling: str) -> Data:
    """The stimuli that count: with a score, and per track with enough others to be compared to."""
    data = data.kept(np.isfinite(data.scores) & np.isfinite(data.ratings))
    if pooling == "pooled":
        return data
    keep = np.ones(len(data.unit), dtype=bool)
    for part in parts_of(data.unit):
        few = len(part) < LEAST_SYSTEMS
        keep[part] = not (few or is_constant(data.scores[part]) or is_constant(data.ratings[part]))
    return data.kept(keep)


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
        confidence, draws, seed: of the bootstrap, whose samples all of them share, and of the
            permutations; 0 draws: none.

    Returns:
        By measure, and by pair; what is undefined is NaN, with the reasons.
    """
    cells = {name: Cell(usable(one, pooling), pooling, method) for name, one in data.items()}
    wanted: dict[Any, tuple[Cell, ...]] = {name: (cell,) for name, cell in cells.items()}
    for a, b in pairs:
        parts = _on_both(data[a], data[b], pooling)
        wanted[a, b] = tuple(
            cells[name]
            if len(part.unit) == len(cells[name].data.unit)
            else Cell(part, pooling, method)
            for name, part in zip((a, b), parts)
        )
    found: dict[Any, Estimate] = {}
    together: dict[bytes, list[Any]] = {}  # what has the same clusters is resampled at once
    for key, of in wanted.items():
        value, count = float(_difference([cell.value for cell in of])), len(of[0].clusters)
        reasons = () if isinstance(key, tuple) else tuple(_left_out(data[key], pooling))
        reasons += tuple(_limits(count, draws)) if math.isfinite(value) else ()
        p = permutation_p(of[0], draws=draws, seed=seed) if len(of) == 1 else math.nan
        found[key] = Estimate(value, math.nan, math.nan, count, p, reasons)
        if math.isfinite(value) and count > 1 and draws > 0:
            together.setdefault(of[0].clusters.tobytes(), []).append(key)
    for keys in together.values():
        ends = _intervals([wanted[key] for key in keys], confidence, draws, seed)
        for key, low, high in zip(keys, *ends):
            found[key] = found[key]._replace(low=float(low), high=float(high))
            if not (math.isfinite(low) and math.isfinite(high)):
                reason = "no interval: undefined in some samples of clusters"
                found[key] = found[key]._replace(reasons=(*found[key].reasons, reason))
    return {name: found[name] for name in data}, {pair: found[pair] for pair in pairs}


def _difference(values: Sequence[Any]) -> Any:
    """The value itself of one measure, the difference of two."""
    return values[0] - values[1] if len(values) > 1 else values[0]


def _on_both(one: Data, other: Data, pooling: str) -> list[Data]:
    """Two measures on the stimuli and units that both have."""
    both = np.isfinite(one.scores) & np.isfinite(other.scores)
    parts = [usable(data.kept(both), pooling) for data in (one, other)]
    if pooling == "per_track":
        shared = np.intersect1d(parts[0].unit, parts[1].unit)
        parts = [data.kept(np.isin(data.unit, shared)) for data in parts]
    return parts


def _intervals(
    wanted: Sequence[tuple[Cell, ...]], confidence: float, draws: int, seed: int
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


def _left_out(data: Data, pooling: str) -> Iterator[str]:
    """Why stimuli with a rating do not count, every reason."""
    defined = data.kept(np.isfinite(data.scores) & np.isfinite(data.ratings))
    units = len(np.unique(data.unit))
    parts = [np.arange(len(defined.unit))] if pooling == "pooled" else parts_of(defined.unit)
    enough = [p for p in parts if len(p) >= (2 if pooling == "pooled" else LEAST_SYSTEMS)]
    of = "" if pooling == "pooled" else f"{{}} of {units} tracks and sources: "
    few = (1 if pooling == "pooled" else units) - len(enough)
    if few:
        what = "stimuli" if pooling == "pooled" else "systems"
        least = 2 if pooling == "pooled" else LEAST_SYSTEMS
        yield f"{of.format(few)}fewer than {least} {what} with a score"
    for name, values in (("scores", defined.scores), ("ratings", defined.ratings)):
        same = sum(is_constant(values[part]) for part in enough)
        if same:
            yield f"{of.format(same)}{name} do not vary"


def _limits(clusters: int, draws: int) -> Iterator[str]:
    """What a correlation over so many clusters lacks, every reason."""
    if draws < 1:
        yield "no draws: no interval, no p"
    if clusters < 2:
        yield "one cluster: no interval"
    elif draws > 0 and clusters < FEW_CLUSTERS:
        yield f"{clusters} clusters: interval approximate"


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
