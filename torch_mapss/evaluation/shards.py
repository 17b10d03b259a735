"""Shares of a run, what each has finished, and the folder they fill together.

Processes started by torchrun (RANK, WORLD_SIZE) or by SLURM's ``srun``, and jobs with
``--shard i/n``, need not know each other nor run at the same time: share i has every n-th mixture
of the manifest. Every finished pair of mixture and system is one line of
``progress/rank-I.jsonl``, flushed to the disk; a line that was cut off by a kill is dropped and its
pair scored again. The share that finishes last writes the tables.
"""

from __future__ import annotations

import json
import os
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, NamedTuple

from torch_mapss.evaluation import io
from torch_mapss.evaluation.manifest import Mixture, Record, short
from torch_mapss.evaluation.protocol import protocol_id
from torch_mapss.evaluation.report import versions

if TYPE_CHECKING:
    from filelock import FileLock

# Number of processes and the number of this one, by launcher. SLURM_NTASKS alone is what a job
# asked for, which its batch script has as well: a step (srun) states SLURM_STEP_NUM_TASKS.
_LAUNCHERS = (("WORLD_SIZE", "RANK"), ("SLURM_STEP_NUM_TASKS", "SLURM_PROCID"))


class Share(NamedTuple):
    """One of several processes that share out the mixtures of a run."""

    rank: int = 0
    size: int = 1

    @staticmethod
    def parse(text: str) -> Share:
        """``"i/n"``, the i-th of n shares, counted from 1 or from 0: 4/4 and 0/4 are the same.

        Raises:
            ValueError: something else.
        """
        numbers = text.split("/")
        if len(numbers) == 2 and all(part.strip().isdecimal() for part in numbers):
            index, count = map(int, numbers)
            if count >= 1 and index <= count:
                return Share(index % count, count)
        raise ValueError(
            f"--shard must be i/n with whole numbers, 0 <= i <= n and n >= 1, got {text!r}: e.g. "
            "1/4, 2/4, 3/4 and 4/4 for four jobs that share the manifest."
        )

    @staticmethod
    def of_environment() -> Share:
        """What torchrun or srun say of this process; all where neither started it.

        Raises:
            ValueError: variables that make no sense.
        """
        for many, this in _LAUNCHERS:
            size, rank = (os.environ.get(name) for name in (many, this))
            if size is None:
                continue
            if not size.strip().isdecimal() or int(size) < 1:
                raise ValueError(
                    f"the environment's {many} must be a number above 0, got {size!r}."
                )
            if int(size) > 1:
                if rank is None or not rank.strip().isdecimal() or int(rank) >= int(size):
                    raise ValueError(
                        f"the environment has {many}={size}, but {this} is {rank!r}: expected a "
                        "number below it. Start the processes with torchrun or srun, or unset both."
                    )
                return Share(int(rank), int(size))
        return Share()

    def own(self, count: int) -> range:
        """Places of its mixtures among so many."""
        return range(self.rank, count, self.size)


def _whole(name: str) -> int | None:
    text = os.environ.get(name, "").strip()
    return int(text) if text.isdecimal() else None


def local_device(device: str) -> str:
    """``device``, with "cuda" made the GPU of this process among those of its machine."""
    place = _whole("LOCAL_RANK") if "LOCAL_RANK" in os.environ else _whole("SLURM_LOCALID")
    if device != "cuda" or place is None:
        return device
    import torch

    count = torch.cuda.device_count()
    return f"cuda:{place % count if count else place}"


# ------------------------------------------------------------------------------------------------
# Files that were scored
# ------------------------------------------------------------------------------------------------


def signature(mixture: Mixture, system: str) -> list[list[Any]]:
    """Path, size and time of change of the files of a pair: a changed file is scored again."""
    found = []
    for path in (*mixture.references, *mixture.systems[system]):
        try:
            state = os.stat("" if path is None else mixture.locate(path))
            found.append([path, state.st_size, state.st_mtime_ns])
        except OSError:  # null in the manifest, or a file that went away while the run went on
            found.append([path, -1, -1])
    return found


def hashes(mixture: Mixture, paths: Iterable[str | None]) -> dict[str, str]:
    """SHA-256 of those files that can be read, by their paths in the manifest."""
    found = {}
    for path in paths:
        try:
            if path is not None:
                found[path] = io.sha256(mixture.locate(path))
        except OSError:  # what cannot be read is told with the pair's failure
            continue
    return found


# ------------------------------------------------------------------------------------------------
# Finished pairs
# ------------------------------------------------------------------------------------------------


class Progress:
    """The finished pairs, one line each, in files that only ever grow.

    Args:
        folder: of the results.
        rank: of this share, which writes a file of its own.
    """

    def __init__(self, folder: str, rank: int) -> None:
        self.results, self.folder = folder, os.path.join(folder, "progress")
        self.rank = rank

    @contextmanager
    def writer(self) -> Iterator[Callable[[Record], None]]:
        """Opens this rank's file; what is handed to the writer is on the disk when it returns.

        Raises:
            ValueError: another process writes it.
        """
        from filelock import Timeout

        io.make_folder(self.folder)
        path = os.path.join(self.folder, f"rank-{self.rank}.jsonl")
        try:
            with lock(path, timeout=0), open(path, "ab+") as file:
                file.seek(0)
                file.truncate(file.read().rfind(b"\n") + 1)
                file.seek(0, os.SEEK_END)

                def write(record: Record) -> None:
                    # ASCII: names that are no UTF-8 come back from its escapes as they were.
                    line = json.dumps({**record, "written": time.time()}).encode() + b"\n"
                    with io.writing(path):
                        file.write(line)
                        file.flush()
                        os.fsync(file.fileno())

                yield write
        except Timeout:
            raise ValueError(
                f"another run is writing to {io.shown(self.results)!r}. Wait for it, or name "
                "another folder."
            ) from None

    def records(self) -> dict[tuple[str, str], Record]:
        """The latest record of every pair of mixture and system, of all shares."""
        lines: list[Record] = []
        names = sorted(os.listdir(self.folder)) if os.path.isdir(self.folder) else []
        for name in names:
            if name.endswith(".jsonl"):
                with open(os.path.join(self.folder, name), "rb") as file:
                    content = file.read()
                # What follows the last line end was cut off by a kill.
                whole = content[: content.rfind(b"\n") + 1].splitlines()
                lines += [json.loads(line) for line in whole]
        lines.sort(key=lambda line: line["written"])
        return {(line["mixture_id"], line["system"]): line for line in lines}


def lock(path: str, timeout: float = -1) -> FileLock:
    """A lock beside a file, held by one process at a time; it goes with the process."""
    from filelock import FileLock

    folder, name = os.path.split(path)
    return FileLock(os.path.join(folder, f".{name}.lock"), timeout=timeout)


def finished(
    mixtures: Sequence[Mixture], records: Mapping[tuple[str, str], Record]
) -> dict[tuple[str, str], Record]:
    """The records of the manifest's pairs whose files are still those that were scored."""
    return {
        (mixture.name, system): record
        for mixture in mixtures
        for system in mixture.systems
        if (record := records.get((mixture.name, system))) is not None
        and record["files"] == signature(mixture, system)
    }


# ------------------------------------------------------------------------------------------------
# The folder
# ------------------------------------------------------------------------------------------------


def claim(folder: str, settings: Mapping[str, Any], options: Mapping[str, Any] | None) -> None:
    """Make ``folder`` the results folder of these settings.

    Args:
        folder: of the results.
        settings: all that must be equal to go on in it.
        options: to make the same scores again with ``--config``; written with the first run.

    Raises:
        ValueError: it holds results of other settings, or tables of something else.
    """
    path = os.path.join(io.make_folder(folder), "settings.json")
    wanted = io.plain({**settings, "version": versions()["torch_mapss"]})
    with lock(path):
        if not os.path.exists(path):
            if os.path.exists(os.path.join(folder, "scores.csv")):
                raise ValueError(
                    f"{io.shown(folder)!r} holds a scores.csv that no run over a manifest wrote. "
                    "Name another folder."
                )
            content = {"protocol": protocol_id(wanted), "settings": wanted, "versions": versions()}
            io.write_json(path, content if options is None else {**content, "options": options})
            return
    there = _stored_settings(path)
    unlike = [
        f"{key}: {short(there.get(key))} there, {short(wanted.get(key))} now"
        for key in sorted(set(there) | set(wanted))
        if there.get(key) != wanted.get(key)
    ]
    if unlike:
        raise ValueError(
            f"{io.shown(folder)!r} holds results of other settings ({'; '.join(unlike)}). "
            "Scores of unlike settings do not belong in one table: name another folder, or use "
            "the same settings (--config settings.json of that folder)."
        )


def note_hashes(folder: str, found: Mapping[str, str]) -> None:
    """Write the SHA-256 of the audio files that were scored into ``settings.json``."""
    path = os.path.join(folder, "settings.json")
    with open(path, encoding="utf-8") as file:
        stored = json.load(file)
    io.write_json(path, {**stored, "sha256": dict(sorted(found.items()))})


def _stored_settings(path: str) -> dict[str, Any]:
    try:
        with open(path, encoding="utf-8") as file:
            return dict(json.load(file)["settings"])
    except (OSError, ValueError, KeyError, TypeError):
        raise ValueError(
            f"{io.shown(path)!r} cannot be read as the settings of earlier results. Name another "
            "folder, or move the file away."
        ) from None
