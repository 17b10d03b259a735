"""Waveforms of several lengths in one batch: which rows share one, padded, and what stays apart."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Sequence
from typing import NamedTuple

import torch
from torch import Tensor

from torch_mapss.core import devices

# Of a padded batch, the share that may be padding: work for nothing, at most a third more than is
# needed. Four clips between three and four seconds share a batch, one of a second does not join.
MOST_PADDING = 0.25


class Piece(NamedTuple):
    """Rows [start, stop) of the waveforms of one length."""

    place: int  # of that length among the others
    start: int
    stop: int


def shared_batches(
    counts: Sequence[int], lengths: Sequence[int], fitting: Callable[[int], int] | None
) -> list[list[Piece]]:
    """Divide rows of several lengths into batches that are padded to their longest.

    Batches that rows of one length fill stay without padding, for there is no call to be saved. The
    rows that each length has left are joined, from the longest down, while all of them fit and no
    more than `MOST_PADDING` of the batch is padding.

    Args:
        counts: rows of each length.
        lengths: the same in samples.
        fitting: how many rows of so many samples fit at once; None: any number.

    Returns:
        The pieces of every batch, longest first; the rows of each length in their order.
    """
    full: list[list[Piece]] = []
    batch: list[Piece] = []
    rows = samples = 0  # of the open batch, without padding
    for place in sorted(range(len(counts)), key=lambda k: -lengths[k]):
        count, length = counts[place], lengths[place]
        left = count if fitting is None else count % fitting(length)
        if fitting is not None:
            size = fitting(length)
            starts = range(0, count - left, size)
            full += [[Piece(place, start, start + size)] for start in starts]
        if not left:
            continue
        longest = lengths[batch[0].place] if batch else length
        padded = (rows + left) * longest
        fits = fitting is None or rows + left <= fitting(longest)
        if batch and not (fits and padded - samples - left * length <= MOST_PADDING * padded):
            full.append(batch)
            batch, rows, samples = [], 0, 0
        batch.append(Piece(place, count - left, count))
        rows, samples = rows + left, samples + left * length
    return [*full, batch] if batch else full


def joined(waveforms: Sequence[Tensor]) -> Tensor:
    """(n, T) each, T its own -> (N, longest), zeros behind those that are shorter."""
    longest = max(x.shape[-1] for x in waveforms)
    pad = torch.nn.functional.pad
    return torch.cat([pad(x, (0, longest - x.shape[-1])) for x in waveforms])


def at_true_length(
    change: Callable[[Tensor], Tensor], flat: Tensor, lengths: Sequence[int]
) -> Tensor:
    """What `change` makes of padded waveforms (N, T) without their padding, padded again.

    Args:
        change: (n, T') -> (n, ..., T''); rows do not depend on each other.
        flat: (N, T).
        lengths: (N,) samples; neighbours of equal length are changed together.

    Returns:
        (N, ..., longest T''), zeros behind those that are shorter.
    """
    parts, start = [], 0
    for length, same in itertools.groupby(lengths):
        stop = start + len(list(same))
        parts.append(change(flat[start:stop, :length]))
        start = stop
    return joined(parts)


def inside(counts: Sequence[int], longest: int, device: torch.device) -> Tensor:
    """(N, longest) bool: True for the first `counts[n]` places of row n."""
    places = torch.arange(longest, device=device)
    return places < devices.placed(list(counts), device).unsqueeze(-1)
