"""Scores against ratings: tables, figures, options, refusals, the command."""

from __future__ import annotations

import itertools
import math
from pathlib import Path
from typing import Any

import numpy as np
import pandas
import pytest
from pandas.testing import assert_frame_equal
from separations import save_results

from torch_mapss.evaluation import cli
from torch_mapss.evaluation.correlate import (
    Correlation,
    correlate,
    correlate_stimuli,
    correlate_table,
)
from torch_mapss.evaluation.correlation_stats import (
    POOLINGS,
    CorrelationSettings,
)
from torch_mapss.evaluation.ratings import KEYS

QUESTIONS = ("interference", "quality")


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
    result = correlate_stimuli(stimuli(), None, CorrelationSettings(draws=200))
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
        correlate_stimuli(stimuli(), ["stoi"])


def test_errors_of_scores_widen_the_correlation():
    """Their jitter is simulated in tests of the bounds; here, what the options do."""
    outputs_of_sources = pandas.concat(
        [quality(3, 9).assign(source=name) for name in ("vocals", "drums")]
    )

    def widths(**options: Any) -> dict[str, Any]:
        result = correlate_stimuli(
            outputs_of_sources, ["ps"], CorrelationSettings(draws=0, **options)
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
    from_tables = correlate_stimuli(stimuli(6), None, CorrelationSettings(draws=100))
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


def test_notes_on_the_ratings_are_part_of_the_result(files):
    results, ratings = files
    repeated = pandas.read_csv(ratings).iloc[:2]
    repeated.to_csv(ratings, mode="a", header=False, index=False)
    summary = correlate(results, ratings, draws=20).summary()
    assert "2 rows repeated a stimulus and question, and were averaged" in summary
    assert "taken as 'vocals' in 6 track(s)" in summary


def test_resampled_units_and_reasons_are_reported():
    rated_outputs = quality(4).assign(log_foreign_distance=1.0)
    rated_outputs["cluster"] = rated_outputs["system"]
    result = correlate_stimuli(rated_outputs, None, CorrelationSettings(draws=50, cluster="system"))
    assert {*zip(result.rows["cluster"], result.rows["clusters"])} == {("system", 5)}
    assert "Intervals resample systems" in result.summary()
    assert list(result.labels) == ["ps", "log_pm", "pesq"]  # diagnostics wait to be asked for
    result = correlate_stimuli(quality(1), ["log_pm"], CorrelationSettings(draws=0))
    row = cells(result, pooling="pooled")
    assert row["reason"] == "no draws: no interval, no p; one cluster: no interval"
    assert all(reason in result.summary() for reason in row["reason"].split("; "))


def test_input_that_cannot_be_correlated_is_refused(files, tmp_path):
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
    printed_only = ["correlate", *map(str, files), "--draws", "20"]
    assert cli.main([*printed_only, "--measures", "ps"]) == 0
    printed = capsys.readouterr().out
    arguments = [*printed_only, "--out", str(tmp_path / "c")]
    assert cli.main([*arguments, "--measures", "ps"]) == 0
    told = f"{printed}\nWritten to {tmp_path / 'c'}\n"
    assert capsys.readouterr().out == told
    assert "Intervals resample tracks" in printed
    assert (tmp_path / "c" / "correlations.csv").exists()
    assert cli.main([*arguments, "--columns", "track=item"]) == 2
    assert "'item'" in capsys.readouterr().err


def test_a_table_that_has_both_gives_the_same_numbers():
    joined = stimuli(6)
    expected = correlate_stimuli(joined, None, CorrelationSettings(draws=100))
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
    result = correlate_stimuli(joined, None, CorrelationSettings(draws=50))
    for pooling in POOLINGS:
        row = cells(result, measure="bleed_db", pooling=pooling)
        assert (row["srcc"], row["pcc"]) == (pytest.approx(1.0), pytest.approx(1.0))
    between = result.differences.set_index(["pooling", "method", "measure_a", "measure_b"])
    log_pm_less_bleed = between.loc[("per_track", "srcc", "log_pm", "bleed_db"), "difference"]
    expected = cells(result, measure="log_pm", pooling="per_track")["srcc"] - 1.0
    assert log_pm_less_bleed == pytest.approx(expected)
    assert result.units.query("measure == 'bleed_db'")["srcc"].tolist() == [pytest.approx(1.0)] * 8
    assert "Lower is better in bleed: the sign is flipped" in result.summary()
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
