"""Frames on an encoder's grid: their times, their levels, and the sources active in them."""

from __future__ import annotations

import torch
from torch import Tensor

from torch_mapss.audio.loudness import check_samples, unit_peak
from torch_mapss.core.autograd import safe_sqrt
from torch_mapss.core.checks import check_floating, check_real, check_whole
from torch_mapss.core.devices import back, wide
from torch_mapss.core.lengths import frame_count

# RMS, in float64, of the rounding left when a constant signal of peak 1 loses its mean.
_CONSTANT = 1e-14


def frame_times(frames: int, receptive_field: int, hop: int, sample_rate: int) -> Tensor:
    """Times of the frames' centres: (f * hop + receptive_field / 2) / sample_rate.

    Args:
        frames: number of frames.
        receptive_field: samples that one frame depends on.
        hop: samples from one frame to the next.
        sample_rate: Hz.

    Returns:
        `(frames,)` float64, seconds from the start of the waveform.

    Raises:
        TypeError, ValueError: an argument is not a whole number, or is too small.
    """
    frames, hop = check_whole(frames, "frames", 0), check_whole(hop, "hop", 1)
    receptive_field = check_whole(receptive_field, "receptive_field", 1)
    rate = check_whole(sample_rate, "sample_rate", 1)
    index = torch.arange(frames, dtype=torch.float64, device="cpu")
    return (index * hop + receptive_field / 2) / rate


def frame_signal(wave: Tensor, receptive_field: int, hop: int) -> Tensor:
    """Cut a waveform into the samples that each of an encoder's frames depends on.

    Args:
        wave: `(..., T)`.
        receptive_field: samples per frame.
        hop: samples from one frame to the next.

    Returns:
        `(..., F, receptive_field)`, F from `frame_count`: a strided view of `wave`, without a copy.

    Raises:
        TypeError, ValueError: as `frame_count`.
    """
    if frame_count(wave.shape[-1], receptive_field, hop) == 0:
        return wave.new_zeros((*wave.shape[:-1], 0, receptive_field))
    return wave.unfold(-1, receptive_field, hop)


def frame_rms(wave: Tensor, receptive_field: int, hop: int) -> Tensor:
    """Root mean square of each frame.

    Each frame is summed separately in float64. A running sum over the signal would be faster, but
    its differences lose a quiet frame after a loud passage.

    Args:
        wave: `(..., T)`.
        receptive_field: samples per frame.
        hop: samples from one frame to the next.

    Returns:
        `(..., F)` float64; a frame of zeros has RMS 0 and zero gradient.

    Raises:
        TypeError, ValueError: as `frame_count`; TypeError if `wave` is not a floating-point tensor.
    """
    wave = check_floating(wave, "wave")
    frames = frame_count(wave.shape[-1], receptive_field, hop)
    if frames == 0 or wave.numel() == 0:
        nothing = torch.zeros(*wave.shape[:-1], frames, dtype=torch.float64, device="cpu")
        return back(nothing, wave.device)
    squares = wide(wave).square().reshape(-1, 1, wave.shape[-1])
    power = torch.nn.functional.avg_pool1d(squares, receptive_field, hop)
    return back(safe_sqrt(power.reshape(*wave.shape[:-1], frames)), wave.device)


def source_activity(
    references: Tensor, receptive_field: int, hop: int, threshold: float = 0.1
) -> Tensor:
    """Frames in which each source is active: RMS above `threshold` times the source's own RMS.

    The rule must hold both with and without the signal's mean, so that neither a constant offset
    nor digital silence next to a passage with an offset counts as active.

    Args:
        references: `(..., S, T)`; each row is judged on its own.
        receptive_field: samples per frame of the encoder.
        hop: samples from one frame to the next.
        threshold: fraction of the RMS over all T samples. A higher one leaves out more soft frames.

    Returns:
        `(..., S, F)` bool. A digitally silent or constant reference is active nowhere.

    Raises:
        TypeError, ValueError: as `frame_count`; ValueError if there are no samples, if samples are
            not finite, or if the threshold is negative.
    """
    threshold = check_real(threshold, "threshold", "[0, inf)", "The method uses 0.1.")
    return active_frames(check_samples(references, "references"), receptive_field, hop, threshold)


@torch.no_grad()
def active_frames(references: Tensor, receptive_field: int, hop: int, threshold: float) -> Tensor:
    """:func:`source_activity` for waveforms that have been checked already."""
    unit, _, _ = unit_peak(references)
    unit = wide(unit)
    centred = unit - unit.mean(-1, keepdim=True)
    spread = centred.square().mean(-1, keepdim=True).sqrt()
    level = unit.square().mean(-1, keepdim=True).sqrt()
    loud = frame_rms(centred, receptive_field, hop) > threshold * spread.clamp(min=_CONSTANT)
    loud &= (frame_rms(unit, receptive_field, hop) > threshold * level) & (level > _CONSTANT)
    return loud.to(references.device)
