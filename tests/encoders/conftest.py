"""Checkpoint folders shared by the tests of encoders."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from checkpoints import write_checkpoint, write_whisper


@pytest.fixture(scope="session")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Callable[..., Path]:
    """Checkpoint folders by what is in them, each written once and never changed."""
    written: dict[str, Path] = {}

    def get(family: str = "hubert", large: bool = False, **options: Any) -> Path:
        key = f"{family}-{large}-{sorted(options.items())}"
        if key not in written:
            written[key] = path = tmp_path_factory.mktemp("checkpoint")
            if family == "whisper":
                write_whisper(path, **options)
            else:
                write_checkpoint(path, family, large, **options)
        return written[key]

    return get
