"""PS: distances from an output to its own and to the closest foreign cluster."""

from __future__ import annotations

import torch
from torch import Tensor

from torch_mapss.core import devices
from torch_mapss.core.autograd import safe_sqrt
from torch_mapss.core.diffusion_map import FrameMaps, score_function_from
from torch_mapss.core.mahalanobis import RIDGE, ClusterDistances
from torch_mapss.core.points import Points, presence, scored_outputs, split_points
from torch_mapss.core.settings import MapSettings

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


def own_and_nearest(squared: Tensor, active: Tensor, points: Points) -> Tensor:
    """Attributed cluster and closest other active cluster (j* of [eq:B]) of each output.

    Args:
        squared: (..., F, S', S) squared distances to all clusters, without a graph.
        active: (F, S) bool.
        points: points of the frames.

    Returns:
        (..., F, S', 2) int64; the second entry is meaningless where no other source is active.
    """
    attributed = devices.upload(points.attributed, points.device).unsqueeze(-1)
    source_index = torch.arange(active.shape[-1], device=attributed.device)
    foreign = (source_index != attributed) & active.unsqueeze(-2)
    nearest = torch.where(foreign, squared, torch.inf).argmin(-1, keepdim=True)
    return torch.cat([attributed.expand_as(nearest), nearest], -1)


def ratio(a: Tensor, b: Tensor, convention: str) -> Tensor:
    """PS of A and B [eq:PS_final]; ½ where both are 0."""
    if convention == "reference":
        return 1.0 - a / (a + b + RIDGE)
    positive = a + b > 0.0
    return torch.where(positive, b / torch.where(positive, a + b, 1.0), 0.5)


def of_separation(maps: FrameMaps, points: Points, settings: MapSettings) -> dict[str, Tensor]:
    """PS, A, B [eq:B] and d (F, S') of one map; 0 where undefined, PS ½ without a map."""
    outputs, clusters = split_points(maps.coordinates, points)
    active, present = presence(points)
    mean, deviations, divisor = cluster_statistics(clusters, present)
    delta = outputs.unsqueeze(-3) - mean.unsqueeze(-2)  # (F, S, S', D)
    squared = ClusterDistances.apply(deviations, divisor, delta).mT  # (F, S', S)
    cluster = own_and_nearest(squared.detach(), active, points)
    # Picked by a one-hot sum: its backward is deterministic on every device.
    source_index = torch.arange(active.shape[-1], device=squared.device)
    picked = source_index == cluster.unsqueeze(-1)
    distances = torch.where(picked, squared.unsqueeze(-2), 0.0).sum(-1)
    scored = scored_outputs(points)
    ridge = RIDGE if settings.convention == "reference" else 0.0
    a, b = safe_sqrt(torch.where(scored.unsqueeze(-1), distances + ridge, 0.0)).unbind(-1)
    defined = scored & ~maps.degenerate.unsqueeze(-1)
    ps = torch.where(defined, ratio(a, b, settings.convention), 0.5)
    return {
        "ps": torch.where(scored, ps, 0.0),
        "attributed_distance": a,
        "foreign_distance": b,
        "separation_dimension": maps.dimension.unsqueeze(-1).expand_as(ps),
    }


#: The score function of PS.
separation_scores = score_function_from(of_separation)
