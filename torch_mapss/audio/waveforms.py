"""Waveforms as tensors: conversion, mixing down to mono, resampling."""

from __future__ import annotations

import math

import numpy as np
import torch
from torch import Tensor

from torch_mapss.core import checks
from torch_mapss.core.autograd import lifted
from torch_mapss.core.checks import check_whole

#: Peaks below this (-600 dBFS) count as digital silence. Nothing recorded comes near it; it keeps
#: 1 / peak, and with it every gradient, finite in float32.
SILENCE_PEAK = 1e-30


# Zero point and full scale of the integer sample formats audio files use.
_INTEGER_FORMATS = {
    torch.uint8: (128, 2.0**7),
    torch.int8: (0, 2.0**7),
    torch.int16: (0, 2.0**15),
    torch.int32: (0, 2.0**31),
}


def as_waveform(x: Tensor | np.ndarray, name: str = "waveform") -> Tensor:
    """Convert any array or tensor of samples to a floating-point waveform tensor.

    Args:
        x: `(..., T)` tensor or NumPy array. float32 and float64 stay; float16 and bfloat16
            become float32; uint8, int8, int16 and int32 are read as PCM samples and scaled to
            [-1, 1).
        name: name of the array, for messages.

    Returns:
        `(..., T)` float32 or float64, on the device of `x`; a tensor keeps its graph.

    Raises:
        TypeError: `x` is not an array, or its dtype not a sample format (complex, bool, int64,
            ...).
        ValueError: `x` has no time axis.
    """
    if isinstance(x, np.ndarray) and x.dtype.kind in "fiu":
        wide = x.dtype.kind == "f" and x.dtype.itemsize > 8
        # Copied, because torch requires native byte order, positive strides and writable memory.
        x = torch.from_numpy(np.array(x, dtype=np.float64 if wide else x.dtype.newbyteorder("=")))
    if isinstance(x, Tensor) and x.dtype in _INTEGER_FORMATS:
        zero, scale = _INTEGER_FORMATS[x.dtype]
        x = (x.to(torch.float32) - zero) / scale
    wave = lifted(checks.check_floating(x, name))
    if wave.ndim == 0:
        raise ValueError(
            f"{name} must have a time axis (..., T), got a single number. "
            "Pass the samples, for instance of shape (sources, T)."
        )
    return wave


def with_samples(wave: Tensor, name: str) -> Tensor:
    """The waveform in float32 or float64; ValueError if it has no samples."""
    wave = lifted(checks.check_floating(wave, name))
    if wave.ndim == 0 or wave.shape[-1] == 0:
        raise ValueError(
            f"{name} must have samples along its last axis (..., T), got shape "
            f"{tuple(wave.shape)}. An empty signal has no level; drop it from the list."
        )
    return wave


def to_mono(wave: Tensor) -> Tensor:
    """Mix channels down to mono by their mean.

    Args:
        wave: `(..., C, T)`.

    Returns:
        `(..., T)`, the mean over channels: a sound common to all channels keeps its level.

    Raises:
        TypeError: `wave` is not a floating-point tensor.
        ValueError: there is no channel axis, or it is empty.
    """
    wave = lifted(checks.check_floating(wave, "wave"))
    if wave.ndim < 2 or wave.shape[-2] == 0:
        raise ValueError(
            f"wave must have a channel axis before time (..., C, T), got shape "
            f"{tuple(wave.shape)}. A mono signal needs no downmix; else add the axis with "
            "wave[..., None, :]."
        )
    return wave.mean(-2)


# Sinc interpolation in a Hann window, as torchaudio's `resample` by default: zero crossings of the
# sinc on each side, and where the low-pass filter lies, as a share of the lower Nyquist frequency.
_ZERO_CROSSINGS = 6
_ROLLOFF = 0.99
# Entries of the polyphase filters; 1e8 are 400 MB in float32.
_LARGEST_RESAMPLER = 10**8


def resample(wave: Tensor, orig: int, new: int) -> Tensor:
    """Bring a waveform from one sample rate to another, by windowed sinc interpolation.

    The samples equal those of torchaudio's `resample`, but unlike it this function does not depend
    on torch's default dtype and device.

    Args:
        wave: `(..., T)`. float64 stays float64, half precision is computed in float32.
        orig: rate of `wave`, Hz, a whole number.
        new: target rate, Hz, a whole number. Equal rates return `wave` itself.

    Returns:
        `(..., ceil(T * new / orig))`, differentiable.

    Raises:
        TypeError: a rate is not a whole number, or `wave` not a floating-point tensor.
        ValueError: a rate is not positive, `wave` is empty, or the ratio needs too large a filter.
    """
    orig, new = check_whole(orig, "orig", 1), check_whole(new, "new", 1)
    if orig == new:
        return wave
    wave = with_samples(wave, "wave")
    # The polyphase kernel has `up` filters of about `down` taps.
    up, down = new // math.gcd(orig, new), orig // math.gcd(orig, new)
    if up * (down + 12 * max(1, down // up)) > _LARGEST_RESAMPLER:
        raise ValueError(
            f"resampling from {orig} to {new} Hz needs a ratio of {up}/{down}, whose filter would "
            "take gigabytes: the rates have almost no common divisor. Check the rates; if they are "
            "right, resample the files beforehand with another tool."
        )
    filters, reach = _polyphase_filters(up, down, wave.dtype, wave.device)
    rows = wave.reshape(-1, 1, wave.shape[-1])
    padded = torch.nn.functional.pad(rows, (reach, reach + down))
    # Autocast would run this convolution in half precision.
    with torch.autocast(wave.device.type, enabled=False):
        phases = torch.nn.functional.conv1d(padded, filters, stride=down)
    resampled = phases.transpose(1, 2).flatten(1)
    length = -(-wave.shape[-1] * up // down)
    return resampled[:, :length].reshape(*wave.shape[:-1], length)


def _polyphase_filters(
    up: int, down: int, dtype: torch.dtype, device: torch.device
) -> tuple[Tensor, int]:
    """Filters (up, 1, taps), one per phase of the output, and the taps before the first sample.

    Output sample n lies at n · down / up input samples. Phase p of ``up`` is always at the same
    fraction of a sample, so one filter serves all n = p mod up, at a stride of ``down`` samples.
    """
    cutoff = _ROLLOFF * min(up, down)
    reach = math.ceil(_ZERO_CROSSINGS * down / cutoff)
    tap = torch.arange(-reach, reach + down, dtype=dtype, device=device)[None, None] / down
    phase = torch.arange(0, -up, -1, dtype=dtype, device=device)[:, None, None] / up
    crossing = ((phase + tap) * cutoff).clamp(-_ZERO_CROSSINGS, _ZERO_CROSSINGS)
    window = torch.cos(crossing * math.pi / _ZERO_CROSSINGS / 2) ** 2
    angle = crossing * math.pi
    sinc = torch.where(angle == 0, torch.ones_like(angle), angle.sin() / angle)
    return sinc * (window * (cutoff / down)), reach


#: Plausible sample rates in Hz; a file that states another one is damaged or not audio.
SOURCE_RATES = 4000, 384_000


def check_source_rate(rate: int, name: str) -> int:
    """Check that ``rate`` is a plausible sample rate, and return it; ``name``: for messages.

    Raises:
        TypeError: it is not a whole number.
        ValueError: it lies outside :data:`SOURCE_RATES`.
    """
    lowest, highest = SOURCE_RATES
    if not lowest <= check_whole(rate, name) <= highest:
        below, above = "too little bandwidth for separation", "no recording has such a rate"
        raise ValueError(
            f"{name} must be between {lowest} and {highest} Hz, got {rate}: "
            f"{below if rate < lowest else above}. Check the rate, and pass the true one."
        )
    return int(rate)


def is_silent(wave: Tensor) -> Tensor:
    """Whether signals are digitally silent: peak below `SILENCE_PEAK`.

    Args:
        wave: `(..., T)`.

    Returns:
        `(...)` bool.
    """
    wave = with_samples(wave, "wave").detach()
    return wave.abs().amax(-1) < SILENCE_PEAK
