"""How often a training step asks the device for a value, which waits for all work queued there."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from reads import Waits, counted
from torch import Tensor

from torch_mapss import MAPSS, BleedLoss, DecompositionLoss, DistortionBank, MAPSSLoss
from torch_mapss.core import frame_batches

RATE = 16_000


def scorer(**options: Any) -> MAPSS:
    """Whole banks would only take longer: the counts do not depend on their size."""
    banks = {f"{kind}_bank": DistortionBank(kind, size=12) for kind in ("separation", "match")}
    return MAPSS("mel", **banks, **options)


@pytest.fixture(scope="module")
def mapss() -> MAPSS:
    return scorer()


def signals(seconds: float, sources: int = 2, batch: int = 1) -> tuple[Tensor, Tensor]:
    generator = torch.Generator().manual_seed(0)
    shape = batch, sources, int(seconds * RATE)
    references = torch.randn(shape, generator=generator)
    noise = torch.randn(shape, generator=generator)
    return references + 0.3 * references.flip(1) + 0.1 * noise, references


def step(
    mapss: MAPSS, seconds: float, lengths: tuple[int, ...] | None = None, make: Any = MAPSSLoss
) -> tuple[Waits, Waits]:
    """The counts of a forward and of a backward pass with a prepared bank."""
    estimates, references = signals(seconds, batch=len(lengths or (1,)))
    estimates.requires_grad_()
    if make is BleedLoss:
        references[:, 0, : references.shape[-1] // 2] = 0.0
    loss = make(mapss)
    bank = loss.prepare(references, lengths)
    with counted(far=True) as forward:
        value = loss(estimates, bank)
    with counted(far=True) as backward:
        value.backward()
    assert float(estimates.grad.abs().sum()) > 0.0
    return forward, backward


@pytest.mark.parametrize("seconds", [4.0, pytest.param(16.0, marks=pytest.mark.slow)])
def test_a_step_reads_at_most_four_values_forward_and_none_backward(
    mapss: MAPSS, seconds: float
) -> None:
    forward, backward = step(mapss, seconds)
    assert forward.reads.total() <= 4, forward.lines
    assert backward.reads.total() == 0, backward.lines
    assert not forward.uploads + backward.uploads


@pytest.mark.parametrize(("make", "most"), [(DecompositionLoss, 4), (BleedLoss, 2)])
@pytest.mark.parametrize("lengths", [None, (9600, 9000, 8100, 4000)])
def test_the_pair_and_bleed_read_no_more(
    mapss: MAPSS, make: Any, most: int, lengths: tuple[int, ...] | None
) -> None:
    forward, backward = step(mapss, 0.6, lengths, make)
    assert forward.reads.total() <= most, forward.lines
    assert backward.reads.total() == 0, backward.lines
    assert not forward.uploads + backward.uploads


@pytest.mark.parametrize("lengths", [(9600,) * 4, (9600, 9000, 8100, 4000)])
def test_a_batch_of_several_lengths_reads_no_more(mapss: MAPSS, lengths: tuple[int, ...]) -> None:
    forward, backward = step(mapss, 0.6, lengths)
    assert forward.reads.total() <= 4, forward.lines
    assert backward.reads.total() == 0, backward.lines
    assert not forward.uploads + backward.uploads


def test_preparing_reads_a_few_values_more_for_each_length(mapss: MAPSS) -> None:
    _, references = signals(0.6, batch=4)
    counts = []
    for lengths in ((9600,) * 4, (9600, 9000, 8100, 4000)):
        with counted() as waits:
            mapss.prepare(references, lengths)
        counts.append(waits.reads.total())
    assert counts[0] <= 16
    assert counts[1] <= counts[0] + 3 * 12, waits.lines


def test_recomputed_chunks_read_no_more(mapss: MAPSS, monkeypatch: pytest.MonkeyPatch) -> None:

    monkeypatch.setattr(frame_batches, "GRAPH_BYTES", 0)
    # What a scorer's memory gives a chunk counts in these.
    monkeypatch.setattr(frame_batches, "BATCH_BYTES", 2**22)
    forward, backward = step(mapss, 1.0)
    assert forward.reads.total() <= 4, forward.lines
    assert backward.reads.total() == 0, backward.lines


def test_without_the_check_of_samples_it_reads_two_less() -> None:
    forward, backward = step(scorer(check_finite=False), 1.0)
    assert forward.reads.total() <= 2, forward.lines
    assert backward.reads.total() == 0, backward.lines


def test_the_counter_counts() -> None:
    x = torch.tensor([3.0, 0.0, 2.0])
    with counted(far=True) as waits:
        _ = bool(x.any()), x.nonzero(), x[x > 0], x.tolist(), x.numpy(), x.cpu()
        _ = torch.bincount(x.long()), torch.unique(x), torch.equal(x, x)
        _ = x.repeat_interleave(x.long())
        x.index_put_((x > 2,), x[:1])
        _ = torch.tensor([1, 2])
    assert waits.reads.total() == 11, waits.lines
    assert waits.uploads.total() == 1
