"""What the pipeline hands out: prepared references, frame scores, utterance scores, bounds.

Records of tensors; no maths beyond pooling. ``B`` mixtures, ``S'`` estimates, ``S`` sources, ``P``
distortions, ``F`` frames, ``M`` features.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, fields, replace
from typing import Any, NamedTuple

import torch
from torch import Tensor

from torch_mapss.core.pooling import masked_mean, pool_match, pool_separation
from torch_mapss.distortions import Measured

FORMAT = 3  # of saved banks; a bank of another format is refused


@dataclass(frozen=True)
class Encoded:
    """References and distortions of the mixtures of one length, encoded for one measure."""

    references: Tensor  # (b, S, F, M)
    distortions: Tensor  # (b, S, P, F, M)
    mask: Tensor | None  # (b, S, P) bool, absent distortions; None: all are there


@dataclass(frozen=True)
class Deferred:
    """The distortions of a clip that is too long to be kept encoded: how to make any part of them.

    Its references are distorted and encoded anew, segment by segment, whenever it is scored.
    """

    measured: Measured  # on the whole references
    gains: Tensor  # (b, S, P) what brings each copy to its level; 0 where there is none


@dataclass(frozen=True)
class Group:
    """The mixtures of a batch that share one length."""

    items: tuple[int, ...]  # their places in the batch
    samples: int  # length as handed in, before resampling
    waveforms: Tensor  # (b, S, T) normalised references at the encoder's rate
    active: Tensor  # (b, S, F) bool: source active and embeddings finite
    scored: Tensor  # (n, 2) int64: (item of the group, frame) with at least two active sources
    separation: Encoded | Deferred | None
    match: Encoded | Deferred | None

    @property
    def frames(self) -> int:
        return self.active.shape[-1]

    @property
    def deferred(self) -> bool:
        """Whether its clusters are made segment by segment, when it is scored."""
        return isinstance(self.separation, Deferred) or isinstance(self.match, Deferred)


def _mapped(record: Any, change: Callable[[Tensor], Tensor]) -> Any:
    """The record with every tensor in it changed."""
    if isinstance(record, Tensor):
        return change(record)
    if isinstance(record, Measured):
        parts = {name: _mapped(value, change) for name, value in record._asdict().items()}
        return Measured(**parts)
    if isinstance(record, dict):
        return {name: _mapped(value, change) for name, value in record.items()}
    if isinstance(record, tuple):
        return tuple(_mapped(value, change) for value in record)
    if isinstance(record, Encoded | Deferred | Group):
        values = {f.name: _mapped(getattr(record, f.name), change) for f in fields(record)}
        return replace(record, **values)
    return record


@dataclass(frozen=True)
class ReferenceBank:
    """References, distorted and encoded once, to be compared with any number of estimates.

    Made by :meth:`torch_mapss.MAPSS.prepare`; valid only for a MAPSS of equal settings (``key``).
    The key knows an encoder and a distortion of your own by name and settings, not by weights or
    code: give each version another name. Holds no graph. Its size is about
    S · (P_PS + P_PM) · F · M numbers, see ``nbytes``; of clips longer than a segment it holds what
    it takes to make their distortions again, which is little more than the references.
    """

    groups: tuple[Group, ...]
    batch: int  # B
    sources: int  # S
    samples: int  # longest length T, as handed in
    frames: int  # F of the longest
    lengths: tuple[int, ...]  # true length of each mixture
    key: str  # of the settings that made it

    @property
    def nbytes(self) -> int:
        """Bytes its tensors keep alive, each storage counted once."""
        storages: dict[int, int] = {}

        def note(tensor: Tensor) -> Tensor:
            storage = tensor.untyped_storage()
            storages[storage.data_ptr()] = storage.nbytes()
            return tensor

        for group in self.groups:
            _mapped(group, note)
        return sum(storages.values())

    @property
    def device(self) -> torch.device:
        return self.groups[0].waveforms.device

    def to(self, device: torch.device | str) -> ReferenceBank:
        """The bank with its tensors on ``device``."""
        return self._mapped(lambda tensor: tensor.to(device, non_blocking=True))

    def pin_memory(self) -> ReferenceBank:
        """The bank in page-locked memory, as DataLoader's ``pin_memory=True`` asks for."""
        return self._mapped(lambda tensor: tensor.pin_memory())

    def _mapped(self, change: Callable[[Tensor], Tensor]) -> ReferenceBank:
        return replace(self, groups=tuple(_mapped(group, change) for group in self.groups))

    def recombined(self, index: Tensor | Sequence[Sequence[int]]) -> ReferenceBank:
        """The bank of new mixtures of the same sources, without preparing anything again.

        A source is distorted and encoded on its own, so it can be mixed with any other: n prepared
        pairs make n² mixtures. Its level is free as well, since scoring normalises it.

        Args:
            index: (B', S) for each new mixture the mixture that each of its sources comes from;
                sources keep their axis, since their noise was drawn for it.

        Returns:
            The bank that preparing those references would give, of B' mixtures.

        Raises:
            ValueError: mixtures of several lengths, an index that does not fit.
        """
        chosen = torch.as_tensor(index, device=self.device)
        if len(self.groups) != 1:
            raise ValueError(
                f"only mixtures of one length can be recombined, got {len(self.groups)} lengths: "
                f"{sorted({group.samples for group in self.groups})} samples. Cut them first."
            )
        if self.groups[0].deferred:
            raise ValueError(
                "only mixtures that are kept encoded can be recombined, and these are so long that "
                "they are made in segments. Cut them into clips first, or pass segment=None."
            )
        if chosen.ndim != 2 or chosen.shape[1] != self.sources or len(chosen) == 0:
            raise ValueError(
                f"index must be (B', S) = (…, {self.sources}), got {tuple(chosen.shape)}."
            )
        if bool(((chosen < 0) | (chosen >= self.batch)).any()):
            raise ValueError(f"index must lie in [0, {self.batch}), got {chosen.tolist()}.")
        group = _recombined(self.groups[0], chosen)
        lengths = self.lengths[:1] * len(chosen)
        return replace(self, groups=(group,), batch=len(chosen), lengths=lengths)

    def save(self, path: str | os.PathLike[str]) -> None:
        """Write the bank to a file for :meth:`load`."""
        torch.save({"format": FORMAT, "bank": _plain(self)}, path)

    @staticmethod
    def load(
        path: str | os.PathLike[str], map_location: torch.device | str | None = None
    ) -> ReferenceBank:
        """Read a bank written by :meth:`save`.

        Raises:
            ValueError: the file holds something else, or a bank of another format.
        """
        try:
            stored = torch.load(path, map_location=map_location, weights_only=True)
        except FileNotFoundError:
            raise
        except Exception as error:
            raise ValueError(f"{os.fspath(path)!r} holds no saved ReferenceBank: {error}") from None
        if not isinstance(stored, dict) or stored.get("format") != FORMAT:
            raise ValueError(
                f"{os.fspath(path)!r} holds no ReferenceBank of format {FORMAT}. Make it again "
                "with MAPSS.prepare(...).save(path)."
            )
        return _restored(stored["bank"])

    @staticmethod
    def join(banks: Iterable[ReferenceBank]) -> ReferenceBank:
        """One bank of the mixtures of several, in order: a ``collate_fn`` for cached banks.

        Mixtures of equal length and equal shapes are stacked, so that they are scored together.

        Raises:
            ValueError: no bank, or banks of different settings or numbers of sources.
        """
        given = list(banks)
        if not given:
            raise ValueError("at least one bank is needed, got none.")
        if len({(bank.key, bank.sources) for bank in given}) > 1:
            raise ValueError(
                "banks of different settings or numbers of sources cannot be joined, got "
                f"{sorted({bank.sources for bank in given})} sources and "
                f"{len({bank.key for bank in given})} different settings."
            )
        offset, groups = 0, []
        for bank in given:
            groups += [
                replace(group, items=tuple(item + offset for item in group.items))
                for group in bank.groups
            ]
            offset += bank.batch
        return replace(
            given[0],
            groups=_stacked(groups),
            batch=offset,
            samples=max(bank.samples for bank in given),
            frames=max(bank.frames for bank in given),
            lengths=tuple(length for bank in given for length in bank.lengths),
        )


def _recombined(group: Group, index: Tensor) -> Group:
    """Source s of new mixture b is source s of mixture ``index[b, s]``, a place in the batch."""
    source = torch.arange(index.shape[1], device=index.device)

    def pick(tensor: Tensor) -> Tensor:
        return tensor[index, source]  # a group that is alone holds the mixtures in order

    def encoded(part: Encoded | Deferred | None) -> Encoded | None:
        if not isinstance(part, Encoded):
            return None
        return _mapped(part, pick)

    active = pick(group.active)
    return Group(
        items=tuple(range(len(index))),
        samples=group.samples,
        waveforms=pick(group.waveforms),
        active=active,
        scored=(active.sum(1) >= 2).nonzero(),
        separation=encoded(group.separation),
        match=encoded(group.match),
    )


def _stacked(groups: Sequence[Group]) -> tuple[Group, ...]:
    """Groups of one length as one group, distortions padded to the most and masked."""
    by_length: dict[tuple[int, ...], list[Group]] = {}
    for group in groups:
        length = group.samples, group.waveforms.shape[-1]
        alone = group.items if group.deferred else ()
        by_length.setdefault((*length, *alone), []).append(group)
    return tuple(_stack(same) if len(same) > 1 else same[0] for same in by_length.values())


def _stack(groups: Sequence[Group]) -> Group:
    starts, count = [], 0
    for group in groups:
        starts.append(count)
        count += len(group.items)
    scored = [
        group.scored + torch.tensor([start, 0], device=group.scored.device)
        for group, start in zip(groups, starts)
    ]
    return Group(
        items=tuple(item for group in groups for item in group.items),
        samples=groups[0].samples,
        waveforms=torch.cat([group.waveforms for group in groups]),
        active=torch.cat([group.active for group in groups]),
        scored=torch.cat(scored),
        separation=_stack_encoded([group.separation for group in groups]),
        match=_stack_encoded([group.match for group in groups]),
    )


def _stack_encoded(parts: Sequence[Encoded | Deferred | None]) -> Encoded | None:
    there = [part for part in parts if isinstance(part, Encoded)]
    if len(there) < len(parts):
        return None
    most = max(part.distortions.shape[2] for part in there)
    ragged = any(p.mask is not None or p.distortions.shape[2] < most for p in there)
    return Encoded(
        torch.cat([part.references for part in there]),
        torch.cat([_padded(part.distortions, most, 0.0) for part in there]),
        torch.cat([_padded(_full_mask(part), most, False) for part in there]) if ragged else None,
    )


def _full_mask(part: Encoded) -> Tensor:
    shape = part.distortions.shape[:3]
    return (
        part.mask
        if part.mask is not None
        else torch.ones(shape, dtype=torch.bool, device=part.distortions.device)
    )


def _padded(tensor: Tensor, most: int, value: float | bool) -> Tensor:
    missing = most - tensor.shape[2]
    if missing == 0:
        return tensor
    filler = tensor.new_full((*tensor.shape[:2], missing, *tensor.shape[3:]), value)
    return torch.cat([tensor, filler], 2)


def _plain(record: Any) -> Any:
    """Records as dictionaries, which ``torch.load(weights_only=True)`` reads."""
    if isinstance(record, Measured):
        return {name: _plain(value) for name, value in record._asdict().items()}
    if isinstance(record, Encoded | Deferred | Group | ReferenceBank):
        return {f.name: _plain(getattr(record, f.name)) for f in fields(record)}
    if isinstance(record, tuple):
        return [_plain(value) for value in record]
    return record


def _restored(stored: dict[str, Any]) -> ReferenceBank:
    groups = []
    for group in stored["groups"]:
        for name in ("separation", "match"):
            group[name] = None if group[name] is None else _restored_part(group[name])
        groups.append(Group(**{**group, "items": tuple(group["items"])}))
    return ReferenceBank(**{**stored, "groups": tuple(groups), "lengths": tuple(stored["lengths"])})


def _restored_part(stored: dict[str, Any]) -> Encoded | Deferred:
    if "measured" not in stored:
        return Encoded(**stored)
    known = stored["measured"]
    return Deferred(Measured(**{**known, "values": tuple(known["values"])}), stored["gains"])


class UtteranceScores(NamedTuple):
    """One number per estimate; NaN where no frame of it is scored."""

    ps: Tensor  # (B, S') mean PS, [0, 1]
    pm: Tensor  # (B, S') mean PM, [0, 1]
    log_pm: Tensor  # (B, S') mean log PM, <= 0
    ps_pesq: Tensor  # (B, S') PESQ-like pooling of PS, [1.085, 1.315]
    frames: Tensor  # (B, S') int64, how many frames are scored


@dataclass(frozen=True)
class Scores:
    """Frame scores of a batch. Where not ``active`` the others are 0, without gradient."""

    ps: Tensor  # (B, S', F) in [0, 1], 1: no leakage
    pm: Tensor  # (B, S', F) in [0, 1], 1: undistorted
    log_pm: Tensor  # (B, S', F) <= 0; keeps ranking where PM has saturated at 0
    active: Tensor  # (B, S', F) bool: source active, and at least one other
    attributed_distance: Tensor  # (B, S', F) A, to the source's own cluster (PS graph)
    foreign_distance: Tensor  # (B, S', F) B, to the closest other cluster (PS graph)
    times: Tensor  # (F,) seconds, centre of the encoder's receptive field
    measures: str = "both"  # which were computed, see :meth:`torch_mapss.MAPSS.forward`
    separation_dimension: Tensor | None = None  # (B, F) int64, d of PS's map; 0: nothing scored
    match_dimension: Tensor | None = None  # (B, F) int64, d of PM's map; 0: nothing scored

    def utterance(self) -> UtteranceScores:
        """Pool frames to one number per estimate: plain means, and the paper's pooling of PS.

        Returns:
            :class:`UtteranceScores`; PM's paper pooling is its plain mean [eq:avg_pooling_pm].
            NaN for a measure that was not computed.
        """
        of_ps = self.active & (self.measures != "match")
        of_pm = self.active & (self.measures != "separation")
        return UtteranceScores(
            ps=masked_mean(self.ps, of_ps),
            pm=pool_match(self.pm, of_pm),
            log_pm=pool_match(self.log_pm, of_pm, log=True),
            ps_pesq=pool_separation(self.ps, of_ps),
            frames=self.active.sum(-1),
        )

    def detach(self) -> Scores:
        """The same numbers without a graph."""
        values = {f.name: getattr(self, f.name) for f in fields(self)}
        tensors = {name: x.detach() for name, x in values.items() if isinstance(x, Tensor)}
        return replace(self, **tensors)  # type: ignore[arg-type]


class FrameBounds(NamedTuple):
    """Error of one measure in every frame; 0 where the frame is not scored."""

    radius: Tensor  # (B, S', F) deterministic: what truncation of the spectrum may change
    tail: Tensor  # (B, S', F) half-width at the confidence asked for: finite distortions
    total: Tensor  # (B, S', F) their sum


class ScoreBounds(NamedTuple):
    """What :meth:`torch_mapss.MAPSS.bounds` returns."""

    ps: FrameBounds
    pm: FrameBounds
    active: Tensor  # (B, S', F) bool, as in :class:`Scores`
    confidence: float
    scores: Scores | None = None  # read off the same maps; None where the bounds need others
