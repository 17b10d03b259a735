"""Filters: notch, lowpass, highpass.

All three multiply the spectrum of the entire waveform by a real response, which acts exactly at its
nominal frequencies and without delay: a copy must stay aligned with its reference frame by frame.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

from torch import Tensor

from torch_mapss.distortions.distortion import Distortion
from torch_mapss.distortions.reference_features import (
    NOTCHES,
    ReferenceFeatures,
    energy_quantile,
    fixed_cutoff,
    spectral_peak,
)
from torch_mapss.distortions.signal import cast_like, filter_grid, multiply_spectrum

NOTCH_EDGE = 20.0
"""Hz over which the gain rises from 0 to 1 on each side of a notch; shortens the ringing to some 50
ms."""

BUTTERWORTH_ORDER = 8
"""48 dB per octave: content beyond the cut-off is gone, while the ringing (amplitude 1/e after
8 ms at a cut-off of 100 Hz) stays far shorter than the padding."""


NOTCHING: dict[str, Any] = {"batched": True, "reach": (1.5, 1.5)}
"""Beyond 1.5 s the ringing of a notch's edges (kinks in the slope of its gain, so that it falls as
1/t³) adds up to less than 1e-4 of a tone right at an edge, and to 1e-6 of any other signal."""

CUTTING: dict[str, Any] = {"batched": True, "reach": (0.5, 0.5)}


def notch(
    waveform: Tensor, sample_rate: int, *, frequency: float | Tensor, half_width: float | Tensor
) -> Tensor:
    """Remove the band frequency ± half_width completely.

    The gain is 0 in the band and rises to 1 within 20 Hz outside it, along 3u² - 2u³. A band that
    extends beyond 0 Hz or f_s/2 is truncated there: 8000 ± 50 Hz at 16 kHz removes the top 50 Hz.

    Args:
        waveform: (..., T).
        sample_rate: In Hz.
        frequency: Centre in Hz, a number or (..., 1).
        half_width: In Hz, likewise.

    Returns:
        (..., T).
    """
    frequency, half_width = cast_like(waveform, frequency), cast_like(waveform, half_width)
    length, hertz = filter_grid(waveform, sample_rate)
    outside = (((hertz - frequency).abs() - half_width) / NOTCH_EDGE).clamp(0, 1)
    return multiply_spectrum(waveform, outside.square() * (3 - 2 * outside), length)


def lowpass(waveform: Tensor, sample_rate: int, *, cutoff: float | Tensor) -> Tensor:
    """Butterworth magnitude of order 8 with zero phase, -3 dB at the cut-off.

    Args:
        waveform: (..., T).
        sample_rate: In Hz.
        cutoff: In Hz, a number or (..., 1).

    Returns:
        (..., T).
    """
    length, hertz = filter_grid(waveform, sample_rate)
    gain = (1 + (hertz / cutoff) ** (2 * BUTTERWORTH_ORDER)).rsqrt()
    return multiply_spectrum(waveform, gain, length)


def highpass(waveform: Tensor, sample_rate: int, *, cutoff: float | Tensor) -> Tensor:
    """Butterworth magnitude of order 8 with zero phase, -3 dB at the cut-off, 0 at 0 Hz.

    Args:
        waveform: (..., T).
        sample_rate: In Hz.
        cutoff: In Hz, a number or (..., 1).

    Returns:
        (..., T).
    """
    length, hertz = filter_grid(waveform, sample_rate)
    # 1/sqrt(1 + (cutoff/f)^2n) without the division by f = 0; beyond f = 10 cut-offs the ratio is
    # clamped (gain 1 up to rounding), or its power would overflow float32.
    power = (hertz / cutoff).clamp(max=10) ** (2 * BUTTERWORTH_ORDER)
    return multiply_spectrum(waveform, (power / (1 + power)).sqrt(), length)


def notch_at(hertz: int) -> Distortion:
    """Member for PS: notch of ±50 Hz around a fixed frequency."""
    parameters = {"frequency": float(hertz), "half_width": 50.0}
    return Distortion(
        f"notch/{hertz}Hz", "notch", notch, parameters, lowest_rate=2 * hertz, **NOTCHING
    )


def notch_peak(rank: int) -> Distortion:
    """Member for PM: notch of ±60 Hz around a spectral peak of the reference."""
    measured = {"frequency": partial(spectral_peak, rank=rank)}
    name = f"notch/peak{rank + 1:02d}"
    return Distortion(name, "notch", notch, {"half_width": 60.0}, measured, "frequency", **NOTCHING)


def cutting(
    function: Callable[..., Tensor], label: str, cutoff: Callable[[ReferenceFeatures], Tensor]
) -> Distortion:
    """Lowpass or highpass, at a fixed cut-off (PS) or at a quantile of the energy (PM)."""
    family, measured = function.__name__, {"cutoff": cutoff}
    return Distortion(f"{family}/{label}", family, function, {}, measured, "cutoff", **CUTTING)


def fixed(function: Callable[..., Tensor], *hertz: int) -> tuple[Distortion, ...]:
    """Members for PS: filters at fixed cut-offs, limited to 0.45 f_s."""
    members = []
    for cutoff in hertz:
        members.append(cutting(function, f"{cutoff}Hz", partial(fixed_cutoff, hertz=cutoff)))
    return tuple(members)


def quantiles(function: Callable[..., Tensor], *percents: int) -> tuple[Distortion, ...]:
    """Members for PM: filters whose cut-off has a given share of the energy below it."""
    members = []
    for percent in percents:
        cutoff = partial(energy_quantile, share=percent / 100)
        members.append(cutting(function, f"q{percent}", cutoff))
    return tuple(members)


SEPARATION = {
    "notch": tuple(map(notch_at, (500, 1000, 2000, 4000, 8000))),
    "lowpass": fixed(lowpass, 2000, 3000, 4000, 6000),
    "highpass": fixed(highpass, 100, 300, 500, 800),
}
MATCH = {
    "notch": tuple(map(notch_peak, range(NOTCHES))),
    "lowpass": quantiles(lowpass, 50, 70, 85, 95),
    "highpass": quantiles(highpass, 5, 15, 30, 50),
}
