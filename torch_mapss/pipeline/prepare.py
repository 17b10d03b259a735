"""Preparation of a bank: references are normalised, distorted and encoded."""

from __future__ import annotations

import functools
from collections.abc import Sequence

import torch
from torch import Tensor

from torch_mapss.audio.frames import active_frames
from torch_mapss.audio.loudness import at_loudness, passing_blocks
from torch_mapss.core import checks, devices
from torch_mapss.pipeline import inputs
from torch_mapss.pipeline.activity import active_sources, frames_of_pauses, frames_to_score
from torch_mapss.pipeline.bank import Encoded, EncodedClips, ReferenceBank
from torch_mapss.pipeline.config import Config
from torch_mapss.pipeline.copies import Encoding, planned_copies, sums_of_others
from torch_mapss.pipeline.inputs import Clips
from torch_mapss.pipeline.measures import with_encoder
from torch_mapss.pipeline.memory import Budget, explained
from torch_mapss.pipeline.segments import measure_long_clip


@torch.inference_mode(False)  # a bank made in validation serves in training too
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
    waves = inputs.as_references(references)
    batch, sources, samples = waves.shape
    true = inputs.true_lengths(config, lengths, batch, samples, waves)
    config.check(measures, sources, max(true) if excerpts is None else 0)
    waves, valid = inputs.valid_waveforms(waves, "references", true, config.check_finite)
    waves, true = waves[..., offset:], tuple(length - offset for length in true)
    groups = inputs.items_by_length(config, true)
    encoding = Encoding(config, budget)
    with explained():
        prepared = tuple(
            measure_long_clip(config, clips, measures, budget, excerpts)
            if excerpts is not None or config.is_long(clips.samples)
            else encode_clips(config, clips, measures, encoding)
            for clips in inputs.clips_of(config, waves, valid, true, groups)
        )
        encoding.check()
    bank = ReferenceBank(prepared, samples - offset, config.bank_settings(measures))
    if warn:
        warn_unscored(bank)
    return bank


def encode_clips(
    config: Config, clips: Clips, measures: Sequence[str], encoding: Encoding
) -> EncodedClips:
    """Prepare mixtures of one length, with the embeddings of all their distortions."""
    grid = config.grid
    normalised = functools.partial(at_loudness, rate=grid.sample_rate, target=config.loudness)
    unscaled = clips.waves.clone() if clips.waves.is_inference() else clips.waves
    waves = normalised(unscaled)
    audible = active_frames(waves, grid.receptive_field, grid.hop, config.activity)
    embedded = with_encoder(measures)
    references = encoding.by_measure([measure.name for measure in embedded], waves)
    others: dict[str, Tensor] = {}
    if waves.shape[1] > 2:
        of_sums = [measure.name for measure in embedded if measure.others]
        if of_sums:
            others = encoding.by_measure(of_sums, normalised(sums_of_others(unscaled)))
    encoded: dict[str, Encoded] = {}
    for copies in planned_copies(config, encoding.budget, measures, waves, audible, clips.items):
        encoded |= copies.encode(
            waves, lambda _, copy: normalised(copy), encoding, references, others
        )
    valid = clips.valid.unsqueeze(-1).expand(audible.shape)
    for embeddings in encoded.values():
        valid = valid & embeddings.usable()
    active = active_sources(audible, valid)
    return EncodedClips(
        items=clips.items,
        samples=clips.samples,
        waves=waves,
        audible=audible,
        valid=valid,
        scored=frames_to_score(active),
        pauses=frames_of_pauses(active),
        gates=passing_blocks(waves, grid.sample_rate, config.loudness),
        encoded=encoded,
    )


def warn_unscored(bank: ReferenceBank) -> None:
    """Warn of mixtures in which no frame has two active sources, naming them."""
    # An accelerator is read once, whatever the number of lengths.
    scored = [devices.upload(c.items, bank.device)[c.scored[:, 0]] for c in bank.groups]
    empty = set(range(bank.batch)) - set(torch.cat(scored).tolist())
    if empty:
        checks.warn_user(
            f"mixtures {sorted(empty)} have no frame in which two sources are active: their scores "
            "are undefined (NaN in means, left out of losses), except for clearance and bleed "
            "where one source pauses while another one plays."
        )
