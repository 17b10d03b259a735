"""The border of a loss: one function admits a call, behind it nothing is checked again."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from torch_mapss import audio
from torch_mapss.core import devices
from torch_mapss.pipeline import inputs as gate
from torch_mapss.pipeline.bank import ReferenceBank
from torch_mapss.pipeline.mapss import MAPSS
from torch_mapss.pipeline.prepare import prepared


@dataclass(frozen=True)
class Call:
    """What the terms of one call are computed from."""

    admitted: gate.Call  # with its bank
    truth: Tensor | None  # (B, S', T) references as handed in, where a term wants them
    draw: int | None  # seed of the random frames: all permutations of a call see the same
    order: Tensor | None = None  # (B, S) with PIT: the estimate that stands for each reference

    @property
    def estimates(self) -> Tensor:
        """(B, S', T) floating point, at the rate they came in."""
        return self.admitted.estimates.waves

    @property
    def bank(self) -> ReferenceBank:
        """The references, prepared."""
        return self.admitted.prepared

    @property
    def attributed(self) -> tuple[int, ...]:
        """Source of each estimate."""
        return self.admitted.attributed

    def in_order(self, order: Tensor) -> Call:
        """The call with its estimates brought into the order of the references."""
        return replace(self, admitted=self.admitted.ordered(order), order=order)

    def generator(self) -> torch.Generator | None:
        """Draws the random frames."""
        return None if self.draw is None else torch.Generator("cpu").manual_seed(self.draw)


def admit(
    mapss: MAPSS,
    estimates: Tensor,
    references: Tensor | ReferenceBank,
    attributed: Sequence[int] | Tensor | None,
    lengths: Tensor | Sequence[int] | None,
    waveforms: Tensor | None,
    measures: tuple[str, ...],
    wants_truth: bool,
) -> Call:
    """The call of a loss, checked; references that are no bank become one.

    Args:
        mapss: the scorer.
        estimates, references, attributed, lengths, waveforms: as handed to the loss.
        measures: which the loss needs.
        wants_truth: whether it needs the references as waveforms.

    Raises:
        TypeError, ValueError: input that cannot be scored, see the message.
    """
    _check_rank(estimates)
    _check_order(estimates, references)
    call = gate.validate(mapss.config, estimates, references, attributed, lengths, measures)
    call = prepared(mapss.config, call)
    bank = call.prepared
    if waveforms is not None:
        waveforms = _of_bank(audio.as_waveform(waveforms, "waveforms"), bank)
    elif call.references is not None:
        waveforms = call.references.waves
    truth = (
        _truth(waveforms, bank, call.attributed, mapss.config.check_finite) if wants_truth else None
    )
    return Call(call, None if truth is None else truth.to(call.estimates.waves.dtype), None)


def _truth(
    waveforms: Tensor | None, bank: ReferenceBank, index: tuple[int, ...], check: bool
) -> Tensor:
    if waveforms is None:
        raise ValueError(
            "extra needs the references as waveforms, and a bank was handed in. Pass them "
            "along: loss(estimates, bank, waveforms=references)."
        )
    valid, _ = gate.valid_waveforms(waveforms, "waveforms", bank.lengths, check)
    return devices.picked(valid, 1, index)


def _check_rank(estimates: object) -> None:
    if getattr(estimates, "ndim", 3) == 2:
        shape = tuple(estimates.shape)  # type: ignore[attr-defined]
        raise ValueError(
            f"a loss takes estimates (B, S', T), got {shape}: the first axis could be mixtures "
            "or sources. PS and PM compare an estimate with all sources of its mixture and "
            "have no value speaker by speaker; a permutation wrapper must hand in whole "
            "mixtures (mode='permutation-wise'). For one mixture pass estimates.unsqueeze(0)."
        )


def _check_order(estimates: object, references: object) -> None:
    if not (isinstance(estimates, Tensor) and isinstance(references, Tensor)):
        return
    wants = estimates.requires_grad, references.requires_grad
    if wants == (False, True) and torch.is_grad_enabled():
        raise ValueError(
            "references require a gradient and estimates do not, so they seem to be swapped. Pass "
            "estimates first, loss(estimates, references); if the order is right, pass "
            "references.detach()."
        )


def _of_bank(waveforms: Tensor, bank: ReferenceBank) -> Tensor:
    """References as waveforms, of the shape the bank was made from."""
    expected = bank.batch, bank.sources, bank.samples
    if tuple(waveforms.shape) != expected:
        raise ValueError(
            f"waveforms must be the references (B, S, T) = {expected} the bank was made of, got "
            f"{tuple(waveforms.shape)}. Nothing is broadcast or cut."
        )
    return waveforms
