"""Added sounds: noise, tone."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor

from torch_mapss.distortions.records import Distortion
from torch_mapss.distortions.signal import fast_length, frequencies, root_mean_square
from torch_mapss.distortions.traits import HIGHEST, Scaled

LOWEST_NOISE = 20.0
"""Hz. Pink and brown noise start where hearing does. Down to 0 Hz, nearly all of brown noise would
be a drift below 1 Hz, its audible level falling as the clip gets longer, at the same SNR."""

COLORS = {"white": 0, "pink": 1, "brown": 2}
"""Exponent b of the power spectrum 1/f^b."""


def add_noise(
    waveform: Tensor,
    sample_rate: int,
    *,
    snr: float,
    exponent: float,
    noise: Callable[[int], Tensor],
) -> Tensor:
    """Add noise with power spectrum 1/f^exponent at a signal-to-noise ratio.

    The ratio is that of the powers over the whole waveform. Noise of different length is different
    noise, not a prefix: it is shaped in the frequency domain as a whole. Silence stays silent.

    Args:
        waveform: (..., S, T).
        sample_rate: In Hz.
        snr: In dB.
        exponent: 0 white, 1 pink, 2 brown; coloured noise has no content below 20 Hz.
        noise: From a length to standard normal numbers (S, length).

    Returns:
        (..., S, T).
    """
    added = colored(noise, waveform.shape[-1], sample_rate, exponent)
    ratio = root_mean_square(waveform) / root_mean_square(added)
    return waveform + added * (ratio * 10 ** (-snr / 20))


def colored(
    noise: Callable[[int], Tensor], length: int, sample_rate: int, exponent: float
) -> Tensor:
    """Gaussian noise (S, length) with power spectrum 1/f^exponent, of no particular level."""
    if exponent == 0:
        return noise(length)
    drawn = fast_length(max(length, sample_rate // 10))  # 0.1 s: some bins above 20 Hz, always
    # The bins of white noise are independent complex normal numbers: draw them as such.
    spectrum = torch.view_as_complex(noise(drawn).unflatten(-1, (-1, 2)))
    hertz = frequencies(drawn, sample_rate, spectrum.real)[:-1]  # all but f_s / 2, left empty
    gains = (hertz.clamp(min=LOWEST_NOISE) / LOWEST_NOISE) ** (-exponent / 2)
    return torch.fft.irfft(spectrum * gains * (hertz > LOWEST_NOISE), n=drawn)[..., :length]


def add_tone(
    waveform: Tensor, sample_rate: int, *, frequency: float, amplitude: float | Tensor
) -> Tensor:
    """Add a sine that starts at phase 0.

    Args:
        waveform: (..., T).
        sample_rate: In Hz.
        frequency: In Hz.
        amplitude: Peak amplitude, a number or (..., 1).

    Returns:
        (..., T).
    """
    time = torch.arange(waveform.shape[-1], dtype=torch.float64, device="cpu") / sample_rate
    tone = torch.sin(2 * torch.pi * frequency * time)  # float64: phases grow with the length
    return waveform + amplitude * tone.to(waveform)


def noise_at(color: str, snr: int) -> Distortion:
    """Noise of a colour at an SNR in dB."""
    parameters = {"snr": float(snr), "exponent": COLORS[color]}
    level = f"{snr:+d}dB" if snr else "0dB"
    return Distortion(f"noise/{color}/{level}", "noise", add_noise, parameters, random=True)


def tone_at(hertz: int, amplitude: float) -> Distortion:
    """PS: absolute amplitude."""
    parameters = {"frequency": float(hertz), "amplitude": amplitude}
    return Distortion(f"tone/{hertz}Hz", "tone", add_tone, parameters, lowest_rate=hertz / HIGHEST)


def scaled_tone(hertz: int, factor: float) -> Distortion:
    """PM: amplitude in units of A_RMS."""
    parameters, measured = {"frequency": float(hertz)}, {"amplitude": Scaled("rms", factor)}
    rate = hertz / HIGHEST
    return Distortion(f"tone/{hertz}Hz", "tone", add_tone, parameters, measured, lowest_rate=rate)


NOISES = tuple(noise_at(color, snr) for color in COLORS for snr in range(-15, 16, 5))
TONES = (100, 500, 1000, 4000)

SEPARATION = {
    "noise": NOISES,
    "tone": tuple(map(tone_at, TONES, (0.02, 0.04, 0.06, 0.08))),
}
MATCH = {
    "noise": NOISES,
    "tone": tuple(map(scaled_tone, TONES, (0.4, 0.6, 0.8, 1.0))),
}
