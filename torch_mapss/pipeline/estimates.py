"""Estimates as they are encoded: their level and polarity, decided here and nowhere else."""

from __future__ import annotations

import torch
from torch import Tensor

from torch_mapss.audio.loudness import at_loudness
from torch_mapss.core import devices
from torch_mapss.pipeline.bank import LongClip
from torch_mapss.pipeline.call import Call
from torch_mapss.pipeline.config import Config
from torch_mapss.pipeline.segments import loudness_gains


def levelled_estimates(config: Config, call: Call, group: int) -> Tensor:
    """Estimates of one length, normalised in loudness, and in polarity where that is asked for.

    Args:
        config: of the scorer.
        call: checked.
        group: index of their length in ``call.clips``.

    Returns:
        (b, S', T), at the encoder's rate; differentiable, except of a long clip.
    """
    waves = call.clips[group].waves
    if isinstance(call.bank.groups[group], LongClip):
        waves = waves.detach()
        waves = waves * loudness_gains(config, waves[0], call.budget)
    else:
        waves = at_loudness(waves, config.grid.sample_rate, config.loudness)
    if config.align_polarity:
        waves = waves * polarity(call, group)
    return waves


def polarity(call: Call, group: int) -> Tensor:
    """(b, S', 1) -1 for estimates whose correlation with their reference is negative, else 1."""
    references = devices.select(call.bank.groups[group].waves, call.attributed, 1)
    products = call.clips[group].waves.detach() * references
    return torch.where(products.sum(-1, keepdim=True) < 0.0, -1.0, 1.0)
