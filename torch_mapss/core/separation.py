"""PS: distances of an output to its own and to the closest foreign cluster."""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor

from torch_mapss.core.autograd import safe_sqrt
from torch_mapss.core.diffusion_map import Embedding, read_map
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


def own_and_nearest(squared: Tensor, active: Tensor, points: Points) -> Tensor:
    """The attributed and the closest other active cluster (j* of [eq:B]) of every output.

    Args:
        squared: (..., F, S', S) squared distances to all clusters, without a graph.
        active: (F, S).
        points: of the frames.

    Returns:
        (..., F, S', 2) int64; the second means nothing where no other source is active.
    """
    own = points.source_index().unsqueeze(-1)
    foreign = (torch.arange(points.sources, device=own.device) != own) & active.unsqueeze(-2)
    nearest = torch.where(foreign, squared, torch.inf).argmin(-1, keepdim=True)
    return torch.cat([own.expand_as(nearest), nearest], -1)


def separation_distances(embedding: Embedding, points: Points, settings: Settings) -> Distances:
    """A, B and j* of [eq:B] for every output of a batch of frames."""
    squared, active = all_distances(embedding, points)
    cluster = own_and_nearest(squared.detach(), active, points)
    # Picked by a one-hot sum: its backward is deterministic on every device.
    every = torch.arange(points.sources, device=squared.device)
    both = torch.where(every == cluster.unsqueeze(-1), squared.unsqueeze(-2), 0.0).sum(-1)
    scored = scored_outputs(points)
    ridge = RIDGE if settings.convention == "reference" else 0.0
    both = safe_sqrt(torch.where(scored.unsqueeze(-1), both + ridge, 0.0))
    return Distances(both[..., 0], both[..., 1], scored & ~embedding.degenerate.unsqueeze(-1))


def ratio(a: Tensor, b: Tensor, convention: str) -> Tensor:
    """PS of A and B [eq:PS_final]; ½ where both are 0."""
    if convention == "reference":
        return 1.0 - a / (a + b + RIDGE)
    some = a + b > 0.0
    return torch.where(some, b / torch.where(some, a + b, 1.0), 0.5)


def of_separation(embedding: Embedding, points: Points, settings: Settings) -> dict[str, Tensor]:
    """PS, A, B and d (F, S') of one map; 0 where not defined, PS ½ where there is no map."""
    a, b, defined = separation_distances(embedding, points, settings)
    ps = torch.where(defined, ratio(a, b, settings.convention), 0.5)
    return {
        "ps": torch.where(scored_outputs(points), ps, 0.0),
        "attributed_distance": a,
        "foreign_distance": b,
        "separation_dimension": embedding.dimensions(len(points.attributed)),
    }


#: The score function of PS.
separation_scores = read_map(of_separation)
