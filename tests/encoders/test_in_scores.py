"""Encoders in scores, losses and training: lengths, sharing, broken models, data parallel."""

from __future__ import annotations

import gc
import weakref
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from torch_mapss import MAPSS, DistortionBank, MAPSSLoss, PerceptualMatch, PerceptualSeparation

near = torch.testing.assert_close


def small(encoder: Any, **options: Any) -> MAPSS:
    banks: dict[str, Any] = {
        f"{k}_bank": DistortionBank(k, size=6) for k in ("separation", "match")
    }
    return MAPSS(encoder, **banks, **options)


def pair(batch: int = 1, samples: int = 6400) -> tuple[Tensor, Tensor]:
    """References and leaky estimates, coloured noise."""
    white = torch.randn(batch, 2, samples, generator=torch.Generator().manual_seed(0))
    references = torch.stack([white[:, 0].cumsum(-1) * 0.02, 0.2 * white[:, 1]], 1)
    return references, references + 0.3 * references.flip(1) + 0.01 * white


@pytest.fixture(scope="module")
def folders(folder: Any) -> dict[str, Path]:
    """Group norm, layer norm with input normalisation, and Whisper."""
    return {
        "group": folder("hubert"),
        "layer": folder("wav2vec2", True),
        "whisper": folder("whisper"),
    }


@pytest.mark.parametrize("kind", ["group", "layer", "whisper", "mel", "waveform"])
def test_padded_items_score_as_if_alone(folders: dict[str, Path], kind: str) -> None:
    mapss, lengths = small(str(folders.get(kind, kind))), [6400, 4100]
    references, estimates = pair(2)
    for x in (references, estimates):
        x[1, :, 4100:] = 7.0  # padding may hold anything
    leaf = estimates.requires_grad_()
    scores = mapss(leaf, references, lengths=lengths)
    found = scores.utterance()
    for item, length in enumerate(lengths):
        alone = mapss(leaf[[item], :, :length], references[[item], :, :length]).utterance()
        near(found.ps[[item]], alone.ps, rtol=0, atol=1e-3)
        near(found.pm[[item]], alone.pm, rtol=0, atol=1e-3)
    scores.ps[scores.active].mean().backward()
    assert leaf.grad is not None
    assert leaf.grad.isfinite().all()
    assert (leaf.grad[1, :, 4100:] == 0.0).all()
    assert (leaf.grad[0] != 0.0).any()


@pytest.mark.slow
def test_clips_longer_than_whispers_positions_are_scored_in_segments(folder: Any) -> None:
    # Positions for 3.2 s: a segment of 1 s with a second on each side fits in.
    path = folder("whisper", max_source_positions=160)
    references, estimates = pair(samples=67_200)
    with pytest.raises(ValueError, match=r"accepts at most 3.2 s.*segment"):
        small(path)(estimates, references)
    with pytest.raises(ValueError, match=r"segment must be at most 1\.2 s"):
        small(path, segment=2.0)(estimates, references)
    with torch.no_grad():
        scores = small(path, segment=1.0)(estimates, references)
    assert scores.ps.shape == (1, 2, (67_200 - 400) // 320 + 1)
    assert scores.active.any(-1).all()
    assert 0.5 < float(scores.ps[scores.active].mean()) < 1.0


def test_weights_are_shared_and_released(folders: dict[str, Path]) -> None:
    gc.collect()
    references, estimates = pair()
    made = [PerceptualSeparation(small(folders["group"])), PerceptualMatch(small(folders["group"]))]
    for metric in made:
        metric.update(estimates, references)
    weights = [next(metric.mapss.encoder.parameters()) for metric in made]
    assert weights[0] is weights[1]
    watched = weakref.ref(weights[0])
    del made, metric, weights
    gc.collect()
    assert watched() is None


class Broken:
    name, layer, sample_rate, hop, receptive_field = "stub", 3, 16_000, 320, 400

    def __init__(self, value: float) -> None:
        self.value = value

    def __call__(self, waveform: Tensor) -> Tensor:
        frames = waveform.unfold(-1, 400, 320)
        return frames.new_full((*frames.shape[:-1], 8), self.value)


@pytest.mark.parametrize("value", [torch.nan, torch.inf, 1e37])
def test_a_broken_encoder_is_an_error_and_no_score(value: float) -> None:
    references, estimates = pair()
    mapss = small(Broken(value))
    for call in (mapss, MAPSSLoss(mapss), PerceptualMatch(mapss).update):
        with pytest.raises(RuntimeError, match=r"stub.*layer 3.*float32.*device cpu"):
            call(estimates, references)


def test_a_model_that_holds_its_loss_trains_data_parallel(
    folders: dict[str, Path], tmp_path: Path
) -> None:
    class Separator(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.net = nn.Conv1d(2, 2, 1)
            self.loss = MAPSSLoss(small(str(folders["group"])), match_mode="log1p")

        def forward(self, mixture: Tensor, references: Tensor) -> Tensor:
            return self.loss(self.net(mixture), references)

    model = Separator()
    references, mixture = pair()
    model(mixture, references)
    before = [p.clone() for p in model.loss.mapss.encoder.parameters()]
    assert before
    trained = {name.split(".")[0] for name, p in model.named_parameters() if p.requires_grad}
    assert trained == {"net"}
    store = f"file://{tmp_path}/store"
    torch.distributed.init_process_group("gloo", init_method=store, rank=0, world_size=1)
    try:
        wrapped = nn.parallel.DistributedDataParallel(model)
        descent = torch.optim.SGD(model.net.parameters(), lr=0.1)
        for _ in range(2):
            descent.zero_grad()
            wrapped(mixture, references).backward()
            descent.step()
    finally:
        torch.distributed.destroy_process_group()
    assert all(torch.equal(a, b) for a, b in zip(before, model.loss.mapss.encoder.parameters()))
    assert all(p.grad is not None for p in model.net.parameters())
