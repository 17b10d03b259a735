"""Helpers shared by the families: times, zero-phase filtering, convolution, levels."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor

from torch_mapss.core.lengths import fast_length

PADDING = 0.2
"""Seconds of zeros added before zero-phase filtering, 0.1 s for each side of the response."""


def samples(seconds: float, sample_rate: int) -> int:
    """Number of samples nearest to a duration, at least one."""
    return max(1, round(seconds * sample_rate))


def frequencies(length: int, sample_rate: int, waveform: Tensor) -> Tensor:
    """Bin centres in Hz of a real FFT of `length`, shape (length // 2 + 1,)."""
    bins = torch.arange(length // 2 + 1, device=waveform.device, dtype=waveform.dtype)
    return bins * (sample_rate / length)


def clock(length: int, sample_rate: int, start: int = 0) -> Tensor:
    """Times of samples in seconds, (length,); float64 on the CPU, because phases grow with them."""
    return torch.arange(start, start + length, dtype=torch.float64, device="cpu") / sample_rate


def cast_like(waveform: Tensor, value: float | Tensor) -> float | Tensor:
    """A parameter in the dtype and on the device of a waveform; plain numbers stay as they are."""
    return value.to(waveform) if isinstance(value, Tensor) else value


def apply_response(
    waveform: Tensor, sample_rate: int, response: Callable[[Tensor], Tensor]
) -> Tensor:
    """Filter with a real, zero-phase frequency response.

    Zero phase, because the copy must stay aligned with its reference frame by frame: only the
    spectrum changes. The appended zeros keep the response's tails, which extend to both sides, from
    wrapping around into the signal.

    Args:
        waveform: (..., T).
        sample_rate: In Hz.
        response: Function of frequencies in Hz (K,) that returns gains broadcastable to (..., K).

    Returns:
        (..., T).
    """
    length = fast_length(waveform.shape[-1] + samples(PADDING, sample_rate))
    gains = response(frequencies(length, sample_rate, waveform))
    spectrum = torch.fft.rfft(waveform, n=length) * gains
    return torch.fft.irfft(spectrum, n=length)[..., : waveform.shape[-1]]


def convolve(waveform: Tensor, kernel: Tensor) -> Tensor:
    """Causal convolution, cut to the waveform's length: (..., T) and (..., L) to (..., T)."""
    length = fast_length(waveform.shape[-1] + kernel.shape[-1])
    product = torch.fft.rfft(waveform, n=length) * torch.fft.rfft(kernel, n=length)
    return torch.fft.irfft(product, n=length)[..., : waveform.shape[-1]]


def root_mean_square(waveform: Tensor) -> Tensor:
    """RMS over time, (..., T) -> (..., 1)."""
    return waveform.square().mean(-1, keepdim=True).sqrt()
