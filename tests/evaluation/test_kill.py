"""``torch-mapss evaluate`` ended with SIGKILL at random moments, and started again."""

from __future__ import annotations

import json
import random
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
from separations import environment, write_manifest

TABLES = ("scores.csv", "items.csv", "summary.csv")
MIXTURES = 4


def command(manifest: Path, out: Path) -> subprocess.Popen[bytes]:
    return subprocess.Popen(
        [sys.executable, "-m", "torch_mapss", "evaluate", str(manifest), "--out", str(out)]
        + ["--encoder", "mel", "--bank-size", "6", "--segment", "1.5", "--quiet"],
        env=environment(),
        stdout=subprocess.DEVNULL,
        stderr=subprocess.PIPE,
    )


def finish(manifest: Path, out: Path) -> None:
    process = command(manifest, out)
    _, errors = process.communicate(timeout=300)
    assert process.returncode == 0, errors.decode(errors="replace")


def finished_rows(out: Path) -> set[tuple[str, str]]:
    """The pairs of mixture and system that are scored."""
    files = (out / "progress").glob("[!.]*.json")
    return {(file.stem, system) for file in files for system in json.loads(file.read_bytes())}


def seconds_of_work(manifest: Path, out: Path) -> tuple[float, float]:
    """When the first row of a run is on the disk, and when the run ends."""
    started, first = time.monotonic(), None
    process = command(manifest, out)
    while process.poll() is None:
        if first is None and finished_rows(out):
            first = time.monotonic() - started
        time.sleep(0.002)
    assert process.returncode == 0
    whole = time.monotonic() - started
    return first or whole, whole


def killed(manifest: Path, out: Path, rows: int, pause: float) -> bool:
    """Run until there are ``rows`` more rows and a pause is over, then kill; False if it ended."""
    wanted = len(finished_rows(out)) + rows
    process = command(manifest, out)
    deadline = time.monotonic() + 300
    while process.poll() is None and time.monotonic() < deadline:
        if len(finished_rows(out)) >= wanted:
            break
        time.sleep(0.001)
    time.sleep(pause)
    process.send_signal(signal.SIGKILL)
    process.communicate()
    return process.returncode == -signal.SIGKILL


@pytest.mark.slow
@pytest.mark.parametrize(("kills", "seconds"), [(3, 0.3), (3, 7.0), (20, 0.3)])
def test_kills_at_random_moments_change_nothing(tmp_path: Path, kills: int, seconds: float) -> None:
    """Also within the segments of longer files."""
    chance = random.Random(kills)
    manifest = write_manifest(tmp_path / "set", MIXTURES, ("one", "two"), seconds)
    before, whole = seconds_of_work(manifest, tmp_path / "reference_run")
    each = (whole - before) / (2 * MIXTURES)  # a row takes about as long
    found, run = 0, 0
    while found < kills:
        # A run takes as many kills as it has rows to give; then the next one begins.
        out = tmp_path / f"out{run}"
        run += 1
        while found < kills and len(finished_rows(out)) < 2 * MIXTURES:
            # While the program loads, within a row, or between two of them.
            loading = chance.random() < 0.25
            pause = chance.uniform(0.0, before if loading else 2.0 * each)
            kept = finished_rows(out)
            found += killed(manifest, out, 0 if loading else 1, pause)
            assert finished_rows(out) >= kept
        finish(manifest, out)
        frames = [f"frames/m{place}.npz" for place in range(MIXTURES)]
        for name in (*TABLES, *frames, "mixtures.json"):
            assert (out / name).read_bytes() == (tmp_path / "reference_run" / name).read_bytes()
