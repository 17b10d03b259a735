"""How far a score may be off."""

from __future__ import annotations

from typing import NamedTuple

from torch import Tensor


class Bounds(NamedTuple):
    """How far a score may be off; 0 where the score is undefined."""

    radius: Tensor  # (..., S') truncation error, deterministic
    tail: Tensor  # (..., S') finite-sample half-width at the requested confidence
    total: Tensor  # (..., S') radius + tail

    @classmethod
    def of(cls, radius: Tensor, tail: Tensor) -> Bounds:
        """Bounds from the two errors, with their sum."""
        return cls(radius, tail, radius + tail)
