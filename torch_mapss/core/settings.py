"""Settings of a diffusion map, checked once and passed on as one record."""

from __future__ import annotations

from typing import NamedTuple, TypedDict

import torch
from typing_extensions import Unpack

from torch_mapss.core import checks

MAP_CONVENTIONS = ("paper", "reference")  # of the map, and so of PS and PM
# Of the eigendecomposition alone, by name; everything else is float64.
PRECISIONS = {"float64": torch.float64, "float32": torch.float32}


class MapOptions(TypedDict, total=False):
    """Keyword arguments of every function that makes a diffusion map."""

    alpha: float  # density exponent of the kernel in [0, 1]; 1 removes the sampling density
    time: float  # diffusion time t, positive
    energy: float  # share τ of the eigenvalue sum that is retained, in (0, 1]
    convention: str  # "paper" as printed, or "reference" as the released implementation
    max_dimension: int | None  # the most coordinates to retain; None leaves it to energy
    eigh: str  # precision of the eigendecomposition alone, "float64" or "float32"


class MapSettings(NamedTuple):
    """Settings of a diffusion map; :class:`MapOptions` explains the fields."""

    alpha: float = 1.0
    time: float = 1.0
    energy: float = 0.99
    convention: str = "paper"
    max_dimension: int | None = None
    eigh: str = "float64"


def map_settings(**options: Unpack[MapOptions]) -> MapSettings:
    """Checked settings of a diffusion map.

    Raises:
        TypeError: an option is unknown, or not a number.
        ValueError: an option is out of range.
    """
    return checked(MapSettings(**options))


def checked(settings: MapSettings) -> MapSettings:
    """Check the settings and return them; TypeError or ValueError if one is out of range."""
    checks.check_choice(settings.convention, "convention", MAP_CONVENTIONS)
    checks.check_choice(settings.eigh, "eigh", tuple(PRECISIONS))
    dimension = settings.max_dimension
    if dimension is not None:
        dimension = checks.check_whole(dimension, "max_dimension", 1)
    kernel = "It is the density exponent of the kernel: 1 removes the sampling density."
    share = "It is the share of the eigenvalue sum that is retained; 0.99 is the paper's value."
    return settings._replace(
        alpha=checks.check_real(settings.alpha, "alpha", "[0, 1]", kernel),
        time=checks.check_real(settings.time, "time", "(0, inf)", "It counts diffusion steps."),
        energy=checks.check_real(settings.energy, "energy", "(0, 1]", share),
        max_dimension=dimension,
    )
