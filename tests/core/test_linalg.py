"""Eigendecompositions in threads: the same as torch's own loop, and nothing left behind."""

from __future__ import annotations

import multiprocessing
import threading

import pytest
import torch
from torch import Tensor

from torch_mapss.core import linalg


@pytest.fixture(autouse=True)
def three_threads(monkeypatch: pytest.MonkeyPatch) -> None:
    """Three on any machine. (torch's own setting belongs to the process of all tests.)"""
    monkeypatch.setattr(torch, "get_num_threads", lambda: 3)


def symmetric(frames: int, size: int = 9) -> Tensor:
    generator = torch.Generator().manual_seed(frames)
    x = torch.randn(frames, size, size, generator=generator, dtype=torch.float64)
    return x + x.mT


def assert_decomposed(matrices: Tensor, values: Tensor, vectors: Tensor) -> None:
    torch.testing.assert_close(vectors * values.unsqueeze(-2) @ vectors.mT, matrices)
    torch.testing.assert_close(values, torch.linalg.eigvalsh(matrices))


@pytest.fixture
def threads_used(monkeypatch: pytest.MonkeyPatch) -> set[int]:
    """Idents of the threads that torch.linalg.eigh runs in."""
    seen: set[int] = set()
    eigh = torch.linalg.eigh

    def watched(x: Tensor) -> tuple[Tensor, Tensor]:
        seen.add(threading.get_ident())
        return eigh(x)

    monkeypatch.setattr(torch.linalg, "eigh", watched)
    return seen


@pytest.mark.parametrize("frames", [0, 1, 7, 8, 12, 13, 40])
def test_equals_the_loop_of_torch(frames: int) -> None:
    matrices = symmetric(frames)
    values, vectors = linalg.eigh(matrices)
    assert_decomposed(matrices, values, vectors)
    torch.testing.assert_close(linalg.eigvalsh(matrices), torch.linalg.eigvalsh(matrices))
    assert vectors.stride() == torch.linalg.eigh(matrices)[1].stride()


def test_large_batches_are_shared_and_small_ones_are_not(threads_used: set[int]) -> None:
    linalg.eigh(symmetric(7))
    assert threads_used == {threading.get_ident()}
    threads_used.clear()
    linalg.eigh(symmetric(40))
    if linalg.single_core_setup() is None:
        pytest.skip("torch without MKL")
    assert threads_used
    assert threading.get_ident() not in threads_used


def test_threads_keep_to_themselves_and_leave_the_process_alone(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.undo()  # torch's own answer sets a thread up
    keep = linalg.single_core_setup()
    if keep is None:
        pytest.skip("torch without MKL")
    before, inside = torch.__config__.parallel_info(), []

    def ask() -> None:
        keep()
        inside.append(torch.__config__.parallel_info())

    thread = threading.Thread(target=ask)
    thread.start()
    thread.join()
    assert torch.__config__.parallel_info() == before
    assert "omp_get_max_threads() : 1\n" in inside[0]
    assert "mkl_get_max_threads() : 1\n" in inside[0]


def test_a_matrix_that_cannot_be_decomposed_raises_as_torch_does() -> None:
    broken = symmetric(40)
    broken[33, 0, 0] = torch.nan
    with pytest.raises(RuntimeError):
        linalg.eigh(broken)
    assert_decomposed(symmetric(40), *linalg.eigh(symmetric(40)))


def _in_child(queue: multiprocessing.Queue) -> None:  # type: ignore[type-arg]
    queue.put(linalg.eigh(symmetric(40))[0].sum().item())


@pytest.mark.skipif("fork" not in multiprocessing.get_all_start_methods(), reason="no fork here")
@pytest.mark.filterwarnings("ignore:.*fork.*:DeprecationWarning")
def test_a_forked_child_makes_threads_of_its_own() -> None:
    expected = linalg.eigh(symmetric(40))[0].sum().item()  # the parent has its threads by now
    context = multiprocessing.get_context("fork")
    queue = context.Queue()
    child = context.Process(target=_in_child, args=(queue,))
    child.start()
    actual = queue.get(timeout=60)
    child.join(timeout=60)
    assert actual == pytest.approx(expected)
