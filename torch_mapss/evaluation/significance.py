r"""Statistics over the mixtures of a test set: intervals, paired tests and groups of systems.

The sampled unit is the *mixture*: frames and sources of one mixture share its voices and its room,
so they are averaged first and never resampled.

* *Intervals* are BCa bootstrap intervals (Efron 1987). They need many mixtures: on normal data, a
  nominal 95 % interval contains the true mean in 85 % of cases with six mixtures, 90 % with ten and
  92 % with twenty to thirty; below :data:`FEW` they are called approximate.
* *Tests* are Wilcoxon's signed rank tests of paired differences (zeros are ranked, then left out:
  Pratt 1959), with Holm's correction. With n mixtures no p is below :math:`2^{1-n}`, so a small set
  cannot order its systems however far apart they are: :func:`least_holm_p`.
* *Groups* are a compact letter display: two systems share a letter exactly where their test finds
  no significant difference. That relation is not transitive, so a system may have several letters.

Numbers that differ only by rounding count as equal in ranks, signs and intervals. Weights affect
means and intervals, but not the rank tests. Arrays are float64; n mixtures, K quantities.
"""

from __future__ import annotations

import math
import warnings
from collections.abc import Callable, Sequence
from decimal import ROUND_HALF_UP, Context
from itertools import combinations_with_replacement, compress
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

Array = NDArray[np.float64]

#: With fewer mixtures, intervals are called approximate.
FEW = 10
#: Numbers per block of draws, few enough to stay in the processor's cache.
BLOCK = 2**18
# Up to this many non-zero differences the null distribution is exact; beyond, the normal
# approximation suffices. Zeros do not count, since they have a rank but no sign to flip.
_EXACT = 50
_LETTERS = "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ"


class PairedTest(NamedTuple):
    """Test of two systems on the same mixtures."""

    wins: int  # mixtures in which the first is higher
    ties: int
    losses: int
    p_wilcoxon: float  # two-sided, Wilcoxon's signed ranks
    effect: float  # rank-biserial correlation in [-1, 1], 1: the first is always higher
    least_p: float  # smallest p that differences with these ties can reach


def rounding(magnitude: Any, dtype: type = np.float64) -> Any:
    """Largest difference that rounding can cause between equal numbers of a magnitude."""
    return 16.0 * float(np.finfo(dtype).eps) * magnitude


def merge_ties(values: Array, scale: float | None = None) -> Array:
    """Make values equal that differ only by rounding, and make values 0 that differ from it so.

    Args:
        values: (n,) finite.
        scale: magnitude of the numbers that ``values`` were computed from, which sets the rounding;
            by default the largest magnitude of ``values``.

    Example:
        >>> merge_ties(np.array([0.9 - 0.8, 0.7 - 0.6, 0.3]), 1.0).tolist()
        [0.09999999999999998, 0.09999999999999998, 0.3]
    """
    tolerance = rounding(np.abs(values).max(initial=0.0) if scale is None else scale)
    order = np.argsort(values, kind="stable")
    ordered = values[order]
    begins_group = np.r_[True, np.diff(ordered) > tolerance][: len(values)]  # of equal values
    merged = np.empty_like(values)
    merged[order] = ordered[begins_group][np.cumsum(begins_group) - 1]
    return np.where(np.abs(values) <= tolerance, 0.0, merged)


def bca(
    statistic: Callable[[Array], Array],
    units: int,
    size: int = 0,
    scale: Array | float = 0.0,
    *,
    confidence: float,
    draws: int,
    seed: int,
) -> tuple[Array, Array]:
    """BCa bootstrap intervals of K statistics of the same resampled units.

    Args:
        statistic: function of the counts (R, units) of each unit in R samples that returns (K, R).
        units: number of units, at least 2; each sample draws as many, with replacement.
        size: numbers that ``statistic`` holds per sample, which limits the samples at once.
        scale: (K,) magnitude of the numbers that the statistics are computed from, for rounding.
        confidence: of the intervals, in (0, 1).
        draws: number of samples.
        seed: equal seeds give equal intervals.

    Returns:
        (K,) low and (K,) high; NaN if a sample has no value, and the value itself if all samples
        agree.
    """
    from scipy import stats

    value = statistic(np.ones((1, units)))
    tolerance = rounding(np.maximum(np.abs(value), np.reshape(scale, (-1, 1))))

    def of_indices(indices: NDArray[np.int64], axis: int = -1) -> Array:
        del axis  # always the last
        rows = indices.reshape(-1, indices.shape[-1])
        cells = rows + units * np.arange(len(rows))[:, None]
        times = np.bincount(cells.ravel(), minlength=len(rows) * units).reshape(-1, units)
        samples = statistic(times.astype(np.float64))
        samples = np.where(np.abs(samples - value) <= tolerance, value, samples)  # BCa counts ties
        return samples.reshape(-1, *indices.shape[:-1])

    options: Any = {"confidence_level": confidence, "n_resamples": draws, "method": "BCa"}
    options |= {"batch": max(1, BLOCK // max(units, size)), "vectorized": True, "axis": -1}
    options["random_state"] = np.random.default_rng(seed)  # its name in all releases of SciPy
    with warnings.catch_warnings(), np.errstate(all="ignore"):
        warnings.simplefilter("ignore")  # about identical samples, which are handled below
        bootstrap: Any = stats.bootstrap((np.arange(units),), of_indices, **options)
    samples = bootstrap.bootstrap_distribution
    same, undefined = (samples == value).all(-1), np.isnan(samples).any(-1)
    ends = np.where(same, value[:, 0], np.stack(bootstrap.confidence_interval))
    low, high = np.where(undefined, math.nan, ends)
    return low, high


def mean_intervals(
    values: Array,
    weights: Array | None = None,
    scale: Array | float = 0.0,
    *,
    confidence: float = 0.95,
    draws: int = 9999,
    seed: int = 0,
) -> tuple[NDArray[np.int64], Array, Array, Array]:
    r"""Means over mixtures with BCa bootstrap intervals.

    A sample draws n mixtures with replacement, the same for all columns that are defined in the
    same mixtures. If mixture i is drawn m_i times, the sample's mean is
    :math:`\sum_i m_i w_i x_i / \sum_i m_i w_i`.

    Args:
        values: (n, K), K quantities of the same n mixtures; NaN where undefined.
        weights: (n,) positive; equal if None.
        scale: (K,) magnitude of the scores whose differences ``values`` are, for rounding.
        confidence, draws, seed: as in :func:`bca`.

    Returns:
        (K,) each: number of mixtures; mean, NaN where there is none; low and high, NaN where there
        are fewer than two. A column of numbers that differ only by rounding has the interval [mean,
        mean].
    """
    weights = np.ones(len(values)) if weights is None else weights
    scale = np.broadcast_to(scale, values.shape[1:])
    defined = np.isfinite(values)
    mean, low, high = np.full((3, values.shape[1]), math.nan)
    masks, kinds = np.unique(defined, axis=1, return_inverse=True)  # columns that share samples
    for kind, mask in enumerate(masks.T):
        columns = np.flatnonzero(kinds.ravel() == kind)
        x, w = values[np.ix_(mask, columns)], weights[mask]
        weighted = np.column_stack([w[:, None] * x, w])

        def means(times: Array, weighted: Array = weighted) -> Array:
            sums = times @ weighted
            return (sums[:, :-1] / sums[:, -1:]).T

        if len(x):
            mean[columns] = means(np.ones((1, len(x))))[:, 0]
        if len(x) > 1:
            magnitude = np.maximum(np.abs(x).max(0), scale[columns])
            options: Any = {"confidence": confidence, "draws": draws, "seed": seed}
            low[columns], high[columns] = bca(means, len(x), scale=magnitude, **options)
    return defined.sum(0), mean, low, high


def paired_test(differences: Array, scale: float = 1.0) -> PairedTest:
    """Wilcoxon's signed rank test of paired differences, with counts and effect.

    Exact for up to 50 mixtures with a difference, also with ties; else by the normal approximation.
    Zeros are ranked and then left out (Pratt).

    Args:
        differences: (n,) first minus second, finite; n at least 1.
        scale: magnitude of the scores that were subtracted; differences within its rounding are
            ties.

    Returns:
        :class:`PairedTest`; p = 1 and effect 0 where all differences are zero.
    """
    from scipy import stats

    sizes = merge_ties(np.abs(differences), scale)
    signs = np.where(sizes > 0.0, np.sign(differences), 0.0)
    ranks = stats.rankdata(sizes)
    wins, losses = int((signs > 0).sum()), int((signs < 0).sum())
    ties = len(differences) - wins - losses
    if wins + losses == 0:
        return PairedTest(0, ties, 0, 1.0, 0.0, 1.0)
    if wins + losses <= _EXACT:
        p = _exact_p(ranks[signs != 0], float(ranks[signs > 0].sum()))
    else:
        p = float(stats.wilcoxon(signs * sizes, zero_method="pratt").pvalue)
    effect = float(signs @ ranks / ranks[signs != 0].sum())
    return PairedTest(wins, ties, losses, p, effect, least_holm_p(wins + losses, 1))


def _exact_p(ranks: Array, positive: float) -> float:
    """Exact two-sided p of a sum of positive ranks (m,), also with ties (unlike SciPy).

    Every sign is as likely as the other: the null distribution of twice the positive sum is the
    product of the polynomials (1 + z^(2 rank))/2, whose powers are integers.
    """
    doubled = np.rint(2.0 * ranks).astype(int)
    chances = np.ones(1)
    for step in doubled:
        chances = 0.5 * (np.r_[chances, np.zeros(step)] + np.r_[np.zeros(step), chances])
    seen = int(np.rint(2.0 * positive))
    smaller_sum = min(seen, int(doubled.sum()) - seen)  # the distribution is symmetric
    return float(min(1.0, 2.0 * chances[: smaller_sum + 1].sum()))


def p_text(p: float) -> str:
    """A p-value with two digits; halves are rounded up, as in browsers, so that all outputs agree.

    Example:
        >>> p_text(0.125), p_text(0.00312), p_text(1.0)
        ('0.13', '0.0031', '1')
    """
    rounded = Context(prec=2, rounding=ROUND_HALF_UP).create_decimal(p)
    return f"{float(rounded):.2g}"


def holm(p: Array, least_p: Array | float = 0.0, alpha: float = 1.0) -> Array:
    """Holm's step-down adjustment of the p-values of a family.

    Tests whose least attainable p exceeds α cannot reject whatever the data, and do not count for
    the others: the least p depends only on n and ties, not on which system is better (Tarone 1990).
    Their own p is adjusted over all tests.

    Args:
        p: (m,) p-values; NaN means no test and stays NaN.
        least_p: (m,) the smallest p that each test can have.
        alpha: level of the tests.

    Returns:
        (m,) adjusted: reject where it is at most α, and the chance of any wrong rejection in the
        family is at most α.
    """
    adjusted = np.full(len(p), math.nan)
    tested = ~np.isnan(p)
    for family in (tested, tested & (np.asarray(least_p) <= alpha)):
        indices = np.flatnonzero(family)
        order = indices[np.argsort(p[indices], kind="stable")]
        steps = np.arange(len(order), 0, -1) * p[order]
        adjusted[order] = np.minimum(np.maximum.accumulate(steps), 1.0)
    return adjusted


def least_holm_p(mixtures: int, pairs: int) -> float:
    """Least p that Holm can reach: that of n differences of one sign, times the pairs.

    Example:
        >>> least_holm_p(6, 3)  # six mixtures, three systems: nothing is significant at 0.05
        0.09375
    """
    return min(1.0, max(pairs, 1) * 2.0 ** (1 - mixtures))


def least_mixtures(pairs: int, alpha: float = 0.05) -> int:
    """Number of mixtures that are needed for one of ``pairs`` tests to reach the level.

    Example:
        >>> least_mixtures(3)
        7
    """
    return 1 + math.ceil(math.log2(max(pairs, 1) / alpha) - 1e-9)


def letters(different: NDArray[np.bool_]) -> list[str]:
    """Compact letter display: systems share a letter exactly where they do not differ.

    The letters are the maximal sets without a difference, by insertion and absorption (Piepho
    2004), without redundant ones.

    Args:
        different: (s, s) symmetric, True where two systems differ significantly; systems best
            first, so that the best has the first letter.

    Returns:
        (s,) the letters of each, e.g. ``["a", "ab", "b"]``; after Z come numbers in brackets.

    Example:
        >>> letters(np.array([[0, 0, 1], [0, 0, 0], [1, 0, 0]], dtype=bool))
        ['a', 'ab', 'b']
    """
    groups = [frozenset(range(len(different)))]
    for pair in zip(*np.nonzero(np.triu(different))):
        split = [smaller for group in groups for smaller in _without_both(group, pair)]
        groups = [group for group in dict.fromkeys(split) if not _is_absorbed(group, split)]
    for group in sorted(groups, key=len):
        remaining = [other_group for other_group in groups if other_group is not group]
        pairs = combinations_with_replacement(group, 2)  # also of a system with itself
        if all(_is_within_any(pair, remaining) for pair in pairs):
            groups = remaining
    groups.sort(key=sorted)
    signs = [*_LETTERS, *(f"({k + 1})" for k in range(len(_LETTERS), len(groups)))]
    displays = []
    for system in range(len(different)):
        membership = [system in group for group in groups]
        displays.append("".join(compress(signs, membership)))
    return displays


def _without_both(group: frozenset[int], pair: tuple[int, ...]) -> list[frozenset[int]]:
    """Split a set of systems so that the two of ``pair``, which differ, are separated."""
    return [group - {system} for system in pair] if group.issuperset(pair) else [group]


def _is_absorbed(group: frozenset[int], groups: Sequence[frozenset[int]]) -> bool:
    return any(group < larger for larger in groups)


def _is_within_any(pair: tuple[int, ...], groups: Sequence[frozenset[int]]) -> bool:
    return any(group.issuperset(pair) for group in groups)
