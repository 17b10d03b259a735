"""A whole test set: manifest in, tables out, resumable, over one process or many.

From frames to one number per system, each step in a table that the next can be redone from:

1. frame -> *source*: pooled over the scored frames of one estimate, ``scores.csv``;
2. source -> *item*: mean over the estimates of one mixture and system, ``items.csv``;
3. item -> *set*: mean over the mixtures of one system, ``summary.csv``.

Undefined numbers (a silent reference, no frame with two active sources, a mixture that failed) are
``nan``, left out of the next mean, and counted. With excerpts each score has its standard error
over them beside it, ``ps_se``.

A run that was killed and started again goes on where it stopped, and writes the tables of an
uninterrupted one, byte for byte on one machine: see :mod:`torch_mapss.evaluation.shards`.
"""

from __future__ import annotations

import errno
import os
import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any

import torch

from torch_mapss.core import checks
from torch_mapss.core.devices import device_name
from torch_mapss.evaluation import audio_input, console, frame_store, io, options, tables
from torch_mapss.evaluation.audio_input import Clip
from torch_mapss.evaluation.manifest import Mixture, Record, load_manifest, of_one_folder
from torch_mapss.evaluation.manifest import read_entries as read_manifest_entries
from torch_mapss.evaluation.options import Request
from torch_mapss.evaluation.protocol import described
from torch_mapss.evaluation.report import Report
from torch_mapss.evaluation.results import Results, load_results
from torch_mapss.evaluation.score import Entry, OnSegment, read_entry, score_entries, spans_of
from torch_mapss.evaluation.shards import Progress, Share, claim, finished, hashes, signature
from torch_mapss.evaluation.tables import Outcome

if TYPE_CHECKING:
    from torch_mapss.pipeline.mapss import MAPSS

# What makes one mixture fail; anything else ends the run.
_FAILURES = (ValueError, TypeError, OSError, RuntimeError, MemoryError)
# What cannot be written for these reasons cannot be written for the next mixture either.
_OF_THE_RUN = (errno.ENOSPC, errno.EDQUOT, errno.EROFS, errno.ENOENT, errno.EACCES, errno.EPERM)
_WARM_UP_S, _PIECE_S = 1.0, 3.0  # of audio, from which the time of a long run is told
_LONG_S = 120.0  # of audio, above which it is


def evaluate_set(
    manifest: str | os.PathLike[str] | Sequence[Mapping[str, Any] | Mixture],
    *,
    out: str | os.PathLike[str],
    device: torch.device | str | None = None,
    mapss: MAPSS | None = None,
    shard: str | None = None,
    progress: bool = False,
    **settings: Any,
) -> Results | None:
    """Score the systems of a test set, going on from what ``out`` holds already.

    Args:
        manifest: path of a JSON file, or its entries: ``{"mixture_id": …, "references": […],
            "systems": {name: […]}}`` with paths relative to the manifest (entries: to the working
            folder), ``None`` for a source that a system does not estimate; or what
            :func:`torch_mapss.evaluation.folders.read_folders` found, its ``mixtures``.
        out: folder of the results, see :mod:`torch_mapss.evaluation.results`.
        device, mapss: as for :func:`torch_mapss.evaluate`.
        shard: ``"i/n"``: score the i-th of n shares alone. By default what torchrun or srun say.
        progress: tell on the error stream how far it is.
        settings: as for :func:`torch_mapss.evaluate`.

    Returns:
        :class:`~torch_mapss.evaluation.results.Results`, which :func:`torch_mapss.compare` takes;
        None where shares of other processes are still to be scored.

    Raises:
        ManifestError: everything that is wrong with the manifest.
        TypeError, ValueError: options out of range, or ``out`` is a file, holds results of other
            settings, or is being written to.
        OSError: the results cannot be written, as on a full disk.

    Warns:
        UserWarning: mixtures that failed, and what makes scores mean something else than a reader
            expects.

    Example:
        >>> from torch_mapss import compare, evaluate_set
        >>> results = evaluate_set("set.json", out="results", encoder="mel")    # doctest: +SKIP
        >>> print(compare(results))                                             # doctest: +SKIP
    """
    given = options.checked_options(settings)
    request = options.request_of(given)
    mixtures = as_mixtures(manifest)
    device = options.chosen_device(device, mapss, given)
    scorer = options.scorer_of(given, device, mapss)
    outcome = run(
        mixtures,
        out,
        scorer,
        request,
        device=device,
        options=storable(given) if mapss is None else None,
        share=Share.of_environment() if shard is None else Share.parse(shard),
        quiet=not progress,
    )
    for line in (*outcome.failures, *outcome.warnings):
        checks.warn_user(f"{line}.")
    return None if outcome.missing else load_results(out)


def storable(given: Mapping[str, Any]) -> dict[str, Any] | None:
    """Options as settings.json keeps them; None where some are objects of Python."""
    found = {k: list(v) if isinstance(v, tuple) else v for k, v in given.items()}
    encoder = found.get("encoder")
    if isinstance(encoder, str) and os.path.isdir(encoder):
        found["encoder"] = os.path.abspath(encoder)
    return found if io.plain(found) == found else None


def as_mixtures(manifest: Any) -> tuple[Mixture, ...]:
    """The mixtures of a manifest's path, of its entries, or those given."""
    if isinstance(manifest, str | os.PathLike):
        return load_manifest(manifest)
    found = list(manifest)
    if found and all(isinstance(one, Mixture) for one in found):
        return tuple(found)
    return read_manifest_entries(found, "the manifest", "")


def run(
    mixtures: Sequence[Mixture],
    out: str | os.PathLike[str],
    scorer: MAPSS,
    request: Request,
    *,
    device: torch.device | str | None = None,
    options: Mapping[str, Any] | None = None,
    share: Share | None = None,
    quiet: bool = True,
) -> Outcome:
    """Score the mixtures of a manifest and write the tables once all shares are done.

    Args:
        mixtures: of :func:`load_manifest`.
        out: folder of the results.
        scorer: computes the scores.
        request: what is scored and how.
        device: to compute on; where the scorer is by default.
        options: to make the same scores again, see :mod:`torch_mapss.evaluation.options`.
        share: score this share of the mixtures alone.
        quiet: tell nothing while it runs.

    Returns:
        The tables; of a share that is not the last to end, none.

    Raises:
        ValueError: ``out`` is a file, holds results of other settings, or is being written to.
        WriteError: the results cannot be written, as on a full disk.
        KeyboardInterrupt: with a text that says how to go on.
    """
    folder, share = io.make_folder(out), share or Share()
    mixtures = of_one_folder(mixtures)
    settings = _settings(scorer, request)
    claim(folder, settings, options)
    work = SetScorer(scorer, request, device, folder)
    store = Progress(folder, share.rank)
    pending = _pending(mixtures, share.own(len(mixtures)), store)
    if not quiet:
        for line in _start(mixtures, share, store):
            console.complain(line)
        for line in work.estimated([mixtures[place] for place, _ in pending]):
            console.complain(line)
    try:
        with store.writer() as write:
            _score(mixtures, pending, work, write, quiet)
    except KeyboardInterrupt:
        done = len(finished(mixtures, store.records()))
        raise KeyboardInterrupt(
            f"after {done} of {_pairs(mixtures)} pairs of mixture and system, which are kept in "
            f"{io.shown(folder)!r}: the same command goes on from there"
        ) from None
    outcome = tables.join(mixtures, folder, share, scorer.grid.sample_rate)
    return outcome._replace(device=device_name(work.device), settings=settings)


def _score(
    mixtures: Sequence[Mixture],
    pending: Sequence[tuple[int, list[str]]],
    work: SetScorer,
    write: Any,
    quiet: bool,
) -> None:
    lengths = [work.seconds(mixtures[place]) for place, _ in pending]
    start = 0.0
    with console.progress(sum(lengths), quiet) as bar:
        for number, ((place, systems), length) in enumerate(zip(pending, lengths), 1):

            def tell(done: int, total: int, start: float = start, length: float = length) -> None:
                bar.update(start + length * done / total - bar.n)

            bar.set_postfix_str(f"{number} of {len(pending)}: {mixtures[place].name}", False)
            for record in work.records(mixtures[place], systems, tell):
                write(record)
            start += length
            bar.update(start - bar.n)


def _settings(scorer: MAPSS, request: Request) -> dict[str, Any]:
    # The key depends on distortions of the user's own as well, which the description omits.
    settings = {**described(scorer, request.measures), "key": scorer.key, **request._asdict()}
    if not request.bounds:  # nothing depends on it
        del settings["confidence"]
    if request.excerpts is None:
        del settings["excerpt_seconds"]
    return settings


def _pairs(mixtures: Sequence[Mixture]) -> int:
    return sum(len(mixture.systems) for mixture in mixtures)


def _start(mixtures: Sequence[Mixture], share: Share, store: Progress) -> Iterator[str]:
    """Whose share this is, and what is done already."""
    if share.size > 1:
        yield (
            f"share {share.rank} of {share.size} (counted from 0): one mixture in {share.size}. "
            "The share that ends last writes the tables"
        )
    records = finished(mixtures, store.records()).values()
    done = sum(record["reason"] is None for record in records)
    if records:
        failed = len(records) - done
        again = f"; {failed} that failed are tried again" if failed else ""
        yield f"{done} of {_pairs(mixtures)} pairs of mixture and system are done already{again}"


def _pending(
    mixtures: Sequence[Mixture], places: Iterable[int], store: Progress
) -> list[tuple[int, list[str]]]:
    """Mixtures, by place, with the systems that are still to be scored, failed ones included."""
    records = finished(mixtures, store.records())
    done = {pair for pair, record in records.items() if record["reason"] is None}
    found = []
    for place in places:
        mixture = mixtures[place]
        kept = frame_store.systems_of(frame_store.path_of(store.results, mixture.name))
        systems = [
            system
            for system in mixture.systems
            if system not in kept or (mixture.name, system) not in done
        ]
        if systems:
            found.append((place, systems))
    return found


# ------------------------------------------------------------------------------------------------
# One mixture
# ------------------------------------------------------------------------------------------------


class SetScorer:
    """Scores the systems of mixtures; references are read and prepared once for all of them."""

    def __init__(
        self, mapss: MAPSS, request: Request, device: torch.device | str | None, folder: str
    ) -> None:
        self.mapss, self.request, self.folder = mapss, request, folder
        self.device = options.device_of(mapss, device)

    def records(
        self, mixture: Mixture, systems: Sequence[str], on_segment: OnSegment
    ) -> Iterator[Record]:
        """A record for each of the systems; what fails is told in it."""
        signatures = {system: signature(mixture, system) for system in systems}
        noted = hashes(mixture, (*mixture.references, mixture.mixture))
        store = frame_store.Kept(self.folder, mixture.name)
        for system, outcome in self._outcomes(mixture, systems, on_segment):
            report, reason = (outcome, None) if isinstance(outcome, Report) else (None, outcome)
            try:
                # Before the record: a pair that is finished has its frames on the disk.
                store.put(system, report)
            except io.WriteError as error:
                if error.errno in _OF_THE_RUN:
                    raise
                report, reason = None, _reason(error)
            yield {
                "mixture_id": mixture.name,
                "system": system,
                "reason": reason,
                "rows": tables.failed_rows(mixture, system, str(reason))
                if report is None
                else tables.scored_rows(mixture, system, report),
                "errors": {}
                if report is None
                else {f"{n}_se": v for n, v in report.errors.items()},
                "findings": [] if report is None else [list(found) for found in report.findings],
                "files": signatures[system],
                "seconds": None if report is None else _seconds(report),
                "sha256": noted | hashes(mixture, mixture.systems[system]),
            }

    def _outcomes(
        self, mixture: Mixture, systems: Sequence[str], on_segment: OnSegment
    ) -> Iterator[tuple[str, Report | str]]:
        """The report of each system, or why there is none."""
        found: dict[str, Report | str] = {}
        entries: dict[int, dict[str, Entry]] = {}  # by number of samples
        try:
            references, mixed = self._references(mixture)
        except _FAILURES as error:
            yield from ((system, _reason(error)) for system in systems)
            return
        for system in systems:
            try:
                entry = self._entry(mixture, system, references, mixed)
                entries.setdefault(entry.truth.shape[-1], {})[system] = entry
            except _FAILURES as error:
                found[system] = _reason(error)
        for together in entries.values():
            found |= self._reports(mixture, together, on_segment)
        yield from ((system, found[system]) for system in systems)

    def _reports(
        self, mixture: Mixture, entries: dict[str, Entry], on_segment: OnSegment
    ) -> dict[str, Report | str]:
        """All in one pass; where that fails, one after another, to find out which fails."""
        try:
            given = list(entries.values())
            made = score_entries(self.mapss, given, self.request, mixture.name, on_segment)
            return dict(zip(entries, made))
        except _FAILURES as error:
            if len(entries) == 1:
                return dict.fromkeys(entries, _reason(error))
        found: dict[str, Report | str] = {}
        for system, entry in entries.items():
            found |= self._reports(mixture, {system: entry}, on_segment)
        return found

    def _references(self, mixture: Mixture) -> tuple[tuple[Clip, ...], Clip | None]:
        paths = [mixture.locate(path) for path in mixture.references]
        given = self._read(paths, "references")
        named = audio_input.renamed(given, mixture.source_names)
        mixed = None
        if mixture.mixture is not None:  # no score depends on it, so it need not be readable
            try:
                mixed = self._read([mixture.locate(mixture.mixture)], "mixture")[0]
            except _FAILURES:
                mixed = None
        return tuple(clip for clip in named if clip is not None), mixed

    def _read(self, paths: Sequence[str | None], kind: str) -> tuple[Clip | None, ...]:
        each = self.request.channels == "each"
        return audio_input.read_set(paths, kind, self.mapss.sample_rate, each=each)

    def _entry(
        self, mixture: Mixture, system: str, references: tuple[Clip, ...], mixed: Clip | None
    ) -> Entry:
        paths = [None if p is None else mixture.locate(p) for p in mixture.systems[system]]
        estimates = self._read(paths, "estimates")
        return read_entry(
            self.mapss, estimates, references, self.request, self.device, mixture=mixed
        )

    # -------------------------------------------------------------------------- time it will take

    def seconds(self, mixture: Mixture) -> float:
        """Of audio that is scored of a mixture; 0 where its first file cannot be read."""
        whole = self._length(mixture)
        if self.request.excerpts is None:
            return whole
        return min(whole, self.request.excerpts * self.request.excerpt_seconds)

    def _length(self, mixture: Mixture) -> float:
        import soundfile

        try:
            with open(mixture.locate(mixture.references[0]), "rb") as file:
                return float(soundfile.info(file).duration)
        except (OSError, RuntimeError, TypeError):
            return 0.0

    def estimated(self, mixtures: Sequence[Mixture]) -> Iterator[str]:
        """About how long a long run will take, from scoring a few seconds of its first mixture."""
        whole = sum(map(self._length, mixtures))
        if sum(map(self.seconds, mixtures)) < _LONG_S:
            return
        rate = self._measured(mixtures[0])
        if rate is None:
            return
        first = mixtures[0]
        told = (
            f"{len(mixtures)} mixtures, {len(first.references)} sources, {len(first.systems)} "
            f"systems, {console.duration(whole)} of audio: about "
            f"{console.duration(rate * sum(map(self.seconds, mixtures)))} on this machine"
        )
        if self.request.excerpts is None:
            some = SetScorer(self.mapss, self.request._replace(excerpts=8), self.device, "")
            left = rate * sum(map(some.seconds, mixtures))
            told += f" (with --excerpts 8 about {console.duration(left)})"
        yield told

    def _measured(self, mixture: Mixture) -> float | None:
        """Seconds that a second of audio takes, all systems together."""
        try:
            references, _ = self._references(mixture)
            entries = [self._entry(mixture, name, references, None) for name in mixture.systems]
            taken = 0.0
            for seconds in (_WARM_UP_S, _PIECE_S):
                piece = self.request._replace(excerpts=1, excerpt_seconds=seconds, bounds=False)
                started = time.monotonic()
                score_entries(self.mapss, entries, piece, mixture.name)
                taken = time.monotonic() - started
            (span,) = spans_of(self.mapss, entries[0], piece, mixture.name)
            return taken * self.mapss.sample_rate / (span[1] - span[0])
        except _FAILURES:  # what is wrong is told where it is scored
            return None


def _reason(error: BaseException) -> str:
    return " ".join((str(error) or type(error).__name__).split())


def _seconds(report: Report) -> float:
    """Length of what was scored."""
    lengths = [len(clip.wave) for clip in (*report.references, *report.estimates)]
    return float(io.nine_digits(min(lengths) / report.sample_rate))
