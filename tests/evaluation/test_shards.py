"""Shards of a manifest, variables of launchers, interruptions, findings of a set."""

from __future__ import annotations

import json
import os
import shutil
import sys
from pathlib import Path
from typing import Any

import pandas as pd
import pytest
import torch
from separations import python, save_manifest, score_set, small_mapss, write, write_manifest
from waveforms import leaky, tones

from torch_mapss import evaluate_set
from torch_mapss.audio import resample
from torch_mapss.evaluation import cli, score
from torch_mapss.evaluation import run as runs
from torch_mapss.evaluation.records import rows_of
from torch_mapss.evaluation.results import load_results
from torch_mapss.evaluation.results_text import results_text
from torch_mapss.evaluation.shard import Shard, launched_shard, local_device, parse_shard

NAMES = (
    *("WORLD_SIZE", "RANK", "LOCAL_RANK", "SLURM_STEP_NUM_TASKS", "SLURM_NTASKS"),
    *("SLURM_PROCID", "SLURM_LOCALID"),
)

TABLES = ("scores.csv", "items.csv", "summary.csv")
QUICK = ("--encoder", "mel", "--bank-size", "5", "--measures", "decomposition")


@pytest.fixture(autouse=True)
def alone(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in NAMES:
        monkeypatch.delenv(name, raising=False)


TASKS = {"SLURM_NTASKS": "4", "SLURM_PROCID": "0"}
LAUNCHED = [
    ({}, Shard(1, 1)),
    ({"WORLD_SIZE": "1"}, Shard(1, 1)),
    ({"WORLD_SIZE": "3", "RANK": "2"}, Shard(3, 3)),
    ({"SLURM_STEP_NUM_TASKS": "4", "SLURM_NTASKS": "9", "SLURM_PROCID": "3"}, Shard(4, 4)),
    (TASKS, Shard(1, 1)),  # a batch script without srun: one process does all
    (TASKS | {"SLURM_STEP_NUM_TASKS": "1"}, Shard(1, 1)),
    ({"WORLD_SIZE": "2"}, "RANK"),
    ({"WORLD_SIZE": ""}, "WORLD_SIZE"),
    ({"WORLD_SIZE": "0"}, "WORLD_SIZE"),
    ({"WORLD_SIZE": "2", "RANK": "2"}, "RANK"),
    ({"SLURM_STEP_NUM_TASKS": "2", "SLURM_PROCID": "x"}, "SLURM_PROCID"),
    ({"SLURM_STEP_NUM_TASKS": "", "SLURM_PROCID": "0"}, "SLURM_STEP_NUM_TASKS"),
]


@pytest.mark.parametrize(("variables", "expected"), LAUNCHED)
def test_who_shares_the_work(variables, expected, monkeypatch):
    for variable, value in variables.items():
        monkeypatch.setenv(variable, value)
    if isinstance(expected, str):  # variables that make no sense are named
        with pytest.raises(ValueError, match=expected):
            launched_shard()
    else:
        assert launched_shard() == expected


def test_shards_are_counted_from_one():
    items = [*range(7)]
    shards = [parse_shard(f"{number}/3").of(items) for number in (1, 2, 3)]
    assert shards == [[0, 3, 6], [1, 4], [2, 5]]
    for text in ("5/4", "0/4", "-1/4", "1/0", "0/0", "1", "a/b", "1/2/3", ""):
        with pytest.raises(ValueError, match=r"^shard must be I/N"):
            parse_shard(text)


@pytest.mark.parametrize(
    "variables", [{"WORLD_SIZE": "4", "RANK": "0"}, {"WORLD_SIZE": "2", "LOCAL_RANK": "0"}]
)
def test_a_call_from_python_is_whole_whatever_a_launcher_says(variables, monkeypatch, tmp_path):
    """Also where its variables are there in part, as in a callback of Lightning."""
    for name, value in variables.items():
        monkeypatch.setenv(name, value)
    path = write_manifest(tmp_path / "set", 3, ("one",))
    results = evaluate_set(path, out=tmp_path / "out", mapss=small_mapss(), measures="bleed")
    assert (results.pending, len(results.items)) == ((), 3)


def test_the_gpu_of_a_task(monkeypatch):
    assert local_device("cuda") == "cuda"
    monkeypatch.setenv("SLURM_LOCALID", "3")
    for count, expected in ((1, "cuda:0"), (8, "cuda:3")):  # each task may see its own alone
        monkeypatch.setattr(torch.cuda, "device_count", lambda count=count: count)
        assert local_device("cuda") == expected
    monkeypatch.setenv("LOCAL_RANK", "5")
    assert [local_device(name) for name in ("cuda", "cuda:1", "cpu")] == ["cuda:5", "cuda:1", "cpu"]


@pytest.mark.slow
def test_torchrun_shares_the_work_and_writes_one_table(tmp_path):
    path = write_manifest(tmp_path / "set", 3, ("one",))
    launch = ("-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2", "--no-python")
    command = ("evaluate", str(path), *QUICK, "--out")
    out = (tmp_path / "out", tmp_path / "once")
    python(*launch, sys.executable, "-m", "torch_mapss", *command, str(out[0]), timeout=300)
    assert cli.main([*command, str(out[1]), "--quiet"]) == 0
    for name in TABLES:  # the number of threads changes last digits
        shared, once = (pd.read_csv(folder / name) for folder in out)
        pd.testing.assert_frame_equal(shared, once, rtol=1e-5)


def test_shards_make_the_tables_of_one_run(manifest, results, tmp_path, capsys):
    partial = score_set(manifest, tmp_path, shard=parse_shard("2/2"), quiet=False)
    assert len(partial.pending) == 4
    assert "shard 2 of 2: mixtures 2, 4, ... of the manifest" in capsys.readouterr().err
    assert not (tmp_path / "scores.csv").exists()
    assert [path.name for path in (tmp_path / "records").glob("*.json")] == ["m1.json"]
    assert "4 pairs of mixture and system are not scored yet" in runs.pending_text(partial)
    assert score_set(manifest, tmp_path, shard=parse_shard("1/2")).pending == ()
    for name in TABLES:
        assert (tmp_path / name).read_bytes() == Path(results.folder, name).read_bytes()


def test_scores_of_changed_files_are_in_no_table(tmp_path):
    """One shard is run again after the audio of all has changed."""
    path, out = write_manifest(tmp_path / "set", 2, ("one",), 0.2), tmp_path / "out"
    score_set(path, out, measures="bleed")
    before = (out / "scores.csv").read_bytes()
    for k in (0, 1):
        write(tmp_path / "set" / f"m{k}/one/a.wav", leaky(tones(2, 0.2, seed=k), 0.9)[0])
    partial = score_set(path, out, measures="bleed", shard=Shard(1, 2))
    assert partial.pending == (("m1", "one"),)
    assert {row["mixture_id"] for row in rows_of(partial.scores)} == {"m0"}
    assert (out / "scores.csv").read_bytes() == before
    complete = score_set(path, out, measures="bleed", shard=Shard(2, 2))
    assert complete.pending == ()
    once = score_set(path, tmp_path / "once", measures="bleed")
    pd.testing.assert_frame_equal(complete.scores, once.scores)
    assert (out / "scores.csv").read_bytes() == (tmp_path / "once/scores.csv").read_bytes()


def test_shards_read_copies_of_one_set(manifest, results, tmp_path, capsys):
    """As jobs do that copy their input to the disk of their own node; times of files differ."""
    for number in (1, 2):
        copy = tmp_path / f"node{number}"
        shutil.copytree(manifest.parent, copy)  # with the times of the files
        for path in copy.rglob("*.wav"):
            os.utime(path, ns=(0, number))
        score_set(copy / "manifest.json", tmp_path / "out", shard=parse_shard(f"{number}/2"))
    for name in TABLES:
        assert (tmp_path / "out" / name).read_bytes() == Path(results.folder, name).read_bytes()
    capsys.readouterr()
    write(tmp_path / "node2/m1/bad/b.wav", leaky(tones(seconds=0.3), 0.9)[1])
    score_set(tmp_path / "node2/manifest.json", tmp_path / "out", quiet=False)
    told = capsys.readouterr().err
    assert "5 of 6 pairs of mixture and system are done already" in told
    assert "1 pairs are scored again, since they have files that differ from those scored" in told


def test_empty_shard_succeeds(tmp_path, monkeypatch, capsys):
    """Also before any other shard is done; under torchrun its exit would end the others."""
    path = write_manifest(tmp_path / "set", 1, ("one",))
    partial = score_set(path, tmp_path / "python", shard=Shard(2, 2))
    assert partial.pending == (("m0", "one"),)
    assert (len(partial.scores), len(partial.items), len(partial.summary)) == (0, 0, 0)
    assert (partial.measures, partial.failures, partial.warnings) == ((), (), ())
    command = ["evaluate", str(path), *QUICK, "--out", str(tmp_path / "out")]
    assert cli.main([*command, "--shard", "2/2"]) == 0
    assert "1 pairs of mixture and system are not scored yet" in capsys.readouterr().out
    with pytest.raises(ValueError, match="is scored yet"):
        load_results(tmp_path / "out")
    monkeypatch.setenv("WORLD_SIZE", "2")
    for rank in ("1", "0"):
        monkeypatch.setenv("RANK", rank)
        assert cli.main(command) == 0
    assert len(load_results(tmp_path / "out").scores) == 2


@pytest.mark.parametrize("broken", ["all", "the first"])
def test_a_long_set_whose_first_mixture_cannot_be_loaded_is_scored(broken, tmp_path, capsys):
    entries = []
    for name, seconds in (("long", 130.0), ("short", 0.3)):
        waves = tones(2, seconds, rate=4000)
        lost = 100 if broken == "all" or name == "long" else 0  # samples
        for kind, wave in (("truth", waves), ("one", waves[:, : waves.shape[-1] - lost])):
            for source, samples in zip("ab", wave):
                write(tmp_path / name / kind / f"{source}.wav", samples, 4000)
        references, estimates = (
            [f"{name}/{kind}/{source}.wav" for source in "ab"] for kind in ("truth", "one")
        )
        entry = {"mixture_id": name, "references": references, "systems": {"one": estimates}}
        entries.append(entry)
    path = save_manifest(tmp_path, entries)
    results = score_set(path, tmp_path / "out", measures="bleed", quiet=False)
    assert len(results.failures) == (2 if broken == "all" else 1)
    assert "2 mixtures, 2 sources, 1 systems, 2 min of audio" in capsys.readouterr().err


def test_the_estimated_time_is_of_all_pending_systems(tmp_path, capsys):
    """On a resume, the first mixture may lack fewer systems than the others."""
    path, out = write_manifest(tmp_path / "set", 2, ("one", "two"), 70.0), tmp_path / "out"
    entries = json.loads(path.read_text())
    del entries[0]["systems"]["two"]
    path = save_manifest(tmp_path / "set", entries)
    score_set(path, out, measures="bleed", quiet=False)
    assert "2 mixtures, 2 sources, 2 systems, 2 min of audio" in capsys.readouterr().err


def test_a_last_call_joins_shards(tmp_path, capsys):
    path, out = write_manifest(tmp_path / "set", 3, ("one",)), tmp_path / "out"
    broken = tmp_path / "set" / "m1" / "one" / "a.wav"
    broken.write_bytes(broken.read_bytes()[:100])
    settings: dict[str, Any] = {"out": out, "mapss": small_mapss(), "measures": "bleed"}
    with pytest.warns(UserWarning, match="2 pairs of mixture and system are not scored yet"):
        assert len(evaluate_set(path, **settings, shard="1/3").items) == 1
    partial = score_set(path, out, shard=Shard(2, 3), measures="bleed")
    assert "mixture 'm1', system 'one'" in partial.failures[0]
    with pytest.warns(UserWarning, match="system 'one'"):
        results = evaluate_set(path, **settings, progress=True)
    assert len(results.scores) == 6
    told = capsys.readouterr().err
    assert "1 of 3 pairs of mixture and system are done already" in told
    assert "1 pairs are scored again, since they failed before" in told
    assert not [*out.rglob("*.lock")]


@pytest.mark.parametrize(("variables", "code"), [({}, 1), ({"WORLD_SIZE": "2", "RANK": "0"}, 0)])
def test_noted_failures_are_no_crash_under_a_launcher(variables, code, tmp_path, monkeypatch):
    """torchrun would kill the other processes, and no table would be written."""
    for name, value in variables.items():
        monkeypatch.setenv(name, value)
    path = write_manifest(tmp_path / "set", 1, ("one",))
    (tmp_path / "set" / "m0" / "one" / "a.wav").write_bytes(b"broken")
    command = ["evaluate", str(path), *QUICK, "--out", str(tmp_path / "out"), "--quiet"]
    assert cli.main(command) == code
    assert (tmp_path / "out" / "scores.csv").exists()


def test_a_second_manifest_adds_to_a_folder(tmp_path, capsys):
    """Nothing that was scored leaves the tables."""
    path, out = write_manifest(tmp_path / "set", 2), tmp_path / "out"
    entries = json.loads(path.read_text())
    settings: dict[str, Any] = {"measures": "bleed", "quiet": False}
    for system in ("good", "bad"):
        alone = [{**entry, "systems": {system: entry["systems"][system]}} for entry in entries]
        results = score_set(
            save_manifest(tmp_path / "set", alone, f"{system}.json"), out, **settings
        )
    assert "also holds system 'good' of 2 mixtures" in capsys.readouterr().err
    assert results.systems == ("good", "bad")
    once = score_set(path, tmp_path / "once", **settings)
    pd.testing.assert_frame_equal(results.summary, once.summary)
    added_manifest = write_manifest(tmp_path / "other", 1, ("new",), seconds=0.5)
    with pytest.raises(ValueError, match="mixture 'm0' with other references, and scores of"):
        score_set(added_manifest, out, **settings)
    renamed = [{**entry, "mixture_id": "x"} for entry in json.loads(added_manifest.read_text())]
    results = score_set(save_manifest(tmp_path / "other", renamed), out, **settings)
    assert results.mixtures == ("m0", "m1", "x")  # of two folders
    assert all(Path(path).exists() for path in results.audio("m0").references)


def test_an_interruption_says_how_to_go_on(tmp_path, monkeypatch, capsys):
    path, score_loaded = write_manifest(tmp_path / "set", 3, ("one",)), runs.score_loaded

    def interrupted(scorer: Any, loaded: Any, *arguments: Any) -> Any:
        if loaded.mixture.name == "m1":
            raise KeyboardInterrupt
        return score_loaded(scorer, loaded, *arguments)

    monkeypatch.setattr(runs, "score_loaded", interrupted)
    assert cli.main(["evaluate", str(path), "--out", str(tmp_path / "o"), *QUICK]) == 130
    told = capsys.readouterr().err
    assert "interrupted after 1 of 3 pairs of mixture and system" in told
    assert "run the same command (or call) again to continue" in told
    # Records of changed files are scored again, so they are not among the saved pairs.
    write(tmp_path / "set/m0/one/a.wav", leaky(tones(2, 0.3), 0.9)[0])

    def interrupted_at_once(*_: Any) -> Any:
        raise KeyboardInterrupt

    monkeypatch.setattr(runs, "score_loaded", interrupted_at_once)
    assert cli.main(["evaluate", str(path), "--out", str(tmp_path / "o"), *QUICK]) == 130
    assert "interrupted after 0 of 3 pairs of mixture and system" in capsys.readouterr().err


def test_an_encoder_that_cannot_be_loaded_leaves_no_folder(tmp_path, monkeypatch):
    def unloadable(*_: Any) -> Any:
        raise OSError("no weights")

    path = write_manifest(tmp_path / "set", 1, ("one",))
    monkeypatch.setattr(score, "settings_of", unloadable)
    with pytest.raises(OSError, match="no weights"):
        score_set(path, tmp_path / "out")
    assert not (tmp_path / "out").exists()


def test_shard_reports_the_pairs_that_it_scores_again(tmp_path, capsys):
    path, out = write_manifest(tmp_path / "set", 4, ("one",), 0.2), tmp_path / "out"
    score_set(path, out, measures="bleed")
    for k in (1, 2, 3):
        write(tmp_path / "set" / f"m{k}/one/a.wav", leaky(tones(2, 0.2, seed=k), 0.9)[0])
    score_set(path, out, measures="bleed", shard=Shard(1, 2), quiet=False)
    told = capsys.readouterr().err
    assert "1 of 2 pairs of mixture and system are done already" in told
    assert "1 pairs are scored again" in told


def test_findings_of_a_set_are_reported_once_and_counted(tmp_path):
    path = write_manifest(tmp_path / "set", 3, ("one", "two"))
    for k in (0, 2):
        write(tmp_path / "set" / f"m{k}" / "one" / "a.wav", torch.zeros(4800))
    for wave, name in zip(resample(tones(2, 0.3, seed=1), 16_000, 8000), "ab"):
        write(tmp_path / "set" / "m1" / "two" / f"{name}.wav", wave, 8000)
    outcome = score_set(path, tmp_path / "out")
    (silent,) = [text for text in outcome.warnings if text.startswith("silent:")]
    assert "in 2 of 6 pairs of mixture and system ('one'), first in mixture 'm0'" in silent
    (rates,) = [text for text in outcome.warnings if text.startswith("rates:")]
    assert "the means of system 'two' are over files of 8000, 16000 Hz" in rates
    assert f"Warning: {silent}." in results_text(outcome)
    rows = {row["system"]: row for row in rows_of(outcome.summary)}
    assert (rows["one"]["silent"], rows["two"]["silent"]) == (2, 0)
    assert (rows["one"]["rates"], rows["two"]["rates"]) == ("16000", "8000;16000")
    assert "a.wav' is silent" in outcome.scores["warnings"].iloc[0]
    # Means that dead outputs of two mixtures ruin.
    assert rows["one"]["log_pm"] < 10 * rows["two"]["log_pm"]
    assert rows["one"]["log_pm_compressed"] > 10 * rows["two"]["log_pm_compressed"]
    # Also of a run that resumes.
    assert score_set(path, tmp_path / "out").warnings == outcome.warnings
