"""Variables of launchers, shares of a manifest, and what a run says on its way."""

from __future__ import annotations

import json
import pickle
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from separations import small_mapss, write_manifest

from torch_mapss.evaluation import cli, files, frame_store
from torch_mapss.evaluation.manifest import load_manifest
from torch_mapss.evaluation.processes import World, label, local_device, parse_share, world
from torch_mapss.evaluation.run import run
from torch_mapss.evaluation.tables import Outcome

NAMES = (
    *("WORLD_SIZE", "RANK", "LOCAL_RANK", "MASTER_ADDR", "MASTER_PORT"),
    *("SLURM_STEP_NUM_TASKS", "SLURM_NTASKS", "SLURM_PROCID", "SLURM_LOCALID", "SLURM_JOB_NAME"),
)


@pytest.fixture(autouse=True)
def alone(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in NAMES:
        monkeypatch.delenv(name, raising=False)


def set_all(monkeypatch: pytest.MonkeyPatch, **variables: str) -> None:
    for name, value in variables.items():
        monkeypatch.setenv(name, value)


# ------------------------------------------------------------------------------------------------
# Launchers
# ------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("variables", "message"),
    [
        ({"WORLD_SIZE": "2"}, "RANK is not set"),
        ({"WORLD_SIZE": ""}, "WORLD_SIZE is ''"),
        ({"WORLD_SIZE": "auto"}, "WORLD_SIZE is 'auto'"),
        ({"WORLD_SIZE": "0"}, "WORLD_SIZE is '0'"),
        ({"WORLD_SIZE": "2", "RANK": "2"}, "RANK is '2', but must be .* below 2"),
        ({"WORLD_SIZE": "2", "RANK": "0"}, "MASTER_ADDR and MASTER_PORT are not set"),
        ({"SLURM_NTASKS": "2", "SLURM_PROCID": "x"}, "SLURM_PROCID is 'x'"),
        ({"SLURM_STEP_NUM_TASKS": "", "SLURM_PROCID": "0"}, "SLURM_STEP_NUM_TASKS is ''"),
    ],
)
def test_variables_that_make_no_sense_are_one_sentence(
    variables: dict[str, str],
    message: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    set_all(monkeypatch, **variables)
    with pytest.raises(ValueError, match=message), world():
        pass
    path = write_manifest(tmp_path / "set", 1, ("one",))
    quick = ("--encoder", "mel", "--bank-size", "5")
    assert cli.main(["evaluate", str(path), "--out", str(tmp_path / "o"), *quick]) == 2
    assert capsys.readouterr().err.count("\n") == 1
    label()  # which prints the error, never fails


@pytest.mark.parametrize(
    ("variables", "expected"),
    [
        ({}, World(0, 1)),
        ({"WORLD_SIZE": "1"}, World(0, 1)),
        ({"SLURM_STEP_NUM_TASKS": "4", "SLURM_NTASKS": "9", "SLURM_PROCID": "3"}, World(3, 4)),
        ({"SLURM_NTASKS": "4", "SLURM_PROCID": "1"}, World(1, 4)),
        ({"SLURM_NTASKS": "4", "SLURM_PROCID": "0", "SLURM_JOB_NAME": "bash"}, World(0, 1)),
        ({"SLURM_NTASKS": "4"}, World(0, 1)),
    ],
)
def test_who_shares_the_work(
    variables: dict[str, str], expected: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    set_all(monkeypatch, **variables)
    with world() as found:
        assert found == expected
    with world(World(1, 3)) as found:  # what is asked for overrules
        assert found == World(1, 3)


def test_a_share_beside_a_group_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    set_all(monkeypatch, WORLD_SIZE="2", RANK="0")
    with pytest.raises(ValueError, match="both share out"), world(World(0, 2)):
        pass


def test_shares_are_named_from_one_or_from_zero() -> None:
    for count in (1, 4):
        assert {parse_share(f"{k}/{count}") for k in range(count)} == {
            parse_share(f"{k + 1}/{count}") for k in range(count)
        }
    for text in ("5/4", "-1/4", "1/0", "0/0", "1", "a/b", "1/2/3", ""):
        with pytest.raises(ValueError, match="--shard must be i/n"):
            parse_share(text)


def test_the_gpu_of_a_task(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SLURM_LOCALID", "3")
    assert local_device("cuda") == "cuda:3"
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 1)  # each task sees its own alone
    assert local_device("cuda") == "cuda:0"
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 8)
    monkeypatch.setenv("LOCAL_RANK", "5")
    assert local_device("cuda") == "cuda:5"
    assert local_device("cuda:1") == "cuda:1"


# ------------------------------------------------------------------------------------------------
# Shares
# ------------------------------------------------------------------------------------------------


def scored(path: Path, out: Path, **options: Any) -> Outcome:
    return run(load_manifest(path), out, small_mapss, **options)


TABLES = ("scores.csv", "items.csv", "summary.csv")


def test_shares_make_the_tables_of_one_run(tmp_path: Path) -> None:
    path = write_manifest(tmp_path / "set", 3, ("one", "two"))
    scored(path, tmp_path / "whole")
    said: list[str] = []
    first = scored(path, tmp_path / "out", share=parse_share("1/2"), tell=said.append)
    assert first.missing > 0
    assert "share 1 of 2 (counted from 0)" in said[0]
    assert not (tmp_path / "out" / "scores.csv").exists()
    assert "the same command without --shard" in first.summary()
    last = scored(path, tmp_path / "out", share=parse_share("2/2"))
    assert last.missing == 0
    logs = sorted((tmp_path / "out" / "progress").iterdir())
    assert [log.name for log in logs] == ["rank-0.jsonl", "rank-1.jsonl"]
    assert sorted(log.read_bytes().count(b"\n") for log in logs) == [2, 4]
    for name in TABLES:
        assert (tmp_path / "out" / name).read_bytes() == (tmp_path / "whole" / name).read_bytes()


def test_a_last_call_joins_shares(tmp_path: Path) -> None:
    path = write_manifest(tmp_path / "set", 3, ("one",))
    scored(path, tmp_path / "out", share=World(0, 3))
    scored(path, tmp_path / "out", share=World(1, 3))
    said: list[str] = []
    assert scored(path, tmp_path / "out", tell=said.append).missing == 0
    assert said == ["2 of 3 pairs of mixture and system are done already"]
    assert (tmp_path / "out" / "summary.csv").exists()


def test_a_share_tells_its_own_failures(tmp_path: Path) -> None:
    path = write_manifest(tmp_path / "set", 2, ("one",))
    broken = tmp_path / "set" / "m1" / "one" / "a.wav"
    broken.write_bytes(broken.read_bytes()[:100])
    share = scored(path, tmp_path / "out", share=World(1, 2))
    assert "mixture 'm1', system 'one'" in share.failures[0]
    said: list[str] = []
    scored(path, tmp_path / "out", tell=said.append)
    assert "0 of 2 pairs of mixture and system are done already; 1 that failed" in said[0]


# ------------------------------------------------------------------------------------------------
# Interruptions, full disks
# ------------------------------------------------------------------------------------------------


def test_an_interruption_says_how_to_go_on(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    path = write_manifest(tmp_path / "set", 3, ("one",))

    def interrupted(items: Any, **_: Any) -> Iterator[Any]:
        yield next(iter(items))
        raise KeyboardInterrupt

    monkeypatch.setattr("torch_mapss.evaluation.console.progress", interrupted)
    quick = ("--encoder", "mel", "--bank-size", "5")
    assert cli.main(["evaluate", str(path), "--out", str(tmp_path / "o"), *quick]) == 130
    told = capsys.readouterr().err
    assert "torch-mapss: interrupted after 1 of 3 pairs of mixture and system" in told
    assert "the same command goes on from there" in told


def test_a_full_disk_ends_the_run_in_one_line(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    path = write_manifest(tmp_path / "set", 2, ("one",))

    def full(name: str, content: bytes) -> None:
        if name.endswith(".csv"):  # the frames, within the scoring of a pair
            raise OSError(28, "No space left on device")
        Path(name).write_bytes(content)

    monkeypatch.setattr(files, "_dump", full)
    options = ("--encoder", "mel", "--bank-size", "5", "--quiet", "--save-frames")
    assert cli.main(["evaluate", str(path), "--out", str(tmp_path / "o"), *options]) == 2
    told = capsys.readouterr().err
    assert "scores.csv' cannot be written: No space left on device" in told
    assert told.count("\n") == 1
    # Not a failure of the mixture: nothing is noted, and it is scored once there is room.
    assert (tmp_path / "o" / "progress" / "rank-0.jsonl").read_bytes() == b""
    monkeypatch.undo()
    assert cli.main(["evaluate", str(path), "--out", str(tmp_path / "o"), *options]) == 0
    assert frame_store.systems_of(frame_store.path_of(str(tmp_path / "o"), "m0")) == ("one",)


# ------------------------------------------------------------------------------------------------
# Findings over a set
# ------------------------------------------------------------------------------------------------


def test_findings_of_a_set_are_told_once_and_counted(tmp_path: Path) -> None:
    from separations import RATE, sources, write

    from torch_mapss.audio import resample

    path = write_manifest(tmp_path / "set", 3, ("one", "two"))
    for k in (0, 2):
        write(tmp_path / "set" / f"m{k}" / "one" / "a.wav", torch.zeros(4800))
    for wave, name in zip(resample(sources(2, 0.3, seed=1), RATE, 8000), "ab"):
        write(tmp_path / "set" / "m1" / "two" / f"{name}.wav", wave, 8000)
    outcome = scored(path, tmp_path / "out")
    (silent,) = [text for text in outcome.warnings if text.startswith("silent:")]
    assert "in 2 of 6 pairs of mixture and system ('one'), first in mixture 'm0'" in silent
    (rates,) = [text for text in outcome.warnings if text.startswith("rates:")]
    assert "the means of system 'two' are over files of 8000, 16000 Hz" in rates
    assert f"Warning: {silent}." in outcome.summary()
    rows = {row["system"]: row for row in outcome.sets}
    assert (rows["one"]["silent"], rows["two"]["silent"]) == (2, 0)
    assert (rows["one"]["rates"], rows["two"]["rates"]) == ("16000", "8000;16000")
    assert "a.wav' is silent" in outcome.scores[0]["warnings"]
    # Means that dead outputs of two mixtures ruin.
    assert rows["one"]["log_pm"] < 10 * rows["two"]["log_pm"]
    kept = json.loads((tmp_path / "out" / "progress" / "rank-0.jsonl").read_text().splitlines()[0])
    assert kept["findings"][0][0] == "silent"
    assert scored(path, tmp_path / "out").warnings == outcome.warnings  # also of a run that resumes


def test_an_outcome_can_be_sent_to_other_processes() -> None:
    outcome = Outcome((), (), (), ("a failure",))
    assert pickle.loads(pickle.dumps(outcome)) == outcome
