"""Distorted copies of references: made and encoded a few at a time, once for all measures."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor

from torch_mapss.audio.loudness import at_loudness
from torch_mapss.distortions import DistortionBank, Measured
from torch_mapss.encoders import Encoder
from torch_mapss.pipeline.bank import Clusters
from torch_mapss.pipeline.config import Config
from torch_mapss.pipeline.embedder import Embedder
from torch_mapss.pipeline.measures import MEASURES, with_encoder
from torch_mapss.pipeline.memory import Budget

MEMBERS = 8  # most distortions made at a time


# ------------------------------------------------------------------------------------------------
# Plans: which copies serve which measures
# ------------------------------------------------------------------------------------------------


def shared_banks(
    config: Config, measures: Iterable[str]
) -> list[tuple[DistortionBank, dict[str, list[int]]]]:
    """Choose the distortion banks to make. One whose members a larger one has is taken from it.

    Returns:
        Distortion banks, each with the measures that use it and the indices of their members in it.
        It is the bank of the first of these measures.
    """
    rate = config.grid.sample_rate
    largest_first = sorted(
        with_encoder(measures), key=lambda measure: -len(config.banks[measure.bank].members)
    )
    shared: list[tuple[DistortionBank, dict[str, list[int]]]] = []
    for measure in largest_first:
        bank = config.banks[measure.bank]
        members = bank.available(rate)
        for larger_bank, members_by_measure in shared:
            made = larger_bank.available(rate)
            if larger_bank.seed == bank.seed and all(member in made for member in members):
                members_by_measure[measure.name] = [made.index(member) for member in members]
                break
        else:
            shared.append((bank, {measure.name: list(range(len(members)))}))
    return shared


# ------------------------------------------------------------------------------------------------
# Copies and their embeddings
# ------------------------------------------------------------------------------------------------


Rows = np.ndarray
"""Index of the n copies in a batch of waveforms: (3, n) mixture, source, and place on axis P."""


def as_index(rows: Rows, device: torch.device) -> tuple[Tensor, ...]:
    """The rows as an index into (b, S, P)."""
    return tuple(torch.from_numpy(rows).to(device))


class CopyPlan(NamedTuple):
    """The distorted copies to make by one distortion bank, and the measures that they serve."""

    config: Config
    budget: Budget
    bank: DistortionBank
    members_by_measure: dict[str, list[int]]  # indices of its members in ``bank``
    measured: Measured  # on entire references; the mask marks members of any of the measures
    present: dict[str, np.ndarray]  # (b, S, P) bool by measure: members to make for it

    def made(self, waves: Tensor, start: int = 0) -> Iterator[tuple[Rows, Tensor]]:
        """Yield a few copies at a time, not normalised: their rows, and waveforms (n, T).

        Args:
            waves: (b, S, T) normalised references, or a piece of them.
            start: position of the piece's first sample.
        """
        batch, sources, length = waves.shape
        needed = np.any([*self.present.values()], 0)  # by any measure
        step = max(1, min(sources, self.budget.samples // (batch * length)))
        for source in range(0, sources, step):
            stretch = slice(source, min(source + step, sources))
            chunk = max(1, min(MEMBERS, self.budget.samples // waves[:, stretch].numel()))
            for members, copies, _ in self.bank.chunks(
                waves[:, stretch],
                self.config.grid.sample_rate,
                range(sources)[stretch],
                chunk,
                measured=self.measured.of_sources(stretch),
                start=start,
            ):
                needed_here = needed[:, stretch, members]
                rows = np.stack(np.nonzero(needed_here))
                if rows.size:
                    index = as_index(rows, waves.device)
                    copies = copies.flatten(0, 2) if needed_here.all() else copies[index]
                    yield rows + [[0], [source], [members.start]], copies

    def embed(
        self,
        embedder: Embedder,
        waves: Tensor,
        references: Mapping[str, Tensor],
        others: Mapping[str, Tensor],
        *,
        gains: Tensor | None = None,
        start: int = 0,
        samples: slice = slice(None),
        frames: Tensor | None = None,
        length: int | None = None,
    ) -> dict[str, Clusters]:
        """Make each copy once, and embed it once per encoder; returns clusters by measure.

        Args:
            embedder: embeds the copies.
            waves, start: as in :meth:`made`.
            references, others: embeddings (b, S, F, M) by measure.
            gains: (b, S, P) that bring the copies to their level; None: their own loudness does.
            samples: samples of each copy that are encoded.
            frames, length: as in :meth:`Embedder.embed`.
        """
        rate, loudness = self.config.grid.sample_rate, self.config.loudness
        # Each source's present members are packed to the front: slot j holds the j-th one.
        slots: dict[str, np.ndarray] = {}  # (b, S, P of the bank) slot of a member; -1: absent
        filled: dict[str, np.ndarray] = {}  # (b, S, P) bool, slots that hold a member
        for name, present in self.present.items():
            slots[name] = np.where(present, present.cumsum(-1) - 1, -1)
            count = present.sum(-1, keepdims=True)
            filled[name] = np.arange(count.max()) < count
        measures_of_encoder: dict[Encoder, list[str]] = {}
        for name in slots:
            encoder = self.config.encoders[MEASURES[name].encoder].load()
            measures_of_encoder.setdefault(encoder, []).append(name)
        distortions: dict[str, Tensor] = {}  # (b, S, P, F, M) by measure
        for rows, copies in self.made(waves, start):
            if gains is None:
                levelled = at_loudness(copies, rate, loudness)
            else:
                gain = gains[as_index(rows, copies.device)]
                levelled = copies[:, samples] * gain.unsqueeze(-1)
            for encoder, names in measures_of_encoder.items():
                columns_by_measure = {
                    name: np.flatnonzero(slots[name][tuple(rows)] >= 0) for name in names
                }
                needed_columns = np.unique(np.concatenate([*columns_by_measure.values()]))
                if len(needed_columns) == 0:
                    continue
                needed = _select_rows(levelled, needed_columns)
                embeddings = embedder.embed(encoder, needed, frames, length)
                for name, columns in columns_by_measure.items():
                    if name not in distortions:
                        blank = embeddings.new_empty if filled[name].all() else embeddings.new_zeros
                        distortions[name] = blank((*filled[name].shape, *embeddings.shape[1:]))
                    item, source, member = rows[:, columns]
                    slot = slots[name][item, source, member]
                    index = as_index(np.stack([item, source, slot]), embeddings.device)
                    position = np.searchsorted(needed_columns, columns)
                    distortions[name][index] = _select_rows(embeddings, position)
        clusters = {}
        for name, filled_slots in filled.items():
            reference = references[name]
            if name not in distortions:  # silence may lack every distortion
                distortions[name] = reference.new_zeros(
                    (*filled_slots.shape, *reference.shape[-2:])
                )
            mask = None
            if not filled_slots.all():
                mask = torch.from_numpy(filled_slots).to(waves.device)
            clusters[name] = Clusters(reference, distortions[name], mask, others.get(name))
        return clusters


def copy_plan(
    config: Config,
    budget: Budget,
    bank: DistortionBank,
    members_by_measure: dict[str, list[int]],
    measured: Mapping[str, Measured],
) -> CopyPlan:
    """Plan of the copies by a distortion bank, from each one's measurements on entire references.

    If several members coincide for a reference, only the first counts. Each measure keeps the
    members of its own bank, so they do not depend on which other measures are computed.
    """
    masks = [measured[name].mask for name in members_by_measure]
    on_host = torch.cat(masks, -1).cpu().numpy()  # an accelerator is read once
    edges = np.cumsum([mask.shape[-1] for mask in masks])[:-1]
    present = {}
    masks_on_host = np.split(on_host, edges, -1)
    for (name, indices), mask in zip(members_by_measure.items(), masks_on_host):
        present[name] = np.zeros((*mask.shape[:2], masks[0].shape[-1]), bool)
        present[name][..., indices] = mask
    of_any = torch.from_numpy(np.any([*present.values()], 0)).to(masks[0].device)
    of_bank = measured[next(iter(members_by_measure))]._replace(mask=of_any)
    return CopyPlan(config, budget, bank, members_by_measure, of_bank, present)


def copy_plans(
    config: Config,
    budget: Budget,
    measures: Iterable[str],
    waves: Tensor,
    active: Tensor,
    items: Sequence[int],
    *,
    in_segments: bool = False,
) -> Iterator[CopyPlan]:
    """Yield the plans of the copies for some measures, by distortion bank.

    Args:
        config: settings of the scorer.
        budget: working memory.
        measures: measures to make copies for.
        waves: (b, S, T) normalised references.
        active: (b, S, F) bool.
        items: their indices in the batch.
        in_segments: whether the references will be distorted in segments.

    Raises:
        ValueError: a source has frames to score but too few distortions.
    """
    rate = config.grid.sample_rate
    for bank, members_by_measure in shared_banks(config, measures):
        measured = {}
        for name in members_by_measure:
            pieces = in_segments and name == next(iter(members_by_measure))
            own_bank = config.banks[MEASURES[name].bank]
            measured[name] = own_bank.measure(waves, rate, pieces=pieces)
        plan = copy_plan(config, budget, bank, members_by_measure, measured)
        for name, present in plan.present.items():
            count, fewest = present.sum(-1), MEASURES[name].least_members
            if (count >= fewest).all():
                continue
            lacking = np.argwhere((count < fewest) & active.any(-1).cpu().numpy())
            if len(lacking):
                row, source = lacking[0].tolist()
                raise ValueError(
                    f"references: source {source} of mixture {items[row]} has "
                    f"{int(count[row, source])} distortions in the {name} bank, but a cluster "
                    f"needs at least {fewest}: the families kept take their parameters from "
                    "spectral peaks or energies, which this signal lacks. Keep more families."
                )
        yield plan


def _select_rows(values: Tensor, index: np.ndarray) -> Tensor:
    if len(index) == len(values):
        return values
    return values[torch.from_numpy(index).to(values.device)]


def sums_of_others(waves: Tensor) -> Tensor:
    """(..., S, T): for each source the sum of the others, at their original levels.

    These are their levels in the mixture, so references must have the levels of the mixture. If
    sources were normalised before they are added, one at 0 dB and one at -20 dB would count alike
    in the sum. Their ratio matters: a different one moves the sum, and with it the clearance of
    single frames. With two sources there is no sum, and levels are arbitrary.
    """
    sources = waves.shape[-2]
    sums = []
    for source in range(sources):
        other_sources = [index for index in range(sources) if index != source]
        sums.append(waves[..., other_sources, :].sum(-2))
    return torch.stack(sums, -2)
