"""References on their way into a bank: the frame grid, distorting, encoding.

Behind the gate: the waveforms are admitted already. Losses know its :class:`Grid`.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING, NamedTuple

import torch
from torch import Tensor

from torch_mapss.audio.frames import active_frames
from torch_mapss.audio.loudness import at_loudness
from torch_mapss.core import checks, devices
from torch_mapss.encoders import Encoder
from torch_mapss.pipeline.clusters import check_members, encode_distortions
from torch_mapss.pipeline.inputs import Clips, Signals
from torch_mapss.pipeline.memory import lowered
from torch_mapss.pipeline.records import Encoded, Group, ReferenceBank
from torch_mapss.pipeline.segments import defer

if TYPE_CHECKING:
    from torch_mapss.pipeline.mapss import MAPSS


class Grid(NamedTuple):
    """The frames both encoders share."""

    sample_rate: int
    hop: int
    receptive_field: int  # of the wider one
    skip: tuple[int, int]  # frames the PS and the PM encoder have before the first shared one

    def shared(self, embeddings: Tensor, place: int) -> Tensor:
        """The frames of (..., F, M) of the encoder of PS (0) or PM (1) that both have."""
        skip = self.skip[place]
        return embeddings[..., skip : embeddings.shape[-2] - skip, :]


def shared_grid(first: Encoder, second: Encoder) -> Grid:
    """The frames of both encoders whose centres coincide."""
    wide = max(first.receptive_field, second.receptive_field)
    skips = [(wide - e.receptive_field) / (2 * e.hop) for e in (first, second)]
    same = first.sample_rate == second.sample_rate and first.hop == second.hop
    if not same or any(skip != int(skip) for skip in skips):
        raise ValueError(
            "the encoders of PS and PM must share rate, hop and frame centres, got "
            f"{first.name!r} ({first.sample_rate} Hz, hop {first.hop}, receptive field "
            f"{first.receptive_field}) and {second.name!r} ({second.sample_rate} Hz, hop "
            f"{second.hop}, receptive field {second.receptive_field}). Score them in two MAPSS."
        )
    return Grid(first.sample_rate, first.hop, wide, (int(skips[0]), int(skips[1])))


@torch.inference_mode(False)  # a bank made in validation serves in training too
@torch.no_grad()
def prepare_bank(mapss: MAPSS, references: Signals, measures: str) -> ReferenceBank:
    """Distort and encode admitted references: normalise, find activity, distort, encode."""
    long = [mapss.is_long(clips.waves.shape[-1]) for clips in references.clips]
    short = [clips for clips, is_long in zip(references.clips, long) if not is_long]
    whole = iter(_prepare_groups(mapss, short, measures))
    groups = [
        defer(mapss, clips, measures) if is_long else next(whole)
        for clips, is_long in zip(references.clips, long)
    ]
    batch, sources, samples = references.waves.shape
    return ReferenceBank(
        groups=tuple(silenced(group, references.whole) for group in groups),
        batch=batch,
        sources=sources,
        samples=samples,
        frames=max(group.frames for group in groups),
        lengths=references.lengths,
        key=mapss.key,
    )


def _prepare_groups(mapss: MAPSS, clips: Sequence[Clips], measures: str) -> list[Group]:
    """Groups of all lengths: each treated on its own, but for the batches of the encoders."""
    if not clips:
        return []
    grid = mapss.grid
    waves = [at_loudness(_usual(some.waves), grid.sample_rate, mapss.loudness) for some in clips]
    active = [active_frames(some, grid.receptive_field, grid.hop, mapss.activity) for some in waves]
    encoded: list[list[Encoded | None]] = [[None, None] for _ in clips]
    plain: dict[int, list[Tensor]] = {}
    for place, (kind, bank) in enumerate(mapss.banks.items()):
        if measures not in ("both", kind):
            continue
        encoder = mapss.encoders[place]
        if id(encoder) not in plain:
            plain[id(encoder)] = mapss.embeddings(encoder, waves)
        encode = partial(encode_distortions, waves, bank, encoder, grid.sample_rate, mapss.loudness)
        clusters = lowered(encode, mapss.budget(waves[0].device))
        for k, (distortions, count, mask) in enumerate(clusters):
            check_members(count, active[k], clips[k].items, kind)
            found = (grid.shared(x, place) for x in (plain[id(encoder)][k], distortions))
            encoded[k][place] = Encoded(next(found), next(found), mask)
    return [_group(*of_length) for of_length in zip(clips, waves, active, encoded)]


def _usual(waves: Tensor) -> Tensor:
    return waves.clone() if waves.is_inference() else waves


def _group(clips: Clips, waves: Tensor, active: Tensor, encoded: Sequence[Encoded | None]) -> Group:
    for part in encoded:
        if part is not None:
            active = active & usable(part).unsqueeze(1)
    scored = (active.sum(1) >= 2).nonzero()
    return Group(clips.items, clips.samples, waves, active, scored, *encoded)


def silenced(group: Group, whole: Tensor | None) -> Group:
    """The group with mixtures active nowhere where ``whole`` (B,) is False; None: all are."""
    if whole is None:
        return group
    here = devices.picked(whole, 0, group.items)
    return replace(group, active=group.active & here[:, None, None])


def usable(encoded: Encoded) -> Tensor:
    """(b, F) frames in which all embeddings of references and distortions are finite."""
    # A sum over features keeps NaN and infinity, and does not copy a view.
    references = encoded.references.sum(-1).isfinite().all(1)
    return references & encoded.distortions.sum(-1).isfinite().all(1).all(1)


def warn_unscored(bank: ReferenceBank) -> None:
    """Warn, naming them, of mixtures in which no frame has two active sources."""
    # An accelerator is asked once, whatever the number of lengths.
    places = [devices.placed(group.items, bank.device) for group in bank.groups]
    found = [here[group.scored[:, 0]] for here, group in zip(places, bank.groups)]
    empty = set(range(bank.batch)) - set(torch.cat(found).tolist())
    if empty:
        checks.warn_user(
            f"mixtures {sorted(empty)} have no frame in which two sources are active: their scores "
            "are undefined (NaN in means, left out of losses)."
        )
