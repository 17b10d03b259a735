"""The terms of a loss, per frame and per estimate."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, NamedTuple

import torch
from torch import Tensor

from torch_mapss import audio
from torch_mapss.core import checks, devices
from torch_mapss.pipeline.bank import ReferenceBank
from torch_mapss.pipeline.call import Call
from torch_mapss.pipeline.config import Grid
from torch_mapss.pipeline.scores import Scores

# -log PS goes on as a straight line below this PS: PS is exactly 0 where an output is another
# source, and the slope of the logarithm would be infinite there.
LOG_FLOOR = 1e-6

Weighting = Callable[[Scores, ReferenceBank], Tensor]


class Term(NamedTuple):
    """One part of a loss, per estimate."""

    name: str
    weight: float
    values: Tensor  # (B, S'), exactly 0 where not defined
    defined: Tensor  # (B, S') bool

    def in_order(self, order: Tensor | None) -> Term:
        """The term with its values back in the places of the estimates."""
        return self._replace(
            values=devices.restore_order(self.values, order),
            defined=devices.restore_order(self.defined, order),
        )


@dataclass(frozen=True)
class LossRecord:
    """Values of the last call, without a graph, for logs."""

    terms: dict[str, Tensor]  # () unweighted mean of each term; NaN where it has no defined item
    defined: Tensor  # (B, S') bool: estimates that a term of frame scores was defined for
    order: Tensor | None  # (B, S) with PIT: the estimate taken for each reference

    @property
    def skipped(self) -> Tensor:
        """() int64: mixtures without any defined estimate."""
        return (~self.defined.any(-1)).sum()


# ------------------------------------------------------------------------------------------------
# Values of frames
# ------------------------------------------------------------------------------------------------


class FrameTerm(NamedTuple):
    """A term that every frame has."""

    measure: str  # that computes it
    field: str  # of Scores: it is defined where this is
    values: Callable[[Scores, Any], Tensor]  # (B, S', F) from scores and a setting of the loss
    setting: str = ""  # name of that setting
    choices: tuple[Any, ...] = (None,)  # for the setting; the first is taken where a loss has none

    def check(self, settings: Mapping[str, Any]) -> None:
        """Raise TypeError or ValueError for a setting of a loss that does not fit."""
        given = settings.get(self.setting, self.choices[0])
        if isinstance(self.choices[0], float):
            checks.check_real(given, self.setting, "[-100, 100]")
        else:
            checks.check_choice(given, self.setting, self.choices)


def leakage_values(scores: Scores, mode: str) -> Tensor:
    """1 - PS, or -log PS continued as its tangent below ``LOG_FLOOR``."""
    ps = scores.of("ps")
    if mode == "linear":
        return 1.0 - ps
    low = ps < LOG_FLOOR
    log = torch.where(low, 1.0, ps).log()  # the input is masked too: log 0 has no slope
    line = math.log(LOG_FLOOR) + (ps - LOG_FLOOR) / LOG_FLOOR
    return -torch.where(low, line, log)


def distortion_values(scores: Scores, mode: str) -> Tensor:
    """1 - PM, -log PM, or log(1 - log PM)."""
    if mode == "linear":
        return 1.0 - scores.of("pm")
    log_pm = scores.of("log_pm")
    return -log_pm if mode == "log" else torch.log1p(-log_pm)


def bleed_values(scores: Scores, floor_db: float) -> Tensor:
    """Decibels above the floor, 0 below it."""
    bleed = scores.of("bleed_db")
    return (torch.where(bleed.isnan(), floor_db, bleed) - floor_db).clamp(min=0.0)


FRAME_TERMS = {
    "clearance": FrameTerm("decomposition", "clearance", lambda s, _: 1.0 - s.of("clearance")),
    # Not 1 - fidelity, which is flat where the distortion exceeds the distance to a source.
    "fidelity": FrameTerm(
        "decomposition", "distortion_ratio", lambda s, _: s.of("distortion_ratio")
    ),
    "separation": FrameTerm(
        "separation", "ps", leakage_values, "separation_mode", ("linear", "log")
    ),
    "match": FrameTerm(
        "match", "log_pm", distortion_values, "match_mode", ("log1p", "linear", "log")
    ),
    "bleed": FrameTerm("bleed", "bleed_db", bleed_values, "floor_db", (-40.0,)),
}


def frame_term(
    name: str, weight: float, settings: Mapping[str, Any], scores: Scores, weights: Tensor
) -> Term:
    """A term of frames as the mean of each estimate.

    Args:
        name: in ``FRAME_TERMS``.
        weight: of the term in the loss.
        settings: of the loss.
        scores: with its measure.
        weights: (B, S', F) at least 0, of the frames; bleed, in frames where the own reference is
            silent, counts all frames alike.
    """
    term = FRAME_TERMS[name]
    defined = scores.defined(term.field)
    shares = torch.where(defined, torch.ones_like(weights) if name == "bleed" else weights, 0.0)
    setting = settings.get(term.setting, term.choices[0])
    values = torch.where(defined, term.values(scores, setting), 0.0)
    shares = shares.to(values.dtype)
    total = shares.sum(-1)
    # Weights of any scale: relative ones cannot underflow against each other.
    relative = shares / torch.where(total > 0.0, total, 1.0).unsqueeze(-1)
    mean = torch.where(relative > 0.0, values * relative, 0.0).sum(-1)
    return Term(name, weight, mean, total > 0.0)


def negative_si_sdr(call: Call) -> tuple[Tensor, Tensor]:
    """-SI-SDR (B, S') in dB, and where the reference is not silent."""
    values = call.estimates.new_zeros(call.estimates.shape[:2])
    defined = torch.zeros(values.shape, dtype=torch.bool, device=values.device)
    for clips, references in call.pairs():
        references = devices.select(references, call.attributed, 1)
        active = ~audio.is_silent(references) & clips.valid.all(-1, keepdim=True)
        place = (devices.upload(clips.items, values.device),)
        found = audio.si_sdr(clips.waves, references.to(values.dtype))
        values = values.index_put(place, torch.where(active, -found, 0.0))
        defined = defined.index_put(place, active)
    return values, defined


# ------------------------------------------------------------------------------------------------
# Weights of frames
# ------------------------------------------------------------------------------------------------


def frame_weights(
    weighting: str | Weighting | None, scores: Scores, call: Call, grid: Grid
) -> Tensor:
    """(B, S', F) weights of the frames, without a gradient."""
    if weighting is None:
        return torch.ones_like(scores.active, dtype=torch.float32)
    if not callable(weighting):
        return _energies(call.bank, call.attributed, grid).detach()
    weights, shape = weighting(scores.detach(), call.bank), scores.active.shape
    if not isinstance(weights, Tensor):
        raise TypeError(f"weighting must return a tensor (B, S', F), got {type(weights).__name__}.")
    try:
        weights = weights.detach().expand(shape)
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


def _energies(bank: ReferenceBank, index: tuple[int, ...], grid: Grid) -> Tensor:
    """(B, S', F) mean square of the normalised references in every frame, 0 in padding."""
    like = bank.groups[0].waves
    energies = like.new_zeros(bank.batch, len(index), bank.frames)
    for group in bank.groups:
        waves = devices.select(group.waves, index, 1)
        power = audio.frame_rms(waves, grid.receptive_field, grid.hop).square()
        places = devices.upload(group.items, energies.device)
        energies[places, :, : power.shape[-1]] = power.to(energies.dtype)
    return energies


def checked_weighting(weighting: str | Weighting | None) -> str | Weighting | None:
    if weighting is None or weighting == "energy" or callable(weighting):
        return weighting
    raise ValueError(
        "weighting must be None, 'energy' or a function from scores and bank to weights "
        f"(B, S', F), got {weighting!r}."
    )
