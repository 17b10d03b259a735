"""Rankings and tests of systems: against values by hand, and from folders on disk."""

from __future__ import annotations

import csv
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
import pytest
from scipy import stats
from separations import environment, save_manifest, small_mapss, write_manifest

import torch_mapss
from torch_mapss.evaluation import cli
from torch_mapss.evaluation.comparison import (
    PAIR_COLUMNS,
    RANK_COLUMNS,
    Comparison,
    compare,
    compare_items,
)
from torch_mapss.evaluation.manifest import load_manifest
from torch_mapss.evaluation.measures import MEASURES
from torch_mapss.evaluation.request import Request
from torch_mapss.evaluation.results import load_results
from torch_mapss.evaluation.run import run

Scores = dict[str, list[float]]


def items(scores: Scores, **columns: list[float]) -> list[dict[str, Any]]:
    """Rows of ``items.csv`` of made-up PS; the other measures follow it."""
    return [
        {"mixture_id": f"m{place}", "system": system}
        | dict.fromkeys(MEASURES, value)
        | {"seconds": 1.0, "references": 2}
        | {name: values[place] for name, values in columns.items()}
        for system, values in scores.items()
        for place, value in enumerate(values)
    ]


def pair(comparison: Comparison, a: str, b: str, measure: str = "ps") -> dict[str, Any]:
    (row,) = [
        row
        for row in comparison.table()
        if (row["measure"], row["system_a"], row["system_b"]) == (measure, a, b)
    ]
    return row


def ranked(comparison: Comparison, measure: str = "ps") -> dict[str, dict[str, Any]]:
    rows = [dict(row) for row in comparison.ranking if row["measure"] == measure]
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
    found = compare_items(items(scores))
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
    found = ranked(compare_items(items(scores)))
    assert [*found] == ["high", "middle", "low"]
    assert [row["group"] for row in found.values()] == ["a", "b", "b"]
    for system, row in found.items():
        assert row["mean"] == pytest.approx(np.mean(scores[system]))
        assert row["low"] < row["mean"] < row["high"]
        assert row["note"] == ""


def test_six_mixtures_and_three_systems_are_too_few() -> None:
    scores = {"low": [0.1] * 6, "middle": [0.5] * 6, "high": [0.9] * 6}
    for values in scores.values():
        for place in range(6):
            values[place] += 0.001 * place**2 * (1 + values[0])  # no two differences equal
    found = compare_items(items(scores))
    assert {row["group"] for row in ranked(found).values()} == {"a"}
    for row in ranked(found).values():
        assert row["note"] == "interval approximate (n < 10); n too small to order"
    assert pair(found, "low", "high")["p_holm"] == pytest.approx(3 * 2 / 2**6)
    text = found.summary()
    assert "n too small to order: with 6 mixtures and 3 systems no p below 0.094" in text
    assert "approximate" in text
    two = compare_items(items({name: scores[name] for name in ("low", "high")}))
    assert [row["group"] for row in ranked(two).values()] == ["a", "b"]  # 1/32
    assert "too small" not in two.summary()


def test_undefined_mixtures_are_paired_out_and_counted() -> None:
    scores = three_systems()
    scores["low"][3] = scores["high"][5] = math.nan
    found = compare_items(items(scores))
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
    found = compare_items(items({"one": [0.1, 0.2, 0.3], "none": [math.nan] * 3}))
    assert [*ranked(found)] == ["one", "none"]
    row = ranked(found)["none"]
    assert (row["n"], row["group"], row["low"], row["undefined"]) == (0, "", None, 3)
    assert math.isnan(row["mean"])
    blank = pair(found, "one", "none")
    assert blank["note"] == "n < 2"
    assert [blank[name] for name in ("difference", "p_holm", "wins", "effect")] == [None] * 4
    assert "none" in found.summary()


def test_without_any_score_the_reason_is_said() -> None:
    found = compare_items(items({"one": [math.nan] * 3, "none": [math.nan] * 3}))
    assert "No mixture has a score" in found.summary()
    assert "no p below" not in found.summary()  # it is not for want of mixtures
    single = compare_items(items({"one": [0.1], "two": [0.2]}))
    assert "with 1 mixture and 2 systems" in single.summary()


def test_one_system_alone_is_ranked() -> None:
    found = compare_items(items({"one": [0.1, 0.2, 0.4]}))
    assert found.table() == []
    assert ranked(found)["one"]["group"] == "a"
    assert "too small" not in found.summary()


def test_weights_move_means_and_no_ranks() -> None:
    scores = three_systems()
    seconds = [1.0 + place for place in range(12)]
    equal = compare_items(items(scores, seconds=seconds))
    found = compare_items(items(scores, seconds=seconds), weight="duration")
    expected = np.average(scores["high"], weights=seconds)
    assert ranked(found)["high"]["mean"] == pytest.approx(expected)
    assert {row["weight"] for row in found.table()} == {"duration"}
    one, other = pair(equal, "low", "high"), pair(found, "low", "high")
    assert one["difference"] != other["difference"]
    assert one["p_wilcoxon"] == other["p_wilcoxon"]
    assert "not the rank tests" in " ".join(found.summary().split())
    sources = compare_items(items(scores, references=[2.0] * 6 + [4.0] * 6), weight="sources")
    expected = np.average(scores["low"], weights=[2] * 6 + [4] * 6)
    assert ranked(sources)["low"]["mean"] == pytest.approx(expected)


def test_a_mixture_that_failed_has_no_weight_and_needs_none() -> None:
    scores = {"one": [0.1, 0.2, 0.4, math.nan], "two": [0.3, 0.3, 0.5, math.nan]}
    seconds = [1.0, 2.0, 3.0, None]
    found = compare_items(items(scores, seconds=seconds), weight="duration")  # type: ignore[arg-type]
    expected = np.average([0.1, 0.2, 0.4], weights=[1, 2, 3])
    assert ranked(found)["one"]["mean"] == pytest.approx(expected)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"alpha": 0.0}, "alpha must lie between 0 and 1"),
        ({"confidence": 95}, "confidence must lie between 0 and 1"),
        ({"weight": "length"}, "weight must be one of equal, duration, sources"),
    ],
)
def test_options_that_are_refused(options: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        compare([], **options)


# ----------------------------------------------------------------------------------------- folders


@pytest.fixture(scope="module")
def manifest(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_manifest(tmp_path_factory.mktemp("set"), 4)


@pytest.fixture(scope="module")
def folder(manifest: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    out = tmp_path_factory.mktemp("out")
    run(load_manifest(manifest), out, small_mapss)
    return out


def one_system(manifest: Path, name: str, out: Path, **options: Any) -> Path:
    entries = json.loads(manifest.read_text(encoding="utf-8"))
    less = [{**e, "systems": {name: e["systems"][name]}} for e in entries]
    path = save_manifest(manifest.parent, less, f"{name}.json")
    run(load_manifest(path), out, lambda: small_mapss(**options))
    return out


def rows_of(path: Path) -> list[dict[str, str]]:
    with open(path, encoding="utf-8", newline="") as file:
        return list(csv.DictReader(file))


def test_folders_are_joined(manifest: Path, folder: Path, tmp_path: Path) -> None:
    parts = [one_system(manifest, name, tmp_path / name) for name in ("good", "bad")]
    whole, joined = compare(folder), torch_mapss.compare(parts)
    assert joined.table() == whole.table()
    assert joined.ranking == whole.ranking
    assert compare([load_results(folder), folder]).table() == whole.table()  # the same twice


def test_folders_of_other_settings_are_refused(
    manifest: Path, folder: Path, tmp_path: Path
) -> None:
    other = one_system(manifest, "bad", tmp_path / "other", alpha=0.5)
    with pytest.raises(
        ValueError, match=r"cannot be compared: alpha is 1\.0 in the one and 0\.5"
    ) as it:
        compare([folder, other])
    assert str(it.value).endswith("Score both with the same settings.")


def test_bounds_are_no_other_settings(manifest: Path, folder: Path, tmp_path: Path) -> None:
    asked = Request(bounds=True, bounds_convention="derived", tail="bootstrap")
    run(load_manifest(manifest), tmp_path, small_mapss, asked)
    other = load_results(tmp_path)
    assert compare([folder, other]).table() == compare(folder).table()
    other.items.loc[other.items.index[0], "ps"] += 0.1
    with pytest.raises(ValueError, match="occurs twice, with unlike scores"):
        compare([folder, other])


def test_other_references_are_refused(folder: Path, tmp_path: Path) -> None:
    other = write_manifest(tmp_path / "set", 2, ("third",))
    (tmp_path / "set/m1/truth/a.wav").write_bytes((tmp_path / "set/m0/truth/a.wav").read_bytes())
    run(load_manifest(other), tmp_path / "out", small_mapss)
    with pytest.raises(ValueError, match="references of mixture 'm1' are not the same audio") as it:
        compare([folder, tmp_path / "out"])
    assert "Score both against the same reference files" in str(it.value)
    assert "names of their own (mixture_id)" in str(it.value)
    assert "same settings" not in str(it.value)


def test_the_command_writes_tables_and_figures(
    folder: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    pytest.importorskip("matplotlib")
    out = tmp_path / "a" / "b"
    assert cli.main(["compare", str(folder), "--out", str(out)]) == 0
    printed = capsys.readouterr().out
    assert printed.splitlines()[2].split()[:3] == ["PS", "good", "4"]
    pairs, ranking = rows_of(out / "comparison.csv"), rows_of(out / "ranking.csv")
    assert tuple(pairs[0]) == PAIR_COLUMNS
    assert tuple(ranking[0]) == RANK_COLUMNS
    assert [row["measure"] for row in pairs] == list(MEASURES)
    wanted = compare(folder).table()
    assert float(pairs[0]["p_holm"]) == pytest.approx(wanted[0]["p_holm"])
    pictures = {f"box_{name}" for name in MEASURES} | {"scatter"}
    assert {path.stem for path in out.glob("*.png")} == pictures
    assert {path.stem for path in out.glob("*.svg")} == pictures
    again = tmp_path / "again"
    assert cli.main(["compare", str(folder), "--out", str(again), "--quiet", "--no-plots"]) == 0
    assert capsys.readouterr().out == ""
    assert sorted(path.name for path in again.iterdir()) == ["comparison.csv", "ranking.csv"]
    assert (again / "ranking.csv").read_bytes() == (out / "ranking.csv").read_bytes()


def test_a_folder_that_is_none_is_one_line(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert cli.main(["compare", str(tmp_path), "--out", str(tmp_path / "out")]) == 2
    printed = capsys.readouterr().err
    assert "is no folder of results" in printed
    assert printed.count("\n") == 1


def test_evaluate_ends_with_the_ranking(
    manifest: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    options = ["--encoder", "mel", "--bank-size", "5"]
    assert cli.main(["evaluate", str(manifest), "--out", str(tmp_path), *options]) == 0
    text = capsys.readouterr().out
    summary = compare(tmp_path).summary()
    assert summary in text
    assert text.index(summary) > text.index("undefined and failed mixtures are left out")


def test_figures_of_many_and_of_no_scores() -> None:
    pytest.importorskip("matplotlib")
    rng = np.random.default_rng(0)
    scores = {f"system $x_{k}$ with a long name": list(rng.normal(size=300)) for k in range(9)}
    scores["none"] = [math.nan] * 300
    found = compare_items(items(scores))
    for name in (*MEASURES, "scatter"):
        assert found.plot(name).axes
    labels = [text.get_text() for text in found.plot("ps").axes[0].get_xticklabels()]
    assert len(labels) == 9  # nothing to draw of the last
    with pytest.raises(ValueError, match="measure must be one of"):
        found.plot("sdr")


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
    names = {path.name for path in out.iterdir()}
    assert len(names) == 2 + 2 * (len(MEASURES) + 1)
    assert not [name for name in names if name.startswith(".")]  # nor what was begun


@pytest.mark.slow
def test_two_thousand_mixtures_of_ten_systems() -> None:
    """Within a minute and 1 GiB, in a process of its own; every pair has mixtures of its own."""
    code = """
import re, time
from pathlib import Path
import numpy as np
from torch_mapss.evaluation.comparison import compare_items
from torch_mapss.evaluation.measures import MEASURES
rng = np.random.default_rng(0)
items = [
    {"mixture_id": f"m{n}", "system": f"s{k}", "seconds": 1.0, "references": 2}
    | dict.fromkeys(MEASURES, float("nan") if rng.random() < 0.01 else rng.normal(0.1 * k))
    for n in range(2000) for k in range(10)
]
started = time.process_time()  # one thread: the seconds of an idle machine
compare_items(items)
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
