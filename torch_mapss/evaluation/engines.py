"""Engines of the command line: processes of this machine, and a Dask cluster.

Each provides a ``map`` for :func:`torch_mapss.evaluate_set`, which accepts that of any other
engine. Results are passed on as they arrive, in any order.
"""

from __future__ import annotations

import itertools
import multiprocessing
import os
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import (
    FIRST_COMPLETED,
    Executor,
    Future,
    ProcessPoolExecutor,
    as_completed,
    wait,
)
from contextlib import ExitStack, contextmanager
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
    with ExitStack() as stack:
        pools = []
        for number in range(workers):
            pool = ProcessPoolExecutor(1, context, start_worker, (number, threads))
            pools.append(stack.enter_context(pool))
        yield reading_ahead(pools)


def start_worker(number: int, threads: int) -> None:
    """Set up worker ``number``: its number of threads, and its GPU if there is one."""
    import torch

    torch.set_num_threads(threads)
    gpus = torch.cuda.device_count()
    if gpus:
        torch.cuda.set_device(number % gpus)


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


def reading_ahead(workers: Sequence[Executor]) -> Map:
    """A ``map`` over executors of one process each, which read one item while they score another.

    If the function has a method ``read_ahead(item)``, each process calls it with its next item
    before it calls the function with the present one; it must return at once. Results are yielded
    as they arrive, and each worker gets a new item when it has finished one.
    """

    def apply(function: Callable[[Any], Any], items: Iterable[Any]) -> Iterator[Any]:
        return _ItemsOfWorkers(workers, function, items).results()

    return apply


class _ItemsOfWorkers:
    """Assigns each worker the item that it works on, and reserves its next one."""

    def __init__(
        self,
        workers: Sequence[Executor],
        function: Callable[[Any], Any],
        items: Iterable[Any],
    ) -> None:
        self.function = function
        self.workers = workers
        self.remaining = iter(items)
        self.next_items: dict[Executor, Any] = {}  # announced to a worker, not yet scored
        self.running: dict[Future[Any], Executor] = {}

    def results(self) -> Iterator[Any]:
        """Yield results as they arrive; what is still waiting when it stops is cancelled."""
        for worker in self.workers:
            self._announce(worker)
        for worker in self.workers:
            self._call(worker)
        try:
            while self.running:
                finished, _ = wait(self.running, return_when=FIRST_COMPLETED)
                for future in finished:
                    self._call(self.running.pop(future))
                    yield future.result()
        finally:
            for future in self.running:
                future.cancel()

    def _announce(self, worker: Executor) -> None:
        """Reserve the next item for a worker, which may begin to read it."""
        for item in itertools.islice(self.remaining, 1):
            self.next_items[worker] = item
            if hasattr(self.function, "read_ahead"):
                worker.submit(self.function.read_ahead, item)

    def _call(self, worker: Executor) -> None:
        """Call the function in a worker with its reserved item, and reserve another one."""
        if worker in self.next_items:
            item = self.next_items.pop(worker)
            self._announce(worker)
            self.running[worker.submit(self.function, item)] = worker


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
