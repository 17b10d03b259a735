"""The band that a signal fills: where its spectrum ends.

Speech from a telephone, and whatever was resampled from a lower rate, ends in an edge below half
its sample rate; what an encoder receives above it is rounding noise.
"""

from __future__ import annotations

import math

import torch
from torch import Tensor

from torch_mapss.audio.waveforms import is_silent, with_samples
from torch_mapss.core.checks import check_whole
from torch_mapss.core.devices import back, wide

# A window of 32 ms resolves 30 Hz; its sidelobes lie below what counts.
_WINDOW_S = 0.032
# How far below its strongest part a spectrum still counts. Full-band speech ends 40 to 55 dB down
# at 7.8 kHz; a resampler's stop band and the rounding of 16 bits lie 75 to 100 dB down.
_FLOOR_DB = -60.0
# The level of a frequency is that of the frames in which it is strong: consonants are rare.
_QUANTILE = 0.95
_QUIET_DB = -40.0  # frames that far below the loudest one are pauses
_MOST_FRAMES = 2000  # evenly over the signal, however long it is
_SMOOTH = 11  # bins


@torch.no_grad()
def bandwidth(wave: Tensor, sample_rate: int) -> Tensor:
    """Where the spectrum of a signal ends.

    The highest frequency whose level, the 95 % quantile over the frames that are no pauses, lies
    within 60 dB of the strongest one.

    Args:
        wave: `(..., T)`.
        sample_rate: Hz.

    Returns:
        `(...)` float64 in Hz, from 0 (silence) to `sample_rate` / 2, in steps of about 30 Hz.

    Raises:
        TypeError: `wave` is no floating-point tensor or `sample_rate` no whole number.
        ValueError: no samples, or a rate that is not positive.
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
    # The running median over a few bins: a lone line (a pilot tone) is no band.
    half = _SMOOTH // 2
    padded = torch.nn.functional.pad(level[None, None], (half, half), mode="replicate")[0, 0]
    medians = padded.unfold(0, _SMOOTH, 1).median(-1).values
    present = medians > 10 ** (_FLOOR_DB / 10) * level.amax()
    bins = torch.arange(1, len(level) + 1, device=row.device)
    edge = torch.where(present, bins, 0).amax() * (rate / size)
    return back(wide(edge).clamp(max=rate / 2), row.device)
