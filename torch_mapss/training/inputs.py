"""Validation of a call of a loss; behind it nothing is checked again."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from torch_mapss import audio
from torch_mapss.core import devices
from torch_mapss.pipeline import inputs
from torch_mapss.pipeline.bank import ReferenceBank
from torch_mapss.pipeline.config import Config
from torch_mapss.pipeline.prepare import prepared


@dataclass(frozen=True)
class Call:
    """What the terms of one call are computed from."""

    validated: inputs.Call  # with its bank
    truth: Tensor | None  # (B, S', T) references as handed in, where a term needs them
    draw: int | None = None  # seed of the random frames: all permutations of a call see the same
    order: Tensor | None = None  # (B, S) with PIT: the estimate that stands for each reference

    @property
    def estimates(self) -> Tensor:
        """(B, S', T) floating point, at the rate they came in."""
        return self.validated.estimates.waves

    @property
    def bank(self) -> ReferenceBank:
        """The references, prepared."""
        return self.validated.prepared

    @property
    def attributed(self) -> tuple[int, ...]:
        """Source of each estimate."""
        return self.validated.attributed

    def in_order(self, order: Tensor) -> Call:
        """The call with its estimates brought into the order of the references."""
        return replace(self, validated=self.validated.ordered(order), order=order)

    def generator(self) -> torch.Generator | None:
        """Draws the random frames."""
        return None if self.draw is None else torch.Generator("cpu").manual_seed(self.draw)


def validate(
    config: Config,
    estimates: Tensor,
    references: Tensor | ReferenceBank,
    attributed: Sequence[int] | Tensor | None,
    lengths: Tensor | Sequence[int] | None,
    waveforms: Tensor | None,
    measures: tuple[str, ...],
    needs_truth: bool,
) -> Call:
    """The call of a loss, checked; references that are no bank become one.

    Args:
        config: of the scorer.
        estimates, references, attributed, lengths, waveforms: as handed to the loss.
        measures: which the loss needs.
        needs_truth: whether it needs the references as waveforms.

    Raises:
        TypeError, ValueError: input that cannot be scored, see the message.
    """
    _check_rank(estimates)
    _check_order(estimates, references)
    call = inputs.validate(config, estimates, references, attributed, lengths, measures)
    call = prepared(config, call)
    if waveforms is not None:
        waveforms = _of_bank(audio.as_waveform(waveforms, "waveforms"), call.prepared)
    elif call.references is not None:
        waveforms = call.references.waves
    if not needs_truth:
        return Call(call, None)
    truth = _truth(waveforms, call.prepared, call.attributed, config.check_finite)
    return Call(call, truth.to(call.estimates.waves.dtype))


def _truth(
    waveforms: Tensor | None, bank: ReferenceBank, index: tuple[int, ...], check: bool
) -> Tensor:
    if waveforms is None:
        raise ValueError(
            "extra needs the references as waveforms, and a bank was handed in. Pass them "
            "along: loss(estimates, bank, waveforms=references)."
        )
    valid, _ = inputs.valid_waveforms(waveforms, "waveforms", bank.lengths, check)
    return devices.picked(valid, 1, index)


def _check_rank(estimates: object) -> None:
    if getattr(estimates, "ndim", 3) == 2:
        shape = tuple(estimates.shape)  # type: ignore[attr-defined]
        raise ValueError(
            f"a loss takes estimates (B, S', T), got {shape}: the first axis could be mixtures "
            "or sources. The measures compare an estimate with all sources of its mixture and "
            "have no value speaker by speaker; a permutation wrapper must hand in whole "
            "mixtures (mode='permutation-wise'). For one mixture pass estimates.unsqueeze(0)."
        )


def _check_order(estimates: object, references: object) -> None:
    if not (isinstance(estimates, Tensor) and isinstance(references, Tensor)):
        return
    required = estimates.requires_grad, references.requires_grad
    if required == (False, True) and torch.is_grad_enabled():
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
