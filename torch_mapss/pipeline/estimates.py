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
) -> list[tuple[Tensor, list[str]]]:
    """Estimates of one length, at the level at which each measure encodes them.

    Args:
        config: settings of the scorer.
        call: a checked call.
        group: index of the length in ``call.waves``.
        measures: names of the measures.

    Returns:
        Waveforms (b, S', T) at the encoder's rate, each with the measures that encode it;
        differentiable, except for a long clip.
    """
    measures_of_gain: dict[str, list[str]] = {gain: [] for gain in GAINS}
    for name in measures:
        # Where leakage into pauses is scored, it must not change the level.
        gain = "reference" if MEASURES[name].in_pauses else config.gain
        measures_of_gain[gain].append(name)
    waves, clips = call.waves[group], call.bank.groups[group]
    signs = None
    if config.align_polarity:  # -1 where the correlation with the reference is negative
        references = devices.select(clips.waves, call.attributed, 1)
        products = waves.detach() * references
        signs = torch.where(products.sum(-1, keepdim=True) < 0.0, -1.0, 1.0)
    levelled = []
    for gain, names in measures_of_gain.items():
        if not names:
            continue
        gates = None
        if gain == "reference":
            gates = devices.select(clips.gates, call.attributed, 1)
        if isinstance(clips, LongClip):
            at_level = in_pieces(config, waves.detach(), gates, call.budget)
        else:
            at_level = at_loudness(waves, config.grid.sample_rate, config.loudness, gates=gates)
        levelled.append((at_level if signs is None else at_level * signs, names))
    return levelled


def in_pieces(
    config: Config, waves: Tensor, gates: Tensor | None, budget: Budget, peak: float = 1.0
) -> Tensor:
    """:func:`~torch_mapss.audio.loudness.at_loudness` in bounded memory, of (1, n, T)."""
    meter = metered(waves[0], config.grid.sample_rate, budget.samples)
    gains = meter.gain(config.loudness, peak, None if gates is None else gates[0])
    return waves * gains.unsqueeze(-1)
