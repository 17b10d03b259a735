"""Leakage of the other sources of the mixture: the family that the paper's table does not have.

PS is steady under distortion because its clusters hold distortions. No member of the paper's banks
holds any of another source, so a trace of one takes an output out of its cluster in a direction the
cluster does not span, and PM falls with leakage as it falls with distortion. These members span it.

**Which levels.** Separators leave between nearly all of the other sources (an output above the
mixture's own 0 dB) and next to nothing of them (35 dB below). -35 to +5 dB is covered evenly in dB,
as is every range of the paper's table. Seven levels are as many as the noise family has of each of
its colours, with which leakage shares its make: something added at a ratio in dB.

**Which sources.** All others at one gain. Of three sources or more, one that leaks alone is then
hardly spanned; members for each other source alone span it as well, at a cost that grows with the
sources (``leakage_alone`` of the bank; measured in ``benchmarks/results/conformal.md``).
"""

from __future__ import annotations

import torch
from torch import Tensor

from torch_mapss.distortions.records import Distortion

FAMILY = "leakage"
LOWEST, HIGHEST = -35.0, 5.0
"""dB: gain of the other references, each as loud as the reference itself."""


def add_leakage(waveform: Tensor, sample_rate: int, *, others: Tensor, level: float) -> Tensor:
    """Add all other sources of the mixture at one gain.

    Args:
        waveform: (..., S, T), loudness-normalised references.
        sample_rate: In Hz; changes nothing.
        others: (..., S, S-1, T), for each of them the other references.
        level: Gain of the others in dB. With two equally loud sources, the ratio of the two.

    Returns:
        (..., S, T).
    """
    return waveform + 10 ** (level / 20) * others.sum(-2)


def add_one_source(
    waveform: Tensor, sample_rate: int, *, others: Tensor, level: float, which: int
) -> Tensor:
    """Add one other source of the mixture.

    Args:
        waveform: (..., S, T), loudness-normalised references.
        sample_rate: In Hz; changes nothing.
        others: (..., S, S-1, T), for each of them the other references.
        level: Gain of the other source in dB.
        which: Its place among the others. A mixture of fewer has no such copy: the waveform.

    Returns:
        (..., S, T).
    """
    if which >= others.shape[-2]:
        return waveform.clone()
    return waveform + 10 ** (level / 20) * others[..., which, :]


def are_audible(others: Tensor, which: int | None) -> Tensor:
    """Where a leakage member exists, (..., S): some other source is not silent.

    One source alone is a member of its own where there are others to tell it from: of the only
    other one the sum is made already.

    Args:
        others: (..., S, S-1, T).
        which: Place of the source that leaks alone; None: all leak.
    """
    heard = (others != 0).any(-1)
    if which is None:
        return heard.any(-1)
    if which >= heard.shape[-1]:
        return torch.zeros_like(heard[..., :0].any(-1))
    return heard[..., which] & (heard.sum(-1) >= 2)


def leakage_at(level: float) -> Distortion:
    """Leakage at a level in dB."""
    name = f"{FAMILY}/{level:+.1f}dB"
    return Distortion(name, FAMILY, add_leakage, {"level": level}, mixes=True, reach=(0.0, 0.0))


def leakage_levels(count: int) -> list[float]:
    """`count` levels in even steps of dB over the whole range; a single one in its middle."""
    if count == 1:
        return [(LOWEST + HIGHEST) / 2]
    step = (HIGHEST - LOWEST) / max(count - 1, 1)
    return [LOWEST + place * step for place in range(count)]


def leakage_members(count: int, alone: int = 0) -> tuple[Distortion, ...]:
    """All other sources at `count` levels, then each of the first `alone` of them by itself."""
    levels = leakage_levels(count)
    return tuple(map(leakage_at, levels)) + tuple(
        Distortion(
            f"{FAMILY}/source{which + 1}/{level:+.1f}dB",
            FAMILY,
            add_one_source,
            {"level": level, "which": which},
            mixes=True,
            reach=(0.0, 0.0),
        )
        for which in range(alone)
        for level in levels
    )
