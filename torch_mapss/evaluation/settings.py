"""Settings of scoring: the keywords of Python, ``--config`` and the command line.

They are one flat mapping. Some are fields of :class:`ScoringSettings`, the others arguments of
:class:`torch_mapss.MAPSS` or of its banks (:func:`mapss_of`). A new setting is a field there, or an
argument of MAPSS.
"""

from __future__ import annotations

import difflib
import inspect
import math
import operator
import os
import re
from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from typing import TYPE_CHECKING, Any, NamedTuple

from torch_mapss.evaluation import io
from torch_mapss.score_table import ENERGY_MEASURES

if TYPE_CHECKING:
    import torch

    from torch_mapss.distortions import DistortionBank
    from torch_mapss.pipeline.mapss import MAPSS

BANK_SETTINGS = ("bank_size", "only", "without", "seed")  # of the banks that mapss_of makes
#: The settings that name an encoder.
ENCODERS = ("encoder", "match_encoder", "decomposition_encoder")
#: The measures that need the encoder of PS and PM.
ENCODER_MEASURES = ("separation", "match")
# Numbers that YAML 1.1 reads as text, lacking a decimal point or a sign: 1e-3, 9E5, 1.5e3.
_EXPONENT = re.compile(r"[-+]?(\d+\.?\d*|\.\d+)[eE][-+]?\d+")


class ScoringSettings(NamedTuple):
    """Settings of scoring, apart from those of the MAPSS."""

    measures: tuple[str, ...] | None = None  # None: all of the pipeline
    permute: bool = False  # find the reference of each estimate by SI-SDR
    trim: bool = False  # cut all signals to the shortest
    align: str | None = None  # "shift": remove a constant lag per estimate
    channels: str = "mean"  # "each": score every channel and average the scores
    sample_frames: int | None = None  # most frames of each mixture to score
    excerpts: int | None = None  # number of excerpts to score instead of the whole mixture
    excerpt_seconds: float = 6.0
    bounds: bool = False  # error bounds of the scores as well
    confidence: float = 0.95  # of the bounds' half-widths
    bounds_convention: str | None = None  # None: that of the scores
    tail: str = "concentration"  # of the bounds; or "bootstrap"

    def scored(self, seconds: float) -> float:
        """Seconds that are scored of a mixture of ``seconds``."""
        drawn = math.inf if self.excerpts is None else self.excerpts * self.excerpt_seconds
        return min(seconds, drawn)

    @property
    def pipeline_measures(self) -> tuple[str, ...] | None:
        """Measures that MAPSS computes; bleed, the cheapest, if none is asked for."""
        if self.measures is None:
            return None
        computed = tuple(name for name in self.measures if name not in ENERGY_MEASURES)
        return computed or ("bleed",)

    @property
    def shown_measures(self) -> tuple[str, ...] | None:
        """Measures whose scores appear in tables; None: all of the pipeline, and SI-SDR."""
        return None if self.measures is None else (*self.measures, "si_sdr")


def setting_names() -> dict[str, None]:
    """Names of all settings, in order."""
    from torch_mapss.pipeline.mapss import MAPSS

    parameters = inspect.signature(MAPSS).parameters
    return dict.fromkeys([*parameters, *BANK_SETTINGS, *ScoringSettings._fields])


def checked_names(settings: Mapping[str, Any], source: str = "settings") -> dict[str, Any]:
    """The settings as a dictionary.

    Raises:
        TypeError: a name is unknown; the message suggests a similar one.
    """
    names = setting_names()
    for name in settings:
        if name not in names:
            close = difflib.get_close_matches(str(name), names, 1)
            hint = f"; did you mean {close[0]!r}?" if close else "."
            raise TypeError(
                f"{source}: unknown option {name!r}{hint} The options are {', '.join(names)}."
            )
    return {name: _plain_type(value) for name, value in settings.items()}


def _plain_type(value: Any) -> Any:
    """Convert values from pathlib or NumPy to plain types: paths to text, integers to int."""
    if isinstance(value, os.PathLike):
        return os.fspath(value)
    # A loaded encoder has a dtype as well, and no shape.
    if not isinstance(value, bool | str) and getattr(value, "shape", None) == ():
        with suppress(TypeError):
            return operator.index(value)
        return value.item()
    return value


def checked_measures(measures: str | Iterable[str]) -> tuple[str, ...]:
    """Names of measures, the energy ratios among them; see the function of the pipeline."""
    from torch_mapss.pipeline import measures as pipeline

    return pipeline.checked_measures(measures, ENERGY_MEASURES)


def scoring_settings(settings: Mapping[str, Any]) -> ScoringSettings:
    """Checked settings of scoring."""
    from torch_mapss.bounds.settings import CONVENTIONS, TAILS, check_confidence
    from torch_mapss.core import checks

    fields = ScoringSettings._fields
    checked = ScoringSettings(**{name: settings[name] for name in fields if name in settings})
    changes: dict[str, Any] = {"confidence": check_confidence(checked.confidence)}
    choices: dict[str, Any] = {"channels": ("mean", "each"), "align": (None, "shift")}
    choices |= {"tail": TAILS, "bounds_convention": (None, *CONVENTIONS)}
    for name, allowed in choices.items():
        checks.check_choice(getattr(checked, name), name, allowed)
    for name in ("permute", "trim", "bounds"):
        if getattr(checked, name) not in (False, True):
            raise TypeError(f"{name} must be true or false, got {getattr(checked, name)!r}.")
        changes[name] = bool(getattr(checked, name))
    for name in ("sample_frames", "excerpts"):
        if getattr(checked, name) is not None:
            changes[name] = checks.check_whole(getattr(checked, name), name, 1)
    seconds = checks.check_real(checked.excerpt_seconds, "excerpt_seconds", "[1, inf)")
    changes["excerpt_seconds"] = seconds
    if checked.bounds and (checked.excerpts is not None or checked.channels == "each"):
        raise ValueError(
            "bounds need whole clips and one channel: drop bounds, or drop excerpts and "
            'channels="each".'
        )
    if checked.measures is not None:
        changes["measures"] = checked_measures(checked.measures)
    return checked._replace(**changes)


def mapss_of(
    settings: Mapping[str, Any], device: torch.device | str | None, mapss: MAPSS | None = None
) -> MAPSS:
    """Make the MAPSS for the settings, or return the one passed, which takes no settings.

    Raises:
        TypeError, ValueError: as :class:`~torch_mapss.MAPSS` and
            :class:`~torch_mapss.DistortionBank`.
    """
    from torch_mapss.pipeline.mapss import MAPSS

    fields = ScoringSettings._fields
    arguments = {name: value for name, value in settings.items() if name not in fields}
    if mapss is not None:
        if arguments:
            raise ValueError(
                f"{', '.join(sorted(arguments))} cannot be applied to a MAPSS that is already "
                "made. Set them there, or leave mapss out."
            )
        return mapss if device is None else mapss.to(device)
    if {"bank_size", "only", "without"} & set(arguments):
        bank_settings = {name: arguments.pop(name) for name in BANK_SETTINGS if name in arguments}
        arguments = _banks(**bank_settings) | arguments
    if "measures" in settings:  # an encoder that none of them reads may have other frames
        arguments["measures"] = scoring_settings(settings).pipeline_measures
    segment = arguments.get("segment", "auto")
    arguments["segment"] = None if segment == 0 and segment is not False else segment  # 0: whole
    scorer = MAPSS(**arguments)
    return scorer if device is None else scorer.to(device)


def _banks(
    bank_size: int | None = None,
    only: str | Sequence[str] | None = None,
    without: str | Sequence[str] = (),
    seed: int = 0,
) -> dict[str, DistortionBank]:
    """Banks by argument of MAPSS; a name may be of a family or member of any of them.

    ``bank_size`` applies only to PS and PM; clearance and fidelity keep their default members.
    """
    from torch_mapss.core import checks
    from torch_mapss.distortions import DistortionBank
    from torch_mapss.pipeline.config import distortion_banks

    if bank_size is not None:
        checks.check_whole(bank_size, "bank_size", 1)
    only = [only] if isinstance(only, str) else only
    without = [without] if isinstance(without, str) else without
    kinds = ("separation", "match")
    full = {kind: DistortionBank(kind) for kind in kinds}
    names = {kind: {*bank.families, *bank.names()} for kind, bank in full.items()}
    banks: dict[str, DistortionBank] = {}
    selections: dict[str, dict[str, Any]] = {}
    for kind, other_kind in (kinds, kinds[::-1]):
        # Names that only the other bank has are ignored here.
        elsewhere = names[other_kind] - names[kind]
        left_out = [name for name in without or () if name not in elsewhere]
        kept = None if only is None else [name for name in only if name not in elsewhere]
        selections[kind] = {"only": kept, "without": left_out, "seed": seed}
        banks[f"{kind}_bank"] = DistortionBank(kind, size=bank_size, **selections[kind])
    unlimited = DistortionBank("separation", **selections["separation"])
    decomposition = distortion_banks(unlimited, None, None, seed)["decomposition_bank"]
    return {**banks, "decomposition_bank": decomposition}


def storable(settings: Mapping[str, Any]) -> dict[str, Any] | None:
    """Settings in the form of settings.json; None if some are Python objects."""
    plain = {k: list(v) if isinstance(v, tuple) else v for k, v in settings.items()}
    plain = with_absolute_folders(plain)
    return plain if io.plain(plain) == plain else None


def with_absolute_folders(settings: Mapping[str, Any]) -> dict[str, Any]:
    """Settings with absolute paths, which are valid in any working folder."""
    absolute = dict(settings)
    for name in (*ENCODERS, "cache_dir"):
        folder = absolute.get(name)
        if isinstance(folder, str) and (name == "cache_dir" or os.path.isdir(folder)):
            absolute[name] = os.path.abspath(folder)
    return absolute


def read_config(path: str | os.PathLike[str]) -> dict[str, Any]:
    """Read settings from a YAML or JSON file, or from the settings.json of results."""
    import yaml

    name = f"--config {io.shown(path)!r}"
    try:
        with open(path, encoding="utf-8-sig") as file:
            content = yaml.safe_load(file)
    except OSError as error:
        raise ValueError(f"{name} cannot be read: {error.strerror}.") from None
    except (yaml.YAMLError, UnicodeDecodeError) as error:
        cause = " ".join(str(error).split())
        raise ValueError(f"{name} is neither YAML nor JSON: {cause}.") from None
    if isinstance(content, Mapping) and {"settings", "options"} <= set(content):
        content = content["options"]
    elif isinstance(content, Mapping) and {"settings", "protocol"} <= set(content):
        raise ValueError(
            f"{name} belongs to results that were made with a mapss= of Python, which no options "
            "describe: score in Python with the same MAPSS, or write the options down."
        )
    if not isinstance(content, Mapping):
        raise ValueError(f"{name} must hold lines of `option: value`.")
    return checked_names({key: _number(value) for key, value in content.items()}, name)


def _number(value: Any) -> Any:
    """A number that YAML read as text, see ``_EXPONENT``."""
    if not isinstance(value, str) or not _EXPONENT.fullmatch(value):
        return value
    number = float(value)
    return int(number) if number.is_integer() else number
