"""Options of a scoring as one flat mapping: of Python's keywords, ``--config`` and settings.json.

Some are settings of :class:`torch_mapss.MAPSS` (:func:`scorer_of`), the others say what is scored
and how (:class:`Request`).
"""

from __future__ import annotations

import difflib
import inspect
import os
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, NamedTuple

from torch_mapss.evaluation import io

if TYPE_CHECKING:
    import torch

    from torch_mapss.pipeline.mapss import MAPSS

CHANNELS = ("mean", "each")
#: Options of the banks of distortions, which scorer_of makes.
BANKS = ("bank_size", "only", "without", "seed")


class Request(NamedTuple):
    """What is scored and how, beside the settings of the scorer."""

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

    def checked(self) -> Request:
        """Itself, ``measures`` as a tuple.

        Raises:
            TypeError, ValueError: a value out of its range; names the option.
        """
        from torch_mapss.bounds.frames import CONVENTIONS, TAILS, check_confidence
        from torch_mapss.core import checks
        from torch_mapss.pipeline.measures import checked_measures

        check_confidence(self.confidence)
        if self.align not in (None, "shift"):
            raise ValueError(
                f"align must be None or 'shift' (remove one constant lag), got {self.align!r}."
            )
        checks.check_choice(self.channels, "channels", CHANNELS)
        if self.bounds_convention is not None:
            checks.check_choice(self.bounds_convention, "bounds_convention", CONVENTIONS)
        checks.check_choice(self.tail, "tail", TAILS)
        for name in ("sample_frames", "excerpts"):
            if getattr(self, name) is not None:
                checks.check_whole(getattr(self, name), name, 1)
        checks.check_real(self.excerpt_seconds, "excerpt_seconds", "[1, inf)")
        if self.excerpts is not None and self.bounds:
            raise ValueError("bounds are for whole clips: leave out bounds or excerpts.")
        if self.channels == "each" and self.bounds:
            raise ValueError('bounds are of one channel: leave out bounds or channels="each".')
        chosen = None if self.measures is None else checked_measures(self.measures)
        return self._replace(measures=chosen)


def option_names() -> tuple[str, ...]:
    """All options there are."""
    from torch_mapss.pipeline.mapss import MAPSS

    keywords = list(inspect.signature(MAPSS).parameters)
    return tuple(dict.fromkeys([*keywords, *BANKS, *Request._fields]))


def checked_options(options: Mapping[str, Any], where: str = "options") -> dict[str, Any]:
    """The options as a dictionary.

    Raises:
        TypeError: a name that is no option; says which one may be meant.
    """
    known = option_names()
    for name in options:
        if name not in known:
            close = difflib.get_close_matches(str(name), known, 1)
            hint = f"; is {close[0]!r} meant?" if close else ""
            raise TypeError(f"{where}: {name!r} is no option{hint} All are: {', '.join(known)}.")
    return dict(options)


def request_of(options: Mapping[str, Any]) -> Request:
    """What is to be scored, checked.

    Raises:
        TypeError, ValueError: an option out of its range.
    """
    own = {name: value for name, value in options.items() if name in Request._fields}
    return Request(**own).checked()


def scorer_of(
    options: Mapping[str, Any], device: torch.device | str | None, mapss: MAPSS | None = None
) -> MAPSS:
    """The scorer that the options ask for, or the one given.

    Args:
        options: those of a :class:`Request` are left alone.
        device: to compute on.
        mapss: to use instead; no options of a scorer may then be given.

    Raises:
        TypeError, ValueError: options that :class:`~torch_mapss.MAPSS` or
            :class:`~torch_mapss.DistortionBank` refuse, or that a given scorer cannot take.
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
    banks = {name: own.pop(name) for name in BANKS if name in own}
    if set(banks) - {"seed"}:
        own = _banks(**banks) | own
    else:
        own |= banks
    own = {"segment": "auto"} | own
    if not own["segment"]:
        own["segment"] = None  # 0 on the command line
    if isinstance(own.get("encoder", ""), str | os.PathLike):
        return MAPSS(device=device, **own)
    made = MAPSS(**own)  # of an encoder that is there already, and moves
    return made if device is None else made.to(device)


def _banks(
    bank_size: int | None = None,
    only: list[str] | None = None,
    without: list[str] | tuple[str, ...] = (),
    seed: int = 0,
) -> dict[str, Any]:
    """Both banks; a family or member that one of them has may be named.

    Raises:
        ValueError: a name that neither has, or nothing is left.
    """
    from torch_mapss.distortions import DistortionBank

    full = {kind: DistortionBank(kind) for kind in ("separation", "match")}
    names = {kind: {*bank.families, *bank.names()} for kind, bank in full.items()}
    for option, given in (("only", only or []), ("without", without)):
        unknown = [name for name in given if not any(name in known for known in names.values())]
        if unknown:
            raise ValueError(
                f"{option} names {', '.join(map(repr, unknown))}, which neither bank has. Families "
                f"are {', '.join(full['match'].families)}; `torch-mapss distortions` lists their "
                "members."
            )
    return {
        f"{kind}_bank": DistortionBank(
            kind,
            only=None if only is None else [name for name in only if name in known],
            without=[name for name in without if name in known],
            seed=seed,
            size=bank_size,
        )
        for kind, known in names.items()
    }


def read_config(path: str | os.PathLike[str]) -> dict[str, Any]:
    """Options of a YAML or JSON file, or those that made results, of their settings.json.

    Raises:
        ValueError: it cannot be read, or holds what is no option.
    """
    import yaml

    name = io.shown(path)
    try:
        with open(path, encoding="utf-8-sig") as file:
            found = yaml.safe_load(file)
    except OSError as error:
        raise ValueError(f"--config {name!r} cannot be read: {error.strerror}.") from None
    except (yaml.YAMLError, UnicodeDecodeError) as error:
        cause = " ".join(str(error).split())
        raise ValueError(f"--config {name!r} is neither YAML nor JSON: {cause}.") from None
    if isinstance(found, Mapping) and {"settings", "options"} <= set(found):
        found = found["options"]
    if not isinstance(found, Mapping):
        raise ValueError(f"--config {name!r} must hold lines of `option: value`.")
    try:
        return checked_options(found, name)
    except TypeError as error:
        raise ValueError(str(error)) from None


def chosen_device(
    device: torch.device | str | None, mapss: MAPSS | None, options: Mapping[str, Any]
) -> torch.device | None:
    """The device that is meant; None: where the scorer or encoder that was given is.

    "auto", and None where neither was given, take the fastest there is.
    """
    import torch

    from torch_mapss.core.devices import best_device

    named = mapss is None and isinstance(options.get("encoder", ""), str | os.PathLike)
    if device == "auto" or (device is None and named):
        return best_device()
    return None if device is None else torch.device(device)


def device_of(scorer: MAPSS, device: torch.device | str | None) -> torch.device:
    """Where the waveforms belong: ``device``, or where the encoder's weights are."""
    import torch

    if device is not None:
        return torch.device(device)
    return scorer.config.encoders["encoder"].device
