"""Which estimate belongs to which reference, mixture by mixture: the permutation by SI-SDR."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import torch
from torch import Tensor

from torch_mapss import audio
from torch_mapss.core import checks
from torch_mapss.pipeline.inputs import Call

PIT = ("si_sdr",)


def check_pit(
    pit: str | None, attributed: Sequence[int] | None, choices: Sequence[str] = PIT
) -> str | None:
    """``pit``, one of ``choices`` or None.

    Raises:
        ValueError: something else, or the source of every estimate is given beside it.
    """
    if pit is None:
        return None
    checks.check_choice(pit, "pit", choices)
    if attributed is not None:
        raise ValueError(
            f"pit={pit!r} looks for the source of every estimate, and attributed={attributed} "
            "states it. Leave one of them out."
        )
    return pit


def check_permutable(call: Call, pit: str) -> None:
    """Raise ValueError unless there is one estimate per reference, and none is attributed."""
    sources = call.sources
    if call.attributed != tuple(range(sources)):
        raise ValueError(
            f"pit={pit!r} needs one estimate per reference and no attribution, got "
            f"attributed={call.attributed} of {sources} sources. Leave pit out where the "
            "source of an estimate is known."
        )


def pairs(call: Call) -> Iterator[tuple[tuple[int, ...], Tensor, Tensor]]:
    """Of each length: items, their estimates (b, S', T) and references (b, S, T), at one rate."""
    if call.bank is not None:
        truth = [group.waveforms for group in call.bank.groups]
    else:
        assert call.references is not None
        truth = [clips.waves for clips in call.references.clips]
    for clips, references in zip(call.estimates.clips, truth):
        yield clips.items, clips.waves, references.to(clips.waves.dtype)


@torch.no_grad()
def best_order(call: Call) -> Tensor:
    """The estimate that stands for each reference, by the largest total SI-SDR of a mixture.

    Args:
        call: validated, one estimate per reference.

    Returns:
        (B, S) int64 on the device of the estimates. A silent reference takes what the others
        leave.
    """
    order = torch.empty(call.estimates.waves.shape[:2], dtype=torch.int64)
    for items, estimates, references in pairs(call):
        order[list(items)] = audio.match_sources(estimates, references).argsort(-1).cpu()
    return order.to(call.estimates.waves.device)


def placed(estimates: Tensor, order: Tensor) -> Tensor:
    """Estimates (B, S, T) or (S, T) in the order of their references."""
    if estimates.ndim == 2:
        return estimates[order[0]]
    return estimates[torch.arange(len(order), device=order.device).unsqueeze(-1), order]
