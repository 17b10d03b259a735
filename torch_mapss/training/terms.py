"""The terms of a loss, per frame and per estimate."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import NamedTuple

import torch
from torch import Tensor

from torch_mapss import audio
from torch_mapss.core import devices
from torch_mapss.pipeline.permutation import pairs
from torch_mapss.pipeline.scores import Scores
from torch_mapss.training.inputs import Call

# -log PS goes on as a straight line below this PS: PS is exactly 0 where an output is another
# source, and the slope of the logarithm would be infinite there.
LOG_FLOOR = 1e-6


class Term(NamedTuple):
    """One part of a loss, per estimate."""

    name: str
    weight: float
    values: Tensor  # (B, S'), exactly 0 where not defined
    defined: Tensor  # (B, S') bool


@dataclass(frozen=True)
class LossRecord:
    """What the last call saw, without a graph, for logs."""

    terms: dict[str, Tensor]  # () unweighted mean of each term; NaN where it has no defined item
    defined: Tensor  # (B, S') bool: estimates that PS or PM was defined for
    order: Tensor | None  # (B, S) with PIT: the estimate taken for each reference

    @property
    def skipped(self) -> Tensor:
        """() int64: mixtures without any defined estimate."""
        return (~self.defined.any(-1)).sum()


# ------------------------------------------------------------------------------------------------
# Values of frames
# ------------------------------------------------------------------------------------------------


def leakage_values(scores: Scores, mode: str) -> Tensor:
    """1 - PS, or -log PS continued as its tangent below ``LOG_FLOOR``."""
    if mode == "linear":
        return 1.0 - scores.of("ps")
    ps = scores.of("ps")
    low = ps < LOG_FLOOR
    log = torch.where(low, 1.0, ps).log()  # the input is masked too: log 0 has no slope
    line = math.log(LOG_FLOOR) + (ps - LOG_FLOOR) / LOG_FLOOR
    return -torch.where(low, line, log)


def distortion_values(scores: Scores, mode: str) -> Tensor:
    """1 - PM, -log PM, or log(1 - log PM)."""
    if mode == "linear":
        return 1.0 - scores.of("pm")
    return -scores.of("log_pm") if mode == "log" else torch.log1p(-scores.of("log_pm"))


def negative_si_sdr(call: Call) -> tuple[Tensor, Tensor]:
    """-SI-SDR (B, S') in dB, and where the reference is not silent."""
    shape = call.estimates.shape[:2]
    values = call.estimates.new_zeros(shape)
    defined = torch.zeros(shape, dtype=torch.bool, device=values.device)
    for items, estimates, references in pairs(call.admitted):
        references = devices.picked(references, 1, call.attributed)
        there = ~audio.is_silent(references)
        if call.admitted.estimates.valid is not None:
            there = there & devices.picked(call.admitted.estimates.valid, 0, items)
        found = audio.si_sdr(estimates, references.to(estimates.dtype))
        place = devices.placed(items, values.device)
        values = values.index_put((place,), torch.where(there, -found, 0.0))
        defined = defined.index_put((place,), there)
    return values, defined


def weighted_mean(values: Tensor, weights: Tensor) -> tuple[Tensor, Tensor]:
    """Mean over frames (B, S'), 0 where no weight is, and where one is."""
    total = weights.sum(-1)
    defined = total > 0.0
    # Weights of any scale: relative ones cannot underflow against each other.
    relative = weights / torch.where(defined, total, 1.0).unsqueeze(-1)
    there = relative > 0.0
    return torch.where(there, values * relative, 0.0).sum(-1), defined


def zero_of(estimates: Tensor) -> Tensor:
    """A zero whose gradient is a tensor of zeros, whatever ``estimates`` hold."""
    never = torch.zeros((), dtype=torch.bool, device=estimates.device)
    return torch.where(never, estimates, 0.0).sum()
