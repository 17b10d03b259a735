"""Permutation of estimates: finding and applying their best order."""

from __future__ import annotations

import torch
from torch import Tensor

from torch_mapss import audio
from torch_mapss.core import devices
from torch_mapss.pipeline.call import Call


@torch.no_grad()
def best_order(call: Call) -> Tensor:
    """Find the estimate for each reference, by the largest total SI-SDR of a mixture.

    Args:
        call: a checked call with one estimate per reference.

    Returns:
        (B, S) int64 on the device of the estimates. A silent reference gets the estimate that is
        left.
    """
    order = torch.empty(call.estimates.shape[:2], dtype=torch.int64, device="cpu")
    for items, waves, references in call.pairs():
        source_of_estimate = audio.match_sources(waves, references)
        order[list(items)] = source_of_estimate.argsort(-1).cpu()
    return order.to(call.estimates.device)


def reordered(call: Call, order: Tensor) -> Call:
    """The call with its estimates permuted by ``order`` (B, S), the estimate per reference."""
    waves = [
        devices.select_sources(same_length, order[list(clips.items)])
        for same_length, clips in zip(call.waves, call.bank.groups)
    ]
    return call._replace(
        estimates=devices.select_sources(call.estimates, order),
        waves=tuple(waves),
        valid=devices.select_sources(call.valid, order),
    )
