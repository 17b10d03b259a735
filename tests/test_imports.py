"""The arrows between the rooms, and what importing the package costs."""

from __future__ import annotations

import ast
import subprocess
import sys
from pathlib import Path

import pytest

import torch_mapss

PACKAGE = Path(torch_mapss.__file__).parent
HEAVY = ("transformers", "matplotlib", "torchaudio", "soundfile", "lightning", "torchmetrics")

# What each room may import at its top; the arrows of the package's front page.
ALLOWED = {
    # tools of all
    "_autograd": set(),
    "_checks": set(),
    "_devices": set(),
    "_effective": set(),
    "_files": set(),
    "_linalg": set(),
    # embeddings -> scores
    "special": {"_autograd", "_devices"},
    "manifold": {"_autograd", "_checks", "_devices", "_linalg"},
    "measures": {"_autograd", "_checks", "manifold", "special"},
    "aggregate": {"_checks"},
    "functional": {"_checks", "aggregate", "bounds", "manifold", "measures", "special"},
    # embeddings -> errors of the scores
    "bootstrap": {"manifold", "measures", "special"},
    "_schur": {"manifold", "measures"},
    "_match_error": {"_schur", "bootstrap", "manifold", "measures", "special"},
    "_separation_error": {
        *("_effective", "_linalg", "_schur", "bootstrap", "manifold", "measures"),
    },
    "bounds": {
        *("_checks", "_match_error", "_schur", "_separation_error", "manifold", "measures"),
    },
    "utterance": {"_checks", "aggregate", "bounds"},
    "correlation": {"_checks", "_effective", "bootstrap", "bounds"},
    "diagnostics": {
        *("_checks", "_effective", "_match_error", "bootstrap", "manifold", "measures", "special"),
    },
    # waveforms -> embeddings -> scores
    "audio": {"_checks", "_devices"},
    "distortions": {"_devices"},
    "encoders": {"_checks"},
    "records": {"aggregate"},
    "_batches": {"_checks", "audio"},
    "_frames": {"_checks", "records"},
    "_prepare": {"_checks", "audio", "distortions", "encoders", "records"},
    "pipeline": {
        *("_batches", "_checks", "_devices", "_frames", "_prepare"),
        *("audio", "distortions", "encoders", "manifold", "measures", "records"),
    },
    # training
    "losses": {
        *("_batches", "_checks", "_prepare", "audio", "encoders", "pipeline", "records"),
    },
    "_shared_batch": {"aggregate", "encoders", "pipeline", "records"},
    "_metric_base": {
        *("_checks", "_devices", "_shared_batch", "aggregate"),
        *("bounds", "encoders", "pipeline", "records"),
    },
    "metrics": {"_checks", "_metric_base", "_shared_batch", "pipeline"},
    "curriculum": {"_checks", "records"},
    "lightning": {"_checks", "_shared_batch", "bounds", "curriculum", "pipeline"},
    # files and the command line
    "_clips": {"_checks", "_files", "audio"},
    "report": {
        *("_checks", "_clips", "_files", "aggregate", "audio", "bounds", "records", "utterance"),
    },
    "plots": {"_clips", "_files"},
    "manifest": {"_clips", "_files", "report"},
    "demo": {"_files", "audio", "plots", "report"},
    "cli": {"_files"},
    "__main__": {"cli"},
    "__init__": set(),
}
NEVER = {
    "losses": {"bounds", "functional", "report", "plots", "cli", "metrics"},
    "pipeline": {"bounds", "losses", "metrics", "report"},
    "metrics": {"report", "cli", "losses"},
}


def files(room: str) -> list[Path]:
    """The modules of a room: one file, or all files of a folder."""
    folder = PACKAGE / room
    return sorted(folder.glob("*.py")) if folder.is_dir() else [PACKAGE / f"{room}.py"]


def imported(room: str) -> set[str]:
    """Other rooms that a room imports outside of its functions."""
    found: set[str] = set()
    nodes = [node for path in files(room) for node in ast.parse(path.read_text("utf-8")).body]
    for node in nodes:
        if isinstance(node, ast.ImportFrom) and not node.level and node.module:
            if node.module == "torch_mapss":
                found |= {alias.name for alias in node.names}
            elif node.module.startswith("torch_mapss."):
                found.add(node.module.split(".")[1])
    return found - {room}


@pytest.mark.parametrize("room", ALLOWED)
def test_stages_import_only_what_is_below_them(room):
    assert imported(room) <= ALLOWED[room]
    for path in files(room):  # a folder's own files are the only ones imported relatively
        if path.parent == PACKAGE:
            assert "from ." not in path.read_text("utf-8")


def test_every_room_has_its_arrows():
    rooms = {path.stem for path in PACKAGE.glob("*.py")}
    assert set(ALLOWED) == rooms | {path.parent.name for path in PACKAGE.glob("*/__init__.py")}


@pytest.mark.parametrize("room", NEVER)
def test_losses_never_reach_bounds(room):
    seen, waiting = set(), {room}
    while waiting:
        here = waiting.pop()
        seen.add(here)
        waiting |= imported(here) - seen
    assert not seen & NEVER[room]


def run(code: str) -> str:
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    return done.stdout


def test_importing_the_package_loads_nothing_heavy():
    loaded = run(
        "import torch_mapss, sys; from torch_mapss import functional, MAPSS; "
        f"print([m for m in {HEAVY!r} if m in sys.modules])"
    )
    assert loaded.strip() == "[]"


def test_every_public_name_exists():
    for name in torch_mapss.__all__:
        assert getattr(torch_mapss, name) is not None
    assert set(torch_mapss.__all__) <= set(dir(torch_mapss))
    with pytest.raises(AttributeError, match="no attribute 'nothing'"):
        torch_mapss.nothing  # noqa: B018


def test_the_package_imports_without_optional_packages():
    missing = ("torchaudio", "matplotlib", "transformers", "soundfile", "lightning")
    code = (
        f"import sys; sys.modules.update(dict.fromkeys({missing!r}))\n"
        "import torch, torch_mapss\n"
        "scores = torch_mapss.MAPSS('mel')(torch.randn(2, 4000), torch.randn(2, 4000))\n"
        "print(tuple(scores.ps.shape))"
    )
    assert run(code).strip() == "(1, 2, 12)"
