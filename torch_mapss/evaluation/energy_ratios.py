"""SI-SDR, SDR, SIR and SAR: the energy ratios common in papers, reported alongside our scores.

They are computed from the original files, at their own rate, for the mean of their channels or for
every channel. If the files of a mixture have different rates, they are computed at the scorer's.
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
        lags: (S',) samples at ``rate`` by which estimates are shifted to an earlier time.
        rate: sample rate of the scorer in Hz.
        bss: whether to compute SDR, SIR and SAR in addition to SI-SDR.

    Returns:
        For each channel, ``si_sdr`` and, with ``bss``, ``sdr``, ``sir`` and ``sar`` of the S'
        estimates.

    Raises:
        ImportError: fast_bss_eval is missing.
    """
    clips = [*references, *estimates]
    has_one_rate = len({clip.rate for clip in clips}) == 1
    has_own_samples = all(clip.native is not None for clip in clips)
    if has_one_rate and has_own_samples:
        waves, own_rate = [_native(clip) for clip in clips], clips[0].rate
    else:
        waves, own_rate = [clip.parts for clip in clips], rate
    samples = min(wave.shape[-1] for wave in waves)
    shifts = [round(lag * own_rate / rate) for lag in lags]
    ratios_of_channels: list[dict[str, list[float]]] = []
    for channel in range(len(waves[0])):
        finite = [_finite(wave[channel, :samples]) for wave in waves]
        truth, outputs = finite[: len(references)], finite[len(references) :]
        aligned = [shift(wave, lag) if lag else wave for wave, lag in zip(outputs, shifts)]
        ratios = _of_channel(aligned, truth, attributed, bss)
        ratios_of_channels.append({name: values.tolist() for name, values in ratios.items()})
    return ratios_of_channels


def _native(clip: Clip) -> Tensor:
    """(C, T) samples at the clip's rate: its channels if each is scored, else their mean."""
    assert clip.native is not None
    if len(clip.parts) == len(clip.native):
        return clip.native
    return clip.native.mean(0, keepdim=True)


def _finite(wave: Tensor) -> Tensor:
    """The waveform, with 0 for samples that are not finite."""
    return wave if bool(wave.isfinite().all()) else wave.nan_to_num(0.0, 0.0, 0.0)


def _of_channel(
    outputs: Sequence[Tensor], truth: Sequence[Tensor], attributed: Sequence[int], bss: bool
) -> dict[str, Tensor]:
    """(S',) ratios of S' outputs (T,) against S references (T,).

    One estimate at a time: float64 copies of all of them would take most of the memory that a long
    mixture needs.
    """
    undefined = torch.tensor(torch.nan, dtype=torch.float64, device="cpu")
    decibels = []
    for output, source in zip(outputs, attributed):
        reference = truth[source].double()
        silent = bool(is_constant(reference))
        decibels.append(undefined if silent else si_sdr(output.double(), reference))
    values = {"si_sdr": torch.stack(decibels)}
    if bss:
        values |= bss_eval(torch.stack([*outputs]), torch.stack([*truth]), attributed)
    return values
