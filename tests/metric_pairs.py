"""The metric classes, and the function of each."""

from __future__ import annotations

import pytest

from torch_mapss import Bleed, Clearance, Fidelity, PerceptualMatch, PerceptualSeparation
from torch_mapss.metrics import (
    bleed,
    clearance,
    fidelity,
    perceptual_match,
    perceptual_separation,
)

FUNCTIONS = {
    PerceptualSeparation: perceptual_separation,
    PerceptualMatch: perceptual_match,
    Clearance: clearance,
    Fidelity: fidelity,
    Bleed: bleed,
}
#: Of a single number that is defined wherever two sources are active.
each_metric = pytest.mark.parametrize(
    "metric_class", [PerceptualSeparation, PerceptualMatch, Clearance, Fidelity]
)
