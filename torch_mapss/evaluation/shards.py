"""Shares of a run, and what each has finished in the folder that they fill together.

Processes started by torchrun (RANK, WORLD_SIZE) or by SLURM's ``srun``, and jobs with
``--shard i/n``, need not know each other nor run at the same time: share i has every n-th mixture
of the manifest. The rows of a mixture are written to ``progress/MIXTURE.json`` in one step once it
is scored: what a kill interrupts is scored again. The share that finishes last writes the tables.
"""

from __future__ import annotations

import json
import os
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from torch_mapss.evaluation import io
from torch_mapss.evaluation.manifest import Mixture, Record, short
from torch_mapss.evaluation.protocol import protocol_id, versions

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
            launched = (names for names in _LAUNCHERS if names[0] in os.environ)
            return next((_launched(*names) for names in launched), Share())
        numbers = text.split("/")
        if len(numbers) == 2 and all(part.strip().isdecimal() for part in numbers):
            index, count = map(int, numbers)
            if count >= 1 and index <= count:
                return Share(index % count, count)
        raise ValueError(
            f"--shard must be i/n with whole numbers, 0 <= i <= n and n >= 1, got {text!r}: e.g. "
            "1/4, 2/4, 3/4 and 4/4 for four jobs that share the manifest."
        )


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
    local = os.environ.get("LOCAL_RANK", os.environ.get("SLURM_LOCALID", ""))
    if device != "cuda" or not local.isdecimal():
        return device
    import torch

    return f"cuda:{int(local) % max(1, torch.cuda.device_count())}"


def lock(path: str, timeout: float = -1) -> FileLock:
    """A lock in the folder of a file, held by one process at a time; it goes with the process."""
    from filelock import FileLock

    folder, name = os.path.split(path)
    return FileLock(os.path.join(folder, f".{name}.lock"), timeout=timeout)


@contextmanager
def only_run(folder: str, share: Share) -> Iterator[None]:
    """Within, no other process scores this share: ValueError if one does."""
    from filelock import Timeout

    progress = io.make_folder(os.path.join(folder, "progress"))
    try:
        with lock(os.path.join(progress, f"rank-{share.rank}"), timeout=0):
            yield
    except Timeout:
        raise ValueError(
            f"another run is writing to {io.shown(folder)!r}. Wait for it, or name another folder."
        ) from None


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


def _noted(folder: str, mixture: Mixture) -> tuple[Path, dict[str, Record]]:
    """The file of a mixture's records, and what is in it, by system."""
    path = Path(folder, "progress", io.native(f"{io.file_name(mixture.name)}.json"))
    return path, json.loads(path.read_bytes()) if path.exists() else {}


def note(folder: str, mixture: Mixture, records: Mapping[str, Record]) -> None:
    """Write the records of some systems of a mixture."""
    path, old = _noted(folder, mixture)
    # ASCII: names that are no UTF-8 come back from its escapes as they were.
    io.write_bytes(path, json.dumps({**old, **records}).encode())


def finished(folder: str, mixture: Mixture) -> dict[str, Record]:
    """The records of a mixture, by system, whose files are those that were scored."""
    _, found = _noted(folder, mixture)
    return {
        system: found[system]
        for system in mixture.systems
        if system in found and found[system]["files"] == signature(mixture, system)
    }


def claim(folder: str, settings: Mapping[str, Any], options: Mapping[str, Any] | None) -> None:
    """Make ``folder`` the results folder of these settings, and of options to make them again.

    Raises:
        ValueError: it holds results of other settings, or tables of something else.
    """
    path = os.path.join(folder, "settings.json")
    with lock(path):
        if not os.path.exists(path):
            if os.path.exists(os.path.join(folder, "scores.csv")):
                raise ValueError(
                    f"{io.shown(folder)!r} holds a scores.csv that no run over a manifest wrote. "
                    "Name another folder."
                )
            content = {"protocol": protocol_id(settings), "settings": settings}
            again = {} if options is None else {"options": options}
            io.write_json(path, {**content, "versions": versions(), **again})
            return
    from torch_mapss.core.checks import differing  # late: the command line imports this module

    there = io.read_json(path, "settings")["settings"]
    unlike = [
        f"{key}: {short(one)} there, {short(two)} now"
        for key, one, two in differing(there, settings)
    ]
    if unlike:
        raise ValueError(
            f"{io.shown(folder)!r} holds results of other settings ({'; '.join(unlike)}). "
            "Scores of unlike settings do not belong in one table: name another folder, or use "
            "the same settings (--config settings.json of that folder)."
        )
