"""Which estimate belongs to which reference: SI-SDR and the best permutation by it."""

from __future__ import annotations

import math

import numpy as np
import torch
from torch import Tensor

from torch_mapss.audio.loudness import check_samples, unit_peak
from torch_mapss.audio.waveforms import with_samples
from torch_mapss.core.devices import wide

# ---------------------------------------------------------------------------------------------
# Estimates and references
# ---------------------------------------------------------------------------------------------

# Share of an estimate's energy that rounding can hide in float64: the range of SI-SDR is
# +-10 log10 of it, +-156.5 dB.
_EPSILON = torch.finfo(torch.float64).eps


def si_sdr(estimates: Tensor, references: Tensor) -> Tensor:
    """Scale-invariant signal-to-distortion ratio, means removed (Le Roux et al., 2019).

    With e and s the signals less their means and a = <e, s> / <s, s>, it is
    10 log10(|a s|^2 / |e - a s|^2). Both energies are kept at or above 2.2e-16 of |e|^2, so values
    lie within +-156.5 dB; a silent (or constant) estimate or reference gives the lower end, with
    zero gradient. Computed in float64.

    Args:
        estimates: `(..., T)`.
        references: `(..., T)`, the same shape.

    Returns:
        `(...)` in dB, in the wider dtype of the two (at least float32). Never NaN.

    Raises:
        TypeError: an argument is no floating-point tensor.
        ValueError: shapes differ, no samples, or samples that are not finite.
    """
    estimates, references = _checked_pair(estimates, references)
    if estimates.shape != references.shape:
        raise ValueError(
            f"estimates and references must have one shape, got {tuple(estimates.shape)} and "
            f"{tuple(references.shape)}. Pass one reference per estimate, in the same order."
        )
    e, e_silent = _centred(estimates, "estimates")
    s, s_silent = _centred(references, "references")
    target = (e * s).sum(-1, keepdim=True) * s  # |s| = 1
    ratio = _energy_ratio(target.square().sum(-1), (e - target).square().sum(-1))
    ratio = torch.where(e_silent | s_silent, 10 * math.log10(_EPSILON), ratio)
    return ratio.to(torch.promote_types(estimates.dtype, references.dtype)).to(estimates.device)


def _energy_ratio(target: Tensor, rest: Tensor) -> Tensor:
    return 10 * ((target + _EPSILON).log10() - (rest + _EPSILON).log10())


def _centred(wave: Tensor, name: str) -> tuple[Tensor, Tensor]:
    """`wave` less its mean at energy 1, float64, and `(...)` bool where nothing is left (zeros)."""
    unit, _, _ = unit_peak(check_samples(wide(wave), name))
    centred = unit - unit.mean(-1, keepdim=True)
    energy = centred.square().sum(-1, keepdim=True)
    # A constant may leave rounding noise of 1e-16 per sample instead of zero.
    silent = energy <= 1e-28 * unit.shape[-1]
    centred = torch.where(silent, 0.0, centred)
    return centred / torch.where(silent, 1.0, energy).sqrt(), silent.squeeze(-1)


def _checked_pair(estimates: Tensor, references: Tensor) -> tuple[Tensor, Tensor]:
    return with_samples(estimates, "estimates"), with_samples(references, "references")


@torch.no_grad()
def match_sources(estimates: Tensor, references: Tensor) -> Tensor:
    """Which reference each estimate belongs to: the assignment with the largest total SI-SDR.

    Each estimate gets a reference of its own. A silent estimate is as far from every reference and
    takes what the others leave; a silent reference is as far from every estimate.

    Args:
        estimates: `(..., S', T)`, S' <= S.
        references: `(..., S, T)`, the same leading axes.

    Returns:
        `(..., S')` int64 on the device of `estimates`: indices into the S references.

    Raises:
        TypeError: an argument is no floating-point tensor.
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

    estimates, references = _checked_pair(estimates, references)
    _check_matchable(estimates, references)
    scores = _pairwise_si_sdr(estimates, references).cpu().numpy()
    flat = scores.reshape(-1, *scores.shape[-2:])
    best = [linear_sum_assignment(item, maximize=True)[1] for item in flat]
    indices = np.asarray(best, dtype=np.int64).reshape(scores.shape[:-1])
    return torch.from_numpy(indices).to(estimates.device)


def _pairwise_si_sdr(estimates: Tensor, references: Tensor) -> Tensor:
    """SI-SDR of all pairs, `(..., S', S)` float64.

    With both signals at energy 1, |a s|^2 = <e, s>^2 =: c and |e - a s|^2 = 1 - c.
    """
    e, e_silent = _centred(estimates, "estimates")
    s, s_silent = _centred(references, "references")
    shared = (e @ s.mT).square().clamp(max=1.0)
    silent = e_silent.unsqueeze(-1) | s_silent.unsqueeze(-2)
    return _energy_ratio(shared, 1 - shared).masked_fill(silent, 10 * math.log10(_EPSILON))


def _check_matchable(estimates: Tensor, references: Tensor) -> None:
    given = f"got {tuple(estimates.shape)} and {tuple(references.shape)}"
    if estimates.ndim < 2 or estimates.ndim != references.ndim:
        raise ValueError(
            f"estimates and references must be (..., S', T) and (..., S, T), {given}. "
            "Add the missing axis, for one signal x[None]."
        )
    if estimates.shape[:-2] != references.shape[:-2] or estimates.shape[-1] != references.shape[-1]:
        raise ValueError(
            f"estimates and references may differ in the number of sources only, {given}. "
            "Pass the same items, cut to the same length."
        )
    if estimates.shape[-2] > references.shape[-2]:
        raise ValueError(
            f"there are {estimates.shape[-2]} estimates for {references.shape[-2]} references, "
            f"{given}: some estimate would have no reference. Leave the surplus estimates out, or "
            "swap the arguments if they are reversed."
        )
