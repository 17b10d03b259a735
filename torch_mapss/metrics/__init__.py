"""PS and PM as torchmetrics metrics: one batch scored once for all of them."""

from __future__ import annotations

from torch_mapss.metrics.perceptual import (
    PerceptualMatch,
    PerceptualSeparation,
    perceptual_match,
    perceptual_separation,
)

__all__ = [
    "PerceptualMatch",
    "PerceptualSeparation",
    "perceptual_match",
    "perceptual_separation",
]
