"""Bleed: how loud an estimate is where its own reference is silent and another source is not."""

from __future__ import annotations

import torch
from torch import Tensor

from torch_mapss import audio
from torch_mapss.core import devices
from torch_mapss.pipeline.bank import Group
from torch_mapss.pipeline.config import Config
from torch_mapss.pipeline.inputs import Call

FLOOR_DB = -100.0
"""Least bleed: that of silence. Most is 100."""


def bleed(config: Config, call: Call) -> Tensor:
    """(B, S', F) in dB; NaN where it is not defined.

    The level of the estimate in frames where its own reference is inactive and another one active,
    relative to the estimate's mean power where its own reference is active. That stands for the
    level of the reference: a separator's gain is free, and changes no bleed. The level of a frame
    is its variance, so a constant offset does not count. Silence has ``FLOOR_DB``; nothing has less
    than that, or more than -``FLOOR_DB``. Undefined where the own reference is silent throughout.
    """
    bank, waves = call.prepared, call.estimates.waves
    found = waves.new_full((bank.batch, len(call.attributed), bank.frames), torch.nan)
    found = found.to(torch.promote_types(found.dtype, torch.float32))
    for clips, group in zip(call.estimates.clips, bank.groups):
        places = devices.placed(group.items, waves.device)
        values = _of_group(config, clips.waves, group, call.attributed).to(found.dtype)
        short = bank.frames - values.shape[-1]
        values = torch.nn.functional.pad(values, (0, short), value=torch.nan)
        found = found.index_copy(0, places, values)
    complete = call.estimates.complete
    return found if complete is None else torch.where(complete[:, None, None], found, torch.nan)


def _of_group(config: Config, waves: Tensor, group: Group, index: tuple[int, ...]) -> Tensor:
    own = devices.picked(group.active, 1, index)
    power = _frame_power(config, waves)
    count = own.sum(-1, keepdim=True)
    level = torch.where(own, power, 0.0).sum(-1, keepdim=True) / count.clamp(min=1)
    defined = ~own & group.active.any(1, keepdim=True) & (count > 0)
    most = 10.0 ** (-FLOOR_DB / 10.0)
    # Both are masked before they are divided, and silence has no slope.
    loud = defined & (power > level / most)
    small = loud & (power < level * most)
    ratio = torch.where(small, power, 1.0) / torch.where(small, level, 1.0)
    capped = torch.where(loud, -FLOOR_DB, FLOOR_DB)
    return torch.where(defined, torch.where(small, 10.0 * ratio.log10(), capped), torch.nan)


def _frame_power(config: Config, waves: Tensor) -> Tensor:
    """(b, S', F) variance within every frame, float64: a constant offset is not loud."""
    field, hop = config.grid.receptive_field, config.grid.hop
    frames = audio.frame_count(waves.shape[-1], field, hop)
    step = max(1, config.budget(waves.device).samples // hop)
    parts = []
    for first in range(0, frames, step):  # in float64 a few at a time
        last = min(first + step, frames)
        piece = devices.wide(waves[..., first * hop : (last - 1) * hop + field]).flatten(0, 1)
        mean, square = (
            torch.nn.functional.avg_pool1d(x.unsqueeze(1), field, hop).squeeze(1)
            for x in (piece, piece.square())
        )
        power = (square - mean.square()).clamp(min=0.0)
        parts.append(power.unflatten(0, waves.shape[:2]))
    return devices.back(torch.cat(parts, -1), waves.device)
