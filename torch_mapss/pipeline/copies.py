"""Distorted copies of references, made and encoded a few at a time, each once for all measures."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor

from torch_mapss.distortions import DistortionBank, Measured
from torch_mapss.encoders import Encoder
from torch_mapss.encoders.base import broken, is_usable
from torch_mapss.pipeline.bank import Encoded
from torch_mapss.pipeline.config import Config
from torch_mapss.pipeline.measures import MEASURES, with_encoder

MEMBERS = 8  # distortions made at a time, at most


# ------------------------------------------------------------------------------------------------
# Encoding
# ------------------------------------------------------------------------------------------------


class Encoding:
    """Encodes on the shared frames, and remembers whether encoders gave usable numbers."""

    def __init__(self, config: Config, device: torch.device) -> None:
        self.config, self.memory = config, config.budget(device).embeddings
        self.made: list[tuple[Tensor, str]] = []  # usable or not, and what to say if not

    def __call__(self, encoder: Encoder, waves: Tensor, frames: Tensor | None = None) -> Tensor:
        """Waveforms (..., T) -> their ``frames`` (None: all) as (..., F, M), in bounded memory."""
        embeddings = encoder(waves, self.memory)
        if embeddings.numel():
            self.made.append((is_usable(embeddings), broken(embeddings, encoder)))
        shared = self.config.grid.shared(embeddings, encoder)
        return shared if frames is None else shared[..., frames, :]

    def by_measure(
        self, measures: Iterable[str], waves: Tensor, frames: Tensor | None = None
    ) -> dict[str, Tensor]:
        """The same for each measure; an encoder that several have encodes once."""
        encoders = {name: self.config.encoder_of(name) for name in measures}
        found = {each: self(each, waves, frames) for each in dict.fromkeys(encoders.values())}
        return {name: found[encoder] for name, encoder in encoders.items()}

    def check(self) -> None:
        """Raise RuntimeError if a call gave no finite number; an accelerator is read once."""
        made, self.made = self.made, []
        usable = torch.stack([flag for flag, _ in made]).tolist() if made else []
        for fine, (_, text) in zip(usable, made):
            if not fine:
                raise RuntimeError(text)


# ------------------------------------------------------------------------------------------------
# Which copies serve which measures
# ------------------------------------------------------------------------------------------------


class Plan(NamedTuple):
    """Distortions that are made once, and the measures that they serve."""

    name: str  # measure whose bank it is
    bank: DistortionBank
    users: dict[str, list[int]]  # by measure, places of its members among the bank's


def plans(config: Config, measures: Iterable[str]) -> list[Plan]:
    """What to make for some measures; a bank whose members another one has is not made itself."""
    rate = config.grid.sample_rate
    found: list[Plan] = []
    for measure in sorted(with_encoder(measures), key=lambda each: -len(config.bank_of(each.name))):
        bank = config.bank_of(measure.name)
        members = bank.available(rate)
        for plan in found:
            made = plan.bank.available(rate)
            if plan.bank.seed == bank.seed and all(member in made for member in members):
                plan.users[measure.name] = [made.index(member) for member in members]
                break
        else:
            found.append(Plan(measure.name, bank, {measure.name: list(range(len(members)))}))
    return found


# ------------------------------------------------------------------------------------------------
# Their embeddings
# ------------------------------------------------------------------------------------------------


Rows = np.ndarray
"""Which copies a batch of waveforms holds: (3, n) mixture, source, and place on the P axis."""


def as_index(rows: Rows, device: torch.device) -> tuple[Tensor, ...]:
    """An index into (b, S, P)."""
    return tuple(torch.from_numpy(rows).to(device))


class Copies(NamedTuple):
    """What is made of references for some measures."""

    config: Config
    plan: Plan
    measured: Measured  # on the entire references; its mask has what any of the measures has
    present: dict[str, np.ndarray]  # (b, S, P) bool by measure: which of the bank's members it has

    def made(self, waves: Tensor, start: int = 0) -> Iterator[tuple[Rows, Tensor]]:
        """A few copies at a time, not normalised: their rows, and waveforms (n, T).

        Args:
            waves: (b, S, T) normalised references, or a piece of them.
            start: place of a piece's first sample.
        """
        batch, sources, length = waves.shape
        rate, at_once = self.config.grid.sample_rate, self.config.budget(waves.device).samples
        wanted = np.any([*self.present.values()], 0)
        step = max(1, min(sources, at_once // (batch * length)))
        for first in range(0, sources, step):
            some = slice(first, min(first + step, sources))
            chunk = max(1, min(MEMBERS, at_once // waves[:, some].numel()))
            parts = self.plan.bank.iterate(
                waves[:, some],
                rate,
                range(sources)[some],
                chunk,
                measured=self.measured.of_sources(some),
                start=start,
            )
            for part, made, _ in parts:
                here = wanted[:, some, part]
                rows = np.stack(np.nonzero(here))
                if rows.size:
                    index = as_index(rows, waves.device)
                    made = made.flatten(0, 2) if here.all() else made[index]
                    yield rows + [[0], [first], [part.start]], made

    def encode(
        self,
        waves: Tensor,
        level: Callable[[Rows, Tensor], Tensor],
        encoding: Callable[[Encoder, Tensor], Tensor],
        references: Mapping[str, Tensor],
        others: Mapping[str, Tensor],
        start: int = 0,
    ) -> dict[str, Encoded]:
        """All copies, each made once and encoded once for every encoder, by measure.

        Args:
            waves, start: as for :meth:`made`.
            level: from rows and their waveforms (n, T) to those that are encoded.
            encoding: from an encoder and waveforms to embeddings (n, F, M).
            references, others: embeddings (b, S, F, M) by measure.
        """
        # Present members are moved to the front, so that no place stays empty needlessly.
        slots = {name: np.where(x, x.cumsum(-1) - 1, -1) for name, x in self.present.items()}
        counts = {name: present.sum(-1, keepdims=True) for name, present in self.present.items()}
        filled = {name: np.arange(count.max()) < count for name, count in counts.items()}
        users: dict[Encoder, list[str]] = {}
        for name in slots:
            users.setdefault(self.config.encoder_of(name), []).append(name)
        found: dict[str, Tensor] = {}  # (b, S, P, F, M)
        for rows, made in self.made(waves, start):
            levelled = level(rows, made)
            for encoder, names in users.items():
                parts = {name: np.flatnonzero(slots[name][tuple(rows)] >= 0) for name in names}
                needed = np.unique(np.concatenate([*parts.values()]))
                if len(needed) == 0:
                    continue
                values = encoding(encoder, _picked(levelled, needed))
                for name, mine in parts.items():
                    if name not in found:
                        blank = values.new_empty if filled[name].all() else values.new_zeros
                        found[name] = blank((*filled[name].shape, *values.shape[1:]))
                    item, source, member = rows[:, mine]
                    slot = slots[name][item, source, member]
                    index = as_index(np.stack([item, source, slot]), values.device)
                    found[name][index] = _picked(values, np.searchsorted(needed, mine))
        encoded = {}
        for name, present in filled.items():
            own = references[name]
            if name not in found:  # silence may have no distortion at all
                found[name] = own.new_zeros((*present.shape, *own.shape[-2:]))
            mask = None if present.all() else torch.from_numpy(present).to(waves.device)
            encoded[name] = Encoded(own, found[name], mask, others.get(name))
        return encoded


def copies_of(config: Config, plan: Plan, measured: Mapping[str, Measured]) -> Copies:
    """What a plan makes, given what the bank of each measure found on the entire references.

    Of several members that come out equal a bank has the first, so a measure's members are
    those that its own bank has: they do not depend on what else is computed.
    """
    masks = [measured[name].mask for name in plan.users]
    host = torch.cat(masks, -1).cpu().numpy()  # an accelerator is read once
    parts = np.split(host, np.cumsum([mask.shape[-1] for mask in masks])[:-1], -1)
    present = {}
    for (name, places), part in zip(plan.users.items(), parts):
        present[name] = np.zeros((*part.shape[:2], masks[0].shape[-1]), bool)
        present[name][..., places] = part
    every = torch.from_numpy(np.any([*present.values()], 0)).to(masks[0].device)
    return Copies(config, plan, measured[plan.name]._replace(mask=every), present)


def planned_copies(
    config: Config,
    measures: Iterable[str],
    waves: Tensor,
    active: Tensor,
    items: Sequence[int],
    pieces: bool,
) -> Iterator[Copies]:
    """What is made of references for some measures, plan by plan.

    Args:
        config: of the scorer.
        measures: a bank is made for.
        waves: (b, S, T) normalised references.
        active: (b, S, F).
        items: mixtures of the batch that they are.
        pieces: whether pieces of them are to be distorted.

    Raises:
        ValueError: a source has frames to score but too few distortions.
    """
    rate = config.grid.sample_rate
    for plan in plans(config, measures):
        measured = {
            name: config.bank_of(name).measure(waves, rate, pieces=pieces and name == plan.name)
            for name in plan.users
        }
        copies = copies_of(config, plan, measured)
        for name, present in copies.present.items():
            _check_members(present.sum(-1), active, items, name)
        yield copies


def _check_members(count: np.ndarray, active: Tensor, items: Sequence[int], name: str) -> None:
    least = MEASURES[name].least_members
    if (count >= least).all():
        return
    bad = np.argwhere((count < least) & active.any(-1).cpu().numpy())
    if len(bad):
        row, source = bad[0].tolist()
        raise ValueError(
            f"references: source {source} of mixture {items[row]} has {int(count[row, source])} "
            f"distortions in the {name} bank, but a cluster needs at least {least}: the families "
            "kept take their parameters from spectral peaks or energies, which this signal lacks. "
            "Keep more families."
        )


def _picked(values: Tensor, index: np.ndarray) -> Tensor:
    if len(index) == len(values):
        return values
    return values[torch.from_numpy(index).to(values.device)]


def sums_of_others(waves: Tensor) -> Tensor:
    """(..., S, T): for each source the sum of the others, at the levels that they came with."""
    sources = waves.shape[-2]
    others = [[j for j in range(sources) if j != source] for source in range(sources)]
    return torch.stack([waves[..., some, :].sum(-2) for some in others], -2)
