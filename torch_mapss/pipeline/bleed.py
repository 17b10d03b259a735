"""Bleed: the level of an estimate while its own source pauses and another one is active."""

from __future__ import annotations

import torch
from torch import Tensor
from torch.nn.functional import avg_pool1d, pad

from torch_mapss.core import devices
from torch_mapss.core.lengths import frame_count
from torch_mapss.pipeline.bank import PreparedClips
from torch_mapss.pipeline.call import Call
from torch_mapss.pipeline.config import Grid
from torch_mapss.pipeline.inputs import Clips
from torch_mapss.pipeline.memory import Budget

FLOOR_DB = -100.0
"""Least bleed: that of silence. Most is 100."""


def bleed(grid: Grid, call: Call) -> Tensor:
    """(B, S', F) in dB; NaN where it is not defined.

    The level of the estimate in frames where its own reference is inactive and another one active,
    relative to the estimate's mean power where its own reference is active. That stands for the
    level of the reference: a separator's gain is free, and changes no bleed. The level of a frame
    is its variance, so a constant offset does not count. Silence has ``FLOOR_DB``; nothing has less
    than that, or more than -``FLOOR_DB``. Undefined where the own reference is silent throughout.
    """
    bank = call.bank
    items: list[int] = []
    levels = []
    for clips, references in zip(call.clips, bank.groups):
        items += clips.items
        level = _bleed_of_clips(grid, clips, references, call.attributed, call.budget)
        levels.append(pad(level, (0, bank.frames - references.frames), value=torch.nan))
    in_order = [items.index(item) for item in range(bank.batch)]
    dtype = torch.promote_types(call.estimates.dtype, torch.float32)
    return devices.select(torch.cat(levels), in_order, 0).to(dtype)


def _bleed_of_clips(
    grid: Grid,
    clips: Clips,
    references: PreparedClips,
    attributed: tuple[int, ...],
    budget: Budget,
) -> Tensor:
    active = devices.select(references.active, attributed, 1)  # (b, S', F) the own reference
    power = _frame_power(grid, clips.waves, budget)
    count = active.sum(-1, keepdim=True)
    level = torch.where(active, power, 0.0).sum(-1, keepdim=True) / count.clamp(min=1)
    complete = clips.valid.all(-1)[:, None, None]
    any_active = references.active.any(1, keepdim=True)
    defined = ~active & any_active & (count > 0) & complete
    highest = 10.0 ** (-FLOOR_DB / 10.0)
    # Both are masked before they are divided, and silence has no slope.
    above_floor = defined & (power > level / highest)
    between = above_floor & (power < level * highest)
    ratio = torch.where(between, power, 1.0) / torch.where(between, level, 1.0)
    capped = torch.where(above_floor, torch.full_like(power, -FLOOR_DB), FLOOR_DB)
    return torch.where(defined, torch.where(between, 10.0 * ratio.log10(), capped), torch.nan)


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
