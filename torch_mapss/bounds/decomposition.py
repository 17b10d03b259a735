"""Half-widths of clearance and fidelity: what the choice of distortions does to them.

Both read distances in the whole map, so nothing is cut off: the radius is 0. Their place on the
map depends on the bank. The jackknife leaves the members out in turn, on the same kernel (so with
the same bandwidth), and takes the sources as independent:

    var = sum over sources of (n - 1)/n * sum over its n members of (score without it - mean)^2

The half-width is the standard error times the normal quantile, at most 1. It claims no other error.
``benchmarks/coverage.py`` measures how often it holds against other draws of a bank.
"""

from __future__ import annotations

from statistics import NormalDist

import torch
from torch import Tensor

from torch_mapss.core.decomposition import Graphs, decomposed, output_graphs, whole_steps
from torch_mapss.core.points import Points, presence
from torch_mapss.core.settings import Settings

BATCH_BYTES = 2**26  # working memory of the versions of a batch of graphs


@torch.no_grad()
def decomposition_widths(
    points: Points, settings: Settings, may_sync: bool, *, confidence: float = 0.95
) -> tuple[dict[str, Tensor], Tensor | None]:
    """Half-widths ``clearance`` and ``fidelity`` (F, S'); a score function of ``frame_batches``.

    0 where the score is undefined.
    """
    steps = whole_steps(settings.time)
    quantile = NormalDist().inv_cdf(0.5 + confidence / 2.0)
    with torch.autocast(points.device.type, enabled=False):
        graphs = output_graphs(points, may_sync)
        members = _members(points)
        widths = _widths(graphs, members, settings.alpha, steps)
    shape = points.frames, len(points.attributed)
    found = {name: (quantile * w).clamp(max=1.0).reshape(shape) for name, w in widths.items()}
    return found, graphs.again


def _members(points: Points) -> Tensor:
    """(G, S, P) bool, the distortions in the graph of every output."""
    _, present = presence(points)
    members = present[..., 1:].unsqueeze(1)
    return members.expand(-1, len(points.attributed), -1, -1).flatten(0, 1)


def _widths(graphs: Graphs, members: Tensor, alpha: float, steps: int) -> dict[str, Tensor]:
    """Standard errors (G,)."""
    g, n = graphs.present.shape
    s, p = members.shape[1:]
    rows = 1 + graphs.foreign.shape[-1]
    size = max(1, BATCH_BYTES // (8 * 6 * s * p * rows * n))
    errors: dict[str, list[Tensor]] = {"clearance": [], "fidelity": []}
    left_out = torch.eye(s * p, dtype=torch.bool, device=members.device)
    left_out = torch.nn.functional.pad(left_out, (n - s * p, 0))  # the distortions come last
    for first in range(0, max(g, 1), size):
        part = slice(first, first + size)
        some = graphs._replace(
            kernel=graphs.kernel[part],
            present=graphs.present[part],
            own=graphs.own[part],
            foreign=graphs.foreign[part],
            defined=graphs.defined[part],
        )
        keep = some.present.unsqueeze(1) & ~left_out
        scores = decomposed(some, keep, alpha, steps)
        whole = decomposed(some, some.present.unsqueeze(1), alpha, steps)
        linear = (1.0 - scores.distortion_ratio).clamp(min=0.0)
        for name, values, defined in (
            ("clearance", scores.clearance, whole.clearance_defined),
            ("fidelity", linear, whole.fidelity_defined),
        ):
            error = _jackknife(values.unflatten(1, (s, p)), members[part])
            errors[name].append(torch.where(defined.squeeze(1), error, 0.0))
    return {name: torch.cat(found) for name, found in errors.items()}


def _jackknife(values: Tensor, members: Tensor) -> Tensor:
    """Standard error (G,) of scores (G, S, P), each without one of the present ``members``."""
    count = members.sum(-1).clamp(min=1)
    mean = torch.where(members, values, 0.0).sum(-1) / count
    squares = torch.where(members, values - mean.unsqueeze(-1), 0.0).square().sum(-1)
    return (squares * (count - 1) / count).sum(-1).sqrt()
