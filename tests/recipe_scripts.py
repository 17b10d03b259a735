"""Recipes as modules, and voices made up for them."""

from __future__ import annotations

import importlib
import math
import sys
from pathlib import Path

import soundfile
import torch
from torch import Tensor

FOLDER = Path(__file__).parent.parent / "recipes"
EXPERIMENTS = FOLDER / "experiments"
RATE = 16000

sys.path += [str(FOLDER), str(EXPERIMENTS)]  # scripts find their neighbours as when they are run
recipe = importlib.import_module


def voice(pitch: float, seed: int, seconds: float = 0.6) -> Tensor:
    """A swelling tone with overtones and a little noise."""
    generator = torch.Generator().manual_seed(seed)
    clock = torch.arange(int(RATE * seconds)) / RATE
    tone = sum((math.tau * k * pitch * clock).sin() / k for k in range(1, 6))
    swell = 0.2 + (math.tau * 3 * clock + seed).sin().square()
    return 0.1 * swell * tone + 0.002 * torch.randn(len(clock), generator=generator)


def write(path: Path, wave: Tensor, rate: int = RATE, channels: int = 1) -> None:
    """A file, and the folders above it."""
    path.parent.mkdir(parents=True, exist_ok=True)
    soundfile.write(path, wave.unsqueeze(-1).expand(-1, channels).numpy(), rate)
