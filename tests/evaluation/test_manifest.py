"""Whole test sets: what is refused, what fails, what survives a kill, what ranks share."""

from __future__ import annotations

import csv
import json
import math
import os
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest
import torch
from separations import (
    environment,
    leaky,
    save_manifest,
    small_mapss,
    sources,
    write,
    write_manifest,
)

from torch_mapss import MAPSS, DistortionBank, evaluate
from torch_mapss.distortions import Distortion
from torch_mapss.evaluation import cli, tables
from torch_mapss.evaluation import run as run_room
from torch_mapss.evaluation.commands import options
from torch_mapss.evaluation.manifest import ManifestError, load_manifest
from torch_mapss.evaluation.processes import local_device
from torch_mapss.evaluation.progress import Progress, file_name
from torch_mapss.evaluation.report import MEANS
from torch_mapss.evaluation.request import Request
from torch_mapss.evaluation.tables import Outcome, join

QUICK = ("--encoder", "mel", "--bank-size", "5")
TABLES = ("scores.csv", "items.csv", "summary.csv")


def rows_of(path: Path) -> list[dict[str, str]]:
    with open(path, encoding="utf-8", newline="") as file:
        return list(csv.DictReader(file))


def entries_of(path: Path) -> list[dict[str, Any]]:
    return json.loads(path.read_text(encoding="utf-8"))


def run(path: Path, out: Path, **options: Any) -> Outcome:
    return run_room.run(load_manifest(path), out, small_mapss, **options)


def evaluate_command(path: Path, out: Path, *given: str) -> int:
    return cli.main(["evaluate", str(path), "--out", str(out), *QUICK, *given])


@pytest.fixture(scope="module")
def corpus(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_manifest(tmp_path_factory.mktemp("set"), 3)


@pytest.fixture(scope="module")
def reference_run(corpus: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    out = tmp_path_factory.mktemp("reference_run")
    run(corpus, out)
    return out


def as_many_threads() -> dict[str, str]:
    """A subprocess on as many threads as this process: their number changes last digits."""
    threads = os.environ.get("OMP_NUM_THREADS")
    env = environment()
    if threads is None:
        del env["OMP_NUM_THREADS"]
    else:
        env["OMP_NUM_THREADS"] = threads
    return env


def same_tables(one: Path, other: Path) -> bool:
    return all((one / name).read_bytes() == (other / name).read_bytes() for name in TABLES)


def alike_tables(one: Path, other: Path) -> bool:
    """As `same_tables`, up to the last digits that the number of threads changes."""
    for name in TABLES:
        rows, others = rows_of(one / name), rows_of(other / name)
        assert len(rows) == len(others)
        for row, expected in zip(rows, others):
            assert row.keys() == expected.keys()
            for column, text in row.items():
                assert text == expected[column] or float(text) == pytest.approx(
                    float(expected[column]), rel=1e-5, abs=1e-9
                ), (name, column)
    return True


# ------------------------------------------------------------------------------------------------
# Scores and means
# ------------------------------------------------------------------------------------------------


def test_rows_are_those_of_single_mixtures(corpus: Path, reference_run: Path) -> None:
    rows = rows_of(reference_run / "scores.csv")
    assert [(r["mixture_id"], r["system"], r["source"]) for r in rows] == [
        (f"m{k}", system, source) for k in range(3) for system in ("good", "bad") for source in "ab"
    ]
    folder = corpus.parent / "m1"
    report = evaluate(
        references=[folder / "truth" / f"{name}.wav" for name in "ab"],
        estimates=[folder / "bad" / f"{name}.wav" for name in "ab"],
        mapss=small_mapss(),
    )
    for row, expected in zip(rows[6:8], report.rows):
        for name in (*MEANS, "attributed_distance", "foreign_distance"):
            assert float(row[name]) == pytest.approx(getattr(expected, name), rel=1e-8)
        assert row["frames"] == str(expected.frames)
        assert row["status"] == "ok"
        assert row["estimate"] == f"m1/bad/{row['source']}.wav"


def average(values: list[float]) -> float:
    kept = [value for value in values if not math.isnan(value)]
    return sum(kept) / len(kept) if kept else math.nan


def check_aggregation(out: Path) -> None:
    """Sources to items to sets, redone from the tables on disk."""
    scores, items = rows_of(out / "scores.csv"), rows_of(out / "items.csv")
    for item in items:
        own = [
            row
            for row in scores
            if (row["mixture_id"], row["system"]) == (item["mixture_id"], item["system"])
        ]
        assert item["estimates"] == str(len(own))
        assert item["undefined"] == str(sum(row["status"] == "undefined" for row in own))
        for name in MEANS:
            expected = average([float(row[name]) for row in own])
            assert float(item[name]) == pytest.approx(expected, rel=1e-8, nan_ok=True)
    for row in rows_of(out / "summary.csv"):
        own = [item for item in items if item["system"] == row["system"]]
        for status, column in (("ok", "scored"), ("undefined", "undefined"), ("failed", "failed")):
            assert row[column] == str(sum(item["status"] == status for item in own))
        for name in MEANS:
            expected = average([float(item[name]) for item in own])
            assert float(row[name]) == pytest.approx(expected, rel=1e-8, nan_ok=True)


def test_means_can_be_redone_from_the_tables(reference_run: Path) -> None:
    check_aggregation(reference_run)
    good, bad = rows_of(reference_run / "summary.csv")
    assert (good["system"], bad["system"]) == ("good", "bad")
    assert float(good["ps"]) > float(bad["ps"])
    assert good["scored"] == "3"


def test_the_summary_is_printed_with_counts_and_rules(
    corpus: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert evaluate_command(corpus, tmp_path / "a" / "b") == 0
    text = capsys.readouterr().out
    lines = text.splitlines()
    assert lines[0].split()[-3:] == ["scored", "undefined", "failed"]
    assert lines[2].split()[0] == "good"
    assert lines[2].split()[-3:] == ["3", "0", "0"]
    assert "Means over frames, then over the estimates of a mixture, then over mixtures" in text


def test_references_are_prepared_once_for_all_systems(
    corpus: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    calls = []
    prepare = MAPSS.prepare
    monkeypatch.setattr(MAPSS, "prepare", lambda *a, **k: calls.append(1) or prepare(*a, **k))
    run(corpus, tmp_path)
    assert len(calls) == 3


def test_null_is_a_source_that_is_not_estimated(corpus: Path, tmp_path: Path) -> None:
    entries = entries_of(corpus)[:1]
    entries[0]["systems"] = {"half": [None, "m0/good/b.wav"]}
    path = save_manifest(corpus.parent, entries, "half.json")
    run(path, tmp_path)
    (row,) = rows_of(tmp_path / "scores.csv")
    truth = sources(seconds=0.3)
    alone = small_mapss()(leaky(truth, 0.1)[1:], truth, attributed=(1,)).utterance()
    assert (row["source"], row["source_index"]) == ("b", "1")
    assert float(row["ps"]) == pytest.approx(alone.ps.item(), rel=1e-6)


def test_bounds_permutation_and_frames(corpus: Path, tmp_path: Path) -> None:
    entries = entries_of(corpus)[:1]
    entries[0]["systems"] = {"x/y": entries[0]["systems"]["good"][::-1]}
    path = save_manifest(corpus.parent, entries, "swapped.json")
    run(path, tmp_path, request=Request(permute=True, bounds=True), save_frames=True)
    rows = rows_of(tmp_path / "scores.csv")
    assert [row["source"] for row in rows] == ["b", "a"]
    assert [row["estimate"] for row in rows] == ["m0/good/b.wav", "m0/good/a.wav"]
    assert all(float(row["ps_tail"]) > 0 and float(row["pm_tail"]) > 0 for row in rows)
    frames = rows_of(tmp_path / "frames" / "m0" / file_name("x/y") / "ps.csv")
    own = [float(f["ps"]) for f in frames if f["source"] == "b" and f["active"] == "1"]
    assert sum(own) / len(own) == pytest.approx(float(rows[0]["ps"]), rel=1e-6)


def test_rates_and_downmix_are_told_in_the_row(corpus: Path, tmp_path: Path) -> None:
    folder = corpus.parent
    high = leaky(sources(seconds=0.3, rate=48_000), 0.1)
    for name, wave in zip("ab", high):
        write(folder / "high" / f"{name}.wav", torch.stack([wave, wave]), 48_000)
    entries = entries_of(corpus)[:1]
    entries[0]["systems"] = {"high": ["high/a.wav", "high/b.wav"]}
    run(save_manifest(folder, entries, "high.json"), tmp_path)
    for row in rows_of(tmp_path / "scores.csv"):
        assert (row["estimate_rate"], row["reference_rate"]) == ("48000", "16000")
        assert "2 channels mixed down to their mean, resampled from 48000" in row["notes"]


# ------------------------------------------------------------------------------------------------
# Manifests that are refused
# ------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("{not json", "is no valid JSON (line 1, column 2"),
        ("[]", "lists no mixture"),
        ('{"mixture_id": "x"}', "must be a JSON list of mixtures, got an object with 'mixture_id'"),
        ("[3]", "entry 0 must be an object, got int"),
        ('[{"mixture_id": "x", "systems": {}}]', "mixture 'x' lacks 'references'"),
        ('[{"references": ["a", "b"], "systems": {}}]', "entry 0 lacks 'mixture_id'"),
        ('[{"mixture_id": "x", "mixture_id": "y"}]', "has the key 'mixture_id' twice"),
    ],
)
def test_broken_manifests_are_one_line(
    tmp_path: Path, text: str, message: str, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "m.json"
    path.write_text(text, encoding="utf-8")
    with pytest.raises(ManifestError) as error:
        load_manifest(path)
    assert any(message in problem for problem in error.value.problems)
    out = tmp_path / "out"
    assert evaluate_command(path, out) == 2
    printed = capsys.readouterr().err
    assert message in printed
    assert "Traceback" not in printed
    assert "m.json" in printed
    assert not out.exists()


def test_a_missing_manifest_is_one_line(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert evaluate_command(tmp_path / "none.json", tmp_path / "out") == 2
    printed = capsys.readouterr().err
    assert printed.count("\n") == 1
    assert "none.json: there is no such file" in printed


def test_all_problems_are_listed_at_once(
    corpus: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    entries = entries_of(corpus)
    entries[0]["references"][0] = "m0/truth/gone.wav"
    entries[1]["systems"]["bad"].append("m1/bad/c.wav")
    entries[1]["systems"]["none"] = [None, None]
    entries[2]["mixture_id"] = "m0"
    entries.append({"mixture_id": "late", "references": ["m0/truth/a.wav"], "systems": []})
    entries.append({"mixture_id": 7, "references": "m0/truth/a.wav"})
    path = save_manifest(corpus.parent, entries, "wrong.json")
    assert evaluate_command(path, tmp_path / "out") == 2
    printed = capsys.readouterr().err
    assert "wrong.json has 8 problems:" in printed
    for problem in (
        "mixture 'm0', references: no file",
        "gone.wav",
        "mixture 'm1', system 'bad': must have one path per reference (2)",
        "mixture 'm1', system 'none': estimates no source at all",
        "mixture_id 'm0' is used 2 times",
        "mixture 'late': references must be at least two, got 1",
        "mixture 'late': systems must be an object",
        "mixture '7' lacks 'systems'",
        "mixture '7': references must be a list of paths",
    ):
        assert problem in printed
    assert len(printed.strip().splitlines()) == 9


def test_further_keys_and_a_byte_order_mark_are_fine(corpus: Path) -> None:
    entries = entries_of(corpus)
    entries[0]["remark"] = "anything"
    path = corpus.parent / "bom.json"
    path.write_text(json.dumps(entries), encoding="utf-8-sig")
    assert len(load_manifest(path)) == 3


# ------------------------------------------------------------------------------------------------
# Mixtures that fail
# ------------------------------------------------------------------------------------------------


def test_one_bad_mixture_keeps_the_others(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = write_manifest(tmp_path / "set", 3, ("sys",))
    short = tmp_path / "set" / "m1" / "sys" / "b.wav"
    write(short, leaky(sources(seconds=0.3))[1, :4000])
    assert evaluate_command(path, tmp_path / "out") == 1
    printed = capsys.readouterr()
    assert "torch-mapss: failed: mixture 'm1', system 'sys'" in printed.err
    rows = rows_of(tmp_path / "out" / "scores.csv")
    states = [row["status"] for row in rows]
    assert states == ["ok", "ok", "failed", "failed", "ok", "ok"]
    for row in rows[2:4]:
        assert math.isnan(float(row["ps"]))
        assert math.isnan(float(row["pm"]))
        for word in ("m1/sys/b.wav' has 4000", "has 4800 samples", "--trim"):
            assert word in row["reason"]
    check_aggregation(tmp_path / "out")
    assert rows_of(tmp_path / "out" / "summary.csv")[0]["failed"] == "1"


def test_failures_are_tried_again_and_the_rest_is_not(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = write_manifest(tmp_path / "set", 2, ("one", "two"))
    reference = tmp_path / "set" / "m1" / "truth" / "a.wav"
    whole = reference.read_bytes()
    reference.write_bytes(b"corrupt")
    first = run(path, tmp_path / "out")
    assert len(first.failures) == 2  # both systems of the mixture
    assert all("truth/a.wav" in line for line in first.failures)
    reference.write_bytes(whole)
    calls = []
    prepare = MAPSS.prepare
    monkeypatch.setattr(MAPSS, "prepare", lambda *a, **k: calls.append(1) or prepare(*a, **k))
    assert run(path, tmp_path / "out").failures == ()
    assert len(calls) == 1
    run(path, tmp_path / "fresh")
    assert same_tables(tmp_path / "out", tmp_path / "fresh")


def test_a_failure_of_the_moment_is_tried_again(
    corpus: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = save_manifest(corpus.parent, entries_of(corpus)[:1], "single.json")
    with monkeypatch.context() as patch:

        def full(*_: Any, **__: Any) -> None:
            raise RuntimeError("out of\nmemory")

        patch.setattr(MAPSS, "prepare", full)
        outcome = run(path, tmp_path)
    assert outcome.failures[0] == "mixture 'm0', system 'good': out of memory"
    assert run(path, tmp_path).failures == ()
    assert [row["status"] for row in rows_of(tmp_path / "scores.csv")] == ["ok"] * 4


def test_a_mixture_counts_once_however_many_sources_it_has(corpus: Path, tmp_path: Path) -> None:
    entries = entries_of(corpus)[:2]
    for entry in entries:
        entry["systems"] = {"some": entry["systems"]["bad"]}
    entries[1]["systems"]["some"][1] = None
    run(save_manifest(corpus.parent, entries, "some.json"), tmp_path)
    check_aggregation(tmp_path)
    (row,) = rows_of(tmp_path / "summary.csv")
    assert (row["scored"], row["estimates"]) == ("2", "3")
    over_rows = average([float(r["ps"]) for r in rows_of(tmp_path / "scores.csv")])
    assert float(row["ps"]) != pytest.approx(over_rows, rel=1e-6)


def test_a_file_that_changed_is_scored_again(tmp_path: Path) -> None:
    path = write_manifest(tmp_path / "set", 2, ("sys",))
    before = run(path, tmp_path / "out")
    write(tmp_path / "set" / "m0" / "sys" / "a.wav", leaky(sources(seconds=0.3), 0.9)[0])
    after = run(path, tmp_path / "out")
    assert after.scores[0]["ps"] < before.scores[0]["ps"]
    assert after.scores[2:] == before.scores[2:]


def test_an_undefined_mixture_is_no_failure(tmp_path: Path) -> None:
    path = write_manifest(tmp_path / "set", 2, ("sys",))
    write(tmp_path / "set" / "m0" / "truth" / "a.wav", torch.zeros(4800))
    with pytest.warns(UserWarning, match="no frame in which two sources"):
        outcome = run(path, tmp_path / "out")
    assert outcome.failures == ()
    assert [row["status"] for row in outcome.scores] == ["undefined"] * 2 + ["ok"] * 2
    check_aggregation(tmp_path / "out")
    assert rows_of(tmp_path / "out" / "summary.csv")[0]["undefined"] == "1"


# ------------------------------------------------------------------------------------------------
# Resuming
# ------------------------------------------------------------------------------------------------


def test_results_of_other_settings_are_refused(
    corpus: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    entries = entries_of(corpus)[:1]
    path = save_manifest(corpus.parent, entries, "one.json")
    assert evaluate_command(path, tmp_path, "--quiet") == 0
    before = (tmp_path / "scores.csv").read_bytes()
    for given, name in ((("--trim",), "trim"), (("--seed", "3"), "separation_bank")):
        assert evaluate_command(path, tmp_path, *given) == 2
        printed = capsys.readouterr().err
        assert "holds results of other settings" in printed
        assert name in printed
        assert printed.count("\n") == 1
    assert (tmp_path / "scores.csv").read_bytes() == before
    assert evaluate_command(path, tmp_path, "--quiet") == 0


def test_tables_of_others_are_not_overwritten(corpus: Path, tmp_path: Path) -> None:
    (tmp_path / "scores.csv").write_text("mine")
    with pytest.raises(ValueError, match="that no run over a manifest wrote"):
        run(corpus, tmp_path)
    assert (tmp_path / "scores.csv").read_text() == "mine"


def test_a_torn_line_is_scored_again(corpus: Path, reference_run: Path, tmp_path: Path) -> None:
    out = tmp_path / "out"
    shutil.copytree(reference_run, out)
    for name in TABLES:
        (out / name).unlink()
    log = out / "progress" / "rank-0.jsonl"
    content = log.read_bytes()
    assert content.count(b"\n") == 6
    log.write_bytes(content[: content[:-1].rfind(b"\n") - 40])
    run(corpus, out)
    assert same_tables(out, reference_run)
    assert log.read_bytes().count(b"\n") == 6


def test_mixtures_may_be_added(corpus: Path, reference_run: Path, tmp_path: Path) -> None:
    entries = entries_of(corpus)
    path = save_manifest(corpus.parent, entries[1:], "grown.json")
    run(path, tmp_path)
    path = save_manifest(corpus.parent, entries, "grown.json")
    run(path, tmp_path)
    assert same_tables(tmp_path, reference_run)


def test_a_file_in_the_way_is_one_line(
    corpus: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "taken").write_text("mine")
    assert evaluate_command(corpus, tmp_path / "taken") == 2
    printed = capsys.readouterr().err
    assert "taken' is a file" in printed
    assert printed.count("\n") == 1


def test_two_runs_do_not_write_to_one_folder(corpus: Path, tmp_path: Path) -> None:
    pytest.importorskip("fcntl")
    run(corpus, tmp_path)
    with Progress(str(tmp_path), 0).writer(), pytest.raises(ValueError, match="another"):
        run(corpus, tmp_path)


@pytest.mark.slow
def test_a_kill_loses_nothing_that_was_finished(tmp_path: Path) -> None:
    path = write_manifest(tmp_path / "set", 10, ("sys",))
    whole = (tmp_path / "set" / "m8" / "sys" / "a.wav").read_bytes()
    (tmp_path / "set" / "m8" / "sys" / "a.wav").write_bytes(whole[:1000])
    out = tmp_path / "out"
    arguments = ["evaluate", str(path), "--out", str(out), *QUICK]
    process = subprocess.Popen(
        [sys.executable, "-m", "torch_mapss", *arguments],
        env=as_many_threads(),
        stdout=subprocess.DEVNULL,
        stderr=subprocess.PIPE,
    )
    log = out / "progress" / "rank-0.jsonl"
    deadline = time.monotonic() + 120
    while time.monotonic() < deadline and process.poll() is None:
        if log.exists() and log.read_bytes().count(b"\n") >= 2:
            break
        time.sleep(0.01)
    process.send_signal(signal.SIGKILL)
    process.communicate()
    kept = log.read_bytes()
    kept = kept[: kept.rfind(b"\n") + 1]
    assert 2 <= kept.count(b"\n") < 10
    assert not (out / "scores.csv").exists()
    assert evaluate_command(path, out, "--quiet") == 1
    assert log.read_bytes().startswith(kept)
    assert evaluate_command(path, tmp_path / "fresh", "--quiet") == 1
    assert same_tables(out, tmp_path / "fresh")
    rows = rows_of(out / "scores.csv")
    assert [row["status"] for row in rows].count("ok") == 18
    assert {row["mixture_id"] for row in rows if row["status"] == "failed"} == {"m8"}


# ------------------------------------------------------------------------------------------------
# Several processes
# ------------------------------------------------------------------------------------------------


def torchrun(path: Path, out: Path, processes: int = 2) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [
            *(sys.executable, "-m", "torch.distributed.run", "--standalone"),
            *("--nproc-per-node", str(processes), "--no-python", sys.executable),
            *("-m", "torch_mapss", "evaluate", str(path), "--out", str(out), *QUICK),
        ],
        env=environment(),
        capture_output=True,
        text=True,
        timeout=300,
    )


@pytest.mark.slow
def test_ranks_share_the_work_and_write_one_table(
    corpus: Path, reference_run: Path, tmp_path: Path
) -> None:
    done = torchrun(corpus, tmp_path / "out")
    assert done.returncode == 0, done.stderr
    assert done.stdout.count("Written to") == 1
    assert alike_tables(tmp_path / "out", reference_run)
    logs = sorted((tmp_path / "out" / "progress").iterdir())
    assert [log.read_bytes().count(b"\n") for log in logs] == [4, 2]
    # Goes on in one process, with nothing left to do.
    assert evaluate_command(corpus, tmp_path / "out", "--quiet") == 0
    assert alike_tables(tmp_path / "out", reference_run)


@pytest.mark.slow
def test_a_rank_without_work_does_not_hang(corpus: Path, tmp_path: Path) -> None:
    path = save_manifest(corpus.parent, entries_of(corpus)[:1], "single.json")
    done = torchrun(path, tmp_path / "out")
    assert done.returncode == 0, done.stderr
    assert len(rows_of(tmp_path / "out" / "scores.csv")) == 4


@pytest.mark.slow
def test_an_error_reaches_every_rank(corpus: Path, tmp_path: Path) -> None:
    (tmp_path / "out").mkdir()
    (tmp_path / "out" / "scores.csv").write_text("mine")
    done = torchrun(corpus, tmp_path / "out")
    assert done.returncode != 0
    assert "that no run over a manifest wrote" in done.stderr


def test_the_gpu_of_a_process(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("LOCAL_RANK", raising=False)
    assert local_device("cuda") == "cuda"
    monkeypatch.setenv("LOCAL_RANK", "3")
    assert local_device("cuda") == "cuda:3"
    assert local_device("cpu") == "cpu"


# ------------------------------------------------------------------------------------------------
# Nothing of the manifest is left out
# ------------------------------------------------------------------------------------------------


def test_names_that_are_no_utf8_are_scored(tmp_path: Path) -> None:
    path = write_manifest(tmp_path, 1, ("good",))
    (entry,) = entries_of(path)
    file = path.parent / entry["systems"]["good"][0]
    odd = file.with_name("caf\udce9.wav")  # the byte E9, as Python has it
    try:
        file.rename(odd)
    except OSError:
        pytest.skip("this file system takes UTF-8 only")
    entry["systems"]["good"][0] = str(odd.relative_to(path.parent))
    entry["mixture_id"] = "\ud800"
    path.write_text(json.dumps([entry]), encoding="utf-8")
    out = tmp_path / "out"
    for _ in range(2):  # scored, then found to be scored
        outcome = run(path, out)
        assert (outcome.sets[0]["scored"], outcome.failures) == (1, ())
        assert len(rows_of(out / "scores.csv")) == 2


def test_a_file_that_changes_meanwhile_is_a_failure(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = write_manifest(tmp_path, 2, ("good",))
    file = path.parent / entries_of(path)[0]["systems"]["good"][0]

    def touched(*arguments: Any) -> Any:
        file.touch()
        return join(*arguments)

    with monkeypatch.context() as patched:
        patched.setattr(tables, "join", touched)
        assert evaluate_command(path, tmp_path / "out") == options.SOME_FAILED
    rows = rows_of(tmp_path / "out" / "scores.csv")
    assert [row["status"] for row in rows] == ["failed", "failed", "ok", "ok"]
    assert "changed while the run went on" in rows[0]["reason"]
    assert evaluate_command(path, tmp_path / "out") == options.OK


def test_a_manifest_without_systems_is_refused(tmp_path: Path) -> None:
    path = write_manifest(tmp_path, 2, ("good",))
    entries = entries_of(path)
    entries[0]["systems"] = {}
    path.write_text(json.dumps(entries), encoding="utf-8")
    assert len(load_manifest(path)) == 2
    entries[1]["systems"] = {}
    path.write_text(json.dumps(entries), encoding="utf-8")
    with pytest.raises(ManifestError, match="no system in any"):
        load_manifest(path)


def test_distortions_of_your_own_are_part_of_the_settings(tmp_path: Path) -> None:
    path = write_manifest(tmp_path, 1, ("good",))

    def scorer(amount: float) -> MAPSS:
        member = Distortion("own", "own", louder, {"amount": amount})
        return MAPSS("mel", match_bank=DistortionBank("match", only=("echo",), extra=(member,)))

    mixtures = load_manifest(path)
    run_room.run(mixtures, tmp_path / "out", lambda: scorer(2.0))
    with pytest.raises(ValueError, match="other settings"):
        run_room.run(mixtures, tmp_path / "out", lambda: scorer(3.0))


def louder(waveform: torch.Tensor, sample_rate: int, amount: float) -> torch.Tensor:
    return torch.tanh(amount * waveform)


def test_a_confidence_that_nothing_uses_is_no_setting(tmp_path: Path) -> None:
    path = write_manifest(tmp_path, 1, ("good",))
    mixtures, out = load_manifest(path), tmp_path / "out"
    run_room.run(mixtures, out, small_mapss)
    run_room.run(mixtures, out, small_mapss, Request(confidence=0.8))
    with pytest.raises(ValueError, match="bounds"):
        run_room.run(mixtures, out, small_mapss, Request(bounds=True))
    # Whoever asks for one in a command means bounds.
    assert evaluate_command(path, tmp_path / "new", "--confidence", "0.8") == options.BAD_INPUT
    wrong = ("--bounds", "--confidence", "7")
    assert evaluate_command(path, tmp_path / "new", *wrong) == options.BAD_INPUT
    assert not (tmp_path / "new").exists()


def test_manifests_of_other_tools_are_shown_a_valid_one(tmp_path: Path) -> None:
    cases = {
        '{"utts": {"a": {}}, "x": 1}': r"got an object with 'utts', 'x'\. The least that is valid",
        '{"mixture_id": "m", "references": [], "systems": {}}': "got a single one: put it in",
        '{"id": 1}\n{"id": 2}\n': "One object per line is no manifest. The least that is valid",
        "3": "must be a JSON list of mixtures, got 3",
    }
    path = tmp_path / "m.json"
    for text, message in cases.items():
        path.write_text(text, encoding="utf-8")
        with pytest.raises(ManifestError, match=message):
            load_manifest(path)
    with pytest.raises(ManifestError) as error:
        load_manifest(path)
    shown = str(error.value)
    for name in "ab":
        write(tmp_path / f"{name}.wav", torch.zeros(800))
        write(tmp_path / f"{name}_est.wav", torch.zeros(800))
    path.write_text(shown[shown.index("[{") :], encoding="utf-8")
    assert len(load_manifest(path)) == 1  # what is shown is valid


@pytest.mark.skipif(os.sep == "\\", reason="backslashes separate folders here")
def test_backslashes_get_a_hint(tmp_path: Path) -> None:
    path = write_manifest(tmp_path, 1, ("good",))
    path.write_text(path.read_text().replace("/", "\\\\"))
    with pytest.raises(ManifestError, match=r"backslashes do not .*'m0/truth/a.wav' is there"):
        load_manifest(path)
