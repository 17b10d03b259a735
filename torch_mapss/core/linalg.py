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
from typing import Any

import torch
from torch import Tensor

LEAST_PART = 4  # matrices; a thread with fewer costs more than it gains

# By process id (a forked child has none of its parent's threads) and size.
_pools: dict[tuple[int, int], ThreadPoolExecutor] = {}


def eigh(matrices: Tensor) -> tuple[Tensor, Tensor]:
    """Eigenvalues (F, n), ascending, and eigenvectors (F, n, n) of symmetric (F, n, n)."""
    decompositions = _in_parts(torch.linalg.eigh, matrices)
    if len(decompositions) == 1:  # joining would copy
        return decompositions[0][0], decompositions[0][1]
    # LAPACK writes columns, so the rows of the transposed vectors are contiguous: cheap to join.
    rows = torch.cat([vectors.mT for _, vectors in decompositions])
    return torch.cat([values for values, _ in decompositions]), rows.mT


def eigvalsh(matrices: Tensor) -> Tensor:
    """Eigenvalues (F, n), ascending, of symmetric (F, n, n)."""
    return torch.cat(_in_parts(torch.linalg.eigvalsh, matrices))


def _in_parts(decompose: Callable[[Tensor], Any], matrices: Tensor) -> list[Any]:
    """Results of ``decompose`` for consecutive parts of ``matrices``, one part per thread."""
    matrices = matrices.detach()
    allowed = torch.get_num_threads()
    threads = min(allowed, len(matrices) // LEAST_PART)
    if matrices.device.type != "cpu" or threads < 2 or single_core_setup() is None:
        return [decompose(matrices)]
    pool = _pools.get((os.getpid(), allowed))
    if pool is None:
        pool = ThreadPoolExecutor(allowed, "torch_mapss", initializer=single_core_setup())
        _pools[os.getpid(), allowed] = pool
    return list(pool.map(decompose, matrices.split(-(-len(matrices) // threads))))


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
