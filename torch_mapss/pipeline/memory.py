"""How much memory a call may work in, and what follows from it: batches and blocks of frames.

A budget changes how many things are done at a time, never what is computed.
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import torch

GIB = 2**30
_UNITS = {"": 1, "k": 2**10, "m": 2**20, "g": 2**30, "t": 2**40}
_LEAST = 2**24  # 16 MiB: below it batches are single frames anyway
_GROUPS, _CGROUP = "/proc/self/cgroup", "/sys/fs/cgroup"


@dataclass(frozen=True)
class Budget:
    """Bytes to work in, beside the waveforms, the encoder's weights and what is returned.

    The shares are those at which 1 GiB gives what suits a CPU's caches. What a call needs at once
    is about the sum of the largest two.
    """

    total: int

    @property
    def samples(self) -> int:
        """Samples of distorted copies made at a time; each takes some 400 bytes in the making."""
        return max(1, self.total // 1024)

    @property
    def encoder(self) -> int:
        """Bytes of activations of an encoder's batch."""
        return self.total // 2

    @property
    def embeddings(self) -> int:
        """Bytes of a block of frames' embeddings, where a clip is scored in segments."""
        return self.total // 2

    @property
    def gathered(self) -> int:
        """Bytes of the embeddings of a chunk of frames, copied for its graphs."""
        return self.total // 8

    @property
    def frames(self) -> int:
        """Bytes of the graphs of a chunk of frames."""
        return self.total * 3 // 32


def checked_memory(memory: Any) -> int | None:
    """Bytes, from a number of them or a text like "2GiB"; None for "auto".

    Raises:
        TypeError: neither.
        ValueError: no amount of memory, or less than 16 MiB.
    """
    if isinstance(memory, str) and memory.strip().lower() == "auto":
        return None
    if isinstance(memory, bool) or not isinstance(memory, int | float | str):
        raise TypeError(
            f"memory must be a number of bytes, a text like '2GiB' or 'auto', got {memory!r}."
        )
    found: float | None = None
    if isinstance(memory, str):
        match = re.fullmatch(r"\s*([\d.]+)\s*([kmgt]?)i?b?\s*", memory.lower())
        if match is not None and match[1].count(".") <= 1 and match[1] != ".":
            found = float(match[1]) * _UNITS[match[2]]
    else:
        found = float(memory)
    if found is None or not _LEAST <= found < float("inf"):
        raise ValueError(
            f"memory must be at least 16 MiB to work in, as a number of bytes, a text like '2GiB' "
            f"or 'auto', got {memory!r}."
        )
    return int(found)


def budget(memory: int | None, device: torch.device) -> Budget:
    """The budget of a call on a device; None: what suits it.

    On CUDA a quarter of what is free at the moment. On a CPU 1 GiB, or a quarter of the free memory
    if that is less: more is no faster there.
    """
    if memory is not None:
        return Budget(memory)
    if device.type == "cuda":
        free, _ = torch.cuda.mem_get_info(device)
        return Budget(max(_LEAST, free // 4))
    return Budget(max(_LEAST, min(GIB, free_memory() // 4)))


def free_memory() -> int:
    """Bytes of main memory that are free, within the limit of a container."""
    try:
        free = os.sysconf("SC_AVPHYS_PAGES") * os.sysconf("SC_PAGE_SIZE") + _reclaimable()
    except (ValueError, OSError, AttributeError):  # no such figure on this system
        free = 4 * GIB
    return max(0, min([free, *_container_limits()]))


def _reclaimable() -> int:
    """Bytes that Linux keeps as caches of files and gives back when asked."""
    try:
        with open("/proc/meminfo", encoding="ascii") as file:
            kept = dict(line.split(":", 1) for line in file)
        return int(kept["Cached"].split()[0]) * 1024
    except (OSError, KeyError, ValueError):
        return 0


def _container_limits() -> Iterator[int]:
    """Bytes left below the limits of the process's control groups (versions 1 and 2)."""
    try:
        with open(_GROUPS, encoding="utf-8") as file:
            lines = [line.strip().split(":", 2) for line in file]
    except OSError:
        return
    for _, controllers, group in lines:
        if controllers == "":
            names, root = ("memory.max", "memory.current", "inactive_file"), _CGROUP
        elif "memory" in controllers.split(","):
            names = "memory.limit_in_bytes", "memory.usage_in_bytes", "total_inactive_file"
            root = os.path.join(_CGROUP, "memory")
        else:
            continue
        # Inside a container its own group is often mounted as the root.
        folders = {root}
        while group.strip("/"):
            folders.add(os.path.join(root, group.strip("/")))
            group = os.path.dirname(group)
        for folder in folders:
            yield from _left(folder, *names)


def _left(folder: str, limit: str, used: str, cached: str) -> Iterator[int]:
    """Bytes left in one control group, if it has a limit."""
    try:
        most, now = (int(_read(os.path.join(folder, name))) for name in (limit, used))
        pairs = (line.split() for line in _read(os.path.join(folder, "memory.stat")).splitlines())
        given_back = next((int(value) for name, value in pairs if name == cached), 0)
    except (OSError, ValueError):  # no such group, or "max": no limit
        return
    yield most - now + given_back


def _read(path: str) -> str:
    with open(path, encoding="ascii") as file:
        return file.read().strip()


_REMEDY = (
    "Pass a smaller memory= (a text like '1GiB'), fewer or shorter mixtures or fewer frames "
    "(frames=...), score under torch.no_grad() where no gradient is needed, set "
    "activation_checkpointing=True of the encoder where one is, or free what else is on the device."
)


@contextmanager
def explained() -> Iterator[None]:
    """Within, an error of a device out of memory says what helps."""
    try:
        yield
    except torch.OutOfMemoryError as error:
        if _REMEDY in str(error):
            raise
        raise torch.OutOfMemoryError(f"{error}\n{_REMEDY}") from error
