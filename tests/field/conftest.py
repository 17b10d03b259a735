"""What the edge cases share: one quick scorer, and the helpers of the folder above."""

from __future__ import annotations

import pytest
from edge import small

from torch_mapss import MAPSS


@pytest.fixture(scope="session")
def mapss() -> MAPSS:
    """The embedded encoder with six distortions of each bank."""
    return small()
