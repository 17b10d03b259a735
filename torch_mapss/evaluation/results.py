"""Reading of results: records as tables, frame scores, and paths of the audio.

On disk, UTF-8, ``null`` for undefined:

* ``settings.json``: ``settings`` (all that a score depends on), ``versions`` of the packages,
  ``protocol`` (a hash of the settings and of the encoder's weights), ``rate`` of the encoder and
  ``options`` (of the call that made the results);
* ``mixtures.json``: ``format``, ``root`` (the absolute folder that paths are relative to),
  ``relative`` (the same relative to the results, for sets that are moved together with them) and
  ``mixtures``, each with ``mixture_id``, ``references``, ``sources`` (their names), ``mixture``
  (path or null) and ``systems``;
* ``records/MIXTURE.json``: the scores and the files they belong to, see
  :mod:`torch_mapss.evaluation.records`;
* ``frames/MIXTURE.npz``: the frame scores of its systems, see
  :func:`torch_mapss.evaluation.results_folder.write_frames`;
* ``scores.csv``, ``items.csv``, ``summary.csv``: tables per estimate, per mixture and system, and
  per system; where each channel was scored also ``channels.csv``, per estimate and channel. Their
  numbers have nine digits, and they are written once everything is scored. They are exports of the
  records and are not read back; their columns of scores are those of
  :data:`torch_mapss.score_table.SCORES`.
"""

from __future__ import annotations

import os
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property, partial
from typing import TYPE_CHECKING, Any, NamedTuple

from torch_mapss.core import checks
from torch_mapss.evaluation import io, tables
from torch_mapss.evaluation.manifest import Mixture
from torch_mapss.evaluation.protocol import encoder_text, pair_encoder_notes
from torch_mapss.evaluation.records import Record, paths_of
from torch_mapss.evaluation.results_folder import (
    MixtureFrames,
    frames_path,
    read_frames,
    read_mixtures,
    read_records,
)
from torch_mapss.evaluation.settings import ENCODERS
from torch_mapss.score_table import scores_in

__all__ = ["Audio", "Results", "load_results", "write_tables"]

if TYPE_CHECKING:
    from pandas import DataFrame


class Audio(NamedTuple):
    """Paths of the audio of one mixture."""

    references: tuple[str, ...]  # paths, one per source
    sources: tuple[str, ...]  # their names
    estimates: Mapping[str, tuple[str, ...]]  # by system, in the order of its frames' rows
    mixture: str | None  # if the manifest names it


@dataclass(frozen=True)
class Results:
    """Contents of a folder of results; undefined numbers in its tables are NaN."""

    folder: str
    settings: Mapping[str, Any] = field(repr=False)  # everything that the scores depend on
    versions: Mapping[str, str] = field(repr=False)  # of the packages that made them
    protocol: str | None  # hash of settings and weights
    # Settings to rebuild the scorer; None if it was passed in as an object.
    options: Mapping[str, Any] | None = field(repr=False)
    sha256: Mapping[str, str] = field(repr=False)  # of audio files, by path in the manifest
    mixtures: tuple[str, ...] = field(repr=False)  # ids, in the order of the manifest
    systems: tuple[str, ...]  # names, in the order of their first appearance
    scores: DataFrame = field(repr=False)  # one row per mixture, system and estimated source
    items: DataFrame = field(repr=False)  # one row per mixture and system: means over its sources
    summary: DataFrame = field(repr=False)  # one row per system: means over the mixtures
    root: str = ""  # folder that audio paths are relative to
    entries: Mapping[str, Mapping[str, Any]] = field(default_factory=dict, repr=False)
    # One per mixture and system, in the order of the tables.
    records: Sequence[Record] = field(default=(), repr=False)
    pending: Sequence[tuple[str, str]] = field(default=(), repr=False)  # not scored yet
    rate: int | None = None  # Hz, sample rate of the encoder
    # One row per mixture, system, estimated source and channel, where each channel was scored.
    channels: DataFrame = field(default_factory=partial(tables.channels_table, ()), repr=False)

    @property
    def sampled(self) -> bool:
        """Whether only randomly drawn frames are scored, which have no neighbours."""
        return self.settings.get("sample_frames") is not None

    @property
    def measures(self) -> tuple[str, ...]:
        """The scores in its tables, in the order of their columns."""
        return scores_in(self.items.columns)

    @cached_property
    def failures(self) -> tuple[str, ...]:
        """One line per mixture and system that failed."""
        return tuple(tables.failure_lines(self.records))

    @cached_property
    def warnings(self) -> tuple[str, ...]:
        """One line per kind of finding about the signals."""
        return (
            *tables.finding_lines(self.records),
            *tables.mixed_rate_lines(self.summary),
            *tables.same_system_lines(self._mixtures(), self.sha256),
        )

    @cached_property
    def notes(self) -> tuple[str, ...]:
        """Changes made to the input, one line each."""
        discarded = () if self.rate is None else tables.discarded_lines(self.scores, self.rate)
        return (*discarded, *pair_encoder_notes(self.settings, self.measures))

    def frames(self, mixture_id: str) -> MixtureFrames:
        """Frame scores of a mixture for all systems that did not fail.

        Raises:
            ValueError: the mixture is unknown, or its file is missing or damaged.
        """
        listed = self._entry(mixture_id)["systems"]
        times, systems = read_frames(frames_path(self.folder, mixture_id))
        return MixtureFrames(times, {name: systems[name] for name in listed if name in systems})

    def audio(self, mixture_id: str) -> Audio:
        """Paths of a mixture's references, estimates and, if the manifest names it, its own file.

        The files need not exist any more.

        Raises:
            ValueError: the mixture is unknown.
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
        """Sentence about the audio files, out of ``count``, that are missing."""
        return (
            f"{len(missing)} of {count} audio files cannot be read, first {missing[0]!r}: expected "
            f"below {io.shown(self.root)!r}. If the audio was moved since it was scored, pass its "
            "new folder with --audio-root DIR (in Python load_results(folder, root=DIR))"
        )

    def check_audio(self, paths: Iterable[str]) -> None:
        """Raise unless all audio files at ``paths``, from :meth:`audio`, exist.

        Raises:
            FileNotFoundError: files are missing; the message names them and the remedy.
        """
        distinct = list(dict.fromkeys(paths))
        missing = [io.shown(path) for path in distinct if not os.path.isfile(path)]
        if missing:
            raise FileNotFoundError(f"{self.without_audio(missing, len(distinct))}.")

    def statement(self) -> str:
        """Paragraph to publish with results: their settings and the amount of data."""
        settings = self.settings
        texts = {slot: encoder_text(settings, slot) for slot in ENCODERS if settings.get(slot)}
        encoders = [*texts.values()][:1] or ["none"]
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
        """Path to open for a path in the tables."""
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
    """Read a folder that ``torch-mapss evaluate MANIFEST --out FOLDER`` wrote or is writing.

    Pairs of mixture and system that are not scored yet are listed in ``pending``.

    Args:
        folder: folder of results, or a :class:`Results`.
        root: folder that audio paths are relative to, if the audio was moved. By default the
            original folder, or its new place if audio and results were moved together.

    Returns:
        :class:`Results`.

    Raises:
        ValueError: not a folder of results, or nothing in it is scored yet.

    Warns:
        UserWarning: a file of records is damaged; its mixture counts as not scored.
    """
    if isinstance(folder, Results):
        return folder if root is None else replace(folder, root=os.fspath(root))
    results = read_results(folder, root)
    if not results.records:
        raise ValueError(
            f"nothing in {io.shown(folder)!r} is scored yet. `torch-mapss evaluate` with the same "
            "arguments resumes where it stopped."
        )
    return results


def read_results(
    folder: str | os.PathLike[str],
    root: str | os.PathLike[str] | None = None,
    outdated: Collection[tuple[str, str]] = (),
) -> Results:
    """Like :func:`load_results`, but also for a folder in which nothing is scored yet.

    ``outdated`` pairs of mixture and system count as not scored, though they have a record.
    """
    folder = os.fspath(folder)
    needed = ("settings.json", "mixtures.json")
    missing = [file for file in needed if not os.path.isfile(os.path.join(folder, file))]
    if missing:
        raise ValueError(
            f"{io.shown(folder)!r} is not a results folder: {', '.join(missing)} missing. "
            "`torch-mapss evaluate MANIFEST.json --out FOLDER` makes one, and resumes where it "
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
            if system not in by_system or (mixture.name, system) in outdated:
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
        channels=tables.channels_table(pairs),
        summary=summary,
        root=mixtures[0].folder if root is None else os.fspath(root),
        entries={mixture.name: mixture.entry() for mixture in mixtures},
        records=pairs,
        pending=tuple(pending),
        rate=rate,
    )


def _records(folder: str, mixture: Mixture) -> dict[str, Record]:
    """Records of a mixture; none if they are damaged."""
    try:
        return read_records(folder, mixture.name)
    except ValueError as error:
        checks.warn_user(str(error))
        return {}


def _placed(record: Record, mixture: Mixture, system: str) -> Record:
    """Record with the current paths of its files, which differ for a copy of the set."""
    estimates = [path for path in mixture.systems[system] if path is not None]
    rows = [
        {**row, "estimate": path, "reference": mixture.references[row["source_index"]]}
        for row, path in zip(record["rows"], estimates)
    ]
    return {**record, "rows": rows}


def write_tables(results: Results) -> None:
    """Export the tables of results as CSV files to their folder, if nothing is pending.

    Raises:
        WriteError: a file cannot be written.
    """
    if results.pending:
        return
    for name in ("scores", "items", "summary", "channels"):
        table: DataFrame = getattr(results, name)
        if name != "channels" or len(table):
            io.write_table(os.path.join(results.folder, f"{name}.csv"), table)
