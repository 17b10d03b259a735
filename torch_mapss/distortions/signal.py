"""Helpers shared by the families: times, filtering by a product of spectra, levels."""

from __future__ import annotations

import torch
from torch import Tensor

from torch_mapss.core.lengths import fast_length

PADDING = 0.2
"""Seconds of zeros added before zero-phase filtering, 0.1 s for each side of the response."""


def samples(seconds: float, sample_rate: int) -> int:
    """Number of samples nearest to a duration, at least one."""
    return max(1, round(seconds * sample_rate))


def clock(length: int, sample_rate: int, start: int = 0) -> Tensor:
    """Times of samples in seconds, (length,); float64 on the CPU, because phases grow with them."""
    return torch.arange(start, start + length, dtype=torch.float64, device="cpu") / sample_rate


def cast_like(waveform: Tensor, value: float | Tensor) -> float | Tensor:
    """A parameter in the dtype and on the device of a waveform; plain numbers stay as they are."""
    return value.to(waveform) if isinstance(value, Tensor) else value


def filter_grid(waveform: Tensor, sample_rate: int) -> tuple[int, Tensor]:
    """Length of the transform by which a waveform (..., T) is filtered, and its bins in Hz (K,).

    The zeros that it appends keep the tails of a zero-phase response, which extend to both sides,
    from wrapping around into the signal.
    """
    length = fast_length(waveform.shape[-1] + samples(PADDING, sample_rate))
    bins = torch.arange(length // 2 + 1, device=waveform.device, dtype=waveform.dtype)
    return length, bins * (sample_rate / length)


def multiply_spectrum(waveform: Tensor, response: Tensor, length: int) -> Tensor:
    """Filter with a frequency response, in the same number of samples.

    Args:
        waveform: (..., T).
        response: (..., length // 2 + 1), real for a filter with zero phase.
        length: Length of the transform, above T by what the response rings.

    Returns:
        (..., T).
    """
    spectrum = torch.fft.rfft(waveform, n=length) * response
    return torch.fft.irfft(spectrum, n=length)[..., : waveform.shape[-1]]


def root_mean_square(waveform: Tensor) -> Tensor:
    """RMS over time, (..., T) -> (..., 1)."""
    return waveform.square().mean(-1, keepdim=True).sqrt()
