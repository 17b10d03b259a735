"""What a metric averages: one field of the scores, pooled over frames into one number a source."""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor

from torch_mapss.core import checks
from torch_mapss.core.pooling import PESQ_RANGE, masked_mean
from torch_mapss.pipeline.scores import Scores

Limits = tuple[float | None, float | None]


class Value(NamedTuple):
    """A number per source, and how it is labelled."""

    measure: str  # what a MAPSS has to compute for it
    field: str  # of Scores, per frame
    column: str  # of UtteranceScores, pooled over frames
    label: str
    limits: Limits = (0.0, 1.0)

    def frames(self, scores: Scores) -> Tensor:
        """(B, S', F), NaN where undefined."""
        return torch.where(scores.defined(self.field), scores.of(self.field), torch.nan)

    def sources(self, scores: Scores) -> Tensor:
        """(B, S'), NaN where no frame is defined."""
        return getattr(scores.utterance(), self.column)  # type: ignore[no-any-return]


CLEARANCE = Value("decomposition", "clearance", "clearance", "Clearance (0 to 1)")
FIDELITY = Value("decomposition", "fidelity", "fidelity", "Fidelity (0 to 1)")
PS = Value("separation", "ps", "ps", "Perceptual Separation (0 to 1)")
PS_PESQ = PS._replace(
    column="ps_pesq", label="Perceptual Separation (1.085 to 1.315)", limits=PESQ_RANGE
)
PM = Value("match", "pm", "pm", "Perceptual Match (0 to 1)")
LOG_PM = Value("match", "log_pm", "log_pm", "log PM (nats)", (None, 0.0))
BLEED = Value("bleed", "bleed_db", "bleed_db", "Bleed (dB)", (-100.0, None))
REDUCTIONS = ("mean", "source", "none")
FRAME_VALUES = {value.field: value for value in (CLEARANCE, FIDELITY, PS, PM, LOG_PM, BLEED)}


def item_means(values: Tensor) -> Tensor:
    """(B, S') -> (B,): mean over the sources that are defined, NaN where none is."""
    return masked_mean(values.nan_to_num(0.0), ~values.isnan())


def reduced_value(value: Value, reduction: str) -> Value:
    """The value that is averaged for a reduction: of PS, "pesq" is the paper's pooling.

    Raises:
        ValueError: no such reduction.
    """
    checks.check_choice(reduction, "reduction", REDUCTIONS + ("pesq",) * (value == PS))
    return PS_PESQ if reduction == "pesq" else value
