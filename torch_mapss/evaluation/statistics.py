r"""Which system is better: intervals, paired tests and groups over the mixtures of a test set.

The sampled unit is the *mixture*: frames and sources of one mixture share its voices and its room,
so they are averaged first (see :mod:`torch_mapss.evaluation.report`) and never resampled.

* *Intervals* of means and of mean differences are BCa bootstrap intervals (Efron 1987). They lean
  on n: of normal data a nominal 95 % holds the true mean in 85 % of cases with six mixtures, 90 %
  with ten and 92 % with twenty to thirty, so that below :data:`FEW` they are called approximate.
* *Tests* are Wilcoxon's signed rank tests of paired differences (zeros ranked and left out, Pratt
  1959), made stricter for the number of pairs by Holm's step-down. With n mixtures no p below
  :math:`2^{1-n}` exists, so a small set cannot order its systems however far they lie apart:
  :func:`least_holm_p`.
* *Groups* are a compact letter display: two systems share a letter exactly where their test does
  not tell them apart. That relation is not transitive, so a system may bear several letters.

Weights move means and intervals. They leave the rank tests alone, which have none.

Arrays are NumPy's, float64; n mixtures, K quantities. A leaf: NumPy and SciPy only.
"""

from __future__ import annotations

import warnings
from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

Array = NDArray[np.float64]

#: Below so many mixtures an interval is called approximate.
FEW = 10
#: Draws of every bootstrap.
RESAMPLES = 9999
# A block of draws: so many indices at once, which stay in the processor's cache.
_BLOCK = 2**18
# Up to here tied differences have the exact null distribution; beyond, the normal one will do.
_EXACT = 50


class Intervals(NamedTuple):
    """Means over mixtures and where they may lie; NaN where n < 2."""

    mean: Array  # (K,)
    low: Array  # (K,) of the interval
    high: Array  # (K,)


class PairedTest(NamedTuple):
    """Two systems on the same mixtures."""

    wins: int  # mixtures in which the first is better
    ties: int
    losses: int
    p: float  # two-sided, Wilcoxon's signed ranks
    effect: float  # rank-biserial correlation in [-1, 1], 1: the first is always better


def mean_intervals(
    values: Array,
    weights: Array | None = None,
    *,
    confidence: float = 0.95,
    resamples: int = RESAMPLES,
    seed: int = 0,
) -> Intervals:
    r"""Means over mixtures with BCa bootstrap intervals.

    One draw takes n mixtures with replacement, the same ones for all K columns; with m_i the
    times that mixture i is drawn, a draw's mean is
    :math:`\sum_i m_i w_i x_i / \sum_i m_i w_i`.

    Args:
        values: (n, K) finite numbers, K quantities of the same n mixtures.
        weights: (n,) positive; equal if None.
        confidence: of the intervals, in (0, 1).
        resamples: draws.
        seed: equal seeds give equal intervals.

    Returns:
        :class:`Intervals`. A column of equal numbers d has [d, d]; n = 1 has a mean and no
        interval, n = 0 has neither.

    Raises:
        ValueError: shapes that do not fit, numbers that are not finite, weights not positive.
    """
    values, weights = _checked(values, weights)
    mean, spread = np.full(values.shape[1], np.nan), np.zeros(values.shape[1], dtype=bool)
    if len(values):
        mean = weights @ values / weights.sum()
        # Differences of equal steps differ by rounding: that is no spread.
        rounding = 16 * np.finfo(np.float64).eps * np.abs(values).max(0, initial=0.0)
        spread = np.ptp(values, axis=0) > rounding
    low, high = (mean.copy() if len(values) > 1 else np.full_like(mean, np.nan) for _ in range(2))
    if len(values) > 1 and spread.any():
        low[spread], high[spread] = _bca(values[:, spread], weights, confidence, resamples, seed)
    return Intervals(mean, low, high)


def _checked(values: Array, weights: Array | None) -> tuple[Array, Array]:
    values = np.asarray(values, dtype=np.float64)
    if values.ndim != 2:
        raise ValueError(f"values must be (n, K): mixtures, quantities; got {values.shape}.")
    weights = np.ones(len(values)) if weights is None else np.asarray(weights, dtype=np.float64)
    if weights.shape != values.shape[:1]:
        raise ValueError(
            f"weights must be one per mixture, shape {values.shape[:1]}, got {weights.shape}."
        )
    if not np.isfinite(values).all():
        raise ValueError("values must be finite: leave undefined mixtures out first.")
    if not (np.isfinite(weights).all() and (weights > 0.0).all()):
        raise ValueError("weights must be finite and positive: leave other mixtures out first.")
    return values, weights


def _bca(
    values: Array, weights: Array, confidence: float, resamples: int, seed: int
) -> tuple[Array, Array]:
    """Interval ends (K,) each. Mixtures are drawn by their places, for all columns at once."""
    from scipy import stats

    count = len(values)
    weighted = np.column_stack([weights[:, None] * values, weights])

    def means(places: NDArray[np.int64], axis: int = -1) -> Array:
        """(..., m) places -> (K, ...) means of those mixtures."""
        del axis  # always the last
        rows = places.reshape(-1, places.shape[-1])
        cells = rows + count * np.arange(len(rows))[:, None]
        times = np.bincount(cells.ravel(), minlength=len(rows) * count).reshape(-1, count)
        sums = times @ weighted
        return (sums[:, :-1] / sums[:, -1:]).T.reshape(-1, *places.shape[:-1])

    found = stats.bootstrap(
        (np.arange(count),),
        means,
        vectorized=True,
        axis=-1,
        n_resamples=resamples,
        batch=max(1, _BLOCK // count),
        confidence_level=confidence,
        method="BCa",
        random_state=np.random.default_rng(seed),
    ).confidence_interval
    return np.asarray(found.low), np.asarray(found.high)


def paired_test(differences: Array) -> PairedTest:
    """Wilcoxon's signed rank test of paired differences, with counts and effect.

    Exact up to 50 mixtures, ties and zeros included, else by the normal approximation. Zeros are
    ranked and then left out (Pratt).

    Args:
        differences: (n,) first minus second, finite; n at least 1.

    Returns:
        :class:`PairedTest`; p = 1 and effect 0 where all differences are zero.

    Raises:
        ValueError: none, or numbers that are not finite.
    """
    differences = np.asarray(differences, dtype=np.float64)
    if differences.ndim != 1 or len(differences) == 0 or not np.isfinite(differences).all():
        raise ValueError(
            f"differences must be (n,) finite numbers, n at least 1, got {differences.shape}."
        )
    from scipy import stats

    ranks = stats.rankdata(np.abs(differences))
    plus, minus = float(ranks[differences > 0].sum()), float(ranks[differences < 0].sum())
    wins, losses = int((differences > 0).sum()), int((differences < 0).sum())
    ties = len(differences) - wins - losses
    if wins + losses == 0:
        return PairedTest(0, ties, 0, 1.0, 0.0)
    return PairedTest(
        wins, ties, losses, _signed_rank_p(differences, ranks), (plus - minus) / (plus + minus)
    )


def _signed_rank_p(differences: Array, ranks: Array) -> float:
    from scipy import stats

    tied = len(np.unique(np.abs(differences))) < len(differences) or not differences.all()
    if tied and len(differences) <= _EXACT:
        return _tied_p(differences, ranks)
    with warnings.catch_warnings():  # older releases warn of a small sample
        warnings.simplefilter("ignore", UserWarning)
        found: Any = stats.wilcoxon(differences, zero_method="pratt")
    return float(found.pvalue)


def _tied_p(differences: Array, ranks: Array) -> float:
    """The exact p of ranks with ties, where SciPy has the normal approximation only.

    Every sign of a difference that is not zero is as likely as the other: the null distribution of
    twice the positive sum is the product of the polynomials 1 + z^(2 rank), all whole powers.
    """
    doubled = np.rint(2.0 * ranks[differences != 0]).astype(int)
    chances = np.ones(1)
    for step in doubled:
        grown = np.zeros(len(chances) + step)
        grown[: len(chances)] += 0.5 * chances
        grown[step:] += 0.5 * chances
        chances = grown
    plus = int(np.rint(2.0 * ranks[differences > 0].sum()))
    least = min(plus, int(doubled.sum()) - plus)  # the distribution is symmetric
    return float(min(1.0, 2.0 * chances[: least + 1].sum()))


def holm(p: Array) -> Array:
    """Holm's step-down adjustment of the p-values of a family.

    Args:
        p: (m,) p-values; NaN is no test and stays NaN.

    Returns:
        (m,) adjusted: reject where it is at most α, and the chance of any wrong rejection in the
        family is at most α.
    """
    p = np.asarray(p, dtype=np.float64)
    adjusted = np.full_like(p, np.nan)
    there = np.flatnonzero(~np.isnan(p))
    order = there[np.argsort(p[there], kind="stable")]
    steps = np.arange(len(order), 0, -1) * p[order]
    adjusted[order] = np.minimum(np.maximum.accumulate(steps), 1.0)
    return adjusted


def least_holm_p(mixtures: int, pairs: int) -> float:
    """The least p that Holm can reach: of all n differences of one sign, times the pairs.

    Example:
        >>> least_holm_p(6, 3)  # six mixtures, three systems: nothing can be told at 0.05
        0.09375
    """
    return min(1.0, max(pairs, 1) * 2.0 ** (1 - mixtures))


def letters(different: NDArray[np.bool_]) -> list[str]:
    """Compact letter display: systems share a letter exactly where they are not told apart.

    The letters are the maximal sets without a difference, by insertion and absorption (Piepho
    2004), less those that say nothing that the others do not.

    Args:
        different: (s, s) symmetric, True where a test tells two systems apart; systems best
            first, so that the best bears the first letter.

    Returns:
        (s,) the letters of each, e.g. ``["a", "ab", "b"]``.

    Example:
        >>> letters(np.array([[0, 0, 1], [0, 0, 0], [1, 0, 0]], dtype=bool))
        ['a', 'ab', 'b']
    """
    different = np.asarray(different, dtype=bool)
    if different.ndim != 2 or different.shape[0] != different.shape[1]:
        raise ValueError(f"different must be (s, s), got {different.shape}.")
    if (different != different.T).any() or different.diagonal().any():
        raise ValueError("different must be symmetric, with False on its diagonal.")
    groups = [frozenset(range(len(different)))] if len(different) else []
    for one, other in zip(*np.nonzero(np.triu(different))):
        split: list[frozenset[int]] = []
        for group in groups:
            both = one in group and other in group
            split += [group - {int(one)}, group - {int(other)}] if both else [group]
        groups = _absorbed(split)
    ordered = sorted(_needed(groups), key=sorted)
    names = [_letter(place) for place in range(len(ordered))]
    return [
        "".join(name for name, group in zip(names, ordered) if system in group)
        for system in range(len(different))
    ]


def _absorbed(groups: Sequence[frozenset[int]]) -> list[frozenset[int]]:
    """Without the sets that lie in another one."""
    unique = list(dict.fromkeys(groups))
    return [group for group in unique if not any(group < other for other in unique)]


def _needed(groups: Sequence[frozenset[int]]) -> list[frozenset[int]]:
    """Without sets all of whose pairs other sets hold as well; largest kept first."""
    kept = list(groups)
    for group in sorted(groups, key=len):
        rest = [other for other in kept if other is not group]
        pairs = [(a, b) for a in group for b in group if a <= b]  # a = b: a system keeps a letter
        if all(any(a in other and b in other for other in rest) for a, b in pairs):
            kept = rest
    return kept


def _letter(place: int) -> str:
    """a to z, A to Z, then numbers in brackets."""
    signs = "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ"
    return signs[place] if place < len(signs) else f"({place + 1})"
