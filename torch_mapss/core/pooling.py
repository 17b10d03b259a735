"""Frames -> utterance: the pooling of the paper [app:agg], over the frames that are scored.

Utterances without any scored frame give NaN, and take no part in gradients.
"""

from __future__ import annotations

import torch
from torch import Tensor

from torch_mapss.core import checks


def _frames_first(frames: Tensor, active: Tensor | None) -> tuple[Tensor, Tensor]:
    checks.check_floating(frames, "frames")
    if frames.ndim < 1:
        raise ValueError("frames must have shape (..., F), got a scalar.")
    frames = checks.lifted(frames)
    if active is None:
        return frames, torch.ones_like(frames, dtype=torch.bool)
    return frames, checks.check_bool(active, "active", tuple(frames.shape))


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
        (...) in [1.085, 1.315]; NaN where no frame is active, or one that is has no finite score.

    Raises:
        TypeError: frames not floating point or active not bool; window or hop not whole, p no
            number.
        ValueError: shapes that do not fit; window, hop or p below 1, p not finite.
    """
    window, hop, p = check_windows(window, hop, p)
    frames, active = _frames_first(frames, active)
    if frames.shape[-1] == 0:
        return torch.full(frames.shape[:-1], torch.nan, dtype=frames.dtype, device=frames.device)
    score = pesq_score(window_level(frames, active, window, hop, p))
    return torch.where(active.any(-1), score, torch.nan)


def check_windows(window: int, hop: int, p: float) -> tuple[int, int, float]:
    """The three settings of the pooling, in range.

    Raises:
        TypeError: window or hop not whole, p no number.
        ValueError: one of them below 1, p not finite.
    """
    p = checks.check_real(p, "p")
    if p < 1.0:
        raise ValueError(f"p must be at least 1, got {p}. PESQ's is 6.")
    return checks.check_whole(window, "window", 1), checks.check_whole(hop, "hop", 1), p


def pesq_score(level: Tensor) -> Tensor:
    """s(u) = 0.999 + 4/(1 + exp(-1.3669 u + 3.8224)) [eq:pesq_pooling_ps]."""
    return 0.999 + 4.0 / (1.0 + torch.exp(-1.3669 * level + 3.8224))


def pesq_slope(level: Tensor) -> Tensor:
    """∂s/∂u at ``level``, see :func:`pesq_score`."""
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


def window_means(values: Tensor, inside: Tensor, p: float) -> Tensor:
    """p-mean (..., windows) of ``values`` (..., F), at least 0, in every window.

    A p-mean scales with its values: as shares of the largest none of their powers underflows. Its
    slope is infinite where all are 0, and 0 here.
    """
    members = torch.where(inside, values.unsqueeze(-2), 0.0)
    largest = members.detach().amax(-1, keepdim=True)
    some = largest != 0.0  # NaN is some
    share = torch.where(some, members / torch.where(some, largest, 1.0), 1.0)
    power = torch.where(inside, share, 0.0).pow(p).sum(-1) / inside.sum(-1).clamp(min=1)
    some = some.squeeze(-1)
    mean = largest.squeeze(-1) * torch.where(some, power, 1.0).pow(1.0 / p)
    return torch.where(some, mean, 0.0)


def window_level(frames: Tensor, active: Tensor, window: int, hop: int, p: float) -> Tensor:
    """u: root mean square over windows of the p-mean in each."""
    inside, windows = window_weights(active, window, hop)
    square = window_means(frames.abs(), inside, p).square().sum(-1) / windows
    some = square != 0.0
    return torch.where(some, torch.where(some, square, 1.0).sqrt(), 0.0)


PESQ_RANGE = tuple(pesq_score(torch.tensor([0.0, 1.0], dtype=torch.float64)).tolist())
