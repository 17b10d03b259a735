"""References on their way into a bank: the frame grid, distorting, encoding.

Behind the gate: the waveforms are admitted already. Losses know its :class:`Grid`.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, NamedTuple

import torch
from torch import Tensor

from torch_mapss import audio
from torch_mapss.audio.frames import active_frames
from torch_mapss.audio.loudness import at_loudness
from torch_mapss.core import checks
from torch_mapss.distortions import DistortionBank
from torch_mapss.encoders import Encoder, WaveformEncoder, check_embeddings
from torch_mapss.pipeline.admit import Clips, Signals
from torch_mapss.pipeline.records import Encoded, Group, ReferenceBank

if TYPE_CHECKING:
    from torch_mapss.pipeline.mapss import MAPSS

# Distortions made and encoded at a time, and the samples they may have together: making and
# normalising them needs some thirty times their memory.
MEMBERS, AT_ONCE = 8, 2**21
# Distortions a cluster needs: PS takes a covariance of them and the reference, PM a variance.
LEAST_MEMBERS = {"separation": 1, "match": 2}


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
    groups = [_prepare_group(mapss, clips, measures) for clips in references.clips]
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


def _prepare_group(mapss: MAPSS, clips: Clips, measures: str) -> Group:
    grid = mapss.grid
    waves = clips.waves.clone() if clips.waves.is_inference() else clips.waves
    waves = at_loudness(waves, grid.sample_rate, mapss.loudness)
    active = active_frames(waves, grid.receptive_field, grid.hop, mapss.activity)
    encoded: list[Encoded | None] = []
    plain: dict[int, Tensor] = {}
    for place, (kind, bank) in enumerate(mapss.banks.items()):
        if measures not in ("both", kind):
            encoded.append(None)
            continue
        encoder = mapss.encoders[place]
        if id(encoder) not in plain:
            plain[id(encoder)] = mapss.embeddings(encoder, waves)
        distortions, mask = encode_distortions(
            waves, bank, encoder, grid.sample_rate, mapss.loudness
        )
        found = (grid.shared(x, place) for x in (plain[id(encoder)], distortions))
        encoded.append(Encoded(next(found), next(found), mask))
        check_members(mask, active, clips.items, kind)
    for part in encoded:
        if part is not None:
            active = active & usable(part).unsqueeze(1)
    scored = (active.sum(1) >= 2).nonzero()
    return Group(clips.items, clips.samples, waves, active, scored, *encoded)


def silenced(group: Group, whole: Tensor | None) -> Group:
    """The group with mixtures active nowhere where ``whole`` (B,) is False; None: all are."""
    if whole is None:
        return group
    return replace(group, active=group.active & whole[list(group.items)][:, None, None])


class Store:
    """Embeddings of distortions (b, S, P, F, M), filled slot by slot.

    Encoders that only cut the waveform into frames are kept as waveforms, a view of which is the
    embedding: P times F frames of them would take up to receptive_field/hop of the memory.
    """

    def __init__(self, encoder: Encoder, waves: Tensor, count: int) -> None:
        self.encoder = encoder
        self.views = isinstance(encoder, WaveformEncoder)
        self.shape = (*waves.shape[:2], count)
        self.kept: Tensor | None = None
        self.filled = torch.zeros(self.shape, dtype=torch.bool, device=waves.device)

    def put(self, slots: tuple[Tensor, Tensor, Tensor], waves: Tensor) -> None:
        if len(waves) == 0:
            return
        values = waves if self.views else check_embeddings(self.encoder(waves), self.encoder)
        if self.kept is None:
            self.kept = values.new_empty((*self.shape, *values.shape[1:]))
        self.kept[slots] = values
        self.filled[slots] = True

    def embeddings(self, most: int) -> Tensor:
        assert self.kept is not None
        kept = self.kept[:, :, :most]
        kept[~self.filled[:, :, :most]] = 0.0
        if not self.views:
            return kept
        return audio.frame_signal(kept, self.encoder.receptive_field, self.encoder.hop)


def encode_distortions(
    waves: Tensor, bank: DistortionBank, encoder: Encoder, sample_rate: int, loudness: float
) -> tuple[Tensor, Tensor | None]:
    """All members of a bank for normalised references (b, S, T), normalised and encoded.

    Present ones are moved to the front, so that no slot stays empty needlessly.

    Returns:
        (b, S, P, F, M), and the mask (b, S, P) of the filled slots (None: all are).
    """
    store = Store(encoder, waves, len(bank.names(sample_rate)))
    taken = torch.zeros(waves.shape[:2], dtype=torch.int64, device=waves.device)
    batch, sources, samples = waves.shape
    step = max(1, min(sources, AT_ONCE // (batch * samples)))
    for first in range(0, sources, step):
        some = slice(first, min(first + step, sources))
        indices = range(sources)[some]
        chunk = max(1, min(MEMBERS, AT_ONCE // waves[:, some].numel()))
        for _, copies, present in bank.iterate(waves[:, some], sample_rate, indices, chunk, waves):
            slot = taken[:, some].unsqueeze(-1) + present.cumsum(-1) - 1
            b, s, p = present.nonzero(as_tuple=True)
            normal = audio.normalize_loudness(copies[b, s, p], sample_rate, loudness)
            store.put((b, s + first, slot[b, s, p]), normal)
            taken[:, some] += present.sum(-1)
    most = int(taken.max())
    mask = torch.arange(most, device=waves.device) < taken.unsqueeze(-1)
    return store.embeddings(most), None if bool(mask.all()) else mask


def check_members(mask: Tensor | None, active: Tensor, items: Sequence[int], kind: str) -> None:
    """Raise ValueError naming a source that has frames to score but too few distortions.

    Args:
        mask: (b, S, P) which distortions there are; None: all, whose number is known beforehand.
        active: (b, S, F).
        items: mixtures of the batch the rows belong to.
        kind: of the bank.
    """
    if mask is None:
        return
    count = mask.sum(-1)
    bad = ((count < LEAST_MEMBERS[kind]) & active.any(-1)).nonzero()
    if len(bad):
        row, source = bad[0].tolist()
        raise ValueError(
            f"references: source {source} of mixture {items[row]} has {int(count[row, source])} "
            f"distortions in the {kind} bank, but a cluster needs at least {LEAST_MEMBERS[kind]}: "
            "the families kept take their parameters from spectral peaks or energies which this "
            "signal has not. Keep more families."
        )


def usable(encoded: Encoded) -> Tensor:
    """(b, F) frames in which all embeddings of references and distortions are finite."""
    # A sum over features keeps NaN and infinity, and does not copy a view.
    references = encoded.references.sum(-1).isfinite().all(1)
    return references & encoded.distortions.sum(-1).isfinite().all(1).all(1)


def warn_unscored(bank: ReferenceBank) -> None:
    """Warn, naming them, of mixtures in which no frame has two active sources."""
    empty = []
    for group in bank.groups:
        counts = torch.bincount(group.scored[:, 0].cpu(), minlength=len(group.items))
        empty += [item for item, count in zip(group.items, counts.tolist()) if count == 0]
    if empty:
        checks.warn_user(
            f"mixtures {sorted(empty)} have no frame in which two sources are active: their scores "
            "are undefined (NaN in means, left out of losses)."
        )
