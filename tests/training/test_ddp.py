"""Metrics and losses over two processes, replicated and sharded: gloo on the CPU."""

from __future__ import annotations

import importlib
import os
import pickle
import socket
import sys
import warnings
from collections.abc import Sequence
from typing import Any

import pytest
import torch
import torch.multiprocessing as mp
from stub_scorers import Weighted, leaking_pair, stub_scorer
from torch import Tensor, distributed, nn
from torchmetrics import MetricCollection
from waveforms import impaired, voices

from torch_mapss import MAPSSLoss, PerceptualMatch, PerceptualSeparation, SourceScores

pytestmark = [
    pytest.mark.skipif(not distributed.is_available(), reason="no torch.distributed"),
    pytest.mark.filterwarnings("ignore"),
]


def worker(rank: int, port: int, sent: bytes, results: Any) -> None:
    warnings.simplefilter("ignore")
    warnings.filterwarnings("error", message=".*returned a view tensor")
    torch.set_num_threads(1)
    report: dict[Any, Any] = {"sent": pickle.loads(sent).item_scores().tolist()}
    os.environ.update(MASTER_ADDR="127.0.0.1", MASTER_PORT=str(port))
    distributed.init_process_group("gloo", rank=rank, world_size=2)
    report |= {split: run_split(rank, split) for split in SPLITS}
    report["alone"] = run_alone(rank)
    weight = SCORER.encoder.function.weight.clone()
    for kind in WRAPS:
        trained, trained_globally = wrapped(kind), wrapped(kind, "global")
        for name, silent in BATCHES.items():
            grads = gradients(trained, *batch(rank, silent[rank]))
            report[kind, name] = [g.numpy() for g in grads]
        for name, shares in SHARES.items():
            grads = gradients(trained_globally, *share(name, shares[rank]))
            report[kind, name] = [g.numpy() for g in grads]
            report[kind, name, "value"] = float(trained_globally.value)
        report[kind, "state"] = sorted(trained.state_dict())
    report["frozen"] = torch.equal(weight, SCORER.encoder.function.weight)
    results.put((rank, report))
    results.close()
    results.join_thread()
    distributed.barrier()
    distributed.destroy_process_group()
    os._exit(0)  # threads of torch may outlive Python's end, and then abort the process


# A fork has what takes seconds to import; one of a process that has used CUDA cannot compute.
FORKS = sys.platform == "linux" and not torch.cuda.is_available()
METHOD = "fork" if FORKS else "spawn"


@pytest.fixture(scope="module")
def sent() -> PerceptualSeparation:
    metric = PerceptualSeparation(stub_scorer(), keep_items=True)
    metric.update(*leaking_pair(2))
    return metric


@pytest.fixture(scope="module")
def reports(sent: PerceptualSeparation) -> dict[int, dict[Any, Any]]:
    with socket.socket() as s:
        s.bind(("127.0.0.1", 0))
        port = int(s.getsockname()[1])
    importlib.import_module("torch._dynamo")  # which both need
    results = mp.get_context(METHOD).Queue()
    arguments = port, pickle.dumps(sent), results
    context = mp.start_processes(worker, arguments, nprocs=2, join=False, start_method=METHOD)
    report_by_rank = dict(results.get(timeout=180) for _ in range(2))
    while not context.join(timeout=60):
        pass
    return report_by_rank


ITEMS = 7
# Items of each process, batch by batch: uneven last batches, and a process without any.
SPLITS = {"split": ([[0, 1, 2], [3]], [[4, 5], [6]]), "empty": ([[0, 1, 2, 3], [4, 5, 6]], [])}


def accumulated(batches: list[list[int]]) -> MetricCollection:
    mapss, (preds, target) = stub_scorer(), leaking_pair(ITEMS)
    target[4] = 0.0  # one undefined item
    metrics = {"ps": PerceptualSeparation(mapss, keep_items=True), "pm": PerceptualMatch(mapss)}
    metrics |= {"each": PerceptualSeparation(mapss, reduction="source")}
    metrics |= {"frames": PerceptualSeparation(mapss, reduction="none")}
    metrics |= {"all": SourceScores(mapss)}
    collection = MetricCollection(metrics)
    for items in batches:
        collection.update(preds[items], target[items])
    return collection


def run_split(rank: int, split: str) -> dict[str, Any]:
    collection = accumulated(SPLITS[split][rank])
    if rank == 0:  # alone: would hang if saving started a collective
        pickle.dumps(collection.state_dict())
        pickle.dumps(collection)
    with collection["ps"].sync_context():
        skipped, rows = collection["ps"].skipped, collection["ps"].item_scores()
    before = collection["pm"].seen.item()
    values = {name: value.numpy() for name, value in collection.compute().items()}
    return {
        "values": values,
        "skipped": skipped,
        "rows": rows.numpy(),
        "seen": (before, collection["pm"].seen.item()),
    }


def run_alone(rank: int) -> float:
    metric = PerceptualMatch(stub_scorer(), log=True, sync_on_compute=False)
    metric.update(*leaking_pair(1, seed=rank))
    return metric.compute().item()


@pytest.mark.parametrize("split", SPLITS)
def test_two_processes_equal_one(reports, split):
    single = accumulated([list(range(ITEMS))])
    for rank in (0, 1):
        report = reports[rank][split]
        for name, value in single.compute().items():
            synchronised = torch.tensor(report["values"][name])
            torch.testing.assert_close(synchronised, value, rtol=1e-6, atol=1e-6, equal_nan=True)
        rows = torch.tensor(report["rows"])
        torch.testing.assert_close(rows, single["ps"].item_scores(), equal_nan=True)
        assert report["skipped"] == single["ps"].skipped == 1
        count = sum(len(items) for items in SPLITS[split][rank])
        assert report["seen"] == (count, count)  # the states are the process's own again


def test_each_process_has_its_own_value_unsynchronised_and_gets_a_used_metric(reports, sent):
    assert reports[0]["alone"] != reports[1]["alone"] == run_alone(1)
    assert reports[0]["sent"] == reports[1]["sent"] == sent.item_scores().tolist()


# torch 2.6 shards on accelerators only.
WRAPS = ["ddp", "fsdp"] if hasattr(torch.cpu.Stream, "record_event") else ["ddp"]
# One batch of each process; in the second pair one of them has nothing to score.
BATCHES = {"voices": (False, False), "one silent": (False, True)}
# Mixtures of each process, and which of them are silent.
SHARES = {"uneven": ((0, 1, 2), (3,)), "silent": ((0, 1), (2, 3))}
SILENT = {"uneven": (), "silent": (1, 2, 3)}
SCORER = stub_scorer(Weighted())  # whose encoder has weights, which stay as they are


class Trained(nn.Module):
    """A model that holds its loss, as many do."""

    def __init__(self, reduction: str = "mean") -> None:
        super().__init__()
        torch.manual_seed(0)
        self.net = nn.Conv1d(2, 2, 1)
        self.loss = MAPSSLoss(SCORER, reduction=reduction)

    def forward(self, waves: Tensor, references: Tensor) -> Tensor:
        return self.loss(self.net(waves), references)


def batch(rank: int, silent: bool) -> tuple[Tensor, Tensor]:
    references = voices(1, 2, 4800, seed=rank)
    return impaired(references), references * (not silent)


def share(name: str, mixtures: Sequence[int]) -> tuple[Tensor, Tensor]:
    batches = [batch(mixture, mixture in SILENT[name]) for mixture in mixtures]
    waves, references = map(torch.cat, zip(*batches))
    return waves, references


def gradients(trained: nn.Module, waves: Tensor, references: Tensor) -> list[Any]:
    trained.zero_grad()
    value = trained(waves, references)
    value.backward()
    trained.value = value.detach()
    grads = [parameter.grad for parameter in trained.parameters()]
    return [g.full_tensor() if hasattr(g, "full_tensor") else g.clone() for g in grads]


def wrapped(kind: str, reduction: str = "mean") -> nn.Module:
    if kind == "ddp":
        return nn.parallel.DistributedDataParallel(Trained(reduction))
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.fsdp import fully_shard

    return fully_shard(Trained(reduction), mesh=init_device_mesh("cpu", (2,)))


@pytest.mark.parametrize("kind", WRAPS)
@pytest.mark.parametrize("name", BATCHES)
def test_two_processes_average_their_gradients(reports, kind, name):
    assert reports[0]["frozen"]
    names = [name.removeprefix("module.") for name in reports[0][kind, "state"]]
    assert names == ["net.bias", "net.weight"]
    alone = [gradients(Trained(), *batch(rank, BATCHES[name][rank])) for rank in (0, 1)]
    assert any(g.abs().max() > 1e-3 for g in alone[0])
    assert all(bool(g.abs().max() == 0.0) == (name == "one silent") for g in alone[1])
    for parameter, (grad_0, grad_1) in enumerate(zip(*alone)):
        for rank in (0, 1):
            averaged = torch.tensor(reports[rank][kind, name][parameter])
            torch.testing.assert_close(averaged, (grad_0 + grad_1) / 2.0, rtol=1e-4, atol=1e-6)


@pytest.mark.parametrize("kind", WRAPS)
@pytest.mark.parametrize("name", SHARES)
def test_a_mean_over_all_processes_is_exact(reports, kind, name):
    """However mixtures are dealt out: value and gradient are those of one process with all."""
    trained = Trained()
    expected = gradients(trained, *share(name, [0, 1, 2, 3]))
    value = float(trained.value)
    plain = [gradients(trained, *share(name, mixtures)) for mixtures in SHARES[name]]
    averaged = [(a + b) / 2.0 for a, b in zip(*plain)]
    assert not all(torch.allclose(a, e, rtol=1e-2) for a, e in zip(averaged, expected))
    for rank in (0, 1):
        assert reports[rank][kind, name, "value"] == pytest.approx(value, rel=1e-5)
        for grad, expected_grad in zip(reports[rank][kind, name], expected):
            torch.testing.assert_close(torch.tensor(grad), expected_grad, rtol=1e-4, atol=1e-6)
