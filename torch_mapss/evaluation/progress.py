"""Finished pairs of a run on disk: they survive a kill, and say what is still to do."""

from __future__ import annotations

import json
import os
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any, BinaryIO

from torch_mapss.evaluation import files
from torch_mapss.evaluation.io import file_name as file_name
from torch_mapss.evaluation.manifest import Mixture, Record, short
from torch_mapss.evaluation.protocol import protocol_id
from torch_mapss.evaluation.report import versions


def signature(mixture: Mixture, system: str) -> list[list[Any]]:
    """Path, size and time of change of the files of a pair: a changed file is scored again."""
    return [
        [path, *_state(None if path is None else mixture.locate(path))]
        for path in (*mixture.references, *mixture.systems[system])
    ]


def hashes(mixture: Mixture, paths: Iterable[str | None]) -> dict[str, str]:
    """SHA-256 of those files that can be read, by their paths in the manifest."""
    found = {}
    for path in paths:
        try:
            if path is not None:
                found[path] = files.sha256(mixture.locate(path))
        except OSError:  # what cannot be read is told with the pair's failure
            continue
    return found


def _state(path: str | None) -> tuple[int, int]:
    try:
        found = os.stat(path or "")
    except OSError:  # null in the manifest, or a file that went away while the run went on
        return -1, -1
    return found.st_size, found.st_mtime_ns


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
        files.make_folder(self.folder)
        with open(os.path.join(self.folder, f"rank-{self.rank}.jsonl"), "ab+") as file:
            _lock(file, self.folder)
            _drop_torn_line(file)

            def write(record: Record) -> None:
                # ASCII: names that are no UTF-8 come back from its escapes as they were.
                with files.writing(file.name):
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
            f"another run is writing to {files.shown(os.path.dirname(folder))!r}. Wait for it, or "
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


def claim(folder: str, settings: Mapping[str, Any], extra: Mapping[str, Any]) -> None:
    """Make ``folder`` the results folder of these settings.

    Args:
        folder: of the results.
        settings: all that must be equal to go on in it.
        extra: what else to write down, with the first run.

    Raises:
        ValueError: it holds results of other settings, or tables of something else.
    """
    path = os.path.join(files.make_folder(folder), "settings.json")
    wanted = files.plain({**settings, "version": versions()["torch_mapss"]})
    if not os.path.exists(path):
        if os.path.exists(os.path.join(folder, "scores.csv")):
            raise ValueError(
                f"{files.shown(folder)!r} holds a scores.csv that no run over a manifest wrote. "
                "Name another folder."
            )
        protocol = protocol_id(wanted)
        content = {"protocol": protocol, "settings": wanted, "versions": versions()}
        files.write_json(path, {**content, **extra})
        return
    unlike = _differences(_stored_settings(path), wanted)
    if unlike:
        raise ValueError(
            f"{files.shown(folder)!r} holds results of other settings ({'; '.join(unlike)}). "
            "Scores of unlike settings do not belong in one table: name another folder, or use "
            "the same settings."
        )


def note_hashes(folder: str, hashes: Mapping[str, str]) -> None:
    """Write the SHA-256 of the audio files that were scored into ``settings.json``."""
    path = os.path.join(folder, "settings.json")
    with open(path, encoding="utf-8") as file:
        stored = json.load(file)
    files.write_json(path, {**stored, "sha256": dict(sorted(hashes.items()))})


def _stored_settings(path: str) -> dict[str, Any]:
    try:
        with open(path, encoding="utf-8") as file:
            return dict(json.load(file)["settings"])
    except (OSError, ValueError, KeyError, TypeError):
        raise ValueError(
            f"{files.shown(path)!r} cannot be read as the settings of earlier results. Name "
            "another folder, or move the file away."
        ) from None


def _differences(there: Mapping[str, Any], wanted: Mapping[str, Any]) -> list[str]:
    keys = sorted(set(there) | set(wanted))
    return [
        f"{key}: {short(there.get(key))} there, {short(wanted.get(key))} now"
        for key in keys
        if there.get(key) != wanted.get(key)
    ]
