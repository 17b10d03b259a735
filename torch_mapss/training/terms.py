"""The terms of a loss, per frame and per estimate."""

from __future__ import annotations

import functools
import math
from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor

from torch_mapss import audio
from torch_mapss.core import checks, devices
from torch_mapss.pipeline.bank import ReferenceBank
from torch_mapss.pipeline.call import Call
from torch_mapss.pipeline.config import Grid
from torch_mapss.pipeline.scores import Scores
from torch_mapss.score_table import SCORES

# Below this PS, -log PS is continued as a straight line: PS is exactly 0 where an output is another
# source, and the logarithm's slope would be infinite there.
LOG_FLOOR = 1e-6
SEPARATION_MODES = ("linear", "log")
MATCH_MODES = ("log1p", "linear", "log")

Weighting = Callable[[Scores, ReferenceBank], Tensor]


# A term of a loss, (B, S', F) per frame or (B, S') per estimate: its values, and whether they are
# defined. Values per estimate are exactly 0 where they are not.
Term = tuple[Tensor, Tensor]
FrameTerm = Callable[[Scores], Term]


@dataclass(frozen=True)
class LossRecord:
    """Values of the last call, without a graph, for logs."""

    #: Name -> () unweighted mean of a term, such as ``clearance_loss``; NaN without a defined item.
    terms: dict[str, Tensor]
    defined: Tensor  # (B, S') bool: estimates for which a term of frame scores was defined
    order: Tensor | None  # (B, S) with PIT: index of the estimate for each reference

    @property
    def skipped(self) -> Tensor:
        """() int64: mixtures without any defined estimate."""
        return (~self.defined.any(-1)).sum()


# ------------------------------------------------------------------------------------------------
# Losses of frames
# ------------------------------------------------------------------------------------------------


def clearance_loss(scores: Scores) -> Term:
    """1 - clearance."""
    return 1.0 - scores.of("clearance"), scores.defined("clearance")


def fidelity_loss(scores: Scores) -> Term:
    """Distortion as a share of the distance to a source: 1 - fidelity without its cap at 1.

    1 - fidelity itself is flat where the distortion exceeds the distance to a source.
    """
    return scores.of("distortion_ratio"), scores.defined("distortion_ratio")


def separation_loss(scores: Scores, mode: str = "linear") -> Term:
    """1 - PS, or ("log") -log PS, continued as its tangent below ``LOG_FLOOR``."""
    checks.check_choice(mode, "separation_mode", SEPARATION_MODES)
    ps, defined = scores.of("ps"), scores.defined("ps")
    if mode == "linear":
        return 1.0 - ps, defined
    low = ps < LOG_FLOOR
    log = torch.where(low, 1.0, ps).log()  # the input is masked too: log 0 has no slope
    tangent = math.log(LOG_FLOOR) + (ps - LOG_FLOOR) / LOG_FLOOR
    return -torch.where(low, tangent, log), defined


def match_loss(scores: Scores, mode: str = "log1p") -> Term:
    """log(1 - log PM), or ("log") -log PM, or ("linear") 1 - PM."""
    checks.check_choice(mode, "match_mode", MATCH_MODES)
    log_pm, defined = scores.of("log_pm"), scores.defined("log_pm")
    if mode == "linear":
        return 1.0 - scores.of("pm"), defined
    return -log_pm if mode == "log" else torch.log1p(-log_pm), defined


def bleed_loss(scores: Scores, floor_db: float = -40.0) -> Term:
    """Decibels above the floor, 0 below it."""
    bleed = scores.of("bleed_db")
    above = (torch.where(bleed.isnan(), floor_db, bleed) - floor_db).clamp(min=0.0)
    return above, scores.defined("bleed_db")


#: Name of a weight -> its frame term, with the default settings. A term's label, such as
#: ``clearance_loss``, is the ``loss_term`` of its score in the table of scores.
FRAME_TERMS: dict[str, FrameTerm] = {
    "clearance": clearance_loss,
    "fidelity": fidelity_loss,
    "separation": separation_loss,
    "match": match_loss,
    "bleed": bleed_loss,
}
# Terms whose frames all weigh the same: the own reference pauses there and gives no weights.
UNWEIGHTED = ("bleed",)


def separation_term(mode: str) -> FrameTerm:
    """:func:`separation_loss` in a checked mode."""
    checks.check_choice(mode, "separation_mode", SEPARATION_MODES)
    return functools.partial(separation_loss, mode=mode)


def match_term(mode: str) -> FrameTerm:
    """:func:`match_loss` in a checked mode."""
    checks.check_choice(mode, "match_mode", MATCH_MODES)
    return functools.partial(match_loss, mode=mode)


def bleed_term(floor_db: float) -> FrameTerm:
    """:func:`bleed_loss` above a checked floor."""
    floor_db = checks.check_real(floor_db, "floor_db", "[-100, 100]")
    return functools.partial(bleed_loss, floor_db=floor_db)


def measure_of_term(name: str) -> str:
    """The measure that a term needs, by the name of its weight."""
    label = f"{name}_loss"
    return next(score.measure for score in SCORES.values() if score.loss_term == label)


def estimate_term(name: str, frame_term: Term, frame_weights: Tensor) -> Term:
    """A term per frame as the mean of each estimate.

    Args:
        name: name of its weight.
        frame_term: the term per frame.
        frame_weights: (B, S', F) at least 0.
    """
    values, defined = frame_term
    weights = torch.ones_like(frame_weights) if name in UNWEIGHTED else frame_weights
    weights = torch.where(defined, weights, 0.0).to(values.dtype)
    values = torch.where(defined, values, 0.0)
    total = weights.sum(-1)
    # Weights of any scale: relative ones cannot underflow against each other.
    relative = weights / torch.where(total > 0.0, total, 1.0).unsqueeze(-1)
    mean = torch.where(relative > 0.0, values * relative, 0.0).sum(-1)
    return mean, total > 0.0


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
    energies = bank.groups[0].waves.new_zeros(bank.batch, len(index), bank.frames)
    for group in bank.groups:
        waves = devices.select(group.waves, index, 1)
        power = audio.frame_rms(waves, grid.receptive_field, grid.hop).square()
        items = devices.upload(group.items, energies.device)
        energies[items, :, : power.shape[-1]] = power.to(energies.dtype)
    return energies


def checked_weighting(weighting: str | Weighting | None) -> str | Weighting | None:
    """Check ``weighting`` and return it; ValueError unless None, "energy" or a callable."""
    if weighting is None or weighting == "energy" or callable(weighting):
        return weighting
    raise ValueError(
        "weighting must be None, 'energy' or a function from scores and bank to weights "
        f"(B, S', F), got {weighting!r}."
    )
