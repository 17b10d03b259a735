"""A whole test set: manifest in, tables out, over one process or many."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from torch_mapss.core.devices import device_name
from torch_mapss.evaluation import files, frame_store, tables
from torch_mapss.evaluation.entries import silent
from torch_mapss.evaluation.manifest import Mixture, of_one_folder
from torch_mapss.evaluation.pairs import PairScorer
from torch_mapss.evaluation.processes import World, world
from torch_mapss.evaluation.progress import Progress, claim, finished
from torch_mapss.evaluation.protocol import described
from torch_mapss.evaluation.request import Request
from torch_mapss.evaluation.tables import Outcome

if TYPE_CHECKING:
    from torch_mapss.pipeline.mapss import MAPSS


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
    on_stage: Callable[[str], object] = silent,
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
        on_stage: told what is done of a long mixture, before and when its segments are scored.

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
        scorer = PairScorer(mapss, request, device, folder, save_frames, on_segment, on_stage)
        try:
            _score_share(mixtures, folder, scorer, processes, progress, tell)
        except KeyboardInterrupt:
            raise KeyboardInterrupt(_how_to_go_on(mixtures, folder)) from None
        processes.wait()
        rate = mapss.grid.sample_rate
        outcome = processes.together(lambda: tables.join(mixtures, folder, processes, rate))
        place = device_name(scorer.device)
        return outcome._replace(processes=processes, device=place, settings=settings)


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
    scorer: PairScorer,
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
