"""Distorted copies of references, made and encoded a few at a time: the clusters of a measure."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor

from torch_mapss import audio
from torch_mapss.audio.loudness import at_loudness
from torch_mapss.distortions import DistortionBank, Measured
from torch_mapss.encoders import Encoder, WaveformEncoder
from torch_mapss.encoders.base import broken, is_usable
from torch_mapss.pipeline.budget import Budget

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
            waves,
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

    def __init__(
        self, encoder: Encoder, present: np.ndarray, device: torch.device, budget: Budget
    ) -> None:
        self.budget = budget
        count = present.sum(-1)
        self.shape = (*present.shape[:2], int(count.max(initial=0)))
        self.encoder = encoder
        self.views = isinstance(encoder, WaveformEncoder)
        self.kept: Tensor | None = None
        self.checks = Checks(encoder)
        full = bool((count == self.shape[2]).all())
        filled = np.arange(self.shape[2]) < count[..., None]
        self.mask = None if full else torch.from_numpy(filled).to(device)  # (b, S, P)

    def put(self, rows: Rows, waves: Tensor) -> None:
        """Encode waveforms (n, T) and keep them in their rows' slots."""
        if self.views:
            values = waves
        else:
            with self.encoder.within(self.budget.encoder):
                values = self.checks.note(self.encoder(waves))
        if self.kept is None:
            self.kept = values.new_empty((*self.shape, *values.shape[1:]))
            if self.mask is not None:
                self.kept.zero_()
        self.kept[rows.item, rows.source, rows.slot] = values

    def embeddings(self) -> Tensor:
        """(b, S, P, F, M); zeros where the mask is False."""
        assert self.kept is not None
        self.checks.read()
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
    waves: Tensor,
    bank: DistortionBank,
    encoder: Encoder,
    sample_rate: int,
    loudness: float,
    budget: Budget,
) -> tuple[Tensor, np.ndarray, Tensor | None]:
    """All members of a bank for normalised references (b, S, T), normalised and encoded.

    Present ones are moved to the front, so that no slot stays empty needlessly.

    Returns:
        (b, S, P, F, M); how many there are of each source (b, S); and the mask (b, S, P) of the
        filled slots (None: all are).
    """
    measured = bank.measure(waves, sample_rate, pieces=False)
    present = measured.mask.cpu().numpy()
    store = Store(encoder, present, waves.device, budget)
    for rows, made in copies(waves, bank, sample_rate, measured, present, budget):
        store.put(rows, at_loudness(made, sample_rate, loudness))
    return store.embeddings(), present.sum(-1), store.mask


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
