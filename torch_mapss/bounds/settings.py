"""Settings of a bound, checked once and passed on as one record."""

from __future__ import annotations

import difflib
import math
from collections.abc import Mapping
from typing import Any, NamedTuple

from torch_mapss.core import checks
from torch_mapss.core.settings import MAP_CONVENTIONS

#: Conventions of the bounds of frames.
CONVENTIONS = (*MAP_CONVENTIONS, "derived")
#: Conventions of the bounds of utterances and correlations, which the reference does not have.
POOLED_CONVENTIONS = ("paper", "derived")
TAILS = ("concentration", "bootstrap")


class BoundSettings(NamedTuple):
    """Settings of a bound, as explained in :func:`torch_mapss.bounds.separation_bounds`."""

    confidence: float = 0.95
    convention: str = "paper"
    tail: str = "concentration"
    n_eff: float | str = 0.7
    c: float = 1.0
    c1: float = 1.0
    c2: float = 1.0
    floor: float = 0.05
    cap: float = 0.5
    draws: int = 200
    seed: int = 0


def named_settings(confidence: float, convention: str, options: Mapping[str, Any]) -> BoundSettings:
    """Checked settings for a call that takes them by name.

    Raises:
        TypeError: an option is unknown, or has the wrong type.
        ValueError: an option is out of range.
    """
    names = BoundSettings._fields[2:]
    for name in options:
        if name not in names:
            similar = difflib.get_close_matches(name, names, n=1)
            hint = f"; did you mean {similar[0]!r}?" if similar else "."
            raise TypeError(f"bounds have no option {name!r}{hint} They take {', '.join(names)}.")
    return checked(BoundSettings(confidence, convention, **options))


def check_confidence(confidence: float) -> float:
    """``confidence``; TypeError unless it is a number, ValueError unless it lies in (0, 1)."""
    why = "It is the share of cases the interval should cover, e.g. 0.95 (not 95)."
    return checks.check_real(confidence, "confidence", "(0, 1)", why)


def checked(settings: BoundSettings) -> BoundSettings:
    """Check the settings and return them; TypeError or ValueError if one is out of range."""
    checks.check_choice(settings.convention, "convention", CONVENTIONS)
    checks.check_choice(settings.tail, "tail", TAILS)
    values: dict[str, Any] = {"confidence": check_confidence(settings.confidence)}
    if isinstance(settings.n_eff, str):
        checks.check_choice(settings.n_eff, "n_eff", ("bartlett",))
    else:
        share = "It is a share, or 'bartlett'."
        values["n_eff"] = checks.check_real(settings.n_eff, "n_eff", "(0, 1]", share)
    for name in ("c", "c1", "c2", "cap"):
        if name != "cap" or settings.cap != math.inf:
            values[name] = checks.check_real(getattr(settings, name), name, "(0, inf)")
    why = "It is the share of the largest eigenvalue added to the least one; the paper takes 0.05."
    values["floor"] = checks.check_real(settings.floor, "floor", "(0, 1]", why)
    values["draws"] = checks.check_whole(settings.draws, "draws", 1)
    values["seed"] = checks.check_seed(settings.seed)
    return settings._replace(**values)
