"""Weights of the frames in a source's mean."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor

from torch_mapss import audio
from torch_mapss.core import checks, devices
from torch_mapss.pipeline.bank import ReferenceBank
from torch_mapss.pipeline.config import Grid
from torch_mapss.pipeline.scores import Scores
from torch_mapss.training.inputs import Call

Weighting = Callable[[Scores, ReferenceBank], Tensor]


def frame_weights(
    weighting: str | Weighting | None, scores: Scores, call: Call, grid: Grid
) -> Tensor:
    """(B, S', F) weights of the frames, without a gradient."""
    if weighting is None:
        return torch.ones_like(scores.active, dtype=torch.float32)
    if callable(weighting):
        weights = _checked(weighting(scores.detach(), call.bank), scores.active.shape)
    else:
        weights = _energies(call.bank, call.attributed, grid)
    return weights.detach()


def _energies(bank: ReferenceBank, index: tuple[int, ...], grid: Grid) -> Tensor:
    """(B, S', F) mean square of the normalised references in every frame, 0 in padding."""
    like = bank.groups[0].waveforms
    energies = like.new_zeros(bank.batch, len(index), bank.frames)
    for group in bank.groups:
        waves = devices.picked(group.waveforms, 1, index)
        power = audio.frame_rms(waves, grid.receptive_field, grid.hop).square()
        places = devices.placed(group.items, energies.device)
        energies[places, :, : power.shape[-1]] = power.to(energies.dtype)
    return energies


def checked_weighting(weighting: str | Weighting | None) -> str | Weighting | None:
    if weighting is None or weighting == "energy" or callable(weighting):
        return weighting
    raise ValueError(
        "weighting must be None, 'energy' or a function from scores and bank to weights "
        f"(B, S', F), got {weighting!r}."
    )


def _checked(weights: object, shape: torch.Size) -> Tensor:
    if not isinstance(weights, Tensor):
        raise TypeError(f"weighting must return a tensor (B, S', F), got {type(weights).__name__}.")
    try:
        weights = weights.expand(shape)
    except RuntimeError:
        raise ValueError(
            f"weighting must return (B, S', F) = {tuple(shape)}, got {tuple(weights.shape)}."
        ) from None
    if not bool(((weights >= 0.0) & weights.isfinite()).all()):
        raise ValueError(
            "weighting must return finite weights of at least 0, got others. A negative weight "
            "would reward what it should punish."
        )
    return weights


def checked_weight(weight: float, name: str) -> float:
    """A weight of a term as a float."""
    return checks.check_real(weight, name, "[0, inf)", "0 leaves the term out.")
