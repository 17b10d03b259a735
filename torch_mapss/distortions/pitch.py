"""Distortions of the pitch that keep the timing: pitch shift, vibrato."""

from __future__ import annotations

import math
from fractions import Fraction
from functools import partial
from typing import Any

import torch
from torch import Tensor
from torch.nn.functional import pad

from torch_mapss.core.lengths import fast_length
from torch_mapss.distortions.distortion import Distortion
from torch_mapss.distortions.reference_features import vibrato_depth
from torch_mapss.distortions.signal import cast_like, clock

LARGEST_SHIFT = 36.0
"""Semitones; beyond three octaves no fraction with small terms is close enough to the ratio."""

ONSET = 2.5
"""Factor in energy over the frame one hop earlier that marks an onset. A click gives 4 in the
middle of the frame, and 1 half a hop past it."""

TURN = 2**32
PIECE = 2**18  # samples processed at a time where only the phases at the anchors are needed

OVERSAMPLING = 4
MARGIN = 16  # samples of silence on each side of a warped waveform
EDGE = 100.0  # Hz over which a truncated band falls off
WRAP = 512  # samples of silence after a waveform whose spectrum is cut or extended


def shift_pitch(
    waveform: Tensor,
    sample_rate: int,
    *,
    semitones: float,
    start: int = 0,
    context: Tensor | None = None,
) -> Tensor:
    """Shift all frequencies by a number of semitones, keeping the timing.

    A phase vocoder stretches time by r = 2^(semitones/12), then resampling by r undoes the stretch
    and moves the pitch. r is rounded, within 0.2 cents, to a fraction of small whole numbers, so
    that resampling takes one Fourier transform in each direction.

    Args:
        waveform: (..., T).
        sample_rate: In Hz.
        semitones: Up if positive, at most 36 either way.
        start: Position of the first sample in its signal.
        context: Phases of the entire signal's frames, see `vocoder_phases`. Required for a segment
            that does not start with its signal; its copy is silent up to the first frame with a
            phase.

    Returns:
        (..., T); content shifted above f_s/2 is lost.

    Raises:
        ValueError: If the shift exceeds 36 semitones, or a later segment comes without `context`.
    """
    ratio, window = vocoder(semitones, sample_rate)
    length = waveform.shape[-1]
    if start == 0:
        stretched = stretch(waveform, ratio, window)
        return fourier_resample(stretched, sample_rate, ratio, length)
    if context is None:
        raise ValueError(
            f"start={start} requires context=vocoder_phases(signal, ...) of the entire signal: "
            f"phases of later frames depend on the earlier ones."
        )
    step = anchor(ratio, window)
    index = -(-(start + lead(window)) // step)  # first frame with a known phase and a full past
    skipped = index * step - start
    if skipped >= length:
        return torch.zeros_like(waveform)
    stretched = stretch(waveform, ratio, window, skipped, context[..., index, :])
    position = torch.arange(window, dtype=torch.float32, device=waveform.device)
    fade = 0.5 - 0.5 * torch.cos(torch.pi * position / window)
    stretched[..., :window] *= fade.to(waveform)  # a step would ring into the part that is used
    return pad(fourier_resample(stretched, sample_rate, ratio, length - skipped), (skipped, 0))


def vocoder(semitones: float, sample_rate: int) -> tuple[Fraction, int]:
    """Stretch ratio, and frame length in samples."""
    if not abs(semitones) <= LARGEST_SHIFT:
        raise ValueError(
            f"semitones must lie within ±{LARGEST_SHIFT:g}, got {semitones}. Pitch shifts count "
            f"semitones, 12 to the octave; pass a smaller one."
        )
    ratio = Fraction(2 ** (semitones / 12)).limit_denominator(100)
    return ratio, 4 * fast_length(round(0.016 * sample_rate))  # 64 ms: voices from 60 Hz up


def anchor(ratio: Fraction, window: int) -> int:
    """Samples between frames that lie on whole samples before and after the stretch."""
    return window // 4 * ratio.denominator


def lead(window: int) -> int:
    """Samples before a frame's centre that it depends on, with the frame one hop earlier."""
    return window // 2 + window // 4


def vocoder_phases(waveform: Tensor, sample_rate: int, *, semitones: float) -> Tensor:
    """Phases of the vocoder at every `anchor` of an entire signal, in bounded memory.

    Args:
        waveform: (..., T), the entire signal.
        sample_rate, semitones: As in `shift_pitch`.

    Returns:
        (..., anchors, window // 2 + 1) complex, of modulus 1.
    """
    ratio, window = vocoder(semitones, sample_rate)
    step, hops, length = anchor(ratio, window), ratio.numerator, waveform.shape[-1]
    at_once = max(1, PIECE // step)
    ones = waveform.new_ones(*waveform.shape[:-1], 1, window // 2 + 1)
    anchor_phases = [torch.complex(ones, torch.zeros_like(ones))]
    for first_anchor in range(0, length // step, at_once):
        count = min(at_once, length // step - first_anchor)
        piece_begin = first_anchor * step - lead(window) if first_anchor else 0
        piece = waveform[..., piece_begin : (first_anchor + count) * step + window]
        offset = first_anchor * step - piece_begin if first_anchor else 0
        frames = analysis_frames(piece, ratio, window, count * hops + 1, offset)
        first_phase = anchor_phases[-1][..., -1, :] if first_anchor else None
        phases, _ = vocoder_frames(*frames, ratio, first_phase)
        anchor_phases.append(phases[..., hops::hops, :])
    return torch.cat(anchor_phases, -2)


def stretch(
    waveform: Tensor,
    ratio: Fraction,
    window: int,
    skipped: int = 0,
    first_phase: Tensor | None = None,
) -> Tensor:
    """Phase vocoder: time runs `ratio` times as long, frequencies stay.

    Output frame m, centred at m·hop, has the magnitudes of the input frame X_m centred at t_m =
    m·hop/ratio. Its phase is that of frame m-1 plus what the input's phase gains within one
    *output* hop, arg X(t_m) - arg X(t_m - hop): two transforms per frame in place of one, but no
    unwrapping, so the frequency of a steady sine stays exact. Phases are thus a running sum,
    restarted at onsets so that a click is not smeared by the phases accumulated before it: θ_m =
    arg X_l - ω (ratio - 1) c_l + Σ_{l<i<=m} gain_i,   l the last onset up to m. An onset c_l
    samples after its frame's centre must come out ratio·c_l after it: the linear phase moves it by
    the difference. c_l is taken as the centre of the frame's energy.

    Args:
        waveform: (..., T).
        ratio: Above 1 stretches, below 1 shrinks.
        window: Frame length in samples, divisible by 4; the hop is a quarter of it.
        skipped: Samples before the centre of the first frame.
        first_phase: (..., window // 2 + 1) phase of the first frame, complex of modulus 1.

    Returns:
        (..., at least ratio · (T - skipped)).
    """
    hop = window // 4
    count = math.ceil((waveform.shape[-1] - skipped) * ratio / hop) + 2
    frames = analysis_frames(waveform, ratio, window, count, skipped)
    phases, magnitudes = vocoder_frames(*frames, ratio, first_phase)
    # Window the frames once more, add them a hop apart (each quarter lands one hop later than the
    # quarter before it), and divide by the sum of the squared windows.
    hann = torch.hann_window(window, dtype=waveform.dtype, device=waveform.device)
    frame_quarters = (torch.fft.irfft(phases * magnitudes, n=window) * hann).unflatten(-1, (4, hop))
    weight_quarters = hann.square().reshape(4, hop)
    total = waveform.new_zeros(*waveform.shape[:-1], count + 3, hop)
    weight = waveform.new_zeros(count + 3, hop)
    for i in range(4):
        total[..., i : i + count, :] += frame_quarters[..., i, :]
        weight[i : i + count] += weight_quarters[i]
    from_first_centre = slice(window // 2, None)
    weight = weight.flatten()[from_first_centre].clamp(min=0.1)  # less only in the last half frame
    return total.flatten(-2)[..., from_first_centre] / weight


def vocoder_frames(
    current: Tensor, previous: Tensor, ratio: Fraction, first_phase: Tensor | None
) -> tuple[Tensor, Tensor]:
    """Phases of the stretched frames (..., F, K), complex of modulus 1, and their magnitudes.

    Args:
        current, previous: (..., F, window), see `analysis_frames`.
        ratio: Ratio of the stretch.
        first_phase: (..., K) phase of the first frame; None: the signal starts there.
    """
    window = current.shape[-1]
    # The first frame with sound is always an onset: content right of its centre weighs at least 4
    # times what it does one hop earlier. So no sum starts from an arbitrary phase.
    onset = current.square().sum(-1) > ONSET * previous.square().sum(-1)
    spectrum = torch.fft.rfft(current)
    # Neither torch.abs nor torch.angle, which is not vectorised and takes three times as long.
    magnitudes = (spectrum.real.square() + spectrum.imag.square()).sqrt()
    advance = spectrum * torch.fft.rfft(previous).conj()
    gain = torch.atan2(advance.imag.contiguous(), advance.real.contiguous())
    # The running sum counts whole numbers of 2^-32 of a turn, because a float32 sum of 10^5 phases
    # has no digits left for the phase, and because the difference of two integer sums is exact, so
    # that the sum may start anywhere.
    turns = (gain * (TURN / (2 * torch.pi))).round().to(torch.int64).cumsum(-2)
    unit_phase = spectrum / magnitudes.where(magnitudes > 0, 1)
    unit_phase = torch.where(magnitudes > 0, unit_phase, torch.ones_like(unit_phase))
    # The centre of each frame's energy, in samples after its middle; 0 for silence. (..., F, 1)
    sample_index = torch.arange(window, dtype=current.dtype, device=current.device)
    power = current.square()
    total = power.sum(-1, keepdim=True)
    moment = (power * (sample_index - window // 2)).sum(-1, keepdim=True)
    centre = torch.where(total > 0, moment / total.where(total > 0, 1), 0)
    delay = float(1 - ratio) * centre
    if first_phase is not None:
        unit_phase = torch.cat([first_phase.unsqueeze(-2), unit_phase[..., 1:, :]], -2)
        delay = torch.cat([torch.zeros_like(delay[..., :1, :]), delay[..., 1:, :]], -2)
    frame_index = torch.arange(current.shape[-2], device=current.device)
    last_onset = torch.where(onset, frame_index, 0)
    last_onset[..., 0] = 0
    last_onset = last_onset.cummax(-1).values.unsqueeze(-1)
    everywhere = last_onset.expand(turns.shape)
    since = (turns - turns.gather(-2, everywhere)).to(torch.int32)  # whole turns drop out
    phase = since.to(magnitudes.dtype) * (2 * torch.pi / TURN)
    # A shift to earlier samples adds a phase that is linear in the frequency.
    bins = torch.arange(window // 2 + 1, dtype=delay.dtype, device=delay.device)
    phase = phase + delay.gather(-2, last_onset) * bins * (2 * torch.pi / window)
    turned = unit_phase.gather(-2, everywhere) * torch.complex(phase.cos(), phase.sin())
    return turned, magnitudes


def analysis_frames(
    waveform: Tensor, ratio: Fraction, window: int, count: int, skipped: int = 0
) -> tuple[Tensor, Tensor]:
    """Windowed frames centred at t_m = skipped + m·hop/ratio and at t_m - hop.

    Returns:
        (..., count, window) each. Samples outside the waveform count as silence.
    """
    hop = window // 4
    centres = torch.arange(count, device=waveform.device) * (hop * ratio.denominator)
    centres = centres // ratio.numerator + skipped
    right = count * hop * ratio.denominator // ratio.numerator + window
    padded = pad(waveform, (window // 2 + hop, right)).unfold(-1, window, 1)
    hann = torch.hann_window(window, dtype=waveform.dtype, device=waveform.device)
    return padded[..., centres + hop, :] * hann, padded[..., centres, :] * hann


def fourier_resample(waveform: Tensor, sample_rate: int, ratio: Fraction, length: int) -> Tensor:
    """Band-limited y[n] = x(ratio · n) for n < length.

    x is zero-padded to k·p samples, and its spectrum is cut or extended to that of k·q samples,
    with p/q = ratio: the same time span at q/p times the rate. Where that band ends, the spectrum
    falls to 0 over the last 100 Hz; an abrupt edge would ring for minutes.
    """
    p, q = ratio.numerator, ratio.denominator
    k = fast_length(-(-(waveform.shape[-1] + WRAP) // p))
    bins = k * min(p, q) // 2 + 1
    spectrum = torch.fft.rfft(waveform, n=k * p)[..., :bins]
    if ratio != 1:
        bins_below_end = torch.arange(
            bins - 1, -1, -1, dtype=waveform.dtype, device=waveform.device
        )
        share = (bins_below_end * (sample_rate / (k * p) / EDGE)).clamp(max=1)
        spectrum = spectrum * (0.5 - 0.5 * torch.cos(torch.pi * share))
    resampled = torch.fft.irfft(spectrum, n=k * q)  # irfft appends the missing zeros
    return resampled[..., :length] * (q / p)


def vibrato(
    waveform: Tensor,
    sample_rate: int,
    *,
    rate: float | Tensor,
    depth: float | Tensor,
    start: int = 0,
) -> Tensor:
    """Sinusoidal time warp y(t) = x(t + depth/(2π rate) · sin 2π rate t).

    Time runs at 1 + depth·cos 2π rate t, and so does every frequency. The waveform is interpolated
    by Fourier oversampling (4 times) and 6-point Lagrange polynomials; the error is below -59 dB
    of the content at f_s/2 and below -90 dB under f_s/4.

    Args:
        waveform: (..., T).
        sample_rate: In Hz.
        rate: In Hz, a number or (..., 1) on the CPU.
        depth: Largest fractional stretch, a number or (..., 1).
        start: Position of the first sample in its signal.

    Returns:
        (..., T); time before the start and after the end is silent.
    """
    length = waveform.shape[-1]
    time = clock(length, sample_rate, start)
    wave = torch.sin(2 * torch.pi * rate * time) * (sample_rate / (2 * torch.pi * rate))
    offset = cast_like(waveform, depth) * wave.to(waveform)  # in samples, (..., T)
    padded = pad(waveform, (MARGIN, MARGIN))
    dense_length = OVERSAMPLING * padded.shape[-1]
    dense = fourier_resample(padded, sample_rate, Fraction(1, OVERSAMPLING), dense_length)
    fine = OVERSAMPLING * offset
    integer = fine.floor()
    sample_index = OVERSAMPLING * (torch.arange(length, device=waveform.device) + MARGIN)
    # Not torch.broadcast_shapes, whose first call imports a computer algebra system.
    shape = torch.Size([*(waveform[..., 0] + offset[..., 0]).shape, length])
    index = (sample_index + integer.long()).clamp(2, dense_length - 4).expand(shape)
    dense = dense.expand(*shape[:-1], -1)
    warped = waveform.new_zeros(shape)
    for i, weight in enumerate(lagrange(fine - integer)):
        warped += weight * dense.gather(-1, index + i - 2)
    return warped


def lagrange(fraction: Tensor) -> list[Tensor]:
    """Weights of the points -2 … 3 for interpolation at u in [0, 1): Π_{j≠i} (u - j) / (i - j)."""
    nodes = range(-2, 4)
    distances = [fraction - j for j in nodes]
    weights = []
    for i in nodes:
        scale = math.prod(i - j for j in nodes if j != i)
        a, b, c, d, e = (distance for j, distance in zip(nodes, distances) if j != i)
        product = a * b * (c * d) * e
        weights.append(product / scale)
    return weights


REACH = 0.3
"""Seconds within which the ringing of a faded and resampled edge falls below rounding."""

WARPING: dict[str, Any] = {"batched": True, "timed": True, "reach": (REACH, REACH)}


def pitch_at(semitones: int) -> Distortion:
    """Pitch shift by a number of semitones."""
    parameters = {"semitones": float(semitones)}
    ratio, _ = vocoder(semitones, 16000)
    # Covers the way to the next anchor, frames of 64 ms (more at some rates), and resampling's
    # ringing.
    reach = (0.0175 * ratio.denominator + REACH, REACH)
    return Distortion(
        f"pitch/{semitones:+d}st",
        "pitch",
        shift_pitch,
        parameters,
        timed=True,
        reach=reach,
        context=vocoder_phases,
    )


def vibrato_at(rate: int, depth: float) -> Distortion:
    """Member for PS: vibrato with a rate in Hz and a fixed depth."""
    parameters = {"rate": float(rate), "depth": depth}
    return Distortion(f"vibrato/{rate}Hz", "vibrato", vibrato, parameters, **WARPING)


def scaled_vibrato(rate: int, factor: float) -> Distortion:
    """Member for PM: vibrato whose depth follows from the reference's steadiness."""
    measured = {"depth": partial(vibrato_depth, factor=factor)}
    parameters = {"rate": float(rate)}
    return Distortion(f"vibrato/{rate}Hz", "vibrato", vibrato, parameters, measured, **WARPING)


PITCHES = tuple(map(pitch_at, (-4, -2, 2, 4)))
VIBRATO_RATES = (3, 5, 7)

SEPARATION = {
    "pitch": PITCHES,
    "vibrato": tuple(map(vibrato_at, VIBRATO_RATES, (0.001, 0.002, 0.003))),
}
MATCH = {"pitch": PITCHES, "vibrato": tuple(map(scaled_vibrato, VIBRATO_RATES, (1.0, 1.3, 1.6)))}
