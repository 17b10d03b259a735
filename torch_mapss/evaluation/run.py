"""A whole test set: manifest in, tables out, over one process or many."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, NamedTuple

from torch_mapss.core.devices import device_name
from torch_mapss.evaluation import clips, files, frame_store
from torch_mapss.evaluation.manifest import (
    ITEM_COLUMNS,
    SCORE_COLUMNS,
    SET_COLUMNS,
    Mixture,
    Record,
    listed,
    of_one_folder,
)
from torch_mapss.evaluation.measures import (
    LABELS,
    RANK,
    columns_of,
    has_rank,
    measures_of,
    rank_meaning,
)
from torch_mapss.evaluation.processes import World, world
from torch_mapss.evaluation.progress import (
    Progress,
    claim,
    file_name,
    finished,
    hashes,
    note_hashes,
    signature,
)
from torch_mapss.evaluation.protocol import described
from torch_mapss.evaluation.report import MEANS, MEDIANS, Report, SourceRow, mean, median, number
from torch_mapss.evaluation.scorer import (
    Entry,
    PreparedOnce,
    Request,
    device_of,
    entered,
    score_entries,
)

if TYPE_CHECKING:
    from torch_mapss.evaluation.clips import Clip
    from torch_mapss.pipeline.mapss import MAPSS
# What makes one mixture fail; anything else ends the run.
_FAILURES = (ValueError, TypeError, OSError, RuntimeError, MemoryError)


class _Scorer:
    """Scores the systems of a mixture; its references are read and prepared once."""

    def __init__(
        self,
        mapss: MAPSS,
        request: Request,
        device: Any,
        folder: str,
        save_frames: bool,
        on_segment: Callable[[int, int], object] | None = None,
    ) -> None:
        self.on_segment = on_segment
        self.mapss, self.request, self.folder = mapss, request, folder
        self.save_frames = save_frames
        self.device = device_of(mapss, device)
        self.prepared = PreparedOnce(mapss)

    def records(self, mixture: Mixture, systems: Iterable[str]) -> Iterator[Record]:
        """A record for each of the systems; what fails is told in it."""
        references: tuple[Clip, ...] | Exception
        try:
            paths = [mixture.locate(path) for path in mixture.references]
            given = clips.read_set(paths, "references", self.mapss.sample_rate)
            named = clips.renamed(given, mixture.source_names)
            references = tuple(clip for clip in named if clip is not None)
        except _FAILURES as error:
            references = error
        mixed = self._mixture(mixture)
        noted = hashes(mixture, (*mixture.references, mixture.mixture))
        frames = frame_store.Kept(self.folder, mixture.name)
        names = list(systems)
        signatures = {system: signature(mixture, system) for system in names}
        for system, outcome in self._outcomes(mixture, names, references, mixed):
            report, reason = (outcome, None) if isinstance(outcome, Report) else (None, outcome)
            # Before the record: a pair that is finished has its frames on the disk.
            frames.put(system, report)
            yield {
                "mixture_id": mixture.name,
                "system": system,
                "reason": reason,
                "rows": _scored_rows(mixture, system, report)
                if report is not None
                else _failed_rows(mixture, system, str(reason)),
                "findings": [] if report is None else [list(found) for found in report.findings],
                "files": signatures[system],
                "seconds": None if report is None else _seconds(report),
                "sha256": noted | hashes(mixture, mixture.systems[system]),
            }

    def _outcomes(
        self,
        mixture: Mixture,
        systems: list[str],
        references: tuple[Clip, ...] | Exception,
        mixed: Clip | None,
    ) -> Iterator[tuple[str, Report | str]]:
        """The report of each system, or why there is none.

        One after another; those of a long mixture together, in one pass over its segments.
        """
        found: dict[str, Report | str] = {}
        entries: dict[str, Entry] = {}
        long = not isinstance(references, Exception) and self._is_long(references)
        for system in systems:
            try:
                if isinstance(references, Exception):
                    raise references
                entries[system] = self._entry(mixture, system, references, mixed)
                if not long:
                    found |= self._reports(mixture, {system: entries.pop(system)})
            except files.WriteError:
                raise
            except _FAILURES as error:
                found[system] = _reason(error)
            if not long:
                yield system, found.pop(system)
        if long:
            for together in _of_one_length(entries):
                try:
                    found |= self._reports(mixture, together)
                except files.WriteError:
                    raise
                except _FAILURES as error:
                    found |= dict.fromkeys(together, _reason(error))
            yield from ((system, found[system]) for system in systems)

    def _is_long(self, references: Sequence[Clip]) -> bool:
        """Whether the mixture is scored in segments."""
        samples = min(len(clip.wave) for clip in references)
        rate, wanted = self.mapss.sample_rate, self.mapss.grid.sample_rate
        return self.mapss.is_long(-(-samples * wanted // rate))

    def _mixture(self, mixture: Mixture) -> Clip | None:
        """The mixture's own file, if it is named and can be read: no score depends on it."""
        if mixture.mixture is None:
            return None
        try:
            path = mixture.locate(mixture.mixture)
            return clips.read_file(path, "mixture", self.mapss.sample_rate)
        except _FAILURES:
            return None

    def _entry(
        self, mixture: Mixture, system: str, references: tuple[Clip, ...], mixed: Clip | None
    ) -> Entry:
        paths = [None if p is None else mixture.locate(p) for p in mixture.systems[system]]
        estimates = clips.read_set(paths, "estimates", self.mapss.sample_rate)
        return entered(self.mapss, estimates, references, self.request, self.device, mixture=mixed)

    def _reports(self, mixture: Mixture, entries: dict[str, Entry]) -> dict[str, Report]:
        """The reports of systems of one length, in one pass."""
        reports = score_entries(
            self.mapss,
            list(entries.values()),
            self.request,
            self.prepared,
            on_segment=self.on_segment,
        )
        if self.save_frames:
            for system, report in zip(entries, reports):
                parts = (files.native(file_name(name)) for name in (mixture.name, system))
                report.save(os.path.join(self.folder, "frames", *parts))
        return dict(zip(entries, reports))


def _reason(error: Exception) -> str:
    return " ".join((str(error) or type(error).__name__).split())


def _of_one_length(entries: dict[str, Entry]) -> list[dict[str, Entry]]:
    """The entries by the number of samples that is scored."""
    found: dict[int, dict[str, Entry]] = {}
    for system, entry in entries.items():
        found.setdefault(entry.truth.shape[-1], {})[system] = entry
    return list(found.values())


def _seconds(report: Report) -> float:
    """Length of what was scored."""
    lengths = [len(clip.wave) for clip in (*report.references, *report.estimates)]
    return float(_nine_digits(min(lengths) / report.sample_rate))


def _scored_rows(mixture: Mixture, system: str, report: Report) -> list[Record]:
    given = [path for path in mixture.systems[system] if path is not None]
    notes = "; ".join(report.notes)
    warnings = "; ".join(finding.text for finding in report.findings)
    rows = []
    for row, estimate in zip(report.rows, given):
        values = {key: _nine_digits(value) for key, value in row._asdict().items()}
        values["estimate"] = estimate
        values["reference"] = mixture.references[row.source_index]
        status = "ok" if row.frames else "undefined"
        reason = "" if row.frames else "no frame in which it and another source are active"
        rows.append(
            {"mixture_id": mixture.name, "system": system, **values}
            | {"status": status, "reason": reason, "notes": notes, "warnings": warnings}
        )
    return rows


def _nine_digits(value: Any) -> Any:
    """Numbers as the tables show them, so that means can be redone from these exactly."""
    return float(files.cell(value)) if isinstance(value, float) else value


def _failed_rows(mixture: Mixture, system: str, reason: str) -> list[Record]:
    names = mixture.source_names
    blank: dict[str, Any] = dict.fromkeys(SourceRow._fields)
    blank |= dict.fromkeys((*MEANS, *MEDIANS, "attributed_distance"), float("nan"))
    return [
        blank
        | {"mixture_id": mixture.name, "system": system, "source": names[place]}
        | {"source_index": place, "estimate": path, "reference": mixture.references[place]}
        | {"frames": 0, "status": "failed", "reason": reason, "notes": "", "warnings": ""}
        for place, path in enumerate(mixture.systems[system])
        if path is not None
    ]


# ------------------------------------------------------------------------------------------------
# The run
# ------------------------------------------------------------------------------------------------


class Outcome(NamedTuple):
    """What a run over a manifest found."""

    scores: tuple[Record, ...]  # one row per estimate
    items: tuple[Record, ...]  # one per mixture and system
    sets: tuple[Record, ...]  # one per system
    failures: tuple[str, ...]  # one line per mixture and system that failed
    warnings: tuple[str, ...] = ()  # one line per kind of finding about the signals
    processes: World = World()
    device: str = "cpu"  # that it was computed on
    missing: int = 0  # pairs of mixture and system that other shares have still to score: no tables
    settings: Mapping[str, Any] = MappingProxyType({})  # all that the scores depend on

    def summary(self) -> str:
        """A table of the systems to print, with counts."""
        if self.missing:
            return self._share_summary()
        # B as its log alone, and the median of log PM beside its mean.
        names = [name for name in measures_of(self.sets) if name != "foreign_distance"]
        names.insert(names.index("log_pm") + 1, "log_pm_median")
        shown = {name: LABELS.get(name, "median") for name in names}
        counts = ("scored", "undefined", "failed")
        rows = [
            [
                row["system"],
                *(number(row[name], ".2f" if name.startswith("log") else ".3f") for name in shown),
                *(str(row[name]) for name in counts),
            ]
            for row in self.sets
        ]
        return "\n".join(
            [
                files.text_table(["system", *shown.values(), *counts], rows),
                "",
                "PS: 1 = no leakage, PM: 1 = undistorted, both 0..1, higher is better.",
                "log B: log of the distance to the closest other source, higher = less leakage.",
                "Means over frames, then over the estimates of a mixture, then over mixtures;",
                "undefined and failed mixtures are left out. scored, undefined, failed: mixtures.",
                "median: of log PM, by medians in all these steps; a dead output moves it little.",
                *([rank_meaning(self.settings)] if RANK in shown else []),
                *(f"Warning: {warning}." for warning in self.warnings),
                f"Computed on {self.device}.",
            ]
        )

    def _share_summary(self) -> str:
        share = f"Share {self.processes.rank % self.processes.size} of {self.processes.size}"
        return (
            f"{share} is scored; {self.missing} pairs of mixture and system of other shares are "
            "not. The share that ends last writes the tables, or the same command without --shard."
        )


def run(
    mixtures: Sequence[Mixture],
    out: str | os.PathLike[str],
    make_mapss: Callable[[], MAPSS],
    request: Request | None = None,
    *,
    device: str | None = None,
    save_frames: bool = False,
    options: Mapping[str, Any] | None = None,
    progress: Callable[..., Iterable[Any]] | None = None,
    share: World | None = None,
    tell: Callable[[str], object] = lambda text: None,
    on_segment: Callable[[int, int], object] | None = None,
) -> Outcome:
    """Score the mixtures of a manifest, going on from what ``out`` holds already.

    Args:
        mixtures: of :func:`load_manifest`.
        out: folder of the results; see the notes of this module and ``torch-mapss evaluate -h``.
        make_mapss: makes the scorer.
        request: what to compute.
        device: to compute on; where the scorer is by default.
        save_frames: write the frame scores of every pair as tables as well, to
            ``out/frames/MIXTURE/SYSTEM``.
        options: of the command that made the scorer, for :mod:`torch_mapss.evaluation.verify`.
        progress: wraps the mixtures in a progress bar.
        share: score this share of the mixtures alone, see :mod:`.processes`.
        tell: handed sentences about the run, e.g. what is done already.
        on_segment: told how many segments of a long mixture are scored, and of how many: as scoring
            begins, and after each.

    Returns:
        The tables, the same on every rank; of a share that is not the last to end, none.

    Raises:
        ValueError: ``out`` is a file, holds results of other settings, or is being written to;
            or variables of a launcher that make no sense.
        WriteError: the results cannot be written, as on a full disk.
        KeyboardInterrupt: with a text that says how to go on.
    """
    request = request or Request()
    folder = os.fspath(out)
    mixtures = of_one_folder(mixtures)
    with world(share) as processes:
        processes.together(lambda: files.make_folder(folder) and None)
        mapss = _loaded(make_mapss)
        settings = _settings(mapss, request, save_frames)
        extra = {} if options is None else {"options": options}
        processes.together(lambda: claim(folder, settings, extra))
        scorer = _Scorer(mapss, request, device, folder, save_frames, on_segment)
        try:
            _score_share(mixtures, folder, scorer, processes, progress, tell)
        except KeyboardInterrupt:
            raise KeyboardInterrupt(_how_to_go_on(mixtures, folder)) from None
        processes.wait()
        rate = mapss.grid.sample_rate
        tables = processes.together(lambda: _join(mixtures, folder, processes, rate))
        place = device_name(scorer.device)
        return tables._replace(processes=processes, device=place, settings=settings)


def _settings(mapss: MAPSS, request: Request, save_frames: bool) -> dict[str, Any]:
    # The key knows of distortions of the user's own, which the description does not tell.
    settings = {**described(mapss), "key": mapss.key, **request._asdict()}
    settings["save_frames"] = save_frames
    if not request.bounds:  # nothing depends on it
        del settings["confidence"]
    return settings


def _how_to_go_on(mixtures: Sequence[Mixture], folder: str) -> str:
    done = len(finished(mixtures, Progress(folder, 0).records()))
    pairs = sum(len(mixture.systems) for mixture in mixtures)
    return (
        f"after {done} of {pairs} pairs of mixture and system, which are kept in "
        f"{files.shown(folder)!r}: the same command goes on from there"
    )


def _loaded(make_mapss: Callable[[], MAPSS]) -> MAPSS:
    from torch_mapss.encoders import rank_zero_first

    with rank_zero_first():
        return make_mapss()


def _score_share(
    mixtures: Sequence[Mixture],
    folder: str,
    scorer: _Scorer,
    processes: World,
    progress: Callable[..., Iterable[Any]] | None,
    tell: Callable[[str], object],
) -> None:
    """Score what this rank is to score of what is not scored yet."""
    store = Progress(folder, processes.rank)
    if processes.grouped:
        # Rank 0 decides for all: a rank that looked later would see what an earlier one wrote.
        pending = processes.together(lambda: _pending(mixtures, range(len(mixtures)), store))
        share = pending[processes.rank :: processes.size]
    else:
        # Apart, places in the manifest decide, which no other share changes.
        share = _pending(mixtures, range(processes.rank, len(mixtures), processes.size), store)
    if processes.speaks:
        _tell_start(mixtures, processes, store, tell)
    bar = progress if progress is not None and processes.speaks else _no_bar
    with store.writer() as write:
        for place, systems in bar(share, desc="scoring", unit="mixture"):
            for record in scorer.records(mixtures[place], systems):
                write(record)


def _tell_start(
    mixtures: Sequence[Mixture], processes: World, store: Progress, tell: Callable[[str], object]
) -> None:
    """Whose share this is, and what is done already."""
    if processes.size > 1 and not processes.grouped:
        tell(
            f"share {processes.rank} of {processes.size} (counted from 0): one mixture in "
            f"{processes.size}. Tables are written once all shares are done"
        )
    records = finished(mixtures, store.records()).values()
    done = sum(record["reason"] is None for record in records)
    if records:
        again = (
            f"; {len(records) - done} that failed are tried again" if done < len(records) else ""
        )
        pairs = sum(len(mixture.systems) for mixture in mixtures)
        tell(f"{done} of {pairs} pairs of mixture and system are done already{again}")


def _no_bar(items: Iterable[Any], **_: Any) -> Iterable[Any]:
    return items


def _pending(
    mixtures: Sequence[Mixture], places: Iterable[int], store: Progress
) -> list[tuple[int, list[str]]]:
    """Mixtures, by place, with the systems that are still to be scored, failed ones included."""
    done = finished(mixtures, store.records())
    folder = os.path.dirname(store.folder)
    found = []
    for place in places:
        mixture = mixtures[place]
        kept = frame_store.systems_of(frame_store.path_of(folder, mixture.name))
        scored = {
            system
            for system in kept
            if (key := (mixture.name, system)) in done and done[key]["reason"] is None
        }
        systems = [system for system in mixture.systems if system not in scored]
        if systems:
            found.append((place, systems))
    return found


def _join(mixtures: Sequence[Mixture], folder: str, processes: World, rate: int) -> Outcome:
    """Write the tables, in the order of the manifest, every pair of which has its rows.

    A share writes none while pairs of others are missing. ``rate`` is the encoder's, in Hz.
    """
    found = finished(mixtures, Progress(folder, 0).records())
    pairs = [(mixture, system) for mixture in mixtures for system in mixture.systems]
    missing = sum((mixture.name, system) not in found for mixture, system in pairs)
    if missing and processes.size > 1 and not processes.grouped:
        own = mixtures[processes.rank :: processes.size]
        records = [found[key] for m in own for s in m.systems if (key := (m.name, s)) in found]
        return Outcome((), (), (), _failures(records), missing=missing)
    records = [found.get((m.name, system)) or _lost(m, system) for m, system in pairs]
    records = _ranked(records)
    scores = [row for record in records for row in record["rows"]]
    items = [_item(mixture, record) for (mixture, _), record in zip(pairs, records)]
    sets = _sets(items, scores, rate)
    for name, columns, rows in (
        ("scores.csv", SCORE_COLUMNS, scores),
        ("items.csv", ITEM_COLUMNS, items),
        ("summary.csv", SET_COLUMNS, sets),
    ):
        files.write_csv(os.path.join(folder, name), columns_of(columns, rows), rows)
    files.write_json(os.path.join(folder, "mixtures.json"), listed(mixtures, folder))
    note_hashes(folder, {k: v for record in records for k, v in record.get("sha256", {}).items()})
    warnings = (*_warnings(records), *_mixed_rates(sets))
    return Outcome(tuple(scores), tuple(items), tuple(sets), _failures(records), warnings)


def _ranked(records: list[Record]) -> list[Record]:
    """With PM's rank as undefined in the rows of failed pairs, if other rows have it."""
    if not has_rank(row for record in records for row in record["rows"]):
        return records

    def filled(row: Record) -> Record:
        return row if row.get(RANK) is not None else row | {RANK: float("nan")}

    return [record | {"rows": [filled(row) for row in record["rows"]]} for record in records]


def _failures(records: Iterable[Record]) -> tuple[str, ...]:
    return tuple(
        f"mixture {record['mixture_id']!r}, system {record['system']!r}: {record['reason']}"
        for record in records
        if record["reason"] is not None
    )


def _warnings(records: Sequence[Record]) -> Iterator[str]:
    """What was found about the signals, a line for each kind."""
    kinds: dict[str, list[tuple[Record, str]]] = {}
    for record in records:
        for kind, text in record.get("findings", ()):
            kinds.setdefault(kind, []).append((record, text))
    for kind, cases in kinds.items():
        pairs = dict.fromkeys((r["mixture_id"], r["system"]) for r, _ in cases)
        systems = files.listed(dict.fromkeys(repr(system) for _, system in pairs), 3)
        first, text = cases[0]
        yield (
            f"{kind}: in {len(pairs)} of {len(records)} pairs of mixture and system ({systems}), "
            f"first in mixture {first['mixture_id']!r}, system {first['system']!r}: {text}"
        )


def _mixed_rates(sets: Sequence[Record]) -> Iterator[str]:
    for row in sets:
        if ";" in row["rates"]:
            rates = row["rates"].replace(";", ", ")
            yield (
                f"rates: the means of system {row['system']!r} are over files of {rates} Hz, whose "
                "scores do not compare. Score each rate on its own"
            )


def _lost(mixture: Mixture, system: str) -> Record:
    """The record of a pair without one: its score is of files that are no longer there."""
    reason = "its files were changed while the run went on; start it again"
    rows = _failed_rows(mixture, system, reason)
    return {"mixture_id": mixture.name, "system": system, "reason": reason, "rows": rows}


def _item(mixture: Mixture, record: Record) -> Record:
    """One mixture and system: means over its estimates."""
    rows = record["rows"]
    undefined = sum(row["status"] == "undefined" for row in rows)
    status = "undefined" if undefined == len(rows) else "ok"
    return {
        "mixture_id": record["mixture_id"],
        "system": record["system"],
        **{name: _nine_digits(value) for name, value in _averages(rows).items()},
        "estimates": len(rows),
        "undefined": undefined,
        "silent": sum(bool(row["silent"]) for row in rows),
        "references": len(mixture.references),
        "seconds": record.get("seconds"),
        "status": status if record["reason"] is None else "failed",
        "reason": record["reason"] or "",
    }


def _averages(rows: Sequence[Record]) -> Record:
    """Of the scores of estimates or mixtures, the undefined ones left out."""
    names = (*MEANS, RANK) if has_rank(rows) else MEANS
    means = {name: mean([row[name] for row in rows]) for name in names}
    return means | {name: median([row[name] for row in rows]) for name in MEDIANS}


def _sets(items: Sequence[Record], scores: Sequence[Record], rate: int) -> list[Record]:
    """One row per system: means over its mixtures; ``rate`` is the encoder's, in Hz."""
    found = []
    for system in dict.fromkeys(item["system"] for item in items):
        own = [item for item in items if item["system"] == system]
        rows = [row for row in scores if row["system"] == system]
        states = [item["status"] for item in own]
        # What lies above the encoder's rate makes no difference.
        rates = {
            min(row["estimate_rate"], row["reference_rate"], rate)
            for row in rows
            if row["estimate_rate"]
        }
        found.append(
            {"system": system}
            | _averages(own)
            | {"scored": states.count("ok"), "undefined": states.count("undefined")}
            | {"failed": states.count("failed")}
            | {"estimates": sum(row["status"] == "ok" for row in rows)}
            | {"silent": sum(item["silent"] for item in own)}
            | {"frames": sum(row["frames"] for row in rows)}
            | {"rates": ";".join(map(str, sorted(rates)))}
        )
    return found
