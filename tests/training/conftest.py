"""References for the tests of the losses."""

from __future__ import annotations

import pytest
from torch import Tensor
from waveforms import voices


@pytest.fixture
def references() -> Tensor:
    """Three mixtures of two sources, 0.3 s."""
    return voices(3, 2, 4800)
