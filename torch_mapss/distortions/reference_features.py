"""Features that members measure on a reference: amplitudes, spectral peaks, energy quantiles.

`ReferenceFeatures` computes each quantity once per reference, when a member first asks for it. The
functions below it are the quantities members ask for; a member binds their settings with
`functools.partial`, so that a bank can be compared, hashed and pickled.
"""

from __future__ import annotations

from functools import cached_property

import torch
from torch import Tensor

from torch_mapss.core.devices import wide
from torch_mapss.core.lengths import fast_length
from torch_mapss.distortions.signal import root_mean_square

NOTCHES = 20  # number of notches, "<= 20"
LOWEST_PEAK = 80.0  # operating band, 80 Hz to 0.45 f_s
HIGHEST = 0.45  # of the sample rate: upper end of the notch band and of all cut-offs
PEAK_SPACING = 300.0  # Hz between two notches, at least
LOWEST_CUTOFF = 100.0
CUTOFF_STEP = 100.0

STEADINESS_FRAME = 0.02  # seconds; frame over which A_RMS / A_peak is measured
ACTIVE = 0.1  # share of the entire signal's A_RMS above which a frame counts
ROWS = 2**23  # samples whose spectra are computed at a time

PEAK_FLOOR = 1e-8
"""Peaks more than 80 dB below the strongest do not count: 300 Hz from a sine the side lobes of the
64 ms Hann window have fallen to -84 dB, and a notch there would change nothing."""


class ReferenceFeatures:
    """Lazily measured properties of references (..., T); amplitudes have shape (..., 1).

    Args:
        waveform: (..., T).
        sample_rate: In Hz.
    """

    def __init__(self, waveform: Tensor, sample_rate: int) -> None:
        self.waveform = waveform
        self.sample_rate = sample_rate
        #: A_RMS, (..., 1), which most members need.
        self.rms = root_mean_square(waveform)

    @cached_property
    def steadiness(self) -> Tensor:
        """Median of A_RMS / A_peak over frames of 20 ms that are louder than a tenth of A_RMS.

        Over an entire file the ratio reflects pauses and accents: 0.1 to 0.25 for any speech. Frame
        by frame it reflects the sounds: 0.3 to 0.6. (..., 1); 0 for silence.
        """
        length = min(round(STEADINESS_FRAME * self.sample_rate), self.waveform.shape[-1])
        frames = self.waveform.unfold(-1, length, length)
        rms, peak = frames.square().mean(-1).sqrt(), frames.abs().amax(-1)
        active = (rms > ACTIVE * self.rms) & (peak > 0)
        ratio = torch.where(active, rms / peak.where(active, 1), torch.inf).sort(-1).values
        count = active.sum(-1, keepdim=True)
        middle = [ratio.gather(-1, index.clamp(min=0)) for index in ((count - 1) // 2, count // 2)]
        return torch.where(count > 0, (middle[0] + middle[1]) / 2, 0)

    @cached_property
    def a95(self) -> Tensor:
        """A_95, the 95th percentile of the absolute amplitude, (..., 1).

        Interpolated between neighbours like `torch.quantile`, which refuses more than 2^24 values;
        only the upper end is sorted.
        """
        length = self.waveform.shape[-1]
        index, remainder = divmod(95 * (length - 1), 100)
        upper = self.waveform.abs().topk(length - index, dim=-1).values
        lower_neighbour, upper_neighbour = upper[..., -1:], upper[..., -2:-1]
        if remainder == 0:
            return lower_neighbour
        return torch.lerp(lower_neighbour, upper_neighbour, remainder / 100)

    @cached_property
    def peaks(self) -> Tensor:
        """Up to 20 local maxima of the long-term spectrum, at least 300 Hz apart.

        The long-term spectrum is the mean power of half-overlapping Hann windows of 64 ms, whose
        resolution is 16 Hz. The strongest maximum is taken and its neighbourhood removed, 20 times;
        each round is one `max` over the whole batch. (..., 20) in Hz, strongest first; NaN beyond
        the last peak.
        """
        waveform = self.waveform
        window = fast_length(round(0.064 * self.sample_rate))
        hop = window // 2
        missing = max(window - waveform.shape[-1], -(waveform.shape[-1] - window) % hop)
        frames = torch.nn.functional.pad(waveform, (0, missing)).unfold(-1, window, hop)
        hann = torch.hann_window(window, dtype=waveform.dtype, device=waveform.device)
        power = torch.zeros_like(hann[: window // 2 + 1])
        size = max(1, ROWS // (window * max(1, frames[..., 0, 0].numel())))
        for batch in frames.split(size, -2):
            power = power + torch.fft.rfft(batch * hann).abs().square().sum(-2)
        power = power / frames.shape[-2]
        bins = torch.arange(1, window // 2, dtype=power.dtype, device=power.device)
        hertz = bins * (self.sample_rate / window)
        inner = power[..., 1:-1]
        maxima = (inner > power[..., :-2]) & (inner >= power[..., 2:])
        power = inner
        inside = (hertz >= LOWEST_PEAK) & (hertz <= HIGHEST * self.sample_rate)
        floor = PEAK_FLOOR * power.amax(-1, keepdim=True)
        left = torch.where(maxima & inside & (power > floor), power, 0)
        peaks = []
        for _ in range(NOTCHES):
            height, index = left.max(-1, keepdim=True)
            frequency = hertz[index]
            left = torch.where((hertz - frequency).abs() < PEAK_SPACING, 0, left)
            peaks.append(torch.where(height > 0, frequency, torch.nan))
        return torch.cat(peaks, -1)

    @cached_property
    def cumulative_energy(self) -> Tensor:
        """Share of the energy at or below each bin of the spectrum, rising to 1; 1 for silence.

        (..., K) with K = fast_length(T) // 2 + 1.
        """
        rows = self.waveform.reshape(-1, self.waveform.shape[-1])
        size = max(1, ROWS // rows.shape[-1])
        shares = []
        for batch in rows.split(size):
            spectrum = torch.fft.rfft(batch, n=fast_length(batch.shape[-1]))
            power = wide(spectrum.abs().square())
            power[..., 1:-1] *= 2  # bins between 0 and f_s / 2 also stand for negative frequencies
            running = power.cumsum(-1)
            total = running[..., -1:]
            shares.append(torch.where(total > 0, running / total.where(total > 0, 1), 1))
        return torch.cat(shares).reshape(*self.waveform.shape[:-1], -1)


# --------------------------------------------------------------------------------------------
# What members ask for: functions of the features, with their settings bound by functools.partial
# --------------------------------------------------------------------------------------------


def scaled_amplitude(features: ReferenceFeatures, *, feature: str, factor: float) -> Tensor:
    """Multiple of an amplitude of the reference, ``rms`` or ``a95``."""
    amplitude: Tensor = getattr(features, feature)
    return factor * amplitude


def spectral_peak(features: ReferenceFeatures, *, rank: int) -> Tensor:
    """Frequency in Hz of the reference's peak of a rank (0 is the strongest), or NaN."""
    return features.peaks[..., rank : rank + 1]


def fixed_cutoff(features: ReferenceFeatures, *, hertz: float) -> Tensor:
    """Fixed cut-off in Hz, limited to between 100 Hz and 0.45 f_s."""
    cutoff = torch.full_like(features.waveform[..., :1], hertz)
    return cutoff.clamp(LOWEST_CUTOFF, HIGHEST * features.sample_rate)


def energy_quantile(features: ReferenceFeatures, *, share: float) -> Tensor:
    """Frequency below which a given share of the energy lies.

    Rounded to the nearest 100 Hz, and limited to between 100 Hz and 0.45 f_s.
    """
    running = features.cumulative_energy
    index = (running < share).sum(-1, keepdim=True)  # the first bin that reaches it
    hertz = index.float() * (0.5 * features.sample_rate / (running.shape[-1] - 1))
    rounded = torch.floor(hertz / CUTOFF_STEP + 0.5) * CUTOFF_STEP
    cutoff = rounded.clamp(LOWEST_CUTOFF, HIGHEST * features.sample_rate)
    return cutoff.to(features.waveform)


def vibrato_depth(features: ReferenceFeatures, *, factor: float) -> Tensor:
    """Depth clip(0.03 ρ factor, 0.01, 0.05), ρ the steadiness: steady signals tolerate more."""
    return (0.03 * factor * features.steadiness).clamp(0.01, 0.05)
