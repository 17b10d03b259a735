"""Public functions in eight threads: the numbers of one thread, and torch's defaults left alone."""

from __future__ import annotations

import threading
from concurrent.futures import ThreadPoolExecutor

import pytest
import torch
from public_calls import CALLS, same

THREADS = 8


@pytest.mark.parametrize("name", CALLS)
def test_eight_threads_give_the_numbers_of_one(name: str) -> None:
    call = CALLS[name]
    expected = call()
    seen: set[tuple[torch.dtype, torch.device]] = set()
    finished = threading.Event()

    def watch() -> None:
        while not finished.wait(0.0002):
            seen.add((torch.get_default_dtype(), torch.empty(0).device))

    watcher = threading.Thread(target=watch)
    watcher.start()
    try:
        with ThreadPoolExecutor(THREADS) as pool:
            results = [pool.submit(call) for _ in range(THREADS)]
            assert all(same(result.result(), expected) for result in results)
    finally:
        finished.set()
        watcher.join()
    assert seen <= {(torch.float32, torch.device("cpu"))}
