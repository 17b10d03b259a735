"""Every benchmark starts and says what it can be asked."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

FOLDER = Path(__file__).parent.parent / "benchmarks"


@pytest.mark.slow
@pytest.mark.parametrize("script", sorted(FOLDER.glob("*.py")), ids=lambda path: path.name)
def test_help(script: Path, tmp_path: Path) -> None:
    """In an empty folder, which stays empty: ``--help`` must not be taken for something to do."""
    takes_arguments = "ArgumentParser" in script.read_text(encoding="utf-8")
    command = [sys.executable, str(script), *["--help"] * takes_arguments]
    around = {**os.environ, "PYTHONPATH": str(FOLDER.parent)}
    done = subprocess.run(command, capture_output=True, text=True, cwd=tmp_path, env=around)
    assert done.returncode == 0, done.stderr
    assert ("usage:" in done.stdout) == takes_arguments
    assert not list(tmp_path.iterdir())
