"""The metrics over several processes: gloo on the CPU."""

from __future__ import annotations

import os
import pickle
import socket
import time
import warnings
from typing import Any

import pytest
import torch
import torch.multiprocessing as mp
from test_metrics import pair, small
from torch import distributed
from torchmetrics import MetricCollection

from torch_mapss import PerceptualMatch, PerceptualSeparation

pytestmark = pytest.mark.skipif(not distributed.is_available(), reason="no torch.distributed")
ITEMS = 7
# Items of each process, batch by batch: uneven last batches, and a process without any.
SPLITS = {
    "uneven": ([[0, 1, 2], [3]], [[4, 5], [6]]),
    "empty": ([[0, 1, 2, 3], [4, 5, 6]], []),
}


def data() -> tuple[torch.Tensor, torch.Tensor]:
    preds, target = pair(ITEMS)
    target[4] = 0.0  # one undefined item
    return preds, target


def metrics() -> MetricCollection:
    mapss = small()
    return MetricCollection(
        {
            "ps": PerceptualSeparation(mapss, keep_items=True),
            "pm": PerceptualMatch(mapss),
            "each": PerceptualSeparation(mapss, reduction="source"),
            "frames": PerceptualSeparation(mapss, reduction="none"),
        }
    )


def accumulated(batches: list[list[int]]) -> MetricCollection:
    preds, target = data()
    collection = metrics()
    for batch in batches:
        collection.update(preds[batch], target[batch])
    return collection


def run_split(rank: int, split: str) -> dict[str, Any]:
    collection = accumulated(SPLITS[split][rank])
    if rank == 0:  # alone: would hang if saving started a collective
        pickle.dumps(collection.state_dict())
        pickle.dumps(collection)
    with collection["ps"].sync_context():
        skipped, rows = collection["ps"].skipped, collection["ps"].item_scores()
    before, started = collection["pm"].seen.item(), time.monotonic()
    values = {name: value.numpy() for name, value in collection.compute().items()}
    return {
        "values": values,
        "seconds": time.monotonic() - started,
        "skipped": skipped,
        "rows": rows.numpy(),
        "seen": (before, collection["pm"].seen.item()),
    }


def run_alone(rank: int) -> float:
    metric = PerceptualMatch(small(), log=True, sync_on_compute=False)
    metric.update(*pair(1, seed=rank))
    return metric.compute().item()


def worker(rank: int, port: int, sent: Any, results: Any) -> None:
    warnings.simplefilter("ignore")
    torch.set_num_threads(1)
    found: dict[str, Any] = {"sent": sent.item_scores().tolist()}
    os.environ.update(MASTER_ADDR="127.0.0.1", MASTER_PORT=str(port))
    distributed.init_process_group("gloo", rank=rank, world_size=2)
    found.update({split: run_split(rank, split) for split in SPLITS}, alone=run_alone(rank))
    results.put((rank, found))
    results.close()
    results.join_thread()
    distributed.barrier()
    distributed.destroy_process_group()


def free_port() -> int:
    with socket.socket() as s:
        s.bind(("127.0.0.1", 0))
        return int(s.getsockname()[1])


@pytest.fixture(scope="module")
def sent() -> PerceptualSeparation:
    metric = PerceptualSeparation(small(), keep_items=True)
    metric.update(*pair(2))
    return metric


@pytest.fixture(scope="module")
def found(sent: PerceptualSeparation) -> dict[int, dict[str, Any]]:
    """What two processes report."""
    results = mp.get_context("spawn").Queue()
    context = mp.spawn(worker, (free_port(), sent, results), nprocs=2, join=False)
    reports = dict(results.get(timeout=180) for _ in range(2))
    while not context.join(timeout=60):
        pass
    return reports


@pytest.fixture(scope="module")
def single() -> MetricCollection:
    """The same items in one process."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return accumulated([list(range(ITEMS))])


@pytest.mark.slow
@pytest.mark.parametrize("rank", [0, 1])
@pytest.mark.parametrize("split", SPLITS)
def test_two_processes_equal_one(found, single, split, rank):
    report = found[rank][split]
    for name, value in single.compute().items():
        other = torch.tensor(report["values"][name])
        torch.testing.assert_close(other, value, rtol=0, atol=1e-6, equal_nan=True)
    rows = torch.tensor(report["rows"])
    torch.testing.assert_close(rows, single["ps"].item_scores(), equal_nan=True)
    assert report["skipped"] == single["ps"].skipped == 1
    assert report["seconds"] < 10
    count = sum(len(batch) for batch in SPLITS[split][rank])
    assert report["seen"] == (count, count)  # the states are the process's own again


def test_without_synchronisation_each_process_has_its_own_value(found):
    assert found[0]["alone"] != found[1]["alone"]
    assert found[1]["alone"] == run_alone(1)


def test_a_used_metric_reaches_spawned_processes(found, sent):
    assert found[0]["sent"] == found[1]["sent"] == sent.item_scores().tolist()
