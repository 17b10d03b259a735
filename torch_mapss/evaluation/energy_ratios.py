"""SI-SDR, SDR, SIR and SAR: the energy ratios that are usual in papers, beside our scores.

They are computed over the files as they are: at their own rate, of the mean of their channels or of
every channel. Where the files of a mixture have several rates, at the scorer's.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from torch_mapss.audio import is_constant, shift, si_sdr
from torch_mapss.evaluation.audio_input import Clip
from torch_mapss.pipeline.energy_ratios import bss_eval


def energy_ratios(
    estimates: Sequence[Clip],
    references: Sequence[Clip],
    attributed: Sequence[int],
    lags: Sequence[int],
    rate: int,
    bss: bool,
) -> list[dict[str, list[float]]]:
    """The energy ratios of each channel and estimate in dB, NaN where its reference is silent.

    Args:
        estimates: S' clips.
        references: S clips.
        attributed: S', the reference of each estimate.
        lags: S' samples at ``rate`` by which the estimates are moved to an earlier time.
        rate: of the scorer, in Hz.
        bss: whether SDR, SIR and SAR are computed as well as SI-SDR.

    Returns:
        For each channel that is scored ``si_sdr`` and, with ``bss``, ``sdr``, ``sir`` and ``sar``
        of the S' estimates.

    Raises:
        ImportError: fast_bss_eval is missing.
    """
    outputs, truth, own_rate = _waveforms(estimates, references, rate)
    shifts = [round(lag * own_rate / rate) for lag in lags]
    ratios_of_channels: list[dict[str, list[float]]] = []
    for channel_outputs, channel_truth in zip(outputs, truth):
        rows = zip(channel_outputs, shifts)
        moved = torch.stack([shift(wave, samples) for wave, samples in rows])
        ratios = _of_channel(moved, channel_truth, [*attributed], bss)
        ratios_of_channels.append({name: values.tolist() for name, values in ratios.items()})
    return ratios_of_channels


def _waveforms(
    estimates: Sequence[Clip], references: Sequence[Clip], rate: int
) -> tuple[Tensor, Tensor, int]:
    """(C, S', T) estimates and (C, S, T) references in float64, and their rate in Hz."""
    clips = [*references, *estimates]
    rates = {clip.rate for clip in clips}
    waves = [clip.parts for clip in clips]
    if len(rates) == 1 and all(clip.native is not None for clip in clips):
        (rate,) = rates
        waves = [_native(clip) for clip in clips]
    samples = min(wave.shape[-1] for wave in waves)
    stacked = torch.stack([wave[:, :samples].double() for wave in waves], 1)
    stacked = stacked.nan_to_num(0.0, 0.0, 0.0)
    return stacked[:, len(references) :], stacked[:, : len(references)], rate


def _native(clip: Clip) -> Tensor:
    """(C, T) at the clip's rate: its channels where each is scored, else their mean."""
    assert clip.native is not None
    if len(clip.parts) == len(clip.native):
        return clip.native
    return clip.native.mean(0, keepdim=True)


def _of_channel(
    outputs: Tensor, truth: Tensor, attributed: list[int], bss: bool
) -> dict[str, Tensor]:
    """(S',) ratios of outputs (S', T) against truth (S, T)."""
    undefined = is_constant(truth)[attributed]
    values = {"si_sdr": si_sdr(outputs, truth[attributed]).masked_fill(undefined, torch.nan)}
    if bss:
        values |= bss_eval(outputs, truth, attributed)
    return values
