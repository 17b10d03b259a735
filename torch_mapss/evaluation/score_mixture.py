"""Scoring of one entry of a manifest: the function that an engine maps over a set.

:func:`score_mixture` is the public function. :class:`MixtureJob` does the same but keeps the frame
scores, for :func:`torch_mapss.evaluate_set`; it can be sent to other processes, which make their
scorer once. Any exception makes only its mixture and system fail, also one of a user's encoder:
raised in a worker, it might not survive pickling, and would end a whole pool.
"""

from __future__ import annotations

import functools
import os
import pickle
import threading
import time
from collections.abc import Mapping
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import suppress
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
import torch

from torch_mapss.evaluation.audio_input import Clip
from torch_mapss.evaluation.input_checks import Inspection
from torch_mapss.evaluation.manifest import Mixture, as_mixture
from torch_mapss.evaluation.records import (
    FileHashes,
    MixtureScores,
    Record,
    failed_record,
    file_states,
    paths_of,
)
from torch_mapss.evaluation.report import Report
from torch_mapss.evaluation.results_folder import at_times
from torch_mapss.evaluation.score import Scorer
from torch_mapss.pipeline.segments import OnSegment

if TYPE_CHECKING:
    from torch_mapss.pipeline.mapss import MAPSS

_CHANGED = "its files changed during scoring; run it again"


def score_mixture(
    entry: Mapping[str, Any] | Mixture,
    *,
    device: torch.device | str | None = None,
    mapss: MAPSS | None = None,
    **settings: Any,
) -> list[dict[str, Any]]:
    """Score all systems of one entry of a manifest.

    It reads files and returns small records, without side effects, so that any engine can map it:
    ``ProcessPoolExecutor().map(partial(score_mixture, encoder="mel"), entries)``. Each process
    makes the scorer for its settings only once.

    Args:
        entry: ``{"mixture_id": …, "references": […], "systems": {name: […]}}``, paths relative to
            the working folder, None for a source that a system does not estimate.
        device, mapss: as in :func:`torch_mapss.evaluate`.
        settings: as in :func:`torch_mapss.evaluate`.

    Returns:
        A dictionary per system and estimate, of numbers and strings, with the columns of
        ``scores.csv``. Rows of estimates that could not be scored have ``status`` "failed" and a
        ``reason``.

    Raises:
        ManifestError: the entry is invalid; lists all problems.
        TypeError, ValueError: settings are out of range.

    Example:
        >>> from torch_mapss import score_mixture
        >>> entry = {"mixture_id": "m", "references": ["a.wav", "b.wav"],
        ...          "systems": {"mine": ["a_est.wav", None]}}
        >>> [row["status"] for row in score_mixture(entry, measures="decomposition")]
        ['failed']
    """
    _single_thread_if_forked()
    mixture = as_mixture(entry)
    scorer = (
        _cached_scorer(settings, device) if mapss is None else Scorer.of(settings, device, mapss)
    )
    scores = score_loaded(scorer, load_mixture(scorer, mixture))
    return [row for record in scores.records.values() for row in record["rows"]]


class MixtureJob(NamedTuple):
    """Picklable function of one mixture, which is passed to ``map``."""

    settings: Mapping[str, Any]
    device: torch.device | str | None = None
    mapss: MAPSS | None = None  # if any, it is sent to the workers with every mixture

    def __call__(self, mixture: Mixture) -> MixtureScores:
        """Records and frame scores of a mixture."""
        _single_thread_if_forked()
        scorer, loading = self._scorer(), _loading.pop(mixture.name, None)
        loaded = load_mixture(scorer, mixture) if loading is None else loading.result()
        return score_loaded(scorer, loaded)

    def read_ahead(self, mixture: Mixture) -> None:
        """Start reading the mixture that this process scores next; returns at once."""
        _loading[mixture.name] = _reader().submit(load_mixture, self._scorer(), mixture)

    def _scorer(self) -> Scorer:
        if self.mapss is None:
            return _cached_scorer(self.settings, self.device)
        return Scorer.of(self.settings, self.device, self.mapss)


_IMPORTED_IN = os.getpid()


def _single_thread_if_forked() -> None:
    """Keep torch to one thread in a forked process.

    A fork has none of its parent's threads, so that torch would wait forever for those of its pool.
    """
    if os.getpid() != _IMPORTED_IN:
        torch.set_num_threads(1)


# Mixtures that this process is reading in the background, by name.
_loading: dict[str, Future[LoadedMixture]] = {}


@functools.cache
def _reader() -> ThreadPoolExecutor:
    return ThreadPoolExecutor(1, "torch_mapss-reader")


# The scorer that this process made last, with a key of its settings.
_last_scorer: tuple[bytes, Scorer] | None = None
_making = threading.Lock()


def _cached_scorer(settings: Mapping[str, Any], device: torch.device | str | None) -> Scorer:
    """Scorer for the settings, kept for the next mixture."""
    global _last_scorer
    key = pickle.dumps((settings, None if device is None else str(device)))
    with _making:  # an engine may run threads
        if _last_scorer is None or _last_scorer[0] != key:
            _last_scorer = key, Scorer.of(settings, device)
        return _last_scorer[1]


# ----------------------------------------------------------------------- Reading, and then scoring


class LoadedMixture(NamedTuple):
    """A mixture that has been read and inspected, before scoring."""

    mixture: Mixture
    systems: Mapping[str, Inspection]
    failures: Mapping[str, BaseException]  # by system
    files: Mapping[str, list[list[Any]]]  # by system, in the form of the records
    seconds: float  # duration of loading


def load_mixture(scorer: Scorer, mixture: Mixture) -> LoadedMixture:
    """Decode, hash and inspect the files of a mixture; references are read only once."""
    begun = time.perf_counter()
    hashes = FileHashes(mixture)
    files: dict[str, list[list[Any]]] = {}
    for system in mixture.systems:
        paths = paths_of(mixture, system)
        states = file_states(paths, mixture)
        files[system] = [[*state, hashes.of(path)] for state, path in zip(states, paths)]
    systems: dict[str, Inspection] = {}
    failures: dict[str, BaseException] = {}
    try:
        located: list[str | None] = [mixture.locate(path) for path in mixture.references]
        references = scorer.references(located, mixture.source_names)
    except Exception as error:
        failures = dict.fromkeys(mixture.systems, _without_traceback(error))
        return LoadedMixture(mixture, systems, failures, files, time.perf_counter() - begun)
    mixed = _mixture_clip(scorer, mixture)
    for system, paths in mixture.systems.items():
        try:
            located = [None if path is None else mixture.locate(path) for path in paths]
            estimates = scorer.read(located, "estimates")
            systems[system] = scorer.inspect(estimates, references, mixture=mixed)
        except Exception as error:
            failures[system] = _without_traceback(error)
    return LoadedMixture(mixture, systems, failures, files, time.perf_counter() - begun)


def _mixture_clip(scorer: Scorer, mixture: Mixture) -> Clip | None:
    """The mixture's own file, or None if unreadable: no score depends on it."""
    if mixture.mixture is not None:
        with suppress(Exception):
            return scorer.read([mixture.locate(mixture.mixture)], "mixture")[0]
    return None


def _without_traceback(error: BaseException) -> BaseException:
    """The error without its traceback, whose frames would keep waveforms in memory."""
    return error.with_traceback(None)


def score_loaded(
    scorer: Scorer, loaded: LoadedMixture, on_segment: OnSegment | None = None
) -> MixtureScores:
    """Score a loaded mixture; failures are noted in the records."""
    begun = time.perf_counter()
    mixture, failures = loaded.mixture, dict(loaded.failures)
    reports: dict[str, Report] = {}
    by_length: dict[int, dict[str, Inspection]] = {}
    for system, inspected in loaded.systems.items():
        samples = inspected.signals.mono_references.shape[-1]
        by_length.setdefault(samples, {})[system] = inspected
    for together in by_length.values():
        reports |= _reports(scorer, mixture, together, failures, on_segment)
    records: dict[str, Record] = {}
    for system in mixture.systems:
        paths = paths_of(mixture, system)
        states = [stored[:-1] for stored in loaded.files[system]]
        if system in reports and file_states(paths, mixture) != states:
            del reports[system]
            failures[system] = ValueError(_CHANGED)
        if system in reports:
            record = reports[system].record(mixture, system)
        else:
            record = failed_record(mixture, system, failures[system])
        records[system] = {**record, "files": loaded.files[system]}
    times = {system: report.times.double().numpy() for system, report in reports.items()}
    all_times = np.unique(np.concatenate([np.empty(0), *times.values()]))
    frames = {}
    for system, report in reports.items():
        frames[system] = at_times(report.system_frames(), times[system], all_times)
    return MixtureScores(
        mixture=mixture,
        records=records,
        times=all_times,
        frames=frames,
        seconds=time.perf_counter() - begun,
    )


def _reports(
    scorer: Scorer,
    mixture: Mixture,
    systems: Mapping[str, Inspection],
    failures: dict[str, BaseException],
    on_segment: OnSegment | None,
) -> dict[str, Report]:
    """Score all systems in one pass; if that fails, one at a time, to find those that fail."""
    try:
        reports = scorer.reports([*systems.values()], mixture.name, on_segment)
        return dict(zip(systems, reports))
    except Exception as error:
        if len(systems) == 1:
            failures |= dict.fromkeys(systems, _without_traceback(error))
            return {}
    reports_by_system: dict[str, Report] = {}
    for system, inspected in systems.items():
        alone = {system: inspected}
        reports_by_system |= _reports(scorer, mixture, alone, failures, on_segment)
    return reports_by_system
