"""Added sounds: noise, tone."""

from __future__ import annotations

import functools
import math
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from torch_mapss.core.lengths import fast_length
from torch_mapss.distortions.distortion import Distortion
from torch_mapss.distortions.reference_features import HIGHEST, scaled_amplitude
from torch_mapss.distortions.signal import cast_like, clock, root_mean_square

LOWEST_NOISE = 20.0
"""Hz. Pink and brown noise start where hearing does. If they went down to 0 Hz, nearly all of brown
noise would be drift below 1 Hz, and at the same SNR its audible level would fall with the length of
the clip."""

COLORS = {"white": 0, "pink": 1, "brown": 2}
"""Exponent b of the power spectrum 1/f^b."""

COLORING = 0.5
"""Length in seconds of the filter that colours noise; it makes the band's lower edge some ±4 Hz
wide."""

PIECE = 2**19  # samples of noise made at a time where only its power is needed


def add_noise(
    waveform: Tensor,
    sample_rate: int,
    *,
    snr: float | Tensor,
    exponent: float,
    noise: Callable[..., Tensor],
    start: int = 0,
    context: Tensor | None = None,
) -> Tensor:
    """Add noise with power spectrum 1/f^exponent at a signal-to-noise ratio.

    The ratio is that of the mean powers over the entire signal. The noise is white noise through a
    filter of fixed length, so that each sample depends only on its position: the noise of a longer
    signal begins with that of a shorter one. Silence stays silent.

    Args:
        waveform: (..., S, T).
        sample_rate: In Hz.
        snr: In dB; a number or (p, 1) on the CPU.
        exponent: 0 white, 1 pink, 2 brown; coloured noise has no content below 20 Hz.
        noise: Function of a length and a first position that returns standard normal numbers (S,
            length) or (S, p, length).
        start: Position of the waveform's first sample in the entire signal.
        context: (..., S, 1) or (..., S, p, 1) gain of the noise, see `noise_gain`; measured on
            `waveform` by default.

    Returns:
        (..., S, T), or (..., S, p, T).
    """
    added = colored(noise, waveform.shape[-1], sample_rate, exponent, start)
    if context is None:
        ratio = cast_like(waveform, 10 ** (-snr / 20))
        context = root_mean_square(waveform) / root_mean_square(added) * ratio
    return waveform + added * context


def noise_gain(
    waveform: Tensor,
    sample_rate: int,
    *,
    snr: float | Tensor,
    exponent: float,
    noise: Callable[..., Tensor],
) -> Tensor:
    """Gain of the noise in `add_noise`, measured on an entire signal in bounded memory.

    Args:
        waveform: (..., S, T), the entire signal.
        sample_rate, snr, exponent, noise: As in `add_noise`.

    Returns:
        (..., S, 1), or (..., S, p, 1).
    """
    energy = waveform.new_zeros(())
    length = waveform.shape[-1]
    for begin in range(0, length, PIECE):
        size = min(PIECE, length - begin)
        piece = colored(noise, size, sample_rate, exponent, begin)
        energy = energy + size * piece.square().mean(-1, keepdim=True)
    ratio = cast_like(waveform, 10 ** (-snr / 20))
    return root_mean_square(waveform) / (energy / length).sqrt() * ratio


def colored(
    noise: Callable[..., Tensor], length: int, sample_rate: int, exponent: float, start: int = 0
) -> Tensor:
    """Gaussian noise of power 1 (on average) with power spectrum 1/f^exponent.

    Args:
        noise: Function of a length and a first position that returns standard normal numbers (...,
            length).
        length: In samples.
        sample_rate: In Hz.
        exponent: b.
        start: Position of the first sample.

    Returns:
        (..., length).
    """
    if exponent == 0:
        return noise(length, start)
    filters = coloring(exponent, sample_rate)
    taps = len(filters)
    white = noise(length + taps - 1, start)  # the filter's later half looks ahead
    size = fast_length(white.shape[-1])  # the wrapped samples are cut off
    product = torch.fft.rfft(white, n=size) * torch.fft.rfft(filters.to(white), n=size)
    return torch.fft.irfft(product, n=size)[..., taps - 1 : taps - 1 + length]


@functools.lru_cache(maxsize=16)
def coloring(exponent: float, sample_rate: int) -> Tensor:
    """Impulse response, of energy 1, that colours white noise; (taps,) float64 on the CPU.

    The gain is f^(-b/2) above 20 Hz and 0 below, sampled every 2 Hz; its symmetric impulse response
    is tapered by a Hann window.
    """
    taps = 2 * math.ceil(COLORING * sample_rate / 2)
    with torch.inference_mode(False):  # cached across calls
        hertz = torch.arange(taps // 2 + 1, dtype=torch.float64, device="cpu") / taps * sample_rate
        gains = (hertz.clamp(min=LOWEST_NOISE) / LOWEST_NOISE) ** (-exponent / 2)
        gains = torch.where(hertz >= LOWEST_NOISE, gains, 0.0)
        response = torch.fft.irfft(gains, n=taps).roll(taps // 2)
        response = response * torch.hann_window(taps, dtype=torch.float64, device="cpu")
        return response / torch.linalg.vector_norm(response)


def add_tone(
    waveform: Tensor,
    sample_rate: int,
    *,
    frequency: float | Tensor,
    amplitude: float | Tensor,
    start: int = 0,
) -> Tensor:
    """Add a sine that starts at phase 0.

    Args:
        waveform: (..., T).
        sample_rate: In Hz.
        frequency: In Hz, a number or (..., 1) on the CPU.
        amplitude: Peak amplitude, a number or (..., 1).
        start: Position of the first sample in its signal.

    Returns:
        (..., T).
    """
    time = clock(waveform.shape[-1], sample_rate, start)
    tone = torch.sin(2 * torch.pi * frequency * time)  # float64: phases grow with the length
    return waveform + cast_like(waveform, amplitude) * tone.to(waveform)


ADDED: dict[str, Any] = {"batched": True, "timed": True, "reach": (0.0, 0.0)}
NOISE: dict[str, Any] = {**ADDED, "random": True, "context": noise_gain}


def noise_at(color: str, snr: int) -> Distortion:
    """Member that adds noise of a colour at an SNR in dB."""
    parameters = {"snr": float(snr), "exponent": COLORS[color]}
    level = f"{snr:+d}dB" if snr else "0dB"
    return Distortion(f"noise/{color}/{level}", "noise", add_noise, parameters, **NOISE)


def tone_at(hertz: int, amplitude: float) -> Distortion:
    """Member for PS that adds a tone of absolute amplitude."""
    parameters = {"frequency": float(hertz), "amplitude": amplitude}
    rate = hertz / HIGHEST
    return Distortion(f"tone/{hertz}Hz", "tone", add_tone, parameters, lowest_rate=rate, **ADDED)


def scaled_tone(hertz: int, factor: float) -> Distortion:
    """Member for PM that adds a tone whose amplitude is a multiple of A_RMS."""
    parameters = {"frequency": float(hertz)}
    measured = {"amplitude": functools.partial(scaled_amplitude, feature="rms", factor=factor)}
    rate = hertz / HIGHEST
    return Distortion(
        f"tone/{hertz}Hz", "tone", add_tone, parameters, measured, lowest_rate=rate, **ADDED
    )


NOISES = tuple(noise_at(color, snr) for color in COLORS for snr in range(-15, 16, 5))
TONES = (100, 500, 1000, 4000)

SEPARATION = {"noise": NOISES, "tone": tuple(map(tone_at, TONES, (0.02, 0.04, 0.06, 0.08)))}
MATCH = {"noise": NOISES, "tone": tuple(map(scaled_tone, TONES, (0.4, 0.6, 0.8, 1.0)))}
