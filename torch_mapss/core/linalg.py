"""Eigendecompositions of many small matrices: on the CPU every thread takes a part of the batch.

torch goes through such a batch one matrix after the other and gives each of them to all threads.
Matrices of a frame (N ≈ 140) are too small to share: that is little faster than one thread alone,
and slower on a busy machine. Here as many threads as :func:`torch.get_num_threads` allows work on
matrices of their own. For that a thread must be able to keep MKL to itself: where torch comes
without MKL, on other devices and with one thread, torch's own loop runs.

Nothing in here is recorded by autograd.
"""

from __future__ import annotations

import ctypes
import functools
import os
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import torch
from torch import Tensor

LEAST_PART = 4  # matrices: handing fewer to a thread costs more than it gains

_pools: dict[tuple[int, int], ThreadPoolExecutor] = {}  # by process (a fork has no threads), size


def eigh(matrices: Tensor) -> tuple[Tensor, Tensor]:
    """Eigenvalues (F, n), ascending, and eigenvectors (F, n, n) of symmetric (F, n, n)."""

    def decompose(batch: Tensor) -> tuple[Tensor, Tensor]:
        values, vectors = torch.linalg.eigh(batch)
        return values, vectors.mT  # LAPACK writes columns: rows are what joins without a turn

    values, rows = _in_parts(decompose, matrices)
    return values, rows.mT


def eigvalsh(matrices: Tensor) -> Tensor:
    """Eigenvalues (F, n), ascending, of symmetric (F, n, n)."""
    (values,) = _in_parts(lambda batch: (torch.linalg.eigvalsh(batch),), matrices)
    return values


def _in_parts(
    decompose: Callable[[Tensor], tuple[Tensor, ...]], matrices: Tensor
) -> tuple[Tensor, ...]:
    matrices = matrices.detach()
    allowed = torch.get_num_threads()
    threads = min(allowed, len(matrices) // LEAST_PART)
    if matrices.device.type != "cpu" or threads < 2 or single_core_setup() is None:
        return decompose(matrices)
    batches = matrices.split(-(-len(matrices) // threads))
    decompositions = list(_pool(allowed).map(decompose, batches))
    return tuple(torch.cat(pieces) for pieces in zip(*decompositions))


def _pool(threads: int) -> ThreadPoolExecutor:
    key = os.getpid(), threads
    if key not in _pools:
        _pools[key] = ThreadPoolExecutor(threads, "torch_mapss", initializer=single_core_setup())
    return _pools[key]


@functools.cache
def single_core_setup() -> Callable[[], None] | None:
    """What keeps OpenMP and MKL to the calling thread, for this thread alone; None without MKL.

    ``torch.set_num_threads`` would not do: it is for the whole process, and it also makes MKL
    share what it would have left alone (which slows, and on some machines hangs, its LU).
    """
    try:
        torch_cpu = ctypes.CDLL(str(Path(torch.__file__).parent / "lib" / "libtorch_cpu.so"))
        openmp, mkl = torch_cpu.omp_set_num_threads, torch_cpu.MKL_Set_Num_Threads_Local
    except (OSError, AttributeError):
        return None

    def keep() -> None:
        torch.get_num_threads()  # torch sets up OpenMP at the first question, so it comes first
        openmp(1)
        mkl(1)

    return keep
