"""Energy ratios of the signals of a call, beside the scores of its frames."""

from __future__ import annotations

import torch
from torch import Tensor

from torch_mapss import audio
from torch_mapss.core import devices
from torch_mapss.pipeline.call import Call


def si_sdr_of_call(call: Call) -> tuple[Tensor, Tensor]:
    """SI-SDR of every estimate with its reference, at the encoder's sample rate.

    Args:
        call: checked.

    Returns:
        (B, S') dB, 0 where it is not defined; and (B, S') bool: defined, where the reference is
        not silent and the samples of the mixture are finite.
    """
    decibels = call.estimates.new_zeros(call.estimates.shape[:2])
    defined = torch.zeros(decibels.shape, dtype=torch.bool, device=decibels.device)
    for clips, references in call.pairs():
        references = devices.select(references, call.attributed, 1)
        audible = ~audio.is_silent(references) & clips.valid.all(-1, keepdim=True)
        items = (devices.upload(clips.items, decibels.device),)
        ratios = audio.si_sdr(clips.waves, references.to(decibels.dtype))
        decibels = decibels.index_put(items, torch.where(audible, ratios, 0.0))
        defined = defined.index_put(items, audible)
    return decibels, defined
