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
from pathlib import Path
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
    def of(text: str | None) -> Share:
        """``"i/n"``, the i-th of n shares, counted from 1 or from 0: 4/4 and 0/4 are the same.

        None: what torchrun or srun say of this process; all where neither started it.

        Raises:
            ValueError: something else, or variables of the environment that make no sense.
        """
        if text is None:
            for many, this in _LAUNCHERS:
                if many in os.environ:
                    return _launched(many, this)
            return Share()
        numbers = text.split("/")
        if len(numbers) == 2 and all(part.strip().isdecimal() for part in numbers):
            index, count = map(int, numbers)
            if count >= 1 and index <= count:
                return Share(index % count, count)
        raise ValueError(
            f"--shard must be i/n with whole numbers, 0 <= i <= n and n >= 1, got {text!r}: e.g. "
            "1/4, 2/4, 3/4 and 4/4 for four jobs that share the manifest."
        )

    def own(self, count: int) -> range:
        """Places of its mixtures among so many."""
        return range(self.rank, count, self.size)


def _launched(many: str, this: str) -> Share:
    """The share that two variables of the environment state."""
    size, rank = (os.environ.get(name, "").strip() for name in (many, this))
    if size == "1":
        return Share()
    if not (size.isdecimal() and rank.isdecimal() and int(rank) < int(size)):
        raise ValueError(
            f"the environment has {many}={size!r} and {this}={rank!r}: expected a number of "
            "processes and one below it. Start them with torchrun or srun, or unset both."
        )
    return Share(int(rank), int(size))


def local_device(device: str) -> str:
    """``device``, with "cuda" made the GPU of this process among those of its machine."""
    place = os.environ.get("LOCAL_RANK", os.environ.get("SLURM_LOCALID", ""))
    if device != "cuda" or not place.isdecimal():
        return device
    import torch

    return f"cuda:{int(place) % max(1, torch.cuda.device_count())}"


# ------------------------------------------------------------------------------------------------
# Finished pairs
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


class Progress:
    """The finished pairs, one line each, in files that only ever grow.

    Args:
        folder: of the results.
        rank: of this share, which writes a file of its own.
    """

    def __init__(self, folder: str, rank: int = 0) -> None:
        self.results, self.folder = folder, os.path.join(folder, "progress")
        self.path = os.path.join(self.folder, f"rank-{rank}.jsonl")

    @contextmanager
    def writer(self) -> Iterator[Callable[[Record], None]]:
        """Opens this rank's file; what is handed to the writer is on the disk when it returns.

        Raises:
            ValueError: another process writes it.
        """
        from filelock import Timeout

        io.make_folder(self.folder)
        try:
            with lock(self.path, timeout=0), open(self.path, "ab+") as file:
                file.seek(0)
                file.truncate(file.read().rfind(b"\n") + 1)

                def write(record: Record) -> None:
                    # ASCII: names that are no UTF-8 come back from its escapes as they were.
                    line = json.dumps({**record, "written": time.time()}).encode() + b"\n"
                    with io.writing(self.path):
                        file.write(line)
                        file.flush()
                        os.fsync(file.fileno())

                yield write
        except Timeout:
            raise ValueError(
                f"another run is writing to {io.shown(self.results)!r}. Wait for it, or name "
                "another folder."
            ) from None

    def finished(self, mixtures: Sequence[Mixture]) -> dict[tuple[str, str], Record]:
        """The latest record of each pair of mixture and system whose files are those scored."""
        lines: list[Record] = []
        for path in sorted(Path(self.folder).glob("*.jsonl")):
            # What follows the last line end was cut off by a kill.
            lines += map(json.loads, path.read_bytes().split(b"\n")[:-1])
        lines.sort(key=lambda line: line["written"])
        latest = {(line["mixture_id"], line["system"]): line for line in lines}
        return {
            (mixture.name, system): record
            for mixture in mixtures
            for system in mixture.systems
            if (record := latest.get((mixture.name, system))) is not None
            and record["files"] == signature(mixture, system)
        }


def lock(path: str, timeout: float = -1) -> FileLock:
    """A lock beside a file, held by one process at a time; it goes with the process."""
    from filelock import FileLock

    folder, name = os.path.split(path)
    return FileLock(os.path.join(folder, f".{name}.lock"), timeout=timeout)


# ------------------------------------------------------------------------------------------------
# Settings
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
    path = os.path.join(folder, "settings.json")
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
    try:
        there = dict(json.loads(Path(path).read_text("utf-8"))["settings"])
    except (OSError, ValueError, KeyError, TypeError):
        raise ValueError(
            f"{io.shown(path)!r} cannot be read as the settings of earlier results. Name another "
            "folder, or move the file away."
        ) from None
    unlike = [
        f"{key}: {short(there.get(key))} there, {short(wanted.get(key))} now"
        for key in sorted(there.keys() | wanted.keys())
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
    path = Path(folder, "settings.json")
    stored = json.loads(path.read_text("utf-8"))
    io.write_json(path, {**stored, "sha256": dict(sorted(found.items()))})
