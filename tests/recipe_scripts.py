"""Recipes as modules, and audio files for them."""

from __future__ import annotations

import importlib
import sys
from pathlib import Path

import soundfile
from torch import Tensor
from waveforms import RATE

FOLDER = Path(__file__).parent.parent / "recipes"
EXPERIMENTS = FOLDER / "experiments"

sys.path += [str(FOLDER), str(EXPERIMENTS)]  # scripts find their neighbours as when they are run
recipe = importlib.import_module


def write(path: Path, wave: Tensor, rate: int = RATE, channels: int = 1) -> None:
    """A file, and the folders above it."""
    path.parent.mkdir(parents=True, exist_ok=True)
    soundfile.write(path, wave.unsqueeze(-1).expand(-1, channels).numpy(), rate)
