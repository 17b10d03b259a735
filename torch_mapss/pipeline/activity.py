"""Active sources, and the frames in which estimates are scored: decided only here."""

from __future__ import annotations

from torch import Tensor

from torch_mapss.core.points import LEAST_ACTIVE


def active_sources(audible: Tensor, valid: Tensor) -> Tensor:
    """(b, S, F) bool: where a source is active, in frames in which all sources are valid.

    Args:
        audible: (b, S, F) bool, where a source is loud enough by itself.
        valid: (b, S, F) bool, where a source has neither non-finite samples nor embeddings.
    """
    return audible & valid.all(1, keepdim=True)


def frames_to_score(active: Tensor) -> tuple[Tensor, Tensor]:
    """Frames in which estimates are scored, from ``active`` (b, S, F).

    Returns:
        (n, 2) int64 item and frame with at least two active sources; and (m, 2) int64 item and
        frame in which one source is active and another one pauses, where only leakage is scored. A
        source that is silent throughout has no pauses.
    """
    count = active.sum(1)
    several_play = active.any(-1).sum(-1) >= LEAST_ACTIVE  # (b,)
    pauses = (count == 1) & several_play.unsqueeze(-1)
    return (count >= LEAST_ACTIVE).nonzero(), pauses.nonzero()
