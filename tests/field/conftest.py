"""What the edge cases share: one quick scorer, and the helpers of the folder above."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from edge import small

from torch_mapss import MAPSS


@pytest.fixture(scope="session")
def mapss() -> MAPSS:
    """The embedded encoder with six distortions of each bank."""
    return small()
