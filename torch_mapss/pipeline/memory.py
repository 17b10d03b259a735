"""The working memory of a call, and the sizes of batches and blocks that follow from it.

A budget changes how much is done at a time, never the result.
"""

from __future__ import annotations

import math
import numbers
import re
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, NamedTuple

import torch

GIB = 2**30
_LEAST = 2**24  # 16 MiB; with less, batches would be single frames anyway
#: Where Linux lists the control groups of this process, and where their limits are.
PROCESS_GROUPS, GROUPS_FOLDER = "/proc/self/cgroup", "/sys/fs/cgroup"


class Budget(NamedTuple):
    """Working memory in bytes, in addition to waveforms, the encoder's weights and results.

    The shares were tuned so that a total of 1 GiB gives batch sizes that suit a CPU's caches. A
    call's peak is about the sum of the two largest.
    """

    samples: int  # samples of copies made at a time; each takes some 400 bytes meanwhile
    embeddings: int  # bytes of an encoder's activations, and of a block's embeddings in segments
    gathered: int  # bytes of the embeddings of a block of frames, copied for its graphs
    frames: int  # bytes of the graphs of a batch of frames


def checked_memory(memory: Any) -> int | None:
    """Convert a number of bytes or a text like "2GiB" to bytes; "auto" to None.

    Raises:
        TypeError: neither a number nor a text.
        ValueError: not an amount of memory, or less than 16 MiB.
    """
    if isinstance(memory, bool) or not isinstance(memory, numbers.Real | str):
        raise TypeError(
            f"memory must be a number of bytes, a text like '2GiB' or 'auto', got {memory!r}."
        )
    text = str(memory).strip().lower()
    if text == "auto":
        return None
    match = re.fullmatch(r"((?:\d+\.?\d*|\.\d+)(?:e\+?\d+)?)\s*([kmgt]?)i?b?", text)
    if match is None or not math.isfinite(float(match[1])):
        raise ValueError(
            f"memory must be a number of bytes, a text like '2GiB' or 'auto', got {memory!r}."
        )
    amount = float(match[1]) * 1024 ** " kmgt".index(match[2] or " ")
    if amount < _LEAST:
        raise ValueError(f"memory must be at least 16 MiB to work in, got {memory!r}.")
    return int(amount)


def budget(memory: int | None, signals: object) -> Budget:
    """Budget of a call, to be read once at its beginning.

    Args:
        memory: bytes. None: a quarter of the memory that is currently free on CUDA. On a CPU 1 GiB,
            or a quarter of the free memory if that is less; more is not faster there.
        signals: tensor or bank, whose device counts. Anything else is taken to be on the CPU, and
            refused later.
    """
    if memory is None:
        device = getattr(signals, "device", None)
        if isinstance(device, torch.device) and device.type == "cuda":
            free, _ = torch.cuda.mem_get_info(device)
        else:
            free = min(4 * GIB, free_memory())
        memory = max(_LEAST, free // 4)
    return Budget(
        samples=max(1, memory // 1024),
        embeddings=memory // 2,
        gathered=memory // 8,
        frames=memory * 3 // 32,
    )


# Control groups, versions 2 and 1: subfolder, limit, use, and the part of it that can be reclaimed.
_VERSIONS = (
    ("", "memory.max", "memory.current", "inactive_file"),
    ("memory", "memory.limit_in_bytes", "memory.usage_in_bytes", "total_inactive_file"),
)


def free_memory() -> int:
    """Free bytes of main memory, within the limits of the process's control groups."""
    try:
        lines = Path("/proc/meminfo").read_text(encoding="ascii").splitlines()
        figures = dict(line.split(":", 1) for line in lines)
        free = int(figures["MemAvailable"].split()[0]) * 1024
    except (OSError, KeyError, ValueError):  # this system has no such figure
        free = 4 * GIB
    try:
        groups = Path(PROCESS_GROUPS).read_text(encoding="utf-8").splitlines()
    except OSError:
        groups = []
    for line in groups:
        _, controllers, path = line.split(":", 2)
        if controllers and "memory" not in controllers.split(","):
            continue
        root, limit, use, inactive = _VERSIONS[bool(controllers)]
        group = Path(path.lstrip("/"))
        # Parents too, because a container's own group is often mounted as the root.
        for folder in {Path(GROUPS_FOLDER, root, parent) for parent in (group, *group.parents)}:
            try:
                limit_bytes = int((folder / limit).read_text("ascii"))
                used_bytes = int((folder / use).read_text("ascii"))
                stat = (folder / "memory.stat").read_text("ascii").splitlines()
            except (OSError, ValueError):  # no such group, or no limit ("max")
                continue
            reclaimable = int(dict(line.split() for line in stat).get(inactive, 0))
            free = min(free, limit_bytes - used_bytes + reclaimable)
    return max(0, free)


_REMEDY = (
    'Score long clips in segments (segment=60 or "auto"; without gradients), pass a smaller '
    "memory= (a text like '1GiB'), fewer or shorter mixtures or fewer frames (frames=...), score "
    "under torch.no_grad() where no gradient is needed, set activation_checkpointing=True of the "
    "encoder where one is, or free what else is on the device."
)
# What allocators say that raise a plain RuntimeError: of the CPU, and of Apple's GPUs.
_OUT_OF_MEMORY = re.compile(r"can't allocate memory|not enough memory|out of memory", re.IGNORECASE)


@contextmanager
def explained() -> Iterator[None]:
    """Add advice to out-of-memory errors of any device, as torch.OutOfMemoryError."""
    try:
        yield
    except (RuntimeError, MemoryError) as error:
        is_known = isinstance(error, torch.OutOfMemoryError | MemoryError)
        if not is_known and not _OUT_OF_MEMORY.search(str(error)):
            raise
        raise torch.OutOfMemoryError(f"{error}\n{_REMEDY}") from error
