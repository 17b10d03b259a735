"""The largest dimension, from waveforms on."""

from __future__ import annotations

import torch
from torch import Tensor

from torch_mapss import MAPSS, DistortionBank

FAMILIES = ("echo", "tone", "comb")
SMALL = DistortionBank("separation", size=6)


def voices(batch: int = 2, sources: int = 2, samples: int = 4000, seed: int = 0) -> Tensor:
    """Noise of several colours, so that sources differ."""
    generator = torch.Generator().manual_seed(seed)
    waves = torch.randn(batch, sources, samples, generator=generator)
    return torch.stack(
        [w if i % 2 else w.cumsum(-1) * 0.1 for i, w in enumerate(waves.unbind(1))], 1
    )


def scorer(**options: object) -> MAPSS:
    bank = DistortionBank("match", only=FAMILIES)
    return MAPSS("mel", separation_bank=SMALL, match_bank=bank, **options)


def leaking(references: Tensor, amount: float = 0.3) -> Tensor:
    return references + amount * references.roll(1, 1)


def test_dimensions_are_told_and_capped():
    references = voices()
    references[1, 1, :2000] = 0.0  # frames with one active source
    estimates = leaking(references)
    scores = scorer()(estimates, references)
    for dimension in (scores.separation_dimension, scores.match_dimension):
        assert dimension.shape == (2, scores.ps.shape[-1])
        assert dimension.dtype == torch.int64
        assert ((dimension > 0) == scores.active.any(1)).all()
    capped = scorer(max_dimension=5)(estimates, references)
    assert capped.match_dimension.max() == 5
    assert capped.separation_dimension.max() == 5
    assert scores.match_dimension.max() > 5
    alone = scorer()(estimates, references, measures="match")
    assert (alone.separation_dimension == 0).all()
