"""Files are replaced in one step, and what a kill left is cleared away."""

from __future__ import annotations

import subprocess
import sys
import threading
from pathlib import Path

import pytest
from separations import environment

from torch_mapss.evaluation import files


def names(folder: Path) -> list[str]:
    return sorted(path.name for path in folder.iterdir())


def test_a_failed_write_leaves_the_old_file_alone(tmp_path: Path) -> None:
    path = tmp_path / "a.csv"
    files.write_bytes(path, b"old")

    def fails(name: str) -> None:
        Path(name).write_bytes(b"half")
        raise RuntimeError("stopped")

    with pytest.raises(RuntimeError, match="stopped"):
        files.write_with(path, fails)
    assert path.read_bytes() == b"old"
    assert names(tmp_path) == ["a.csv"]


def test_what_a_kill_left_is_cleared_away(tmp_path: Path) -> None:
    pytest.importorskip("fcntl")
    path = tmp_path / ("long" * 60 + ".csv")
    code = (
        "import os, sys; from torch_mapss.evaluation import files\n"
        "def write(name):\n"
        "    open(name, 'w').write('half'); os._exit(9)\n"
        "files.write_with(sys.argv[1], write)"
    )
    command = [sys.executable, "-c", code, str(path)]
    assert subprocess.run(command, env=environment(), check=False).returncode == 9
    (left,) = names(tmp_path)
    assert left.startswith(".part-")

    def write_on(name: str) -> None:
        with open(name, "ab") as file:  # goes on where the file ends: it must be empty
            file.write(b"whole")

    files.write_with(path, write_on)
    assert names(tmp_path) == [path.name]
    assert path.read_bytes() == b"whole"


def test_two_writers_of_one_file_do_not_meet(tmp_path: Path) -> None:
    path = tmp_path / "a.csv"
    inside, go_on = threading.Event(), threading.Event()

    def slow(name: str) -> None:
        inside.set()
        assert go_on.wait(30)
        Path(name).write_bytes(b"slow")

    first = threading.Thread(target=files.write_with, args=(path, slow))
    first.start()
    assert inside.wait(30)
    files.write_bytes(path, b"quick")
    assert path.read_bytes() == b"quick"
    go_on.set()
    first.join()
    assert path.read_bytes() == b"slow"
    assert names(tmp_path) == ["a.csv"]


def test_many_writers_leave_one_whole_file(tmp_path: Path) -> None:
    path = tmp_path / "a.csv"
    contents = [bytes([65 + k]) * 100_000 for k in range(8)]

    def write(content: bytes) -> None:
        for _ in range(20):
            files.write_bytes(path, content)

    threads = [threading.Thread(target=write, args=(content,)) for content in contents]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert path.read_bytes() in contents
    assert names(tmp_path) == ["a.csv"]


def test_a_lock_on_a_file_that_was_moved_away_is_none(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Another writer moves its file to the target between the opening and the locking of ours."""
    fcntl = pytest.importorskip("fcntl")
    path = tmp_path / "a.csv"
    flock = fcntl.flock

    def late(handle: int, operation: int) -> None:
        (own,) = tmp_path.glob(".part-*")
        own.write_bytes(b"another")
        own.rename(path)
        flock(handle, operation)

    monkeypatch.setattr(fcntl, "flock", late)

    def look(name: str) -> None:
        assert path.read_bytes() == b"another"  # not emptied
        Path(name).write_bytes(b"mine")

    files.write_with(path, look)
    assert path.read_bytes() == b"mine"
    assert names(tmp_path) == ["a.csv"]
