"""A whole test set: manifest in, tables out, over one process or many."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from datetime import timedelta
from typing import TYPE_CHECKING, Any, NamedTuple

from torch_mapss.evaluation import clips, files
from torch_mapss.evaluation.manifest import (
    ITEM_COLUMNS,
    SCORE_COLUMNS,
    SET_COLUMNS,
    Mixture,
    Record,
)
from torch_mapss.evaluation.progress import Progress, claim, file_name, finished, signature
from torch_mapss.evaluation.report import MEANS, Report, SourceRow, mean, number
from torch_mapss.evaluation.scorer import PreparedOnce, Request, device_of, score_clips

if TYPE_CHECKING:
    from torch_mapss.evaluation.clips import Clip
    from torch_mapss.pipeline.mapss import MAPSS
# A rank may wait for the others as long as they score.
_PATIENCE = timedelta(days=30)
# What makes one mixture fail; anything else ends the run.
_FAILURES = (ValueError, TypeError, OSError, RuntimeError, MemoryError)


class _Scorer:
    """Scores the systems of a mixture; its references are read and prepared once."""

    def __init__(self, mapss: MAPSS, request: Request, device: Any, frames: str | None) -> None:
        self.mapss, self.request, self.frames = mapss, request, frames
        self.device = device_of(mapss, device)
        self.prepared = PreparedOnce(mapss)

    def records(self, mixture: Mixture, systems: Iterable[str]) -> Iterator[Record]:
        """A record for each of the systems; what fails is told in it."""
        references: tuple[Clip, ...] | Exception
        try:
            paths = [mixture.locate(path) for path in mixture.references]
            given = clips.read_set(paths, "references", self.mapss.sample_rate)
            references = tuple(clip for clip in given if clip is not None)
        except _FAILURES as error:
            references = error
        for system in systems:
            state = signature(mixture, system)
            try:
                if isinstance(references, Exception):
                    raise references
                rows = self._rows(mixture, system, references)
                reason = None
            except _FAILURES as error:
                reason = " ".join((str(error) or type(error).__name__).split())
                rows = _failed_rows(mixture, system, reason)
            yield {
                "mixture_id": mixture.name,
                "system": system,
                "reason": reason,
                "rows": rows,
                "files": state,
            }

    def _rows(self, mixture: Mixture, system: str, references: tuple[Clip, ...]) -> list[Record]:
        paths = [None if p is None else mixture.locate(p) for p in mixture.systems[system]]
        estimates = clips.read_set(paths, "estimates", self.mapss.sample_rate)
        report = score_clips(
            self.mapss,
            estimates,
            references,
            self.request,
            device=self.device,
            prepared=self.prepared,
        )
        if self.frames is not None:
            parts = (files.native(file_name(name)) for name in (mixture.name, system))
            report.save(os.path.join(self.frames, *parts))
        return _scored_rows(mixture, system, report)


def _scored_rows(mixture: Mixture, system: str, report: Report) -> list[Record]:
    given = [path for path in mixture.systems[system] if path is not None]
    notes = "; ".join(report.notes)
    rows = []
    for row, estimate in zip(report.rows, given):
        values = {key: _nine_digits(value) for key, value in row._asdict().items()}
        values["estimate"] = estimate
        values["reference"] = mixture.references[row.source_index]
        status = "ok" if row.frames else "undefined"
        reason = "" if row.frames else "no frame in which it and another source are active"
        rows.append(
            {"mixture_id": mixture.name, "system": system, **values}
            | {"status": status, "reason": reason, "notes": notes}
        )
    return rows


def _nine_digits(value: Any) -> Any:
    """Numbers as the tables show them, so that means can be redone from these exactly."""
    return float(files.cell(value)) if isinstance(value, float) else value


def _failed_rows(mixture: Mixture, system: str, reason: str) -> list[Record]:
    names = files.display_names(mixture.references)
    blank: dict[str, Any] = dict.fromkeys(SourceRow._fields)
    blank |= dict.fromkeys((*MEANS, "attributed_distance", "foreign_distance"), float("nan"))
    return [
        blank
        | {"mixture_id": mixture.name, "system": system, "source": names[place]}
        | {"source_index": place, "estimate": path, "reference": mixture.references[place]}
        | {"frames": 0, "status": "failed", "reason": reason, "notes": ""}
        for place, path in enumerate(mixture.systems[system])
        if path is not None
    ]


# ------------------------------------------------------------------------------------------------
# Processes
# ------------------------------------------------------------------------------------------------


class World(NamedTuple):
    """The processes that share a run."""

    rank: int = 0
    size: int = 1

    def together(self, action: Callable[[], Any]) -> Any:
        """Let rank 0 act, and every rank have its result, or its error."""
        if self.size == 1:
            return action()
        import torch.distributed as dist

        box: list[Any] = [None, None]
        if self.rank == 0:
            try:
                box[0] = action()
            except Exception as error:
                # As a class that every rank can unpickle.
                box[1] = error if type(error).__module__ == "builtins" else ValueError(str(error))
        dist.broadcast_object_list(box, src=0)
        if box[1] is not None:
            raise box[1]
        return box[0]

    def wait(self) -> None:
        """Until every rank is here."""
        if self.size > 1:
            import torch.distributed as dist

            dist.barrier()


@contextmanager
def world() -> Iterator[World]:
    """The processes as torchrun's variables describe them; one if there are none."""
    size = int(os.environ.get("WORLD_SIZE", "1"))
    if size <= 1:
        yield World()
        return
    import torch.distributed as dist

    # gloo also on GPUs: what is exchanged are a few words, and scores never leave their rank.
    started = not dist.is_initialized()
    if started:
        dist.init_process_group("gloo", timeout=_PATIENCE)
    try:
        yield World(dist.get_rank(), dist.get_world_size())
    finally:
        if started:
            dist.destroy_process_group()


def local_device(device: str | None) -> str | None:
    """``device``, with "cuda" under torchrun made the GPU of this process."""
    local = os.environ.get("LOCAL_RANK")
    return f"cuda:{local}" if device == "cuda" and local is not None else device


# ------------------------------------------------------------------------------------------------
# The run
# ------------------------------------------------------------------------------------------------


class Outcome(NamedTuple):
    """What a run over a manifest found."""

    scores: tuple[Record, ...]  # one row per estimate
    items: tuple[Record, ...]  # one per mixture and system
    sets: tuple[Record, ...]  # one per system
    failures: tuple[str, ...]  # one line per mixture and system that failed
    rank: int  # of this process

    def summary(self) -> str:
        """A table of the systems to print, with counts."""
        columns = ["system", "PS", "PM", "log PM", "PS pooled", "scored", "undefined", "failed"]
        rows = [
            [
                row["system"],
                *(number(row[name], ".2f" if name == "log_pm" else ".3f") for name in MEANS),
                *(str(row[name]) for name in ("scored", "undefined", "failed")),
            ]
            for row in self.sets
        ]
        return "\n".join(
            [
                files.text_table(columns, rows),
                "",
                "PS: 1 = no leakage, PM: 1 = undistorted, both 0..1, higher is better.",
                "Means over frames, then over the estimates of a mixture, then over mixtures;",
                "undefined and failed mixtures are left out. scored, undefined, failed: mixtures.",
            ]
        )


def run(
    mixtures: Sequence[Mixture],
    out: str | os.PathLike[str],
    make_mapss: Callable[[], MAPSS],
    request: Request | None = None,
    *,
    device: str | None = None,
    save_frames: bool = False,
    progress: Callable[..., Iterable[Any]] | None = None,
) -> Outcome:
    """Score the mixtures of a manifest, going on from what ``out`` holds already.

    Args:
        mixtures: of :func:`load_manifest`.
        out: folder of the results; see the notes of this module and ``torch-mapss evaluate -h``.
        make_mapss: makes the scorer.
        request: what to compute.
        device: to compute on.
        save_frames: write the frame scores of every pair to ``out/frames/MIXTURE/SYSTEM`` as well.
        progress: wraps the mixtures in a progress bar.

    Returns:
        The tables, the same on every rank.

    Raises:
        ValueError: ``out`` is a file, holds results of other settings, or is being written to.
    """
    request = request or Request()
    folder = os.fspath(out)
    with world() as processes:
        processes.together(lambda: files.make_folder(folder) and None)
        mapss = _loaded(make_mapss)
        # The key knows of distortions of the user's own, which the description does not tell.
        settings = {**mapss.describe(), "key": mapss.key, **request._asdict()}
        settings["save_frames"] = save_frames
        if not request.bounds:  # nothing depends on it
            del settings["confidence"]
        processes.together(lambda: claim(folder, settings))
        frames = os.path.join(folder, "frames") if save_frames else None
        scorer = _Scorer(mapss, request, device, frames)
        _score_share(mixtures, folder, scorer, processes, progress)
        processes.wait()
        scores, items, sets, failures = processes.together(lambda: _join(mixtures, folder))
        return Outcome(scores, items, sets, failures, processes.rank)


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
) -> None:
    """Score what this rank is to score of what is not scored yet."""
    store = Progress(folder, processes.rank)
    # Rank 0 decides for all: a rank that looked later would see what an earlier one has written.
    pending = processes.together(lambda: _pending(mixtures, store))
    share = pending[processes.rank :: processes.size]
    bar = progress if progress is not None and processes.rank == 0 else _no_bar
    with store.writer() as write:
        for place, systems in bar(share, desc="scoring", unit="mixture"):
            for record in scorer.records(mixtures[place], systems):
                write(record)


def _no_bar(items: Iterable[Any], **_: Any) -> Iterable[Any]:
    return items


def _pending(mixtures: Sequence[Mixture], store: Progress) -> list[tuple[int, list[str]]]:
    """Mixtures (by place) with the systems that are still to be scored, failed ones included."""
    done = finished(mixtures, store.records())
    found = []
    for place, mixture in enumerate(mixtures):
        keys = [(mixture.name, system) for system in mixture.systems]
        systems = [key[1] for key in keys if key not in done or done[key]["reason"] is not None]
        if systems:
            found.append((place, systems))
    return found


def _join(mixtures: Sequence[Mixture], folder: str) -> tuple[Any, Any, Any, Any]:
    """Write the tables, in the order of the manifest, every pair of which has its rows."""
    found = finished(mixtures, Progress(folder, 0).records())
    records = [
        found.get((mixture.name, system)) or _lost(mixture, system)
        for mixture in mixtures
        for system in mixture.systems
    ]
    scores = [row for record in records for row in record["rows"]]
    items = [_item(record) for record in records]
    sets = _sets(items, scores)
    for name, columns, rows in (
        ("scores.csv", SCORE_COLUMNS, scores),
        ("items.csv", ITEM_COLUMNS, items),
        ("summary.csv", SET_COLUMNS, sets),
    ):
        files.write_csv(os.path.join(folder, name), columns, rows)
    failures = [
        f"mixture {record['mixture_id']!r}, system {record['system']!r}: {record['reason']}"
        for record in records
        if record["reason"] is not None
    ]
    return tuple(scores), tuple(items), tuple(sets), tuple(failures)


def _lost(mixture: Mixture, system: str) -> Record:
    """The record of a pair without one: its score is of files that are no longer there."""
    reason = "its files were changed while the run went on; start it again"
    rows = _failed_rows(mixture, system, reason)
    return {"mixture_id": mixture.name, "system": system, "reason": reason, "rows": rows}


def _item(record: Record) -> Record:
    """One mixture and system: means over its estimates."""
    rows = record["rows"]
    means = {name: mean([row[name] for row in rows]) for name in MEANS}
    undefined = sum(row["status"] == "undefined" for row in rows)
    status = "undefined" if undefined == len(rows) else "ok"
    return {
        "mixture_id": record["mixture_id"],
        "system": record["system"],
        **{name: _nine_digits(value) for name, value in means.items()},
        "estimates": len(rows),
        "undefined": undefined,
        "status": status if record["reason"] is None else "failed",
        "reason": record["reason"] or "",
    }


def _sets(items: Sequence[Record], scores: Sequence[Record]) -> list[Record]:
    """One row per system: means over its mixtures."""
    found = []
    for system in dict.fromkeys(item["system"] for item in items):
        own = [item for item in items if item["system"] == system]
        rows = [row for row in scores if row["system"] == system]
        states = [item["status"] for item in own]
        found.append(
            {"system": system}
            | {name: mean([item[name] for item in own]) for name in MEANS}
            | {"scored": states.count("ok"), "undefined": states.count("undefined")}
            | {"failed": states.count("failed")}
            | {"estimates": sum(row["status"] == "ok" for row in rows)}
            | {"frames": sum(row["frames"] for row in rows)}
        )
    return found
