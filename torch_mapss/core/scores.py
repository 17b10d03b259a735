"""What is read off one map: the scores of a frame, in any convention, and d."""

from __future__ import annotations

import torch
from torch import Tensor

from torch_mapss.core.conformal import conformal_parts, smooth_match
from torch_mapss.core.diffusion_map import Embedding
from torch_mapss.core.layout import Layout
from torch_mapss.core.match import match_parts
from torch_mapss.core.separation import separation_parts
from torch_mapss.core.settings import Settings

SEPARATION_SCORES = ("ps", "attributed_distance", "foreign_distance", "separation_dimension")
MATCH_SCORES = ("pm", "log_pm", "match_dimension", "pm_rank")  # the last one: conformal only


def separation_scores(
    embedding: Embedding, layout: Layout, settings: Settings
) -> tuple[Tensor, ...]:
    """PS, A, B and d (F, S') of one map: ``SEPARATION_SCORES``."""
    parts = separation_parts(embedding, layout, settings)
    return *parts, retained(embedding, layout)


def match_scores(embedding: Embedding, layout: Layout, settings: Settings) -> tuple[Tensor, ...]:
    """PM, log PM, d and, in the conformal convention, the rank form (F, S'): ``MATCH_SCORES``."""
    if settings.convention != "conformal":
        return *match_parts(embedding, layout, settings), retained(embedding, layout)
    pm, log_pm, rank = conformal_parts(embedding, layout)
    return pm, log_pm, retained(embedding, layout), rank


def any_match(embedding: Embedding, layout: Layout, settings: Settings) -> tuple[Tensor, Tensor]:
    """PM and log PM (F, S') of one map, in any convention."""
    if settings.convention != "conformal":
        return match_parts(embedding, layout, settings)
    return smooth_match(embedding, layout)


def retained(embedding: Embedding, layout: Layout) -> Tensor:
    """d of the frame (F, S'), the same for all its outputs; 1 where there is no map."""
    d = torch.where(embedding.degenerate, 1, embedding.dimension)
    return d.unsqueeze(-1).expand(-1, layout.outputs)
