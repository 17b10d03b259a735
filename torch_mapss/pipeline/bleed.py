"""Bleed: what an estimate adds while its own source pauses and another one is active."""

from __future__ import annotations

import math

import torch
from torch import Tensor
from torch.nn.functional import avg_pool1d, pad

from torch_mapss.audio.loudness import at_loudness
from torch_mapss.core import devices
from torch_mapss.core.bleed import bleed_level
from torch_mapss.core.lengths import frame_count
from torch_mapss.pipeline.bank import LongClip
from torch_mapss.pipeline.call import Call
from torch_mapss.pipeline.config import Config, Grid
from torch_mapss.pipeline.estimates import in_pieces
from torch_mapss.pipeline.memory import Budget


def bleed(config: Config, call: Call) -> Tensor:
    """Bleed (B, S', F) in dB; NaN where undefined.

    The level that an estimate adds in the pauses of its source while another one is active, see
    :mod:`torch_mapss.core.bleed`. The level of a frame is its variance, so a constant offset does
    not count. Undefined where the own reference is silent throughout.
    """
    bank, attributed = call.bank, call.attributed
    items: list[int] = []
    levels = []
    for clips, estimates in zip(bank.groups, call.waves):
        references = devices.select(clips.waves, attributed, 1)
        gates = devices.select(clips.gates, attributed, 1)
        powers = []
        # Both are levelled by the blocks in which the reference plays, without a peak limit:
        # neither bleed in pauses nor a constant offset may change the level.
        for waves in (estimates, references):
            if isinstance(clips, LongClip):
                waves = in_pieces(config, waves.detach(), gates, call.budget, math.inf)
            else:
                rate, target = config.grid.sample_rate, config.loudness
                waves = at_loudness(waves, rate, target, math.inf, gates)
            powers.append(_frame_power(config.grid, waves, call.budget))
        power, reference_power = powers
        active = clips.active
        complete = devices.select(call.valid, clips.items, 0).all(-1)[:, None, None]
        level = bleed_level(
            power,
            reference_power.to(power.dtype),
            devices.select(active, attributed, 1),
            active.any(1, keepdim=True) & complete,
        )
        levels.append(pad(level, (0, bank.frames - level.shape[-1]), value=torch.nan))
        items += clips.items
    in_order = [items.index(item) for item in range(bank.batch)]
    dtype = torch.promote_types(call.estimates.dtype, torch.float32)
    return devices.select(torch.cat(levels), in_order, 0).to(dtype)


def _frame_power(grid: Grid, waves: Tensor, budget: Budget) -> Tensor:
    """(b, S', F) variance within every frame, float64: a constant offset is not loud."""
    field, hop = grid.receptive_field, grid.hop
    frames = frame_count(waves.shape[-1], field, hop)
    step = max(1, budget.samples // hop)
    powers = []
    for begin in range(0, frames, step):  # in float64 a few at a time
        end = min(begin + step, frames)
        piece = devices.wide(waves[..., begin * hop : (end - 1) * hop + field]).flatten(0, 1)
        mean = avg_pool1d(piece.unsqueeze(1), field, hop).squeeze(1)
        square = avg_pool1d(piece.square().unsqueeze(1), field, hop).squeeze(1)
        power = (square - mean.square()).clamp(min=0.0)
        powers.append(power.unflatten(0, waves.shape[:2]))
    return devices.back(torch.cat(powers, -1), waves.device)
