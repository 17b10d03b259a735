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

``benchmarks/coverage.py`` measures how often both hold against other draws of a bank.
"""

from __future__ import annotations

from statistics import NormalDist
from typing import NamedTuple

import torch
from torch import Tensor

from torch_mapss.bounds.settings import BoundSettings
from torch_mapss.core.decomposition import Graphs, decomposed, scored_graphs, spread
from torch_mapss.core.frame_batches import Score, Scored
from torch_mapss.core.points import Points
from torch_mapss.core.settings import Settings

BATCH_BYTES = 2**26  # working memory for all versions of a batch of graphs


class LeftOut(NamedTuple):
    """Scores of frames with each member of the bank left out, or their sums over frames."""

    # (..., S', S, P) each
    clearance_left_out: Tensor  # 0 where clearance is undefined
    distortion_left_out: Tensor  # squares of 1 - F; 0 where fidelity is undefined
    members_left_out: Tensor  # bool, present in the graph; or the number of such frames


def decomposition_errors(
    options: BoundSettings, *, scores: bool = False, left_out: bool = False
) -> Score:
    """Make a score function for radius (0) and tail of clearance and fidelity, (F, S') each.

    0 where the score is undefined.

    Args:
        options: checked options, of which ``confidence`` is used.
        scores: also return the result of
            :func:`torch_mapss.core.decomposition.decomposition_scores`.
        left_out: also return the fields of :class:`LeftOut`, for the half-width of an utterance.
    """

    @torch.no_grad()
    def score(points: Points, settings: Settings, may_sync: bool) -> Scored:
        values_by_name, graphs, needs_values = scored_graphs(points, settings, may_sync)
        without = _left_out(graphs, points, settings)
        fidelity = 1.0 - without.distortion_left_out.sqrt()
        errors: dict[str, Tensor] = {}
        for name, values in (("clearance", without.clearance_left_out), ("fidelity", fidelity)):
            defined = values_by_name[f"{name}_defined"]
            half_width = _half_width(values, without.members_left_out, options.confidence)
            tail = torch.where(defined, half_width, 0.0)
            errors |= {f"{name}_radius": torch.zeros_like(tail), f"{name}_tail": tail}
        if left_out:
            errors |= without._asdict()
        return {**errors, **(values_by_name if scores else {})}, needs_values

    return score


def utterance_half_widths(
    sums: LeftOut, clearance_frames: Tensor, fidelity_frames: Tensor, confidence: float
) -> tuple[Tensor, Tensor]:
    """Half-widths (..., S') of utterance clearance and fidelity; NaN where no frame is defined.

    Args:
        sums: sums over the frames of each utterance, (..., S', S, P).
        clearance_frames, fidelity_frames: (..., S') number of frames in which each score is
            defined.
        confidence: in (0, 1).
    """
    members = sums.members_left_out > 0
    half_widths = []
    for total, frames in (
        (sums.clearance_left_out, clearance_frames),
        (sums.distortion_left_out, fidelity_frames),
    ):
        mean = total / frames.clamp(min=1)[..., None, None]
        pooled = 1.0 - mean.sqrt() if total is sums.distortion_left_out else mean
        half_width = _half_width(pooled, members, confidence)
        half_widths.append(torch.where(frames > 0, half_width, torch.nan))
    return half_widths[0], half_widths[1]


def _left_out(graphs: Graphs, points: Points, settings: Settings) -> LeftOut:
    """The scores of frames (F, S', S, P) without each member, in batches of bounded memory."""
    (g, n), s, p = graphs.present.shape, points.sources, points.members
    single = torch.eye(s * p, dtype=torch.bool, device=graphs.present.device)
    single = torch.nn.functional.pad(single, (n - s * p, 0))  # the distortions come last
    size = max(1, BATCH_BYTES // (8 * 6 * s * p * n * (1 + graphs.foreign.shape[-1])))
    clearances, distortions = [], []
    for begin in range(0, max(g, 1), size):
        batch = Graphs(*(x[begin : begin + size] for x in graphs))
        keep = batch.present.unsqueeze(1) & ~single
        scores = decomposed(batch, keep, settings.alpha, int(settings.time))
        clearances.append(scores.clearance)
        distorted = scores.distortion_ratio.clamp(max=1.0).square()
        distortions.append(torch.where(scores.fidelity_defined, distorted, 0.0))
    members = graphs.present[:, n - s * p :]
    tensors = torch.cat(clearances), torch.cat(distortions), members
    return LeftOut(*(spread(x, graphs.flat_index, points).unflatten(-1, (s, p)) for x in tensors))


def _half_width(values: Tensor, members: Tensor, confidence: float) -> Tensor:
    """Jackknife half-width (...) of scores (..., S, P), each without one of the ``members``."""
    count = members.sum(-1).clamp(min=1)
    mean = torch.where(members, values, 0.0).sum(-1) / count
    squares = torch.where(members, values - mean.unsqueeze(-1), 0.0).square().sum(-1)
    error = (squares * (count - 1) / count).sqrt().sum(-1)
    return (NormalDist().inv_cdf(0.5 + confidence / 2.0) * error).clamp(max=1.0)
