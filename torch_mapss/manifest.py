"""Whole test sets: a manifest of mixtures and systems -> tables, row by row, resumable.

From frames to one number per system, each step in a table that the next can be redone from:

1. frame -> *source*: mean over the scored frames of one estimate, ``scores.csv``;
2. source -> *item*: mean over the estimates of one mixture and system, ``items.csv``;
3. item -> *set*: mean over the mixtures of one system, ``summary.csv``.

Undefined numbers (a silent reference, no frame with two active sources, a mixture that failed) are
``nan``, left out of the next mean, and counted.

**Kills.** Every finished pair of mixture and system is one line, flushed to the disk, of
``progress/rank-N.jsonl``. A line that was cut off by a kill is dropped, and its pair is scored
again; the tables are written at the end, each in one step. So a run that was killed and started
again writes the tables of an undisturbed one, byte for byte on one machine.

**Several processes.** With ``WORLD_SIZE`` above 1 (torchrun sets it) the mixtures are shared out,
and rank 0 writes the tables. The processes must share the output folder.
"""

from __future__ import annotations

import json
import os
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from datetime import timedelta
from typing import TYPE_CHECKING, Any, BinaryIO, NamedTuple

from torch_mapss import _clips, _files
from torch_mapss.report import (
    MEANS,
    PreparedOnce,
    Report,
    Request,
    SourceRow,
    device_of,
    mean,
    number,
    score_clips,
    versions,
)

if TYPE_CHECKING:
    from torch_mapss._clips import Clip
    from torch_mapss.pipeline import MAPSS

SCORE_COLUMNS = ("mixture_id", "system", *SourceRow._fields, "status", "reason", "notes")
ITEM_COLUMNS = ("mixture_id", "system", *MEANS, "estimates", "undefined", "status", "reason")
SET_COLUMNS = ("system", *MEANS, "scored", "undefined", "failed", "estimates", "frames")
# A rank may wait for the others as long as they score.
_PATIENCE = timedelta(days=30)
# What makes one mixture fail; anything else ends the run.
_FAILURES = (ValueError, TypeError, OSError, RuntimeError, MemoryError)


class ManifestError(ValueError):
    """A manifest that cannot be run; ``problems`` lists all that is wrong with it."""

    def __init__(self, path: str, problems: Sequence[str]) -> None:
        self.problems = tuple(problems)
        if len(problems) == 1:
            super().__init__(f"{path}: {problems[0]}")
        else:
            listed = "".join(f"\n  - {problem}" for problem in problems)
            super().__init__(f"{path} has {len(problems)} problems:{listed}")


class Mixture(NamedTuple):
    """One entry of a manifest."""

    name: str  # its mixture_id
    references: tuple[str, ...]  # as written
    systems: Mapping[str, tuple[str | None, ...]]  # as written; None: not estimated
    folder: str  # paths are relative to it

    def locate(self, path: str) -> str:
        """The path to open."""
        return _files.native(os.path.join(self.folder, path))


# ------------------------------------------------------------------------------------------------
# Reading
# ------------------------------------------------------------------------------------------------


def load_manifest(path: str | os.PathLike[str]) -> tuple[Mixture, ...]:
    """Read and check a manifest as a whole.

    A JSON list of ``{"mixture_id": …, "references": […], "systems": {name: […]}}``: one path per
    source and in each system one per reference, ``null`` for a source it does not estimate. Paths
    are relative to the manifest. Further keys are ignored.

    Args:
        path: of the JSON file, UTF-8.

    Returns:
        The mixtures, in order.

    Raises:
        ManifestError: everything that is wrong with it, missing files included.
    """
    name = _files.shown(path)
    entries = _read_json(path, name)
    if not isinstance(entries, list):
        kind = type(entries).__name__
        raise ManifestError(name, [f"must be a JSON list of mixtures, got {kind}"])
    if not entries:
        raise ManifestError(name, ["lists no mixture"])
    folder = os.path.dirname(os.fspath(path))
    problems: list[str] = []
    mixtures = [_read_entry(entry, k, folder, problems) for k, entry in enumerate(entries)]
    problems += _duplicates([mixture.name for mixture in mixtures])
    for mixture in mixtures:
        problems += _missing_files(mixture)
    if not problems and not any(mixture.systems for mixture in mixtures):
        problems.append("lists no system in any of its mixtures, so there is nothing to score")
    if problems:
        raise ManifestError(name, problems)
    return tuple(mixtures)


def _read_json(path: str | os.PathLike[str], name: str) -> Any:
    try:
        with open(path, encoding="utf-8-sig") as file:
            return json.load(file, object_pairs_hook=_unique_keys)
    except FileNotFoundError:
        raise ManifestError(name, ["there is no such file"]) from None
    except OSError as error:
        raise ManifestError(name, [f"cannot be read: {error.strerror}"]) from None
    except json.JSONDecodeError as error:
        place = f"line {error.lineno}, column {error.colno}"
        raise ManifestError(name, [f"is no valid JSON ({place}: {error.msg})"]) from None
    except UnicodeDecodeError as error:
        raise ManifestError(name, [f"is no UTF-8 text (byte {error.start})"]) from None
    except _RepeatedKey as error:
        raise ManifestError(name, [f"has the key {error} twice in one object"]) from None


class _RepeatedKey(Exception):
    pass


def _unique_keys(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    found: dict[str, Any] = {}
    for key, value in pairs:
        if key in found:
            raise _RepeatedKey(repr(key))
        found[key] = value
    return found


def _read_entry(entry: Any, place: int, folder: str, problems: list[str]) -> Mixture:
    """An entry as far as it can be read; what is wrong goes to ``problems``."""
    where = f"entry {place}"
    if not isinstance(entry, dict):
        problems.append(f"{where} must be an object, got {type(entry).__name__}")
        return Mixture(where, (), {}, folder)
    name = entry.get("mixture_id")
    if isinstance(name, str | int) and not isinstance(name, bool) and str(name).strip():
        where = f"mixture {str(name)!r}"
    missing = [key for key in ("mixture_id", "references", "systems") if key not in entry]
    if missing:
        problems.append(f"{where} lacks {', '.join(map(repr, missing))}")
    elif where.startswith("entry"):
        problems.append(f"{where}: mixture_id must be a name, got {name!r}")
    references = _read_references(entry.get("references", ()), where, problems)
    systems = _read_systems(entry.get("systems", {}), where, len(references), problems)
    label = where if where.startswith("entry") else str(name)
    return Mixture(label, references, systems, folder)


def _read_references(given: Any, where: str, problems: list[str]) -> tuple[str, ...]:
    if given == ():  # the key is missing, which is told already
        return ()
    if not isinstance(given, list) or not all(isinstance(path, str) and path for path in given):
        problems.append(f"{where}: references must be a list of paths, got {_short(given)}")
        return ()
    if len(given) < 2:
        problems.append(f"{where}: references must be at least two, got {len(given)}")
    return tuple(given)


def _read_systems(
    given: Any, where: str, sources: int, problems: list[str]
) -> dict[str, tuple[str | None, ...]]:
    if not isinstance(given, dict):
        problems.append(
            f"{where}: systems must be an object of name: list of paths, got {_short(given)}"
        )
        return {}
    found: dict[str, tuple[str | None, ...]] = {}
    for name, paths in given.items():
        problem = _system_problem(paths, sources)
        if problem:
            problems.append(f"{where}, system {name!r}: {problem}")
        else:
            found[name] = tuple(paths)
    return found


def _system_problem(paths: Any, sources: int) -> str | None:
    kinds = isinstance(paths, list) and all(
        path is None or (isinstance(path, str) and path) for path in paths
    )
    if not kinds:
        return f"must be a list of paths or null, got {_short(paths)}"
    if sources and len(paths) != sources:
        return (
            f"must have one path per reference ({sources}), null where it estimates none, got "
            f"{len(paths)}"
        )
    if all(path is None for path in paths):
        return "estimates no source at all; leave it out"
    return None


def _short(value: Any) -> str:
    text = json.dumps(value, ensure_ascii=False)
    return text if len(text) <= 60 else text[:57] + "..."


def _duplicates(names: Sequence[str]) -> list[str]:
    twice = dict.fromkeys(name for name in names if names.count(name) > 1)
    return [f"mixture_id {name!r} is used {names.count(name)} times" for name in twice]


def _missing_files(mixture: Mixture) -> list[str]:
    listed = [("references", path) for path in mixture.references]
    for system, paths in mixture.systems.items():
        listed += [(f"system {system!r}", path) for path in paths if path is not None]
    return [
        f"mixture {mixture.name!r}, {whose}: no file {os.path.join(mixture.folder, path)!r}"
        for whose, path in listed
        if not os.path.isfile(mixture.locate(path))
    ]


# ------------------------------------------------------------------------------------------------
# Scoring one pair of mixture and system
# ------------------------------------------------------------------------------------------------

Record = dict[str, Any]  # one line of progress: mixture_id, system, rows, reason, files, written


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
            clips = _clips.read_set(paths, "references", self.mapss.sample_rate)
            references = tuple(clip for clip in clips if clip is not None)
        except _FAILURES as error:
            references = error
        for system in systems:
            files = signature(mixture, system)
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
                "files": files,
            }

    def _rows(self, mixture: Mixture, system: str, references: tuple[Clip, ...]) -> list[Record]:
        paths = [None if p is None else mixture.locate(p) for p in mixture.systems[system]]
        estimates = _clips.read_set(paths, "estimates", self.mapss.sample_rate)
        report = score_clips(
            self.mapss,
            estimates,
            references,
            self.request,
            device=self.device,
            prepared=self.prepared,
        )
        if self.frames is not None:
            parts = (_files.native(file_name(name)) for name in (mixture.name, system))
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
    return float(_files.cell(value)) if isinstance(value, float) else value


def _failed_rows(mixture: Mixture, system: str, reason: str) -> list[Record]:
    names = _files.display_names(mixture.references)
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


def signature(mixture: Mixture, system: str) -> list[list[Any]]:
    """Path, size and time of change of the files of a pair: a changed file is scored again."""
    return [
        [path, *_state(None if path is None else mixture.locate(path))]
        for path in (*mixture.references, *mixture.systems[system])
    ]


def _state(path: str | None) -> tuple[int, int]:
    try:
        found = os.stat(path or "")
    except OSError:  # null in the manifest, or a file that went away while the run went on
        return -1, -1
    return found.st_size, found.st_mtime_ns


def file_name(text: str) -> str:
    """``text`` as the name of a file or folder: other texts, other names, on every system."""
    unsafe = set('/\\:*?"<>|%') | {chr(code) for code in range(32)}
    made = "".join(f"%{ord(c):02X}" if c in unsafe else c for c in text)
    return f"%{ord(made[0]):02X}{made[1:]}" if made[:1] in (".", " ") or not made.strip() else made


# ------------------------------------------------------------------------------------------------
# Progress on disk
# ------------------------------------------------------------------------------------------------


class Progress:
    """The finished pairs, one line each, in files that only ever grow.

    Args:
        folder: of the results.
        rank: of this process, which writes a file of its own.
    """

    def __init__(self, folder: str, rank: int) -> None:
        self.folder = os.path.join(folder, "progress")
        self.rank = rank

    @contextmanager
    def writer(self) -> Iterator[Callable[[Record], None]]:
        """Opens this rank's file; what is handed to the writer is on the disk when it returns."""
        _files.make_folder(self.folder)
        with open(os.path.join(self.folder, f"rank-{self.rank}.jsonl"), "ab+") as file:
            _lock(file, self.folder)
            _drop_torn_line(file)

            def write(record: Record) -> None:
                # ASCII: names that are no UTF-8 come back from its escapes as they were.
                file.write(json.dumps({**record, "written": time.time()}).encode() + b"\n")
                file.flush()
                os.fsync(file.fileno())

            yield write

    def records(self) -> dict[tuple[str, str], Record]:
        """The latest record of every pair of mixture and system."""
        found: dict[tuple[str, str], Record] = {}
        for record in sorted(self._lines(), key=lambda line: line["written"]):
            found[record["mixture_id"], record["system"]] = record
        return found

    def _lines(self) -> Iterator[Record]:
        if not os.path.isdir(self.folder):
            return
        for name in sorted(os.listdir(self.folder)):
            if name.endswith(".jsonl"):
                with open(os.path.join(self.folder, name), "rb") as file:
                    content = file.read()
                # What follows the last line end was cut off by a kill.
                for line in content[: content.rfind(b"\n") + 1].splitlines():
                    yield json.loads(line)


def _drop_torn_line(file: BinaryIO) -> None:
    file.seek(0)
    content = file.read()
    file.truncate(content.rfind(b"\n") + 1)
    file.seek(0, os.SEEK_END)


def _lock(file: BinaryIO, folder: str) -> None:
    """Refuse to write where another run is writing; the lock goes with the process."""
    try:
        import fcntl
    except ImportError:  # no such locks on Windows
        return
    try:
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        raise ValueError(
            f"another run is writing to {_files.shown(os.path.dirname(folder))!r}. Wait for it, or "
            "name another folder."
        ) from None
    except OSError:  # a file system without locks
        return


def finished(
    mixtures: Sequence[Mixture], records: Mapping[tuple[str, str], Record]
) -> dict[tuple[str, str], Record]:
    """The records of the manifest's pairs whose files are still those that were scored."""
    found = {}
    for mixture in mixtures:
        for system in mixture.systems:
            record = records.get((mixture.name, system))
            if record is not None and record["files"] == signature(mixture, system):
                found[mixture.name, system] = record
    return found


def claim(folder: str, settings: Mapping[str, Any]) -> None:
    """Make ``folder`` the results folder of these settings.

    Raises:
        ValueError: it holds results of other settings, or tables of something else.
    """
    path = os.path.join(_files.make_folder(folder), "settings.json")
    wanted = _files.plain({**settings, "version": versions()["torch_mapss"]})
    if not os.path.exists(path):
        if os.path.exists(os.path.join(folder, "scores.csv")):
            raise ValueError(
                f"{_files.shown(folder)!r} holds a scores.csv that no run over a manifest wrote. "
                "Name another folder."
            )
        _files.write_json(path, {"settings": wanted, "versions": versions()})
        return
    unlike = _differences(_stored_settings(path), wanted)
    if unlike:
        raise ValueError(
            f"{_files.shown(folder)!r} holds results of other settings ({'; '.join(unlike)}). "
            "Scores of unlike settings do not belong in one table: name another folder, or use "
            "the same settings."
        )


def _stored_settings(path: str) -> dict[str, Any]:
    try:
        with open(path, encoding="utf-8") as file:
            return dict(json.load(file)["settings"])
    except (OSError, ValueError, KeyError, TypeError):
        raise ValueError(
            f"{_files.shown(path)!r} cannot be read as the settings of earlier results. Name "
            "another folder, or move the file away."
        ) from None


def _differences(there: Mapping[str, Any], wanted: Mapping[str, Any]) -> list[str]:
    keys = sorted(set(there) | set(wanted))
    return [
        f"{key}: {_short(there.get(key))} there, {_short(wanted.get(key))} now"
        for key in keys
        if there.get(key) != wanted.get(key)
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
                _files.text_table(columns, rows),
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
        processes.together(lambda: _files.make_folder(folder) and None)
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
        _files.write_csv(os.path.join(folder, name), columns, rows)
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
