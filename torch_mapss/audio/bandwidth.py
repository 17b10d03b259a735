"""Bandwidth of a signal: the frequency at which its spectrum ends.

The spectrum of telephone speech, and of anything resampled from a lower rate, ends below half the
sample rate; above that edge an encoder receives only rounding noise.
"""

from __future__ import annotations

import math

import torch
from torch import Tensor

from torch_mapss.audio.waveforms import is_silent, with_samples
from torch_mapss.core.checks import check_whole
from torch_mapss.core.devices import back, wide

# A window of 32 ms resolves 30 Hz, and its sidelobes lie below the floor.
_WINDOW_S = 0.032
# Lowest level that still counts as signal, relative to the strongest frequency. Full-band speech
# ends 40 to 55 dB down at 7.8 kHz; a resampler's stop band and the rounding of 16 bits lie 75 to
# 100 dB down.
_FLOOR_DB = -60.0
# Quantile over frames that gives a frequency's level: high, because consonants are rare.
_QUANTILE = 0.95
_QUIET_DB = -40.0  # frames this far below the loudest one count as pauses
_MOST_FRAMES = 2000  # spread evenly over the signal, whatever its length
_SMOOTH = 11  # bins


@torch.no_grad()
def bandwidth(wave: Tensor, sample_rate: int) -> Tensor:
    """Frequency at which the spectrum of a signal ends.

    This is the highest frequency whose level (its 95 % quantile over all frames but pauses) lies
    within 60 dB of the strongest frequency's.

    Args:
        wave: `(..., T)`.
        sample_rate: Hz.

    Returns:
        `(...)` float64 in Hz, from 0 (silence) to `sample_rate` / 2, in steps of about 30 Hz.

    Raises:
        TypeError: `wave` is not a floating-point tensor, or `sample_rate` not a whole number.
        ValueError: there are no samples, or the rate is not positive.
    """
    rate = check_whole(sample_rate, "sample_rate", 1)
    wave = with_samples(wave, "wave").detach()
    rows = wave.reshape(-1, wave.shape[-1])
    bandwidths = torch.stack([_row_bandwidth(row, rate) for row in rows])
    return bandwidths.reshape(wave.shape[:-1])


def _row_bandwidth(row: Tensor, rate: int) -> Tensor:
    if bool(is_silent(row)):
        return torch.zeros((), dtype=torch.float64, device=row.device)
    # Power of each frequency in the frames in which it is strong, (size // 2 + 1,).
    size = 2 ** round(math.log2(_WINDOW_S * rate))
    row = torch.nn.functional.pad(row / row.abs().amax(), (0, max(size - len(row), 0)))
    hop = max(size // 2, -(-(len(row) - size) // _MOST_FRAMES))
    frames = row.unfold(-1, size, hop) * torch.hann_window(size, dtype=row.dtype, device=row.device)
    power = torch.fft.rfft(frames).abs().square()
    total = power.sum(-1)
    loud = power[total > 10 ** (_QUIET_DB / 10) * total.amax()]
    level = loud.quantile(_QUANTILE, dim=0)
    # A running median over a few bins, so that a single tone does not count as bandwidth.
    half = _SMOOTH // 2
    padded = torch.nn.functional.pad(level[None, None], (half, half), mode="replicate")[0, 0]
    medians = padded.unfold(0, _SMOOTH, 1).median(-1).values
    present = medians > 10 ** (_FLOOR_DB / 10) * level.amax()
    bins = torch.arange(1, len(level) + 1, device=row.device)
    edge = torch.where(present, bins, 0).amax() * (rate / size)
    return back(wide(edge).clamp(max=rate / 2), row.device)
