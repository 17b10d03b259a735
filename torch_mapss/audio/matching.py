"""Assignment of estimates to references by SI-SDR, and their lag by cross-correlation."""

from __future__ import annotations

import math
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor

from torch_mapss.audio.loudness import check_samples, unit_peak
from torch_mapss.audio.waveforms import with_samples
from torch_mapss.core.checks import check_whole
from torch_mapss.core.devices import wide
from torch_mapss.core.lengths import fast_length

# Share of an estimate's energy that float64 rounding can hide. It limits SI-SDR to +-10 log10 of
# itself, +-156.5 dB.
_EPSILON = torch.finfo(torch.float64).eps


def si_sdr(estimates: Tensor, references: Tensor) -> Tensor:
    """Scale-invariant signal-to-distortion ratio, means removed (Le Roux et al., 2019).

    With e and s the signals without their means and a = <e, s> / <s, s>, it is 10 log10(|a s|^2 /
    |e - a s|^2). Both energies are limited to at least 2.2e-16 of |e|^2, so values lie within
    +-156.5 dB; a silent (or constant) estimate or reference gives the lower end, with zero
    gradient. Computed in float64.

    Args:
        estimates: `(..., T)`.
        references: `(..., T)`, the same shape.

    Returns:
        `(...)` in dB, in the wider dtype of the two (at least float32). Never NaN.

    Raises:
        TypeError: an argument is not a floating-point tensor.
        ValueError: shapes differ, there are no samples, or samples are not finite.
    """
    estimates, references = _alike(estimates, references)
    e, e_silent = _centred(estimates, "estimates")
    s, s_silent = _centred(references, "references")
    target = (e * s).sum(-1, keepdim=True) * s  # |s| = 1
    ratio = _energy_ratio(target.square().sum(-1), (e - target).square().sum(-1))
    ratio = torch.where(e_silent | s_silent, 10 * math.log10(_EPSILON), ratio)
    return ratio.to(torch.promote_types(estimates.dtype, references.dtype)).to(estimates.device)


def _energy_ratio(target: Tensor, residual: Tensor) -> Tensor:
    return 10 * ((target + _EPSILON).log10() - (residual + _EPSILON).log10())


def _centred(wave: Tensor, name: str) -> tuple[Tensor, Tensor]:
    """`wave` without its mean at energy 1, float64; and `(...)` bool where it is constant (0)."""
    unit, _, _ = unit_peak(wide(check_samples(wave, name)))
    centred = unit - unit.mean(-1, keepdim=True)
    energy = centred.square().sum(-1, keepdim=True)
    # A constant may leave rounding noise of 1e-16 per sample instead of zero.
    silent = energy <= 1e-28 * unit.shape[-1]
    centred = torch.where(silent, 0.0, centred)
    return centred / torch.where(silent, 1.0, energy).sqrt(), silent.squeeze(-1)


def _alike(estimates: Tensor, references: Tensor) -> tuple[Tensor, Tensor]:
    """Check that both are waveforms of one shape, and return them."""
    estimates = with_samples(estimates, "estimates")
    references = with_samples(references, "references")
    if estimates.shape != references.shape:
        raise ValueError(
            f"estimates and references must have one shape, got {tuple(estimates.shape)} and "
            f"{tuple(references.shape)}. Pass one reference per estimate, in the same order."
        )
    return estimates, references


@torch.no_grad()
def match_sources(estimates: Tensor, references: Tensor) -> Tensor:
    """Assign each estimate to a reference, so that the total SI-SDR is largest.

    No two estimates get the same reference. A silent estimate fits every reference equally badly
    and takes what the others leave; a silent reference fits every estimate equally badly.

    Args:
        estimates: `(..., S', T)`, S' <= S.
        references: `(..., S, T)`, the same leading axes.

    Returns:
        `(..., S')` int64 on the device of `estimates`: indices into the S references.

    Raises:
        TypeError: an argument is not a floating-point tensor.
        ValueError: more estimates than references, other shapes that do not fit, no samples, or
            samples that are not finite.

    Example:
        >>> import torch
        >>> from torch_mapss.audio import match_sources
        >>> references = torch.eye(3, 8)
        >>> match_sources(references[[2, 0]], references)
        tensor([2, 0])
    """
    from scipy.optimize import linear_sum_assignment

    *leading, count, samples = (1, *with_samples(estimates, "estimates").shape)
    *reference_leading, sources, length = (1, *with_samples(references, "references").shape)
    fits = min(estimates.ndim, references.ndim) >= 2 and (leading, samples) == (
        reference_leading,
        length,
    )
    if not fits or count > sources:
        raise ValueError(
            "estimates (..., S', T) and references (..., S, T) may differ in the number of sources "
            f"only, S' at most S, got {tuple(estimates.shape)} and {tuple(references.shape)}. Pass "
            "the same items, cut to the same length; one signal is x[None]."
        )
    scores = pairwise_si_sdr(estimates, references).cpu().numpy()
    flat = scores.reshape(-1, *scores.shape[-2:])
    best = [linear_sum_assignment(item, maximize=True)[1] for item in flat]
    indices = np.asarray(best, dtype=np.int64).reshape(scores.shape[:-1])
    return torch.from_numpy(indices).to(estimates.device)


def pairwise_si_sdr(estimates: Tensor, references: Tensor) -> Tensor:
    """SI-SDR of each estimate with each reference, equal to `si_sdr` of every pair.

    With both signals at energy 1, |a s|^2 = <e, s>^2 =: c and |e - a s|^2 = 1 - c.

    Args:
        estimates: `(..., S', T)`.
        references: `(..., S, T)`, the same leading axes.

    Returns:
        `(..., S', S)` float64 in dB.

    Raises:
        TypeError: an argument is not a floating-point tensor.
        ValueError: no samples, or samples that are not finite.
    """
    e, e_silent = _centred(estimates, "estimates")
    s, s_silent = _centred(references, "references")
    shared = (e @ s.mT).square().clamp(max=1.0)
    silent = e_silent.unsqueeze(-1) | s_silent.unsqueeze(-2)
    return _energy_ratio(shared, 1 - shared).masked_fill(silent, 10 * math.log10(_EPSILON))


def is_constant(wave: Tensor) -> Tensor:
    """Whether signals are constant up to rounding: digital silence, or only an offset.

    Args:
        wave: `(..., T)`.

    Returns:
        `(...)` bool.
    """
    return _centred(wave, "wave")[1].to(wave.device)


class Lag(NamedTuple):
    """Lag of each estimate behind its reference, see :func:`estimate_lag`; fields are `(...)`."""

    samples: Tensor  # int64, positive: the estimate is late
    correlation: Tensor  # float64 in [0, 1], absolute cross-correlation at that lag
    unshifted: Tensor  # float64 in [0, 1], absolute cross-correlation at lag 0


# The peaks of a periodic signal, one every period, count as equal within this tolerance.
_EQUAL = 0.01
# Lower limit on the share of a signal's energy that lies in an overlap.
_LEAST_SHARE = 0.25


@torch.no_grad()
def estimate_lag(estimates: Tensor, references: Tensor, limit: int) -> Lag:
    """Lag of each estimate: the shift at which its cross-correlation with its reference peaks.

    With means removed,

        c(k) = |sum_t s(t) e(t + k)| / sqrt(E_s(k) E_e(k)),   |k| <= `limit`,

    where E_s and E_e are the energies of the parts that overlap at lag k, counted as at least a
    quarter of the signal's energy: otherwise a short, faint overlap would correlate with anything.
    The absolute value is used, since an inverted estimate has a negative peak. Of all peaks within
    1 % of the highest (a steady tone has one every period), the one closest to 0 is taken. Lags are
    whole samples; silent or constant signals have correlation 0 and lag 0.

    Args:
        estimates: `(..., T)`.
        references: `(..., T)`, the same shape.
        limit: longest lag to look for, in samples, in either direction.

    Returns:
        :class:`Lag`, on the device of `estimates`.

    Raises:
        TypeError: an argument is not a floating-point tensor, or `limit` not a whole number.
        ValueError: shapes differ, there are no samples, samples are not finite, or `limit` is
            negative.
    """
    estimates, references = _alike(estimates, references)
    limit = min(check_whole(limit, "limit", 0), estimates.shape[-1] - 1)
    e, _ = _centred(estimates, "estimates")
    s, _ = _centred(references, "references")
    shares = _overlap_energies(e, limit) * _overlap_energies(s, limit).flip(-1)
    size = (_cross_correlation(e, s, limit).abs() / shares.sqrt()).clamp(max=1.0)
    best = _first_peak(size)
    peak = size.gather(-1, best.unsqueeze(-1)).squeeze(-1)
    return Lag(*(x.to(estimates.device) for x in (best - limit, peak, size[..., limit])))


def _overlap_energies(x: Tensor, limit: int) -> Tensor:
    """Energy of x(t + k) over the t inside both signals, for k from -`limit` to `limit`.

    x has energy 1. At lag k >= 0 its first k samples have no partner, at k < 0 its last -k.
    """
    head = torch.nn.functional.pad(x[..., :limit].square().cumsum(-1), (1, 0))
    tail = x[..., x.shape[-1] - limit :].flip(-1).square().cumsum(-1).flip(-1)
    return (1.0 - torch.cat([tail, head], -1)).clamp(min=_LEAST_SHARE)


def _first_peak(size: Tensor) -> Tensor:
    """Index of the peak closest to the middle among those that count as highest."""
    rows = size.reshape(-1, 1, size.shape[-1])
    around = torch.nn.functional.max_pool1d(rows, 3, 1, 1).reshape(size.shape)
    highest = (size >= around) & (size >= (1.0 - _EQUAL) * size.amax(-1, keepdim=True))
    limit = size.shape[-1] // 2
    distance = torch.arange(-limit, limit + 1, device=size.device).abs()
    return torch.where(highest, distance, 2 * limit + 1).argmin(-1)


def _cross_correlation(e: Tensor, s: Tensor, limit: int) -> Tensor:
    """sum_t s(t) e(t + k) for k from -`limit` to `limit`, `(..., 2 limit + 1)`.

    In the spectrum of n >= T + limit points the product conj(S) E is their circular correlation,
    where lags up to `limit` are free of wrap-around.
    """
    length = fast_length(s.shape[-1] + limit)
    product = torch.fft.rfft(s, n=length).conj() * torch.fft.rfft(e, n=length)
    correlation = torch.fft.irfft(product, n=length)
    return torch.cat([correlation[..., length - limit :], correlation[..., : limit + 1]], -1)


def shift(wave: Tensor, samples: int) -> Tensor:
    """Move `wave` to an earlier time: y(t) = x(t + samples), with zeros past its end.

    Args:
        wave: `(..., T)`.
        samples: how many samples earlier; negative for later.

    Returns:
        `(..., T)`, differentiable.

    Raises:
        TypeError: `wave` is not a floating-point tensor, or `samples` not a whole number.
        ValueError: the shift is as long as the signal or longer.
    """
    wave, samples = with_samples(wave, "wave"), check_whole(samples, "samples")
    if abs(samples) >= wave.shape[-1]:
        raise ValueError(
            f"samples must be below the signal's length ({wave.shape[-1]}), got {samples}: nothing "
            "would be left."
        )
    return torch.nn.functional.pad(wave, (-samples, samples))  # a negative pad cuts
