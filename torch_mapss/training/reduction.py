"""Means over defined sources of a mixture, and defined mixtures of a batch or of all processes."""

from __future__ import annotations

from collections.abc import Mapping

import torch
from torch import Tensor

from torch_mapss.core import devices
from torch_mapss.training.terms import Term

REDUCTIONS = ("mean", "sum", "item", "none", "global")


def items_of(term: Term) -> Tensor:
    """(B,) mean over the defined sources of each mixture, 0 where there is none."""
    values, defined = term
    return values.sum(-1) / defined.sum(-1).clamp(min=1)


def mean_of(term: Term) -> Tensor:
    """() mean over the mixtures with a defined source, 0 if there is none."""
    _, defined = term
    return items_of(term).sum() / defined.any(-1).sum().clamp(min=1)


def reduced(terms: Mapping[str, Term], weights: Mapping[str, float], reduction: str) -> Tensor:
    """The weighted sum of terms per estimate: () for "mean", "sum" and "global", (B,), or (B, S').

    Args:
        terms: terms by the name of their weight.
        weights: weights by name.
        reduction: one of :data:`REDUCTIONS`.
    """
    if reduction == "global":
        sums = torch.stack([items_of(term).sum() for term in terms.values()])
        counts = torch.stack([defined.any(-1).sum() for _, defined in terms.values()])
        of_terms = [*means_over_processes(sums, counts)]
    elif reduction == "mean":
        of_terms = [mean_of(term) for term in terms.values()]
    elif reduction == "item":
        of_terms = [items_of(term) for term in terms.values()]
    elif reduction == "sum":
        of_terms = [values.sum() for values, _ in terms.values()]
    else:
        of_terms = [values for values, _ in terms.values()]
    weighted = [weights[name] * value for name, value in zip(terms, of_terms)]
    return torch.stack(weighted).sum(0)


def means_over_processes(sums: Tensor, counts: Tensor) -> Tensor:
    """Means (n,) over all processes, from the sums (n,) and counts (n,) of this one.

    Data-parallel training averages gradients: every process weighs the same, whatever its counts.
    With world size R, local sums s_r and counts n_r, the gradient returned here is R ∂s_r / Σ n,
    the average of which over r is that of the mean Σ s / Σ n over all. The value is that mean, the
    same on every process. A mean over nothing is 0.

    All processes of the default group must call it, each with its own.
    """
    sums_and_counts = torch.stack([devices.wide(sums.detach()), devices.wide(counts)])
    processes = 1
    if torch.distributed.is_available() and torch.distributed.is_initialized():
        processes = torch.distributed.get_world_size()
        torch.distributed.all_reduce(sums_and_counts)
    total, count = sums_and_counts[0], sums_and_counts[1].clamp(min=1.0)
    mean, share = (
        devices.back(x, sums.device).to(sums.dtype) for x in (total / count, processes / count)
    )
    local = sums * share  # carries the gradient
    return mean + local - local.detach()


def reduced_extra(value: object, reduction: str, shape: torch.Size) -> Tensor:
    """The user's own term, in the shape of the reduction."""
    accepted = {"item": (shape, shape[:1]), "none": (shape,)}.get(reduction, (shape, shape[:1], ()))
    if not isinstance(value, Tensor) or tuple(value.shape) not in accepted:
        got = tuple(value.shape) if isinstance(value, Tensor) else type(value).__name__
        shapes = " or ".join(str(tuple(sizes)) for sizes in accepted)
        raise ValueError(
            f"extra must return a tensor of shape {shapes} for reduction {reduction!r}, got "
            f"{got}. Average over time inside it."
        )
    if reduction == "none":
        return value
    if reduction == "item":
        return value if value.ndim == 1 else value.mean(-1)
    if reduction == "global":  # every mixture weighs the same, whatever the shape
        count = torch.tensor([shape[0]], dtype=torch.int64, device=value.device)
        return means_over_processes(value.mean().reshape(1) * shape[0], count)[0]
    return value.mean() if reduction == "mean" else value.sum()
