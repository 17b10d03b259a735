"""PM of embeddings in every convention at once: conventions that share a map share its cost."""

from __future__ import annotations

import torch
from torch import Tensor

from torch_mapss.core import checks
from torch_mapss.core.conformal import conformal_parts
from torch_mapss.core.diffusion_map import Embedding
from torch_mapss.core.frame_batches import score_frames
from torch_mapss.core.layout import Layout
from torch_mapss.core.match import match_parts
from torch_mapss.core.settings import Settings


def _of_the_papers_map(embedding: Embedding, layout: Layout, settings: Settings) -> tuple:
    _, paper = match_parts(embedding, layout, settings)
    _, smooth, rank = conformal_parts(embedding, layout)
    return paper, smooth, rank.log()


def _of_the_references_map(embedding: Embedding, layout: Layout, settings: Settings) -> tuple:
    return (match_parts(embedding, layout, settings)[1],)


@torch.no_grad()
def log_scores(
    outputs: Tensor,
    references: Tensor,
    distortions: Tensor,
    *,
    reference: bool = True,
    attributed: tuple[int, ...] | None = None,
    active: Tensor | None = None,
    mask: Tensor | None = None,
) -> dict[str, Tensor]:
    """log PM (F, S') by convention, and of the rank form of the conformal one.

    Args:
        outputs, references, distortions, attributed, active, mask: as for
            :func:`torch_mapss.functional.perceptual_match`.
        reference: whether to score in the reference convention too, which needs a map of its own.
    """
    clouds = checks.check_clouds(outputs, references, distortions, attributed, active, mask, 2)
    paper, smooth, rank = score_frames(clouds, Settings(), _of_the_papers_map)
    found = {"paper": paper, "conformal": smooth, "rank": rank}
    if reference:
        settings = Settings(convention="reference")
        (theirs,) = score_frames(clouds, settings, _of_the_references_map)
        found = {"paper": paper, "reference": theirs, "conformal": smooth, "rank": rank}
    return found
