"""Distorted copies of references, made and encoded a few at a time: the clusters of a measure."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor

from torch_mapss import audio
from torch_mapss.audio.loudness import at_loudness
from torch_mapss.distortions import DistortionBank, Measured
from torch_mapss.encoders import Encoder, WaveformEncoder
from torch_mapss.encoders.base import broken, is_usable
from torch_mapss.pipeline.memory import Budget

MEMBERS = 8  # distortions made at a time, at most
# Distortions a cluster needs: PS takes a covariance of them and the reference, PM a variance.
LEAST_MEMBERS = {"separation": 1, "match": 2}


class Rows(NamedTuple):
    """Which copies a batch of waveforms holds, one place for each."""

    item: Tensor  # (n,) mixture
    source: Tensor  # (n,)
    member: Tensor  # (n,) place on the bank's P axis
    slot: Tensor  # (n,) the same among the members that are there


def copies(
    waves: Tensor,
    bank: DistortionBank,
    sample_rate: int,
    measured: Measured,
    present: np.ndarray,
    budget: Budget,
    start: int = 0,
) -> Iterator[tuple[Rows, Tensor]]:
    """All copies that are there of references (b, S, T), or of a piece of them.

    Args:
        waves: (b, S, T) normalised references.
        bank: what distorts them.
        sample_rate: in Hz.
        measured: what the bank measured on the whole references.
        present: (b, S, P) bool, its mask, where no device has to be asked for it.
        budget: bounds how many are made at a time.
        start: place of a piece's first sample.

    Yields:
        The rows, and their waveforms (n, T), not normalised.
    """
    slots = present.cumsum(-1) - 1
    batch, sources, length = waves.shape
    step = max(1, min(sources, budget.samples // (batch * length)))
    for first in range(0, sources, step):
        some = slice(first, min(first + step, sources))
        chunk = max(1, min(MEMBERS, budget.samples // waves[:, some].numel()))
        parts = bank.iterate(
            waves[:, some],
            sample_rate,
            range(sources)[some],
            chunk,
            measured=measured.of_sources(some),
            start=start,
        )
        for part, made, _ in parts:
            here = present[:, some, part]
            b, s, p = np.nonzero(here)
            if len(b) == 0:
                continue
            slot = slots[b, s + first, p + part.start]
            rows = Rows(*(_on(x, waves) for x in (b, s + first, p + part.start, slot)))
            if here.all():
                yield rows, made.flatten(0, 2)
            else:
                yield rows, made[rows.item, rows.source - first, _on(p, waves)]


def _on(places: np.ndarray, waves: Tensor) -> Tensor:
    return torch.from_numpy(places).to(waves.device)


class Store:
    """Embeddings of distortions (b, S, P, F, M), filled row by row.

    Encoders that only cut the waveform into frames are kept as waveforms, a view of which is the
    embedding: P times F frames of them would take up to receptive_field/hop of the memory.
    """

    def __init__(self, encoder: Encoder, present: np.ndarray, device: torch.device) -> None:
        count = present.sum(-1)
        self.shape = (*present.shape[:2], int(count.max(initial=0)))
        self.encoder = encoder
        self.views = isinstance(encoder, WaveformEncoder)
        self.kept: Tensor | None = None
        full = bool((count == self.shape[2]).all())
        filled = np.arange(self.shape[2]) < count[..., None]
        self.mask = None if full else torch.from_numpy(filled).to(device)  # (b, S, P)

    def put(self, rows: Rows, values: Tensor) -> None:
        """Keep embeddings (n, F, M), or waveforms where these are kept, in their rows' slots."""
        if self.kept is None:
            self.kept = values.new_empty((*self.shape, *values.shape[1:]))
            if self.mask is not None:
                self.kept.zero_()
        self.kept[rows.item, rows.source, rows.slot] = values

    def embeddings(self) -> Tensor:
        """(b, S, P, F, M); zeros where the mask is False."""
        assert self.kept is not None
        if not self.views:
            return self.kept
        return audio.frame_signal(self.kept, self.encoder.receptive_field, self.encoder.hop)


class Checks:
    """Whether an encoder gave usable numbers at every call, asked of the device once."""

    def __init__(self, encoder: Encoder) -> None:
        self.encoder = encoder
        self.flags: list[Tensor] = []
        self.seen: list[Tensor] = []

    def note(self, embeddings: Tensor) -> Tensor:
        """The embeddings, unchanged."""
        if embeddings.numel():
            self.flags.append(is_usable(embeddings))
            # For the message: of the same shape, but no view, which would keep all of it alive.
            self.seen.append(embeddings.new_empty((0, *embeddings.shape[1:])))
        return embeddings

    def read(self) -> None:
        """Raise RuntimeError if a call gave no finite number at all."""
        usable = torch.stack(self.flags).tolist() if self.flags else []
        for fine, like in zip(usable, self.seen):
            if not fine:
                raise RuntimeError(broken(like, self.encoder))
        self.flags, self.seen = [], []


def encode_distortions(
    waves: Sequence[Tensor],
    bank: DistortionBank,
    encoder: Encoder,
    sample_rate: int,
    loudness: float,
    budget: Budget,
) -> list[tuple[Tensor, np.ndarray, Tensor | None]]:
    """All members of a bank for normalised references of every length, normalised and encoded.

    Each length (b, S, T) is distorted on its own, a few members at a time; the encoder gets those
    of several lengths together. Present ones are moved to the front, so that no slot stays empty
    needlessly.

    Returns:
        Of each length (b, S, P, F, M); how many there are of each source (b, S); and the mask
        (b, S, P) of the filled slots (None: all are).
    """
    measured = [bank.measure(some, sample_rate, pieces=False) for some in waves]
    # An accelerator is asked once for all of them.
    masks = torch.cat([found.mask for found in measured]).cpu().numpy()
    present = np.split(masks, np.cumsum([len(some) for some in waves])[:-1])
    stores = [Store(encoder, there, some.device) for there, some in zip(present, waves)]
    checks = Checks(encoder)
    for places in _shared_rounds(waves, encoder, budget):
        parts = [
            copies(waves[k], bank, sample_rate, measured[k], present[k], budget) for k in places
        ]
        for made in itertools.zip_longest(*parts):
            some = [(stores[k], *part) for k, part in zip(places, made) if part is not None]
            _put(some, partial(at_loudness, rate=sample_rate, target=loudness), checks, budget)
    checks.read()
    return [
        (store.embeddings(), there.sum(-1), store.mask) for store, there in zip(stores, present)
    ]


def _shared_rounds(
    waves: Sequence[Tensor], encoder: Encoder, budget: Budget
) -> Iterator[list[int]]:
    """Places of the lengths whose copies are encoded together: neighbours, as far as memory goes.

    That is no more than one length alone may take: where its copies fill a round, there is no call
    worth saving, and on a CPU larger rounds only leave the caches. How many of them share a batch
    is for the encoder to say.
    """
    some: list[int] = []
    waiting = 0
    for place in sorted(range(len(waves)), key=lambda k: -waves[k].shape[-1]):
        # At most what `copies` makes at a time.
        samples = max(waves[place].shape[0] * waves[place].shape[-1], budget.samples)
        samples = min(samples, MEMBERS * waves[place].numel())
        if some and not (encoder.joins and waiting + samples <= budget.samples):
            yield some
            some, waiting = [], 0
        some.append(place)
        waiting += samples
    yield some


def _put(
    some: Sequence[tuple[Store, Rows, Tensor]],
    normalise: Callable[[Tensor], Tensor],
    checks: Checks,
    budget: Budget,
) -> None:
    """Normalise and encode copies (n, T) of several lengths, and keep them in their stores."""
    waves = [normalise(made) for _, _, made in some]
    if not some[0][0].views:
        with checks.encoder.within(budget.encoder):
            waves = [checks.note(embeddings) for embeddings in checks.encoder.together(waves)]
    for (store, rows, _), values in zip(some, waves):
        store.put(rows, values)


def check_members(count: np.ndarray, active: Tensor, items: Sequence[int], kind: str) -> None:
    """Raise ValueError naming a source that has frames to score but too few distortions.

    Args:
        count: (b, S) how many distortions there are.
        active: (b, S, F).
        items: mixtures of the batch the rows belong to.
        kind: of the bank.
    """
    few = count < LEAST_MEMBERS[kind]
    if not few.any():
        return
    bad = np.argwhere(few & active.any(-1).cpu().numpy())
    if len(bad):
        row, source = bad[0].tolist()
        raise ValueError(
            f"references: source {source} of mixture {items[row]} has {int(count[row, source])} "
            f"distortions in the {kind} bank, but a cluster needs at least {LEAST_MEMBERS[kind]}: "
            "the families kept take their parameters from spectral peaks or energies which this "
            "signal has not. Keep more families."
        )
