"""Faults in single channels, which scoring the mean of the channels would hide.

A stereo estimate with one dead channel scores like its other channel. Each channel of an estimate
is compared with the same channel of its reference: whether it is silent, its polarity, its delay.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

import torch
from torch import Tensor

from torch_mapss.audio import estimate_lag
from torch_mapss.evaluation.audio_input import Clip

#: Periodic signals have peaks at every period: the highest must exceed lag 0 by this factor.
CLEARER = 1.05
#: Kinds of findings about single channels of an estimate.
DEAD, INVERTED, DELAYED = CHANNEL_FAULTS = ("dead channel", "inverted channel", "channel delay")
_DEAD_DB = -60.0  # level of a channel relative to the loudest of its clip
_AUDIBLE_DB = -40.0  # same for the channel of the reference
_LONGEST_LAG_S = 0.05
_CHANNEL_LAG_S = 0.0005  # lag between channels that makes their mean a comb filter
_LEAST_CORRELATION = 0.3  # with the reference, for polarity and delay to be clear


class Finding(NamedTuple):
    """A fact about the signals that readers of the scores must know."""

    kind: str  # a word: silent, faint, channels, offset, lag, rate, band, twins, sum, same, ...
    text: str  # a sentence that names the signals and says what to do
    estimate: int | None = None  # index of the estimate that it is about; None: of all of them


def channel_findings_of(estimate: Clip, reference: Clip) -> Iterator[Finding]:
    """Find faults of an estimate's channels, each relative to that of the reference."""
    if estimate.native is None or reference.native is None:
        return
    if estimate.channels != reference.channels or estimate.channels < 2:
        return
    if estimate.rate != reference.rate:
        return
    samples = min(estimate.native.shape[-1], reference.native.shape[-1])
    outputs, truth = (
        waves[:, :samples].nan_to_num(0.0, 0.0, 0.0)
        for waves in (estimate.native, reference.native)
    )
    output_levels, truth_levels = _levels_db(outputs), _levels_db(truth)
    dead = (output_levels < _DEAD_DB) & (truth_levels > _AUDIBLE_DB)
    hint = (
        ". The mean of the channels is scored, which hides it: --channels each (channels: each) "
        "scores every channel"
        if len(estimate.parts) == 1
        else ""
    )
    label = estimate.label
    if bool(dead.any()) and not bool(dead.all()):
        channels = _numbers(dead)
        text = f"{channels} silent, but not in its reference: {label}"
        yield Finding(DEAD, f"{text}{hint}")
    heard = (output_levels >= _DEAD_DB) & (truth_levels > _AUDIBLE_DB)
    if int(heard.sum()) < 2:
        return
    longest = min(round(_LONGEST_LAG_S * estimate.rate), samples // 2)
    lags, sizes, unshifted = estimate_lag(outputs, truth, longest)
    lags = lags.where(sizes > CLEARER * unshifted, 0)
    clear = heard & (sizes > _LEAST_CORRELATION)
    inverted = clear & (_correlation(outputs, truth, lags) < 0.0)
    upright = clear & ~inverted
    if bool(inverted.any()) and bool(upright.any()):
        text = f"{_numbers(inverted)} inverted, but not in its reference: {label}"
        yield Finding(INVERTED, f"{text}{hint}")
    if int(clear.sum()) > 1:
        lag_by_channel = {index: int(lags[index]) for index in clear.nonzero()[:, 0].tolist()}
        late, early = (pick(lag_by_channel, key=lag_by_channel.__getitem__) for pick in (max, min))
        spread = (lag_by_channel[late] - lag_by_channel[early]) / estimate.rate
        if spread >= _CHANNEL_LAG_S:
            channel = f"channel {late + 1} is {1000 * spread:.1f} ms later than channel {early + 1}"
            text = f"{channel}, but not in its reference: {label}"
            yield Finding(DELAYED, f"{text}{hint}")


def _levels_db(waves: Tensor) -> Tensor:
    """(C,) levels in dB of channels (C, T), relative to the loudest."""
    powers = waves.double().square().mean(-1)
    return 10.0 * torch.log10((powers / powers.amax().clamp(min=1e-30)).clamp(min=1e-30))


def _correlation(outputs: Tensor, truth: Tensor, lags: Tensor) -> Tensor:
    """(C,) inner products of each channel with that of the reference, at its lag."""
    products = []
    for output, reference, lag in zip(outputs, truth, lags.tolist()):
        samples = len(output) - abs(lag)
        late, early = max(lag, 0), max(-lag, 0)
        output_part, reference_part = (
            output[late : late + samples],
            reference[early : early + samples],
        )
        products.append((output_part.double() * reference_part.double()).sum())
    return torch.stack(products)


def _numbers(is_affected: Tensor) -> str:
    """Channels by number, counted from 1."""
    numbers = [str(index + 1) for index in is_affected.nonzero()[:, 0].tolist()]
    return f"channel {numbers[0]} is" if len(numbers) == 1 else f"channels {', '.join(numbers)} are"
