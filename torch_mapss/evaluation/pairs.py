"""Pairs of mixture and system: scored one after another, a record of each."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import TYPE_CHECKING, Any

from torch_mapss.evaluation import clips, files, frame_store
from torch_mapss.evaluation.entries import Entry, entered, score_entries, silent
from torch_mapss.evaluation.manifest import Mixture, Record
from torch_mapss.evaluation.progress import file_name, hashes, signature
from torch_mapss.evaluation.report import MEANS, MEDIANS, Report, SourceRow
from torch_mapss.evaluation.request import PreparedOnce, Request, device_of

if TYPE_CHECKING:
    from torch_mapss.evaluation.clips import Clip
    from torch_mapss.pipeline.mapss import MAPSS


# What makes one mixture fail; anything else ends the run.
_FAILURES = (ValueError, TypeError, OSError, RuntimeError, MemoryError)


class PairScorer:
    """Scores the systems of a mixture; its references are read and prepared once."""

    def __init__(
        self,
        mapss: MAPSS,
        request: Request,
        device: Any,
        folder: str,
        save_frames: bool,
        on_segment: Callable[[int, int], object] | None = None,
        on_stage: Callable[[str], object] = silent,
    ) -> None:
        self.on_segment, self.on_stage = on_segment, on_stage
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
                else failed_rows(mixture, system, str(reason)),
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
        given = list(entries.values())
        long = self.mapss.is_long(given[0].truth.shape[-1])
        stage = self.on_stage if long else silent
        reports = score_entries(
            self.mapss, given, self.request, self.prepared, stage, self.on_segment
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
    return float(nine_digits(min(lengths) / report.sample_rate))


def _scored_rows(mixture: Mixture, system: str, report: Report) -> list[Record]:
    given = [path for path in mixture.systems[system] if path is not None]
    notes = "; ".join(report.notes)
    warnings = "; ".join(finding.text for finding in report.findings)
    rows = []
    for row, estimate in zip(report.rows, given):
        values = {key: nine_digits(value) for key, value in row._asdict().items()}
        values["estimate"] = estimate
        values["reference"] = mixture.references[row.source_index]
        status = "ok" if row.frames else "undefined"
        reason = "" if row.frames else "no frame in which it and another source are active"
        rows.append(
            {"mixture_id": mixture.name, "system": system, **values}
            | {"status": status, "reason": reason, "notes": notes, "warnings": warnings}
        )
    return rows


def nine_digits(value: Any) -> Any:
    """Numbers as the tables show them, so that means can be redone from these exactly."""
    return float(files.cell(value)) if isinstance(value, float) else value


def failed_rows(mixture: Mixture, system: str, reason: str) -> list[Record]:
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
