"""A command and its surroundings: closed pipes, full disks, progress, threads."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from pathlib import Path

import pytest
from separations import environment, python, write_all, write_manifest
from waveforms import leaky, tones

from torch_mapss.evaluation import cli, console

QUICK = ("--encoder", "mel", "--bank-size", "10")


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Two sources, estimates of them, and a manifest of which one system fails."""
    parent, truth = tmp_path_factory.mktemp("shell"), tones(seconds=0.3)
    write_all(parent / "truth", truth)
    write_all(parent / "made", leaky(truth))
    write_manifest(parent / "set", 1, ("good", "bad"))
    broken = parent / "set" / "m0" / "bad" / "a.wav"
    broken.write_bytes(broken.read_bytes()[:100])
    return parent


def score_of(folder: Path) -> list[str]:
    return [
        *("score", "--references", *(str(folder / "truth" / f"{k}.wav") for k in "ab")),
        *("--estimates", *(str(folder / "made" / f"{k}.wav") for k in "ab"), *QUICK),
    ]


def started(arguments: list[str], stdout: int, unbuffered: str) -> tuple[int, str]:
    """Exit code and error stream of a command."""
    command, env = [sys.executable, "-m", "torch_mapss"], environment(PYTHONUNBUFFERED=unbuffered)
    options = {"env": env, "stdout": stdout, "stderr": subprocess.PIPE, "timeout": 300}
    done = subprocess.run([*command, *arguments], **options)
    return done.returncode, done.stderr.decode()


def into_a_closed_pipe(arguments: list[str], unbuffered: str) -> tuple[int, str]:
    reader, writer = os.pipe()
    os.close(reader)
    try:
        return started(arguments, writer, unbuffered)
    finally:
        os.close(writer)


BUFFERING = pytest.mark.parametrize("unbuffered", ["1", pytest.param("", marks=pytest.mark.slow)])


@pytest.mark.slow
@BUFFERING
def test_a_closed_pipe_loses_no_file_and_hides_no_failure(folder, tmp_path, unbuffered):
    out = tmp_path / "o"
    arguments = [*score_of(folder), "--out", str(out), "--plot"]
    assert into_a_closed_pipe(arguments, unbuffered) == (0, "")
    names = {path.name for path in out.iterdir()}
    assert {"scores.csv", "items.csv", "settings.json", "scores.png"} <= names
    arguments = ["evaluate", str(folder / "set" / "manifest.json"), *QUICK]
    code, message = into_a_closed_pipe([*arguments, "--out", str(tmp_path / "e")], unbuffered)
    assert code == 1
    device, failure = message.strip().splitlines()
    assert device.startswith("torch-mapss: computing on ")
    assert failure.startswith("torch-mapss: failed: mixture 'm0', system 'bad'")
    assert (tmp_path / "e" / "summary.csv").exists()
    check_full_disk([*score_of(folder), "--out", str(tmp_path / "full")], unbuffered)
    assert (tmp_path / "full" / "scores.csv").exists()


@BUFFERING
@pytest.mark.parametrize("word", ["--help", pytest.param("encoders", marks=pytest.mark.slow)])
def test_words_into_a_closed_pipe_or_onto_a_full_disk(word, unbuffered):
    assert into_a_closed_pipe([word], unbuffered) == (0, "")
    check_full_disk([word], unbuffered)


def check_full_disk(arguments: list[str], unbuffered: str) -> None:
    if not os.path.exists("/dev/full"):
        pytest.skip("there is no /dev/full")
    with open("/dev/full", "wb") as full:
        code, message = started(arguments, full.fileno(), unbuffered)
    assert code == 2
    (line,) = message.strip().splitlines()
    assert line.startswith("torch-mapss: error: the output cannot be printed: No space left")


@pytest.mark.slow
def test_closed_streams_are_no_files_of_ours(folder, tmp_path):
    command = [sys.executable, "-m", "torch_mapss", *score_of(folder), "--out", str(tmp_path / "o")]
    shell = " ".join(f"'{word}'" for word in command) + " >&- 2>&-"
    assert subprocess.run(["sh", "-c", shell], env=environment(), timeout=300).returncode == 0
    assert (tmp_path / "o" / "scores.csv").read_text().startswith("mixture_id,system,source,")


def test_durations():
    told = {0.4: "0 s", 59.4: "59 s", 61.0: "1 min", 3599.0: "1 h 0 min", 8000.0: "2 h 13 min"}
    assert {seconds: console.duration(seconds) for seconds in told} == told


@pytest.mark.parametrize("terminal", [True, False])
def test_progress_is_a_bar_on_a_terminal_else_lines(terminal, monkeypatch, capsys):
    monkeypatch.setattr(console, "INTERVAL", 0.05)
    monkeypatch.setattr(sys.stderr, "isatty", lambda: terminal, raising=False)
    with console.progress(4.0) as bar:
        for done in (1.0, 2.0, 4.0):
            time.sleep(0.25 if terminal else 0.1)
            bar.set_postfix_str("m1", refresh=False)
            bar.update(done - bar.n)
    told = capsys.readouterr().err
    assert ("scoring: 100%|" in told) == terminal
    for line in [] if terminal else told.splitlines():
        assert line.startswith("torch-mapss: scoring: ")
    assert terminal or any("50%, m1, " in x and "left" in x for x in told.splitlines())
    with console.progress(4.0, quiet=True) as bar:
        bar.update(2.0)
    assert capsys.readouterr().err == ""


NAMES = ("OMP_WAIT_POLICY", "GOMP_SPINCOUNT", "KMP_BLOCKTIME")


@pytest.mark.parametrize(
    "environment_variables", [{}, *({name: "active"} for name in NAMES)], ids=str
)
def test_idle_threads_sleep_unless_someone_chose(environment_variables, monkeypatch):
    for name in NAMES:
        monkeypatch.setenv(name, environment_variables.get(name, ""))  # so that it is put back
        if name not in environment_variables:
            monkeypatch.delenv(name)
    cli.let_idle_threads_sleep()  # torch is loaded: too late
    assert {name: os.environ[name] for name in NAMES if name in os.environ} == environment_variables
    monkeypatch.delitem(sys.modules, "torch")
    cli.let_idle_threads_sleep()
    chosen = {name: os.environ[name] for name in NAMES if name in os.environ}
    assert chosen == (environment_variables or {"OMP_WAIT_POLICY": "passive"})


@pytest.mark.slow
def test_the_command_line_sets_it_before_torch_loads(monkeypatch):
    for name in NAMES:
        monkeypatch.delenv(name, raising=False)
    code = "from torch_mapss.evaluation.cli import main\nmain(['encoders'])\n"
    printed = python("-c", f"{code}import os, torch\nprint(os.environ['OMP_WAIT_POLICY'])")
    assert printed.split()[-1] == "passive"
