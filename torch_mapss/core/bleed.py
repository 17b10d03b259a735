r"""Bleed: what an output adds in the pauses of its source, from the powers of its frames.

In a frame in which the own source pauses and another one is active,

.. math:: bleed = 10 \log_{10} \frac{\max(0, p_y - p_o)}{\bar p_o} ,

with :math:`p_y` the power of the output in the frame, :math:`p_o` that of its own reference there,
and :math:`\bar p_o` the mean of the reference's power over the frames in which it is active. A
pause is no silence: it may hold what is 20 dB below the source's level. Only what comes on top of
it counts, so nothing has less bleed than the reference, and taking its soft parts away as well is
no gain. Output and reference are at one level, see
:func:`torch_mapss.audio.loudness.passing_blocks`, so a separator's gain is free.
"""

from __future__ import annotations

import torch
from torch import Tensor

FLOOR_DB = -100.0
"""Least bleed: that of the reference and of silence. Most is 100."""

# Two levels that are equal but for rounding in float32 differ by less than this part of a power.
ROUNDING = 1e-5


def bleed_level(
    power: Tensor, reference_power: Tensor, own_active: Tensor, other_active: Tensor
) -> Tensor:
    """Bleed of outputs in every frame.

    Args:
        power: (..., F) mean square of the outputs in the frames, less that of a constant offset.
        reference_power: (..., F) the same of the reference of each, at the same level.
        own_active: (..., F) bool, where the source of each output is active.
        other_active: (..., F) bool, where another source is; or that which broadcasts to it.

    Returns:
        (..., F) in dB from ``FLOOR_DB`` to ``-FLOOR_DB``; NaN where undefined: the own source is
        active, no other one is, or the own source never is. Without gradient at both ends.
    """
    frames_active = own_active.sum(-1, keepdim=True)
    level = torch.where(own_active, reference_power, 0.0).sum(-1, keepdim=True)
    level = level / frames_active.clamp(min=1)
    defined = ~own_active & other_active & (frames_active > 0)
    added = power - (1.0 + ROUNDING) * reference_power
    largest_ratio = 10.0 ** (-FLOOR_DB / 10.0)
    # Both are masked before they are divided, and what adds nothing has no slope.
    audible = defined & (added > level / largest_ratio)
    inside = audible & (added < level * largest_ratio)
    ratio = torch.where(inside, added, 1.0) / torch.where(inside, level, 1.0)
    ends = torch.where(audible, torch.full_like(ratio, -FLOOR_DB), FLOOR_DB)
    return torch.where(defined, torch.where(inside, 10.0 * ratio.log10(), ends), torch.nan)
