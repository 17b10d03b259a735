"""A checked call of a scorer: estimates, and the reference bank to compare them with."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from typing import NamedTuple

import torch
from torch import Tensor

from torch_mapss.core import checks
from torch_mapss.pipeline import inputs
from torch_mapss.pipeline.bank import ReferenceBank
from torch_mapss.pipeline.config import Config
from torch_mapss.pipeline.measures import checked_measures
from torch_mapss.pipeline.memory import Budget
from torch_mapss.pipeline.prepare import prepare


class Call(NamedTuple):
    """One checked call of :class:`~torch_mapss.MAPSS`."""

    estimates: Tensor  # (B, S', T) floating point, before resampling; zeros in the padding
    # (b, S', T) the same at the encoder's rate, for each group of ``bank.groups``.
    waves: tuple[Tensor, ...]
    valid: Tensor  # (B, S') bool; False: zeroed, because it had a NaN or infinite sample
    bank: ReferenceBank
    attributed: tuple[int, ...]  # (S',) source of each estimate
    measures: tuple[str, ...]  # measures to compute
    budget: Budget  # working memory
    offset: int = 0  # samples left out at the beginning of waves and bank

    @property
    def lengths(self) -> tuple[int, ...]:
        """(B,) true lengths in samples, before resampling."""
        return tuple(length + self.offset for length in self.bank.lengths)

    def pairs(self) -> Iterator[tuple[tuple[int, ...], Tensor, Tensor]]:
        """Yield, per length, the items, and estimates and references at the encoder's rate."""
        for waves, clips in zip(self.waves, self.bank.groups):
            yield clips.items, waves, clips.waves.to(waves.dtype)


def make_call(
    config: Config,
    estimates: Tensor,
    references: Tensor | ReferenceBank,
    attributed: object,
    lengths: Tensor | Sequence[int] | None,
    measures: str | Iterable[str] | None,
    budget: Budget,
    *,
    pit: str | None = None,
    warn: bool = False,
    grid_shift: float = 0.0,
) -> Call:
    """Check the arguments of a call, and prepare references that are not yet a reference bank.

    Args:
        config: settings of the scorer.
        estimates: (B, S', T) or (S', T) waveforms.
        references: (B, S, T) or (S, T) waveforms, or a bank made of them.
        attributed: (S',) which reference each estimate belongs to; None: all in order.
        lengths: (B,) true lengths in samples; None: T.
        measures: a name or several; None: the scorer's measures, as far as the bank has them.
        budget: working memory.
        pit: how the estimates will be permuted later; refused if they cannot be.
        warn: warn of mixtures that have no frame to score.
        grid_shift: start of the first frame, as a share of a hop in [0, 1). Samples before it are
            left out, but fewer if the shortest clip would lose its last frame, and none with a
            bank, whose frames exist already.

    Raises:
        TypeError: not tensors of a type that holds audio.
        ValueError: shapes, lengths, devices or samples that do not fit, see the message;
            ``attributed`` missing or wrong; a reference bank with other settings; measures that the
            settings cannot compute for this number of sources or this length; gradients for clips
            that are scored in segments.
    """
    waves = inputs.as_batch(estimates, "estimates")
    if isinstance(references, ReferenceBank):
        measures = inputs.measures_of_bank(config, references, measures)
        inputs.check_bank(config, references, measures, waves)
        sources, samples = references.sources, references.samples
    else:
        reference_waves = inputs.as_batch(references, "references")
        checks.check_devices(estimates=waves, references=reference_waves)
        if estimates.ndim != references.ndim or len(waves) != len(reference_waves):
            raise ValueError(
                "estimates (B, S', T) and references (B, S, T) must hold the same B mixtures, got "
                f"{tuple(estimates.shape)} and {tuple(references.shape)}. Nothing is broadcast."
            )
        measures = config.measures if measures is None else checked_measures(measures)
        sources, samples = references.shape[-2:]
    if waves.shape[-1] != samples:
        inputs.check_trim(config, waves.shape[-1], references, lengths)
        samples = min(waves.shape[-1], samples)
        waves = waves[..., :samples]
    source_of_estimate = checks.check_attributed(attributed, waves.shape[1], sources)
    if pit is not None:
        inputs.check_permutable(source_of_estimate, sources, pit)
    lengths_in_samples = inputs.true_lengths(config, lengths, len(waves), samples, references)
    # A bank was checked when it was prepared; of a long clip it may hold only excerpts.
    longest = 0 if isinstance(references, ReferenceBank) else max(lengths_in_samples)
    config.check(measures, sources, longest)
    waves, valid = inputs.valid_waveforms(
        waves, "estimates", lengths_in_samples, config.check_finite
    )
    if waves.requires_grad and torch.is_grad_enabled():
        inputs.check_gradient(config, lengths_in_samples)
    # All cheap checks are done; distorting and encoding take long. ``prepare`` is public and checks
    # its references again.
    if isinstance(references, ReferenceBank):
        bank, offset = references, 0
    else:
        hop = config.grid.hop * config.sample_rate / config.grid.sample_rate
        largest_offset = min(lengths_in_samples) - inputs.samples_of_a_frame(config)
        offset = min(int(grid_shift * hop), largest_offset)
        cut = references[..., :samples]
        bank = prepare(config, cut, lengths_in_samples, measures, budget, warn, offset=offset)
    groups = [clips.items for clips in bank.groups]
    resampled = inputs.resampled(config, waves[..., offset:], bank.lengths, groups)
    return Call(waves, resampled, valid, bank, source_of_estimate, measures, budget, offset)
