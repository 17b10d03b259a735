"""A folder of results: the frame scores in it, and all of it read back.

On disk, UTF-8, numbers with nine digits, ``nan`` for undefined:

* ``settings.json``: ``settings`` (all that a score depends on), ``versions`` of the packages,
  ``protocol`` (a hash of the settings and of the encoder's weights), ``options`` (of the command
  that made them) and ``sha256`` of every audio file;
* ``mixtures.json``: ``format``, ``root`` (the absolute folder that paths are relative to),
  ``relative`` (the same as seen from the results, for sets that move along with them) and
  ``mixtures``, each with ``mixture_id``, ``references``, ``sources`` (their names), ``mixture``
  (path or null) and ``systems``;
* ``scores.csv``, ``items.csv``, ``summary.csv``: per estimate, per mixture and system, per system;
  the scores among their columns are those of :data:`torch_mapss.score_table.SCORES`;
* ``frames/MIXTURE.npz``: the frame scores of its systems, see :func:`write_frames`;
* ``progress``: finished pairs, see :mod:`torch_mapss.evaluation.shards`.
"""

from __future__ import annotations

import os
import zipfile
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from torch_mapss.evaluation import io
from torch_mapss.evaluation.manifest import FORMAT
from torch_mapss.score_table import FRAME_SCORES, present

if TYPE_CHECKING:
    from pandas import DataFrame

    from torch_mapss.evaluation.report import Report


class SystemFrames(NamedTuple):
    """Frame scores of the S' estimates of one system."""

    active: NDArray[np.bool_]  # (S', F) the frame is scored
    attributed: NDArray[np.int64]  # (S',) the reference of each estimate
    scores: Mapping[str, NDArray[np.float32]]  # (S', F) those computed; NaN where undefined


class MixtureFrames(NamedTuple):
    """Frame scores of one mixture."""

    times: NDArray[np.float64]  # (F,) seconds, centre of the encoder's receptive field
    systems: Mapping[str, SystemFrames]  # by name


def frames_path(folder: str, mixture: str) -> str:
    """Where the frame scores of a mixture lie in a results folder."""
    return os.path.join(folder, "frames", io.native(f"{io.file_name(mixture)}.npz"))


def write_frames(folder: str, mixture: str, outcomes: Mapping[str, Report | str]) -> None:
    """Add the frames of systems to the file of a mixture; drop those of systems that failed.

    NumPy's format, no pickles, replaced in one step; F frames and S' estimates of system i:

    * ``times`` (F,) float64: seconds, centre of the encoder's receptive field, in the whole signal;
    * ``systems`` (number,) str: names, in the order i = 0, 1, ...;
    * ``"{i}.ps"`` and the other scores of a frame that were computed, (S', F) float32, NaN in
      frames in which they are not defined;
    * ``"{i}.active"`` (S', F) bool: the frame is scored;
    * ``"{i}.attributed"`` (S',) int64: the reference that each estimate was scored against.

    Raises:
        WriteError: the file cannot be written.
    """
    path = frames_path(folder, mixture)
    try:
        times, old = read_frames(path)
    except ValueError:
        times, old = np.empty(0), {}
    systems = {name: frames for name, frames in old.items() if name not in outcomes}
    for name, report in outcomes.items():
        if not isinstance(report, str):
            scores = {field: values.float().numpy() for field, values in report.frames.items()}
            attributed = np.array(report.attributed, dtype=np.int64)
            systems[name] = SystemFrames(report.active.numpy(), attributed, scores)
            times = max(times, report.times.double().numpy(), key=len)
    content: dict[str, Any] = {"times": times, "systems": np.array([*systems], str)}
    for index, (active, attributed, values_of) in enumerate(systems.values()):
        # With ``trim`` the systems of a mixture may differ in their number of frames.
        missing = ((0, 0), (0, len(times) - active.shape[-1]))
        content[f"{index}.attributed"] = attributed
        content[f"{index}.active"] = np.pad(active, missing)
        for name, values in values_of.items():
            content[f"{index}.{name}"] = np.pad(values, missing, constant_values=np.nan)
    io.make_folder(os.path.dirname(path))
    io.write_with(path, lambda name: np.savez_compressed(name, **content))


def read_frames(path: str) -> MixtureFrames:
    """The frame scores of a file; ValueError where there is none."""
    try:
        with np.load(path, allow_pickle=False) as file:
            content = dict(file)
        systems = {
            name: SystemFrames(
                content[f"{index}.active"],
                content[f"{index}.attributed"],
                {f: content[f"{index}.{f}"] for f in FRAME_SCORES if f"{index}.{f}" in content},
            )
            for index, name in enumerate(content["systems"].tolist())
        }
        return MixtureFrames(content["times"], systems)
    except (OSError, KeyError, ValueError, zipfile.BadZipFile) as error:
        raise ValueError(
            f"{io.shown(path)!r} cannot be read as frame scores ({error}). Score the set again: "
            "`torch-mapss evaluate` makes what is missing."
        ) from None


# Columns that must be there, those of words, and those of whole numbers.
_REQUIRED = {
    "scores.csv": ("mixture_id", "system", "source", "source_index", "status"),
    "items.csv": ("mixture_id", "system", "status"),
    "summary.csv": ("system", "scored"),
}
_WORDS = (
    *("mixture_id", "system", "source", "estimate", "reference", "status", "reason"),
    *("notes", "warnings", "rates"),
)
_COUNTS = (
    *("source_index", "frames", "total_frames", "estimate_rate", "reference_rate"),
    *("estimates", "references", "scored", "undefined", "failed", "silent", "muted_frames"),
)


class Audio(NamedTuple):
    """Where the audio of one mixture lies."""

    references: tuple[str, ...]  # one per source
    sources: tuple[str, ...]  # their names
    estimates: Mapping[str, tuple[str, ...]]  # by system, in the order of its frames' rows
    mixture: str | None  # if the manifest names it


@dataclass(frozen=True)
class Results:
    """What is in a folder of results; undefined numbers of its tables are NaN."""

    folder: str
    settings: Mapping[str, Any] = field(repr=False)  # all that the scores depend on
    versions: Mapping[str, str] = field(repr=False)  # of the packages that made them
    protocol: str | None  # hash of settings and weights
    # That make the scorer again; None: it was made in Python.
    options: Mapping[str, Any] | None = field(repr=False)
    sha256: Mapping[str, str] = field(repr=False)  # of every audio file, by its manifest's path
    mixtures: tuple[str, ...] = field(repr=False)  # ids, in the order of the manifest
    systems: tuple[str, ...]  # names, in the order of their first appearance
    scores: DataFrame = field(repr=False)  # one row per mixture, system and estimated source
    items: DataFrame = field(repr=False)  # one row per mixture and system: means over its sources
    summary: DataFrame = field(repr=False)  # one row per system: means over the mixtures
    root: str = ""  # folder that audio paths are relative to
    entries: Mapping[str, Mapping[str, Any]] = field(default_factory=dict, repr=False)

    @property
    def sampled(self) -> bool:
        """Only some frames, drawn at random, are scored: they have no neighbours."""
        return self.settings.get("sample_frames") is not None

    @property
    def measures(self) -> tuple[str, ...]:
        """The scores in its tables, in the order of their columns."""
        return present(self.items.columns)

    def frames(self, mixture_id: str) -> MixtureFrames:
        """Frame scores of a mixture, all of its systems that did not fail.

        Raises:
            ValueError: no such mixture, or its file is missing or damaged.
        """
        wanted = self._entry(mixture_id)["systems"]
        times, found = read_frames(frames_path(self.folder, mixture_id))
        return MixtureFrames(times, {name: found[name] for name in wanted if name in found})

    def audio(self, mixture_id: str) -> Audio:
        """Paths of a mixture's references, estimates and, where the manifest names it, mixture.

        The files need not be there any more.

        Raises:
            ValueError: no such mixture.
        """
        entry = self._entry(mixture_id)

        def located(paths: Iterable[str | None]) -> tuple[str, ...]:
            return tuple(self.locate(path) for path in paths if path is not None)

        return Audio(
            references=located(entry["references"]),
            sources=tuple(entry["sources"]),
            estimates={name: located(paths) for name, paths in entry["systems"].items()},
            mixture=next(iter(located([entry["mixture"]])), None),
        )

    def without_audio(self, gone: Sequence[str], of: int) -> str:
        """A sentence about audio files, ``of`` so many, that are not where they were."""
        return (
            f"{len(gone)} of {of} audio files cannot be read, first {gone[0]!r}: expected below "
            f"{io.shown(self.root)!r}. If the audio was moved since it was scored, say where "
            "with --audio-root DIR (in Python load_results(folder, root=DIR))"
        )

    def check_audio(self, paths: Iterable[str]) -> None:
        """Refuse to begin where audio files are gone, of those that :meth:`audio` gives.

        Raises:
            FileNotFoundError: says which, and the way out.
        """
        wanted = list(dict.fromkeys(paths))
        gone = [io.shown(path) for path in wanted if not os.path.isfile(path)]
        if gone:
            raise FileNotFoundError(f"{self.without_audio(gone, len(wanted))}.")

    def statement(self) -> str:
        """A paragraph to publish with results: what they were made with, on how much."""
        settings, weights = self.settings, self.settings.get("weights") or {}
        encoders: dict[str, str] = {}
        for name in ("encoder", "match_encoder", "decomposition_encoder"):
            one, hashed = settings.get(name), weights.get(name)
            if one is not None:
                layer = f", layer {one['layer']}" if one.get("layer") is not None else ""
                layer += f", weights {hashed}" if hashed else ""
                encoders.setdefault(one["name"], f"{one['name']}{layer}")
        banks = [str(settings[name]["size"]) for name in settings if name.endswith("_bank")]
        minutes = self.items.drop_duplicates("mixture_id")["seconds"].sum() / 60
        parts = [
            f"{len(self.systems)} systems on {len(self.mixtures)} mixtures ({minutes:.1f} min; "
            f"{self.items['status'].eq('failed').sum()} pairs failed), protocol {self.protocol}: "
            f"encoder {'; '.join(encoders.values())}",
            f"convention {settings['convention']}",
            f"{', '.join(banks)} distortions",
        ]
        if settings.get("excerpts"):
            parts.append(f"{settings['excerpts']} excerpts a mixture")
        if self.sampled:
            parts.append(f"{settings['sample_frames']} frames drawn at random")
        made = ", ".join(f"{name} {number}" for name, number in self.versions.items())
        return f"{', '.join(parts)}. {made}."

    def locate(self, path: str) -> str:
        """The path to open of one that is written in the tables."""
        return io.located(self.root, path)

    def _entry(self, mixture_id: str) -> Mapping[str, Any]:
        if mixture_id not in self.entries:
            raise ValueError(
                f"{io.shown(self.folder)!r} holds no mixture {mixture_id!r}; it holds "
                f"{io.listed(map(repr, self.mixtures))}."
            )
        return self.entries[mixture_id]


def load_results(
    folder: Results | str | os.PathLike[str], root: str | os.PathLike[str] | None = None
) -> Results:
    """Read the folder that ``torch-mapss evaluate MANIFEST --out FOLDER`` wrote.

    Args:
        folder: of the results; what is read already comes back as it is.
        root: the folder that audio paths are relative to, where the audio was moved; else where
            it was, or where it lies now as seen from the results if both moved together.

    Returns:
        :class:`Results`.

    Raises:
        ValueError: not such a folder, or its run has not finished.
    """
    if isinstance(folder, Results):
        return folder
    folder = os.fspath(folder)
    needed = ("settings.json", "mixtures.json", *_REQUIRED)
    missing = [file for file in needed if not os.path.isfile(os.path.join(folder, file))]
    if missing:
        raise ValueError(
            f"{io.shown(folder)!r} is no folder of results: {', '.join(missing)} missing. "
            "`torch-mapss evaluate MANIFEST.json --out FOLDER` makes one, and goes on where it "
            "stopped."
        )
    stored = io.read_json(os.path.join(folder, "settings.json"), "settings", "versions")
    listed = io.read_json(
        os.path.join(folder, "mixtures.json"), "format", "root", "relative", "mixtures"
    )
    if listed["format"] != FORMAT:
        raise ValueError(
            f"{io.shown(folder)!r} holds results of format {listed['format']!r}, this version "
            f"reads {FORMAT}. Score the set again."
        )
    entries = {entry["mixture_id"]: entry for entry in listed["mixtures"]}
    systems = dict.fromkeys(name for entry in entries.values() for name in entry["systems"])
    scores, items, summary = (_table(folder, name, entries, systems) for name in _REQUIRED)
    return Results(
        folder=folder,
        settings=stored["settings"],
        versions=stored["versions"],
        protocol=stored.get("protocol"),
        options=stored.get("options"),
        sha256=stored.get("sha256") or {},
        mixtures=tuple(entries),
        systems=tuple(systems),
        scores=scores,
        items=items,
        summary=summary,
        root=_root(folder, listed) if root is None else os.fspath(root),
        entries=entries,
    )


def _root(folder: str, listed: Mapping[str, Any]) -> str:
    """Where the audio lies: as it was, unless it moved with the results."""
    absolute, relative = io.native(listed["root"]), listed["relative"]
    moved = os.path.normpath(os.path.join(folder, io.native(relative or ".")))
    return moved if relative and not os.path.isdir(absolute) and os.path.isdir(moved) else absolute


def _table(folder: str, name: str, mixtures: Iterable[str], systems: Iterable[str]) -> DataFrame:
    """A table of results; its mixtures and systems spelled as in ``mixtures.json``, or refused."""
    path = os.path.join(folder, name)
    table = io.read_table(path, _REQUIRED[name], content="a table of results", text=_WORDS)
    for column, known in (("mixture_id", mixtures), ("system", systems)):
        if column not in table:
            continue
        found = table[column].map(io.same_name).map({io.same_name(text): text for text in known})
        if found.isna().any():
            line = table.index[found.isna()][0]
            raise ValueError(
                f"{io.shown(path)!r}, line {line}: {column} {table.loc[line, column]!r} is not in "
                "mixtures.json. Was the table changed by another program?"
            )
        table[column] = found
    whole = [name for name in _COUNTS if name in table and table[name].notna().all()]
    return table.astype(dict.fromkeys(whole, "int64"))


def records(table: DataFrame) -> list[dict[str, Any]]:
    """The rows of a table as dictionaries."""
    return [{str(k): v for k, v in row.items()} for row in table.to_dict("records")]
