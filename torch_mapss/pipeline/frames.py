"""Scored frames on their way through the measures: gathered, chunked, written back.

Used by :mod:`torch_mapss.pipeline` only.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import NamedTuple

import torch
from torch import Tensor

from torch_mapss.core import devices
from torch_mapss.core.checks import check_whole
from torch_mapss.core.points import Points
from torch_mapss.pipeline.records import Deferred, Encoded, Group, Scores

# Bytes of embeddings that are gathered at a time.
GATHER_BYTES = 128 * 2**20


class BankFrames(NamedTuple):
    """What some frames hold of the clips of one length, frame first."""

    references: Tensor  # (n, S, M)
    distortions: Tensor  # (n, S, P, M)
    mask: Tensor | None  # (n, S, P)


class Part(NamedTuple):
    """The frames of one group that are scored in one go."""

    group: Group
    where: Tensor  # (n, 2) item of the group, frame
    outputs: tuple[Tensor | None, Tensor | None]  # (b, S', F, M) for PS and PM


class Canvas:
    """(B, S', F) tensors that parts are written to."""

    def __init__(self, shape: tuple[int, int, int], like: Tensor) -> None:
        self.shape, self.device = shape, like.device
        self.dtype = torch.float64 if like.dtype == torch.float64 else torch.float32
        self._parts: dict[str, list[tuple[Tensor, Tensor]]] = {}

    def put(self, name: str, group: Group, index: Tensor, values: Tensor) -> None:
        """Write (n, S') values to the frames ``index`` (n, 2) of a group's mixtures."""
        items = devices.placed(group.items, index.device)[index[:, 0]]
        self._parts.setdefault(name, []).append((items * self.shape[2] + index[:, 1], values))

    def __getitem__(self, name: str) -> Tensor:
        batch, outputs, frames = self.shape
        dtype = torch.bool if name == "active" else self.dtype
        blank = torch.zeros(batch * frames, outputs, dtype=dtype, device=self.device)
        parts = self._parts.get(name, [])
        if parts:
            places = torch.cat([place for place, _ in parts])
            values = torch.cat([value.to(dtype) for _, value in parts])
            blank = blank.index_put((places,), values)
        return blank.reshape(batch, frames, outputs).transpose(1, 2)

    def scores(self, times: Tensor, measures: str = "both") -> Scores:
        names = ["ps", "pm", "log_pm", "active", "attributed_distance", "foreign_distance"]
        return Scores(
            **{name: self[name] for name in names},
            times=times,
            measures=measures,
            separation_dimension=self.of_frames("separation_dimension"),
            match_dimension=self.of_frames("match_dimension"),
        )

    def of_frames(self, name: str) -> Tensor:
        """(B, F) int64 of what all estimates scored in a frame share; 0 where none is."""
        return self[name].detach().amax(1).round().long()


def chunks(parts: Sequence[Part], graph: bool, gathered: int = GATHER_BYTES) -> Iterator[Part]:
    """The scored frames, in chunks of so many bytes at most unless a graph is kept anyway."""
    for part in parts:
        clips = part.group.separation, part.group.match
        each = max(1, *(_frame_bytes(encoded) for encoded in clips))
        size = len(part.where) if graph else max(1, gathered // each)
        for start in range(0, len(part.where), max(1, size)):
            yield part._replace(where=part.where[start : start + size])


def activity(part: Part, attributed: tuple[int, ...]) -> tuple[Tensor, Tensor]:
    """Active sources (n, S) of the frames, and which estimates (n, S') are scored in them.

    A frame whose estimates have non-finite embeddings scores none of its estimates.
    """
    item, frame = part.where.unbind(-1)
    active = part.group.active[item, :, frame]
    finite = torch.ones(len(item), dtype=torch.bool, device=active.device)
    for outputs in part.outputs:
        if outputs is not None:
            finite &= outputs.detach()[item, :, frame].isfinite().all(-1).all(-1)
    enough = active.sum(-1, keepdim=True) >= 2
    return active, devices.picked(active, 1, attributed) & enough & finite.unsqueeze(-1)


def bank_frames(part: Part, place: int) -> BankFrames:
    """What the frames of a part hold of the bank, for PS (0) or PM (1)."""
    encoded = (part.group.separation, part.group.match)[place]
    assert isinstance(encoded, Encoded)
    item, frame = part.where.unbind(-1)
    return BankFrames(
        encoded.references.transpose(1, 2)[item, frame],
        encoded.distortions.permute(0, 3, 1, 2, 4)[item, frame],
        None if encoded.mask is None else encoded.mask[item],
    )


def gather(
    part: Part,
    place: int,
    index: tuple[int, ...],
    active: Tensor,
    bank: BankFrames | None = None,
) -> Points:
    """The embeddings of the frames of a part, frame first; the bank's if they are there already."""
    bank = bank_frames(part, place) if bank is None else bank
    outputs = part.outputs[place]
    assert outputs is not None
    item, frame = part.where.unbind(-1)
    chosen = outputs.transpose(1, 2)[item, frame]
    # A non-finite output would spoil its frame's graph; it is not scored, so any point will do.
    finite = chosen.isfinite().all(-1, keepdim=True)
    chosen = torch.where(finite, chosen, devices.picked(bank.references, 1, index))
    return Points(
        outputs=chosen,
        references=bank.references,
        distortions=bank.distortions,
        attributed=index,
        active=_where_some_are_not(active),
        mask=bank.mask,
    )


def _where_some_are_not(active: Tensor) -> Tensor | None:
    """``active`` (n, S) of scored frames; None where all are, as far as that is to be had freely.

    Scored frames have two active sources: with two, that is all of them. (A mixture with a bad
    sample has none, but its scores are not taken.)
    """
    if active.shape[-1] == 2:
        return None
    return None if not devices.is_accelerator(active.device) and bool(active.all()) else active


def _frame_bytes(encoded: Encoded | Deferred | None) -> int:
    if not isinstance(encoded, Encoded):
        return 0
    _, s, p, _, m = encoded.distortions.shape
    return s * (p + 1) * m * encoded.distortions.element_size()


def choose(parts: list[Part], frames: int | None, generator: torch.Generator | None) -> list[Part]:
    """At most ``frames`` of the scored frames of all parts, drawn without replacement."""
    total = sum(len(part.where) for part in parts)
    frames = total if frames is None else check_whole(frames, "frames", 1)
    if frames >= total:
        return parts
    if generator is None:
        generator = torch.Generator().manual_seed(0)
    drawn = torch.randperm(total, generator=generator)[:frames].sort().values
    chosen, start = [], 0
    for part in parts:
        stop = start + len(part.where)
        mine = drawn[(drawn >= start) & (drawn < stop)] - start
        chosen.append(part._replace(where=part.where[mine.to(part.where.device)]))
        start = stop
    return chosen
