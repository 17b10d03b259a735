"""Permutation-invariant training: the order of the estimates, found without gradients."""

from __future__ import annotations

import itertools
from collections.abc import Callable

import torch
from torch import Tensor

from torch_mapss.pipeline.permutation import best_order, check_permutable
from torch_mapss.training.inputs import Call
from torch_mapss.training.terms import Term

PIT = ("si_sdr", "loss")
# PIT over the loss scores every permutation: 24 of them for 4 sources.
MOST_PERMUTED = 4


def ordered(call: Call, pit: str | None, losses: Callable[[Call], Tensor]) -> Call:
    """The call with each reference's estimate in its place.

    Args:
        call: as validated.
        pit: ``"si_sdr"``, ``"loss"``, or None: as they came.
        losses: (B,) losses of a call, which ``"loss"`` makes least.

    Raises:
        ValueError: not one estimate per reference, or too many of them for ``"loss"``.
    """
    if pit is None:
        return call
    check_permutable(call.validated, pit)
    if pit == "si_sdr":
        return call.in_order(best_order(call.validated))
    return call.in_order(_order_by_loss(call, losses))


@torch.no_grad()
def _order_by_loss(call: Call, losses: Callable[[Call], Tensor]) -> Tensor:
    sources, batch = call.bank.sources, len(call.estimates)
    if sources > MOST_PERMUTED:
        raise ValueError(
            f"pit='loss' scores every permutation and takes at most {MOST_PERMUTED} sources, "
            f"got {sources}. Use pit='si_sdr'."
        )
    orders = torch.tensor(list(itertools.permutations(range(sources)))).to(call.estimates.device)
    found = [losses(call.in_order(order.expand(batch, -1))) for order in orders]
    return orders[torch.stack(found).argmin(0)]


def unplaced(values: Tensor, order: Tensor | None) -> Tensor:
    """(B, S) values of references, back in the places of the estimates."""
    return values if order is None else values.gather(1, order.argsort(-1))


def returned(term: Term, order: Tensor | None) -> Term:
    """The term with its values back in the places of the estimates."""
    values, defined = unplaced(term.values, order), unplaced(term.defined, order)
    return term._replace(values=values, defined=defined)
