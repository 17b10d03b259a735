"""Shards: several jobs that divide the mixtures of a set without communicating.

For job arrays, torchrun and SLURM's ``srun``: shard I of N has the mixtures I, I+N, I+2N, … of the
manifest. Shards need not run at the same time, and all write to the same folder. Only the command
line reads the environment; a call from Python scores what it is passed.
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from typing import NamedTuple, TypeVar

# Number of processes and the number of this one, by launcher. SLURM_NTASKS alone is what a job
# asked for, which its batch script has as well: a step (srun) states SLURM_STEP_NUM_TASKS.
_LAUNCHERS = (("WORLD_SIZE", "RANK"), ("SLURM_STEP_NUM_TASKS", "SLURM_PROCID"))
_Item = TypeVar("_Item")


class Shard(NamedTuple):
    """The shard of the mixtures that is scored here."""

    number: int = 1  # counted from 1
    total: int = 1  # number of shards

    def of(self, items: Sequence[_Item]) -> Sequence[_Item]:
        """The items of this shard."""
        return items[self.number - 1 :: self.total]


def parse_shard(text: str) -> Shard:
    """Parse a shard ``"I/N"``.

    Raises:
        ValueError: not two whole numbers with 1 <= I <= N.
    """
    numbers = text.split("/")
    if len(numbers) == 2 and all(number.strip().isdecimal() for number in numbers):
        number, count = map(int, numbers)
        if 1 <= number <= count:
            return Shard(number, count)
    raise ValueError(
        f"shard must be I/N with whole numbers, 1 <= I <= N, got {text!r}: e.g. 1/4, 2/4, 3/4 "
        "and 4/4 for four jobs that share the manifest."
    )


def launched_shard() -> Shard:
    """Shard that torchrun or srun assign to this process; everything if neither started it.

    Raises:
        ValueError: their variables are incomplete or invalid.
    """
    for count_name, rank_name in _LAUNCHERS:
        if count_name not in os.environ:
            continue
        count, rank = (os.environ.get(name, "").strip() for name in (count_name, rank_name))
        if count == "1":
            return Shard()
        if count.isdecimal() and rank.isdecimal() and int(rank) < int(count):
            return Shard(int(rank) + 1, int(count))
        raise ValueError(
            f"the environment has {count_name}={count!r} and {rank_name}={rank!r}: expected a "
            "number of processes and one below it. Start them with torchrun or srun, or pass "
            "--shard 1/1 to score everything here."
        )
    return Shard()


def local_device(device: str) -> str:
    """``device``; "cuda" becomes this process's GPU among those of its machine."""
    local_rank = os.environ.get("LOCAL_RANK", os.environ.get("SLURM_LOCALID", ""))
    if device != "cuda" or not local_rank.isdecimal():
        return device
    import torch

    return f"cuda:{int(local_rank) % max(1, torch.cuda.device_count())}"
