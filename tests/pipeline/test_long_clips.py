"""Long clips of real voices: what segments and memory change of their scores."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from checkpoints import write_checkpoint, write_whisper
from torch import Tensor

from torch_mapss import MAPSS, DistortionBank, Scores
from torch_mapss.evaluation.demo import GRADES, separated, voices
from torch_mapss.pipeline.copies import Copies

BANKS: dict[str, Any] = {
    f"{kind}_bank": DistortionBank(kind, size=20)  # type: ignore[arg-type]
    for kind in ("separation", "match")
}
DIMENSIONS = {"ps": "separation_dimension", "pm": "match_dimension", "log_pm": "match_dimension"}


def recording(seconds: float) -> tuple[Tensor, Tensor]:
    """Estimates and references (2, T): the two voices, taking turns in being whose, separated."""
    both, rate = voices()
    assert rate == 16000
    turns = [both.flip(0) if k % 2 else both.roll(997 * k, -1) for k in range(6)]
    references = torch.cat(turns, -1)[:, : round(seconds * rate)]
    return separated(references, GRADES[1]), references


def assert_alike(one: Scores, other: Scores, tolerance: float = 1e-3) -> None:
    """Nearly all frames keep as many dimensions and score alike, none far off; so do the means."""
    active = one.active
    assert torch.equal(active, other.active)
    assert active.double().mean() > 0.3
    for name, dimension in DIMENSIONS.items():
        same = getattr(one, dimension) == getattr(other, dimension)
        same = same.unsqueeze(1).expand_as(active)[active]
        a, b = (getattr(scores, name)[active].double() for scores in (one, other))
        scale = a.abs().clamp(min=1e-3) if name == "log_pm" else torch.ones_like(a)
        error = (a - b).abs() / scale
        most = 1e-3 if name == "log_pm" else tolerance
        assert (same & (error <= most)).double().mean() >= 0.99, name
        assert float(error[same].max()) <= 1e-2, name  # of a graph that magnifies rounding
        a, b = (getattr(scores.utterance(), name) for scores in (one, other))
        torch.testing.assert_close(a, b, rtol=1e-3 if name == "log_pm" else 0.0, atol=1e-3)


@pytest.mark.slow
@pytest.mark.parametrize("encoder", ["mel", "waveform"])
def test_full_banks_and_all_frames_of_real_voices(encoder: str) -> None:
    estimates, references = recording(7.0)
    whole = MAPSS(encoder)(estimates, references)
    assert_alike(whole, MAPSS(encoder, segment=1.5)(estimates, references))


@pytest.mark.slow
@pytest.mark.parametrize("family", ["mel", "wav2vec2"])
def test_memory_changes_no_score_of_a_long_clip(
    family: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    encoder = family
    if family == "wav2vec2":  # wide, so that a block of frames is less than a segment
        encoder = str(tmp_path / "checkpoint")
        write_checkpoint(Path(encoder), family, large=True, hidden_size=768)
    # The least memory makes copies of five seconds of an encoder with a receptive field.
    segment = 7.5 if family == "mel" else 2.0
    estimates, references = recording(2 * segment)
    blocks, found = [], []
    original = Copies.encode

    def counted(*given: Any) -> Any:
        blocks.append(given)
        return original(*given)

    monkeypatch.setattr(Copies, "encode", counted)
    counts = []
    for memory in ("16MiB", "256MiB", "auto"):
        blocks.clear()
        mapss = MAPSS(encoder, segment=segment, memory=memory, **BANKS)
        found.append(mapss(estimates, references))
        counts.append(len(blocks))
    assert counts[0] >= counts[1] >= counts[2] == 4
    assert counts[0] > 4
    for tight in found[:2]:
        assert_alike(found[2], tight, tolerance=1e-4)


@pytest.mark.slow
def test_a_transformer_receives_the_segment_and_describes_it(tmp_path: Path) -> None:
    write_checkpoint(tmp_path / "checkpoint", "wav2vec2", large=True)
    estimates, references = recording(6.0)
    scorers = [
        MAPSS(str(tmp_path / "checkpoint"), segment=segment, **BANKS)
        for segment in (None, 3.0, 1.5)
    ]
    assert [scorer.describe()["segment"] for scorer in scorers] == [None, 3.0, 1.5]
    assert len({scorer.key for scorer in scorers}) == 3
    whole, *parts = (scorer(estimates, references) for scorer in scorers)
    for one in parts:
        assert torch.equal(one.active, whole.active)
        assert float((one.ps - whole.ps).abs().max()) > 1e-3  # it is another score


@pytest.mark.slow
def test_clips_longer_than_whispers_positions_are_scored_in_segments(tmp_path: Path) -> None:
    # Positions for 3.2 s: a segment of 1 s with a second on each side fits in.
    write_whisper(tmp_path, max_source_positions=160)
    estimates, references = recording(4.2)
    with pytest.raises(ValueError, match=r"accepts at most 3.2 s.*segment"):
        MAPSS(tmp_path, **BANKS)(estimates, references)
    with pytest.raises(ValueError, match=r"segment must be at most 1\.2 s"):
        MAPSS(tmp_path, **BANKS, segment=2.0)(estimates, references)
    with torch.no_grad():
        scores = MAPSS(tmp_path, **BANKS, segment=1.0)(estimates, references)
    assert scores.ps.shape == (1, 2, (67_200 - 400) // 320 + 1)
    assert scores.active.any(-1).all()
    assert 0.5 < float(scores.ps[scores.active].mean()) < 1.0
