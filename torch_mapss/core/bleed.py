r"""Bleed: what an output adds in the pauses of its source, from the powers of its frames.

In a frame in which the own source pauses and another one is active,

.. math:: bleed = 10 \log_{10} \frac{\max(0, p_y - p_o)}{\bar p_o} ,

with :math:`p_y` the power of the output in the frame, :math:`p_o` that of its own reference there,
and :math:`\bar p_o` the mean of the reference's power over the frames in which it is active. A
pause is not silence: it may hold sound up to 20 dB below the source's level. Only power added on
top of that counts, so no output has less bleed than the reference itself, and removing the soft
parts of a pause gains nothing. Output and reference are at one level, see
:func:`torch_mapss.audio.loudness.passing_blocks`, so a separator's gain is free.
"""

from __future__ import annotations

import torch
from torch import Tensor

FLOOR_DB = -100.0
"""Lowest bleed, reached by the reference and by silence. The highest is 100."""

# Two powers that differ only by float32 rounding differ by less than this fraction.
ROUNDING = 1e-5


def bleed_level(
    power: Tensor, reference_power: Tensor, own_active: Tensor, other_active: Tensor
) -> Tensor:
    """Bleed of outputs in every frame.

    Args:
        power: (..., F) mean square of the outputs in each frame, without their constant offset.
        reference_power: (..., F) the same for each output's reference, at the same level.
        own_active: (..., F) bool, where the source of each output is active.
        other_active: (..., F) bool, where another source is active; may also broadcast to this
            shape.

    Returns:
        (..., F) in dB from ``FLOOR_DB`` to ``-FLOOR_DB``; NaN where undefined: where the own source
        is active, where no other source is, and everywhere if the own source never is. No gradient
        at either end of the range.
    """
    frames_active = own_active.sum(-1, keepdim=True)
    level = torch.where(own_active, reference_power, 0.0).sum(-1, keepdim=True)
    level = level / frames_active.clamp(min=1)
    defined = ~own_active & other_active & (frames_active > 0)
    added = power - (1.0 + ROUNDING) * reference_power
    largest_ratio = 10.0 ** (-FLOOR_DB / 10.0)
    # Both are masked before the division, and outputs that add nothing get no gradient.
    audible = defined & (added > level / largest_ratio)
    inside = audible & (added < level * largest_ratio)
    ratio = torch.where(inside, added, 1.0) / torch.where(inside, level, 1.0)
    ends = torch.where(audible, torch.full_like(ratio, -FLOOR_DB), FLOOR_DB)
    return torch.where(defined, torch.where(inside, 10.0 * ratio.log10(), ends), torch.nan)
