"""Distortions that add delayed copies: comb, reverb, echo."""

from __future__ import annotations

import math
from collections.abc import Callable

import torch
from torch import Tensor
from torch.nn.functional import pad

from torch_mapss.core.lengths import fast_length
from torch_mapss.distortions.distortion import Distortion
from torch_mapss.distortions.signal import multiply_spectrum, samples

FORGOTTEN = 1e-7
"""Relative amplitude, about float32 rounding, below which the past of a feedback comb is
neglected."""


def comb(waveform: Tensor, sample_rate: int, *, delay: float, gain: float) -> Tensor:
    """Feedback comb y[n] = x[n] + gain y[n - D], D = delay f_s rounded, with peaks at k / delay.

    With u = gain z^-D the filter is 1 / (1 - u). Because
    (1 - u) (1 + u) (1 + u²) (1 + u⁴) … (1 + u^(2^(n-1))) = 1 - u^(2^n), n sweeps of
    x + gain^(2^i) (x delayed by 2^i D) equal it up to a term delayed by 2^n D. Once that delay
    exceeds the length, log2(T / D) sweeps give the result of the recursion without recursing.

    Args:
        waveform: (..., T).
        sample_rate: In Hz.
        delay: In seconds.
        gain: Feedback gain, below 1 in magnitude.

    Returns:
        (..., T).
    """
    lag = samples(delay, sample_rate)
    while lag < waveform.shape[-1]:
        waveform = waveform + gain * pad(waveform[..., :-lag], (lag, 0))
        lag, gain = 2 * lag, gain * gain
    return waveform.clone()


def echo(waveform: Tensor, sample_rate: int, *, delay: float, gain: float) -> Tensor:
    """One echo, x[n] + gain x[n - delay f_s].

    Args:
        waveform: (..., T).
        sample_rate: In Hz.
        delay: In seconds.
        gain: Amplitude of the echo.

    Returns:
        (..., T).
    """
    lag = samples(delay, sample_rate)
    if lag >= waveform.shape[-1]:
        return waveform.clone()
    return waveform + gain * pad(waveform[..., :-lag], (lag, 0))


def reverberate(
    waveform: Tensor,
    sample_rate: int,
    *,
    length: float | Tensor,
    decay: float | Tensor,
    gain: float | Tensor,
    noise: Callable[[int], Tensor],
) -> Tensor:
    """Add reverb: the direct sound plus the beginning of an exponentially decaying noise tail.

    The impulse response is 1 at 0, then for 0 < t <= length white noise times exp(-decay t), then
    nothing. The tail is scaled so that, were it not cut at `length`, it would carry gain² times the
    energy of the direct sound: its strength is the same for every sample rate and draw.

    Args:
        waveform: (..., S, T).
        sample_rate: In Hz.
        length: Length of the tail in seconds; a number or, like the next two, (..., 1) on the CPU.
        decay: Decay rate of the amplitude in 1/s: ln(1000)/RT60, as 60 dB are a factor of 1000.
        gain: Amplitude of the uncut tail relative to the direct sound.
        noise: Function of a length that returns standard normal numbers (S, length) or (S, p,
            length).

    Returns:
        (..., S, T).
    """
    length, decay, gain = (
        torch.as_tensor(x, dtype=torch.float64, device="cpu") for x in (length, decay, gain)
    )
    taps = (length * sample_rate).round().clamp(min=1)
    time = torch.arange(1, int(taps.max()) + 1, dtype=torch.float64, device="cpu")
    fall = torch.exp(-decay / sample_rate * time) * (time <= taps)
    share = -torch.expm1(-2 * decay * length)  # of the tail's energy, before the cut
    tail = noise(len(time)) * fall.to(waveform)
    norm = torch.linalg.vector_norm(tail, dim=-1, keepdim=True)
    tail = tail * ((gain * share.sqrt()).to(waveform) / norm)
    impulse_response = pad(tail, (1, 0))
    size = fast_length(waveform.shape[-1] + impulse_response.shape[-1])  # a linear convolution
    reverb = multiply_spectrum(waveform, torch.fft.rfft(impulse_response, n=size), size)
    return waveform + reverb


def comb_at(milliseconds: float, gain: float) -> Distortion:
    """Comb with a delay in milliseconds and a gain."""
    parameters = {"delay": milliseconds / 1000, "gain": gain}
    reach = parameters["delay"] * math.log(FORGOTTEN) / math.log(gain)
    return Distortion(f"comb/{milliseconds:g}ms", "comb", comb, parameters, reach=(reach, 0.0))


def echo_at(milliseconds: int, gain: float) -> Distortion:
    """Echo with a delay in milliseconds and a gain."""
    parameters = {"delay": milliseconds / 1000, "gain": gain}
    reach = (parameters["delay"], 0.0)
    return Distortion(f"echo/{milliseconds}ms", "echo", echo, parameters, reach=reach)


def tail_of(milliseconds: int, decay: float, gain: float) -> Distortion:
    """Reverb of a given length; `decay` in 1/s and `gain` as in `reverberate`."""
    name, length = f"reverb/{milliseconds}ms", milliseconds / 1000
    parameters, reach = {"length": length, "decay": decay, "gain": gain}, (length, 0.0)
    return Distortion(
        name, "reverb", reverberate, parameters, random=True, batched=True, reach=reach
    )


GAINS = (0.3, 0.5, 0.7, 0.9)

# Ranges are stepped through in pairs: the shortest delay with the lowest gain, and so on.
SEPARATION = {
    "comb": tuple(comb_at(2.5 * i, (3 + i) / 10) for i in range(1, 7)),  # 2.5-15 ms, 0.4-0.9
    # The first milliseconds of a tail that decays by 60 dB in 0.3 to 1.1 s.
    "reverb": tuple(
        tail_of(5 + 5 * i, math.log(1000) / (0.3 + 0.8 * i / 3), 1.0) for i in range(4)
    ),
    "echo": tuple(echo_at(5 + 5 * i, 0.3 + 0.4 * i / 3) for i in range(4)),  # 5-20 ms, 0.3-0.7
}
MATCH = {
    "comb": tuple(map(comb_at, (2.5, 5.0, 7.5, 10.0, 12.5), (0.4, 0.5, 0.6, 0.7, 0.9))),
    # A tail gain · exp(-6 t / length).
    "reverb": tuple(tail_of(50 * 2**i, 6 / (50 * 2**i / 1000), g) for i, g in enumerate(GAINS)),
    "echo": tuple(map(echo_at, (50, 100, 150), (0.4, 0.5, 0.7))),
}
