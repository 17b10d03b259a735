"""Scores of a batch, which every metric and function reads its numbers from."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import NamedTuple

import torch
from torch import Tensor

from torch_mapss.core import checks
from torch_mapss.core.pooling import masked_mean
from torch_mapss.pipeline.bank import ReferenceBank
from torch_mapss.pipeline.call import make_call
from torch_mapss.pipeline.energy_ratios import bss_of_call, si_sdr_of_call
from torch_mapss.pipeline.mapss import MAPSS
from torch_mapss.pipeline.measures import MEASURES
from torch_mapss.pipeline.memory import budget
from torch_mapss.pipeline.order import best_order, reordered
from torch_mapss.pipeline.score import score
from torch_mapss.pipeline.scores import Scores

Target = Tensor | ReferenceBank
REDUCTIONS = ("mean", "source", "none")


class ScoredBatch(NamedTuple):
    """The scores of a batch. ``B`` mixtures, ``S'`` estimates, ``F`` frames."""

    frame_scores: Scores
    energy_ratios: Mapping[str, Tensor]  # (B, S') dB by score, NaN where undefined

    def by_source(self, names: Iterable[str]) -> dict[str, Tensor]:
        """Scores by name, (B, S') each: frames pooled, NaN where undefined."""
        scores: dict[str, Tensor | None] = self.frame_scores.utterance()._asdict()
        scores |= self.energy_ratios
        return {name: value for name in names if (value := scores[name]) is not None}

    def by_frame(self, name: str) -> Tensor:
        """Frame values (B, S', F) of a score, NaN where undefined."""
        scores = self.frame_scores
        return torch.where(scores.defined(name), scores.of(name), torch.nan)


def score_batch(
    mapss: MAPSS,
    preds: Tensor,
    target: Target,
    lengths: Tensor | Sequence[int] | None,
    measures: Sequence[str],
    attributed: tuple[int, ...] | None = None,
    *,
    frames: int | None = None,
    generator: torch.Generator | None = None,
    pit: str | None = None,
) -> ScoredBatch:
    """Score a batch.

    Args:
        mapss: the scorer.
        preds: (B, S', T) or (S', T) estimates.
        target: (B, S, T) or (S, T) references, or a bank of them.
        lengths: (B,) true lengths in samples; None: T.
        measures: families of scores to compute, "si_sdr" and "bss" among them.
        attributed: (S',) source of each estimate; None: in order.
        frames: largest number of frames to score, drawn with ``generator``; None: all.
        generator: CPU generator for drawing the frames.
        pit: ``"si_sdr"`` to permute the estimates, or None.

    Raises:
        TypeError, ValueError: input that cannot be scored, see :meth:`MAPSS.forward`; with ``pit``
            not one estimate per reference.
    """
    config = mapss.config
    of_frames = tuple(name for name in measures if name in MEASURES)
    memory = budget(config.memory, preds)
    call = make_call(
        config, preds, target, attributed, lengths, of_frames, memory, pit=pit, warn=True
    )
    if pit is not None:
        call = reordered(call, best_order(call))
    (values,) = score(config, [call], frames, generator)
    energy_ratios: dict[str, Tensor] = {}
    if "si_sdr" in measures:
        decibels, defined = si_sdr_of_call(call)
        energy_ratios["si_sdr"] = torch.where(defined, decibels, torch.nan)
    if "bss" in measures:
        energy_ratios |= bss_of_call(call)
    return ScoredBatch(values.scores(), energy_ratios)


def item_means(values: Tensor) -> Tensor:
    """(..., S') -> (...): mean over the sources that are defined, NaN where none is."""
    return masked_mean(values.nan_to_num(0.0), ~values.isnan())


def reduced_score(score_name: str, reduction: str) -> str:
    """Name of the score that a reduction averages; for PS, "pesq" is the paper's pooling.

    Raises:
        ValueError: no such reduction.
    """
    choices = (*REDUCTIONS, "pesq") if score_name == "ps" else REDUCTIONS
    checks.check_choice(reduction, "reduction", choices)
    return "ps_pesq" if reduction == "pesq" else score_name
