"""Weights: of the frames in a source's mean, and of the terms in a loss."""

from __future__ import annotations

import math
from collections.abc import Callable

import torch
from torch import Tensor

from torch_mapss import audio
from torch_mapss.core import devices
from torch_mapss.pipeline.bank import ReferenceBank
from torch_mapss.pipeline.config import Grid
from torch_mapss.pipeline.scores import Scores
from torch_mapss.training.inputs import Call

Weighting = Callable[[Scores, ReferenceBank], Tensor]


def frame_weights(
    weighting: str | Weighting | None, scores: Scores, call: Call, grid: Grid
) -> Tensor:
    """(B, S', F) weights of the frames, 0 where they are not scored, without a gradient."""
    if weighting is None:
        return scores.active.to(scores.dtype)
    if callable(weighting):
        weights = _checked_weights(weighting(scores.detach(), call.bank), scores)
    else:
        weights = energies_of(call.bank, call.attributed, grid)
    return torch.where(scores.active, weights.detach().to(scores.active.device, scores.dtype), 0.0)


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


def checked_weighting(weighting: str | Weighting | None) -> str | Weighting | None:
    if weighting is None or weighting == "energy" or callable(weighting):
        return weighting
    raise ValueError(
        "weighting must be None, 'energy' or a function from scores and bank to weights "
        f"(B, S', F), got {weighting!r}."
    )


def _checked_weights(weights: object, scores: Scores) -> Tensor:
    if not isinstance(weights, Tensor):
        raise TypeError(f"weighting must return a tensor (B, S', F), got {type(weights).__name__}.")
    try:
        weights = weights.expand(scores.active.shape)
    except RuntimeError:
        raise ValueError(
            f"weighting must return (B, S', F) = {tuple(scores.active.shape)}, got "
            f"{tuple(weights.shape)}."
        ) from None
    if not bool(((weights >= 0.0) & weights.isfinite()).all()):
        raise ValueError(
            "weighting must return finite weights of at least 0, got others. A negative weight "
            "would reward what it should punish."
        )
    return weights


def checked_weight(weight: float, name: str) -> float:
    value = float(weight)
    if not (math.isfinite(value) and value >= 0.0):
        raise ValueError(
            f"{name} must be a finite weight of at least 0, got {weight}. 0 leaves the term out."
        )
    return value


def needed(weights: dict[str, float]) -> tuple[str, ...]:
    """Which measures a MAPSSLoss computes."""
    ps, pm = weights["separation"] > 0.0, weights["match"] > 0.0
    if not (ps or pm):
        raise ValueError(
            "separation and match are both 0, so neither PS nor PM would be computed. Give one of "
            "them a weight, or use SI-SDR (torch_mapss.audio.si_sdr) without this loss."
        )
    return tuple(name for name in ("separation", "match") if weights[name] > 0.0)
