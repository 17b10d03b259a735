"""Frames -> utterance: the paper's pooling [app:agg] over the scored frames.

An utterance without a scored frame gives NaN and no gradient.
"""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor

from torch_mapss.core import checks
from torch_mapss.core.autograd import lifted, safe_sqrt

LEAST_DISTANCE = 1e-6


def _frames_first(frames: Tensor, active: Tensor | None) -> tuple[Tensor, Tensor]:
    checks.check_floating(frames, "frames")
    if frames.ndim < 1:
        raise ValueError("frames must have shape (..., F), got a scalar.")
    frames = lifted(frames)
    if active is None:
        return frames, torch.ones_like(frames, dtype=torch.bool)
    return frames, checks.check_bool(active, "active", tuple(frames.shape))


def masked_mean(values: Tensor, active: Tensor) -> Tensor:
    """Mean of the ``active`` entries along the last axis; NaN (without gradient) if none is."""
    count = active.sum(-1)
    total = torch.where(active, values, 0.0).sum(-1)
    mean = total / count.clamp(min=1)
    return torch.where(count > 0, mean, torch.nan)


def pool_match(frames: Tensor, active: Tensor | None = None, log: bool = False) -> Tensor:
    """Utterance PM: the mean over active frames [eq:avg_pooling_pm].

    Args:
        frames: (..., F) PM of every frame in [0, 1], or log PM if ``log``.
        active: (..., F) bool, frames that count; all by default.
        log: ``frames`` are log PM, and the mean of logs is returned. PM saturates at 0 on audible
            distortion; its log still ranks.

    Returns:
        (...) mean PM in [0, 1], or mean log PM; NaN where no frame is active.

    Raises:
        TypeError: frames not floating point or active not bool.
        ValueError: shapes that do not fit.
    """
    del log  # the mean is the same for both; the argument documents the call
    frames, active = _frames_first(frames, active)
    return masked_mean(frames, active)


def pool_log_match_compressed(frames: Tensor, active: Tensor | None = None) -> Tensor:
    """Utterance log PM in which no single frame outweighs the others: mean of -log(1 - log PM).

    The log PM of a bad frame is -100 or -14,000, and -708 (in place of log 0) where a cluster is
    collapsed. A few such frames decide a plain mean; here each counts by its order of magnitude.
    This is what :class:`torch_mapss.MatchLoss` trains with ``mode="log1p"``, up to the sign.

    Args:
        frames: (..., F) log PM of every frame, at most 0.
        active: (..., F) bool, frames that count; all by default.

    Returns:
        (...) at most 0; 0 if PM is 1 everywhere; NaN where no frame is active.

    Raises:
        TypeError, ValueError: as :func:`pool_match`.
    """
    frames, active = _frames_first(frames, active)
    # Masked before the logarithm, so that the value in an undefined frame cannot spoil a gradient.
    return -masked_mean(torch.log1p(-torch.where(active, frames, 0.0)), active)


def pool_fidelity(
    frames: Tensor, active: Tensor | None = None, defined: Tensor | None = None
) -> Tensor:
    """Utterance fidelity: 1 - RMS(1 - F) over the defined frames, so that bad moments weigh more.

    Args:
        frames: (..., F) fidelity of every frame in [0, 1].
        active: (..., F) bool, frames that count; all by default.
        defined: (..., F) bool, where fidelity is defined (clearance at least 0.1); ``active`` by
            default.

    Returns:
        (...) in [0, 1]; NaN where no frame counts, or where fidelity is undefined in more than half
        of the frames that do. The gradient is 0 where every frame is 1.

    Raises:
        TypeError, ValueError: as :func:`pool_match`.
    """
    frames, active = _frames_first(frames, active)
    if defined is None:
        defined = active
    defined = checks.check_bool(defined, "defined", tuple(frames.shape)) & active
    enough = 2 * defined.sum(-1) >= active.sum(-1).clamp(min=1)
    square = masked_mean((1.0 - torch.where(defined, frames, 1.0)).square(), defined)
    return torch.where(enough, 1.0 - safe_sqrt(torch.where(enough, square, 0.0)), torch.nan)


def pool_log_distance(frames: Tensor, active: Tensor | None = None) -> Tensor:
    """Utterance log distance: the mean logarithm of distances, which are clamped to at least 1e-6.

    Args:
        frames: (..., F) distances, at least 0. A distance below 1e-6 is rounding, and its logarithm
            must not outweigh all others.
        active: (..., F) bool, frames that count; all by default.

    Returns:
        (...); NaN where no frame is active.

    Raises:
        TypeError, ValueError: as :func:`pool_match`.
    """
    frames, active = _frames_first(frames, active)
    return masked_mean(frames.clamp(min=LEAST_DISTANCE).log(), active)


def pool_power_db(frames: Tensor, active: Tensor | None = None) -> Tensor:
    """Level of the mean power of frames, from the frames' levels; pools ``bleed_db``.

    Args:
        frames: (..., F) levels in dB.
        active: (..., F) bool, frames that count; all by default.

    Returns:
        (...) dB, 10 log10 of the mean of 10^(x/10); NaN where no frame is active.

    Raises:
        TypeError, ValueError: as :func:`pool_match`.
    """
    frames, active = _frames_first(frames, active)
    if frames.shape[-1] == 0:  # it has no largest value
        return torch.full(frames.shape[:-1], torch.nan, dtype=frames.dtype, device=frames.device)
    bels = torch.where(active, frames, -torch.inf) / 10.0
    largest = bels.detach().amax(-1, keepdim=True).clamp(min=-1e3)  # no power overflows then
    power = masked_mean(torch.pow(10.0, bels - largest), active)
    return 10.0 * (torch.log10(power) + largest.squeeze(-1))


def pool_separation(
    frames: Tensor, active: Tensor | None = None, window: int = 20, hop: int = 10, p: float = 6
) -> Tensor:
    r"""Utterance PS: PESQ-like windows over the active frames [eq:pesq_pooling_ps].

    Active frames are joined, ℓ_m is the p-mean over window m, ℓ their root mean square, and the
    score :math:`0.999 + 4/(1 + \exp(-1.3669\,ℓ + 3.8224))`. There are ⌊(F_i - W)/H⌋ + 1 windows
    (the paper prints one less and so loses the last); fewer than W frames make one shorter window.

    Args:
        frames: (..., F) PS of every frame in [0, 1].
        active: (..., F) bool, frames that count; all by default.
        window: W in frames. 20 as in PESQ; the paper does not state it.
        hop: H in frames.
        p: exponent of the mean; 6 favours the high scores of a window.

    Returns:
        (...) in [1.085, 1.315]; NaN where no frame is active, or where an active frame has no
        finite score.

    Raises:
        TypeError: frames not floating point or active not bool; window or hop not whole, p not a
            number.
        ValueError: shapes that do not fit; window, hop or p below 1, p not finite.
    """
    window, hop, p = check_windows(window, hop, p)
    frames, active = _frames_first(frames, active)
    if frames.shape[-1] == 0:
        return torch.full(frames.shape[:-1], torch.nan, dtype=frames.dtype, device=frames.device)
    score = pesq_score(window_level(windows_of(frames.abs(), active, window, hop), p))
    return torch.where(active.any(-1), score, torch.nan)


def check_windows(window: int, hop: int, p: float) -> tuple[int, int, float]:
    """Check the three settings of the pooling and return them as numbers.

    Raises:
        TypeError: window or hop is not whole, or p is not a number.
        ValueError: one of them is below 1, or p is not finite.
    """
    p = checks.check_real(p, "p", "[1, inf)", "PESQ's is 6.")
    return checks.check_whole(window, "window", 1), checks.check_whole(hop, "hop", 1), p


def pesq_score(level: Tensor) -> Tensor:
    """s(u) = 0.999 + 4/(1 + exp(-1.3669 u + 3.8224)) [eq:pesq_pooling_ps]."""
    return 0.999 + 4.0 / (1.0 + torch.exp(-1.3669 * level + 3.8224))


def pesq_slope(level: Tensor) -> Tensor:
    """Derivative ∂s/∂u of :func:`pesq_score` at ``level``."""
    e = torch.exp(-1.3669 * level + 3.8224)
    return 4.0 * 1.3669 * e / (1.0 + e).square()


class Windows(NamedTuple):
    """Windows of each utterance over its joined active frames; memory is linear in the frames."""

    values: Tensor  # (..., windows, W)
    inside: Tensor  # (..., windows, W) bool; windows beyond an utterance's count are empty
    number: Tensor  # (...) int64, number of windows of each utterance
    position: Tensor  # (windows, W) index among the joined frames

    def size(self) -> Tensor:
        """(..., windows) frames in each window, at least 1."""
        return self.inside.sum(-1).clamp(min=1)


def joined_order(active: Tensor) -> Tensor:
    """(..., F) indices of the active frames in order, then those of the others."""
    return (~active).to(torch.uint8).argsort(dim=-1, stable=True)


def windows_of(values: Tensor, active: Tensor, window: int, hop: int) -> Windows:
    """Windows of W frames, H apart, over the ``active`` (..., F) entries of values (..., F)."""
    frames = active.sum(-1)
    joined = values.gather(-1, joined_order(active))
    joined = torch.nn.functional.pad(joined, (0, max(0, window - joined.shape[-1])))
    values_by_window = joined.unfold(-1, window, hop)
    index = torch.arange(values_by_window.shape[-2], device=active.device)
    position = index.unsqueeze(-1) * hop + torch.arange(window, device=active.device)
    number = (frames - window).clamp(min=0) // hop + 1
    inside = (position < frames[..., None, None]) & (index < number.unsqueeze(-1)).unsqueeze(-1)
    return Windows(torch.where(inside, values_by_window, 0.0), inside, number, position)


def window_means(windows: Windows, p: float) -> Tensor:
    """p-mean (..., windows) of the values in each window; values are at least 0.

    A p-mean scales with its values, so it is computed from shares of the largest, whose powers do
    not underflow. Where all values are 0 the slope would be infinite; it is 0 here.
    """
    values = windows.values
    largest = values.detach().amax(-1, keepdim=True)
    nonzero = largest != 0.0  # NaN counts as non-zero, so it propagates
    share = torch.where(nonzero, values / torch.where(nonzero, largest, 1.0), 1.0)
    power = torch.where(windows.inside, share, 0.0).pow(p).sum(-1) / windows.size()
    nonzero = nonzero.squeeze(-1)
    mean = largest.squeeze(-1) * torch.where(nonzero, power, 1.0).pow(1.0 / p)
    return torch.where(nonzero, mean, 0.0)


def window_level(windows: Windows, p: float) -> Tensor:
    """u (...): root mean square of the windows' p-means."""
    return safe_sqrt(window_means(windows, p).square().sum(-1) / windows.number)


PESQ_RANGE = tuple(pesq_score(torch.tensor([0.0, 1.0], dtype=torch.float64, device="cpu")).tolist())
