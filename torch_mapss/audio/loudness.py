"""Loudness after ITU-R BS.1770-4, batched and differentiable, and normalisation to a level.

The high-pass of the K-weighting removes a constant offset, so loudness does not depend on one.
"""

from __future__ import annotations

import functools
import math

import torch
from torch import Tensor

from torch_mapss.audio.waveforms import SILENCE_PEAK, with_samples
from torch_mapss.core.checks import check_real, check_whole
from torch_mapss.core.lengths import fast_length
from torch_mapss.core.pooling import masked_mean

# ---------------------------------------------------------------------------------------------
# Loudness: ITU-R BS.1770-4, one channel
#
# K-weighting is two second-order sections, given by the standard as coefficients at 48 kHz. Other
# rates need the analogue filters that these come from. With w = (1 - 1/z) / (1 + 1/z), so that
# 1/z = (1 - w) / (1 + w) and w = j tan(omega / 2) on the unit circle,
#
#     (1 + w)^2 (c0 + c1 / z + c2 / z^2)  =  (c0 + c1 + c2) + 2 (c0 - c2) w + (c0 - c1 + c2) w^2
#
# which is the section's analogue prototype in the warped frequency w of 48 kHz. Its natural
# frequency is K48 = sqrt(constant / quadratic term of the denominator) = tan(pi f0 / 48000). At
# another rate the same f0 sits at K = tan(pi f0 / rate), hence w is replaced by w K48 / K. At 48
# kHz this is the identity, and the passband gain (the standard's high-pass has 1.005, which the
# offset of -0.691 dB presumes) is the same at every rate. Both filters fit exactly at their own f0;
# elsewhere the warping shows at low rates: a 997 Hz sine reads 0.05 LU less at 16 kHz and 0.2 LU
# less at 8 kHz than at 48 kHz, as in other meters, which use the same transform.
# ---------------------------------------------------------------------------------------------

# BS.1770-4, tables 1 and 2, the shelf and the high-pass: (b0, b1, b2), (a0, a1, a2).
_SECTIONS_48K = (
    (
        (1.53512485958697, -2.69169618940638, 1.19839281085285),
        (1.0, -1.69065929318241, 0.73248077421585),
    ),
    ((1.0, -2.0, 1.0), (1.0, -1.99004745483398, 0.99007225036621)),
)

_LOUDNESS_OFFSET = -0.691  # dB, equation 2: a 997 Hz sine of amplitude 1 reads -3.01 LUFS
_ABSOLUTE_GATE = -70.0  # LUFS
_RELATIVE_GATE = -10.0  # LU
_HOPS_PER_BLOCK = 4  # blocks of 400 ms every 100 ms
# Mean square, at peak 1, below which an output counts as silent in its reference's gating blocks.
# Its level is then undetermined, and the peak limit sets the gain.
_LEAST_POWER = 1e-20

# Seconds of the K-weighting's impulse response that are used. The high-pass decays as exp(-240 t):
# the part beyond 0.15 s sums to less than 1e-14 (benchmarks/loudness.py).
_DECAY = 0.15


@functools.lru_cache(maxsize=4)
def _k_response(sample_rate: int, length: int, dtype: torch.dtype, device: torch.device) -> Tensor:
    """K-weighting on the grid of a real FFT of `length` points, `(length // 2 + 1,)` complex."""
    # Cached across calls, so it must not be an inference tensor, which no later graph could use.
    with torch.inference_mode(False), torch.no_grad():
        bins = torch.arange(length // 2 + 1, dtype=torch.float64, device="cpu")
        half = bins * (math.pi / length)  # omega / 2
        response = torch.ones_like(half, dtype=torch.complex128)
        for (b0, b1, b2), (a0, a1, a2) in _SECTIONS_48K:
            k48 = math.sqrt((a0 + a1 + a2) / (a0 - a1 + a2))
            frequency = 48000 / math.pi * math.atan(k48)
            ratio = k48 / math.tan(math.pi * frequency / sample_rate)
            # w = j tan(half) is infinite at half the sample rate, but both polynomials of it,
            # multiplied by cos^2, are finite.
            cos, sin = half.cos(), half.sin() * ratio
            cos2, sin2 = cos.square(), sin.square()
            numerator = torch.complex(
                (b0 + b1 + b2) * cos2 - (b0 - b1 + b2) * sin2, 2 * (b0 - b2) * sin * cos
            )
            denominator = torch.complex(
                (a0 + a1 + a2) * cos2 - (a0 - a1 + a2) * sin2, 2 * (a0 - a2) * sin * cos
            )
            response = response * (numerator / denominator)
        return response.to(dtype).to(device)


def k_weighted(wave: Tensor, sample_rate: int) -> Tensor:
    """K-weight `wave (..., T)` by both sections, started at rest.

    The recursion is run as a product of spectra: a loop over samples would be slow on a GPU and in
    autograd. Sampling the response on a grid of n points folds the impulse response at n; with n >=
    T + decay only the negligible remainder after the decay folds into the T samples returned.
    """
    if wave.numel() == 0:
        return wave  # not every FFT accepts an empty batch
    samples = wave.shape[-1]
    length = fast_length(samples + math.ceil(_DECAY * sample_rate))
    spectrum = torch.fft.rfft(wave, n=length)
    response = _k_response(sample_rate, length, spectrum.dtype, spectrum.device)
    return torch.fft.irfft(spectrum * response, n=length)[..., :samples]


def block_powers(wave: Tensor, sample_rate: int) -> tuple[Tensor, Tensor]:
    """Mean squares after K-weighting: of each gating block `(..., K)`, and of all samples `(...)`.

    Blocks are four hops of 100 ms (rounded to samples); a block cut short by the end of the signal
    is left out, as the standard says. K is 0 for a signal shorter than one block.
    """
    squares = k_weighted(wave, sample_rate).square()
    hop = round(sample_rate / 10)
    count = squares.shape[-1] // hop
    complete_hops = squares[..., : count * hop].unflatten(-1, (count, hop))
    return _blocks(complete_hops.mean(-1)), squares.mean(-1)


def _blocks(hops: Tensor) -> Tensor:
    """Mean of each gating block from the means of the hops; none if a block needs more hops."""
    if hops.shape[-1] < _HOPS_PER_BLOCK:
        return hops[..., :0]
    return hops.unfold(-1, _HOPS_PER_BLOCK, 1).mean(-1)


def lufs(power: Tensor) -> Tensor:
    return _LOUDNESS_OFFSET + 10 * power.log10()


def _gated(blocks: Tensor, shift: Tensor) -> Tensor:
    """Blocks that would pass both gates if the signal were `shift (...)` dB louder; no gradient.

    Returns:
        `(..., K)` bool. Both comparisons are strict (equations 4 and 6): if nothing passes the
        absolute gate, the relative one is NaN and nothing passes it either.
    """
    loudness = lufs(blocks) + shift.unsqueeze(-1)
    above = loudness > _ABSOLUTE_GATE
    relative = lufs(masked_mean(blocks, above)) + shift + _RELATIVE_GATE
    return above & (loudness > relative.unsqueeze(-1))


def _gated_power(blocks: Tensor, whole_power: Tensor, gate: Tensor) -> Tensor:
    """Mean power `(...)` of the gated blocks, or of the whole signal where no block is left."""
    return torch.where(gate.any(-1), masked_mean(blocks, gate), whole_power)


def check_samples(wave: Tensor, name: str) -> Tensor:
    """The waveform as floats; ValueError if it is empty or has a non-finite sample."""
    wave = with_samples(wave, name)
    if not bool(wave.detach().abs().amax(-1).isfinite().all()):
        index = (~wave.detach().isfinite()).nonzero()[0].tolist()
        raise ValueError(
            f"{name} must hold finite samples, got NaN or infinity at index {tuple(index)} of "
            f"shape {tuple(wave.shape)}. No level can be measured; find the step that produced it."
        )
    return wave


def unit_peak(wave: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """Scale each signal to peak 1.

    Levels are measured on the scaled wave, so that squares neither underflow nor overflow. The peak
    is a constant to autograd: every use adds its logarithm back or does not depend on scale, so the
    gradient is exact whatever constant is divided out. Silent signals are left as they are, at a
    nominal peak of 1, and get no gradient.

    Returns:
        The scaled wave, `(..., T)`; its former peak, without gradient; and which signals are
        silent; the last two `(..., 1)`.
    """
    peak = wave.detach().abs().amax(-1, keepdim=True)
    silent = peak < SILENCE_PEAK
    peak = torch.where(silent, 1.0, peak)
    return torch.where(silent, wave.detach(), wave) / peak, peak, silent


_LOWEST_RATE = 8000  # Hz; the shelf's corner (1.7 kHz) must stay well below half the rate


def integrated_loudness(wave: Tensor, sample_rate: int) -> Tensor:
    """Integrated loudness of mono signals, ITU-R BS.1770-4: K-weighted and gated.

    The signal is cut into blocks of 400 ms every 100 ms. Blocks at or below -70 LUFS are left out,
    then those 10 LU or more below the mean of the remaining ones. Where no block is left, the
    result is the ungated loudness of the whole signal.

    Args:
        wave: `(..., T)`, one signal per row. Half precision is computed in float32.
        sample_rate: Hz, at least 8000.

    Returns:
        `(...)` in LUFS (a 997 Hz sine of amplitude 1 reads -3.01); -inf, with zero gradient, for
        digital silence. Differentiable through the power of the blocks; the choice of gated blocks
        is taken as constant.

    Raises:
        TypeError: `wave` is not a floating-point tensor or `sample_rate` not a whole number.
        ValueError: there are no samples, samples are not finite, or the rate is below 8000 Hz.
    """
    rate = check_whole(sample_rate, "sample_rate", _LOWEST_RATE)
    unit, *scale = unit_peak(check_samples(wave, "wave"))
    peak, silent = (x.squeeze(-1) for x in scale)
    level = 20 * peak.log10()
    blocks, mean_power = block_powers(unit, rate)
    power = _gated_power(blocks, mean_power, _gated(blocks.detach(), level))
    return torch.where(silent, -torch.inf, lufs(torch.where(silent, 1.0, power)) + level)


def normalize_loudness(
    wave: Tensor, sample_rate: int, target: float = -23.0, peak: float = 1.0
) -> Tensor:
    """Bring each signal to `target` LUFS separately, then down to `peak` where it exceeds that.

    The gates are applied at the level of the output, before the peak rule: the result reads
    `target` on a BS.1770-4 meter and does not depend on the scale of the input. Measuring the input
    at its own level would not do, since the gate at -70 LUFS is absolute: a signal 60 dB down would
    lose its pauses to it, then its quiet words, then everything.

    Args:
        wave: `(..., T)`, any scale (peaks of 25 or of 1e-6 alike); nothing is clipped.
        sample_rate: Hz, at least 8000.
        target: loudness of the output in LUFS. At or below -70 no block passes the gate, and the
            ungated loudness of the whole signal is brought to the target.
        peak: largest absolute sample of the output; `math.inf` for no limit. The whole signal is
            scaled down, so its shape is kept and its loudness falls below `target`.

    Returns:
        `(..., T)` float32, or float64 for float64 input. Digital silence is returned unchanged,
        with zero gradient. Differentiable, also through the peak where it limits.

    Raises:
        TypeError: `wave` is not a floating-point tensor or `sample_rate` not a whole number.
        ValueError: as `integrated_loudness`; `target` not finite; `peak` not positive.
    """
    target = check_real(target, "target")
    if not peak > 0:
        raise ValueError(f"peak must be positive (math.inf for no limit), got {peak}.")
    rate = check_whole(sample_rate, "sample_rate", _LOWEST_RATE)
    return at_loudness(check_samples(wave, "wave"), rate, target, peak)


def at_loudness(
    wave: Tensor, rate: int, target: float, peak: float = 1.0, gates: Tensor | None = None
) -> Tensor:
    """:func:`normalize_loudness` for a waveform that has been checked already.

    Args:
        wave, rate, target, peak: as in :func:`normalize_loudness`.
        gates: `(..., K)` bool, gating blocks whose mean power is brought to `target`, e.g. those of
            a reference from :func:`passing_blocks`; None: those that pass the signal's own gates.
            Where no block is marked, the whole signal counts.
    """
    unit, _, silent = unit_peak(wave)
    blocks, mean_power = block_powers(unit, rate)
    gain = _gain(blocks, mean_power, silent.squeeze(-1), target, gates)
    loud = unit * gain.unsqueeze(-1)
    if peak == math.inf:
        return loud
    highest = loud.abs().amax(-1, keepdim=True)
    # Dividing by the larger of both keeps the factor at 1, with zero gradient, under the limit.
    return loud * torch.where(silent, 1.0, peak / highest.clamp(min=peak))


@torch.no_grad()
def passing_blocks(wave: Tensor, rate: int, target: float) -> Tensor:
    """Blocks of 400 ms `(..., K)` bool that pass the gates once signals `(..., T)` are at `target`.

    An output levelled by its reference's blocks gets its gain from the passages where its source
    plays, so nothing that it adds in the pauses changes its level.
    """
    unit, _, silent = unit_peak(wave)
    return _passing(*block_powers(unit, rate), target) & ~silent


def _passing(blocks: Tensor, whole_power: Tensor, target: float) -> Tensor:
    """Blocks `(..., K)` that pass both gates once the signals are at `target`; no gradient."""
    # The gain depends on the gates and the gates on the gain. This iterates to the fixed point from
    # the ungated loudness, which does not depend on the input's scale either. Only blocks within a
    # few dB of the absolute gate can change, so two rounds suffice; four cost little.
    blocks, power = blocks.detach(), whole_power.detach()
    for _ in range(4):
        gates = _gated(blocks, target - lufs(power))
        power = _gated_power(blocks, whole_power.detach(), gates)
    return gates


def _gain(
    blocks: Tensor, mean_power: Tensor, silent: Tensor, target: float, gates: Tensor | None
) -> Tensor:
    """Gain `(...)` that brings the `gates` of signals at peak 1 to `target`; 1 for silence."""
    if gates is None:
        gates = _passing(blocks, mean_power, target)
    power = _gated_power(blocks, mean_power, gates).clamp(min=_LEAST_POWER)
    power = torch.where(silent, 1.0, power)
    return torch.where(silent, 1.0, 10 ** ((target - lufs(power)) / 20))


def k_weighted_energy(wave: Tensor, rate: int) -> Tensor:
    """Sum of the squares `(...)` of signals `(..., T)` after K-weighting, in float64."""
    return k_weighted(wave, rate).double().square().sum(-1)


class Meter:
    """Measures, segment by segment, the gain that brings signals to a level.

    The gain equals, up to rounding, that of :func:`at_loudness` on entire signals.

    Args:
        shape: leading axes of the signals.
        samples: length of the signals in samples.
        sample_rate: Hz.
        template: tensor with the device and dtype of the segments.
    """

    def __init__(
        self, shape: tuple[int, ...], samples: int, sample_rate: int, template: Tensor
    ) -> None:
        self.sample_rate, self.samples = sample_rate, samples
        self.hop = round(sample_rate / 10)
        self.lead = math.ceil(_DECAY * sample_rate)  # samples of context before a segment
        self._hops = template.new_zeros(*shape, samples // self.hop)
        self._mean_power = template.new_zeros(shape)
        self._peak = template.new_zeros(shape)

    def add(self, rows: tuple[Tensor | slice, ...], piece: Tensor, begin: int) -> None:
        """Add a segment of some of the signals, from sample ``begin`` on.

        Args:
            rows: index into the leading axes that selects the signals.
            piece: (n, min(lead, begin) + length), or with the leading axes: context, then the
                segment.
            begin: position of the segment's first sample, a multiple of ``hop``. Each segment but
                the last must be a multiple of ``hop`` long.
        """
        lead = min(self.lead, begin)
        segment = piece[..., lead:]
        squares = k_weighted(piece, self.sample_rate)[..., lead:].square()
        first_hop, count = begin // self.hop, squares.shape[-1] // self.hop
        complete_hops = squares[..., : count * self.hop].unflatten(-1, (count, self.hop))
        hops = (*rows, slice(first_hop, first_hop + count))
        self._hops[hops] = complete_hops.mean(-1)
        self._mean_power[rows] += squares.sum(-1) / self.samples
        self._peak[rows] = torch.maximum(self._peak[rows], segment.abs().amax(-1))

    def gain(self, target: float, peak: float = 1.0, gates: Tensor | None = None) -> Tensor:
        """Gain per signal, in the shape of the leading axes; 1 for silence.

        Args:
            target, peak, gates: as in :func:`at_loudness`.
        """
        blocks, mean_power, highest, silent = self._at_peak_one()
        gain = _gain(blocks, mean_power, silent, target, gates)
        if peak != math.inf:
            gain = gain * (peak / gain.clamp(min=peak))
        return torch.where(silent, 1.0, gain / highest)

    def passing_blocks(self, target: float) -> Tensor:
        """:func:`passing_blocks` for the signals added."""
        blocks, mean_power, _, silent = self._at_peak_one()
        return _passing(blocks, mean_power, target) & ~silent.unsqueeze(-1)

    def _at_peak_one(self) -> tuple[Tensor, Tensor, Tensor, Tensor]:
        """Powers of blocks and whole signals at peak 1; former peaks; which signals are silent."""
        silent = self._peak < SILENCE_PEAK
        highest = torch.where(silent, 1.0, self._peak)
        blocks = _blocks(self._hops / highest.square().unsqueeze(-1))
        return blocks, self._mean_power / highest.square(), highest, silent


def metered(wave: Tensor, rate: int, at_once: int) -> Meter:
    """A :class:`Meter` fed with long waveforms (n, T), about ``at_once`` samples at a time."""
    meter = Meter(wave.shape[:-1], wave.shape[-1], rate, wave)
    step = max(1, at_once // (len(wave) * meter.hop)) * meter.hop
    for begin in range(0, wave.shape[-1], step):
        piece = wave[:, max(begin - meter.lead, 0) : begin + step]
        meter.add((slice(None),), piece, begin)
    return meter
