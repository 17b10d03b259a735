"""Radius of PM in the conformal convention; it has no tail.

The tail of the other conventions says how far PM may be off because a cluster is known from N_p
distortions only. The rank form needs no such interval: its guarantee holds for the N_p there are.
So the tail is NaN here, "none is stated", and with it the total. The radius is what truncation
does, by calculation and not by a bound: PM with all coordinates less PM with the retained ones.
"""

from __future__ import annotations

import torch
from torch import Tensor

from torch_mapss.bounds.schur import whole_space
from torch_mapss.core.conformal import smooth_match
from torch_mapss.core.diffusion_map import Embedding
from torch_mapss.core.layout import Layout, point_validity, scored_outputs


def conformal_kernel(embedding: Embedding, layout: Layout) -> tuple[Tensor, Tensor]:
    """Radius and tail of PM (F, S') of a chunk of frames: the tail is NaN where PM is defined."""
    valid = point_validity(layout, len(embedding.coordinates), embedding.coordinates.device)
    every = torch.full_like(embedding.dimension, embedding.coordinates.shape[-2])
    count = every if valid is None else valid.sum(-1)
    full = whole_space(embedding)._replace(dimension=count - 1)
    whole, kept = (smooth_match(x, layout)[0] for x in (full, embedding))
    scored = scored_outputs(layout, len(kept), kept.device)
    tail = torch.where(scored, torch.nan, 0.0).to(kept.dtype)
    return torch.where(scored, (whole - kept).abs(), 0.0), tail
