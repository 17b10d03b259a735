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

MIXTURES = 4
FILES = ("scores.csv", "items.csv", "summary.csv", "mixtures.json")


def started(manifest: Path, out: Path) -> subprocess.Popen[bytes]:
    return subprocess.Popen(
        [sys.executable, "-m", "torch_mapss", "evaluate", str(manifest), "--out", str(out)]
        + ["--encoder", "mel", "--bank-size", "6", "--segment", "1.5", "--quiet"],
        env=environment(),
        stdout=subprocess.DEVNULL,
        stderr=subprocess.PIPE,
    )


def finished_rows(out: Path) -> set[tuple[str, str]]:
    """The pairs of mixture and system that are scored."""
    pairs = set()
    for file in (out / "records").glob("[!.]*.json"):
        pairs |= {(file.stem, system) for system in json.loads(file.read_bytes())["systems"]}
    return pairs


def wait_for_rows(process: subprocess.Popen[bytes], out: Path, count: int) -> float:
    """Seconds until so many rows are on the disk, or the process has ended."""
    begun = time.monotonic()
    while process.poll() is None and time.monotonic() < begun + 300:
        if len(finished_rows(out)) >= count:
            break
        time.sleep(0.001)
    return time.monotonic() - begun


@pytest.mark.slow
@pytest.mark.parametrize(("kills", "seconds"), [(3, 0.3), (3, 7.0), (20, 0.3)])
def test_kills_at_random_moments_change_nothing(tmp_path, kills, seconds):
    """Also within the segments of longer files."""
    chance, once = random.Random(kills), tmp_path / "once"
    manifest = write_manifest(tmp_path / "set", MIXTURES, ("one", "two"), seconds)
    process = started(manifest, once)
    loading = wait_for_rows(process, once, 1)
    begun = time.monotonic()
    process.communicate(timeout=300)
    assert process.returncode == 0
    row = (time.monotonic() - begun) / (2 * MIXTURES)  # takes about as long
    killed, run = 0, 0
    while killed < kills:
        # A run takes as many kills as it has rows to give; then the next one begins.
        out = tmp_path / f"out{run}"
        run += 1
        while killed < kills and len(kept := finished_rows(out)) < 2 * MIXTURES:
            # While the program loads, within a row, or between two of them.
            early = chance.random() < 0.25
            process = started(manifest, out)
            wait_for_rows(process, out, len(kept) + (not early))
            time.sleep(chance.uniform(0.0, loading if early else 2.0 * row))
            process.send_signal(signal.SIGKILL)
            process.communicate()
            killed += process.returncode == -signal.SIGKILL
            assert finished_rows(out) >= kept
        process = started(manifest, out)
        assert process.communicate(timeout=300)[1].decode(errors="replace") == ""
        assert process.returncode == 0
        for name in (
            *FILES,
            *(f"frames/m{mixture_index}.npz" for mixture_index in range(MIXTURES)),
        ):
            assert (out / name).read_bytes() == (once / name).read_bytes()
