"""``--help`` of the recipes."""

from __future__ import annotations

import subprocess
import sys

import pytest
from recipe_scripts import FOLDER

SCRIPTS = [
    path for path in sorted(FOLDER.glob("*.py")) if "ArgumentParser(" in path.read_text("utf-8")
]
SCRIPTS += [path for path in sorted(FOLDER.glob("score_*.py")) if path not in SCRIPTS]
HEAVY = {"torch", "numpy", "pandas", "matplotlib", "transformers"}


@pytest.mark.parametrize("script", SCRIPTS, ids=lambda script: script.stem)
def test_help_answers_without_loading_torch(script):
    command = [sys.executable, "-X", "importtime", str(script), "--help"]
    finished = subprocess.run(command, capture_output=True, text=True, check=True)
    if script.stem != "dataset_scoring":  # what the scripts for single sets share: no command
        assert finished.stdout.startswith("usage: ")
    loaded = {line.rpartition("|")[2].strip() for line in finished.stderr.splitlines()}
    assert "argparse" in loaded  # the list is read as meant
    assert not loaded & HEAVY
