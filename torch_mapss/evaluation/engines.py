"""Engines of the command line: processes of this machine, and a Dask cluster.

Each provides a ``map`` for :func:`torch_mapss.evaluate_set`, which accepts that of any other
engine. Results are passed on as they arrive, in any order.
"""

from __future__ import annotations

import multiprocessing
import os
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import Executor, ProcessPoolExecutor, as_completed
from contextlib import contextmanager
from typing import Any

from torch_mapss.core import checks

#: ``map(function, iterable)`` of any engine; results may come in any order.
Map = Callable[[Callable[[Any], Any], Iterable[Any]], Iterable[Any]]


@contextmanager
def process_map(workers: int, threads: int | None = None) -> Iterator[Map]:
    """A ``map`` over processes of this machine.

    Args:
        workers: number of processes. GPUs are assigned to them round-robin.
        threads: CPU threads per process; None: an equal share of this machine's processors.
    """
    workers = checks.check_whole(workers, "--workers", 1)
    threads = threads or max(1, (os.cpu_count() or 1) // workers)
    # Not forked, because a fork of a process with threads or a GPU may hang.
    context = multiprocessing.get_context("spawn")
    numbers = context.Queue()
    for number in range(workers):
        numbers.put(number)
    with ProcessPoolExecutor(
        workers, context, initializer=_start_worker, initargs=(numbers, threads)
    ) as pool:
        yield unordered(pool)


def _start_worker(numbers: Any, threads: int) -> None:
    """Set up a worker: its number of threads, and its GPU if there is one."""
    import torch

    torch.set_num_threads(threads)
    gpus = torch.cuda.device_count()
    if gpus:
        torch.cuda.set_device(numbers.get() % gpus)


@contextmanager
def dask_map(address: str) -> Iterator[Map]:
    """A ``map`` over the workers of a Dask cluster.

    Args:
        address: address of its scheduler, ``tcp://HOST:8786``.
    """
    distributed = checks.import_package(
        "distributed", "--dask", " (or: pip install torch_mapss[cluster])"
    )
    try:
        client = distributed.Client(address, timeout="30s")
    except (OSError, ValueError) as error:
        raise ValueError(
            f"--dask {address!r}: no scheduler answers there ({error}). Start one with `dask "
            "scheduler`, workers with `dask worker ADDRESS`."
        ) from None
    with client:
        yield unordered(client.get_executor())


def unordered(executor: Executor) -> Map:
    """A ``map`` that yields results as they arrive, for any executor."""

    def apply(function: Callable[[Any], Any], items: Iterable[Any]) -> Iterator[Any]:
        waiting = {executor.submit(function, item) for item in items}
        try:
            for future in as_completed([*waiting]):
                waiting.discard(future)  # so that results do not stay in memory
                yield future.result()
        finally:
            for future in waiting:
                future.cancel()

    return apply
