"""Intervals, paired tests, Holm and letters, against SciPy, enumeration and values by hand."""

from __future__ import annotations

import itertools

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy import stats

from torch_mapss.evaluation import significance


@pytest.mark.parametrize("weighted", [False, True])
def test_intervals_are_scipys_column_by_column(weighted, monkeypatch):
    rng = np.random.default_rng(1)
    values, weights = rng.gamma(2.0, size=(12, 3)), rng.uniform(0.5, 3.0, 12)
    weights = weights if weighted else np.ones(12)
    values[2:4, 2] = np.nan  # left out
    intervals = significance.mean_intervals(values, weights, draws=1000, seed=2)
    n, means, low, high = intervals
    np.testing.assert_array_equal(n, [12, 12, 10])
    for k in range(3):
        defined = np.isfinite(values[:, k])
        x, w = values[defined, k], weights[defined]

        def mean(drawn: np.ndarray, x: np.ndarray = x, w: np.ndarray = w) -> float:
            return float(np.average(x[drawn], weights=w[drawn]))

        options = {"n_resamples": 1000, "random_state": np.random.default_rng(2)}
        plain = stats.bootstrap((np.arange(len(x)),), mean, vectorized=False, **options)
        assert means[k] == pytest.approx(mean(np.arange(len(x))), rel=1e-12)
        assert (low[k], high[k]) == pytest.approx(tuple(plain.confidence_interval), rel=1e-9)
    monkeypatch.setattr(significance, "BLOCK", 7 * 12)  # blocks of draws change nothing
    blocks = significance.mean_intervals(values, 2.5 * weights, draws=1000, seed=2)
    for column_value, block_values in zip(intervals, blocks):
        np.testing.assert_allclose(column_value, block_values, rtol=1e-9)


def test_intervals_depend_on_no_rounding():
    """Samples whose mean is that of the data are ties; here all means of ``x`` are exact."""
    x = np.array([1.0, 2.0, 4.0, 7.0, 11.0, 16.0])
    exact = significance.mean_intervals(x[:, None])
    for scale in (0.1, 0.3, 1 / 7):
        alone = significance.mean_intervals(scale * x[:, None])
        in_table = significance.mean_intervals(np.column_stack([scale * x, np.sqrt(x)]))
        for _, _, low, high in (alone, in_table):
            np.testing.assert_allclose([low[0], high[0]], scale * np.ravel(exact[2:]))


def test_constant_columns_and_small_sets():
    step = np.arange(8)[:, None] * 0.1
    _, mean, low, high = significance.mean_intervals((step + 0.3) - step)  # 0.3 but for rounding
    assert low == mean == high == pytest.approx(0.3)
    _, mean, low, high = significance.mean_intervals(np.array([[0.25]]))
    assert mean == 0.25
    assert np.isnan([low, high]).all()
    none = significance.mean_intervals(np.full((1, 2), np.nan))
    assert np.isnan(none[1:]).all()
    *_, low, high = significance.mean_intervals(np.array([[0.0], [1.0]]))
    assert 0.0 <= low[0] < 0.5 < high[0] <= 1.0


@pytest.mark.slow
def test_coverage_equals_the_docstring():
    """95 % intervals of normal data: 85 % at six mixtures, 92 % at thirty."""
    rng = np.random.default_rng(0)
    for count, least, most in ((6, 0.82, 0.88), (30, 0.90, 0.95)):
        covered = 0
        for trial in range(1000):
            values = rng.normal(size=(count, 1))
            *_, low, high = significance.mean_intervals(values, draws=999, seed=trial)
            covered += int(low[0] <= 0.0 <= high[0])
        assert least <= covered / 1000 <= most


def by_enumeration(differences: np.ndarray) -> float:
    """Two-sided p of the sum of positive ranks over all signs, Pratt's zeros."""
    ranks = stats.rankdata(np.abs(differences))
    live = ranks[differences != 0]
    centre = live.sum() / 2.0
    seen = abs(ranks[differences > 0].sum() - centre)
    sums = [np.dot(signs, live) for signs in itertools.product((0, 1), repeat=len(live))]
    return float(np.mean([abs(value - centre) >= seen - 1e-9 for value in sums]))


@pytest.mark.parametrize("count", [1, 2, 6, 9])
@pytest.mark.parametrize("steps", [2, 5, 10**6])
def test_p_is_that_of_all_signs(count, steps):
    rng = np.random.default_rng(count * steps)
    for _ in range(5):
        differences = rng.integers(-steps, steps + 1, size=count).astype(float)
        result = significance.paired_test(differences)
        assert result.p_wilcoxon == pytest.approx(by_enumeration(differences), abs=1e-12)
        assert result.wins + result.ties + result.losses == count


def test_p_with_ties_beyond_enumeration_and_at_large_n():
    rng = np.random.default_rng(0)
    differences = np.round(rng.normal(0.4, 1.0, size=45), 1)
    result = significance.paired_test(differences)
    # "approx" is what all releases of SciPy call the normal approximation.
    normal = stats.wilcoxon(differences, zero_method="pratt", method="approx").pvalue
    assert result.p_wilcoxon == pytest.approx(normal, rel=0.3)
    assert result.p_wilcoxon != pytest.approx(normal, rel=0.05)  # the exact one
    large = rng.normal(0.05, 1.0, size=2000)
    expected = stats.wilcoxon(large, zero_method="pratt").pvalue
    assert significance.paired_test(large).p_wilcoxon == pytest.approx(expected, rel=1e-12)


def test_counts_and_effect_by_hand():
    # Ranks of |d|: 1 -> 1, 2 -> 2, 3 -> 3.5 twice; positive 1 + 3.5 + 3.5 = 8, negative 2.
    differences = np.array([1.0, -2.0, 3.0, 3.0])
    result, reversed_result = map(significance.paired_test, (differences, -differences))
    assert result[:3] == (3, 0, 1)
    assert result.effect == -reversed_result.effect == pytest.approx((8.0 - 2.0) / 10.0)
    assert result.p_wilcoxon == reversed_result.p_wilcoxon
    assert significance.paired_test(np.zeros(4)) == (0, 4, 0, 1.0, 0.0, 1.0)


def test_differences_equal_but_for_rounding_are_tied():
    first_scores = np.array([0.9, 0.8, 0.7, 0.6, 0.5, 0.4, 0.3, 0.2])
    second_scores = np.array([0.8, 0.7, 0.6, 0.5, 0.4, 0.5, 0.2, 0.3])
    result = significance.paired_test(
        first_scores - second_scores
    )  # eight times 0.1, two of them negative
    assert result.p_wilcoxon == pytest.approx(
        by_enumeration(np.sign(np.round(first_scores - second_scores, 9)))
    )
    assert result.p_wilcoxon == pytest.approx(0.2890625)
    assert (result[:3], result.effect) == ((6, 0, 2), 0.5)
    assert significance.paired_test(np.full(6, 5.6e-17)) == (0, 6, 0, 1.0, 0.0, 1.0)
    # Of large scores the rounding is larger, of small ones smaller.
    assert significance.paired_test(np.full(6, 1e-13), scale=1e4).ties == 6
    assert significance.paired_test(np.full(6, 5.6e-17), scale=1e-10).wins == 6
    large = significance.paired_test(np.r_[np.full(60, 0.9 - 0.8), np.full(20, 0.5 - 0.6)])
    assert (large.effect, large.wins) == (0.5, 60)
    _, mean, low, high = significance.mean_intervals(
        np.array([[5.6e-17], [0.0], [-5.6e-17]]), scale=1.0
    )
    assert low == high == mean


def test_ties_are_merged_and_others_kept():
    values = np.array([0.3, 0.1 + 0.2, -1e-17, 0.5, 0.0])
    np.testing.assert_array_equal(significance.merge_ties(values), [0.3, 0.3, 0.0, 0.5, 0.0])
    assert significance.merge_ties(np.empty(0)).shape == (0,)
    distinct = np.random.default_rng(0).normal(size=50)
    np.testing.assert_array_equal(significance.merge_ties(distinct), distinct)


def test_holm_by_hand():
    # Sorted 0.005, 0.01, 0.03, 0.04 times 4, 3, 2, 1 = 0.02, 0.03, 0.06, 0.04 -> 0.06.
    adjusted = significance.holm(np.array([0.01, 0.04, np.nan, 0.03, 0.005]))
    np.testing.assert_allclose(adjusted, [0.03, 0.06, np.nan, 0.06, 0.02])
    np.testing.assert_array_equal(significance.holm(np.array([0.9, 0.8])), [1.0, 1.0])
    assert significance.holm(np.empty(0)).shape == (0,)
    # Tests that cannot reject cost the others nothing: two instead of four.
    p, least_p = np.array([0.03, 0.2, 0.5, 0.04]), np.array([0.01, 0.1, 0.5, 0.02])
    np.testing.assert_allclose(significance.holm(p, least_p, 0.05), [0.06, 0.4, 0.5, 0.06])
    none = significance.holm(p, np.ones(4), 0.05)
    np.testing.assert_allclose(none, significance.holm(p))


def test_least_p_is_reached_and_the_fewest_mixtures_are_just_enough():
    assert significance.least_holm_p(6, 3) == 3 / 32
    assert significance.least_holm_p(0, 1) == 1.0
    for count in (2, 5, 8):
        p = significance.paired_test(np.arange(1.0, count + 1)).p_wilcoxon
        reached = significance.holm(np.array([p, 1.0, 1.0]))[0]
        assert significance.least_holm_p(count, 3) == pytest.approx(min(1.0, reached))
    for pairs in range(1, 300):
        count = significance.least_mixtures(pairs)
        assert significance.least_holm_p(count, pairs) <= 0.05
        assert significance.least_holm_p(count - 1, pairs) > 0.05
    assert significance.least_mixtures(3, alpha=0.01) == 10


def test_chance_of_any_rejection_holds_without_pairs_that_cannot_reject():
    """Five systems alike; two of them with so few mixtures that their pairs cannot reject."""
    rng, wrong = np.random.default_rng(7), 0
    for _ in range(150):
        values = rng.normal(size=(12, 5))
        values[4:, 3:] = np.nan
        differences = (values[:, a] - values[:, b] for a, b in itertools.combinations(range(5), 2))
        tests = [significance.paired_test(d[np.isfinite(d)]) for d in differences]
        p, least_p = np.array([(test.p_wilcoxon, test.least_p) for test in tests]).T
        wrong += bool((significance.holm(p, least_p, 0.05) <= 0.05).any())
    assert wrong / 150 <= 0.05 + 3 * np.sqrt(0.05 * 0.95 / 150)


@given(st.integers(0, 8), st.integers(0, 2**28 - 1))
@settings(max_examples=200, deadline=None)
def test_letters_are_shared_by_systems_without_a_difference(count, bits):
    different = np.zeros((count, count), dtype=bool)
    for pair_index, (i, j) in enumerate(itertools.combinations(range(count), 2)):
        different[i, j] = different[j, i] = bits >> pair_index & 1
    letters = significance.letters(different)
    assert len(letters) == count
    assert all(letters)
    for i, j in itertools.combinations(range(count), 2):
        assert bool(set(letters[i]) & set(letters[j])) != different[i, j]


def test_letters_of_known_cases():
    chain = ~(np.eye(4, dtype=bool) | np.eye(4, k=1, dtype=bool) | np.eye(4, k=-1, dtype=bool))
    assert significance.letters(chain) == ["a", "ab", "bc", "c"]
    assert significance.letters(np.zeros((3, 3), dtype=bool)) == ["a", "a", "a"]
    assert significance.letters(~np.eye(54, dtype=bool))[52:] == ["(53)", "(54)"]
    # A square: 0-1, 1-2, 2-3, 3-0 do not differ, the diagonals do: four pairs, four letters.
    square = np.zeros((4, 4), dtype=bool)
    square[0, 2] = square[2, 0] = square[1, 3] = square[3, 1] = True
    assert len({*"".join(significance.letters(square))}) == 4
    # Three triangles around one: the middle one's pairs are all held by the others.
    edges = {(0, 1), (1, 2), (0, 2), (0, 3), (1, 3), (1, 4), (2, 4), (0, 5), (2, 5)}
    different = np.array(
        [[i != j and (min(i, j), max(i, j)) not in edges for j in range(6)] for i in range(6)]
    )
    assert len({*"".join(significance.letters(different))}) == 3


@pytest.mark.parametrize(("wins", "ties"), [(5, 46), (6, 60), (8, 100), (6, 2000)])
def test_ties_make_no_p_smaller_than_the_differences_allow(wins, ties):
    """Only differences have signs: w wins alone give 2^(1-w), however many ties there are."""
    result = significance.paired_test(np.r_[0.01 * np.arange(1.0, wins + 1), np.zeros(ties)])
    assert result.p_wilcoxon == pytest.approx(2.0 ** (1 - wins), rel=1e-9)
    assert result.p_wilcoxon >= result.least_p * (1.0 - 1e-9)
    # Against enumeration, where not all signs are the same.
    mixed = np.r_[-0.01, 0.02 * np.arange(1.0, wins), np.zeros(ties)]
    assert significance.paired_test(mixed).p_wilcoxon == pytest.approx(by_enumeration(mixed))


def test_the_normal_approximation_stays_above_the_least_p():
    """Beyond fifty differences p is approximate: never below what the signs can give."""
    for wins, ties in ((51, 0), (60, 5000), (120, 40)):
        result = significance.paired_test(np.r_[np.full(wins, 0.1), np.zeros(ties)])
        assert result.p_wilcoxon >= result.least_p
