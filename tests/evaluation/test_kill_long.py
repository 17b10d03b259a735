"""``torch-mapss evaluate`` on a terminal, ended with SIGKILL within a segment of a long file."""

from __future__ import annotations

import os
import re
import signal
import struct
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from separations import environment, write_manifest

TABLES = ("scores.csv", "items.csv", "summary.csv", "mixtures.json")
SCORED = re.compile(r"(\d+) of (\d+) segments scored(, about \d+ (?:s|min) left in this file)?")


def command(manifest: Path, out: Path, *more: str) -> list[str]:
    start = [sys.executable, "-m", "torch_mapss", "evaluate", str(manifest), "--out", str(out)]
    return [*start, "--encoder", "mel", "--bank-size", "6", "--segment", "1.5", *more]


def rows(out: Path) -> list[bytes]:
    """The whole lines of progress."""
    log = out / "progress" / "rank-0.jsonl"
    return log.read_bytes().split(b"\n")[:-1] if log.exists() else []


class Terminal:
    """A run whose error stream is a terminal of 120 columns."""

    def __init__(self, arguments: list[str]) -> None:
        import fcntl
        import pty
        import termios

        self._ours, theirs = pty.openpty()
        fcntl.ioctl(theirs, termios.TIOCSWINSZ, struct.pack("HHHH", 40, 120, 0, 0))
        self.process = subprocess.Popen(
            arguments, env=environment(), stdout=subprocess.DEVNULL, stderr=theirs
        )
        os.close(theirs)

    def drawn(self) -> Iterator[str]:
        """What is drawn, as it comes, up to the end of the run."""
        with os.fdopen(self._ours, "rb", buffering=0) as stream:
            while True:
                try:
                    some = stream.read(4096)
                except OSError:  # Linux: nobody is at the other end any more
                    return
                if not some:
                    return
                yield some.decode(errors="replace")


@pytest.mark.slow
@pytest.mark.skipif(sys.platform == "win32", reason="no pseudo-terminals")
def test_a_kill_within_a_segment_loses_that_file_alone(tmp_path: Path) -> None:
    manifest = write_manifest(tmp_path / "set", 3, ("one", "two"), seconds=7.0)
    subprocess.run(
        command(manifest, tmp_path / "reference_run", "--quiet"),
        env=environment(),
        check=True,
        capture_output=True,
    )
    out = tmp_path / "out"
    terminal, seen = Terminal(command(manifest, out)), []
    for text in terminal.drawn():
        seen += SCORED.findall(text)
        if len(rows(out)) == 2 and ("2", "5") in [told[:2] for told in SCORED.findall(text)]:
            terminal.process.send_signal(signal.SIGKILL)  # the second file, its third segment
            break
    assert terminal.process.wait(timeout=60) == -signal.SIGKILL
    # Every segment of the first file was told of, with the time left once it was known.
    assert [told[:2] for told in seen[:5]] == [(str(k), "5") for k in range(5)]
    assert not seen[0][2]
    assert all(told[2] for told in seen[1:5])
    kept = rows(out)
    assert len(kept) == 2
    assert all(b'"mixture_id": "m0"' in row for row in kept)
    assert not (out / "scores.csv").exists()

    again = subprocess.run(
        command(manifest, out), env=environment(), check=True, capture_output=True, text=True
    )
    assert "2 of 6 pairs of mixture and system are done already" in again.stderr
    assert rows(out)[:2] == kept
    assert len(rows(out)) == 6
    for name in (*TABLES, *(f"frames/m{k}.npz" for k in range(3))):
        assert (out / name).read_bytes() == (tmp_path / "reference_run" / name).read_bytes(), name
