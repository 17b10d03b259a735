"""Frames -> utterance: the pooling of the paper [app:agg], over the frames that are scored.

A leaf: torch only. Utterances without any scored frame give NaN, and take no part in gradients.
"""

from __future__ import annotations

import math

import torch
from torch import Tensor

from torch_mapss import _checks


def _frames_first(frames: Tensor, active: Tensor | None) -> tuple[Tensor, Tensor]:
    _checks.check_floating(frames, "frames")
    if frames.ndim < 1:
        raise ValueError("frames must have shape (..., F), got a scalar.")
    frames = _checks.lifted(frames)
    if active is None:
        return frames, torch.ones_like(frames, dtype=torch.bool)
    return frames, _checks.check_bool(active, "active", tuple(frames.shape))


def masked_mean(values: Tensor, active: Tensor) -> Tensor:
    """Mean along the last axis where ``active``; NaN (without gradient) where nowhere is."""
    count = active.sum(-1)
    total = torch.where(active, values, 0.0).sum(-1)
    mean = total / count.clamp(min=1)
    return torch.where(count > 0, mean, torch.nan)


def pool_match(frames: Tensor, active: Tensor | None = None, log: bool = False) -> Tensor:
    """Utterance PM: the mean over active frames [eq:avg_pooling_pm].

    Args:
        frames: (..., F) PM of every frame in [0, 1], or log PM where ``log``.
        active: (..., F) bool, frames that count; all by default.
        log: ``frames`` are log PM; their mean of logs is returned. PM saturates at 0 on audible
            distortion, its log keeps ranking.

    Returns:
        (...) mean PM in [0, 1], or mean log PM; NaN where no frame is active.

    Raises:
        TypeError: frames not floating point or active not bool.
        ValueError: shapes that do not fit.
    """
    del log  # the same mean; the argument states which of the two was handed in
    frames, active = _frames_first(frames, active)
    return masked_mean(frames, active)


def pool_separation(
    frames: Tensor,
    active: Tensor | None = None,
    window: int = 20,
    hop: int = 10,
    p: float = 6,
) -> Tensor:
    r"""Utterance PS: PESQ-like windows over the active frames [eq:pesq_pooling_ps].

    Active frames are joined, ℓ_m is the p-mean over window m, ℓ their root mean square, and the
    score :math:`0.999 + 4/(1 + \exp(-1.3669\,ℓ + 3.8224))`. There are
    ⌊(F_i - W)/H⌋ + 1 windows (the paper prints one less and so loses the last); fewer than W
    frames are one window of their own.

    Args:
        frames: (..., F) PS of every frame in [0, 1].
        active: (..., F) bool, frames that count; all by default.
        window: W in frames. PESQ's 20; the paper gives none.
        hop: H in frames.
        p: exponent of the mean. 6 favours the high scores of a window.

    Returns:
        (...) in [1.085, 1.315]; NaN where no frame is active.

    Raises:
        TypeError: frames not floating point or active not bool.
        ValueError: shapes that do not fit, window, hop or p below 1.
    """
    if window < 1 or hop < 1 or p < 1:
        raise ValueError(
            f"window and hop must be at least 1 frame and p at least 1, got window={window}, "
            f"hop={hop}, p={p}."
        )
    frames, active = _frames_first(frames, active)
    if frames.shape[-1] == 0:
        return torch.full(frames.shape[:-1], torch.nan, dtype=frames.dtype, device=frames.device)
    level = _window_level(frames, active, window, hop, p)
    score = 0.999 + 4.0 / (1.0 + torch.exp(-1.3669 * level + 3.8224))
    return torch.where(active.any(-1), score, torch.nan)


def pesq_slope(level: Tensor) -> Tensor:
    """∂s/∂u of s(u) = 0.999 + 4/(1 + exp(-1.3669 u + 3.8224)) at ``level``."""
    e = torch.exp(-1.3669 * level + 3.8224)
    return 4.0 * 1.3669 * e / (1.0 + e).square()


def window_weights(active: Tensor, window: int, hop: int) -> tuple[Tensor, Tensor]:
    """Which of the joined active frames fall in which window.

    Args:
        active: (..., F) bool.
        window: W.
        hop: H.

    Returns:
        Membership (..., windows, F) bool, and the number of windows of each utterance (...);
        windows beyond it are empty.
    """
    count = active.sum(-1)
    windows = ((count - window).clamp(min=0) // hop + 1).clamp(min=1)
    most = max(1, (active.shape[-1] - window) // hop + 1)
    position = active.cumsum(-1) - 1
    start = torch.arange(most, device=active.device) * hop
    inside = (position.unsqueeze(-2) >= start[:, None]) & (
        position.unsqueeze(-2) < start[:, None] + window
    )
    live = torch.arange(most, device=active.device) < windows.unsqueeze(-1)
    return inside & active.unsqueeze(-2) & live.unsqueeze(-1), windows


def _window_level(frames: Tensor, active: Tensor, window: int, hop: int, p: float) -> Tensor:
    """ℓ: root mean square over windows of the p-mean in each."""
    inside, windows = window_weights(active, window, hop)
    size = inside.sum(-1).clamp(min=1)
    # The p-mean has an infinite slope where all its frames are 0: mask the input of the power.
    power = torch.where(inside, frames.unsqueeze(-2), 0.0).abs().pow(p).sum(-1) / size
    positive = power > 0.0
    mean = torch.where(positive, torch.where(positive, power, 1.0).pow(1.0 / p), 0.0)
    square = mean.square().sum(-1) / windows
    some = square > 0.0
    return torch.where(some, torch.where(some, square, 1.0).sqrt(), 0.0)


PESQ_RANGE = tuple(0.999 + 4.0 / (1.0 + math.exp(-1.3669 * u + 3.8224)) for u in (0.0, 1.0))
