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
from torch_mapss.pipeline.call import Call, make_call
from torch_mapss.pipeline.config import Config
from torch_mapss.pipeline.memory import budget
from torch_mapss.pipeline.order import best_order, reordered

PIT = (*inputs.PIT, "loss")


def validate(
    config: Config,
    estimates: Tensor,
    references: Tensor | ReferenceBank,
    attributed: Sequence[int] | Tensor | None,
    lengths: Tensor | Sequence[int] | None,
    measures: tuple[str, ...],
    pit: str | None,
    grid_shift: float = 0.0,
) -> Call:
    """Check a call of a loss; references that are not yet a reference bank become one.

    Args:
        config: settings of the scorer.
        estimates, references, attributed, lengths: arguments of the loss.
        measures: measures that the loss needs.
        pit: setting of the loss, see :func:`ordered`.
        grid_shift: start of the frames, see :func:`torch_mapss.pipeline.call.make_call`.

    Raises:
        TypeError, ValueError: input that cannot be scored, see the message; with ``pit`` not one
            estimate per reference, or too many of them for ``"loss"``.
    """
    if isinstance(estimates, Tensor) and estimates.ndim == 2:
        raise ValueError(
            f"a loss takes estimates (B, S', T), got {tuple(estimates.shape)}: the first axis "
            "could be mixtures or sources. The measures compare an estimate with all sources of "
            "its mixture and have no value speaker by speaker; a permutation wrapper must pass "
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
    memory = budget(config.memory, estimates)
    arguments = config, estimates, references, attributed, lengths, measures, memory
    return make_call(*arguments, pit=pit, grid_shift=grid_shift)


def truth_of(
    config: Config, call: Call, references: Tensor | ReferenceBank, waveforms: Tensor | None
) -> Tensor:
    """Original references (B, S', T) of a call, for the user's own term.

    Args:
        config: settings of the scorer.
        call: the checked call.
        references: argument of the loss.
        waveforms: waveforms of the references if they are a bank, or None.

    Raises:
        ValueError: the references are a bank, and ``waveforms`` are missing or do not fit it.
    """
    bank, samples = call.bank, call.estimates.shape[-1]
    if waveforms is None and isinstance(references, Tensor):
        waveforms = references.reshape(bank.batch, bank.sources, -1)[..., :samples]
    if waveforms is None:
        raise ValueError(
            "extra needs the references as waveforms, and a bank was passed. Also pass the "
            "waveforms: loss(estimates, bank, waveforms=references)."
        )
    waves = audio.as_waveform(waveforms, "waveforms").detach()
    checks.check_devices(estimates=call.estimates, waveforms=waves)
    expected = bank.batch, bank.sources, samples
    if tuple(waves.shape) != expected:
        raise ValueError(
            f"waveforms must be the references (B, S, T) = {expected} the bank was made of, got "
            f"{tuple(waves.shape)}. Nothing is broadcast or cut."
        )
    valid, _ = inputs.valid_waveforms(waves, "waveforms", call.lengths, config.check_finite)
    return devices.select(valid, call.attributed, 1).to(call.estimates.dtype)


def ordered(
    call: Call, pit: str | None, losses: Callable[[Call], Tensor]
) -> tuple[Call, Tensor | None]:
    """Permute the estimates of a call into the order of the references.

    Args:
        call: the checked call.
        pit: ``"si_sdr"``, ``"loss"``, or None to keep their order.
        losses: function of a call that returns its losses (B,), which ``"loss"`` minimises.
    """
    if pit is None:
        return call, None
    if pit == "si_sdr":
        order = best_order(call)
        return reordered(call, order), order
    device, batch = call.estimates.device, len(call.estimates)
    permutations = list(itertools.permutations(range(call.bank.sources)))
    orders = torch.tensor(permutations, dtype=torch.int64, device="cpu").to(device)
    with torch.no_grad():
        by_order = [losses(reordered(call, order.expand(batch, -1))) for order in orders]
    order = orders[torch.stack(by_order).argmin(0)]
    return reordered(call, order), order
