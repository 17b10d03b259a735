"""References, prepared: what any number of calls compare their estimates with."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, fields, is_dataclass, replace
from typing import Any

import torch
from torch import Tensor
from torch.nn.functional import pad

from torch_mapss.core.points import Points
from torch_mapss.distortions import Measured

FORMAT = 5  # of saved banks; a bank of another format is refused


@dataclass(frozen=True)
class Encoded:
    """References and distortions of the mixtures of one length, encoded for one measure."""

    references: Tensor  # (b, S, F, M)
    distortions: Tensor  # (b, S, P, F, M)
    mask: Tensor | None  # (b, S, P) bool, which distortions are present; None: all
    others: Tensor | None = None  # (b, S, F, M) sum of the other references

    def at(self, item: Tensor, frame: Tensor) -> Points:
        """Frames (n,) of items (n,), with the references as outputs."""
        references = self.references.transpose(1, 2)[item, frame]
        return Points(
            references,
            references,
            self.distortions.permute(0, 3, 1, 2, 4)[item, frame],
            tuple(range(references.shape[1])),
            mask=None if self.mask is None else self.mask[item],
            others=None if self.others is None else self.others.transpose(1, 2)[item, frame],
        )

    def usable(self) -> Tensor:
        """(b, F) frames in which all embeddings are finite."""
        # A sum over features keeps NaN and infinity, and does not copy a view.
        parts = self.references, self.distortions.flatten(1, 2), self.others
        found = [x.sum(-1).isfinite().all(1) for x in parts if x is not None]
        return torch.stack(found).all(0)

    @property
    def frame_bytes(self) -> int:
        """Bytes of one frame of one mixture."""
        _, sources, members, _, features = self.distortions.shape
        return sources * (members + 1) * features * self.distortions.element_size()


@dataclass(frozen=True)
class Deferred:
    """How to make any part of the distortions of a clip that is too long to be encoded whole.

    They are made and encoded segment by segment, whenever the clip is scored.
    """

    mask: Tensor  # (1, S, P) bool, which distortions a source has
    measured: Measured  # on the whole references; its mask has what other measures share besides
    gains: Tensor  # (1, S, P) what brings each copy to its level; 0 where there is none


@dataclass(frozen=True)
class Group:
    """The mixtures of a batch that share one length."""

    items: tuple[int, ...]  # their places in the batch
    samples: int  # length as handed in, before resampling
    waveforms: Tensor  # (b, S, T) normalised references at the encoder's rate
    audible: Tensor  # (b, S, F) bool: source active by itself and embeddings finite
    scored: Tensor  # (n, 2) int64: (item of the group, frame) with at least two active sources
    encoded: dict[str, Encoded | Deferred]  # by measure
    others: Tensor | None = None  # (1, S, T) normalised sums of the others, of a deferred clip
    deferred: bool = False  # whether it is a long clip, distorted when it is scored, in segments
    valid: Tensor | None = None  # (b, S) bool: without a bad sample; None: all

    @property
    def frames(self) -> int:
        """F."""
        return self.audible.shape[-1]

    @property
    def active(self) -> Tensor:
        """(b, S, F) bool: where a source is active; nowhere in a mixture with a bad sample."""
        if self.valid is None:
            return self.audible
        return self.audible & self.valid.all(-1)[:, None, None]

    def rescored(self) -> Group:
        """The group with ``scored`` as its sources are active now."""
        return replace(self, scored=scored_frames(self.active))


def scored_frames(active: Tensor) -> Tensor:
    """(n, 2) item and frame where at least two sources are active (b, S, F)."""
    return (active.sum(1) >= 2).nonzero()


def _mapped(record: Any, change: Callable[[Tensor], Tensor]) -> Any:
    """The record with every tensor in it changed."""
    if isinstance(record, Tensor):
        return change(record)
    if isinstance(record, Measured):
        return Measured(*(_mapped(value, change) for value in record))
    if isinstance(record, dict):
        return {name: _mapped(value, change) for name, value in record.items()}
    if isinstance(record, tuple):
        return tuple(_mapped(value, change) for value in record)
    if is_dataclass(record):
        values = {f.name: _mapped(getattr(record, f.name), change) for f in fields(record)}
        return replace(record, **values)  # type: ignore[type-var]
    return record


@dataclass(frozen=True, eq=False, repr=False)
class ReferenceBank:
    """References, distorted and encoded once, to be compared with any number of estimates.

    Made by :meth:`torch_mapss.MAPSS.prepare`; valid for every MAPSS, loss and metric that has the
    same ``settings`` for the measures it computes. An encoder and a distortion of your own are
    known by name and settings, not by weights or code: give each version another name. Holds no
    graph. Its size is about
    S · (sum of P over the measures) · F · M numbers, see ``nbytes``; of clips longer than a segment
    it holds what it takes to make their distortions again, little more than the references.
    """

    groups: tuple[Group, ...]
    batch: int  # B
    sources: int  # S
    samples: int  # longest length T, as handed in
    frames: int  # F of the longest
    lengths: tuple[int, ...]  # true length of each mixture
    settings: Mapping[str, Mapping[str, Any]]  # by measure: encoder, distortions, rate, loudness, …
    measures: tuple[str, ...]  # that it was prepared for

    @property
    def nbytes(self) -> int:
        """Bytes its tensors keep alive, each storage counted once."""
        storages: dict[int, int] = {}

        def note(tensor: Tensor) -> Tensor:
            storage = tensor.untyped_storage()
            storages[storage.data_ptr()] = storage.nbytes()
            return tensor

        self._mapped(note)
        return sum(storages.values())

    @property
    def device(self) -> torch.device:
        """Where its tensors are."""
        return self.groups[0].waveforms.device

    def __repr__(self) -> str:
        """Five lines, for ``print``."""
        span = " to ".join(map(str, sorted({min(self.lengths), max(self.lengths)})))
        scored = sum(len(group.scored) for group in self.groups)
        named = (str(x["encoder"]) for x in self.settings.values() if "encoder" in x)
        encoders = {name.split(" (")[0] for name in named}
        return (
            f"ReferenceBank({self.batch} mixtures of {self.sources} sources, {span} samples,\n"
            f"  measures: {', '.join(self.measures)},\n"
            f"  frames: {scored} with at least two active sources,\n"
            f"  memory: {self.nbytes / 2**20:.1f} MiB on {self.device},\n"
            f"  encoders: {', '.join(sorted(encoders))})"
        )

    def to(self, device: torch.device | str) -> ReferenceBank:
        """The bank with its tensors on ``device``."""
        # A copy to the CPU that is not awaited could be read before it is there.
        later = torch.device(device).type != "cpu"
        return self._mapped(lambda tensor: tensor.to(device, non_blocking=later))

    def pin_memory(self) -> ReferenceBank:
        """The bank in page-locked memory, as DataLoader's ``pin_memory=True`` asks for."""
        return self._mapped(lambda tensor: tensor.pin_memory())

    def _mapped(self, change: Callable[[Tensor], Tensor]) -> ReferenceBank:
        return replace(self, groups=_mapped(self.groups, change))

    def recombined(self, index: Tensor | Sequence[Sequence[int]]) -> ReferenceBank:
        """The bank of new mixtures of the same sources, without preparing anything again.

        A source is distorted and encoded on its own, so it can be mixed with any other: n prepared
        pairs make n² mixtures. Its level is free as well, since scoring normalises it.

        Args:
            index: (B', S) for each new mixture the mixture that each of its sources comes from;
                sources keep their axis, since their noise was drawn for it.

        Returns:
            A bank of B' mixtures, which score as if their references had been prepared.

        Raises:
            TypeError: the index holds no whole numbers.
            ValueError: mixtures of several lengths or in segments, an index that does not fit, or
                new mixtures of three and more sources where "decomposition" was prepared, which
                encodes sums of sources.
        """
        chosen = torch.as_tensor(index, device=self.device)
        if chosen.is_floating_point() or chosen.is_complex() or chosen.dtype == torch.bool:
            raise TypeError(f"index must hold whole numbers, got {chosen.dtype}.")
        group, *others = self.groups
        if others or group.deferred:
            raise ValueError(
                "only mixtures of one length that is not scored in segments can be recombined, got "
                f"{sorted(set(self.lengths))} samples. Cut them to one length, or pass "
                "segment=None where they are longer than a segment."
            )
        fits = chosen.ndim == 2 and chosen.shape[1] == self.sources and len(chosen) > 0
        if not fits or bool(((chosen < 0) | (chosen >= self.batch)).any()):
            raise ValueError(
                f"index must be (B', S) = (…, {self.sources}) mixtures in [0, {self.batch}), got "
                f"{chosen.tolist()}."
            )
        sums = any(isinstance(x, Encoded) and x.others is not None for x in group.encoded.values())
        if sums and bool((chosen != chosen[:, :1]).any()):
            raise ValueError(
                'index makes new mixtures of three or more sources, of which "decomposition" '
                "encodes sums of the others. Prepare without it: prepare(references, "
                'measures=("separation", "match")), or prepare the new mixtures.'
            )
        source = torch.arange(self.sources, device=chosen.device)

        def pick(tensor: Tensor) -> Tensor:
            return tensor[chosen, source]  # a group that is alone holds the mixtures in order

        group = replace(
            group,
            items=tuple(range(len(chosen))),
            waveforms=pick(group.waveforms),
            audible=pick(group.audible),
            valid=None if group.valid is None else pick(group.valid),
            encoded=_mapped(group.encoded, pick),
        ).rescored()
        lengths = self.lengths[:1] * len(chosen)
        return replace(self, groups=(group,), batch=len(chosen), lengths=lengths)

    def save(self, path: str | os.PathLike[str]) -> None:
        """Write the bank to a file for :meth:`load`."""
        torch.save({"format": FORMAT, "bank": self}, path)

    @staticmethod
    def load(
        path: str | os.PathLike[str], map_location: torch.device | str | None = None
    ) -> ReferenceBank:
        """Read a bank written by :meth:`save`; no code in the file is run.

        Raises:
            ValueError: the file holds something else, or a bank of another format.
        """
        records: list[Any] = [ReferenceBank, Group, Encoded, Deferred, Measured]
        try:
            with torch.serialization.safe_globals(records):
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
        bank: ReferenceBank = stored["bank"]
        return bank

    @staticmethod
    def join(banks: Iterable[ReferenceBank]) -> ReferenceBank:
        """One bank of the mixtures of several, in order: a ``collate_fn`` for cached banks.

        Mixtures of equal length and equal shapes are stacked, so that they are scored together.

        Raises:
            ValueError: no bank, or banks of different settings, measures or numbers of sources.
        """
        given = list(banks)
        if not given:
            raise ValueError("at least one bank is needed, got none.")
        first = given[0]
        offset, groups = 0, []
        for bank in given:
            if not isinstance(bank, ReferenceBank):
                raise TypeError(
                    f"join takes ReferenceBanks, got {type(bank).__name__}. Where a data set gives "
                    "more than banks, join the banks of the batch in a collate_fn of your own."
                )
            for name in ("sources", "measures", "settings"):
                one, other = getattr(first, name), getattr(bank, name)
                if one != other:
                    raise ValueError(
                        f"banks of different {name} cannot be joined, got {one} and {other}."
                    )
            for group in bank.groups:
                items = tuple(item + offset for item in group.items)
                groups.append(replace(group, items=items))
            offset += bank.batch
        return replace(
            first,
            groups=_stacked(groups),
            batch=offset,
            samples=max(bank.samples for bank in given),
            frames=max(bank.frames for bank in given),
            lengths=tuple(length for bank in given for length in bank.lengths),
        )


def _stacked(groups: Sequence[Group]) -> tuple[Group, ...]:
    """Groups of one length as one group, distortions padded to the most and masked."""
    by_length: dict[tuple[int, ...], list[Group]] = {}
    for group in groups:
        alone = group.items if group.deferred else ()
        by_length.setdefault((group.samples, *alone), []).append(group)
    return tuple(_stack(same) if len(same) > 1 else same[0] for same in by_length.values())


def _stack(groups: Sequence[Group]) -> Group:
    every = (torch.ones_like(group.audible[..., 0]) for group in groups)
    valid = [one if group.valid is None else group.valid for group, one in zip(groups, every)]
    return replace(
        groups[0],
        items=tuple(item for group in groups for item in group.items),
        waveforms=torch.cat([group.waveforms for group in groups]),
        audible=torch.cat([group.audible for group in groups]),
        encoded={
            name: _stack_encoded([group.encoded[name] for group in groups])
            for name in groups[0].encoded
        },
        valid=None if all(group.valid is None for group in groups) else torch.cat(valid),
    ).rescored()


def _stack_encoded(parts: Sequence[Encoded | Deferred]) -> Encoded:
    given = [part for part in parts if isinstance(part, Encoded)]
    most = max(part.distortions.shape[2] for part in given)
    distortions, masks = [], []
    for part in given:
        missing = most - part.distortions.shape[2]
        distortions.append(pad(part.distortions, (0, 0, 0, 0, 0, missing)))
        every = torch.ones_like(part.distortions[..., 0, 0], dtype=torch.bool)
        masks.append(pad(every if part.mask is None else part.mask, (0, missing)))
    mask = torch.cat(masks)
    ragged = any(part.mask is not None or part.distortions.shape[2] < most for part in given)
    others = [part.others for part in given if part.others is not None]
    return Encoded(
        torch.cat([part.references for part in given]),
        torch.cat(distortions),
        mask if ragged else None,
        torch.cat(others) if others else None,
    )
