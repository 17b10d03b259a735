"""References -> a bank: normalised, distorted, encoded."""

from __future__ import annotations

import functools
from collections.abc import Sequence

import torch
from torch import Tensor

from torch_mapss.audio.frames import active_frames
from torch_mapss.audio.loudness import at_loudness
from torch_mapss.core import checks, devices
from torch_mapss.pipeline.bank import Encoded, Group, ReferenceBank, scored_frames
from torch_mapss.pipeline.config import Config
from torch_mapss.pipeline.copies import Encoding, planned_copies, sums_of_others
from torch_mapss.pipeline.inputs import Call, Clips, Signals
from torch_mapss.pipeline.measures import with_encoder
from torch_mapss.pipeline.memory import explained
from torch_mapss.pipeline.segments import deferred_group


def with_bank(config: Config, call: Call, warn: bool = False) -> Call:
    """The call with a bank: references that came as waveforms are distorted and encoded."""
    if call.references is None:
        return call
    return call._replace(bank=prepare(config, call.references, call.measures, warn))


@torch.inference_mode(False)  # a bank made in validation serves in training too
@torch.no_grad()
def prepare(
    config: Config, references: Signals, measures: Sequence[str], warn: bool = True
) -> ReferenceBank:
    """Distort and encode validated references, those of every length on their own.

    Args:
        config: of the scorer.
        references: validated.
        measures: to be prepared.
        warn: name mixtures that have no frame to score.

    Raises:
        ValueError: a source has too few distortions.
        RuntimeError: an encoder gave no finite number at all.
    """
    encoding = Encoding(config, references.waves.device)
    with explained():
        groups = tuple(
            deferred_group(config, clips, measures)
            if config.is_long(clips.samples)
            else encoded_group(config, clips, measures, encoding)
            for clips in references.clips
        )
        encoding.check()
    bank = ReferenceBank(groups, references.waves.shape[-1], config.bank_settings(measures))
    if warn:
        warn_unscored(bank)
    return bank


def encoded_group(
    config: Config, clips: Clips, measures: Sequence[str], encoding: Encoding
) -> Group:
    """Mixtures of one length, with the embeddings of all their distortions."""
    grid = config.grid
    normalised = functools.partial(at_loudness, rate=grid.sample_rate, target=config.loudness)
    given = clips.waves.clone() if clips.waves.is_inference() else clips.waves
    waves = normalised(given)
    audible = active_frames(waves, grid.receptive_field, grid.hop, config.activity)
    used = with_encoder(measures)
    references = encoding.by_measure([measure.name for measure in used], waves)
    others: dict[str, Tensor] = {}
    parts: dict[str, Encoded] = {}
    valid = clips.valid.unsqueeze(-1).expand(audible.shape)
    if summed := [measure.name for measure in used if measure.others and waves.shape[1] > 2]:
        others = encoding.by_measure(summed, normalised(sums_of_others(given)))
    for copies in planned_copies(config, measures, waves, audible, clips.items, pieces=False):
        made = copies.encode(waves, lambda _, x: normalised(x), encoding, references, others)
        for name, part in made.items():
            parts[name] = part
            valid = valid & part.usable()
    scored = scored_frames(audible, valid)
    return Group(clips.items, clips.samples, waves, audible, valid, scored, parts)


def warn_unscored(bank: ReferenceBank) -> None:
    """Warn, naming them, of mixtures in which no frame has two active sources."""
    # An accelerator is read once, whatever the number of lengths.
    found = [devices.placed(g.items, bank.device)[g.scored[:, 0]] for g in bank.groups]
    empty = set(range(bank.batch)) - set(torch.cat(found).tolist())
    if empty:
        checks.warn_user(
            f"mixtures {sorted(empty)} have no frame in which two sources are active: their scores "
            "are undefined (NaN in means, left out of losses)."
        )
