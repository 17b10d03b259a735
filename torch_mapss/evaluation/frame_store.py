"""Frame scores of a mixture on disk: one compressed file for all of its systems.

``frames/MIXTURE.npz`` (NumPy's format, no pickles) holds, F frames and S' estimates of system i:

* ``times`` (F,) float64: seconds, centre of the encoder's receptive field; of excerpts those in the
  whole signal;
* ``systems`` (number,) str: names, in the order i = 0, 1, ...;
* ``"{i}.ps"`` and the other scores of :class:`SystemFrames` that were computed, (S', F) float32,
  NaN in frames in which they are not defined;
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

from torch_mapss.evaluation import io
from torch_mapss.evaluation.measures import FRAME_SCORES

if TYPE_CHECKING:
    from torch_mapss.evaluation.report import Report

Floats = NDArray[np.float32]


class SystemFrames(NamedTuple):
    """Frame scores of the estimates of one system, NaN where undefined; None: not computed."""

    active: NDArray[np.bool_]  # (S', F) the frame is scored
    attributed: NDArray[np.int64]  # (S',) the reference of each estimate
    clearance: Floats | None = None  # (S', F) in [0, 1], 1: no leakage
    fidelity: Floats | None = None  # (S', F) in [0, 1], 1: undistorted
    ps: Floats | None = None  # (S', F) in [0, 1], 1: no leakage
    pm: Floats | None = None  # (S', F) in [0, 1], 1: undistorted
    log_pm: Floats | None = None  # (S', F) <= 0
    bleed_db: Floats | None = None  # (S', F) dB, where the own source is silent and another is not
    attributed_distance: Floats | None = None  # (S', F) A of PS = B/(A + B)
    foreign_distance: Floats | None = None  # (S', F) B

    @property
    def scores(self) -> dict[str, Floats]:
        """The frame scores that there are, by name and in the order of columns."""
        found = {name: getattr(self, name) for name in FRAME_SCORES}
        return {name: values for name, values in found.items() if values is not None}


class MixtureFrames(NamedTuple):
    """Frame scores of one mixture."""

    times: NDArray[np.float64]  # (F,) seconds, centre of the encoder's receptive field
    systems: Mapping[str, SystemFrames]  # by name


def path_of(folder: str, mixture: str) -> str:
    """Where the frame scores of a mixture lie in a results folder."""
    return os.path.join(folder, "frames", io.native(f"{io.file_name(mixture)}.npz"))


class Kept:
    """The frame scores of one mixture in a results folder, written anew with every system."""

    def __init__(self, folder: str, mixture: str) -> None:
        self.path = path_of(folder, mixture)
        self._found = read(self.path) if systems_of(self.path) else MixtureFrames(np.empty(0), {})

    def put(self, system: str, report: Report | None) -> None:
        """Keep the frames of a system, or drop them where it failed.

        Raises:
            WriteError: the file cannot be written.
        """
        times, systems = self._found.times, dict(self._found.systems)
        systems.pop(system, None)
        if report is not None:
            scores = {name: values.float().numpy() for name, values in report.frames.items()}
            attributed = np.array(report.attributed, dtype=np.int64)
            systems[system] = SystemFrames(report.active.numpy(), attributed, **scores)
            times = max(times, report.times.double().numpy(), key=len)
        self._found = MixtureFrames(times, systems)
        _write(self.path, self._found)


def _write(path: str, frames: MixtureFrames) -> None:
    times = frames.times
    content: dict[str, Any] = {"times": times, "systems": np.array([*frames.systems], dtype=str)}
    for place, system in enumerate(frames.systems.values()):
        content[f"{place}.attributed"] = system.attributed
        content[f"{place}.active"] = _padded(system.active, len(times), False)
        for name, values in system.scores.items():
            content[f"{place}.{name}"] = _padded(values, len(times), np.nan)
    io.make_folder(os.path.dirname(path))
    io.write_with(path, lambda name: np.savez_compressed(name, **content))


def _padded(values: Any, length: int, filler: Any) -> Any:
    """Frames up to ``length``: with ``trim`` the systems of a mixture may differ in theirs."""
    missing = length - values.shape[-1]
    return np.pad(values, ((0, 0), (0, missing)), constant_values=filler) if missing else values


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
                    content[f"{place}.active"],
                    content[f"{place}.attributed"],
                    **{
                        f: content[f"{place}.{f}"]
                        for f in FRAME_SCORES
                        if f"{place}.{f}" in content
                    },
                )
                for place, name in enumerate(content["systems"].tolist())
            }
            return MixtureFrames(content["times"], systems)
    except (OSError, KeyError, ValueError, zipfile.BadZipFile) as error:
        raise ValueError(
            f"{io.shown(path)!r} cannot be read as frame scores ({error}). Score the set again: "
            "`torch-mapss evaluate` makes what is missing."
        ) from None
