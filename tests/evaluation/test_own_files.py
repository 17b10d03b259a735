"""Every file of a results folder, damaged in every way, for every command that reads it.

What can be made again is made again or done without, and told; what cannot is an error that names
the file and the way out. Nothing ends in an unexpected error.
"""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from separations import write_manifest

from torch_mapss.evaluation import cli

OPTIONS = ("--encoder", "mel", "--bank-size", "5", "--measures", "decomposition", "--quiet")
FILES = (
    "settings.json",
    "mixtures.json",
    "records/m1.json",
    "frames/m1.npz",
    "scores.csv",
    "items.csv",
    "summary.csv",
)
#: Without these nothing is known of the results.
NEEDED = FILES[:2]
KINDS = ("empty", "cut", "zeroed", "unreadable", "of another version")


def case(file: str, kind: str) -> Any:
    """Exports, which hardly a command reads, are damaged in one way unless slow tests run."""
    slow = [pytest.mark.slow] if file.endswith(".csv") and kind != "cut" else []
    return pytest.param(file, kind, marks=slow, id=f"{file} {kind}")


CASES = [case(file, kind) for file in FILES for kind in KINDS]


@pytest.fixture(scope="module")
def results_folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with a test set, its results and ratings of them."""
    root = tmp_path_factory.mktemp("whole")
    manifest = write_manifest(root / "set", 2)
    assert cli.main(["evaluate", str(manifest), "--out", str(root / "res"), *OPTIONS]) == 0
    ratings = [
        f"m{k},{system},{source},5"
        for k in range(2)
        for system in ("good", "bad")
        for source in "ab"
    ]
    header = "track,system,source,mean_rating"
    (root / "ratings.csv").write_text("\n".join([header, *ratings]) + "\n")
    return root


@pytest.fixture
def copied(results_folder: Path, tmp_path: Path) -> Path:
    shutil.copytree(results_folder, tmp_path / "copy")
    return tmp_path / "copy"


def of_another_version(path: Path) -> None:
    """A file that can be read, with other content."""
    if path.suffix == ".json":
        stored = json.loads(path.read_text(encoding="utf-8"))
        content = {"format": 1, "entries": []} if "format" in stored else {"made": "otherwise"}
        path.write_text(json.dumps(content), encoding="utf-8")
    elif path.suffix == ".npz":
        np.savez(path, scores=np.zeros(3))
    else:
        path.write_text("name,value\nx,1\n")


def damage(path: Path, kind: str) -> None:
    content = path.read_bytes()
    if kind == "empty":
        path.write_bytes(b"")
    elif kind == "cut":
        path.write_bytes(content[: len(content) // 2])
    elif kind == "zeroed":
        path.write_bytes(bytes(len(content)))
    elif kind == "unreadable":  # a folder, since nothing is unreadable to an administrator
        path.unlink()
        path.mkdir()
    else:
        of_another_version(path)


def commands(root: Path) -> dict[str, list[str]]:
    """Command lines that read the results, by name."""
    results, out = str(root / "res"), root / "out"
    return {
        "compare": ["compare", results, "--out", str(out / "compare"), "--no-plots"],
        "worst": ["worst", results, "--n", "2"],
        "verify": ["verify", results, "--pairs", "0"],
        "listen": ["listen", results, "--out", str(out / "listen"), "--pages", "1"],
        "correlate": [
            *("correlate", results, str(root / "ratings.csv"), "--out", str(out / "correlate")),
            *("--draws", "0"),
        ],
        "report": ["report", results, "--out", str(out / "report.html")],
    }


#: Commands whose pictures and pages take seconds are tried with one kind of damage.
SLOW = ("correlate", "report")


@pytest.mark.parametrize(("file", "kind"), CASES)
def test_every_command_does_without_or_names_the_file(copied, capsys, file, kind):
    damage(copied / "res" / file, kind)
    for name, arguments in commands(copied).items():
        if name in SLOW and (kind != "cut" or file.endswith(".csv")):
            continue
        code = cli.main(arguments)
        out, err = capsys.readouterr()
        told = f"{name}: {code}, {out}, {err}"
        assert "unexpected" not in err, told
        assert "Traceback" not in err, told
        if file in NEEDED:
            assert code == 2, told
            assert Path(file).name in err, told
            assert any(remedy in err for remedy in ("again", "torch-mapss evaluate")), told
        elif file.startswith("records"):
            assert Path(file).name in out + err, told
            assert code == (1 if name == "verify" else 0), told
        elif file.startswith("frames"):
            readers = {"worst": 2, "report": 2, "verify": 1}
            assert code == readers.get(name, 0), told
            assert (Path(file).name in out + err) == (name in readers), told
        else:  # exports are never read back, but by the command that compares them
            assert code == (1 if name == "verify" else 0), told
            assert (Path(file).name in out + err) == (name == "verify"), told


@pytest.mark.parametrize(
    ("file", "kind"), [param for param in CASES if "unreadable" not in param.id]
)
def test_evaluate_restores_damaged_files(copied, capsys, file, kind):
    damage(copied / "res" / file, kind)
    manifest = copied / "set" / "manifest.json"
    code = cli.main(["evaluate", str(manifest), "--out", str(copied / "res"), *OPTIONS])
    err = capsys.readouterr().err
    assert "unexpected" not in err
    assert (code, file in NEEDED) in ((0, False), (2, True)), err
    if code == 2:
        assert Path(file).name in err
        return
    assert cli.main(["verify", str(copied / "res"), "--pairs", "1"]) == 0
    assert "Nothing differs." in capsys.readouterr().out


KEY_DAMAGE: dict[str, Any] = {"empty": "is empty", "zeroed": "zero bytes", "unreadable": "stimuli"}


@pytest.mark.parametrize("kind", KEY_DAMAGE)
def test_a_damaged_key_of_a_listening_test_is_named(copied, capsys, kind):
    results, test = str(copied / "res"), copied / "listen"
    assert cli.main(["listen", results, "--out", str(test), "--pages", "1", "--quiet"]) == 0
    damage(test / "stimuli.csv", kind)
    (copied / "mushra.csv").write_text("session_test_id,trial_id,rating_stimulus,rating_score\n")
    read = ["listen", results, "--out", str(test), "--ratings", str(copied / "mushra.csv")]
    for arguments in (read, ["listen", results, "--out", str(test), "--pages", "1"]):
        assert cli.main(arguments) == 2
        error = capsys.readouterr().err
        assert "stimuli.csv" in error
        assert KEY_DAMAGE[kind] in error
        assert "unexpected" not in error
