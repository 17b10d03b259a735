"""Validation of a call of a loss, its references as waveforms, and the order of its estimates."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Sequence

import torch
from torch import Tensor

from torch_mapss import audio
from torch_mapss.core import checks, devices
from torch_mapss.pipeline import inputs
from torch_mapss.pipeline.bank import ReferenceBank
from torch_mapss.pipeline.config import Config
from torch_mapss.pipeline.inputs import Call, best_order, check_permutable
from torch_mapss.pipeline.prepare import with_bank

PIT = ("si_sdr", "loss")
# PIT over the loss scores every permutation: 24 of them for 4 sources.
MOST_PERMUTED = 4


def validate(
    config: Config,
    estimates: Tensor,
    references: Tensor | ReferenceBank,
    attributed: Sequence[int] | Tensor | None,
    lengths: Tensor | Sequence[int] | None,
    measures: tuple[str, ...],
    pit: str | None,
) -> Call:
    """The call of a loss, checked; references that are no bank become one.

    Args:
        config: of the scorer.
        estimates, references, attributed, lengths: as handed to the loss.
        measures: which the loss needs.
        pit: of the loss, see :func:`ordered`.

    Raises:
        TypeError, ValueError: input that cannot be scored, see the message; with ``pit`` not one
            estimate per reference, or too many of them for ``"loss"``.
    """
    if isinstance(estimates, Tensor) and estimates.ndim == 2:
        raise ValueError(
            f"a loss takes estimates (B, S', T), got {tuple(estimates.shape)}: the first axis "
            "could be mixtures or sources. The measures compare an estimate with all sources of "
            "its mixture and have no value speaker by speaker; a permutation wrapper must hand in "
            "whole mixtures (mode='permutation-wise'). For one mixture pass estimates.unsqueeze(0)."
        )
    if isinstance(estimates, Tensor) and isinstance(references, Tensor):
        required = estimates.requires_grad, references.requires_grad
        if required == (False, True) and torch.is_grad_enabled():
            raise ValueError(
                "references require a gradient and estimates do not, so they seem to be swapped. "
                "Pass estimates first, loss(estimates, references); if the order is right, pass "
                "references.detach()."
            )
    call = inputs.validate(config, estimates, references, attributed, lengths, measures)
    if pit is not None:
        check_permutable(call, pit)
    if pit == "loss" and call.sources > MOST_PERMUTED:
        raise ValueError(
            f"pit='loss' scores every permutation and takes at most {MOST_PERMUTED} sources, "
            f"got {call.sources}. Use pit='si_sdr'."
        )
    return with_bank(config, call)


def truth_of(config: Config, call: Call, waveforms: Tensor | None) -> Tensor:
    """(B, S', T) references of a call as handed in, for a term of the caller's own.

    Args:
        config: of the scorer.
        call: prepared.
        waveforms: the references where they came as a bank, or None.

    Raises:
        ValueError: they came as a bank and ``waveforms`` are missing or do not fit it.
    """
    bank = call.prepared
    if call.references is not None and waveforms is None:
        waveforms = call.references.waves
    if waveforms is None:
        raise ValueError(
            "extra needs the references as waveforms, and a bank was handed in. Pass them "
            "along: loss(estimates, bank, waveforms=references)."
        )
    waves = audio.as_waveform(waveforms, "waveforms").detach()
    checks.check_devices(estimates=call.estimates.waves, waveforms=waves)
    expected = bank.batch, bank.sources, bank.samples
    if tuple(waves.shape) != expected:
        raise ValueError(
            f"waveforms must be the references (B, S, T) = {expected} the bank was made of, got "
            f"{tuple(waves.shape)}. Nothing is broadcast or cut."
        )
    valid, _ = inputs.valid_waveforms(waves, "waveforms", bank.lengths, config.check_finite)
    return devices.picked(valid, 1, call.attributed).to(call.estimates.waves.dtype)


def ordered(call: Call, pit: str | None, losses: Callable[[Call], Tensor]) -> Call:
    """The call with each reference's estimate in its place.

    Args:
        call: as validated.
        pit: ``"si_sdr"``, ``"loss"``, or None: as they came.
        losses: (B,) losses of a call, which ``"loss"`` minimises.
    """
    if pit != "loss":
        return call if pit is None else call.ordered(best_order(call))
    waves = call.estimates.waves
    orders = torch.tensor(list(itertools.permutations(range(call.sources)))).to(waves.device)
    with torch.no_grad():
        found = [losses(call.ordered(order.expand(len(waves), -1))) for order in orders]
    return call.ordered(orders[torch.stack(found).argmin(0)])
