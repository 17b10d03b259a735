"""Recipes as modules, and voices made up for them."""

from __future__ import annotations

import importlib.util
import math
import sys
from pathlib import Path
from types import ModuleType

import pytest
import torch
from torch import Tensor

FOLDER = Path(__file__).parent.parent / "recipes" / "experiments"
RATE = 16000


def recipe(name: str, monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    """A script of the folder, which finds its neighbours as when it is run."""
    monkeypatch.syspath_prepend(str(FOLDER))
    spec = importlib.util.spec_from_file_location(name, FOLDER / f"{name}.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    monkeypatch.setitem(sys.modules, name, module)
    spec.loader.exec_module(module)
    return module


def voice(pitch: float, seed: int, seconds: float = 0.6) -> Tensor:
    """A swelling tone with overtones and a little noise."""
    generator = torch.Generator().manual_seed(seed)
    clock = torch.arange(int(RATE * seconds)) / RATE
    tone = sum((math.tau * k * pitch * clock).sin() / k for k in range(1, 6))
    swell = 0.2 + (math.tau * 3 * clock + seed).sin().square()
    return 0.1 * swell * tone + 0.002 * torch.randn(len(clock), generator=generator)


def write(path: Path, wave: Tensor) -> None:
    """A file, and the folders above it."""
    import soundfile

    path.parent.mkdir(parents=True, exist_ok=True)
    soundfile.write(path, wave.numpy(), RATE)
