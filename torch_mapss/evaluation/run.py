"""Scoring of a test set: from a manifest to a folder of results, by any engine with a ``map``.

:mod:`torch_mapss.evaluation` gives the order of averages. The calling process writes each result as
it arrives. A run that was killed can be continued with any engine and leaves the files of an
uninterrupted run, byte for byte on the same machine with the same number of threads (see
:mod:`torch_mapss.evaluation.results_folder`).
"""

from __future__ import annotations

import builtins
import errno
import os
import time
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import torch

from torch_mapss.core import checks
from torch_mapss.core.devices import device_name
from torch_mapss.evaluation import console, io, results_folder
from torch_mapss.evaluation.engines import Map
from torch_mapss.evaluation.manifest import Mixture, as_mixtures, rebased
from torch_mapss.evaluation.records import MixtureScores, Record, failed_record
from torch_mapss.evaluation.results import Results, read_results, write_tables
from torch_mapss.evaluation.score import Scorer
from torch_mapss.evaluation.score_mixture import MixtureJob, load_mixture, score_loaded
from torch_mapss.evaluation.settings import checked_names, storable, with_absolute_folders
from torch_mapss.evaluation.shard import Shard, parse_shard

if TYPE_CHECKING:
    from torch_mapss.pipeline.mapss import MAPSS

# Errors that end the run, since the next mixture could not be written either.
_FATAL_ERRNOS = (errno.ENOSPC, errno.EDQUOT, errno.EROFS, errno.ENOENT, errno.EACCES, errno.EPERM)
_WARM_UP_S, _PIECE_S = 1.0, 3.0  # seconds of audio that the time of a long run is estimated from
#: Seconds of audio; an estimate of the time is printed for longer runs.
LONG_S = 120.0


def evaluate_set(
    manifest: str | os.PathLike[str] | Sequence[Mapping[str, Any] | Mixture],
    *,
    out: str | os.PathLike[str],
    map: Map = builtins.map,
    device: torch.device | str | None = None,
    mapss: MAPSS | None = None,
    shard: str | None = None,
    progress: bool = False,
    **settings: Any,
) -> Results:
    """Score the systems of a test set, skipping pairs already scored in ``out``.

    Args:
        manifest: path of a JSON file, or its entries: ``{"mixture_id": …, "references": […],
            "systems": {name: […]}}`` with paths relative to the manifest (entries: to the working
            folder), ``None`` for a source that a system does not estimate; or the
            mixtures that :func:`torch_mapss.evaluation.folders.read_folders` found.
        out: folder of the results, see :mod:`torch_mapss.evaluation.results`. Results of other
            mixtures and systems stay in it.
        map: ``map(function, iterable)`` of an engine, for scoring in other processes or on other
            machines: ``ProcessPoolExecutor().map``, ``client.get_executor().map`` of Dask, or that
            of a pool of Ray or mpi4py. It may be lazy and return results in any order.
        device, mapss: as in :func:`torch_mapss.evaluate`. With an engine, pass settings rather than
            a ``mapss``, which would be sent with every mixture.
        shard: ``"I/N"``: score only mixtures I, I+N, …, counted from 1; other calls score the
            remaining ones. By default, scores everything, even when started by torchrun or srun.
        progress: show progress on stderr.
        settings: as in :func:`torch_mapss.evaluate`.

    Returns:
        :class:`~torch_mapss.evaluation.results.Results` of everything scored in ``out``;
        :func:`torch_mapss.compare` takes them.

    Raises:
        ManifestError: the manifest is invalid; lists all problems.
        TypeError, ValueError: settings are out of range, or ``out`` is a file or holds results
            made with different settings.
        RuntimeError: the engine stopped; results that had arrived are kept.
        OSError: the results cannot be written, as on a full disk.

    Warns:
        UserWarning: mixtures that failed, mixtures that other shards have yet to score, and
            findings about the signals that change how scores should be read.

    Example:
        >>> from torch_mapss import compare, evaluate_set
        >>> results = evaluate_set("set.json", out="results", encoder="mel")    # doctest: +SKIP
        >>> print(compare(results))                                             # doctest: +SKIP
    """
    settings = checked_names(settings)
    job = MixtureJob(settings, device, mapss)
    own_shard = Shard() if shard is None else parse_shard(shard)
    results = score_mixtures(
        as_mixtures(manifest), out, job, map=map, shard=own_shard, quiet=not progress
    )
    for line in (*results.failures, *results.warnings):
        checks.warn_user(f"{line}.")
    if results.pending:
        checks.warn_user(f"{pending_text(results)}.")
    return results


def pending_text(results: Results) -> str:
    """Sentences about the pairs that remain to be scored, and how to score them."""
    names = [f"mixture {mixture!r}, system {system!r}" for mixture, system in results.pending]
    return (
        f"{len(names)} pairs of mixture and system are not scored yet ({io.listed(names, 2)}). "
        "Run the remaining shards, or the same call without `shard`, to finish and write the tables"
    )


def score_mixtures(
    mixtures: Sequence[Mixture],
    out: str | os.PathLike[str],
    job: MixtureJob,
    *,
    map: Map = builtins.map,
    shard: Shard | None = None,
    quiet: bool = True,
) -> Results:
    """Score mixtures, and write the tables once all are done.

    Args:
        mixtures: result of :func:`~torch_mapss.evaluation.manifest.as_mixtures`.
        out, map, quiet: as in :func:`evaluate_set`.
        job: scores one mixture.
        shard: the shard to score here.

    Raises:
        ValueError, RuntimeError, OSError: as :func:`evaluate_set`.
        KeyboardInterrupt: its text says how to continue.
    """
    shard, mixtures = shard or Shard(), rebased(mixtures)
    # In this process files are read in the background, and the progress of segments is shown.
    in_process = map is builtins.map
    if in_process:
        scorer = Scorer.of(job.settings, job.device, job.mapss)
    else:
        scorer = _scorer_for_description(job)
    options = None if job.mapss is not None else storable(job.settings)
    rate = scorer.mapss.grid.sample_rate
    description = scorer.description  # loads an encoder, to hash its weights
    # The folder is created only now, so that invalid settings leave no folder behind.
    folder = io.make_folder(out)
    results_folder.claim(folder, description, rate, options)
    mixtures = results_folder.with_stored_spelling(folder, mixtures)
    stored, remark = results_folder.add_mixtures(folder, mixtures)
    states = [results_folder.pending_systems(folder, mixture) for mixture in mixtures]
    pending = []
    for mixture, (_, reasons) in shard.of([*zip(mixtures, states)]):
        if reasons:
            pending.append(mixture.only([*reasons]))
    finished = sum(len(records) for records, _ in shard.of(states))
    if not quiet:
        _log_progress_so_far(shard, finished, shard.of(states), remark)
    orders = {name: [*mixture.systems] for name, mixture in stored.items()}
    work = _PendingWork(folder, scorer, pending, orders, finished)
    if in_process and pending and not quiet:
        console.log(f"computing on {device_name(scorer.device)}")
    try:
        with console.progress(sum(work.lengths.values()), quiet) as bar:
            work.bar = bar
            if in_process and pending and not quiet:
                work.log_estimated_time()
            function: Any = job._replace(settings=with_absolute_folders(job.settings))
            arriving = work.in_process() if in_process else _by_engine(map, function, pending)
            work.receive(arriving, engine=not in_process)
    except KeyboardInterrupt:
        raise KeyboardInterrupt(work.stopped()) from None
    results = read_results(folder, outdated=_outdated(folder, shard, mixtures, states))
    write_tables(results)
    return results


def _outdated(
    folder: str,
    shard: Shard,
    mixtures: Sequence[Mixture],
    states: Sequence[tuple[Mapping[str, Record], Mapping[str, str]]],
) -> set[tuple[str, str]]:
    """Pairs in other shards whose files changed after they were scored.

    Those shards may have scored them again since ``states`` were read at the beginning.
    """
    outdated = set()
    scored_here = {mixture.name for mixture in shard.of(mixtures)}
    for mixture, (_, reasons_before) in zip(mixtures, states):
        if mixture.name not in scored_here and "changed" in reasons_before.values():
            _, reasons = results_folder.pending_systems(folder, mixture)
            changed = [system for system, reason in reasons.items() if reason == "changed"]
            outdated |= {(mixture.name, system) for system in changed}
    return outdated


def _by_engine(map: Map, function: Any, pending: Sequence[Mixture]) -> Iterator[MixtureScores]:
    """Results of an engine, whose map is called only when the first is asked for.

    An executor submits everything in that call, which fails if it is broken or shut down.
    """
    yield from map(function, pending)


def _scorer_for_description(job: MixtureJob) -> Scorer:
    """Scorer that describes the settings of a job that other processes run; it scores nothing.

    Their device is not used, since this process may lack it.
    """
    settings = {name: value for name, value in job.settings.items() if name != "device"}
    return Scorer.of(settings, None if job.mapss is not None else "cpu", job.mapss)


def _log_progress_so_far(
    shard: Shard,
    finished: int,
    states: Sequence[tuple[Mapping[str, Record], Mapping[str, str]]],
    remark: str,
) -> None:
    """Report what is scored here, what is done already, and what is scored again and why.

    ``finished`` pairs and ``states`` are those of the shard.
    """
    if shard.total > 1:
        console.log(
            f"shard {shard.number} of {shard.total}: mixtures {shard.number}, "
            f"{shard.number + shard.total}, ... of the manifest. The last shard to "
            "finish writes the tables"
        )
    if remark:
        console.log(remark)
    reasons = Counter(reason for _, by_system in states for reason in by_system.values())
    if finished:
        pairs = finished + reasons.total()
        console.log(f"{finished} of {pairs} pairs of mixture and system are done already")
    causes = {
        "failed": "failed before",
        "changed": "have files that differ from those scored before (by size and SHA-256)",
        "lost": "lost their frame scores",
    }
    for reason, text in causes.items():
        if reasons[reason]:
            console.log(f"{reasons[reason]} pairs are scored again, since they {text}")
    for reason in reasons.keys() - {*causes, "new"}:  # damaged records, by file
        console.log(f"warning: {reason}")


class _PendingWork:
    """Scores the pending mixtures of a run, writes each result, and shows the progress."""

    def __init__(
        self,
        folder: str,
        scorer: Scorer,
        pending: Sequence[Mixture],
        orders: Mapping[str, Sequence[str]],
        finished: int,
    ) -> None:
        self.folder, self.scorer, self.pending, self.orders = folder, scorer, pending, orders
        self.seconds = {mixture.name: _seconds(mixture) for mixture in pending}  # of audio
        scored = scorer.settings.scored
        self.lengths = {name: scored(seconds) for name, seconds in self.seconds.items()}
        self.saved_pairs = finished  # of mixture and system, which need not be scored again
        self.all_pairs = finished + sum(len(mixture.systems) for mixture in pending)
        self.done = 0  # mixtures
        self.scored_seconds = 0.0  # of audio
        self.bar: Any = None

    def receive(self, arriving: Iterator[MixtureScores], engine: bool) -> None:
        """Write results as they arrive; ``engine``: whether they come from other processes.

        Raises:
            WriteError: no result can be written any more.
            RuntimeError: the engine stopped.
            TypeError: the engine's ``map`` returns anything other than results, e.g. futures.
        """
        while True:
            try:
                scores = next(arriving)
            except StopIteration:
                break
            except Exception as error:
                if not engine:
                    raise
                text = " ".join(str(error).split()) or type(error).__name__
                raise RuntimeError(f"the engine stopped {self.stopped()} ({text}).") from error
            if not isinstance(scores, MixtureScores):
                raise TypeError(
                    "map must return what the function returned for each mixture, got "
                    f"{type(scores).__name__!r}. If the engine returns futures, pass its "
                    "executor's map, e.g. Dask's client.get_executor().map."
                )
            self._write(scores)
            self.done += 1
            self.scored_seconds += self.lengths[scores.mixture.name]
            self.bar.set_postfix_str(f"{self.done} of {len(self.pending)}", refresh=False)
            self.bar.update(self.scored_seconds - self.bar.n)
        if self.done < len(self.pending):
            raise RuntimeError(f"the engine stopped without an error {self.stopped()}.")

    def _write(self, scores: MixtureScores) -> None:
        mixture = scores.mixture
        order = self.orders[mixture.name]
        try:
            results_folder.write_scores(self.folder, scores, order)
            self.saved_pairs += len(scores.frames)  # those that failed have none
        except io.WriteError as error:
            if error.errno in _FATAL_ERRNOS:
                raise
            records = {}
            for system, record in scores.records.items():
                failed = failed_record(mixture, system, error)
                records[system] = {**failed, "files": record["files"]}
            results_folder.write_records(self.folder, mixture.name, records, order)

    def in_process(self) -> Iterator[MixtureScores]:
        """Score the mixtures in this process; each is read while the previous one is scored."""
        with ThreadPoolExecutor(1, "torch_mapss-reader") as reader:
            loading = None
            for number, mixture in enumerate(self.pending):
                loaded = (loading or reader.submit(load_mixture, self.scorer, mixture)).result()
                loading = None
                if number + 1 < len(self.pending):
                    next_mixture = self.pending[number + 1]
                    loading = reader.submit(load_mixture, self.scorer, next_mixture)
                name = f"{number + 1} of {len(self.pending)}: {mixture.name}"
                self.bar.set_postfix_str(name, refresh=False)
                yield score_loaded(self.scorer, loaded, self._segment_progress(mixture))
                del loaded

    def _segment_progress(self, mixture: Mixture) -> Callable[[int, int], None]:
        begin, length = self.bar.n, self.lengths[mixture.name]

        def tell(done: int, total: int) -> None:
            self.bar.update(begin + length * done / total - self.bar.n)

        return tell

    def stopped(self) -> str:
        """Text that says where the run stopped, and how to continue."""
        return (
            f"after {self.saved_pairs} of {self.all_pairs} pairs of mixture and system, which are "
            "saved in "
            f"{io.shown(self.folder)!r}: run the same command (or call) again to continue"
        )

    def log_estimated_time(self) -> None:
        """Print the estimated time of a long run, from scoring a few seconds of a mixture."""
        total = sum(self.lengths.values())
        if total < LONG_S:
            return
        mixture = max(self.pending, key=lambda mixture: len(mixture.systems))
        settings = self.scorer.settings
        sources = max(len(mixture.references) for mixture in self.pending)
        systems: set[str] = set()
        for pending in self.pending:
            systems |= pending.systems.keys()
        text = (
            f"{len(self.pending)} mixtures, {sources} sources, "
            f"{len(systems)} systems, {console.duration(sum(self.seconds.values()))} of "
            "audio"
        )
        loaded = load_mixture(self.scorer, mixture)
        scored: Mapping[str, object] = {}  # errors are reported when the mixture is scored
        for seconds in (_WARM_UP_S, _PIECE_S):
            piece = settings._replace(excerpts=1, excerpt_seconds=seconds, bounds=False)
            scorer, started = replace(self.scorer, settings=piece), time.monotonic()
            scored = score_loaded(scorer, loaded).frames
        if scored:
            (system, *_) = scored
            ((begin, end),) = scorer.spans(loaded.systems[system].signals, mixture.name)
            rate = self.scorer.mapss.sample_rate
            factor = (time.monotonic() - started) * rate / (end - begin)
            text += f": about {console.duration(factor * total)} on this machine"
            if settings.excerpts is None:
                excerpts = settings._replace(excerpts=8)
                shorter = sum(builtins.map(excerpts.scored, self.seconds.values()))
                text += f" (with --excerpts 8 about {console.duration(factor * shorter)})"
        console.log(text)


def _seconds(mixture: Mixture) -> float:
    """Duration of a mixture in seconds; 0 if its first file cannot be read."""
    import soundfile

    try:
        with open(mixture.locate(mixture.references[0]), "rb") as file:
            return float(soundfile.info(file).duration)
    except (OSError, RuntimeError, TypeError):
        return 0.0
