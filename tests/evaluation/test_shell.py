"""What a shell does to a command: closed pipes, full disks, variables of launchers."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest
from separations import environment, leaky, sources, write_all, write_manifest

QUICK = ("--encoder", "mel", "--bank-size", "5")
pytestmark = pytest.mark.skipif(os.name == "nt", reason="pipes and devices of POSIX")


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Two sources, estimates of them, and a manifest of which one system fails."""
    place = tmp_path_factory.mktemp("shell")
    truth = sources(seconds=0.3)
    write_all(place / "truth", truth)
    write_all(place / "made", leaky(truth))
    write_manifest(place / "set", 1, ("good", "bad"))
    broken = place / "set" / "m0" / "bad" / "a.wav"
    broken.write_bytes(broken.read_bytes()[:100])
    return place


def score_of(folder: Path) -> list[str]:
    return [
        *("score", "--references", *(str(folder / "truth" / f"{k}.wav") for k in "ab")),
        *("--estimates", *(str(folder / "made" / f"{k}.wav") for k in "ab"), *QUICK),
    ]


def started(arguments: list[str], stdout: int, **env: str) -> tuple[int, str]:
    """Exit code and error stream of a command."""
    done = subprocess.run(
        [sys.executable, "-m", "torch_mapss", *arguments],
        env=environment(**env),
        stdout=stdout,
        stderr=subprocess.PIPE,
        timeout=300,
    )
    return done.returncode, done.stderr.decode()


def into_a_closed_pipe(arguments: list[str], **env: str) -> tuple[int, str]:
    reader, writer = os.pipe()
    os.close(reader)
    try:
        return started(arguments, writer, **env)
    finally:
        os.close(writer)


BUFFERING = pytest.mark.parametrize("unbuffered", ["1", pytest.param("", marks=pytest.mark.slow)])


@pytest.mark.slow
@BUFFERING
def test_a_closed_pipe_loses_no_file_and_hides_no_failure(
    folder: Path, tmp_path: Path, unbuffered: str
) -> None:
    out = tmp_path / "o"
    arguments = [*score_of(folder), "--out", str(out), "--plot"]
    assert into_a_closed_pipe(arguments, PYTHONUNBUFFERED=unbuffered) == (0, "")
    names = {path.name for path in out.iterdir()}
    assert {"scores.csv", "frames.csv", "report.json", "scores.png"} <= names
    arguments = ["evaluate", str(folder / "set" / "manifest.json"), *QUICK]
    code, said = into_a_closed_pipe(
        [*arguments, "--out", str(tmp_path / "e")], PYTHONUNBUFFERED=unbuffered
    )
    assert code == 1
    (line,) = said.strip().splitlines()
    assert line.startswith("torch-mapss: failed: mixture 'm0', system 'bad'")
    assert (tmp_path / "e" / "summary.csv").exists()


@BUFFERING
@pytest.mark.parametrize("word", ["--help", pytest.param("encoders", marks=pytest.mark.slow)])
def test_words_into_a_closed_pipe_or_onto_a_full_disk(word: str, unbuffered: str) -> None:
    assert into_a_closed_pipe([word], PYTHONUNBUFFERED=unbuffered) == (0, "")
    check_full_disk([word], unbuffered)


@pytest.mark.slow
@BUFFERING
def test_a_full_disk_is_one_line(folder: Path, tmp_path: Path, unbuffered: str) -> None:
    check_full_disk([*score_of(folder), "--out", str(tmp_path)], unbuffered)
    assert (tmp_path / "scores.csv").exists()


def check_full_disk(arguments: list[str], unbuffered: str) -> None:
    if not os.path.exists("/dev/full"):
        pytest.skip("there is no /dev/full")
    with open("/dev/full", "wb") as full:
        code, said = started(arguments, full.fileno(), PYTHONUNBUFFERED=unbuffered)
    assert code == 2
    (line,) = said.strip().splitlines()
    assert line.startswith("torch-mapss: error: the output cannot be printed: No space left")


@pytest.mark.slow
def test_closed_streams_are_no_files_of_ours(folder: Path, tmp_path: Path) -> None:
    command = [sys.executable, "-m", "torch_mapss", *score_of(folder), "--out", str(tmp_path / "o")]
    shell = " ".join(f"'{word}'" for word in command) + " >&- 2>&-"
    assert subprocess.run(["sh", "-c", shell], env=environment(), timeout=300).returncode == 0
    assert (tmp_path / "o" / "scores.csv").read_text().startswith("source,")
