"""Scores against ratings: correlations within and over tracks, intervals, p-values.

*Per track*: the correlation over the systems of one track and source [eq:ps_pcc_i], [eq:srcc_ps],
averaged over tracks and sources [eq:ps_pcc]. *Pooled*: one correlation over all stimuli, which also
counts that some tracks sound better than others, and compares scores between tracks.

Intervals resample tracks (never stimuli: those of one track share its sources), by SciPy's BCa
bootstrap. p-values are of permutations: the per-track ones exchange ratings within a track and
source, so they hold for every number of systems; the pooled ones exchange all, as if stimuli were
independent, and are too small where tracks differ.
"""

from __future__ import annotations

import math
import warnings
from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

POOLINGS = ("per_track", "pooled")
METHODS = ("srcc", "pcc")
LEAST_SYSTEMS = 3
FEW_TRACKS = 10
_Array = NDArray[Any]


class Data(NamedTuple):
    """The stimuli of one question and scenario."""

    scores: _Array  # (n,) NaN where undefined
    ratings: _Array  # (n,)
    unit: _Array  # (n,) index of the track and source
    track: _Array  # (n,) index of the track


class Estimate(NamedTuple):
    """One correlation and what is known of it."""

    value: float
    low: float
    high: float
    p: float
    reason: str  # why something is NaN or approximate


def usable(data: Data, pooling: str) -> Data:
    """The stimuli that count: with a score, and per track with enough others to be compared to."""
    there = np.isfinite(data.scores) & np.isfinite(data.ratings)
    if pooling == "per_track":
        for unit in np.unique(data.unit):
            here = there & (data.unit == unit)
            values = data.scores[here], data.ratings[here]
            if here.sum() < LEAST_SYSTEMS or any(np.ptp(v) == 0.0 for v in values):
                there &= data.unit != unit
    return Data(*(part[there] for part in data))


def correlation(x: _Array, m: _Array, method: str) -> float:
    """PCC or SRCC of two vectors; NaN where one does not vary."""
    ones = np.ones((1, len(x)))
    return float(_weighted(x, m, ones, method)[0])


def weighted_ranks(x: _Array, weights: _Array) -> _Array:
    """Average ranks of ``x`` (n,) where value k occurs ``weights[..., k]`` times (..., n)."""
    _, group = np.unique(x, return_inverse=True)
    member = np.eye(group.max() + 1)[group]  # (n, groups)
    size = weights @ member
    return (np.cumsum(size, -1) - size + (size + 1.0) / 2.0)[..., group]


def _weighted(x: _Array, m: _Array, weights: _Array, method: str) -> _Array:
    """Correlation (...) of (n,) vectors whose elements count ``weights`` (..., n) times."""
    if len(x) == 0:
        return np.full(weights.shape[:-1], math.nan)
    # Looked at before anything is subtracted: a constant leaves rounding, not 0.
    varies = _varies(x, weights) & _varies(m, weights)
    if method == "srcc":
        x, m = weighted_ranks(x, weights), weighted_ranks(m, weights)
    total = weights.sum(-1, keepdims=True)
    x, m = (v - (weights * v).sum(-1, keepdims=True) / total for v in (x, m))
    scale = np.sqrt((weights * x * x).sum(-1) * (weights * m * m).sum(-1))
    varies &= scale > 0.0
    value = (weights * x * m).sum(-1) / np.where(varies, scale, 1.0)
    return np.where(varies, np.clip(value, -1.0, 1.0), math.nan)


def _varies(x: _Array, weights: _Array) -> _Array:
    """Whether the values of (n,) that have a weight in (..., n) are not all the same."""
    there = weights > 0.0
    return np.where(there, x, -np.inf).max(-1) > np.where(there, x, np.inf).min(-1)


class Cell:
    """One measure against one question, in one pooling: its value for any weights of tracks.

    Args:
        data: of `usable`.
        pooling: ``"per_track"`` or ``"pooled"``.
        method: ``"srcc"`` or ``"pcc"``.
    """

    def __init__(self, data: Data, pooling: str, method: str) -> None:
        self.data, self.pooling, self.method = data, pooling, method
        self.units, first = np.unique(data.unit, return_index=True)
        self.unit_track = data.track[first]
        self.values = np.array(
            [
                correlation(data.scores[data.unit == u], data.ratings[data.unit == u], method)
                for u in (self.units if pooling == "per_track" else ())
            ]
        )

    def weighted(self, weights: _Array, tracks: _Array) -> _Array:
        """The correlation (...) where track ``tracks[k]`` counts ``weights[..., k]`` times."""
        if self.pooling == "per_track":
            own = weights @ (tracks[:, None] == self.unit_track[None])
            return (own * self.values).sum(-1) / own.sum(-1)
        own = weights @ (tracks[:, None] == self.data.track[None])
        return _weighted(self.data.scores, self.data.ratings, own, self.method)

    @property
    def value(self) -> float:
        """The correlation itself."""
        tracks = np.unique(self.data.track)
        return float(self.weighted(np.ones(len(tracks)), tracks)) if len(tracks) else math.nan


def interval(
    statistic: Callable[[_Array], _Array],
    tracks: int,
    confidence: float,
    draws: int,
    seed: int,
) -> tuple[float, float]:
    """BCa interval of a statistic of weights (..., tracks), by resampling tracks."""
    from scipy import stats

    def of_sample(places: _Array, axis: int = -1) -> _Array:
        places = np.moveaxis(places.astype(int), axis, -1)
        counts = (places[..., None] == np.arange(tracks)).sum(-2)
        return statistic(counts.astype(float))

    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # degenerate distributions are looked at below
        found = stats.bootstrap(
            (np.arange(tracks),),
            of_sample,
            vectorized=True,
            n_resamples=draws,
            batch=1000,
            confidence_level=confidence,
            method="BCa",
            rng=np.random.default_rng(seed),
        )
    low, high = map(float, found.confidence_interval)
    spread = found.bootstrap_distribution
    if not (math.isfinite(low) and math.isfinite(high)) and np.ptp(spread) < 1e-12:
        return float(spread[0]), float(spread[0])
    return low, high


def estimate(cell: Cell, *, confidence: float = 0.95, draws: int = 2000, seed: int = 0) -> Estimate:
    """A correlation with its interval and p-value; what cannot be had is NaN, with the reason."""
    tracks = np.unique(cell.data.track)
    if not math.isfinite(cell.value):
        return Estimate(math.nan, math.nan, math.nan, math.nan, _undefined(cell))
    if draws < 1:
        return Estimate(cell.value, math.nan, math.nan, math.nan, "no draws: no interval, no p")
    p = permutation_p(cell, draws=draws, seed=seed)
    if len(tracks) < 2:
        reason = "one track: no interval, which would resample tracks"
        return Estimate(cell.value, math.nan, math.nan, p, reason)
    low, high = interval(
        lambda weights: cell.weighted(weights, tracks), len(tracks), confidence, draws, seed
    )
    reason = f"{len(tracks)} tracks: interval approximate" if len(tracks) < FEW_TRACKS else ""
    if not (math.isfinite(low) and math.isfinite(high)):
        reason = f"{len(tracks)} tracks: too few for an interval"
    return Estimate(cell.value, low, high, p, reason)


def _undefined(cell: Cell) -> str:
    if cell.pooling == "per_track":
        return (
            f"no track and source with {LEAST_SYSTEMS} systems or more whose scores and ratings "
            "vary"
        )
    return "scores or ratings do not vary, or fewer than two are there"


def permutation_p(cell: Cell, *, draws: int = 2000, seed: int = 0) -> float:
    """Two-sided p-value of no association: the share of permutations at least as extreme.

    The identity counts as one of them, so that p is never 0: its least value is 1/(draws + 1).
    """
    rng = np.random.default_rng(seed)
    data = cell.data
    if cell.pooling == "per_track":
        parts = [data.unit == unit for unit in cell.units]
    else:
        parts = [np.ones(len(data.scores), dtype=bool)]
    total = np.zeros(draws)
    for part in parts:
        x, m = (_standard(v[part], cell.method) for v in (data.scores, data.ratings))
        order = rng.permuted(np.tile(np.arange(len(m)), (draws, 1)), axis=1)
        total += m[order] @ x
    extreme = np.abs(total / len(parts)) >= abs(cell.value) * (1.0 - 1e-9)
    return float((1 + extreme.sum()) / (draws + 1))


def _standard(values: _Array, method: str) -> _Array:
    """Values (or their ranks), centred and of length 1: their products are correlations."""
    if method == "srcc":
        values = weighted_ranks(values, np.ones(len(values)))
    values = values - values.mean()
    return values / np.linalg.norm(values)


def difference(
    one: Data,
    other: Data,
    pooling: str,
    method: str,
    *,
    confidence: float = 0.95,
    draws: int = 2000,
    seed: int = 0,
) -> tuple[float, float, float, int]:
    """How much more the scores of ``one`` correlate than those of ``other``, on what both have.

    Args:
        one: scores of one measure; ``other`` holds another's of the same stimuli, in order.
        pooling, method: as of `Cell`.
        confidence, draws, seed: of the paired interval, which resamples tracks.

    Returns:
        Difference, low, high and the number of tracks; NaN where there are none (interval: one).
    """
    both = np.isfinite(one.scores) & np.isfinite(other.scores)
    parts = [usable(_kept(data, both), pooling) for data in (one, other)]
    if pooling == "per_track":
        shared = np.intersect1d(parts[0].unit, parts[1].unit)
        parts = [_kept(data, np.isin(data.unit, shared)) for data in parts]
    cells = [Cell(data, pooling, method) for data in parts]
    tracks = np.unique(parts[0].track)
    if len(tracks) == 0:
        return math.nan, math.nan, math.nan, 0

    def statistic(weights: _Array) -> _Array:
        first, second = (cell.weighted(weights, tracks) for cell in cells)
        return first - second

    value = float(statistic(np.ones(len(tracks))))
    if len(tracks) < 2 or not math.isfinite(value):
        return value, math.nan, math.nan, len(tracks)
    return value, *interval(statistic, len(tracks), confidence, draws, seed), len(tracks)


def _kept(data: Data, keep: _Array) -> Data:
    return Data(*(part[keep] for part in data))
