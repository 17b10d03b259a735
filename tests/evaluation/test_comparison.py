"""Rankings and tests of systems: against values by hand, and from folders on disk."""

from __future__ import annotations

import dataclasses
import itertools
import math
from typing import Any

import numpy as np
import pandas
import pytest
from made_up_results import (
    LEVELS,
    compared,
    item_rows,
    ranking_by_system,
    spread,
    three_systems,
)
from pandas.testing import assert_frame_equal
from scipy import stats
from separations import python

import torch_mapss
from torch_mapss.evaluation import cli
from torch_mapss.evaluation.comparison import Comparison, compare
from torch_mapss.evaluation.comparison_tables import outlier
from torch_mapss.evaluation.results import Results
from torch_mapss.score_table import RANKED


def row_of(comparison: Comparison, a: str, b: str, measure: str = "ps") -> dict[str, Any]:
    """The row of two systems."""
    table = comparison.pairs.set_index(["measure", "system_a", "system_b"])
    return dict(table.loc[(measure, a, b)])


def test_rows_are_those_of_scipy():
    scores = three_systems()
    comparison = compared(scores)
    p = {}
    for a, b in itertools.combinations(scores, 2):
        row = row_of(comparison, a, b)
        differences = np.array(scores[a]) - np.array(scores[b])
        drawn = stats.bootstrap((differences,), np.mean, random_state=np.random.default_rng(0))
        p[a, b] = stats.wilcoxon(differences).pvalue
        expected = [12, differences.mean(), *drawn.confidence_interval, p[a, b]]
        expected.append((differences > 0).sum())
        names = ["n", "difference", "low", "high", "p_wilcoxon", "wins"]
        assert [row[name] for name in names] == pytest.approx(expected, rel=1e-9)
    running = 0.0
    for step, key in enumerate(sorted(p, key=lambda key: p[key])):
        running = max(running, min(1.0, (3 - step) * p[key]))
        assert row_of(comparison, *key)["p_holm"] == pytest.approx(running, rel=1e-12)
    ranking = ranking_by_system(comparison)
    assert [*ranking] == ["high", "middle", "low"]
    assert [row["group"] for row in ranking.values()] == ["a", "b", "b"]
    for system, row in ranking.items():
        assert (row["mean"], row["note"]) == (pytest.approx(np.mean(scores[system])), "")
        assert row["low"] < row["mean"] < row["high"]


def test_six_mixtures_and_three_systems_are_too_few():
    scores = spread(LEVELS)
    comparison = compared(scores)
    note = "interval approximate (n < 10); n too small to order"
    assert [(row["group"], row["note"]) for row in ranking_by_system(comparison).values()] == [
        ("a", note)
    ] * 3
    assert row_of(comparison, "low", "high")["p_holm"] == pytest.approx(3 * 2 / 2**6)
    assert " ".join(comparison.summary().split()).startswith(comparison.answer())
    assert comparison.answer() in comparison._repr_html_()
    two = compared({name: scores[name] for name in ("low", "high")})
    assert [row["group"] for row in ranking_by_system(two).values()] == ["a", "b"]  # 1/32
    assert "significantly better than every other system" in two.answer()


def test_pairs_that_cannot_reject_leave_the_family():
    scores = three_systems()
    without = compared(scores)
    comparison = compared(scores | {"rare": [*scores["low"][:5], *[math.nan] * 7]})
    for a, b in itertools.combinations(scores, 2):
        assert row_of(comparison, a, b)["p_holm"] == row_of(without, a, b)["p_holm"]
    rare = row_of(comparison, "middle", "rare")
    assert "cannot reject: the smallest attainable p is 0.063" in rare["note"]
    assert rare["p_holm"] >= rare["p_wilcoxon"]
    assert row_of(comparison, "low", "rare")["ties"] == 5


def test_systems_and_measures_can_be_chosen():
    rows = item_rows(spread(LEVELS), ("clearance", "ps", "log_pm"))
    assert len(compared(rows, systems=["low", "high"]).pairs) == 3
    with pytest.raises(ValueError, match="systems must be among those of the results"):
        compared(rows, systems=["lwo"])
    assert compared(rows, measures=["match", "clearance"]).measures == ("clearance", "log_pm")
    with pytest.raises(ValueError, match="measures must be of clearance, ps, log_pm, "):
        compared(rows, measures=["pm"])


def test_a_score_that_does_not_rank_by_default_ranks_if_it_is_named():
    rows = item_rows(spread(LEVELS), ("pm", "log_pm_compressed", "foreign_distance"))
    assert compared(rows).measures == compared(rows, measures="match").measures == ("pm",)
    comparison = compared(rows, measures=["log_pm_compressed", "pm"])
    assert comparison.measures == ("pm", "log_pm_compressed")
    ranking = ranking_by_system(comparison, "log_pm_compressed")
    assert [*ranking] == [*ranking_by_system(comparison, "pm")]
    assert "log PM compressed" in comparison.summary()
    assert compared(rows, measures="log_pm_compressed").measures == ("log_pm_compressed",)
    with pytest.raises(ValueError, match="measures must be of pm, log_pm_compressed, match, got"):
        compared(rows, measures=["foreign_distance"])  # a diagnostic score


def test_controls_are_shown_apart_unless_they_are_asked_for():
    """Hidden references and anchors would win or lose every comparison."""
    rows = item_rows(spread({**LEVELS, "control:ref": 1.0}))
    comparison = compared(rows)
    assert [*ranking_by_system(comparison)] == ["high", "middle", "low"]
    assert "control:ref" not in comparison.answer()
    means = comparison.controls.set_index(["measure", "system"])
    assert means.loc[("ps", "control:ref"), "mean"] == pytest.approx(1.0183333)
    assert "Hidden references and anchors, not ranked" in comparison.summary()
    for options in ({"controls": True}, {"systems": ["low", "middle", "high", "control:ref"]}):
        comparison = compared(rows, **options)
        assert next(iter(ranking_by_system(comparison))) == "control:ref"
        assert comparison.controls.empty
        assert "not ranked" not in comparison.summary()
    only = compared([row for row in rows if row["system"] == "control:ref"])
    assert [*ranking_by_system(only)] == ["control:ref"]


def test_names_in_two_unicode_forms_are_one_system():
    rows = item_rows(spread({"Caf\u00e9": 0.3, "b": 0.4}))
    for row in rows[1::2]:  # two Unicode forms of a name
        row["system"] = row["system"].replace("\u00e9", "e\u0301")
    assert compared(rows).systems == ("Caf\u00e9", "b")


def test_outliers_and_failures_are_named():
    scores = spread(LEVELS, 8)
    scores["middle"][5] = -40.0
    scores["low"][2] = math.nan
    rows = item_rows(scores, ps_se=[0.03] * 8)
    rows[2] |= {"status": "failed", "reason": "no such file"}
    comparison = compared(rows)
    left_out = {name: row["left_out"] for name, row in ranking_by_system(comparison).items()}
    assert left_out == {"high": 1, "middle": 1, "low": 0}
    notes = {name: row["note"] for name, row in ranking_by_system(comparison).items()}
    assert "m5 moves the mean: -5.262 with it, 0.528 without" in notes["middle"]
    assert "moves" not in notes["low"]
    assert "failed: m2" in notes["low"]
    assert f"standard error from excerpts {0.03 / math.sqrt(7):.2g}" in notes["high"]
    assert "PS of middle: m5 moves the mean" in comparison.summary()
    assert "Failed: mixture 'm2', system 'low': no such file" in comparison.summary()
    rng = np.random.default_rng(0)
    assert all(outlier(rng.normal(size=count)) is None for count in range(1, 60))


def test_sources_have_means_of_their_own():
    scores = spread(LEVELS)
    rows = [
        {**row, "source": source, "source_index": source_index, "ps": row["ps"] + source_index}
        for row in item_rows(scores)
        for source_index, source in enumerate(("vocals", "drums"))
    ]
    rows[1]["ps"] = math.nan
    comparison = compared(scores, rows)
    means = comparison.sources.set_index(["measure", "source", "system"])
    assert means.loc[("ps", "vocals", "low"), "mean"] == pytest.approx(np.mean(scores["low"]))
    assert means.loc[("ps", "drums", "low"), "n"] == 5
    assert "drums" in comparison.summary()
    many_sources = [{**row, "source": f"{k}"} for k, row in enumerate(rows)]
    assert "sources.csv" in compared(scores, many_sources).summary()
    # A system that leaves out its worst source must not gain by it in silence.
    less = [row for row in rows if (row["system"], row["source"]) != ("low", "drums")]
    told = "In 6 mixtures some systems left out sources"
    assert told not in comparison.summary()
    assert told in compared(scores, less).summary()
    assert told not in compared(scores, less, systems=["low"]).summary()


def test_pairs_are_over_the_sources_of_both():
    """One system handed in half of another's files: what rounding leaves is no difference."""
    rng = np.random.default_rng(0)
    rows = [
        {"mixture_id": f"m{k}", "system": system, "source": source, "source_index": source_index}
        | {"ps": 0.3 * source_index + (1.0 + 6e-8 * (system == "half")) * (0.4 + 0.01 * k)}
        for k in range(12)
        for source_index, source in enumerate(("vocals", "drums"))
        for system in ("all", "half", "worse")[: 3 if source_index == 0 else 1]
    ]
    for row in rows:
        row["ps"] -= rng.uniform(0.01, 0.02) * (row["system"] == "worse")
    means = pandas.DataFrame(rows).groupby(["system", "mixture_id"])["ps"].mean()
    order = [f"m{k}" for k in range(12)]
    scores_by_system = {name: list(means[name][order]) for name in ("all", "half", "worse")}
    comparison = compared(item_rows(scores_by_system, ["ps"]), rows)
    assert comparison.answer().startswith("half ties with all on PS in 12 of 12 mixtures")
    same, worse = row_of(comparison, "all", "half"), row_of(comparison, "all", "worse")
    assert (same["difference"], same["ties"], same["p_holm"]) == (0.0, 12, 1.0)
    assert (worse["wins"], worse["n"]) == (12, 12)
    assert 0.01 < worse["difference"] < 0.02
    assert str(comparison) == comparison.summary()


def test_undefined_mixtures_are_paired_out_and_counted():
    scores = three_systems()
    scores["low"][3] = scores["high"][5] = math.nan
    comparison = compared(scores)
    assert [row_of(comparison, a, b)["n"] for a, b in itertools.combinations(scores, 2)] == [
        11,
        10,
        11,
    ]
    row = row_of(comparison, "low", "high")
    expected = np.nanmean(np.subtract(scores["low"], scores["high"]))
    assert (row["undefined"], row["difference"]) == (2, pytest.approx(expected))
    counts = {
        name: (row["n"], row["undefined"]) for name, row in ranking_by_system(comparison).items()
    }
    assert counts == {"high": (10, 1), "middle": (10, 0), "low": (10, 1)}
    means = {name: row["mean"] for name, row in ranking_by_system(comparison).items()}
    common = [mixture for mixture in range(12) if mixture not in (3, 5)]
    for name, values in scores.items():
        assert means[name] == pytest.approx(np.mean(np.array(values)[common]))
    assert "Systems are ranked on the mixtures that all of them have" in comparison.summary()


def test_weights_move_means_and_no_ranks():
    scores = three_systems()
    seconds = [1.0 + index for index in range(12)]
    equal = compared(scores)
    weighted = compared(item_rows(scores, seconds=seconds), weight="duration")
    expected = np.average(scores["high"], weights=seconds)
    assert ranking_by_system(weighted)["high"]["mean"] == pytest.approx(expected)
    assert {*weighted.pairs["weight"]} == {"duration"}
    of_equal, of_weighted = row_of(equal, "low", "high"), row_of(weighted, "low", "high")
    assert of_equal["difference"] != of_weighted["difference"]
    assert of_equal["p_wilcoxon"] == of_weighted["p_wilcoxon"]
    assert any("duration" in note for note in weighted.notes())
    sources = compared(item_rows(scores, references=[2.0] * 6 + [4.0] * 6), weight="sources")
    expected = np.average(scores["low"], weights=[2] * 6 + [4] * 6)
    assert ranking_by_system(sources)["low"]["mean"] == pytest.approx(expected)
    # A mixture that failed has no length and needs no weight.
    scores_by_system = {"one": [0.1, 0.2, 0.4, math.nan], "two": [0.3, 0.3, 0.5, math.nan]}
    weighted = compared(
        item_rows(scores_by_system, seconds=[1.0, 2.0, 3.0, None]), weight="duration"
    )
    expected = np.average([0.1, 0.2, 0.4], weights=[1, 2, 3])
    assert ranking_by_system(weighted)["one"]["mean"] == pytest.approx(expected)
    for name, value in (("alpha", 0.0), ("confidence", 95), ("weight", "length")):
        with pytest.raises(ValueError, match=name):
            compared(scores, **{name: value})


def test_results_are_joined_if_they_fit(results):
    def of_system(name: str) -> Results:
        items, scores = (t[t["system"] == name] for t in (results.items, results.scores))
        return dataclasses.replace(results, items=items, scores=scores)

    all_results, joint = results, compare(results.folder)
    joined = torch_mapss.compare([of_system("good"), of_system("bad")])
    assert_frame_equal(joined.pairs, joint.pairs)
    assert_frame_equal(joined.ranking, joint.ranking)
    bounds = {**all_results.settings, "bounds": True, "tail": "bootstrap"}  # change no score
    with_bounds = dataclasses.replace(all_results, settings=bounds, items=all_results.items.copy())
    assert_frame_equal(compare([all_results, with_bounds, results.folder]).pairs, joint.pairs)
    with_bounds.items.loc[with_bounds.items.index[0], "fidelity"] += 0.1
    with pytest.raises(ValueError, match="twice"):
        compare([all_results, with_bounds])
    settings = {
        **all_results.settings,
        "separation_bank": {**all_results.settings["separation_bank"], "size": 4},
    }
    turned = {k: {**v, "references": v["references"][::-1]} for k, v in all_results.entries.items()}
    for change, words in (
        ({"settings": settings}, r"separation_bank\.size is \d+ in the one and 4"),
        ({"entries": turned}, "the same order"),
        ({"sha256": dict.fromkeys(all_results.sha256, "x")}, r"'m0'.*mixture_id"),
    ):
        with pytest.raises(ValueError, match=words):
            compare([all_results, dataclasses.replace(all_results, **change)])


@pytest.mark.parametrize(
    "command",
    [["compare", "none"], ["compare", "RESULTS", "none"], ["correlate", "none", "ratings.csv"]],
)
def test_results_that_cannot_be_read_leave_no_folder(command, folder, tmp_path, capsys):
    words = [str(folder) if word == "RESULTS" else word for word in command]
    assert cli.main([*words, "--out", str(tmp_path / "out")]) == 2
    assert "'none' is not a results folder" in capsys.readouterr().err
    assert not (tmp_path / "out").exists()


def test_without_a_folder_the_ranking_is_printed_and_nothing_written(
    folder, tmp_path, monkeypatch, capsys
):
    monkeypatch.chdir(tmp_path)
    before = sorted(path for path in folder.rglob("*") if path.is_file())
    assert cli.main(["compare", str(folder)]) == 0
    printed = capsys.readouterr().out
    assert " ".join(printed.split()).startswith(compare(folder).answer())
    assert "Written" not in printed
    assert [*tmp_path.iterdir()] == []
    assert sorted(path for path in folder.rglob("*") if path.is_file()) == before


def test_commands_print_the_ranking_and_write_tables_and_figures(manifest, tmp_path, capsys):
    pytest.importorskip("matplotlib")
    folder = tmp_path / "results"
    options = ["--encoder", "mel", "--bank-size", "5", "--measures", "decomposition"]
    assert cli.main(["evaluate", str(manifest), "--out", str(folder), *options]) == 0
    assert compare(folder).summary() in capsys.readouterr().out
    out, second_out = tmp_path / "a" / "b", tmp_path / "again"
    assert cli.main(["compare", str(folder), "--out", str(out)]) == 0
    comparison = compare(folder)
    assert " ".join(capsys.readouterr().out.split()).startswith(comparison.answer())
    files = {
        "comparison": comparison.pairs,
        "ranking": comparison.ranking,
        "sources": comparison.sources,
    }
    for name, table in files.items():
        read = pandas.read_csv(out / f"{name}.csv", keep_default_na=False, na_values=["nan"])
        assert_frame_equal(read, table, rtol=1e-8, check_dtype=False)
    assert {*comparison.measures} <= {*RANKED}
    pictures = {f"box_{name}" for name in comparison.measures} | {"scatter"}
    assert {path.stem for path in out.glob("*.png")} == pictures
    assert {path.stem for path in out.glob("*.svg")} == pictures
    assert (
        cli.main(["compare", str(folder), "--out", str(second_out), "--quiet", "--no-plots"]) == 0
    )
    assert capsys.readouterr().out == ""
    assert {path.stem for path in second_out.iterdir()} == {*files}
    assert (second_out / "ranking.csv").read_bytes() == (out / "ranking.csv").read_bytes()


def test_figures_of_many_and_of_no_scores():
    pytest.importorskip("matplotlib")
    rng = np.random.default_rng(0)
    scores = {f"system $x_{k}$ with a long name": list(rng.normal(size=300)) for k in range(4)}
    scores["none"] = [math.nan] * 300
    comparison = compared(item_rows(scores, ("clearance", "fidelity", "log_pm")))
    for name in (None, *comparison.measures):
        axes = comparison.plot(name).axes[0]
        assert len(axes.get_xticklabels()) == 4  # nothing to draw of the last
    axes = comparison.plot("scatter").axes[0]
    assert (axes.get_xlabel(), axes.get_ylabel()) == ("clearance", "fidelity")
    with pytest.raises(ValueError, match="measure"):
        comparison.plot("sdr")


@pytest.mark.slow
def test_two_thousand_mixtures_of_ten_systems():
    """Within 1 GiB, in a process of its own; every pair has mixtures of its own."""
    code = """
import numpy as np
from pandas import DataFrame
from torch_mapss.evaluation.comparison import compare
from torch_mapss.evaluation.results import Results
from torch_mapss.score_table import RANKED
rng = np.random.default_rng(0)
items = DataFrame(
    {"mixture_id": f"m{n}", "system": f"s{k}", "seconds": 1.0, "references": 2}
    | {"status": "ok", "reason": "", "source": "x", "source_index": 0}
    | dict.fromkeys(RANKED, float("nan") if rng.random() < 0.01 else rng.normal(0.1 * k))
    for n in range(2000) for k in range(10)
)
results = Results("", {}, {}, None, {}, {}, (), (), items, items, items)
compare(results)
peak = [line.split()[1] for line in open("/proc/self/status") if line.startswith("VmHWM")]
print(int(peak[0]) / 2**20)  # not getrusage, which counts the parent's start
"""
    assert float(python("-c", code)) < 1.0
