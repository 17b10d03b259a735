"""Preparation of a reference bank: references are normalised, distorted and encoded."""

from __future__ import annotations

import functools
from collections.abc import Sequence

import torch
from torch import Tensor

from torch_mapss.audio.frames import active_frames
from torch_mapss.audio.loudness import at_loudness, passing_blocks
from torch_mapss.core import checks, devices
from torch_mapss.pipeline import inputs
from torch_mapss.pipeline.activity import active_sources, frames_to_score
from torch_mapss.pipeline.bank import Clusters, PreparedClips, ReferenceBank
from torch_mapss.pipeline.config import Config
from torch_mapss.pipeline.copies import copy_plans, sums_of_others
from torch_mapss.pipeline.embedder import Embedder
from torch_mapss.pipeline.measures import with_encoder
from torch_mapss.pipeline.memory import Budget, explained
from torch_mapss.pipeline.segments import measure_long_clip


@torch.inference_mode(False)  # a bank made in validation is usable in training
@torch.no_grad()
def prepare(
    config: Config,
    references: Tensor,
    lengths: Tensor | Sequence[int] | None,
    measures: Sequence[str],
    budget: Budget,
    warn: bool,
    excerpts: Sequence[tuple[int, int]] | None = None,
    offset: int = 0,
) -> ReferenceBank:
    """Check, distort and encode references, one length at a time.

    Args:
        config: settings of the scorer.
        references: (B, S, T) or (S, T) waveforms.
        lengths: (B,) true lengths in samples; None: T.
        measures: measures to prepare.
        budget: working memory.
        warn: warn of mixtures that have no frame to score.
        excerpts: parts of a single mixture to score, each by its first sample and the sample after
            its last; levels and activity are those of the whole. None: everything.
        offset: samples to leave out at the beginning, which shifts the grid of frames; every
            mixture keeps at least one frame.

    Raises:
        TypeError: not a tensor of a dtype that can hold audio, or lengths that are not whole
            numbers.
        ValueError: references that cannot be scored, see the message; a source has too few
            distortions.
        RuntimeError: an encoder gave no finite number at all.
    """
    waves = inputs.as_batch(references, "references")
    batch, sources, samples = waves.shape
    lengths_in_samples = inputs.true_lengths(config, lengths, batch, samples, waves)
    config.check(measures, sources, max(lengths_in_samples) if excerpts is None else 0)
    waves, valid = inputs.valid_waveforms(
        waves, "references", lengths_in_samples, config.check_finite
    )
    waves = waves[..., offset:]
    lengths_in_samples = tuple(length - offset for length in lengths_in_samples)
    # Mixtures of one length form a group, but every long clip is a group by itself.
    grouped: dict[tuple[int, ...], list[int]] = {}
    for item, length in enumerate(lengths_in_samples):
        alone = (item,) if config.is_long(length) else ()
        grouped.setdefault((length, *alone), []).append(item)
    groups = [tuple(items) for items in grouped.values()]
    embedder = Embedder(config, budget)
    prepared: list[PreparedClips] = []
    with explained():
        resampled = inputs.resampled(config, waves, lengths_in_samples, groups)
        for items, waves_of_group in zip(groups, resampled):
            length, valid_sources = lengths_in_samples[items[0]], devices.select(valid, items, 0)
            if excerpts is not None or config.is_long(length):
                clips: PreparedClips = measure_long_clip(
                    config,
                    items,
                    length,
                    waves_of_group,
                    valid_sources,
                    measures,
                    budget,
                    excerpts,
                )
            else:
                clips = embed_clips(
                    embedder, items, length, waves_of_group, valid_sources, measures
                )
            prepared.append(clips)
        embedder.check()
    bank = ReferenceBank(tuple(prepared), samples - offset, config.bank_settings(measures))
    if warn:
        # An accelerator is read once, whatever the number of lengths.
        scored = [devices.upload(c.items, bank.device)[c.scored[:, 0]] for c in bank.groups]
        empty = set(range(bank.batch)) - set(torch.cat(scored).tolist())
        if empty:
            checks.warn_user(
                f"mixtures {sorted(empty)} have no frame in which two sources are active: their "
                "scores are undefined (NaN in means, left out of losses), except for clearance and "
                "bleed where one source pauses while another one plays."
            )
    return bank


def embed_clips(
    embedder: Embedder,
    items: tuple[int, ...],
    samples: int,
    waves: Tensor,
    valid_sources: Tensor,
    measures: Sequence[str],
) -> PreparedClips:
    """Prepare mixtures of one length, with the embeddings of all their distortions.

    Args:
        embedder: embeds references and distortions.
        items: indices of the mixtures in the batch.
        samples: their length before resampling.
        waves: (b, S, T) at the encoder's rate, finite.
        valid_sources: (b, S) bool; False: zeroed, because it had a NaN or infinite sample.
        measures: measures to prepare.
    """
    config, grid = embedder.config, embedder.config.grid
    normalised = functools.partial(at_loudness, rate=grid.sample_rate, target=config.loudness)
    unscaled = waves.clone() if waves.is_inference() else waves
    waves = normalised(unscaled)
    audible = active_frames(waves, grid.receptive_field, grid.hop, config.activity)
    embedded = with_encoder(measures)
    references = embedder.by_measure([measure.name for measure in embedded], waves)
    sums: dict[str, Tensor] = {}  # embedded sums of the other references, by measure
    with_sums = [measure.name for measure in embedded if measure.others]
    if waves.shape[1] > 2 and with_sums:
        sums = embedder.by_measure(with_sums, normalised(sums_of_others(unscaled)))
    encoded: dict[str, Clusters] = {}
    for plan in copy_plans(config, embedder.budget, measures, waves, audible, items):
        encoded |= plan.embed(embedder, waves, references, sums)
    valid = valid_sources.unsqueeze(-1).expand(audible.shape)
    for clusters in encoded.values():
        valid = valid & clusters.usable()
    scored, pauses = frames_to_score(active_sources(audible, valid))
    return PreparedClips(
        items=items,
        samples=samples,
        waves=waves,
        audible=audible,
        valid=valid,
        scored=scored,
        pauses=pauses,
        gates=passing_blocks(waves, grid.sample_rate, config.loudness),
        encoded=encoded,
    )
