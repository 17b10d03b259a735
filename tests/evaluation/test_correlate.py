"""Scores against ratings: the statistics, the joining, the files, the command."""

from __future__ import annotations

import itertools
import math
import tracemalloc
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pandas
import pytest
from pandas.testing import assert_frame_equal
from scipy import stats
from separations import save_results

from torch_mapss.evaluation import cli
from torch_mapss.evaluation.correlate import (
    Correlation,
    correlate,
    correlate_stimuli,
    correlate_table,
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
from torch_mapss.evaluation.ratings import KEYS, Stimuli, join, load_ratings, match_names

QUESTIONS = ("interference", "quality")


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


def test_what_does_not_count_and_why():
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
    assert np.isnan([estimated.value, estimated.low, estimated.high]).tolist() == [
        False,
        True,
        True,
    ]
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


def test_intervals_cover_what_they_are_of():
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
def test_p_is_uniform_where_nothing_is_to_be_found(pooling):
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


def rated(*systems: str, source: str = "vocals") -> Stimuli:
    """One rating of each system; ``control:`` ones are no systems."""
    rows = [
        {"scenario": "all", "question": "q", "track": "t", "source": source, "rating": 50.0}
        | {"system": s.removeprefix("control:"), "is_system": not s.startswith("control:")}
        | {"cluster": "t"}
        for s in systems
    ]
    return Stimuli(pandas.DataFrame(rows), ("so rated",))


def outputs(*systems: str, source: str = "vocals", track: str = "t") -> pandas.DataFrame:
    named = {"track": track, "source": source, "ps": 0.5}
    return pandas.DataFrame([{**named, "system": system} for system in systems])


def test_names_of_sources_meet():
    pairs, guessed = match_names(["ref_bass", "ref_drums"], ["drums", "bass"], {})
    assert pairs == guessed == {"ref_bass": "bass", "ref_drums": "drums"}
    assert match_names(["ref"], ["vocals"], {}) == ({"ref": "vocals"}, {"ref": "vocals"})
    assert match_names(["x", "y"], ["u", "v"], {}) == ({}, {})  # no guess among several
    assert match_names(["x", "y"], ["u", "v"], {"x": "v"})[0] == {"x": "v", "y": "u"}
    assert match_names(["bass", "ref_bass"], ["bass"], {}) == ({"bass": "bass"}, {})


def test_controls_are_left_out_unless_asked_for():
    ratings, scores = rated("A", "control:ref"), outputs("A", "control:ref")
    assert list(join(scores, ratings).table["system"]) == ["A"]
    assert list(join(scores, ratings, controls=True).table["system"]) == ["A", "ref"]
    plain = rated("A", "ref")  # a table without roles
    assert list(join(scores, plain).table["system"]) == ["A"]
    with_control = outputs("control:A", "A").assign(
        ps=[0.1, 0.9]
    )  # the system is the one that is meant
    assert list(join(with_control, rated("A"), controls=True).table["ps"]) == [0.9]


def test_what_does_not_meet_is_told():
    joined = join(outputs("A", source="ref"), rated("A", "B"))
    assert len(joined.notes) == 3
    for note, fragment in zip(joined.notes, ("--source-map", "1 of 2 ratings", "so rated")):
        assert fragment in note
    with pytest.raises(ValueError, match=r"tracks 'u'.*ratings tracks 't'.*--source-map"):
        join(outputs("A", track="u"), rated("A"))


def test_tables_of_ratings_are_read(tmp_path):
    path = tmp_path / "r.csv"
    path.write_text("item,system,mos\nx,control:ref,5\nx,A,3\nx,A,4\n")
    loaded = load_ratings(path, {"track": "item", "rating": "mos"})
    assert [*zip(loaded.table["system"], loaded.table["rating"])] == [("ref", 5.0), ("A", 3.5)]
    assert loaded.table["is_system"].all()
    assert loaded.notes[0].startswith("1 rows")


@pytest.mark.parametrize(
    ("text", "columns", "message"),
    [
        ("item,system,mos\nx,A,3\n", None, r"mean_rating.*--columns|--columns.*mean_rating"),
        ("track,system,mean_rating\nx,A,good\n", None, "line 2"),
        ("track,system,mean_rating\nx,A,1\nx,B,\n", None, "line 3"),
        ("track,system,mean_rating\n", None, "holds no"),
        ("track,system,mean_rating\nx,A,1\n", {"trck": "a"}, "columns"),
        ("track,system,mean_rating\nx,A,1\n", {"scenario": "z"}, "'z'"),
    ],
)
def test_tables_of_ratings_are_refused(tmp_path, text, columns, message):
    (tmp_path / "r.csv").write_text(text)
    with pytest.raises(ValueError, match=message):
        load_ratings(tmp_path / "r.csv", columns)


TABLE = "track;system;source;mean_rating\nCaf\u00e9;A;vocals;61,5\nCaf\u00e9;B;vocals;48,25\n"


def test_tables_of_spreadsheets_and_names_in_two_unicode_forms_meet(tmp_path):
    path = tmp_path / "r.csv"
    path.write_text(TABLE, encoding="utf-16")
    loaded = load_ratings(path)
    assert list(loaded.table["rating"]) == [61.5, 48.25]
    assert len(join(outputs("A", "B", track="Cafe\u0301"), loaded).table) == 2


def test_clusters_are_a_column_of_the_ratings(tmp_path):
    path = tmp_path / "r.csv"
    path.write_text("track,system,talker,mean_rating\nx,A,f1,3\nx,A,f1,4\ny,A,f1,5\n")
    for cluster, expected in (
        ("talker", ["f1", "f1"]),
        ("system", ["A", "A"]),
        ("track", ["x", "y"]),
    ):
        loaded = load_ratings(path, cluster=cluster).table
        assert [[*loaded["rating"]], [*loaded["cluster"]]] == [[3.5, 5.0], expected]
    for text in ("x,A,f1,3\nx,A,f2,4\n", "x,A,,3\n"):  # two talkers of one stimulus, or none
        path.write_text(f"track,system,talker,mean_rating\n{text}")
        for cluster, word in (("talker", "cluster"), ("condition", "'condition'")):
            with pytest.raises(ValueError, match=word):
                load_ratings(path, cluster=cluster)


def stimuli(tracks: int = 12, systems: int = 5, bounds: bool = True) -> pandas.DataFrame:
    rng, rows = np.random.default_rng(4), []
    for track, system in itertools.product(range(tracks), range(systems)):
        true = rng.uniform(0, 100)
        scores = {"ps": true / 100 + rng.normal(0, 0.1), "log_pm": -true, "pesq": rng.normal()}
        scores |= {"ps_radius": 0.02, "ps_tail": 0.05} if bounds else {}
        for question, value in zip(QUESTIONS, (true, 100 - true)):
            names = dict(zip(KEYS, ("all", question, f"t{track}", "vocals", f"s{system}")))
            rows.append({**names, "rating": value, "cluster": f"t{track}", **scores})
    return pandas.DataFrame(rows)


def quality(*sizes: Any) -> pandas.DataFrame:
    return stimuli(*sizes).query("question == 'quality'")


def cells(result: Correlation, **values_by_column: str) -> dict[str, Any]:
    rows = result.rows.to_dict("records")
    (row,) = (r for r in rows if all(r[k] == v for k, v in values_by_column.items()))
    return row


def test_every_measure_meets_every_question():
    result = correlate_stimuli(Stimuli(stimuli()), None, CorrelationSettings(draws=200))
    assert len(result.rows) == 2 * 3 * 2
    row = cells(result, question="quality", measure="log_pm", pooling="per_track")
    assert row["srcc"] == row["pcc"] == pytest.approx(1.0)
    assert row["p"] == pytest.approx(1 / 201)
    assert row["p_holm"] == pytest.approx(3 / 201)
    row = cells(result, question="interference", measure="log_pm", pooling="pooled")
    assert row["srcc"] == pytest.approx(-1.0)
    assert (row["tracks"], row["stimuli"]) == (12, 60)
    assert math.isnan(row["srcc_radius"])  # no bounds of it
    pairs = {*zip(result.differences["measure_a"], result.differences["measure_b"])}
    assert pairs == {("ps", "log_pm"), ("ps", "pesq"), ("log_pm", "pesq")}
    with pytest.raises(ValueError, match="stoi"):
        correlate_stimuli(Stimuli(stimuli()), ["stoi"])


def test_errors_of_scores_widen_the_correlation():
    """Their jitter is simulated in tests of the bounds; here, what the options do."""
    outputs_of_sources = pandas.concat(
        [quality(3, 9).assign(source=name) for name in ("vocals", "drums")]
    )

    def widths(**options: Any) -> dict[str, Any]:
        result = correlate_stimuli(
            Stimuli(outputs_of_sources), ["ps"], CorrelationSettings(draws=0, **options)
        )
        return cells(result, pooling="per_track")

    derived, printed = widths(), widths(convention="paper", source_correlation=1.0)
    # All biases are equal here: printed, they cancel; in truth each may have its own sign.
    assert printed["srcc_radius"] == 0.0
    assert printed["pcc_radius"] == pytest.approx(0.0, abs=1e-12)
    assert derived["pcc_radius"] > 0.01
    # Sources of a track whose errors go together widen it.
    assert printed["pcc_half_width"] == pytest.approx(math.sqrt(2) * derived["pcc_half_width"])
    assert printed["srcc_half_width"] > math.sqrt(2) * derived["srcc_half_width"]  # c* against c


@pytest.fixture
def files(tmp_path: Path) -> tuple[Path, Path]:
    """A results folder and ratings of made-up stimuli."""
    results, ratings = tmp_path / "results", tmp_path / "ratings.csv"
    results.mkdir()
    rated = stimuli(6).rename(columns={"rating": "mean_rating"}).assign(role="system")
    names = ["track", "source", "system", "question", "role", "mean_rating"]
    rated[names].to_csv(ratings, index=False)
    scores = quality(6)[["track", "system", "ps", "log_pm", "ps_radius", "ps_tail"]]
    scores = scores.rename(columns={"track": "mixture_id"}).assign(source="ref", status="ok")
    broken = pandas.DataFrame([{"mixture_id": "t0", "system": "broken", "status": "failed"}])
    scores = pandas.concat([scores, broken]).assign(source_index=0)
    save_results(results, scores.to_dict("records"))
    return results, ratings


def test_folders_and_rivals_become_tables_and_plots(files, tmp_path):
    results, ratings = files
    rivals = tmp_path / "rivals.csv"
    rival_scores = quality(6)[["track", "system", "pesq"]].rename(columns={"track": "mixture_id"})
    rival_scores.assign(source_index=0, source="ref").to_csv(rivals, index=False)
    result = correlate(results, ratings, rivals=[rivals], draws=100)
    assert list(result.labels) == ["ps", "log_pm", "pesq"]
    from_tables = correlate_stimuli(Stimuli(stimuli(6)), None, CorrelationSettings(draws=100))
    assert_frame_equal(result.rows, from_tables.rows)
    out = Path(result.save(tmp_path / "new" / "out"))
    written = pandas.read_csv(out / "correlations.csv", keep_default_na=False, na_values=["nan"])
    assert_frame_equal(written, result.rows, check_dtype=False, rtol=1e-7)
    page = (out / "correlations.md").read_text(encoding="utf-8")
    assert "## quality" in page
    assert "| PS radius |" in page
    assert "source 'ref' of the results taken as 'vocals' in 6 track(s)" in page
    tex = (out / "correlations_quality.tex").read_text(encoding="utf-8")
    assert tex.count(r"\\") == 2 + 3
    assert "log PM & 1.000 & 1.000" in tex
    for question in QUESTIONS:
        assert (out / f"correlations_{question}.png").stat().st_size > 5000
    assert len(pandas.read_csv(out / "stimuli.csv")) == 60
    for shown in (result.summary(), result._repr_html_()):
        assert "log PM" in shown
        assert "Intervals resample tracks" in shown


def test_what_is_resampled_and_every_reason_is_said():
    rated_outputs = quality(4).assign(log_foreign_distance=1.0)
    rated_outputs["cluster"] = rated_outputs["system"]
    result = correlate_stimuli(
        Stimuli(rated_outputs), None, CorrelationSettings(draws=50, cluster="system")
    )
    assert {*zip(result.rows["cluster"], result.rows["clusters"])} == {("system", 5)}
    assert "Intervals resample systems" in result.summary()
    assert list(result.labels) == ["ps", "log_pm", "pesq"]  # diagnostics wait to be asked for
    result = correlate_stimuli(Stimuli(quality(1)), ["log_pm"], CorrelationSettings(draws=0))
    row = cells(result, pooling="pooled")
    assert row["reason"] == "no draws: no interval, no p; one cluster: no interval"
    assert all(reason in result.summary() for reason in row["reason"].split("; "))


def test_what_cannot_be_correlated_is_refused(files, tmp_path):
    with pytest.raises(ValueError, match="torch-mapss evaluate"):
        correlate(tmp_path / "nothing", files[1])
    for settings in ({"convention": "printed"}, {"draws": -1}, {"source_correlation": 2.0}):
        with pytest.raises(ValueError, match=next(iter(settings))):
            correlate(*files, **settings)
    rivals = tmp_path / "rivals.csv"
    for text, message in (
        ("pesq\nother,s0,0,1.5\n", "source_index"),
        ("note,pesq\nt0,s0,0,good,bad\nt1,s0,0,,1\n", "line 2"),
    ):
        rivals.write_text(f"mixture_id,system,source_index,{text}")
        with pytest.raises(ValueError, match=message):
            correlate(*files, rivals=[rivals])


def test_the_command(files, tmp_path, capsys):
    arguments = ["correlate", *map(str, files), "--out", str(tmp_path / "c"), "--draws", "20"]
    assert cli.main([*arguments, "--measures", "ps"]) == 0
    assert "Intervals resample tracks" in capsys.readouterr().out
    assert (tmp_path / "c" / "correlations.csv").exists()
    assert cli.main([*arguments, "--columns", "track=item"]) == 2
    assert "'item'" in capsys.readouterr().err


def test_a_table_that_has_both_gives_the_same_numbers():
    joined = stimuli(6)
    expected = correlate_stimuli(Stimuli(joined), None, CorrelationSettings(draws=100))
    table = joined.drop(columns=["scenario", "cluster"])
    unrated = table.head(1).assign(rating=math.nan)
    table = pandas.concat([table, unrated], ignore_index=True)
    correlation_of_table = correlate_table(table, draws=100)
    assert_frame_equal(correlation_of_table.rows, expected.rows)
    assert_frame_equal(correlation_of_table.differences, expected.differences)
    assert_frame_equal(correlation_of_table.units, expected.units)
    # Families name the scores that the table has; what is compared within can be any column.
    match = correlate_table(table.drop(columns="source"), "match", draws=0)
    assert list(match.labels) == ["log_pm"]
    systems = correlate_table(table, ["ps"], cluster="system", draws=0)
    assert {*systems.rows["clusters"]} == {5}


@pytest.mark.parametrize(
    ("columns", "settings", "message"),
    [
        ({"rating": "mos"}, {}, "lacks rating"),
        ({}, {"cluster": "talker"}, "lacks talker"),
        ({}, {"measures": ["sdr"]}, "measures must be of ps, log_pm, pesq, separation, match"),
        ({}, {"draws": -1}, "draws"),
        ({}, {"confidence": 95}, "confidence"),
    ],
)
def test_tables_that_cannot_be_correlated_are_refused(columns, settings, message):
    table = quality(2).rename(columns=columns)
    with pytest.raises(ValueError, match=message):
        correlate_table(table, **settings)


def test_tables_without_a_rating_and_unknown_settings_are_refused():
    table = quality(2)
    with pytest.raises(ValueError, match="holds no rating"):
        correlate_table(table.assign(rating=math.nan))
    with pytest.raises(TypeError, match="settings must be of confidence"):
        correlate_table(table, drawz=3)


def test_scores_of_which_lower_is_better_are_turned(tmp_path):
    """Quiet bleed goes with high ratings: that is agreement, and a positive correlation."""
    joined = quality(8)
    joined["bleed_db"] = -20.0 - 0.2 * joined["rating"]
    result = correlate_stimuli(Stimuli(joined), None, CorrelationSettings(draws=50))
    for pooling in POOLINGS:
        row = cells(result, measure="bleed_db", pooling=pooling)
        assert (row["srcc"], row["pcc"]) == (pytest.approx(1.0), pytest.approx(1.0))
    between = result.differences.set_index(["pooling", "method", "measure_a", "measure_b"])
    log_pm_less_bleed = between.loc[("per_track", "srcc", "log_pm", "bleed_db"), "difference"]
    expected = cells(result, measure="log_pm", pooling="per_track")["srcc"] - 1.0
    assert log_pm_less_bleed == pytest.approx(expected)
    assert result.units.query("measure == 'bleed_db'")["srcc"].tolist() == [pytest.approx(1.0)] * 8
    assert "Lower is better in bleed: the sign is turned" in result.summary()
    assert "Higher counts as better in pesq" in result.summary()
    out = Path(result.save(tmp_path))
    stored = pandas.read_csv(out / "stimuli.csv")["bleed_db"]
    np.testing.assert_allclose(stored, joined["bleed_db"], rtol=1e-8)  # as it was measured
    # Fractions everywhere: no table has per cent.
    for name in ("correlations.md", "correlations_quality.tex"):
        text = (out / name).read_text(encoding="utf-8")
        assert "1.000" in text
        assert "%}" not in text
        assert "100.0" not in text
