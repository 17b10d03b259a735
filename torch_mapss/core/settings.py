"""Settings of a diffusion map, checked once and handed on as one record."""

from __future__ import annotations

from typing import NamedTuple

import torch

from torch_mapss.core import checks

CONVENTIONS = ("paper", "reference")  # of the map, and so of every measure
PRECISIONS = ("float64", "float32")  # of the eigendecomposition


class Settings(NamedTuple):
    """How points become a map; see :func:`diffusion_map` for the meaning of each."""

    alpha: float = 1.0
    time: float = 1.0
    energy: float = 0.99
    convention: str = "paper"
    max_dimension: int | None = None
    eigh: str = "float64"

    @property
    def precision(self) -> torch.dtype:
        """Of the eigendecomposition; everything else is float64."""
        return torch.float32 if self.eigh == "float32" else torch.float64


def map_settings(
    alpha: float,
    time: float,
    energy: float,
    convention: str,
    max_dimension: int | None = None,
    eigh: str = "float64",
) -> Settings:
    """The settings of a diffusion map, checked.

    Raises:
        TypeError: one is no number.
        ValueError: one is out of its range.
    """
    checks.check_choice(convention, "convention", CONVENTIONS)
    checks.check_choice(eigh, "eigh", PRECISIONS)
    for name, value in (("alpha", alpha), ("energy", energy)):
        checks.check_real(value, name)
    if not 0.0 <= alpha <= 1.0:
        raise ValueError(
            f"alpha must lie in [0, 1], got {alpha}. It is the density exponent of the kernel: "
            "1 removes the sampling density, 0 keeps it."
        )
    if checks.check_real(time, "time") <= 0.0:
        raise ValueError(f"time must be a positive number of diffusion steps, got {time}. Use 1.")
    if not 0.0 < energy <= 1.0:
        raise ValueError(
            f"energy must lie in (0, 1], got {energy}. It is the share of the eigenvalue sum "
            "that the kept coordinates reach; 0.99 is the paper's value."
        )
    if max_dimension is not None:
        max_dimension = checks.check_whole(max_dimension, "max_dimension", 1)
    return Settings(alpha, time, energy, convention, max_dimension, eigh)
