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
    "_checks": set(),
    "aggregate": {"_checks"},
    "_devices": set(),
    "special": {"_devices"},
    "audio": {"_checks", "_devices"},
    "_linalg": set(),
    "manifold": {"_checks", "_devices", "_linalg"},
    "measures": {"_checks", "manifold", "special"},
    "functional": {"_checks", "aggregate", "bounds", "manifold", "measures", "special"},
    "records": {"aggregate"},
    "_batches": {"_checks", "audio"},
    "_frames": {"_checks", "records"},
    "_prepare": {"audio", "distortions", "encoders", "records"},
}
NEVER = {
    "losses": {"bounds", "functional", "report", "plots", "cli", "metrics"},
    "pipeline": {"bounds", "losses", "metrics", "report"},
    "metrics": {"report", "cli", "losses"},
}


def imported(path: Path) -> set[str]:
    """First-level rooms of the package that a module imports outside of its functions."""
    found: set[str] = set()
    for node in ast.parse(path.read_text(encoding="utf-8")).body:
        if isinstance(node, ast.ImportFrom) and node.module:
            if node.module == "torch_mapss":
                found |= {alias.name for alias in node.names}
            elif node.module.startswith("torch_mapss."):
                found.add(node.module.split(".")[1])
    return found


@pytest.mark.parametrize("room", ALLOWED)
def test_stages_import_only_what_is_below_them(room):
    assert imported(PACKAGE / f"{room}.py") <= ALLOWED[room]


@pytest.mark.parametrize("room", NEVER)
def test_losses_never_reach_bounds(room):
    seen, waiting = set(), {room}
    while waiting:
        here = waiting.pop()
        seen.add(here)
        path = PACKAGE / f"{here}.py"
        waiting |= imported(path) - seen if path.exists() else set()
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
