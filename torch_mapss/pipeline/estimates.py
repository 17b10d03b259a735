"""The level and polarity at which estimates are encoded; decided only here."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from torch_mapss.audio.loudness import at_loudness, metered
from torch_mapss.core import devices
from torch_mapss.pipeline.bank import LongClip
from torch_mapss.pipeline.call import Call
from torch_mapss.pipeline.config import Config
from torch_mapss.pipeline.measures import MEASURES
from torch_mapss.pipeline.memory import Budget

GAINS = ("own", "reference")  # whose gates select the blocks that an estimate is levelled by


def levelled_estimates(
    config: Config, call: Call, group: int, measures: Sequence[str]
) -> dict[str, Tensor]:
    """Estimates of one length, at the level at which each measure encodes them.

    Args:
        config: settings of the scorer.
        call: a checked call.
        group: index of the length in ``call.clips``.
        measures: names of the measures.

    Returns:
        Waveforms (b, S', T) by measure, at the encoder's rate; differentiable, except for a long
        clip. Measures with the same level share one tensor.
    """
    gain_of = {name: gain_by_measure(config, name) for name in measures}
    waves_by_gain = {gain: _levelled(config, call, group, gain) for gain in set(gain_of.values())}
    if config.align_polarity:
        signs = polarity(call, group)
        waves_by_gain = {gain: waves * signs for gain, waves in waves_by_gain.items()}
    return {name: waves_by_gain[gain] for name, gain in gain_of.items()}


def gain_by_measure(config: Config, measure: str) -> str:
    """Entry of ``GAINS`` for a measure; leakage that it scores must not change the level."""
    return "reference" if MEASURES[measure].in_pauses else config.gain


def _levelled(config: Config, call: Call, group: int, gain: str) -> Tensor:
    """Estimates (b, S', T) of one length, levelled by a gain of ``GAINS``."""
    waves, prepared = call.clips[group].waves, call.bank.groups[group]
    gates = None
    if gain == "reference":
        gates = devices.select(prepared.gates, call.attributed, 1)
    if isinstance(prepared, LongClip):
        return in_pieces(config, waves.detach(), gates, call.budget)
    return at_loudness(waves, config.grid.sample_rate, config.loudness, gates=gates)


def in_pieces(
    config: Config, waves: Tensor, gates: Tensor | None, budget: Budget, peak: float = 1.0
) -> Tensor:
    """:func:`~torch_mapss.audio.loudness.at_loudness` in bounded memory, of (1, n, T)."""
    meter = metered(waves[0], config.grid.sample_rate, budget.samples)
    gains = meter.gain(config.loudness, peak, None if gates is None else gates[0])
    return waves * gains.unsqueeze(-1)


def polarity(call: Call, group: int) -> Tensor:
    """(b, S', 1) -1 for estimates whose correlation with their reference is negative, else 1."""
    references = devices.select(call.bank.groups[group].waves, call.attributed, 1)
    products = call.clips[group].waves.detach() * references
    return torch.where(products.sum(-1, keepdim=True) < 0.0, -1.0, 1.0)
