"""Shares of a manifest, variables of launchers, interruptions, findings of a set."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import pandas as pd
import pytest
import torch
from separations import python, score_set, small_mapss, sources, write, write_manifest

from torch_mapss import evaluate_set
from torch_mapss.audio import resample
from torch_mapss.evaluation import cli
from torch_mapss.evaluation import run as runs
from torch_mapss.evaluation.results import records
from torch_mapss.evaluation.shards import Share, local_device, only_run

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
    ({}, Share(0, 1)),
    ({"WORLD_SIZE": "1"}, Share(0, 1)),
    ({"WORLD_SIZE": "3", "RANK": "2"}, Share(2, 3)),
    ({"SLURM_STEP_NUM_TASKS": "4", "SLURM_NTASKS": "9", "SLURM_PROCID": "3"}, Share(3, 4)),
    (TASKS, Share(0, 1)),  # a batch script without srun: one process does all
    (TASKS | {"SLURM_STEP_NUM_TASKS": "1"}, Share(0, 1)),
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
            Share.of(None)
    else:
        assert Share.of(None) == expected


def test_shares_are_named_from_one_or_from_zero():
    for count in (1, 4):
        shares = [{Share.of(f"{k + one}/{count}") for k in range(count)} for one in (0, 1)]
        assert shares[0] == shares[1]
    for text in ("5/4", "-1/4", "1/0", "0/0", "1", "a/b", "1/2/3", ""):
        with pytest.raises(ValueError, match="--shard"):
            Share.of(text)


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
        found, once = (pd.read_csv(folder / name) for folder in out)
        pd.testing.assert_frame_equal(found, once, rtol=1e-5)


def test_shares_make_the_tables_of_one_run(manifest, results, tmp_path, capsys):
    first = score_set(manifest, tmp_path, share=Share.of("1/2"), quiet=False)
    assert first.missing > 0
    assert "share 1 of 2 (counted from 0)" in capsys.readouterr().err
    assert not (tmp_path / "scores.csv").exists()
    assert [path.name for path in (tmp_path / "progress").glob("*.json")] == ["m1.json"]
    assert "without --shard" in first.text()
    assert score_set(manifest, tmp_path, share=Share.of("2/2")).missing == 0
    for name in TABLES:
        assert (tmp_path / name).read_bytes() == Path(results.folder, name).read_bytes()


def test_a_last_call_joins_shares(tmp_path, capsys):
    path, out = write_manifest(tmp_path / "set", 3, ("one",)), tmp_path / "out"
    broken = tmp_path / "set" / "m1" / "one" / "a.wav"
    broken.write_bytes(broken.read_bytes()[:100])
    given: dict[str, Any] = {"out": out, "mapss": small_mapss(), "measures": "bleed"}
    assert evaluate_set(path, **given, shard="0/3") is None
    share = score_set(path, out, share=Share(1, 3), measures="bleed")  # tells its own failures
    assert "mixture 'm1', system 'one'" in share.failures[0]
    with only_run(str(out), Share()), pytest.raises(ValueError, match="another run"):
        evaluate_set(path, **given)
    with pytest.warns(UserWarning, match="system 'one'"):
        results = evaluate_set(path, **given, progress=True)
    assert len(results.scores) == 6
    told = capsys.readouterr().err
    assert "1 of 3 pairs of mixture and system are done already; 1 that failed" in told


def test_an_interruption_says_how_to_go_on(tmp_path, monkeypatch, capsys):
    path, made = write_manifest(tmp_path / "set", 3, ("one",)), runs._records

    def interrupted(scorer: Any, mixture: Any, *rest: Any) -> Any:
        if mixture.name == "m1":
            raise KeyboardInterrupt
        return made(scorer, mixture, *rest)

    monkeypatch.setattr(runs, "_records", interrupted)
    assert cli.main(["evaluate", str(path), "--out", str(tmp_path / "o"), *QUICK]) == 130
    told = capsys.readouterr().err
    assert "interrupted after 1 of 3 pairs of mixture and system" in told
    assert "the same command goes on from there" in told


def test_findings_of_a_set_are_told_once_and_counted(tmp_path):
    path = write_manifest(tmp_path / "set", 3, ("one", "two"))
    for k in (0, 2):
        write(tmp_path / "set" / f"m{k}" / "one" / "a.wav", torch.zeros(4800))
    for wave, name in zip(resample(sources(2, 0.3, seed=1), 16_000, 8000), "ab"):
        write(tmp_path / "set" / "m1" / "two" / f"{name}.wav", wave, 8000)
    outcome = score_set(path, tmp_path / "out")
    (silent,) = [text for text in outcome.warnings if text.startswith("silent:")]
    assert "in 2 of 6 pairs of mixture and system ('one'), first in mixture 'm0'" in silent
    (rates,) = [text for text in outcome.warnings if text.startswith("rates:")]
    assert "the means of system 'two' are over files of 8000, 16000 Hz" in rates
    assert f"Warning: {silent}." in outcome.text()
    rows = {row["system"]: row for row in records(outcome.results.summary)}
    assert (rows["one"]["silent"], rows["two"]["silent"]) == (2, 0)
    assert (rows["one"]["rates"], rows["two"]["rates"]) == ("16000", "8000;16000")
    assert "a.wav' is silent" in outcome.results.scores["warnings"].iloc[0]
    # Means that dead outputs of two mixtures ruin.
    assert rows["one"]["log_pm"] < 10 * rows["two"]["log_pm"]
    assert rows["one"]["log_pm_compressed"] > 10 * rows["two"]["log_pm_compressed"]
    # Also of a run that resumes.
    assert score_set(path, tmp_path / "out").warnings == outcome.warnings
