"""Rankings and tests of systems: against values by hand, and from folders on disk."""

from __future__ import annotations

import csv
import dataclasses
import itertools
import json
import math
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import numpy as np
import pandas
import pytest
from pandas.testing import assert_frame_equal
from scipy import stats
from separations import environment, save_manifest, score_set, write_manifest

import torch_mapss
from torch_mapss.evaluation import cli
from torch_mapss.evaluation.comparison import Comparison, compare
from torch_mapss.evaluation.comparison_tables import (
    PAIR_COLUMNS,
    RANK_COLUMNS,
    SOURCE_COLUMNS,
    outlier,
)
from torch_mapss.evaluation.measures import COLUMNS, RANKED
from torch_mapss.evaluation.results import Results, load_results

Scores = dict[str, list[float]]


def items(
    scores: Scores, measures: tuple[str, ...] = ("ps", "log_pm"), **columns: Any
) -> list[dict[str, Any]]:
    """Rows of ``items.csv`` of made-up PS; the other measures follow it."""
    return [
        {"mixture_id": f"m{place}", "system": system, "seconds": 1.0, "references": 2}
        | {m: value if COLUMNS[m].higher_is_better else -value for m in measures}
        | {"status": "ok" if value == value else "undefined"}
        | {name: values[place] for name, values in columns.items()}
        for system, values in scores.items()
        for place, value in enumerate(values)
    ]


def compared(given: Any, rows: Any = (), **options: Any) -> Comparison:
    """Of rows of ``items.csv`` and ``scores.csv``, or of the scores of systems."""
    tables = (
        pandas.DataFrame(t) for t in (rows, items(given) if isinstance(given, dict) else given, ())
    )
    return compare(Results("", {}, {}, None, {}, {}, (), (), *tables), **options)


def pair(comparison: Comparison, a: str, b: str, measure: str = "ps") -> dict[str, Any]:
    table = comparison.pairs.set_index(["measure", "system_a", "system_b"])
    return dict(table.loc[(measure, a, b)])


def ranked(comparison: Comparison, measure: str = "ps") -> dict[str, dict[str, Any]]:
    rows = comparison.ranking[comparison.ranking["measure"] == measure].to_dict("records")
    return {row["system"]: row for row in rows}


def three_systems(count: int = 12, seed: int = 0) -> Scores:
    rng = np.random.default_rng(seed)
    base = rng.uniform(0.4, 0.6, count)
    return {
        "low": list(base),
        "middle": list(base + rng.normal(0.02, 0.05, count)),
        "high": list(base + rng.normal(0.3, 0.05, count)),
    }


# ----------------------------------------------------------------------------------- statistics


def test_rows_are_those_of_scipy() -> None:
    scores = three_systems()
    found = compared(scores)
    p = {}
    for a, b in itertools.combinations(scores, 2):
        row = pair(found, a, b)
        differences = np.array(scores[a]) - np.array(scores[b])
        assert row["n"] == 12
        assert row["difference"] == pytest.approx(differences.mean(), rel=1e-12)
        interval = stats.bootstrap(
            (differences,), np.mean, random_state=np.random.default_rng(0)
        ).confidence_interval
        assert (row["low"], row["high"]) == pytest.approx(interval, rel=1e-9)
        p[a, b] = stats.wilcoxon(differences).pvalue
        assert row["p_wilcoxon"] == pytest.approx(p[a, b], rel=1e-12)
        assert row["wins"] == (differences > 0).sum()
    ordered = sorted(p, key=lambda key: p[key])
    running = 0.0
    for step, key in enumerate(ordered):
        running = max(running, min(1.0, (3 - step) * p[key]))
        assert pair(found, *key)["p_holm"] == pytest.approx(running, rel=1e-12)


def test_ranking_with_groups() -> None:
    scores = three_systems()
    found = ranked(compared(scores))
    assert [*found] == ["high", "middle", "low"]
    assert [row["group"] for row in found.values()] == ["a", "b", "b"]
    for system, row in found.items():
        assert row["mean"] == pytest.approx(np.mean(scores[system]))
        assert row["low"] < row["mean"] < row["high"]
        assert row["note"] == ""


def spread(levels: dict[str, float], count: int = 6) -> Scores:
    """Systems of unlike level, no two differences equal."""
    return {
        name: [level + 0.001 * place**2 * (1 + level) for place in range(count)]
        for name, level in levels.items()
    }


LEVELS = {"low": 0.1, "middle": 0.5, "high": 0.9}


def test_six_mixtures_and_three_systems_are_too_few() -> None:
    scores = spread(LEVELS)
    found = compared(scores)
    assert {row["group"] for row in ranked(found).values()} == {"a"}
    for row in ranked(found).values():
        assert row["note"] == "interval approximate (n < 10); n too small to order"
    assert pair(found, "low", "high")["p_holm"] == pytest.approx(3 * 2 / 2**6)
    assert found.answer() == (
        "high is best on PS and log PM in 6 of 6 mixtures; 6 mixtures cannot prove it: the "
        "smallest attainable p is 0.094; 7 are needed."
    )
    assert " ".join(found.summary().split()).startswith(found.answer())
    two = compared({name: scores[name] for name in ("low", "high")})
    assert [row["group"] for row in ranked(two).values()] == ["a", "b"]  # 1/32
    assert "significantly better than every other system" in two.answer()


def test_the_answer_names_the_best_of_every_measure() -> None:
    measures = ("clearance", "ps", "bleed_db")
    rows = items(spread(LEVELS, 12), measures)
    for row in rows:  # in PS the second best is best, but for one mixture
        row["ps"] = {"low": 0.1, "middle": 0.8, "high": 0.7}[row["system"]]
        row["ps"] += 0.2 * (row["mixture_id"] == "m3" and row["system"] == "high")
    found = compared(rows, confidence=0.9)
    assert found.answer() == (
        "high is best on clearance and bleed in 12 of 12 mixtures; middle is best on PS in 11 of "
        "12 mixtures; significantly better than every other system at level 0.05."
    )
    assert "Lower is better in bleed." in found.notes()
    assert [*ranked(found, "bleed_db")] == ["high", "middle", "low"]  # the lowest first
    bleed = pair(found, "low", "high", "bleed_db")
    assert (bleed["wins"], bleed["losses"], bleed["effect"]) == (0, 12, -1.0)
    assert bleed["difference"] > 0.0
    alike = compared(items(three_systems(12, seed=3) | {"other": three_systems()["high"]}))
    assert "on none is it significantly better" in alike.answer()


def test_pairs_that_cannot_reject_leave_the_family() -> None:
    scores = three_systems()
    scores["rare"] = [*scores["low"][:5], *[math.nan] * 7]
    found, without = (
        compared(scores),
        compared(items(scores), systems=[*scores][:3]),
    )
    for a, b in itertools.combinations([*scores][:3], 2):
        assert pair(found, a, b)["p_holm"] == pair(without, a, b)["p_holm"]
    rare = pair(found, "middle", "rare")
    assert "cannot reject: the smallest attainable p is 0.062" in rare["note"]
    assert rare["p_holm"] >= rare["p_wilcoxon"]
    assert pair(found, "low", "rare")["ties"] == 5


def test_systems_can_be_chosen_and_references_left_out() -> None:
    rows = items(spread({**LEVELS, "control:ref": 1.0}))
    assert compared(rows).answer().startswith("control:ref is best")
    found = compared(rows, references=False)
    assert [*ranked(found)] == ["high", "middle", "low"]
    assert found.answer().startswith("high is best")
    assert len(compared(rows, systems=["low", "high"]).pairs) == 2
    for options in ({"systems": ["lwo"]}, {"systems": ["control:ref"], "references": False}):
        with pytest.raises(ValueError, match="system"):
            compared(rows, **options)


def test_names_in_two_unicode_forms_are_one() -> None:
    rows = items(spread({"Caf\u00e9": 0.3, "b": 0.4}))
    for row in rows[1::2]:
        row["system"] = row["system"].replace("\u00e9", "e\u0301")
    assert compared(rows).systems == ("Caf\u00e9", "b")


def test_failed_mixtures_are_named() -> None:
    scores = spread(LEVELS)
    scores["low"][2] = math.nan
    rows = items(scores, reason=[""] * 6)
    rows[2] |= {"status": "failed", "reason": "no such file"}
    found = compared(rows)
    assert "failed: m2" in ranked(found)["low"]["note"]
    assert "Failed: mixture 'm2', system 'low': no such file" in found.summary()


def test_one_mixture_that_moves_a_mean_is_named() -> None:
    scores = spread(LEVELS, 8)
    scores["middle"][5] = -40.0
    found = compared(scores)
    assert "m5 moves the mean: -4.541 with it, 0.525 without" in ranked(found)["middle"]["note"]
    assert "PS of middle: m5 moves the mean" in found.summary()
    assert "moves" not in ranked(found)["low"]["note"]
    rng = np.random.default_rng(0)
    assert all(outlier(rng.normal(size=count)) is None for count in range(1, 60))


def test_sources_have_means_of_their_own() -> None:
    scores = spread(LEVELS)
    rows = [
        {**row, "source": source, "ps": row["ps"] + plus}
        for row in items(scores)
        for source, plus in (("vocals", 0.0), ("drums", 1.0))
    ]
    rows[1]["ps"] = math.nan
    found = compared(items(scores), rows)
    means = found.sources.set_index(["measure", "source", "system"])
    assert means.loc[("ps", "vocals", "low"), "mean"] == pytest.approx(np.mean(scores["low"]))
    assert means.loc[("ps", "drums", "low"), "n"] == 5
    assert "drums" in found.summary()
    many = [
        {**row, "source": f"{row['mixture_id']}/{k}"} for row in items(scores) for k in range(2)
    ]
    assert "sources.csv" in compared(items(scores), many).summary()


def test_excerpts_give_a_standard_error() -> None:
    rows = items(spread(LEVELS), ps_se=[0.03] * 6)
    note = ranked(compared(rows))["low"]["note"]
    assert f"standard error from excerpts {0.03 / math.sqrt(6):.2g}" in note


def test_measures_without_a_value_and_diagnostics_are_not_ranked() -> None:
    rows = items(spread(LEVELS), ("ps", "foreign_distance"), bleed_db=[math.nan] * 6)
    assert compared(rows).measures == ("ps",)


def test_undefined_mixtures_are_paired_out_and_counted() -> None:
    scores = three_systems()
    scores["low"][3] = scores["high"][5] = math.nan
    found = compared(scores)
    assert [pair(found, a, b)["n"] for a, b in itertools.combinations(scores, 2)] == [11, 10, 11]
    assert pair(found, "low", "high")["undefined"] == 2
    kept = [k for k in range(12) if k not in (3, 5)]
    expected = np.mean([scores["low"][k] - scores["high"][k] for k in kept])
    assert pair(found, "low", "high")["difference"] == pytest.approx(expected)
    assert {name: row["n"] for name, row in ranked(found).items()} == {
        "high": 11,
        "middle": 12,
        "low": 11,
    }
    assert ranked(found)["low"]["undefined"] == 1
    assert "each system's own mixtures" in found.summary()


def test_a_system_without_a_score_has_no_group() -> None:
    found = compared(items({"one": [0.1, 0.2, 0.3], "none": [math.nan] * 3}))
    assert [*ranked(found)] == ["one", "none"]
    row = ranked(found)["none"]
    assert (row["n"], row["group"], row["undefined"]) == (0, "", 3)
    assert np.isnan([row["mean"], row["low"]]).all()
    blank = pair(found, "one", "none")
    assert blank["note"] == "n < 2"
    assert pandas.isna([blank[name] for name in ("difference", "p_holm", "wins", "effect")]).all()
    assert "none" in found.summary()


def test_few_or_no_scores_are_answered() -> None:
    found = compared({"one": [math.nan] * 3, "none": [math.nan] * 3})
    assert found.answer().startswith("No mixture has a score")
    assert "are needed" not in found.summary()  # it is not for want of mixtures
    assert "6 are needed" in compared({"one": [0.1], "two": [0.2]}).answer()
    alone = compared({"one": [0.1, 0.2, 0.4]})
    assert alone.pairs.empty
    assert ranked(alone)["one"]["group"] == "a"
    assert "too small" not in ranked(alone)["one"]["note"]
    assert "only system" in alone.answer()


def test_weights_move_means_and_no_ranks() -> None:
    scores = three_systems()
    seconds = [1.0 + place for place in range(12)]
    equal = compared(items(scores, seconds=seconds))
    found = compared(items(scores, seconds=seconds), weight="duration")
    expected = np.average(scores["high"], weights=seconds)
    assert ranked(found)["high"]["mean"] == pytest.approx(expected)
    assert {*found.pairs["weight"]} == {"duration"}
    one, other = pair(equal, "low", "high"), pair(found, "low", "high")
    assert one["difference"] != other["difference"]
    assert one["p_wilcoxon"] == other["p_wilcoxon"]
    assert any("duration" in note for note in found.notes())
    sources = compared(items(scores, references=[2.0] * 6 + [4.0] * 6), weight="sources")
    expected = np.average(scores["low"], weights=[2] * 6 + [4] * 6)
    assert ranked(sources)["low"]["mean"] == pytest.approx(expected)
    # A mixture that failed has no length and needs no weight.
    some = {"one": [0.1, 0.2, 0.4, math.nan], "two": [0.3, 0.3, 0.5, math.nan]}
    found = compared(items(some, seconds=[1.0, 2.0, 3.0, None]), weight="duration")
    expected = np.average([0.1, 0.2, 0.4], weights=[1, 2, 3])
    assert ranked(found)["one"]["mean"] == pytest.approx(expected)


@pytest.mark.parametrize(
    ("name", "value"), [("alpha", 0.0), ("confidence", 95), ("weight", "length")]
)
def test_options_that_are_refused(name: str, value: Any) -> None:
    with pytest.raises(ValueError, match=name):
        compared([], **{name: value})


# ----------------------------------------------------------------------------------------- folders


@pytest.fixture(scope="module")
def manifest(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_manifest(tmp_path_factory.mktemp("set"), 4)


@pytest.fixture(scope="module")
def folder(manifest: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    out = tmp_path_factory.mktemp("out")
    score_set(manifest, out, measures="decomposition")
    return out


def one_system(manifest: Path, name: str, out: Path) -> Path:
    entries = json.loads(manifest.read_text(encoding="utf-8"))
    less = [{**e, "systems": {name: e["systems"][name]}} for e in entries]
    path = save_manifest(manifest.parent, less, f"{name}.json")
    score_set(path, out, measures="decomposition")
    return out


def rows_of(path: Path) -> list[dict[str, str]]:
    with open(path, encoding="utf-8", newline="") as file:
        return list(csv.DictReader(file))


def test_folders_are_joined_and_other_settings_refused(
    manifest: Path, folder: Path, tmp_path: Path
) -> None:
    parts = [one_system(manifest, name, tmp_path / name) for name in ("good", "bad")]
    whole, joined = compare(folder), torch_mapss.compare(parts)
    for name in ("pairs", "ranking", "sources"):
        assert_frame_equal(getattr(joined, name), getattr(whole, name))
    assert_frame_equal(compare([load_results(folder), folder]).pairs, whole.pairs)  # the same twice
    one = load_results(folder)
    other = dataclasses.replace(one, settings={**one.settings, "alpha": 0.5})
    with pytest.raises(ValueError, match="alpha is"):
        compare([one, other])
    folders = dict.fromkeys(one.sha256, "x")
    with pytest.raises(ValueError, match=r"'m0'.*mixture_id"):
        compare([one, dataclasses.replace(one, sha256=folders)])


def test_bounds_are_no_other_settings(folder: Path) -> None:
    one = load_results(folder)
    other = dataclasses.replace(
        one, settings={**one.settings, "bounds": True, "tail": "bootstrap"}, items=one.items.copy()
    )
    assert_frame_equal(compare([one, other]).pairs, compare(one).pairs)
    other.items.loc[other.items.index[0], "fidelity"] += 0.1
    with pytest.raises(ValueError, match="twice"):
        compare([one, other])


def test_the_command_writes_tables_and_figures(
    folder: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    pytest.importorskip("matplotlib")
    out = tmp_path / "a" / "b"
    assert cli.main(["compare", str(folder), "--out", str(out)]) == 0
    printed = capsys.readouterr().out
    found = compare(folder)
    assert " ".join(printed.split()).startswith(found.answer())
    pairs, ranking = rows_of(out / "comparison.csv"), rows_of(out / "ranking.csv")
    assert tuple(pairs[0]) == PAIR_COLUMNS
    assert tuple(ranking[0]) == RANK_COLUMNS
    assert tuple(rows_of(out / "sources.csv")[0]) == SOURCE_COLUMNS
    assert [row["measure"] for row in pairs] == list(found.measures)
    assert {*found.measures} <= {*RANKED}
    assert float(pairs[0]["p_holm"]) == pytest.approx(found.pairs["p_holm"][0])
    pictures = {f"box_{name}" for name in found.measures} | {"scatter"}
    assert {path.stem for path in out.glob("*.png")} == pictures
    assert {path.stem for path in out.glob("*.svg")} == pictures
    again = tmp_path / "again"
    assert cli.main(["compare", str(folder), "--out", str(again), "--quiet", "--no-plots"]) == 0
    assert capsys.readouterr().out == ""
    assert sorted(path.name for path in again.iterdir()) == [
        "comparison.csv",
        "ranking.csv",
        "sources.csv",
    ]
    assert (again / "ranking.csv").read_bytes() == (out / "ranking.csv").read_bytes()


def test_evaluate_ends_with_the_ranking(
    manifest: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    options = ["--encoder", "mel", "--bank-size", "5", "--measures", "decomposition"]
    assert cli.main(["evaluate", str(manifest), "--out", str(tmp_path), *options]) == 0
    text = capsys.readouterr().out
    assert compare(tmp_path).summary() in text


def test_figures_of_many_and_of_no_scores() -> None:
    pytest.importorskip("matplotlib")
    rng = np.random.default_rng(0)
    scores = {f"system $x_{k}$ with a long name": list(rng.normal(size=300)) for k in range(4)}
    scores["none"] = [math.nan] * 300
    found = compared(items(scores, ("clearance", "fidelity", "log_pm")))
    for name in (None, *found.measures, "scatter"):
        assert found.plot(name).axes
    labels = [text.get_text() for text in found.plot("fidelity").axes[0].get_xticklabels()]
    assert len(labels) == 4  # nothing to draw of the last
    axes = found.plot("scatter").axes[0]
    assert (axes.get_xlabel(), axes.get_ylabel()) == ("clearance", "fidelity")
    with pytest.raises(ValueError, match="measure"):
        found.plot("sdr")


def test_a_notebook_shows_the_answer_and_tables() -> None:
    found = compared(items(spread({"<b>": 0.1, "high": 0.9})))
    shown = found._repr_html_()
    assert found.answer() in shown
    assert shown.count("<table") == 2
    assert "&lt;b&gt;" in shown
    assert "<b>&" not in shown.replace("<p><b>", "")


@pytest.mark.slow
def test_kills_leave_no_half_file(folder: Path, tmp_path: Path) -> None:
    """The command ended with SIGKILL while it writes, then run again."""
    pytest.importorskip("matplotlib")
    out = tmp_path / "out"
    command = [sys.executable, "-m", "torch_mapss", "compare", str(folder), "--out", str(out)]
    for wanted in (1, 3, 6, 9):
        process = subprocess.Popen(command, env=environment(), stdout=subprocess.DEVNULL)
        while process.poll() is None and len([*out.glob("[!.]*")]) < wanted:
            time.sleep(0.001)
        process.send_signal(signal.SIGKILL)
        process.wait()
        for path in out.glob("[!.]*.csv"):  # what is there is whole
            assert path.read_bytes().endswith(b"\n")
        for path in out.glob("[!.]*.png"):
            assert path.read_bytes().endswith(b"IEND\xaeB`\x82")
        for path in out.glob("[!.]*"):
            path.unlink()
    subprocess.run(command, env=environment(), stdout=subprocess.DEVNULL, check=True)
    names = {path.name for path in out.glob("[!.]*")}
    assert len(names) == 3 + 2 * (len(compare(folder).measures) + 1)


@pytest.mark.slow
def test_two_thousand_mixtures_of_ten_systems() -> None:
    """Within a minute and 1 GiB, in a process of its own; every pair has mixtures of its own."""
    code = """
import re, time
from pathlib import Path
import numpy as np
from pandas import DataFrame
from torch_mapss.evaluation.comparison import compare
from torch_mapss.evaluation.results import Results
from torch_mapss.evaluation.measures import RANKED
rng = np.random.default_rng(0)
items = DataFrame(
    {"mixture_id": f"m{n}", "system": f"s{k}", "seconds": 1.0, "references": 2}
    | dict.fromkeys(RANKED, float("nan") if rng.random() < 0.01 else rng.normal(0.1 * k))
    for n in range(2000) for k in range(10)
)
started = time.process_time()  # one thread: the seconds of an idle machine
compare(Results("", {}, {}, None, {}, {}, (), (), DataFrame(), items, DataFrame()))
seconds = time.process_time() - started
# Not getrusage: what that counts begins with the process that started this one.
peak = re.search(r"VmHWM:\\s+(\\d+)", Path("/proc/self/status").read_text())
print(seconds, int(peak[1]) / 2**20)
"""
    done = subprocess.run(
        [sys.executable, "-c", code], env=environment(), capture_output=True, text=True, check=True
    )
    seconds, gibibytes = map(float, done.stdout.split())
    print(f"{seconds:.1f} s, {gibibytes:.2f} GiB")
    assert seconds < 60.0
    assert gibibytes < 1.0
