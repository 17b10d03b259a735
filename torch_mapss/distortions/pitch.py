"""Changes of pitch that keep length and time: pitch, vibrato."""

from __future__ import annotations

import math
from fractions import Fraction

import torch
from torch import Tensor
from torch.nn.functional import pad

from torch_mapss.distortions.records import Distortion
from torch_mapss.distortions.signal import fast_length
from torch_mapss.distortions.traits import VibratoDepth

LARGEST_SHIFT = 36.0
"""Semitones: beyond three octaves no fraction with small terms is near enough."""

ONSET = 2.5
"""A frame with this many times the energy of the frame one hop earlier holds an onset. A click
gives 4 when it sits in the middle of the frame and 1 when it is half a hop past it."""

OVERSAMPLING = 4
MARGIN = 16  # samples of silence on each side of a warped waveform
WRAP = 512  # samples of silence after a waveform whose spectrum is cut or extended


def shift_pitch(waveform: Tensor, sample_rate: int, *, semitones: float) -> Tensor:
    """Move all frequencies by semitones, keeping length and time.

    A phase vocoder stretches time by r = 2^(semitones/12), then resampling by r undoes the stretch
    and moves the pitch. r is a fraction of small whole numbers, within 0.2 cents, so
    that the resampling is one Fourier transform to each side.

    Args:
        waveform: (..., T).
        sample_rate: In Hz.
        semitones: Up if positive, at most 36 to either side.

    Returns:
        (..., T); content moved above f_s/2 is gone.

    Raises:
        ValueError: If the shift exceeds 36 semitones.
    """
    if not abs(semitones) <= LARGEST_SHIFT:
        raise ValueError(
            f"semitones must lie within ±{LARGEST_SHIFT:g}, got {semitones}. Pitch shifts count "
            f"semitones, 12 to the octave; pass a smaller one."
        )
    ratio = Fraction(2 ** (semitones / 12)).limit_denominator(100)
    window = 4 * fast_length(round(0.016 * sample_rate))  # 64 ms: resolves voices from 60 Hz up
    stretched = stretch(waveform, ratio, window)
    return fourier_resample(stretched, ratio, waveform.shape[-1])


def stretch(waveform: Tensor, ratio: Fraction, window: int) -> Tensor:
    """Phase vocoder: time runs `ratio` times as long, frequencies stay.

    Output frame m, centred at m·hop, has the magnitudes of the input frame X_m centred at
    t_m = m·hop/ratio. Its phase goes on from frame m-1 by what the input's phase gains within one
    *output* hop, arg X(t_m) - arg X(t_m - hop): two transforms per frame in place of one, but no
    unwrapping, so the frequency of a steady sine is kept exactly. Phases are thus a running sum,
    restarted at onsets, lest a click be spread by the history of its bins:
        θ_m = arg X_l - ω (ratio - 1) c_l + Σ_{l<i<=m} gain_i,   l the last onset up to m.
    An onset c_l samples after its frame's centre must come out ratio·c_l after it: the linear
    phase moves it by the difference. c_l is taken as the centre of the frame's energy.

    Args:
        waveform: (..., T).
        ratio: Above 1 stretches, below 1 shrinks.
        window: Frame length in samples, divisible by 4; the hop is a quarter of it.

    Returns:
        (..., at least ratio · T).
    """
    hop = window // 4
    count = math.ceil(waveform.shape[-1] * ratio / hop) + 2
    current, previous = analysis_frames(waveform, ratio, window, count)
    # The first frame with sound is always one: content right of its centre weighs at least 4
    # times what it does one hop earlier, so no sum starts from an arbitrary phase.
    onset = current.square().sum(-1) > ONSET * previous.square().sum(-1)
    spectrum = torch.fft.rfft(current)
    gain = angle(spectrum * torch.fft.rfft(previous).conj())
    start = angle(spectrum[onset]) + moving(
        float(1 - ratio) * energy_centre(current[onset]), window
    )
    phase = restarted_sum(gain, onset, start)
    moved = magnitude(spectrum) * torch.complex(phase.cos(), phase.sin())
    return overlap_add(torch.fft.irfft(moved, n=window))


def energy_centre(frames: Tensor) -> Tensor:
    """Centre of energy, in samples after the middle: (..., N) -> (..., 1). Frames aren't silent."""
    place = torch.arange(frames.shape[-1], dtype=frames.dtype, device=frames.device)
    power = frames.square()
    return (power * (place - frames.shape[-1] // 2)).sum(-1, keepdim=True) / power.sum(-1, True)


def moving(earlier: Tensor, window: int) -> Tensor:
    """Phases that move a frame's content to earlier samples: (..., 1) -> (..., window // 2 + 1)."""
    bins = torch.arange(window // 2 + 1, dtype=earlier.dtype, device=earlier.device)
    return earlier * bins * (2 * torch.pi / window)


def restarted_sum(gain: Tensor, onset: Tensor, start: Tensor) -> Tensor:
    """Running sum over frames that takes given values at the onsets.

    Args:
        gain: (..., F, K).
        onset: (..., F) bool.
        start: (onsets, K), the values there. Before the first onset the sum starts from 0.

    Returns:
        (..., F, K).
    """
    total = gain.cumsum(-2)
    offset = torch.zeros_like(total)
    offset[onset] = start - total[onset]
    place = torch.arange(gain.shape[-2], device=gain.device)
    last = torch.where(onset, place, 0).cummax(-1).values
    return total + offset.gather(-2, last.unsqueeze(-1).expand_as(total))


def angle(values: Tensor) -> Tensor:
    """Phase; three times as fast as `torch.angle` on a CPU, which does not vectorise."""
    return torch.atan2(values.imag.contiguous(), values.real.contiguous())


def magnitude(values: Tensor) -> Tensor:
    """Modulus; faster than `torch.abs` on a CPU, safe for audio's range."""
    return (values.real.square() + values.imag.square()).sqrt()


def analysis_frames(
    waveform: Tensor, ratio: Fraction, window: int, count: int
) -> tuple[Tensor, Tensor]:
    """Windowed frames centred at t_m = m·hop/ratio and at t_m - hop, (..., count, window) each."""
    hop = window // 4
    centres = torch.arange(count, device=waveform.device) * (hop * ratio.denominator)
    centres = centres // ratio.numerator
    right = count * hop * ratio.denominator // ratio.numerator + window
    padded = pad(waveform, (window // 2 + hop, right)).unfold(-1, window, 1)
    hann = torch.hann_window(window, dtype=waveform.dtype, device=waveform.device)
    return padded[..., centres + hop, :] * hann, padded[..., centres, :] * hann


def overlap_add(frames: Tensor) -> Tensor:
    """Window and add frames a quarter of their length apart, from the first one's centre on.

    Args:
        frames: (..., F, window), already windowed once.

    Returns:
        (..., (F + 1) · window / 4), divided by the sum of the squared windows.
    """
    count, window = frames.shape[-2:]
    hann = torch.hann_window(window, dtype=frames.dtype, device=frames.device)
    total = add_quarters(frames * hann)
    weight = add_quarters(hann.square().expand(count, window))
    start = window // 2
    return total[..., start:] / weight[start:].clamp(min=0.1)  # below only in the last half frame


def add_quarters(frames: Tensor) -> Tensor:
    """(..., F, window) -> (..., (F + 3) window / 4): each quarter lands one hop later."""
    count, window = frames.shape[-2:]
    quarters = frames.reshape(*frames.shape[:-1], 4, window // 4)
    total = frames.new_zeros(*frames.shape[:-2], count + 3, window // 4)
    for i in range(4):
        total[..., i : i + count, :] += quarters[..., i, :]
    return total.flatten(-2)


def fourier_resample(waveform: Tensor, ratio: Fraction, length: int) -> Tensor:
    """Band-limited y[n] = x(ratio · n) for n < length.

    x is zero-padded to k·p samples and its spectrum cut or extended to that of k·q samples, with
    p/q = ratio: the same time span at q/p of the rate.
    """
    p, q = ratio.numerator, ratio.denominator
    k = fast_length(-(-(waveform.shape[-1] + WRAP) // p))
    spectrum = torch.fft.rfft(waveform, n=k * p)
    keep = k * min(p, q) // 2 + 1
    moved = torch.fft.irfft(spectrum[..., :keep], n=k * q)  # irfft appends the missing zeros
    return moved[..., :length] * (q / p)


def vibrato(waveform: Tensor, sample_rate: int, *, rate: float, depth: float | Tensor) -> Tensor:
    """Sinusoidal time warp y(t) = x(t + depth/(2π rate) · sin 2π rate t).

    Time runs at 1 + depth·cos 2π rate t, and so does every frequency. The waveform is interpolated
    by Fourier oversampling (4 times) and 6-point Lagrange polynomials; the error is below -59 dB
    of the content at f_s/2 and below -90 dB under f_s/4.

    Args:
        waveform: (..., T).
        sample_rate: In Hz.
        rate: In Hz.
        depth: Largest fractional stretch, a number or (..., 1).

    Returns:
        (..., T); time before the start and after the end is silent.
    """
    time = torch.arange(waveform.shape[-1], dtype=torch.float64, device="cpu") / sample_rate
    wave = torch.sin(2 * torch.pi * rate * time).to(waveform)
    return warp(waveform, depth * (sample_rate / (2 * torch.pi * rate)) * wave)


def warp(waveform: Tensor, offset: Tensor) -> Tensor:
    """x(n + offset[n]), offset in samples: (..., T), broadcastable to (..., T) -> (..., T)."""
    length = waveform.shape[-1]
    dense = oversample(pad(waveform, (MARGIN, MARGIN)))
    fine = OVERSAMPLING * offset
    whole = fine.floor()
    place = OVERSAMPLING * (torch.arange(length, device=waveform.device) + MARGIN)
    index = (place + whole.long()).expand(waveform.shape)
    index = index.clamp(2, dense.shape[-1] - 4)
    weights = lagrange(fine - whole)
    return sum(
        (w * dense.gather(-1, index + i - 2) for i, w in enumerate(weights)),
        start=torch.zeros_like(waveform),
    )


def oversample(waveform: Tensor) -> Tensor:
    """Band-limited interpolation to 4 times the rate, (..., T) -> (..., 4 T)."""
    length = fast_length(waveform.shape[-1] + WRAP)
    spectrum = torch.fft.rfft(waveform, n=length) * OVERSAMPLING
    spectrum[..., -1] *= 0.5  # the bin at f_s / 2 now has a twin of its own
    dense = torch.fft.irfft(spectrum, n=OVERSAMPLING * length)
    return dense[..., : OVERSAMPLING * waveform.shape[-1]]


def lagrange(fraction: Tensor) -> list[Tensor]:
    """Weights of the points at -2 … 3 for a place in [0, 1): Π_{j≠i} (u - j) / (i - j)."""
    nodes = range(-2, 4)
    distances = [fraction - j for j in nodes]
    weights = []
    for i in nodes:
        others = [d for j, d in zip(nodes, distances) if j != i]
        scale = math.prod(i - j for j in nodes if j != i)
        product = others[0] * others[1] * (others[2] * others[3]) * others[4]
        weights.append(product / scale)
    return weights


def pitch_at(semitones: int) -> Distortion:
    """A shift in semitones."""
    parameters = {"semitones": float(semitones)}
    return Distortion(f"pitch/{semitones:+d}st", "pitch", shift_pitch, parameters)


def vibrato_at(rate: int, depth: float) -> Distortion:
    """PS: a rate-depth pair."""
    parameters = {"rate": float(rate), "depth": depth}
    return Distortion(f"vibrato/{rate}Hz", "vibrato", vibrato, parameters)


def scaled_vibrato(rate: int, factor: float) -> Distortion:
    """PM: depth from the reference's crest."""
    measured = {"depth": VibratoDepth(factor)}
    return Distortion(f"vibrato/{rate}Hz", "vibrato", vibrato, {"rate": float(rate)}, measured)


PITCHES = tuple(map(pitch_at, (-4, -2, 2, 4)))
VIBRATO_RATES = (3, 5, 7)

SEPARATION = {
    "pitch": PITCHES,
    "vibrato": tuple(map(vibrato_at, VIBRATO_RATES, (0.001, 0.002, 0.003))),
}
MATCH = {
    "pitch": PITCHES,
    "vibrato": tuple(map(scaled_vibrato, VIBRATO_RATES, (1.0, 1.3, 1.6))),
}
