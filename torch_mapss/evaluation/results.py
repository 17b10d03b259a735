"""A folder of results, read back: what ``torch-mapss evaluate`` wrote, for all that follows it.

On disk, UTF-8, numbers with nine digits, ``nan`` for undefined:

* ``settings.json``: ``settings`` (all that a score depends on), ``versions`` of the packages,
  ``protocol`` (a hash of the settings and of the encoder's weights), ``options`` (of the command
  that made them) and ``sha256`` of every audio file;
* ``mixtures.json``: ``format``, ``root`` (the absolute folder that paths are relative to),
  ``relative`` (the same as seen from the results, for sets that move along with them) and
  ``mixtures``, each with ``mixture_id``, ``references``, ``sources`` (their names), ``mixture``
  (path or null) and ``systems``;
* ``scores.csv``, ``items.csv``, ``summary.csv``: per estimate, per mixture and system, per system;
  the scores among their columns are those of :data:`torch_mapss.evaluation.measures.COLUMNS`;
* ``frames/MIXTURE.npz``: see :mod:`torch_mapss.evaluation.frame_store`;
* ``progress``: finished pairs, see :mod:`torch_mapss.evaluation.run`.
"""

from __future__ import annotations

import json
import os
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, NamedTuple

from torch_mapss.evaluation import frame_store, io
from torch_mapss.evaluation.frame_store import MixtureFrames
from torch_mapss.evaluation.manifest import FORMAT
from torch_mapss.evaluation.measures import present

if TYPE_CHECKING:
    from pandas import DataFrame

# Columns that must be there; all others that hold numbers.
_REQUIRED = {
    "scores.csv": ("mixture_id", "system", "source", "source_index", "status"),
    "items.csv": ("mixture_id", "system", "status"),
    "summary.csv": ("system", "scored"),
}
_COUNTS = (
    *("source_index", "frames", "total_frames", "estimate_rate", "reference_rate"),
    *("estimates", "references", "scored", "undefined", "failed", "silent", "muted_frames"),
)
_WORDS = ("mixture_id", "system", "source", "estimate", "reference", "status", "reason")
_WORDS += ("notes", "warnings", "rates")


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
    settings: Mapping[str, Any]  # all that the scores depend on
    versions: Mapping[str, str]  # of the packages that made them
    protocol: str | None  # hash of settings and weights
    options: Mapping[str, Any]  # of the command that made them; empty if made in Python
    sha256: Mapping[str, str]  # of every audio file, by its path in the manifest
    mixtures: tuple[str, ...]  # ids, in the order of the manifest
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
        """Frame scores of a mixture, all of its systems.

        Args:
            mixture_id: one of ``mixtures``.

        Returns:
            :class:`~torch_mapss.evaluation.frame_store.MixtureFrames`. A system that failed is
            not in it.

        Raises:
            ValueError: no such mixture, or its file is missing or damaged.
        """
        entry = self._entry(mixture_id)
        found = frame_store.read(frame_store.path_of(self.folder, mixture_id))
        wanted = [name for name in entry["systems"] if name in found.systems]
        return found._replace(systems={name: found.systems[name] for name in wanted})

    def audio(self, mixture_id: str) -> Audio:
        """Paths of a mixture's references, estimates and, where the manifest names it, mixture.

        Args:
            mixture_id: one of ``mixtures``.

        Returns:
            :class:`Audio`; the files need not be there any more.

        Raises:
            ValueError: no such mixture.
        """
        entry = self._entry(mixture_id)
        mixture = entry["mixture"]
        return Audio(
            references=tuple(map(self.locate, entry["references"])),
            sources=tuple(entry["sources"]),
            estimates={
                name: tuple(self.locate(path) for path in paths if path is not None)
                for name, paths in entry["systems"].items()
            },
            mixture=None if mixture is None else self.locate(mixture),
        )

    def without_audio(self, gone: Sequence[str], of: int) -> str:
        """A sentence about audio files that are not where they were, with the way out.

        Args:
            gone: the first of the files, as they are written in the tables, or whole paths.
            of: how many were looked for.
        """
        return (
            f"{len(gone)} of {of} audio files cannot be read, first {gone[0]!r}: expected below "
            f"{io.shown(self.root)!r}. If the audio was moved since it was scored, say where "
            "with --audio-root DIR (in Python load_results(folder, root=DIR))"
        )

    def check_audio(self, paths: Iterable[str]) -> None:
        """Refuse to begin where audio files are gone.

        Args:
            paths: to open, as :meth:`audio` gives them.

        Raises:
            FileNotFoundError: some are not there; says which, and the way out.
        """
        wanted = list(dict.fromkeys(paths))
        gone = [io.shown(path) for path in wanted if not os.path.isfile(path)]
        if gone:
            raise FileNotFoundError(f"{self.without_audio(gone, len(wanted))}.")

    def statement(self) -> str:
        """A paragraph to publish with results: what they were made with, on how much."""
        settings = self.settings
        weights = settings.get("weights") or {}
        encoders: list[str] = []
        for name in ("encoder", "match_encoder", "decomposition_encoder"):
            one = settings.get(name)
            if one is None or one.get("name") in [told.split(",")[0] for told in encoders]:
                continue
            layer = f", layer {one['layer']}" if one.get("layer") is not None else ""
            hashed = f", weights {weights[name]}" if weights.get(name) else ""
            encoders.append(f"{one['name']}{layer}{hashed}")
        banks = [f"{settings[name]['size']}" for name in settings if name.endswith("_bank")]
        items = self.items.drop_duplicates("mixture_id")
        failed = int((self.items["status"] == "failed").sum())
        drawn = settings.get("excerpts")
        return (
            f"{len(self.systems)} systems on {len(self.mixtures)} mixtures "
            f"({items['seconds'].sum() / 60:.1f} min; {failed} pairs failed), protocol "
            f"{self.protocol}: encoder {'; '.join(encoders)}, convention "
            f"{settings['convention']}, {', '.join(banks)} distortions"
            + (f", {drawn} excerpts a mixture" if drawn else "")
            + (f", {settings['sample_frames']} frames drawn at random" if self.sampled else "")
            + ". "
            + ", ".join(f"{name} {number}" for name, number in self.versions.items())
            + "."
        )

    def locate(self, path: str) -> str:
        """The path to open of one that is written in the tables."""
        return io.native(os.path.join(self.root, path))

    def _entry(self, mixture_id: str) -> Mapping[str, Any]:
        if mixture_id not in self.entries:
            raise ValueError(
                f"{io.shown(self.folder)!r} holds no mixture {mixture_id!r}; it holds "
                f"{_few(self.mixtures)}."
            )
        return self.entries[mixture_id]


def load_results(
    folder: str | os.PathLike[str], root: str | os.PathLike[str] | None = None
) -> Results:
    """Read the folder that ``torch-mapss evaluate MANIFEST --out FOLDER`` wrote.

    Args:
        folder: of the results.
        root: the folder that audio paths are relative to, where the audio was moved; else where
            it was, or where it lies now as seen from the results if both moved together.

    Returns:
        :class:`Results`.

    Raises:
        ValueError: not such a folder, or its run has not finished.
    """
    folder = os.fspath(folder)
    _check_folder(folder)
    stored = _json(folder, "settings.json", ("settings", "versions"))
    listed = _json(folder, "mixtures.json", ("format", "root", "relative", "mixtures"))
    if listed["format"] != FORMAT:
        raise ValueError(
            f"{io.shown(folder)!r} holds results of format {listed['format']!r}, this version "
            f"reads {FORMAT}. Score the set again."
        )
    entries = {entry["mixture_id"]: entry for entry in listed["mixtures"]}
    systems = dict.fromkeys(name for entry in entries.values() for name in entry["systems"])
    return Results(
        folder=folder,
        settings=stored["settings"],
        versions=stored["versions"],
        protocol=stored.get("protocol"),
        options=stored.get("options") or {},
        sha256=stored.get("sha256") or {},
        mixtures=tuple(entries),
        systems=tuple(systems),
        scores=_table(folder, "scores.csv", entries),
        items=_table(folder, "items.csv", entries),
        summary=_table(folder, "summary.csv", entries),
        root=_root(folder, listed) if root is None else os.fspath(root),
        entries=entries,
    )


def _check_folder(folder: str) -> None:
    name = io.shown(folder)
    if not os.path.isdir(folder):
        what = "a file" if os.path.exists(folder) else "not there"
        raise ValueError(
            f"{name!r} should be a folder of results, but is {what}. `torch-mapss evaluate "
            "MANIFEST.json --out FOLDER` makes one."
        )
    needed = ("settings.json", "mixtures.json", "scores.csv", "items.csv", "summary.csv")
    missing = [file for file in needed if not os.path.isfile(os.path.join(folder, file))]
    if not missing:
        return
    if os.path.isdir(os.path.join(folder, "progress")):
        raise ValueError(
            f"{name!r} holds a run that has not finished: {missing[-1]} is missing. Start "
            "`torch-mapss evaluate` again with the same settings; it goes on where it stopped."
        )
    raise ValueError(
        f"{name!r} is no folder of results: {', '.join(missing)} missing. `torch-mapss evaluate "
        "MANIFEST.json --out FOLDER` makes one."
    )


def _json(folder: str, name: str, keys: Sequence[str]) -> dict[str, Any]:
    path = os.path.join(folder, name)
    try:
        with open(path, encoding="utf-8") as file:
            found = json.load(file)
        return {**found, **{key: found[key] for key in keys}}
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise ValueError(
            f"{io.shown(path)!r} cannot be read as part of results "
            f"({type(error).__name__}: {error}). Score the set again, or name another folder."
        ) from None


def _root(folder: str, listed: Mapping[str, Any]) -> str:
    """Where the audio lies: as it was, unless only the other place is there."""
    relative = os.path.normpath(os.path.join(folder, io.native(listed["relative"] or ".")))
    absolute = io.native(listed["root"])
    moved = listed["relative"] and not os.path.isdir(absolute) and os.path.isdir(relative)
    return relative if moved else absolute


def _table(folder: str, name: str, entries: Mapping[str, Mapping[str, Any]]) -> DataFrame:
    """A table of results; its mixtures and systems spelled as in ``mixtures.json``.

    Raises:
        ValueError: it cannot be read, or names what ``mixtures.json`` does not.
    """
    path = os.path.join(folder, name)
    table = io.read_table(path, _REQUIRED[name], content="a table of results", text=_WORDS)
    systems = dict.fromkeys(system for entry in entries.values() for system in entry["systems"])
    for column, known in (("mixture_id", entries), ("system", systems)):
        if column not in table:
            continue
        spelled = {io.same_name(text): text for text in known}
        found = table[column].map(lambda text, spelled=spelled: spelled.get(io.same_name(text)))
        if found.isna().any():
            line = table.index[found.isna()][0]
            raise ValueError(
                f"{io.shown(path)!r}, line {line}: {column} {table.loc[line, column]!r} is not in "
                "mixtures.json beside it. Was the table changed by another program?"
            )
        table[column] = found
    for column in _COUNTS:
        if column in table and table[column].notna().all():
            table[column] = table[column].astype("int64")
    return table


def records(table: DataFrame) -> list[dict[str, Any]]:
    """The rows of a table as dictionaries."""
    return [{str(k): v for k, v in row.items()} for row in table.to_dict("records")]


def _few(names: Sequence[str], most: int = 5) -> str:
    listed = ", ".join(repr(name) for name in names[:most])
    return listed + (f" and {len(names) - most} more" if len(names) > most else "")
