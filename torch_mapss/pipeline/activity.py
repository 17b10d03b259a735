"""Active sources, the frames in which estimates are scored, and the sources in their graphs.

The pipeline decides each of these only here.
"""

from __future__ import annotations

from torch import Tensor

from torch_mapss.core import devices
from torch_mapss.core.points import LEAST_ACTIVE


def active_sources(audible: Tensor, valid: Tensor) -> Tensor:
    """(b, S, F) bool: where a source is active, in frames in which all sources are valid.

    Args:
        audible: (b, S, F) bool, where a source is loud enough by itself.
        valid: (b, S, F) bool, where a source has neither non-finite samples nor embeddings.
    """
    return audible & valid.all(1, keepdim=True)


def frames_to_score(active: Tensor) -> Tensor:
    """(n, 2) int64: item and frame of each scored frame, from ``active`` (b, S, F)."""
    return (active.sum(1) >= LEAST_ACTIVE).nonzero()


def frames_of_pauses(active: Tensor) -> Tensor:
    """(n, 2) int64: item and frame in which one source is active and another one pauses.

    Only leakage is scored there. A source that is silent throughout has no pauses.
    """
    several_play = active.any(-1).sum(-1) >= LEAST_ACTIVE  # (b,)
    return ((active.sum(1) == 1) & several_play.unsqueeze(-1)).nonzero()


def scored_estimates(active: Tensor, attributed: tuple[int, ...]) -> Tensor:
    """(n, S') bool: frames in which an estimate is scored, from ``active`` (n, S)."""
    enough = active.sum(-1, keepdim=True) >= LEAST_ACTIVE
    return devices.select(active, attributed, 1) & enough


def exposed_estimates(active: Tensor, plays: Tensor, attributed: tuple[int, ...]) -> Tensor:
    """(n, S') bool: frames in which another source can leak into an estimate.

    Args:
        active: (n, S) bool.
        plays: (n, S) bool, whether a source is active in any frame of the mixture.
        attributed: (S',) source of each estimate.
    """
    own_active, own_plays = (devices.select(x, attributed, 1) for x in (active, plays))
    return own_plays & (active.sum(-1, keepdim=True) > own_active)


def sources_in_graph(active: Tensor, has_pauses: bool) -> Tensor | None:
    """(n, S) bool: sources that enter the graph of each scored frame; None: all.

    None leads to batches without a mask, which are cheaper. With two sources, both are active in
    every frame without a pause. With more sources this would need a read of values, which is
    avoided on accelerators.
    """
    if active.shape[-1] == LEAST_ACTIVE and not has_pauses:
        return None
    if not devices.is_accelerator(active.device) and bool(active.all()):
        return None
    return active
