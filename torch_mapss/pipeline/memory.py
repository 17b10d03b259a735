"""How much memory a call may work in, and what follows from it: batches, chunks, blocks.

A budget changes how many things are done at a time, never what is computed.
"""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, TypeVar

import torch

from torch_mapss.core.checks import warn_user

Result = TypeVar("Result")

GIB = 2**30
_UNITS = {"": 1, "k": 2**10, "m": 2**20, "g": 2**30, "t": 2**40}
_LEAST = 2**24  # 16 MiB: below it chunks are single frames anyway
_NOTHING_LEFT = (
    "That was with frames, distortions and waveforms one by one. What is kept besides is the bank "
    "and, where gradients are wanted, the graph of the estimates' encodings: pass fewer or shorter "
    "mixtures or fewer frames (frames=...), score under torch.no_grad() where no gradient is "
    "needed, set activation_checkpointing of the encoder, or free what else lies on the device."
)


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

    def halved(self) -> Budget:
        """Half of it; itself where that would be too little for single frames."""
        return Budget(min(self.total, max(_LEAST, self.total // 2)))


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
    return Budget(max(_LEAST, min(GIB, _free_memory() // 4)))


def _free_memory() -> int:
    try:
        return os.sysconf("SC_AVPHYS_PAGES") * os.sysconf("SC_PAGE_SIZE") + _reclaimable()
    except (ValueError, OSError, AttributeError):  # no such figure on this system
        return 4 * GIB


def _reclaimable() -> int:
    """Bytes that Linux keeps as caches of files and gives back when asked."""
    try:
        with open("/proc/meminfo", encoding="ascii") as file:
            kept = dict(line.split(":", 1) for line in file)
        return int(kept["Cached"].split()[0]) * 1024
    except (OSError, KeyError, ValueError):
        return 0


class Allowance:
    """A budget that is halved whenever the device runs out of memory, and stays so.

    Args:
        start: what to begin with.
    """

    def __init__(self, start: Budget) -> None:
        self.now = start

    def spend(self, work: Callable[[Budget], Result]) -> Result:
        """The result of work within the budget, begun anew with half of it as often as needed.

        What the work does must be free of side effects up to its end.

        Raises:
            torch.OutOfMemoryError: with the least budget there is; its message says what is left
                to do.
        """
        failed = False
        while True:
            try:
                result = work(self.now)
                break
            except torch.OutOfMemoryError as error:
                smaller = self.now.halved()
                if smaller == self.now:
                    raise _with_remedy(error, _NOTHING_LEFT) from error
                self.now, failed = smaller, True
            # Outside the handler, which keeps what the failed attempt had allocated.
            if torch.cuda.is_available():
                torch.cuda.empty_cache()
        if failed:
            warn_user(
                f"the device ran out of memory: going on within {self.now.total / GIB:.3g} GiB. "
                f"Pass memory={self.now.total} to begin with that."
            )
        return result


@contextmanager
def explained(remedy: str) -> Iterator[None]:
    """Within, an error of a device out of memory says what helps against it."""
    try:
        yield
    except torch.OutOfMemoryError as error:
        raise _with_remedy(error, remedy) from error


def _with_remedy(error: torch.OutOfMemoryError, remedy: str) -> torch.OutOfMemoryError:
    return torch.OutOfMemoryError(f"{error}\n{remedy}")


def lowered(work: Callable[[Budget], Result], start: Budget) -> Result:
    """The result of work within a budget, halved as often as the device runs out of memory."""
    return Allowance(start).spend(work)
