"""Distances among the points of a bank, taken once for all that is scored against it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

import torch
from torch import Tensor

from torch_mapss.core.frame_batches import known_distances
from torch_mapss.core.kernel import BankDistances, worth_keeping

# Bytes of embeddings that are gathered at a time.
GATHER_BYTES = 128 * 2**20


class BankFrames(NamedTuple):
    """What some frames hold of the clips of one length, frame first."""

    references: Tensor  # (n, S, M)
    distortions: Tensor  # (n, S, P, M)
    mask: Tensor | None  # (n, S, P)
    known: BankDistances | None = None  # D² among them, where they are kept


@dataclass(frozen=True)
class KeptDistances:
    """:class:`torch_mapss.core.kernel.BankDistances` of the scored frames of some clips."""

    row: Tensor  # (b, F) int64, the place of a frame in the others; -1: not kept
    squared: Tensor  # (n, C, C) float64, C = S(P+1)
    centre: Tensor  # (n, 1, M)
    largest: Tensor  # (n,)

    def of(self, item: Tensor, frame: Tensor) -> BankDistances | None:
        """Those of some frames, if all are kept (reads values)."""
        rows = self.row[item, frame]
        if bool((rows < 0).any()):
            return None
        return BankDistances(self.squared[rows], self.centre[rows], self.largest[rows])

    def padded(self, sources: int, most: int) -> KeptDistances:
        """With room for ``most`` distortions of each source; of those that are new D² is 0."""
        points = self.squared.shape[-1]
        count = points // sources - 1
        if count == most:
            return self
        source = torch.arange(sources).unsqueeze(-1)
        later = sources + source * most + torch.arange(count)
        index = torch.cat([source[:, 0], later.flatten()]).to(self.squared.device)
        size = sources * (most + 1)
        wide = self.squared.new_zeros(len(self.squared), size, size)
        wide[:, index.unsqueeze(-1), index] = self.squared
        return KeptDistances(self.row, wide, self.centre, self.largest)


def at_frames(
    references: Tensor, distortions: Tensor, mask: Tensor | None, where: Tensor
) -> BankFrames:
    """The embeddings of frames ``where`` (n, 2), clip and frame, of a bank.

    Args:
        references: (b, S, F, M).
        distortions: (b, S, P, F, M).
        mask: (b, S, P).
        where: (n, 2).
    """
    item, frame = where.unbind(-1)
    return BankFrames(
        references.transpose(1, 2)[item, frame],
        distortions.permute(0, 3, 1, 2, 4)[item, frame],
        None if mask is None else mask[item],
    )


def with_distances(frames: BankFrames, active: Tensor) -> BankFrames:
    """The frames with D² among their points, where that pays.

    Args:
        frames: of a bank.
        active: (n, S) which sources are there.
    """
    if not pays(frames.distortions):
        return frames
    present = None if bool(active.all()) else active
    known = known_distances(frames.references, frames.distortions, present, frames.mask)
    return frames._replace(known=known)


def shared_distances(
    references: Tensor, distortions: Tensor, mask: Tensor | None, active: Tensor, most: int
) -> BankDistances | None:
    """D² of frames that several systems are held against; None where it does not pay.

    Args:
        references: (n, S, M).
        distortions: (n, S, P, M).
        mask: (S, P) which distortions there are.
        active: (n, S) which sources are there.
        most: bytes that it may take.
    """
    n, sources, count, _ = distortions.shape
    if 8 * n * (sources * (count + 1)) ** 2 > most:
        return None
    present = None if mask is None else mask.expand(n, *mask.shape)
    return with_distances(BankFrames(references, distortions, present), active).known


def pays(distortions: Tensor) -> bool:
    """Whether to keep D² of a bank with distortions (…, S, P, …, M), by its shape and device."""
    sources, count = distortions.shape[1:3]
    return worth_keeping(sources * (count + 1), distortions.shape[-1], distortions.device)


def keep(
    references: Tensor,
    distortions: Tensor,
    mask: Tensor | None,
    active: Tensor,
    scored: Tensor,
) -> KeptDistances | None:
    """D² of the ``scored`` frames (n, 2); None where it does not pay.

    Args:
        references: (b, S, F, M).
        distortions: (b, S, P, F, M).
        mask: (b, S, P).
        active: (b, S, F) which sources are there.
        scored: (n, 2) clip and frame.
    """
    if not pays(distortions):
        return None
    batch, sources, count, length, features = distortions.shape
    points, total = sources * (count + 1), len(scored)
    found = BankDistances(
        torch.empty(total, points, points, dtype=torch.float64),
        torch.empty(total, 1, features, dtype=torch.float64),
        torch.empty(total, dtype=torch.float64),
    )
    size = max(1, GATHER_BYTES // (points * features * distortions.element_size()))
    for start in range(0, total, size):
        some = slice(start, min(start + size, total))
        item, frame = scored[some].unbind(-1)
        part = with_distances(
            at_frames(references, distortions, mask, scored[some]), active[item, :, frame]
        )
        assert part.known is not None
        for whole, values in zip(found, part.known):
            whole[some] = values
    row = torch.full((batch, length), -1, dtype=torch.int64)
    row[scored[:, 0], scored[:, 1]] = torch.arange(total)
    return KeptDistances(row, *found)


def stacked(parts: Sequence[KeptDistances | None], sources: int, most: int) -> KeptDistances | None:
    """Those of several banks as one, if all keep them, padded to ``most`` distortions."""
    there = [part.padded(sources, most) for part in parts if part is not None]
    if len(there) < len(parts):
        return None
    rows, start = [], 0
    for part in there:
        rows.append(torch.where(part.row < 0, -1, part.row + start))
        start += len(part.squared)
    return KeptDistances(
        torch.cat(rows),
        torch.cat([part.squared for part in there]),
        torch.cat([part.centre for part in there]),
        torch.cat([part.largest for part in there]),
    )
