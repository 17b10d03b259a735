"""The terms of a loss, per estimate, and how they are weighed and reduced."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import NamedTuple

import torch
from torch import Tensor

from torch_mapss import audio
from torch_mapss.core import devices
from torch_mapss.pipeline.admit import Call as Admitted
from torch_mapss.pipeline.prepare import Grid
from torch_mapss.pipeline.records import ReferenceBank, Scores
from torch_mapss.pipeline.scoring import bank_of

# -log PS goes on as a straight line below this PS: PS is exactly 0 where an output is another
# source, and the slope of the logarithm would be infinite there.
LOG_FLOOR = 1e-6


class Term(NamedTuple):
    """One part of a loss, per estimate."""

    name: str
    weight: float
    values: Tensor  # (B, S'), exactly 0 where not defined
    defined: Tensor  # (B, S') bool


class Call(NamedTuple):
    """What the terms of one call are computed from."""

    admitted: Admitted  # with its bank; estimates in the order of ``attributed``
    waveforms: Tensor | None  # (B, S, T) references as handed in, if they were
    draw: int | None  # seed of the random frames: all permutations of a call see the same

    @property
    def estimates(self) -> Tensor:
        """(B, S', T) floating point, at the rate they came in."""
        return self.admitted.estimates.waves

    @property
    def bank(self) -> ReferenceBank:
        return bank_of(self.admitted)

    @property
    def attributed(self) -> tuple[int, ...]:
        """Source of each estimate."""
        return self.admitted.attributed


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
        return 1.0 - scores.ps
    low = scores.ps < LOG_FLOOR
    log = torch.where(low, 1.0, scores.ps).log()  # the input is masked too: log 0 has no slope
    line = math.log(LOG_FLOOR) + (scores.ps - LOG_FLOOR) / LOG_FLOOR
    return -torch.where(low, line, log)


def distortion_values(scores: Scores, mode: str) -> Tensor:
    """1 - PM, -log PM, or log(1 - log PM)."""
    if mode == "linear":
        return 1.0 - scores.pm
    return -scores.log_pm if mode == "log" else torch.log1p(-scores.log_pm)


def negative_si_sdr(call: Call) -> tuple[Tensor, Tensor]:
    """-SI-SDR (B, S') in dB, and where the reference is not silent."""
    shape = call.estimates.shape[:2]
    values = call.estimates.new_zeros(shape)
    defined = torch.zeros(shape, dtype=torch.bool, device=values.device)
    for items, estimates, references in pairs(call):
        references = devices.picked(references, 1, call.attributed)
        there = ~audio.is_silent(references)
        if call.admitted.estimates.sound is not None:
            there = there & devices.picked(call.admitted.estimates.sound, 0, items)
        found = audio.si_sdr(estimates, references.to(estimates.dtype))
        place = devices.placed(items, values.device)
        values = values.index_put((place,), torch.where(there, -found, 0.0))
        defined = defined.index_put((place,), there)
    return values, defined


def pairs(call: Call) -> list[tuple[tuple[int, ...], Tensor, Tensor]]:
    """Of each length: items, their estimates (b, S', T) and references (b, S, T), at one rate."""
    found = []
    for clips, group in zip(call.admitted.estimates.clips, call.bank.groups):
        found.append((clips.items, clips.waves, group.waveforms.to(clips.waves.dtype)))
    return found


def energies_of(bank: ReferenceBank, index: tuple[int, ...], grid: Grid) -> Tensor:
    """(B, S', F) mean square of the normalised references in every frame, 0 in padding."""
    like = bank.groups[0].waveforms
    energies = like.new_zeros(bank.batch, len(index), bank.frames)
    for group in bank.groups:
        waves = devices.picked(group.waveforms, 1, index)
        power = audio.frame_rms(waves, grid.receptive_field, grid.hop).square()
        places = devices.placed(group.items, energies.device)
        energies[places, :, : power.shape[-1]] = power.to(energies.dtype)
    return energies


# ------------------------------------------------------------------------------------------------
# Means over what is defined
# ------------------------------------------------------------------------------------------------


def weighted_mean(values: Tensor, weights: Tensor) -> tuple[Tensor, Tensor]:
    """Mean over frames (B, S'), 0 where no weight is, and where one is."""
    total = weights.sum(-1)
    defined = total > 0.0
    # Weights of any scale: relative ones cannot underflow against each other.
    relative = weights / torch.where(defined, total, 1.0).unsqueeze(-1)
    there = relative > 0.0
    return torch.where(there, values * relative, 0.0).sum(-1), defined


def _items(term: Term) -> Tensor:
    """(B,) mean over the defined sources of each mixture, 0 where there is none."""
    return term.values.sum(-1) / term.defined.sum(-1).clamp(min=1)


def mean_of(term: Term) -> Tensor:
    """() mean over the mixtures with a defined source, 0 if there is none."""
    return _items(term).sum() / term.defined.any(-1).sum().clamp(min=1)


def reduced(terms: Sequence[Term], reduction: str) -> Tensor:
    reduce: dict[str, Callable[[Term], Tensor]] = {
        "mean": mean_of,
        "sum": lambda term: term.values.sum(),
        "item": _items,
        "none": lambda term: term.values,
    }
    parts = [term.weight * reduce[reduction](term) for term in terms]
    return torch.stack(parts).sum(0)


def reduced_extra(value: object, reduction: str, shape: torch.Size) -> Tensor:
    """The caller's own term, in the shape of the reduction."""
    accepted = {"item": (shape, shape[:1]), "none": (shape,)}.get(reduction, (shape, shape[:1], ()))
    if not isinstance(value, Tensor) or tuple(value.shape) not in accepted:
        got = tuple(value.shape) if isinstance(value, Tensor) else type(value).__name__
        shapes = " or ".join(str(tuple(one)) for one in accepted)
        raise ValueError(
            f"extra must return a tensor of shape {shapes} for reduction {reduction!r}, got "
            f"{got}. Average over time inside it."
        )
    if reduction == "none":
        return value
    if reduction == "item":
        return value if value.ndim == 1 else value.mean(-1)
    return value.mean() if reduction == "mean" else value.sum()


def zero_of(estimates: Tensor) -> Tensor:
    """A zero whose gradient is a tensor of zeros, whatever ``estimates`` hold."""
    never = torch.zeros((), dtype=torch.bool, device=estimates.device)
    return torch.where(never, estimates, 0.0).sum()
