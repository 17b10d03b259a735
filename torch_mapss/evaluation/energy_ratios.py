"""SI-SDR, SDR, SIR and SAR: the energy ratios that are usual in papers, beside our scores.

They are computed over the files as they are: at their own rate, the mean of their channels (or each
channel, and the values averaged). Where the files of a mixture have several rates, at the scorer's.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from torch_mapss.audio import is_constant, shift, si_sdr
from torch_mapss.core import checks
from torch_mapss.evaluation.audio_input import Clip

#: Taps of the distortion filter that BSS Eval allows.
FILTER_LENGTH = 512
# Of a silent estimate of an active reference: the lowest value of SI-SDR in float64.
_LOWEST_DB = 10.0 * math.log10(torch.finfo(torch.float64).eps)


def bss_package() -> Any:
    """The package that computes SDR, SIR and SAR; ImportError with the way out if it is missing."""
    return checks.import_package(
        "fast_bss_eval", "measures bss", " (or: pip install torch_mapss[bss])"
    )


def energy_ratios(
    estimates: Sequence[Clip],
    references: Sequence[Clip],
    attributed: Sequence[int],
    lags: Sequence[int],
    rate: int,
    bss: bool,
) -> dict[str, list[float]]:
    """The energy ratios of each estimate in dB, NaN where its reference is silent.

    Args:
        estimates: S' clips.
        references: S clips.
        attributed: S', the reference of each estimate.
        lags: S' samples at ``rate`` by which the estimates are moved to an earlier time.
        rate: of the scorer, in Hz.
        bss: whether SDR, SIR and SAR are computed as well as SI-SDR.

    Returns:
        ``si_sdr`` and, with ``bss``, ``sdr``, ``sir`` and ``sar``.

    Raises:
        ImportError: fast_bss_eval is missing.
    """
    outputs, truth, own_rate = _waveforms(estimates, references, rate)
    shifts = [round(lag * own_rate / rate) for lag in lags]
    values: list[dict[str, Tensor]] = []
    for channel_outputs, channel_truth in zip(outputs, truth):
        rows = zip(channel_outputs, shifts)
        moved = torch.stack([shift(wave, samples) for wave, samples in rows])
        values.append(_of_channel(moved, channel_truth, [*attributed], bss))
    averaged = {}
    for name in values[0]:
        stacked = torch.stack([by_name[name] for by_name in values])
        averaged[name] = stacked.nanmean(0).tolist()
    return averaged


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
    silent = is_constant(truth)
    undefined = silent[attributed]
    values = {"si_sdr": si_sdr(outputs, truth[attributed]).masked_fill(undefined, torch.nan)}
    if bss:
        values |= _bss_eval(outputs, truth, attributed, silent)
    return values


def _bss_eval(
    outputs: Tensor, truth: Tensor, attributed: list[int], silent: Tensor
) -> dict[str, Tensor]:
    """SDR, SIR and SAR (S',) of BSS Eval, with filters of :data:`FILTER_LENGTH` taps.

    An estimate is projected on all references that sound; a silent one would make that singular.
    SIR is undefined where a single reference sounds.
    """
    package = bss_package()
    names = ("sdr", "sir", "sar")
    values = {name: torch.full((len(outputs),), torch.nan, dtype=torch.float64) for name in names}
    sounding = (~silent).nonzero()[:, 0].tolist()
    row_of_source = {source: row for row, source in enumerate(sounding)}
    # BSS Eval takes one estimate per reference: where there is none the reference stands for it.
    padded = truth[sounding].clone()
    scored: dict[int, int] = {}  # row of the padded estimates by estimate
    for estimate, source in enumerate(attributed):
        if source not in row_of_source:
            continue
        if bool(is_constant(outputs[estimate])):
            values["sdr"][estimate] = _LOWEST_DB  # silence has a ratio of no energy at all
            continue
        scored[estimate] = row_of_source[source]
        padded[row_of_source[source]] = outputs[estimate]
    if not scored:
        return values
    ratios = package.bss_eval_sources(
        truth[sounding], padded, filter_length=FILTER_LENGTH, compute_permutation=False
    )
    for name, ratio in zip(names, ratios):
        for estimate, row in scored.items():
            values[name][estimate] = ratio[row]
    if len(sounding) == 1:
        values["sir"] = torch.full_like(values["sir"], torch.nan)
    return values
