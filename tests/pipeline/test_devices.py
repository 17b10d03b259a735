"""Devices and memory: how often a call asks the device for a value, which waits for all work there.

Budgets of memory change no score. The whole way on a device that is not the CPU runs on tensors
without values (``fake_device``), so no such device is needed.
"""

from __future__ import annotations

import functools
import warnings
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import pytest
import small_scorers
import torch
from fake_device import backward, fake_device
from reads import Waits, counted
from torch import Tensor
from waveforms import RATE, leaky, noise

from torch_mapss import MAPSS, BleedLoss, DecompositionLoss, DistortionBank, MAPSSLoss
from torch_mapss.audio.loudness import normalize_loudness
from torch_mapss.core import frame_batches
from torch_mapss.encoders import MelEncoder
from torch_mapss.pipeline import memory
from torch_mapss.pipeline.embedder import Embedder
from torch_mapss.pipeline.memory import budget, checked_memory

small = functools.partial(
    small_scorers.small, size=12
)  # the counts do not depend on the size of a bank


@pytest.fixture(scope="module")
def mapss() -> MAPSS:
    return small()


def leaky_noise(seconds: float, batch: int = 1) -> tuple[Tensor, Tensor]:
    """Estimates and references (B, 2, T)."""
    references = noise(batch, 2, int(seconds * RATE))
    return leaky(references, 0.3) + noise(*references.shape, seed=1, level=0.01), references


def step(
    mapss: MAPSS, seconds: float, lengths: tuple[int, ...] | None = None, make: Any = MAPSSLoss
) -> tuple[Waits, Waits]:
    """The counts of a forward and of a backward pass with a prepared bank."""
    estimates, references = leaky_noise(seconds, batch=len(lengths or (1,)))
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


SEVERAL = (9600, 9000, 8100, 4000)


@pytest.mark.parametrize(
    ("make", "seconds", "lengths", "largest_count"),
    [
        (MAPSSLoss, 2.0, None, 4),
        pytest.param(MAPSSLoss, 16.0, None, 4, marks=pytest.mark.slow),
        (MAPSSLoss, 0.6, (9600,) * 4, 4),
        (MAPSSLoss, 0.6, SEVERAL, 4),
        (DecompositionLoss, 0.6, None, 4),
        (DecompositionLoss, 0.6, SEVERAL, 4),
        (BleedLoss, 0.6, None, 2),
        (BleedLoss, 0.6, SEVERAL, 2),
    ],
)
def test_a_step_reads_a_few_values_forward_and_none_backward(
    mapss, make, seconds, lengths, largest_count
):
    forward, backward = step(mapss, seconds, lengths, make)
    assert forward.reads.total() <= largest_count, forward.lines
    assert backward.reads.total() == 0, backward.lines
    assert not forward.uploads + backward.uploads


@pytest.mark.parametrize(("checked", "largest_count"), [(True, 4), (False, 2)])
def test_recomputed_chunks_read_no_more_and_unchecked_samples_two_less(
    monkeypatch, checked, largest_count
):
    if checked:
        monkeypatch.setattr(frame_batches, "GRAPH_BYTES", 0)
        # What a scorer's memory gives a chunk counts in these.
        monkeypatch.setattr(frame_batches, "BATCH_BYTES", 2**22)
    forward, backward = step(small(check_finite=checked), 1.0)
    assert forward.reads.total() <= largest_count, forward.lines
    assert backward.reads.total() == 0, backward.lines


def test_preparing_reads_a_few_values_more_for_each_length(mapss):
    _, references = leaky_noise(0.6, batch=4)
    counts = []
    for lengths in ((9600,) * 4, SEVERAL):
        with counted() as waits:
            mapss.prepare(references, lengths)
        counts.append(waits.reads.total())
    default = MAPSS("mel")
    with counted() as batch_counts:
        default.prepare(leaky_noise(0.5)[1])
    # Three of them, of the taps of reverberation, are of tensors that are made on the CPU.
    assert 0 < batch_counts.reads.total() <= 15, batch_counts.lines
    assert counts[0] <= 14
    assert counts[1] <= counts[0] + 3 * 12, waits.lines


def test_the_counter_counts():
    x = torch.tensor([3.0, 0.0, 2.0])
    with counted(far=True) as waits:
        _ = bool(x.any()), x.nonzero(), x[x > 0], x.tolist(), x.cpu().numpy()
        _ = torch.bincount(x.long()), torch.unique(x), torch.equal(x, x)
        _ = x.repeat_interleave(x.long())
        x.index_put_((x > 2,), x[:1])
        _ = torch.tensor([1, 2])
    assert waits.reads.total() == 10, waits.lines
    assert waits.uploads.total() == 1


@pytest.mark.parametrize("settings", ["20MiB", 2**31])
def test_memory_changes_no_score(settings):
    estimates, references = leaky_noise(1.5)
    scores = small()(estimates, references)
    tight = small(memory=settings)(estimates, references)
    assert torch.equal(scores.active, tight.active)
    torch.testing.assert_close(scores.ps, tight.ps, rtol=1e-4, atol=1e-5)
    torch.testing.assert_close(scores.pm, tight.pm, rtol=1e-3, atol=1e-5)


def test_memory_is_bytes_or_a_text():
    texts = {"auto": None, "1GiB": 2**30, "1.5 g": 3 * 2**29, "512MB": 2**29, 2**25: 2**25}
    assert [*map(checked_memory, texts)] == [*texts.values()]
    assert [*map(checked_memory, ("1e9", 1e18))] == [10**9, 10**18]
    for small in (0, "3k", "1e6"):
        with pytest.raises(ValueError, match="at least 16 MiB"):
            MAPSS("mel", memory=small)
    for wrong in ("much", "1.2.3G", "", -5, "1e999", float("inf"), float("nan")):
        with pytest.raises(ValueError, match="must be a number of bytes"):
            MAPSS("mel", memory=wrong)
    for value in (None, True, [1]):
        with pytest.raises(TypeError, match="bytes"):
            MAPSS("mel", memory=value)  # type: ignore[arg-type]
    assert 2**23 <= budget(None, torch.empty(0)).embeddings <= 2**29  # half of the memory
    of_a_gib = budget(2**30, torch.empty(0))
    assert (of_a_gib.samples, of_a_gib.frames) == (2**20, 96 * 2**20)


@pytest.mark.parametrize(
    ("line", "folder", "names", "used"),
    [
        ("0::/", "", ("memory.max", "memory.current"), "inactive_file"),
        ("0::/a/b", "a", ("memory.max", "memory.current"), "inactive_file"),
        (
            "4:cpu,memory:/docker/x",
            "memory/docker/x",
            ("memory.limit_in_bytes", "memory.usage_in_bytes"),
            "total_inactive_file",
        ),
    ],
)
def test_the_limit_of_a_container_counts(line, folder, names, used, tmp_path, monkeypatch):
    groups, root = tmp_path / "cgroup", tmp_path / "fs"
    groups.write_text(f"9:name=systemd:/\n{line}\n")
    (root / folder).mkdir(parents=True, exist_ok=True)
    for name, value in zip(names, (2**28, 2**27)):
        (root / folder / name).write_text(f"{value}\n")
    (root / folder / "memory.stat").write_text(f"anon 5\n{used} {2**26}\n")
    monkeypatch.setattr(memory, "PROCESS_GROUPS", str(groups))
    monkeypatch.setattr(memory, "GROUPS_FOLDER", str(root))
    assert memory.free_memory() == 2**28 - 2**27 + 2**26
    assert budget(None, torch.empty(0)).embeddings == (2**27 + 2**26) // 8
    (root / folder / names[0]).write_text("max\n")
    assert memory.free_memory() > 2**28


class Failing(MelEncoder):
    """An encoder whose computation ends in ``failure``."""

    def __init__(self, failure: Callable[[], None]) -> None:
        super().__init__()
        self.failure = failure

    def _encode(self, flat: Tensor) -> Tensor:
        self.failure()
        return super()._encode(flat)


def without_memory() -> None:
    raise torch.OutOfMemoryError("2 GiB wanted")


def too_large_for_any_memory() -> None:
    torch.empty(2**60, dtype=torch.uint8, device="cpu")


def too_large_for_numpy() -> None:
    np.empty(2**60, dtype=np.uint8)


@pytest.mark.parametrize(
    ("failure", "text"),
    [
        (without_memory, "2 GiB wanted"),
        (too_large_for_any_memory, "llocat"),
        (too_large_for_numpy, "llocat"),
    ],
)
def test_out_of_memory_error_names_remedies(failure, text):
    mapss = MAPSS(Failing(failure))
    with pytest.raises(torch.OutOfMemoryError, match=text) as caught:
        mapss(leaky_noise(0.5)[1], leaky_noise(0.5)[1])
    for remedy in ("memory=", "segment="):
        assert str(caught.value).count(remedy) == 1


def test_other_errors_pass_as_they_are():
    def mismatched() -> None:
        raise RuntimeError("shapes do not match")

    mapss = MAPSS(Failing(mismatched))
    with pytest.raises(RuntimeError, match=r"^shapes do not match$"):
        mapss(leaky_noise(0.5)[1], leaky_noise(0.5)[1])


def test_the_least_memory_prepares_many_sources_in_segments():
    references = torch.randn(1, 6, 48000, generator=torch.Generator().manual_seed(0))
    banks = {"separation_bank": DistortionBank(only=("echo",))}
    mapss = MAPSS("mel", segment=1.0, memory="16MiB", measures="separation", **banks)
    assert len(mapss.prepare(references).groups[0].scored) > 100


def test_a_copy_to_the_cpu_is_awaited(monkeypatch):
    bank = MAPSS("mel").prepare(leaky_noise(0.5)[1], measures="decomposition")
    original, asked = torch.Tensor.to, set()

    def noted(self: torch.Tensor, *arguments: object, **options: object) -> torch.Tensor:
        asked.add((str(arguments[0]), options["non_blocking"]))
        return original(self, "cpu")

    monkeypatch.setattr(torch.Tensor, "to", noted)
    bank.to("cpu")
    bank.to("cuda:1")
    assert asked == {("cpu", False), ("cuda:1", True)}


@pytest.fixture
def fake(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """A fake device, on which no embedding is broken, and no memory is to be measured."""
    monkeypatch.setattr(Embedder, "check", lambda _: None)
    with fake_device(), warnings.catch_warnings():
        warnings.simplefilter("ignore")  # nothing is known of any value: no frame need be scored
        yield


class Frames:
    """The waveform's frames, encoded by calls that lengths share."""

    sample_rate, hop, receptive_field, local = 16_000, 320, 400, True

    def __call__(self, waveform: Tensor) -> Tensor:
        return waveform.unfold(-1, 400, 320).sin()


def mapss_of(encoder: Any = "waveform", **options: Any) -> MAPSS:
    banks = {f"{kind}_bank": DistortionBank(kind, size=4) for kind in ("separation", "match")}
    return MAPSS(encoder, decomposition_encoder=encoder, memory="1GiB", **banks, **options)


# Made outside of the fake device, whose tensors have no values to choose filters by.
SCORER, FRAMES = mapss_of(align_polarity=True), mapss_of(Frames())


def empty_signals(*shape: int) -> tuple[Tensor, Tensor]:
    estimates = torch.empty(*shape, 4000, device="cuda", requires_grad=True)
    return estimates, torch.empty(*shape, 4000, device="cuda")


def assert_slopes(score: Tensor, leaf: Tensor) -> None:
    assert score.device.type == "cuda"
    (gradient,) = backward(score).values()
    assert (gradient.device, gradient.shape) == (leaf.device, leaf.shape)


@pytest.mark.usefixtures("fake")
def test_scores_their_gradients_and_bounds_on_another_device():
    estimates, references = empty_signals(1, 3)
    bank = SCORER.prepare(references)
    assert bank.device.type == "cuda"
    scores = SCORER(estimates, bank)
    values = [x for x in vars(scores).values() if isinstance(x, Tensor) and x.ndim == 3]
    for bounds in SCORER.bound_systems([estimates.detach()] * 2, bank):
        values += [bounds.scores.ps, *bounds.ps, *bounds.pm, *bounds.fidelity]
    assert {x.device.type for x in values} == {"cuda"}
    names = ("ps", "log_pm", "pm", "clearance", "distortion_ratio")
    assert_slopes(torch.stack([getattr(scores, name).sum() for name in names]).sum(), estimates)


@pytest.mark.usefixtures("fake")
def test_a_step_of_training_with_lengths_on_another_device():
    estimates, references = empty_signals(2, 2)
    loss = MAPSSLoss(FRAMES)
    assert_slopes(loss(estimates, references, lengths=(4000, 3300)), estimates)
    assert_slopes(normalize_loudness(estimates, 16_000).sum(), estimates)
