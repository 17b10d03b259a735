"""A whole test set: manifest in, tables out, resumable, over one process or many.

What is averaged in which order: :mod:`torch_mapss.evaluation`. A run that was killed and started
again goes on where it stopped, and writes the tables of an uninterrupted one, byte for byte on one
machine: :mod:`torch_mapss.evaluation.shards`.
"""

from __future__ import annotations

import errno
import os
import time
from collections.abc import Mapping, Sequence
from contextlib import suppress
from typing import TYPE_CHECKING, Any

import torch

from torch_mapss.core import checks
from torch_mapss.core.devices import device_name
from torch_mapss.evaluation import console, io, shards, tables
from torch_mapss.evaluation.audio_input import Clip
from torch_mapss.evaluation.input_checks import Signals
from torch_mapss.evaluation.manifest import Mixture, Record, load_manifest, of_one_folder
from torch_mapss.evaluation.manifest import read_entries as read_manifest_entries
from torch_mapss.evaluation.protocol import settings_of
from torch_mapss.evaluation.report import Report
from torch_mapss.evaluation.results import Results, frames_path, read_frames, write_frames
from torch_mapss.evaluation.score import OnSegment, Scorer
from torch_mapss.evaluation.shards import Share
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
    outcome = run(
        as_mixtures(manifest),
        out,
        Scorer.of(settings, device, mapss),
        options=settings if mapss is None else None,
        share=Share.of(shard),
        quiet=not progress,
    )
    for line in (*outcome.failures, *outcome.warnings):
        checks.warn_user(f"{line}.")
    return outcome.results


def as_mixtures(manifest: Any) -> Sequence[Mixture]:
    """The mixtures of a manifest's path, of its entries, or those given."""
    if isinstance(manifest, str | os.PathLike):
        return load_manifest(manifest)
    found = list(manifest)
    if found and all(isinstance(one, Mixture) for one in found):
        return found
    return read_manifest_entries(found, "the manifest", "")


def run(
    mixtures: Sequence[Mixture],
    out: str | os.PathLike[str],
    scorer: Scorer,
    *,
    options: Mapping[str, Any] | None = None,
    share: Share | None = None,
    quiet: bool = True,
) -> Outcome:
    """Score mixtures, as :func:`load_manifest` gives them, and write the tables once all are done.

    Args:
        mixtures, out, share, quiet: as of :func:`evaluate_set`.
        scorer: computes the scores.
        options: to make the same scores again, see :mod:`torch_mapss.evaluation.options`.

    Raises:
        ValueError, OSError: as :func:`evaluate_set`.
        KeyboardInterrupt: with a text that says how to go on.
    """
    folder, share = io.make_folder(out), share or Share()
    mixtures = of_one_folder(mixtures)
    shards.claim(folder, settings_of(scorer.mapss, scorer.request), _storable(options))
    found = [shards.finished(folder, mixture) for mixture in mixtures]
    pairs = sum(len(mixture.systems) for mixture in mixtures)
    own = [*zip(mixtures, found)][share.rank :: share.size]
    pending = [(one, names) for one, done in own if (names := _pending(one, folder, done))]
    whole = [_seconds(mixture) for mixture, _ in pending]
    lengths = [*map(scorer.request.scored, whole)]
    if not quiet:
        _tell_start(share, [record for done in found for record in done.values()], pairs)
        if sum(lengths) >= _LONG_S:
            console.complain(_estimated(scorer, [mixture for mixture, _ in pending], whole))
    try:
        with shards.only_run(folder, share), console.progress(sum(lengths), quiet) as bar:
            for number, ((mixture, systems), length) in enumerate(zip(pending, lengths), 1):

                def tell(done: int, of: int, start: float = bar.n, length: float = length) -> None:
                    bar.update(start + length * done / of - bar.n)

                bar.set_postfix_str(f"{number} of {len(pending)}: {mixture.name}", refresh=False)
                shards.note(folder, mixture, _records(scorer, mixture, systems, folder, tell))
                tell(1, 1)
    except KeyboardInterrupt:
        count = sum(len(shards.finished(folder, mixture)) for mixture in mixtures)
        raise KeyboardInterrupt(
            f"after {count} of {pairs} pairs of mixture and system, which are saved in "
            f"{io.shown(folder)!r}: the same command goes on from there"
        ) from None
    outcome = tables.join(mixtures, folder, share, scorer.mapss.grid.sample_rate)
    return outcome._replace(device=device_name(scorer.device))


def _storable(given: Mapping[str, Any] | None) -> dict[str, Any] | None:
    """Options as settings.json keeps them; None where some are objects of Python."""
    found = {k: list(v) if isinstance(v, tuple) else v for k, v in (given or {}).items()}
    encoder = found.get("encoder")
    if isinstance(encoder, str) and os.path.isdir(encoder):
        found["encoder"] = os.path.abspath(encoder)
    return None if given is None or io.plain(found) != found else found


def _pending(mixture: Mixture, folder: str, found: Mapping[str, Record]) -> list[str]:
    """The systems that are still to be scored, those that failed included."""
    try:  # frames may have been lost
        there = read_frames(frames_path(folder, mixture.name)).systems if found else {}
    except ValueError:
        there = {}
    done = {name for name in there if name in found and not tables.failed(found[name])}
    return [system for system in mixture.systems if system not in done]


def _tell_start(share: Share, found: Sequence[Record], pairs: int) -> None:
    """Whose share this is, and what is done already."""
    if share.size > 1:
        console.complain(
            f"share {share.rank} of {share.size} (counted from 0): one mixture in {share.size}. "
            "The share that ends last writes the tables"
        )
    failed = sum(map(tables.failed, found))
    if found:
        done = f"{len(found) - failed} of {pairs} pairs of mixture and system are done already"
        again = f"; {failed} that failed are tried again" if failed else ""
        console.complain(done + again)


def _records(
    scorer: Scorer, mixture: Mixture, systems: Sequence[str], folder: str, tell: OnSegment
) -> dict[str, Record]:
    """A record for each of the systems; what fails is told in it."""
    signatures = {system: shards.signature(mixture, system) for system in systems}
    noted = shards.hashes(mixture, (*mixture.references, mixture.mixture))
    outcomes = _outcomes(scorer, mixture, systems, tell)
    try:
        # Before the records: a pair that is finished has its frames on the disk.
        write_frames(folder, mixture.name, outcomes)
    except io.WriteError as error:
        if error.errno in _OF_THE_RUN:
            raise
        outcomes = dict.fromkeys(systems, _reason(error))
    return {
        system: {
            **tables.record_of(mixture, system, outcomes[system]),
            "files": signatures[system],
            "sha256": noted | shards.hashes(mixture, mixture.systems[system]),
        }
        for system in systems
    }


def _outcomes(
    scorer: Scorer, mixture: Mixture, systems: Sequence[str], tell: OnSegment
) -> dict[str, Report | str]:
    """The report of each system, or why there is none; references are read once."""
    try:
        references = _references(scorer, mixture)
    except _FAILURES as error:
        return dict.fromkeys(systems, _reason(error))
    mixed = None
    with suppress(*_FAILURES):  # no score depends on it
        if mixture.mixture is not None:
            (mixed,) = scorer.read([mixture.locate(mixture.mixture)], "mixture")
    found: dict[str, Report | str] = {}
    readable: dict[int, dict[str, Signals]] = {}  # by number of samples
    for system in systems:
        try:
            signals = _signals(scorer, mixture, system, references, mixed)
            readable.setdefault(signals.truth.shape[-1], {})[system] = signals
        except _FAILURES as error:
            found[system] = _reason(error)
    for together in readable.values():
        found |= _reports(scorer, mixture, together, tell)
    return found


def _reports(
    scorer: Scorer, mixture: Mixture, systems: dict[str, Signals], tell: OnSegment
) -> dict[str, Report | str]:
    """All in one pass; where that fails, one after another, to find out which fails."""
    try:
        return dict(zip(systems, scorer.reports([*systems.values()], mixture.name, tell)))
    except _FAILURES as error:
        if len(systems) == 1:
            return dict.fromkeys(systems, _reason(error))
    found: dict[str, Report | str] = {}
    for system, signals in systems.items():
        found |= _reports(scorer, mixture, {system: signals}, tell)
    return found


def _references(scorer: Scorer, mixture: Mixture) -> tuple[Clip, ...]:
    return scorer.references([*map(mixture.locate, mixture.references)], mixture.source_names)


def _signals(
    scorer: Scorer,
    mixture: Mixture,
    system: str,
    references: tuple[Clip, ...],
    mixed: Clip | None = None,
) -> Signals:
    paths = [None if p is None else mixture.locate(p) for p in mixture.systems[system]]
    return scorer.signals(scorer.read(paths, "estimates"), references, mixture=mixed)


def _reason(error: BaseException) -> str:
    return " ".join((str(error) or type(error).__name__).split())


def _seconds(mixture: Mixture) -> float:
    """Of audio; 0 where the first file cannot be read."""
    import soundfile

    try:
        with open(mixture.locate(mixture.references[0]), "rb") as file:
            return float(soundfile.info(file).duration)
    except (OSError, RuntimeError, TypeError):
        return 0.0


def _estimated(scorer: Scorer, mixtures: Sequence[Mixture], whole: Sequence[float]) -> str:
    """About how long a run will take, from scoring a few seconds of its first mixture."""
    first, request, rate = mixtures[0], scorer.request, scorer.mapss.sample_rate
    told = (
        f"{len(mixtures)} mixtures, {len(first.references)} sources, {len(first.systems)} "
        f"systems, {console.duration(sum(whole))} of audio"
    )
    with suppress(*_FAILURES):  # what is wrong is told where it is scored
        references = _references(scorer, first)
        systems = [_signals(scorer, first, name, references) for name in first.systems]
        for seconds in (_WARM_UP_S, _PIECE_S):
            one = request._replace(excerpts=1, excerpt_seconds=seconds, bounds=False)
            piece, started = scorer._replace(request=one), time.monotonic()
            piece.reports(systems, first.name)
        ((start, stop),) = piece.spans(systems[0], first.name)
        each = (time.monotonic() - started) * rate / (stop - start)  # seconds per second of audio
        told += f": about {console.duration(each * sum(map(request.scored, whole)))}"
        told += " on this machine"
        if request.excerpts is None:
            some = sum(map(request._replace(excerpts=8).scored, whole))
            told += f" (with --excerpts 8 about {console.duration(each * some)})"
    return told
