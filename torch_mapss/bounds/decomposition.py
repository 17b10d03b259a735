"""Half-widths of clearance and fidelity over the choice of distortions, by jackknife.

Both scores use distances in the entire map, so no coordinate is discarded and the radius is 0. The
position of a point on the map depends on the bank. The jackknife leaves each member out in turn, on
the same kernel (and so with the same bandwidth). The standard errors of the sources are added, not
their squares: all sources have the same kinds of distortion, so their errors do not average out.

    error = sum over sources of sqrt((n - 1) mean over its n members of (score without it - mean)^2)

The half-width is this error times the normal quantile, at most 1. It covers no other source of
error.

**For an utterance** the pooled score takes the place of the frame's. All frames use the same
distortions, so a member is left out of all frames at once. The error therefore does not shrink with
the number of frames, as it would if each frame drew its own distortions.

``benchmarks/coverage.py`` measures how often both hold against other draws of a distortion bank.
"""

from __future__ import annotations

from statistics import NormalDist

import torch
from torch import Tensor

from torch_mapss.bounds.settings import BoundSettings
from torch_mapss.core.decomposition import Graphs, checked_steps, decomposed, output_graphs, spread
from torch_mapss.core.frame_batches import Scored, ScoreFunction
from torch_mapss.core.points import Points
from torch_mapss.core.settings import MapSettings

BATCH_BYTES = 2**26  # working memory for all versions of a batch of graphs


#: Names of the scores of frames with each member of the bank left out, (..., S', S, P) each:
#: clearance, 0 where it is undefined; the square of 1 - F, 0 where fidelity is undefined; and bool,
#: whether the member is present in the graph.
LEFT_OUT = ("clearance_left_out", "distortion_left_out", "members_left_out")


def decomposition_errors(
    options: BoundSettings, *, scores: bool = False, left_out: bool = False
) -> ScoreFunction:
    """Make a score function for radius (0) and tail of clearance and fidelity, (F, S') each.

    0 where the score is undefined.

    Args:
        options: checked options; only ``confidence`` is used.
        scores: also return the result of
            :func:`torch_mapss.core.decomposition.decomposition_scores`.
        left_out: also return the scores of ``LEFT_OUT``, for the half-width of an utterance.
    """

    @torch.no_grad()
    def score(points: Points, settings: MapSettings, may_sync: bool) -> Scored:
        steps = checked_steps(settings.time, points.references.shape[1])
        graphs, needs_values = output_graphs(points, may_sync)
        complete = decomposed(graphs, graphs.present.unsqueeze(1), settings.alpha, steps)
        values_by_name = {
            name: spread(values.squeeze(1), graphs.flat_index, points)
            for name, values in complete.items()
        }
        without = _left_out(graphs, points, settings.alpha, steps)
        clearance, squares, members = without.values()
        errors: dict[str, Tensor] = {}
        for name, values in (("clearance", clearance), ("fidelity", 1.0 - squares.sqrt())):
            defined = values_by_name[f"{name}_defined"]
            half_width = _half_width(values, members, options.confidence)
            tail = torch.where(defined, half_width, 0.0)
            errors |= {f"{name}_radius": torch.zeros_like(tail), f"{name}_tail": tail}
        if left_out:
            errors |= without
        return {**errors, **(values_by_name if scores else {})}, needs_values

    return score


def utterance_half_widths(
    sums: dict[str, Tensor], clearance_frames: Tensor, fidelity_frames: Tensor, confidence: float
) -> tuple[Tensor, Tensor]:
    """Half-widths (..., S') of utterance clearance and fidelity; NaN where no frame is defined.

    Args:
        sums: by the names of ``LEFT_OUT``, sums over the frames of each utterance (..., S', S, P).
        clearance_frames, fidelity_frames: (..., S') number of frames in which each score is
            defined.
        confidence: in (0, 1).
    """
    clearances, squares, members = (sums[name] for name in LEFT_OUT)
    clearance = clearances / clearance_frames.clamp(min=1)[..., None, None]
    fidelity = 1.0 - (squares / fidelity_frames.clamp(min=1)[..., None, None]).sqrt()
    clearance_width = _half_width(clearance, members > 0, confidence)
    fidelity_width = _half_width(fidelity, members > 0, confidence)
    return (
        torch.where(clearance_frames > 0, clearance_width, torch.nan),
        torch.where(fidelity_frames > 0, fidelity_width, torch.nan),
    )


def _left_out(graphs: Graphs, points: Points, alpha: float, steps: int) -> dict[str, Tensor]:
    """The scores of ``LEFT_OUT`` (F, S', S, P), in batches of bounded memory."""
    (g, n), (s, p) = graphs.present.shape, points.distortions.shape[1:3]
    single = torch.eye(s * p, dtype=torch.bool, device=graphs.present.device)
    single = torch.nn.functional.pad(single, (n - s * p, 0))  # the distortions come last
    size = max(1, BATCH_BYTES // (8 * 6 * s * p * n * (1 + graphs.foreign.shape[-1])))
    clearances, distortions = [], []
    for begin in range(0, max(g, 1), size):
        batch = Graphs(*(x[begin : begin + size] for x in graphs))
        keep = batch.present.unsqueeze(1) & ~single
        scores = decomposed(batch, keep, alpha, steps)
        clearances.append(scores["clearance"])
        distorted = scores["distortion_ratio"].clamp(max=1.0).square()
        distortions.append(torch.where(scores["fidelity_defined"], distorted, 0.0))
    members = graphs.present[:, n - s * p :]
    tensors = torch.cat(clearances), torch.cat(distortions), members
    by_output = (spread(x, graphs.flat_index, points).unflatten(-1, (s, p)) for x in tensors)
    return dict(zip(LEFT_OUT, by_output))


def _half_width(values: Tensor, members: Tensor, confidence: float) -> Tensor:
    """Jackknife half-width (...) of scores (..., S, P), each without one of the ``members``."""
    count = members.sum(-1).clamp(min=1)
    mean = torch.where(members, values, 0.0).sum(-1) / count
    squares = torch.where(members, values - mean.unsqueeze(-1), 0.0).square().sum(-1)
    error = (squares * (count - 1) / count).sqrt().sum(-1)
    return (NormalDist().inv_cdf(0.5 + confidence / 2.0) * error).clamp(max=1.0)
