"""Eigendecompositions of many small matrices; on the CPU each thread takes a share of the batch.

torch goes through such a batch one matrix at a time and puts all threads on each. A frame's matrix
(N ≈ 140) is too small to share: that is little faster than one thread alone, and slower on a busy
machine. Here each of the threads that :func:`torch.get_num_threads` allows works on its own
matrices. This requires limiting MKL to one thread per caller; where torch comes without MKL, on
other devices and with one thread, torch's own loop runs.

Nothing in this module is recorded by autograd.
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

LEAST_PART = 4  # matrices; handing fewer to a thread costs more than it gains

# By process id (a forked child has none of its parent's threads) and size.
_pools: dict[tuple[int, int], ThreadPoolExecutor] = {}


def eigh(matrices: Tensor) -> tuple[Tensor, Tensor]:
    """Eigenvalues (F, n), ascending, and eigenvectors (F, n, n) of symmetric (F, n, n)."""

    def decompose(batch: Tensor) -> tuple[Tensor, Tensor]:
        values, vectors = torch.linalg.eigh(batch)
        return values, vectors.mT  # LAPACK writes columns; rows are contiguous and cheap to join

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
    """Function that limits OpenMP and MKL to one thread, for the calling thread only.

    None if torch has no MKL. ``torch.set_num_threads`` would not do: it affects the whole process,
    and makes MKL split work that it would otherwise leave whole (which slows its LU, and on some
    machines hangs it).
    """
    try:
        torch_cpu = ctypes.CDLL(str(Path(torch.__file__).parent / "lib" / "libtorch_cpu.so"))
        openmp, mkl = torch_cpu.omp_set_num_threads, torch_cpu.MKL_Set_Num_Threads_Local
    except (OSError, AttributeError):
        return None

    def keep() -> None:
        torch.get_num_threads()  # torch sets OpenMP up on its first call, so it goes first
        openmp(1)
        mkl(1)

    return keep
