"""Correlations, their intervals, p-values and differences against SciPy and by simulation."""

from __future__ import annotations

import itertools
import math
import tracemalloc
from types import SimpleNamespace
from typing import Any

import numpy as np
import pandas
import pytest
from scipy import stats

from torch_mapss.evaluation.correlate import (
    correlated,
)
from torch_mapss.evaluation.correlation_stats import (
    METHODS,
    POOLINGS,
    CorrelationSettings,
    SampledCorrelation,
    correlation,
    permutation_p,
    usable_stimuli,
)


def table(scores: Any, ratings: Any, unit: Any, cluster: Any = None) -> pandas.DataFrame:
    """Stimuli of a measure x; a cluster per unit unless said otherwise."""
    cluster = unit if cluster is None else cluster
    columns = {"x": scores, "rating": ratings, "unit": unit, "cluster": cluster}
    return pandas.DataFrame(columns | {"track": unit, "source": "a"})


def made_up(tracks: int, systems: int, seed: int = 0, sources: int = 1) -> pandas.DataFrame:
    """Scores that follow ratings, more or less; with ties in both."""
    rng = np.random.default_rng(seed)
    count = tracks * sources * systems
    ratings = rng.integers(0, 9, count).astype(float)
    scores = np.round(ratings + rng.normal(0, 3, count))
    unit = np.repeat(np.arange(tracks * sources), systems)
    return table(scores, ratings, unit, unit // sources)


def estimate(data: Any, pooling: str = "per_track", method: str = "srcc", **options: Any) -> Any:
    """value, low, high, p, clusters and reasons: of x, or of x less ps where there is one."""
    names = [name for name in ("x", "ps") if name in data]
    rows, differences = correlated(data, names, pooling, CorrelationSettings(**options))
    if len(names) == 2:
        (row,) = (row for row in differences if row["method"] == method)
        return SimpleNamespace(value=row["difference"], **row)
    row = {key.removeprefix(f"{method}_"): value for key, value in rows[0].items()}
    row |= {"value": row[method], "reasons": row["reason"].split("; ") if row["reason"] else []}
    return SimpleNamespace(**row)


def cell(data: pandas.DataFrame, method: str, pooling: str = "per_track") -> SampledCorrelation:
    return SampledCorrelation(usable_stimuli(data, ["x"], pooling)[0], "x", method)


@pytest.mark.parametrize(("method", "reference"), [("srcc", "spearmanr"), ("pcc", "pearsonr")])
def test_correlations_are_scipys(method, reference):
    data = made_up(6, 5, sources=2)
    by_hand = [
        getattr(stats, reference)(unit_rows.x, unit_rows.rating)[0]
        for _, unit_rows in data.groupby("unit")
    ]
    assert cell(data, method).value == pytest.approx(np.mean(by_hand), rel=1e-12)
    pooled = getattr(stats, reference)(data.x, data.rating)[0]
    assert cell(data, method, "pooled").value == pytest.approx(pooled, rel=1e-12)


@pytest.mark.parametrize("method", METHODS)
def test_samples_are_clusters_that_occur_so_often(method):
    data, counts = made_up(4, 6, seed=3), np.array([[2, 0, 1, 3]])
    copies = [data[data.unit == t].assign(unit=k) for k, t in enumerate([0, 0, 2, 3, 3, 3])]
    for pooling in POOLINGS:
        (sampled,) = cell(data, method, pooling).sampled(counts.astype(float))
        of_copies = cell(pandas.concat(copies), method, pooling)
        assert sampled == pytest.approx(of_copies.value, rel=1e-12)
    # Systems as clusters: the correlation of a track is that of the systems drawn.
    systems = data.assign(cluster=np.tile(np.arange(6), 4))
    counts = np.array([2, 0, 1, 3, 0, 1])
    (sampled,) = cell(systems, method).sampled(counts[None].astype(float))
    rows = np.concatenate([np.repeat(np.arange(6), counts) + 6 * t for t in range(4)])
    assert sampled == pytest.approx(cell(data.iloc[rows], method).value, rel=1e-12)
    by_track, by_system = estimate(data, draws=500), estimate(systems, draws=500)
    assert (by_track.value, by_track.clusters, by_system.clusters) == (by_system.value, 4, 6)
    assert (by_track.low, by_track.high) != (by_system.low, by_system.high)


def test_ratings_equal_but_for_rounding_are_tied():
    scores, ratings = np.array([1.0, 2.0, 3.0, 4.0]), np.array([0.3, 0.1 + 0.2, 0.5, 0.7])
    exact = stats.spearmanr(scores, [0.3, 0.3, 0.5, 0.7])[0]
    assert correlation(scores, ratings, "srcc")[0] == pytest.approx(exact, rel=1e-12)
    constant = made_up(3, 4).assign(x=0.1 + 0.2)
    assert all(math.isnan(cell(constant, method, "pooled").value) for method in METHODS)


def test_memory_is_linear_in_tracks():
    peaks = []
    for tracks in (60, 360):
        data = made_up(tracks, 5)
        tracemalloc.start()
        for pooling in POOLINGS:
            estimate(data, pooling, draws=50)
        peaks.append(tracemalloc.get_traced_memory()[1])
        tracemalloc.stop()
    assert peaks[1] < min(16 * peaks[0], 40e6)


def test_excluded_rows_have_reasons():
    data = made_up(4, 4, seed=1)
    data.loc[:1, "x"] = math.nan  # two of track 0 are left
    data.loc[4:7, "x"] = 0.0  # a measure that says the same of all
    assert {*usable_stimuli(data, ["x"], "per_track")[0].unit} == {2, 3}
    assert len(usable_stimuli(data, ["x"], "pooled")[0]) == 14
    assert estimate(data, draws=20).reasons == [  # also of a correlation that is there
        "1 of 4 tracks and sources: fewer than 3 systems with a score",
        "1 of 4 tracks and sources: scores do not vary",
        "2 clusters: interval approximate",
    ]
    estimated = estimate(made_up(1, 2))
    assert np.isnan([estimated.value, estimated.low, estimated.high, estimated.p]).all()
    assert estimated.reasons == ["1 of 1 tracks and sources: fewer than 3 systems with a score"]
    for pooling in POOLINGS:
        estimated = estimate(data.assign(x=2.0, rating=1.0), pooling, draws=20)
        reasons = [reason.split(": ")[-1] for reason in estimated.reasons]
        assert reasons == ["scores do not vary", "ratings do not vary"]
    estimated = estimate(made_up(1, 6))
    assert math.isfinite(estimated.value)
    assert np.isnan([estimated.low, estimated.high]).all()
    assert estimated.reasons == ["one cluster: no interval"]
    agreed = np.tile([1.0, 2.0, 3.0, 4.0], 5)
    perfect = estimate(table(2 * agreed, agreed, np.repeat(np.arange(5), 4)), method="pcc")
    assert (perfect.value, perfect.low, perfect.high) == (1.0, 1.0, 1.0)


def test_intervals_resample_tracks():
    data = made_up(12, 5, seed=5, sources=2)
    estimated = estimate(data, draws=2000, seed=1)
    means = [
        stats.spearmanr(unit_rows.x, unit_rows.rating)[0] for _, unit_rows in data.groupby("unit")
    ]
    means = np.reshape(means, (12, 2)).mean(1)  # both sources of a track go together
    expected = stats.bootstrap(
        (means,), np.mean, n_resamples=4000, method="BCa", random_state=np.random.default_rng(7)
    ).confidence_interval
    assert estimated.low == pytest.approx(expected.low, abs=0.02)
    assert estimated.high == pytest.approx(expected.high, abs=0.02)
    assert estimated.reasons == []


def test_intervals_have_nominal_coverage():
    """Tracks of a known mean correlation: nine in ten 90 % intervals hold it."""
    rng, hits = np.random.default_rng(0), 0
    unit, ratings = np.repeat(np.arange(20), 6), np.tile(np.arange(6.0), 20)
    for trial in range(50):
        scores = np.where(rng.random(20)[:, None] < 0.7, np.arange(6.0), rng.random((20, 6)))
        data = table(scores.ravel(), ratings, unit)
        estimated = estimate(data, confidence=0.9, draws=200, seed=trial)
        hits += estimated.low <= 0.7 <= estimated.high
    assert 0.80 * 50 <= hits <= 0.98 * 50


def test_p_of_permutations_is_that_of_all_of_them():
    x, m = np.array([1.0, 2.0, 3.0, 4.0, 6.0]), np.array([2.0, 1.0, 4.0, 3.0, 5.0])
    observed = cell(table(x, m, np.zeros(5, dtype=int)), "pcc")
    all_correlations = [
        np.corrcoef(x, m[list(order)])[0, 1] for order in itertools.permutations(range(5))
    ]
    exact = np.mean(np.abs(all_correlations) >= abs(observed.value) - 1e-12)
    p = permutation_p(observed, draws=20000)
    assert p == pytest.approx(exact, abs=4 * math.sqrt(exact * (1 - exact) / 20000))
    assert permutation_p(observed, draws=3) >= 0.25  # never 0


@pytest.mark.parametrize("pooling", POOLINGS)
def test_p_is_uniform_under_the_null_hypothesis(pooling):
    rng, unit = np.random.default_rng(2), np.repeat(np.arange(4), 5)
    tables = (table(rng.normal(size=20), rng.normal(size=20), unit) for _ in range(100))
    p_values = [permutation_p(cell(data, "srcc", pooling), draws=99) for data in tables]
    assert stats.kstest(p_values, "uniform").pvalue > 1e-3
    assert np.mean(np.array(p_values) <= 0.05) <= 0.05 + 3 * math.sqrt(0.05 * 0.95 / 100)


def test_differences_are_paired():
    data, rng = made_up(12, 5, seed=8), np.random.default_rng(1)
    data["ps"] = data.x + rng.normal(0, 6, len(data))
    difference = estimate(data)
    good, bad = (SampledCorrelation(data, name, "srcc") for name in ("x", "ps"))
    assert difference.value == pytest.approx(good.value - bad.value)
    assert difference.low < difference.value < difference.high
    assert difference.clusters == 12
    same = estimate(data.assign(ps=data.x), "pooled", "pcc")
    assert (same.value, same.low, same.high, same.clusters) == (0.0, 0.0, 0.0, 12)
    data.loc[data.unit < 4, "ps"] = math.nan  # compared on what both have
    difference = estimate(data)
    good, bad = (SampledCorrelation(data[data.unit >= 4], name, "srcc") for name in ("x", "ps"))
    assert difference.clusters == 8
    assert difference.value == pytest.approx(good.value - bad.value)
