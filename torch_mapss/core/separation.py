"""PS: distances of an output to its own and to the closest foreign cluster."""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor

from torch_mapss.core.autograd import safe_sqrt
from torch_mapss.core.diffusion_map import Embedding, embed
from torch_mapss.core.mahalanobis import RIDGE, cluster_distances
from torch_mapss.core.points import Points, presence, scored_outputs, split_points
from torch_mapss.core.settings import Settings


class Distances(NamedTuple):
    """The two halves of PS."""

    own: Tensor  # (F, S') A, to the attributed cluster
    foreign: Tensor  # (F, S') B, to the closest other active cluster
    defined: Tensor  # (F, S') bool: attributed source active, and another one


# --------------------------------------------------------------------------------------------
# PS
# --------------------------------------------------------------------------------------------


def cluster_statistics(clusters: Tensor, present: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """Mean (F, S, D), deviations (F, S, n, D) and divisor n - 1 (F, S) of [eq:mu]."""
    weight = present.unsqueeze(-1).to(clusters.dtype)
    count = present.sum(-1)
    mean = (clusters * weight).sum(-2) / count.clamp(min=1).unsqueeze(-1)
    deviations = (clusters - mean.unsqueeze(-2)) * weight
    return mean, deviations, (count - 1).clamp(min=1)


def all_distances(embedding: Embedding, points: Points) -> tuple[Tensor, Tensor]:
    """Squared distance of every output to every cluster (F, S', S), and active sources (F, S)."""
    outputs, clusters = split_points(embedding.coordinates, points)
    active, present = presence(points)
    mean, deviations, divisor = cluster_statistics(clusters, present)
    delta = outputs.unsqueeze(-3) - mean.unsqueeze(-2)  # (F, S, S', D)
    return cluster_distances(deviations, divisor, delta).mT, active


def separation_distances(embedding: Embedding, points: Points, settings: Settings) -> Distances:
    """A, B and j* of [eq:B] for every output of a chunk of frames."""
    squared, active = all_distances(embedding, points)
    own_index = points.source_index().expand(len(squared), -1).unsqueeze(-1)
    everyone = torch.arange(points.sources, device=squared.device)
    foreign = (everyone != own_index) & active.unsqueeze(-2)
    defined = active.gather(-1, own_index.squeeze(-1)) & foreign.any(-1)
    nearest = torch.where(foreign, squared.detach(), torch.inf).argmin(-1, keepdim=True)
    both = torch.cat([_pick(squared, own_index), _pick(squared, nearest)], -1)
    both = torch.where(defined.unsqueeze(-1), both, 0.0)
    if settings.convention == "reference":
        both = torch.where(defined.unsqueeze(-1), (both + RIDGE).sqrt(), 0.0)
        a, b = both.unbind(-1)
    else:
        a, b = safe_sqrt(both).unbind(-1)
    return Distances(a, b, defined & ~embedding.degenerate.unsqueeze(-1))


def _pick(values: Tensor, index: Tensor) -> Tensor:
    """values[..., index] by a one-hot sum: its backward is deterministic on every device."""
    everyone = torch.arange(values.shape[-1], device=values.device)
    return torch.where(everyone == index, values, 0.0).sum(-1, keepdim=True)


def separation_scores(
    points: Points, settings: Settings, may_sync: bool = True
) -> tuple[dict[str, Tensor], Tensor | None]:
    """PS, A, B and d (F, S') of a batch of frames; see :mod:`torch_mapss.core.frame_batches`."""
    embedding = embed(points, settings, may_sync=may_sync)
    return of_separation(embedding, points, settings), embedding.again


def of_separation(embedding: Embedding, points: Points, settings: Settings) -> dict[str, Tensor]:
    """The same of one map."""
    distances = separation_distances(embedding, points, settings)
    return {
        "ps": separation(embedding, points, settings, distances),
        "attributed_distance": distances.own,
        "foreign_distance": distances.foreign,
        "separation_dimension": embedding.dimensions(len(points.attributed)),
    }


def separation(
    embedding: Embedding, points: Points, settings: Settings, distances: Distances | None = None
) -> Tensor:
    """PS [eq:PS_final] (F, S'); 0 where it is not defined, ½ where there is no map."""
    if distances is None:
        distances = separation_distances(embedding, points, settings)
    a, b, defined = distances.own, distances.foreign, distances.defined
    if settings.convention == "reference":
        ps = 1.0 - a / (a + b + RIDGE)
    else:
        some = a + b > 0.0
        ps = torch.where(some, b / torch.where(some, a + b, 1.0), 0.5)
    ps = torch.where(embedding.degenerate.unsqueeze(-1), 0.5, torch.where(defined, ps, 0.0))
    return torch.where(scored_outputs(points), ps, 0.0)
