"""Options of a scoring as one flat mapping: of Python's keywords, ``--config`` and settings.json.

Some are arguments of :class:`torch_mapss.MAPSS` (:func:`scorer_of`), the others say what is scored
and how (:class:`Request`): a new one is a field there, or an argument of MAPSS.
"""

from __future__ import annotations

import difflib
import inspect
import math
import os
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

from torch_mapss.evaluation import io

if TYPE_CHECKING:
    import torch

    from torch_mapss.distortions import DistortionBank
    from torch_mapss.pipeline.mapss import MAPSS

_BANKS = ("bank_size", "only", "without", "seed")  # of the banks, which scorer_of makes


class Request(NamedTuple):
    """What is scored and how, apart from the settings of the scorer."""

    measures: tuple[str, ...] | None = None  # None: all
    permute: bool = False  # find the reference of each estimate by SI-SDR
    trim: bool = False  # cut all signals to the shortest
    align: str | None = None  # "shift": remove one constant lag per estimate
    channels: str = "mean"  # "each": score every channel and average the scores
    sample_frames: int | None = None  # at most so many frames of each mixture
    excerpts: int | None = None  # score so many excerpts of each mixture instead of all of it
    excerpt_seconds: float = 6.0
    bounds: bool = False  # error bounds of the scores as well
    confidence: float = 0.95  # of the bounds' half-widths
    bounds_convention: str | None = None  # None: that of the scores
    tail: str = "concentration"  # of the bounds; or "bootstrap"

    def scored(self, seconds: float) -> float:
        """How much of a mixture of so many seconds is scored."""
        drawn = math.inf if self.excerpts is None else self.excerpts * self.excerpt_seconds
        return min(seconds, drawn)


def option_names() -> dict[str, None]:
    """All that may be given, in order."""
    from torch_mapss.pipeline.mapss import MAPSS

    return dict.fromkeys([*inspect.signature(MAPSS).parameters, *_BANKS, *Request._fields])


def checked_options(options: Mapping[str, Any], where: str = "options") -> dict[str, Any]:
    """The options as a dictionary; TypeError for a name that is none, with what may be meant."""
    known = option_names()
    for name in (name for name in options if name not in known):
        close = difflib.get_close_matches(str(name), known, 1)
        hint = f"; is {close[0]!r} meant?" if close else "."
        raise TypeError(f"{where}: {name!r} is no option{hint} All are: {', '.join(known)}.")
    return dict(options)


def request_of(options: Mapping[str, Any]) -> Request:
    """What is to be scored, checked; ``measures`` as a tuple."""
    from torch_mapss.bounds.settings import CONVENTIONS, TAILS, check_confidence
    from torch_mapss.core import checks
    from torch_mapss.pipeline.measures import checked_measures

    made = Request(**{name: options[name] for name in Request._fields if name in options})
    check_confidence(made.confidence)
    choices: dict[str, Any] = {"channels": ("mean", "each"), "align": (None, "shift")}
    choices |= {"tail": TAILS, "bounds_convention": (None, *CONVENTIONS)}
    for name, allowed in choices.items():
        checks.check_choice(getattr(made, name), name, allowed)
    for name in ("sample_frames", "excerpts"):
        if getattr(made, name) is not None:
            checks.check_whole(getattr(made, name), name, 1)
    checks.check_real(made.excerpt_seconds, "excerpt_seconds", "[1, inf)")
    if made.bounds and (made.excerpts is not None or made.channels == "each"):
        raise ValueError(
            'bounds are of whole clips and one channel: leave out bounds, or excerpts and "each".'
        )
    measures = None if made.measures is None else checked_measures(made.measures)
    return made._replace(measures=measures)


def scorer_of(
    options: Mapping[str, Any], device: torch.device | str | None, mapss: MAPSS | None = None
) -> MAPSS:
    """The scorer that the options ask for, or the one given, which takes none.

    Raises:
        TypeError, ValueError: what :class:`~torch_mapss.MAPSS` or
            :class:`~torch_mapss.DistortionBank` refuse.
    """
    from torch_mapss.pipeline.mapss import MAPSS

    own = {name: value for name, value in options.items() if name not in Request._fields}
    if mapss is not None:
        if own:
            raise ValueError(
                f"{', '.join(sorted(own))} cannot be applied to a MAPSS that is already made. Set "
                "them there, or leave mapss out."
            )
        return mapss if device is None else mapss.to(device)
    if {"bank_size", "only", "without"} & set(own):
        own = _banks(**{name: own.pop(name) for name in _BANKS if name in own}) | own
    own["segment"] = own.get("segment", "auto") or None  # 0: whole
    made = MAPSS(**own)
    return made if device is None else made.to(device)


def _banks(
    bank_size: int | None = None,
    only: str | Sequence[str] | None = None,
    without: str | Sequence[str] = (),
    seed: int = 0,
) -> dict[str, DistortionBank]:
    """Both banks; a family or member that one of them has may be named, or several."""
    from torch_mapss.distortions import DistortionBank

    only = [only] if isinstance(only, str) else only
    without = [without] if isinstance(without, str) else without
    full = {kind: DistortionBank(kind) for kind in ("separation", "match")}
    names = {kind: {*bank.families, *bank.names()} for kind, bank in full.items()}
    found = {}
    for kind, known in names.items():
        others = set().union(*names.values()) - known  # are no concern of this bank
        chosen = None if only is None else [name for name in only if name not in others]
        left_out = [name for name in without or () if name not in others]
        found[f"{kind}_bank"] = DistortionBank(
            kind, only=chosen, without=left_out, seed=seed, size=bank_size
        )
    return found


def read_config(path: str | os.PathLike[str]) -> dict[str, Any]:
    """Options of a YAML or JSON file, or those that made results, of their settings.json."""
    import yaml

    name = f"--config {io.shown(path)!r}"
    try:
        with open(path, encoding="utf-8-sig") as file:
            found = yaml.safe_load(file)
    except OSError as error:
        raise ValueError(f"{name} cannot be read: {error.strerror}.") from None
    except (yaml.YAMLError, UnicodeDecodeError) as error:
        cause = " ".join(str(error).split())
        raise ValueError(f"{name} is neither YAML nor JSON: {cause}.") from None
    if isinstance(found, Mapping) and {"settings", "options"} <= set(found):
        found = found["options"]
    if not isinstance(found, Mapping):
        raise ValueError(f"{name} must hold lines of `option: value`.")
    return checked_options(found, name)
