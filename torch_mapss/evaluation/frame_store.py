"""Frame scores of a mixture on disk: one compressed file for all of its systems.

``frames/MIXTURE.npz`` (NumPy's format, no pickles) holds, F frames and S' estimates of system i:

* ``times`` (F,) float64: seconds, centre of the encoder's receptive field;
* ``systems`` (number,) str: names, in the order i = 0, 1, ...;
* ``"{i}.ps"``, ``"{i}.pm"``, ``"{i}.log_pm"``, ``"{i}.attributed_distance"`` (A),
  ``"{i}.foreign_distance"`` (B) (S', F) float32, NaN in frames that are not scored;
* ``"{i}.pm_rank"`` (S', F) float32, the same, in the conformal convention alone;
* ``"{i}.active"`` (S', F) bool: the frame is scored;
* ``"{i}.attributed"`` (S',) int64: the reference that each estimate was scored against.

The file of a mixture is replaced as a whole with every system that is scored, so that a kill
leaves the old one or the new one.
"""

from __future__ import annotations

import os
import zipfile
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from torch_mapss.evaluation import io as files
from torch_mapss.evaluation.io import file_name
from torch_mapss.evaluation.measures import COLUMNS

if TYPE_CHECKING:
    from torch_mapss.evaluation.report import Report

Floats = NDArray[np.float32]
#: Scores kept for every frame.
FIELDS = ("ps", "pm", "log_pm", "attributed_distance", "foreign_distance")
# Those that a file may be without.
_OPTIONAL = ("pm_rank", "clearance", "fidelity", "bleed_db")


class SystemFrames(NamedTuple):
    """Frame scores of the estimates of one system, NaN where a frame is not scored."""

    ps: Floats  # (S', F) in [0, 1], 1: no leakage
    pm: Floats  # (S', F) in [0, 1], 1: undistorted
    log_pm: Floats  # (S', F) <= 0
    attributed_distance: Floats  # (S', F) A of PS = B/(A + B)
    foreign_distance: Floats  # (S', F) B
    active: NDArray[np.bool_]  # (S', F) the frame is scored
    attributed: NDArray[np.int64]  # (S',) the reference of each estimate
    pm_rank: Floats | None = None  # (S', F) in (0, 1], rank form of PM; None unless conformal
    clearance: Floats | None = None  # (S', F) in [0, 1], 1: no leakage; None: not computed
    fidelity: Floats | None = None  # (S', F) in [0, 1], 1: undistorted
    bleed_db: Floats | None = None  # (S', F) dB, where the own source is silent and another is not

    @property
    def scores(self) -> dict[str, Floats]:
        """The frame scores that there are, by name and in the order of columns."""
        return {
            name: getattr(self, name) for name in COLUMNS if getattr(self, name, None) is not None
        }


class MixtureFrames(NamedTuple):
    """Frame scores of one mixture."""

    times: NDArray[np.float64]  # (F,) seconds, centre of the encoder's receptive field
    systems: Mapping[str, SystemFrames]  # by name


def path_of(folder: str, mixture: str) -> str:
    """Where the frame scores of a mixture lie in a results folder."""
    return os.path.join(folder, "frames", files.native(f"{file_name(mixture)}.npz"))


def of_report(report: Report) -> MixtureFrames:
    """The frames of a report, under the system name ``""``."""
    there = [*FIELDS, *(name for name in _OPTIONAL if getattr(report, name, None) is not None)]
    scores = {name: getattr(report, name).float().numpy() for name in there}
    attributed = np.array(report.attributed, dtype=np.int64)
    frames = SystemFrames(**scores, active=report.active.numpy(), attributed=attributed)
    return MixtureFrames(report.times.double().numpy(), {"": frames})


def write(path: str, frames: MixtureFrames) -> None:
    """Replace the file of a mixture in one step."""
    times = frames.times
    content: dict[str, Any] = {"times": times, "systems": np.array([*frames.systems], dtype=str)}
    for place, system in enumerate(frames.systems.values()):
        for name, values in system._asdict().items():
            if values is not None:
                content[f"{place}.{name}"] = _padded(name, values, len(times))
    files.make_folder(os.path.dirname(path))
    files.write_with(path, lambda name: np.savez_compressed(name, **content))


def _padded(name: str, values: Any, length: int) -> Any:
    """Frames up to ``length``: with ``trim`` the systems of a mixture may differ in theirs."""
    missing = length - values.shape[-1]
    if name == "attributed" or missing == 0:
        return values
    filler = False if name == "active" else np.nan
    return np.pad(values, ((0, 0), (0, missing)), constant_values=filler)


def merged(one: MixtureFrames | None, system: str, other: MixtureFrames | None) -> MixtureFrames:
    """``one`` with a system's frames, the only ones of ``other``; without it where that is None."""
    found = {} if one is None else dict(one.systems)
    times = np.empty(0) if one is None else one.times
    found.pop(system, None)
    if other is not None:
        (found[system],) = other.systems.values()
        times = max(times, other.times, key=len)
    return MixtureFrames(times, found)


class Kept:
    """The frame scores of one mixture in a results folder, written anew with every system."""

    def __init__(self, folder: str, mixture: str) -> None:
        self.path = path_of(folder, mixture)
        self._found = read(self.path) if systems_of(self.path) else None

    def put(self, system: str, report: Report | None) -> None:
        """Keep the frames of a system, or drop them where it failed."""
        made = None if report is None else of_report(report)
        self._found = merged(self._found, system, made)
        write(self.path, self._found)


def systems_of(path: str) -> tuple[str, ...]:
    """The systems whose frames a file holds; none if there is no such file, or it is damaged."""
    try:
        with np.load(path, allow_pickle=False) as content:
            return tuple(content["systems"].tolist())
    except (OSError, KeyError, ValueError, zipfile.BadZipFile):
        return ()


def read(path: str) -> MixtureFrames:
    """The frame scores of a file.

    Raises:
        ValueError: there is no such file, or it holds something else.
    """
    try:
        with np.load(path, allow_pickle=False) as content:
            systems = {
                name: SystemFrames(
                    **{
                        field: content[f"{place}.{field}"]
                        for field in SystemFrames._fields
                        if field not in _OPTIONAL or f"{place}.{field}" in content
                    }
                )
                for place, name in enumerate(content["systems"].tolist())
            }
            return MixtureFrames(content["times"], systems)
    except (OSError, KeyError, ValueError, zipfile.BadZipFile) as error:
        raise ValueError(
            f"{files.shown(path)!r} cannot be read as frame scores ({error}). Score the set again: "
            "`torch-mapss evaluate` makes what is missing."
        ) from None
