"""Checkpoint folders shared by the tests of encoders."""

from __future__ import annotations

import functools
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from checkpoints import write_checkpoint, write_whisper


@pytest.fixture(scope="session")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Callable[..., Path]:
    """Checkpoint folders by what is in them, each written once and never changed."""

    @functools.cache
    def get(family: str = "hubert", large: bool = False, **options: Any) -> Path:
        path = tmp_path_factory.mktemp("checkpoint")
        if family == "whisper":
            write_whisper(path, **options)
        else:
            write_checkpoint(path, family, large, **options)
        return path

    return get


@pytest.fixture
def own_folder(folder: Callable[..., Path], tmp_path: Path) -> Callable[..., Path]:
    """A copy that a test may damage."""
    return lambda *args, **options: shutil.copytree(folder(*args, **options), tmp_path / "own")
