"""A folder of results, read: its records as tables, the frame scores, where the audio lies.

On disk, UTF-8, ``null`` for undefined:

* ``settings.json``: ``settings`` (all that a score depends on), ``versions`` of the packages,
  ``protocol`` (a hash of the settings and of the encoder's weights), ``rate`` of the encoder and
  ``options`` (of the call that made them);
* ``mixtures.json``: ``format``, ``root`` (the absolute folder that paths are relative to),
  ``relative`` (the same as seen from the results, for sets that move along with them) and
  ``mixtures``, each with ``mixture_id``, ``references``, ``sources`` (their names), ``mixture``
  (path or null) and ``systems``;
* ``records/MIXTURE.json``: what was scored, see :mod:`torch_mapss.evaluation.records`;
* ``frames/MIXTURE.npz``: the frame scores of its systems, see
  :func:`torch_mapss.evaluation.results_folder.write_frames`;
* ``scores.csv``, ``items.csv``, ``summary.csv``: tables per estimate, per mixture and system, per
  system, with numbers of nine digits, written once all is scored. They are made of the records and
  not read back; the scores among their columns are those of
  :data:`torch_mapss.score_table.SCORES`.
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import TYPE_CHECKING, Any, NamedTuple

from torch_mapss.core import checks
from torch_mapss.evaluation import io, tables
from torch_mapss.evaluation.manifest import Mixture
from torch_mapss.evaluation.protocol import encoder_text, pair_encoder_notes
from torch_mapss.evaluation.records import Record, paths_of
from torch_mapss.evaluation.records import rows_of as records  # as other modules call it
from torch_mapss.evaluation.results_folder import (
    MixtureFrames,
    frames_path,
    read_frames,
    read_mixtures,
    read_records,
)
from torch_mapss.evaluation.settings import ENCODERS
from torch_mapss.score_table import present

__all__ = ["Audio", "Results", "load_results", "records", "write_tables"]

if TYPE_CHECKING:
    from pandas import DataFrame


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
    # Of mixture and system, in the order of the tables.
    records: Sequence[Record] = field(default=(), repr=False)
    pending: Sequence[tuple[str, str]] = field(default=(), repr=False)  # not scored yet
    rate: int | None = None  # Hz, of the encoder

    @property
    def sampled(self) -> bool:
        """Only some frames, drawn at random, are scored: they have no neighbours."""
        return self.settings.get("sample_frames") is not None

    @property
    def measures(self) -> tuple[str, ...]:
        """The scores in its tables, in the order of their columns."""
        return present(self.items.columns)

    @cached_property
    def failures(self) -> tuple[str, ...]:
        """A line per mixture and system that failed."""
        return tuple(tables.failure_lines(self.records))

    @cached_property
    def warnings(self) -> tuple[str, ...]:
        """A line per kind of finding about the signals."""
        return (
            *tables.finding_lines(self.records),
            *tables.mixed_rate_lines(self.summary),
            *tables.same_system_lines(self._mixtures(), self.sha256),
        )

    @cached_property
    def notes(self) -> tuple[str, ...]:
        """What was done to the input, a line each."""
        discarded = () if self.rate is None else tables.discarded_lines(self.scores, self.rate)
        return (*discarded, *pair_encoder_notes(self.settings, self.measures))

    def frames(self, mixture_id: str) -> MixtureFrames:
        """Frame scores of a mixture, all of its systems that did not fail.

        Raises:
            ValueError: no such mixture, or its file is missing or damaged.
        """
        listed = self._entry(mixture_id)["systems"]
        times, systems = read_frames(frames_path(self.folder, mixture_id))
        return MixtureFrames(times, {name: systems[name] for name in listed if name in systems})

    def audio(self, mixture_id: str) -> Audio:
        """Paths of a mixture's references, estimates and, where the manifest names it, mixture.

        The files need not be there any more.

        Raises:
            ValueError: no such mixture.
        """
        entry = self._entry(mixture_id)
        estimates = {name: self._located(paths) for name, paths in entry["systems"].items()}
        mixture = self._located([entry["mixture"]])
        return Audio(
            references=self._located(entry["references"]),
            sources=tuple(entry["sources"]),
            estimates=estimates,
            mixture=mixture[0] if mixture else None,
        )

    def without_audio(self, missing: Sequence[str], count: int) -> str:
        """A sentence about audio files, of ``count``, that are not where they were."""
        return (
            f"{len(missing)} of {count} audio files cannot be read, first {missing[0]!r}: expected "
            f"below {io.shown(self.root)!r}. If the audio was moved since it was scored, say where "
            "with --audio-root DIR (in Python load_results(folder, root=DIR))"
        )

    def check_audio(self, paths: Iterable[str]) -> None:
        """Refuse to begin where audio files are missing, of those that :meth:`audio` gives.

        Raises:
            FileNotFoundError: says which, and the way out.
        """
        distinct = list(dict.fromkeys(paths))
        missing = [io.shown(path) for path in distinct if not os.path.isfile(path)]
        if missing:
            raise FileNotFoundError(f"{self.without_audio(missing, len(distinct))}.")

    def statement(self) -> str:
        """A paragraph to publish with results: what they were made with, on how much."""
        settings = self.settings
        texts = {slot: encoder_text(settings, slot) for slot in ENCODERS if settings.get(slot)}
        encoders = [texts.get("encoder", "unknown")]
        for slot, scores in (
            ("match_encoder", "PM"),
            ("decomposition_encoder", "clearance and fidelity"),
        ):
            if texts.get(slot, encoders[0]) != encoders[0]:
                encoders.append(f"{scores} by {texts[slot]}")
        banks = [str(settings[name]["size"]) for name in settings if name.endswith("_bank")]
        minutes = self.items.drop_duplicates("mixture_id")["seconds"].sum() / 60
        phrases = [
            f"{len(self.systems)} systems on {len(self.mixtures)} mixtures ({minutes:.1f} min; "
            f"{self.items['status'].eq('failed').sum()} pairs failed), protocol {self.protocol}: "
            f"encoder {'; '.join(encoders)}",
            f"convention {settings['convention']}",
            f"{', '.join(banks)} distortions",
        ]
        if settings.get("excerpts"):
            phrases.append(f"{settings['excerpts']} excerpts a mixture")
        if self.sampled:
            phrases.append(f"{settings['sample_frames']} frames drawn at random")
        packages = ", ".join(f"{name} {number}" for name, number in self.versions.items())
        return f"{', '.join(phrases)}. {packages}."

    def locate(self, path: str) -> str:
        """The path to open of one that is written in the tables."""
        return io.located(self.root, path)

    def _located(self, paths: Iterable[str | None]) -> tuple[str, ...]:
        return tuple(self.locate(path) for path in paths if path is not None)

    def _mixtures(self) -> list[Mixture]:
        return [
            Mixture(name, tuple(entry["references"]), entry["systems"], self.root)
            for name, entry in self.entries.items()
        ]

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
    """Read the folder that ``torch-mapss evaluate MANIFEST --out FOLDER`` writes.

    Also while it is being written: what is not scored yet is in ``pending``.

    Args:
        folder: of the results, or results that were read already.
        root: the folder that audio paths are relative to, where the audio was moved; else where
            it was, or where it lies now as seen from the results if both moved together.

    Returns:
        :class:`Results`.

    Raises:
        ValueError: not such a folder, or nothing in it is scored yet.

    Warns:
        UserWarning: a damaged file of records, whose mixture counts as not scored.
    """
    if isinstance(folder, Results):
        return folder if root is None else replace(folder, root=os.fspath(root))
    results = read_results(folder, root)
    if not results.records:
        raise ValueError(
            f"nothing in {io.shown(folder)!r} is scored yet. `torch-mapss evaluate` with the same "
            "arguments goes on where it stopped."
        )
    return results


def read_results(
    folder: str | os.PathLike[str], root: str | os.PathLike[str] | None = None
) -> Results:
    """As :func:`load_results`, also of a folder in which nothing is scored yet."""
    folder = os.fspath(folder)
    needed = ("settings.json", "mixtures.json")
    missing = [file for file in needed if not os.path.isfile(os.path.join(folder, file))]
    if missing:
        raise ValueError(
            f"{io.shown(folder)!r} is not a results folder: {', '.join(missing)} missing. "
            "`torch-mapss evaluate MANIFEST.json --out FOLDER` makes one, and goes on where it "
            "stopped."
        )
    stored = io.read_json(os.path.join(folder, "settings.json"), "settings", "versions")
    mixtures = read_mixtures(folder)
    pairs: list[Record] = []
    pending: list[tuple[str, str]] = []
    sha256: dict[str, str] = {}
    for mixture in mixtures:
        by_system = _records(folder, mixture)
        for system in mixture.systems:
            if system not in by_system:
                pending.append((mixture.name, system))
                continue
            pairs.append(_placed(by_system[system], mixture, system))
            paths = paths_of(mixture, system)
            for path, (*_, digest) in zip(paths, by_system[system]["files"]):
                if path is not None and digest is not None:
                    sha256[path] = digest
    rate = stored.get("rate")
    scores, items, summary = tables.all_tables(pairs, float("inf") if rate is None else rate)
    return Results(
        folder=folder,
        settings=stored["settings"],
        versions=stored["versions"],
        protocol=stored.get("protocol"),
        options=stored.get("options"),
        sha256=dict(sorted(sha256.items())),
        mixtures=tuple(mixture.name for mixture in mixtures),
        systems=tuple(dict.fromkeys(name for mixture in mixtures for name in mixture.systems)),
        scores=scores,
        items=items,
        summary=summary,
        root=mixtures[0].folder if root is None else os.fspath(root),
        entries={mixture.name: mixture.entry() for mixture in mixtures},
        records=pairs,
        pending=tuple(pending),
        rate=rate,
    )


def _records(folder: str, mixture: Mixture) -> dict[str, Record]:
    """The records of a mixture, none where they are damaged."""
    try:
        return read_records(folder, mixture.name)
    except ValueError as error:
        checks.warn_user(str(error))
        return {}


def _placed(record: Record, mixture: Mixture, system: str) -> Record:
    """A record with the paths of its files as they are now: a copy of the set has others."""
    estimates = [path for path in mixture.systems[system] if path is not None]
    rows = [
        {**row, "estimate": path, "reference": mixture.references[row["source_index"]]}
        for row, path in zip(record["rows"], estimates)
    ]
    return {**record, "rows": rows}


def write_tables(results: Results) -> None:
    """Export the tables of results as CSV files to their folder, where all is scored.

    Raises:
        WriteError: a file cannot be written.
    """
    if results.pending:
        return
    for name in ("scores", "items", "summary"):
        io.write_table(os.path.join(results.folder, f"{name}.csv"), getattr(results, name))
