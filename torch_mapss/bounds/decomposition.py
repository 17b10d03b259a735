"""Half-widths of clearance and fidelity: what the choice of distortions does to them.

Both read distances in the entire map, so nothing is cut off: the radius is 0. The position of a
point on the map depends on the bank. The jackknife leaves the members out in turn, on the same
kernel (so with the same bandwidth). The sources' standard errors are added, not their squares: all
sources have the same kinds of distortion, so their errors do not average out.

    error = sum over sources of sqrt((n - 1) mean over its n members of (score without it - mean)^2)

The half-width is this times the normal quantile, at most 1. It claims no other error.
``benchmarks/coverage.py`` measures how often it holds against other draws of a bank.
"""

from __future__ import annotations

from statistics import NormalDist

import torch
from torch import Tensor

from torch_mapss.bounds.schur import Options
from torch_mapss.core.decomposition import Graphs, decomposed, scored_graphs
from torch_mapss.core.frame_batches import Score, Scored
from torch_mapss.core.points import Points
from torch_mapss.core.settings import Settings

BATCH_BYTES = 2**26  # working memory of the versions of a batch of graphs


def decomposition_errors(options: Options, *, scores: bool = False) -> Score:
    """A score function of radius (0) and tail of clearance and fidelity, (F, S') each.

    0 where the score is undefined.

    Args:
        options: checked; of these it reads ``confidence``.
        scores: also return what :func:`torch_mapss.core.decomposition.decomposition_scores` does.
    """
    quantile = NormalDist().inv_cdf(0.5 + options.confidence / 2.0)

    @torch.no_grad()
    def score(points: Points, settings: Settings, may_sync: bool) -> Scored:
        given, graphs, again = scored_graphs(points, settings, may_sync)
        found = given if scores else {}
        for name, error in _standard_errors(graphs, points, settings).items():
            defined = given[f"{name}_defined"]
            half = (quantile * error).clamp(max=1.0).reshape(defined.shape)
            tail = torch.where(defined, half, 0.0)
            found = {f"{name}_radius": torch.zeros_like(tail), f"{name}_tail": tail, **found}
        return found, again

    return score


def _standard_errors(graphs: Graphs, points: Points, settings: Settings) -> dict[str, Tensor]:
    """Of clearance and fidelity (G,), in batches of graphs of bounded memory."""
    (g, n), s, p = graphs.present.shape, points.sources, points.members
    members = graphs.present[:, n - s * p :].unflatten(1, (s, p))
    left_out = torch.eye(s * p, dtype=torch.bool, device=members.device)
    left_out = torch.nn.functional.pad(left_out, (n - s * p, 0))  # the distortions come last
    size = max(1, BATCH_BYTES // (8 * 6 * s * p * n * (1 + graphs.foreign.shape[-1])))
    errors: dict[str, list[Tensor]] = {"clearance": [], "fidelity": []}
    for first in range(0, max(g, 1), size):
        part = slice(first, first + size)
        some = Graphs(*(x[part] for x in graphs))
        keep = some.present.unsqueeze(1) & ~left_out
        found = decomposed(some, keep, settings.alpha, int(settings.time))
        fidelity = (1.0 - found.distortion_ratio).clamp(min=0.0)
        for name, values in (("clearance", found.clearance), ("fidelity", fidelity)):
            errors[name].append(_jackknife(values.unflatten(1, (s, p)), members[part]))
    return {name: torch.cat(found) for name, found in errors.items()}


def _jackknife(values: Tensor, members: Tensor) -> Tensor:
    """Standard error (G,) of scores (G, S, P), each without one of the present ``members``."""
    count = members.sum(-1).clamp(min=1)
    mean = torch.where(members, values, 0.0).sum(-1) / count
    squares = torch.where(members, values - mean.unsqueeze(-1), 0.0).square().sum(-1)
    return (squares * (count - 1) / count).sqrt().sum(-1)
