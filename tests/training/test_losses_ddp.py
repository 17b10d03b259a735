"""The losses over two processes, replicated and sharded: gloo on the CPU."""

from __future__ import annotations

import os
import warnings
from collections.abc import Sequence
from typing import Any

import pytest
import torch
import torch.multiprocessing as mp
from test_losses import Trained, leaky, voices
from test_metrics_ddp import free_port
from torch import Tensor, distributed, nn

pytestmark = pytest.mark.skipif(not distributed.is_available(), reason="no torch.distributed")
# torch 2.6 shards on accelerators only.
WRAPS = ["ddp", "fsdp"] if hasattr(torch.cpu.Stream, "record_event") else ["ddp"]
# One batch of each process; in the second pair one of them has nothing to score.
BATCHES = {"voices": (False, False), "one silent": (False, True)}
# Mixtures of each process, and which of them are silent.
SHARES = {"uneven": ((0, 1, 2), (3,)), "silent": ((0, 1), (2, 3))}
SILENT = {"uneven": (), "silent": (1, 2, 3)}


def batch(rank: int, silent: bool) -> tuple[Tensor, Tensor]:
    references = voices(1, 2, 8000, seed=rank)
    return leaky(references), references * (not silent)


def share(name: str, mixtures: Sequence[int]) -> tuple[Tensor, Tensor]:
    batches = [batch(mixture, mixture in SILENT[name]) for mixture in mixtures]
    waves, references = (torch.cat(parts) for parts in zip(*batches))
    return waves, references


def model(reduction: str = "mean") -> Trained:
    torch.manual_seed(0)
    return Trained(reduction)


def gradients(trained: nn.Module, waves: Tensor, references: Tensor) -> list[Any]:
    trained.zero_grad()
    value = trained(waves, references)
    value.backward()
    trained.value = value.detach()
    found = [parameter.grad for parameter in trained.parameters()]
    return [g.full_tensor() if hasattr(g, "full_tensor") else g.clone() for g in found]


def wrapped(kind: str, reduction: str = "mean") -> nn.Module:
    if kind == "ddp":
        return nn.parallel.DistributedDataParallel(model(reduction))
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.fsdp import fully_shard

    return fully_shard(model(reduction), mesh=init_device_mesh("cpu", (2,)))


def worker(rank: int, port: int, results: Any) -> None:
    warnings.simplefilter("ignore")
    os.environ.update(MASTER_ADDR="127.0.0.1", MASTER_PORT=str(port))
    distributed.init_process_group("gloo", rank=rank, world_size=2)
    found = {}
    for kind in WRAPS:
        trained = wrapped(kind)
        for name, silent in BATCHES.items():
            grads = gradients(trained, *batch(rank, silent[rank]))
            found[kind, name] = [g.numpy() for g in grads]
        whole = wrapped(kind, "global")
        for name, shares in SHARES.items():
            found[kind, name] = [g.numpy() for g in gradients(whole, *share(name, shares[rank]))]
            found[kind, name, "value"] = float(whole.value)
    results.put((rank, found))
    results.close()
    results.join_thread()
    distributed.barrier()
    distributed.destroy_process_group()
    os._exit(0)  # threads of torch may outlive Python's end, and then abort the process


@pytest.fixture(scope="module")
def found() -> dict[int, Any]:
    """What two processes report."""
    results = mp.get_context("spawn").Queue()
    context = mp.spawn(worker, (free_port(), results), nprocs=2, join=False)
    reports = dict(results.get(timeout=180) for _ in range(2))
    while not context.join(timeout=60):
        pass
    return reports


@pytest.mark.slow
@pytest.mark.parametrize("kind", WRAPS)
@pytest.mark.parametrize("name", BATCHES)
def test_two_processes_average_their_gradients(found, kind, name):
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        alone = [gradients(model(), *batch(rank, BATCHES[name][rank])) for rank in (0, 1)]
    assert any(g.abs().max() > 1e-3 for g in alone[0])
    for place, (one, two) in enumerate(zip(*alone)):
        for rank in (0, 1):
            mine = torch.tensor(found[rank][kind, name][place])
            torch.testing.assert_close(mine, (one + two) / 2.0, rtol=1e-4, atol=1e-6)


@pytest.mark.parametrize("kind", WRAPS)
@pytest.mark.parametrize("name", SHARES)
def test_a_mean_over_all_processes_is_exact(found, kind, name):
    """However mixtures are dealt out: value and gradient are those of one process with all."""
    one, everything = model("mean"), share(name, [0, 1, 2, 3])
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        expected, value = gradients(one, *everything), float(one.value)
        plain = [gradients(one, *share(name, mixtures)) for mixtures in SHARES[name]]
    averaged = [(a + b) / 2.0 for a, b in zip(*plain)]
    assert not all(torch.allclose(a, e, rtol=1e-2) for a, e in zip(averaged, expected))
    for rank in (0, 1):
        assert found[rank][kind, name, "value"] == pytest.approx(value, rel=1e-5)
        for mine, whole in zip(found[rank][kind, name], expected):
            torch.testing.assert_close(torch.tensor(mine), whole, rtol=1e-4, atol=1e-6)


def test_a_silent_batch_adds_nothing(found):
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        nothing = gradients(model(), *batch(1, silent=True))
    assert all(g.abs().max() == 0.0 for g in nothing)
