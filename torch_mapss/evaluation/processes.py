"""Who shares the work of a run, as told by torchrun, by SLURM or by ``--shard``.

Two ways to share. Under torchrun the processes form a group: rank 0 deals the mixtures out, all
wait for each other, rank 0 writes the tables. Under SLURM (``srun`` without torchrun) and with
``--shard i/n`` (job arrays, machines without a network) they need not know each other, nor run at
the same time: share i has every n-th mixture of the manifest, and tables are written once every
mixture has its rows, by the share that ends last or by a later call without shares.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from datetime import timedelta
from typing import Any, NamedTuple

#: How long processes of one group look for each other.
_MEETING = timedelta(minutes=10)
#: How long one may wait for the others afterwards: as long as they score.
_PATIENCE = timedelta(days=30)


class World(NamedTuple):
    """The processes that share a run, as one of them sees them."""

    rank: int = 0  # of this one
    size: int = 1
    grouped: bool = False  # they can talk to each other

    @property
    def speaks(self) -> bool:
        """Whether this process tells what is found: one of a group is enough."""
        return self.rank == 0 or not self.grouped

    def together(self, action: Callable[[], Any]) -> Any:
        """Let rank 0 act, and every rank have its result, or its error; apart, each acts itself."""
        if not self.grouped:
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
        """Until every rank is here; apart, nobody waits."""
        if self.grouped:
            import torch.distributed as dist

            dist.barrier()


def parse_share(text: str) -> World:
    """``"i/n"``, the i-th of n shares, counted from 1 or from 0.

    Both ways name every share once: 1/4 to 4/4, or 0/4 to 3/4, for 4/4 and 0/4 are the same one.

    Raises:
        ValueError: something else.
    """
    numbers = text.split("/")
    if len(numbers) == 2 and all(part.strip().isdecimal() for part in numbers):
        index, count = map(int, numbers)
        if count >= 1 and index <= count:
            return World(index % count, count)
    raise ValueError(
        f"--shard must be i/n with whole numbers, 0 <= i <= n and n >= 1, got {text!r}: e.g. 1/4, "
        "2/4, 3/4 and 4/4 for four jobs that share the manifest."
    )


@contextmanager
def world(share: World | None = None) -> Iterator[World]:
    """The processes of this run.

    Args:
        share: what ``--shard`` says, of :func:`parse_share`; it overrules SLURM's variables.

    Raises:
        ValueError: variables of a launcher that make no sense, or a share besides torchrun's.
    """
    size = _torchrun_size()
    if size > 1 and share is not None:
        raise ValueError(
            f"--shard and torchrun (WORLD_SIZE={size}) both share out the mixtures. Use one of "
            "them."
        )
    if size > 1:
        with _group(size) as found:
            yield found
    elif share is not None:
        yield share
    else:
        yield _slurm_world()


@contextmanager
def _group(size: int) -> Iterator[World]:
    import torch.distributed as dist

    if dist.is_initialized():  # by the caller
        yield World(dist.get_rank(), dist.get_world_size(), True)
        return
    rank = _number("RANK", below=size)
    missing = [name for name in ("MASTER_ADDR", "MASTER_PORT") if not os.environ.get(name)]
    if missing:
        raise ValueError(
            f"WORLD_SIZE is {size}, but {' and '.join(missing)} are not set: the {size} processes "
            "cannot find each other. Start them with torchrun, or unset WORLD_SIZE."
        )
    # gloo also on GPUs: what is exchanged are a few words, and scores never leave their rank.
    store, rank, size = next(dist.rendezvous("env://", timeout=_MEETING))
    store.set_timeout(_PATIENCE)
    dist.init_process_group("gloo", store=store, rank=rank, world_size=size, timeout=_PATIENCE)
    try:
        yield World(rank, size, True)
    finally:
        dist.destroy_process_group()


def _torchrun_size() -> int:
    return 1 if "WORLD_SIZE" not in os.environ else _number("WORLD_SIZE", least=1)


def _slurm_world() -> World:
    """A task of a SLURM step; one process where there is none.

    A step (``srun``) states its number of tasks. Without that, ``SLURM_NTASKS`` may be what the
    whole job asked for, which an interactive shell has as well.
    """
    variables = os.environ
    name = "SLURM_STEP_NUM_TASKS" if "SLURM_STEP_NUM_TASKS" in variables else "SLURM_NTASKS"
    interactive = variables.get("SLURM_JOB_NAME") in ("bash", "interactive")
    if name not in variables or "SLURM_PROCID" not in variables:
        return World()
    if name == "SLURM_NTASKS" and interactive:
        return World()
    size = _number(name, least=1)
    return World(_number("SLURM_PROCID", below=size), size)


def _number(name: str, least: int = 0, below: int | None = None) -> int:
    """A whole number from the environment.

    Raises:
        ValueError: it is not set, is no whole number, or out of its range.
    """
    text = os.environ.get(name)
    if text is not None and text.strip().isdecimal():
        number = int(text)
        if number >= least and (below is None or number < below):
            return number
    found = "is not set" if text is None else f"is {text!r}"
    wanted = f"a whole number of at least {least}" + ("" if below is None else f", below {below}")
    raise ValueError(
        f"the environment's {name} {found}, but must be {wanted}, where several processes share "
        "the work. Start them with torchrun or srun, which set it, or unset WORLD_SIZE and "
        "SLURM_PROCID to run alone."
    )


def label(variables: Mapping[str, str] = os.environ) -> str:
    """Names this process in an error, where there are several: "" or " in process 3".

    Never fails itself, whatever the variables hold.
    """
    for size, rank in (("WORLD_SIZE", "RANK"), ("SLURM_STEP_NUM_TASKS", "SLURM_PROCID")):
        count, place = variables.get(size, ""), variables.get(rank, "")
        if count.isdecimal() and int(count) > 1 and place.isdecimal():
            return f" in process {place}"
    return ""


def local_device(device: str) -> str:
    """``device``, with "cuda" made the GPU of this process among those of its machine.

    Where each task sees a GPU of its own, that is the only one, whatever the task's number.
    """
    name = next((name for name in ("LOCAL_RANK", "SLURM_LOCALID") if name in os.environ), None)
    if device != "cuda" or name is None:
        return device
    import torch

    place, count = _number(name), torch.cuda.device_count()
    return f"cuda:{place % count if count else place}"
