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
    relative to its level where its own reference is active, so that no gain changes it: what that
    level is to the reference, the normalisation of loudness makes it be. The mean of the whole
    estimate does not count. Silence has ``FLOOR_DB``. Undefined where the reference is silent.
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
    """(b, S', F) mean square of every frame, without the mean of the whole; float64."""
    grid, samples = config.grid, waves.shape[-1]
    waves = waves - devices.back(devices.wide(waves).mean(-1, keepdim=True), waves.device)
    frames = audio.frame_count(samples, grid.receptive_field, grid.hop)
    step = max(1, config.budget(waves.device).samples // grid.hop)
    parts = []
    for first in range(0, frames, step):  # in float64 a few at a time
        last = min(first + step, frames)
        piece = waves[..., first * grid.hop : (last - 1) * grid.hop + grid.receptive_field]
        parts.append(audio.frame_rms(piece, grid.receptive_field, grid.hop).square())
    return torch.cat(parts, -1)
