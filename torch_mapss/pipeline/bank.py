"""References, prepared: what any number of calls compare their estimates with."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch.nn.functional import pad
from torch.utils._pytree import tree_leaves, tree_map_only

from torch_mapss.core.checks import differing
from torch_mapss.core.points import Points
from torch_mapss.distortions import Measured

FORMAT = 6  # of saved banks; a bank of another format is refused


class Encoded(NamedTuple):
    """References and distortions of the mixtures of one length, encoded for one measure."""

    references: Tensor  # (b, S, F, M)
    distortions: Tensor  # (b, S, P, F, M)
    mask: Tensor | None  # (b, S, P) bool, which distortions are present; None: all
    others: Tensor | None = None  # (b, S, F, M) sum of the other references

    def at(self, item: Tensor | int, frame: Tensor | slice) -> Points:
        """Frames (n,) of items (n,), with the references as outputs."""

        def pick(embeddings: Tensor) -> Tensor:
            return embeddings.movedim(-2, 1)[item, frame]

        references = pick(self.references)
        return Points(
            references,
            references,
            pick(self.distortions),
            tuple(range(references.shape[1])),
            mask=None if self.mask is None else self.mask[item].expand(len(references), -1, -1),
            others=None if self.others is None else pick(self.others),
        )

    def usable(self) -> Tensor:
        """(b, S, F) frames in which all embeddings of a source are finite."""
        # A sum over features keeps NaN and infinity, and does not copy a view.
        found = self.distortions.sum(-1).isfinite().all(2)
        for part in (self.references, self.others):
            found = found if part is None else found & part.sum(-1).isfinite()
        return found

    @property
    def frame_bytes(self) -> int:
        """Bytes of one frame of one mixture."""
        _, sources, members, _, features = self.distortions.shape
        return sources * (members + 1) * features * self.distortions.element_size()


class Deferred(NamedTuple):
    """What it takes to make any part of the distortions of a long clip for one measure."""

    measured: Measured  # on the whole references (1, S, T)
    gains: Tensor  # (1, S, P) what brings each copy to its level; 0 where there is none


class Group(NamedTuple):
    """The mixtures of a batch that share one length."""

    items: tuple[int, ...]  # their places in the batch
    samples: int  # length as handed in, before resampling
    waves: Tensor  # (b, S, T) normalised references at the encoder's rate
    audible: Tensor  # (b, S, F) bool: source active by itself
    valid: Tensor  # (b, S, F) bool: source without a bad sample, and its embeddings finite
    scored: Tensor  # (n, 2) int64: (item of the group, frame) with at least two active sources
    encoded: dict[str, Encoded]  # by measure
    # The same of a long clip, whose distortions are made and encoded whenever it is scored.
    deferred: dict[str, Deferred] | None = None
    others: Tensor | None = None  # (1, S, T) of a long clip: normalised sums of the others

    @property
    def frames(self) -> int:
        """F."""
        return self.audible.shape[-1]

    @property
    def active(self) -> Tensor:
        """(b, S, F) bool: where a source is active, in frames in which all sources are valid."""
        return active_sources(self.audible, self.valid)


def active_sources(audible: Tensor, valid: Tensor) -> Tensor:
    """(b, S, F) bool: audible (b, S, F), in frames in which all sources are valid (b, S, F)."""
    return audible & valid.all(1, keepdim=True)


def scored_frames(audible: Tensor, valid: Tensor) -> Tensor:
    """(n, 2) item and frame where at least two sources are active."""
    return (active_sources(audible, valid).sum(1) >= 2).nonzero()


class ReferenceBank:
    """References, distorted and encoded once, to be compared with any number of estimates.

    Made by :meth:`torch_mapss.MAPSS.prepare`; valid for every MAPSS, loss and metric that has the
    same ``settings`` for the measures it computes. An encoder and a distortion of your own are
    known by name and settings, not by weights or code: give each version another name. Holds no
    graph. Its size is about
    S · (sum of P over the measures) · F · M numbers, see ``nbytes``; of clips longer than a segment
    it holds what it takes to make their distortions again, little more than the references.

    Not a dataclass: frameworks convert and count the fields of those that they find in a batch.
    """

    def __init__(
        self, groups: tuple[Group, ...], samples: int, settings: Mapping[str, Any]
    ) -> None:
        self.groups = groups
        self.samples = samples  # longest length T, as handed in
        self.settings = settings  # sample rate, loudness, …; by measure encoder and distortions

    def __iter__(self) -> Iterator[Tensor]:
        """A single tensor (B,), the lengths in samples.

        Lightning iterates what it finds in a batch to learn how many mixtures a step has, and so
        weights the mean of an epoch.
        """
        yield torch.tensor(self.lengths, dtype=torch.int64, device="cpu")

    @property
    def lengths(self) -> tuple[int, ...]:
        """True length of each mixture."""
        found = {item: group.samples for group in self.groups for item in group.items}
        return tuple(found[item] for item in sorted(found))

    @property
    def batch(self) -> int:
        """B."""
        return len(self.lengths)

    @property
    def sources(self) -> int:
        """S."""
        return self.groups[0].waves.shape[1]

    @property
    def frames(self) -> int:
        """F of the longest."""
        return max(group.frames for group in self.groups)

    @property
    def measures(self) -> tuple[str, ...]:
        """That it was prepared for."""
        return tuple(self.settings["measures"])

    @property
    def nbytes(self) -> int:
        """Bytes its tensors keep alive, each storage counted once."""
        tensors = (x for x in tree_leaves(self.groups) if isinstance(x, Tensor))
        storages = (tensor.untyped_storage() for tensor in tensors)
        return sum({storage.data_ptr(): storage.nbytes() for storage in storages}.values())

    @property
    def device(self) -> torch.device:
        """Where its tensors are."""
        return self.groups[0].waves.device

    def __repr__(self) -> str:
        """Five lines, for ``print``."""
        span = " to ".join(map(str, sorted({min(self.lengths), max(self.lengths)})))
        scored = sum(len(group.scored) for group in self.groups)
        named = (x["encoder"] for x in self.settings["measures"].values() if x)
        encoders = {name.split(" (")[0] for name in named}
        return (
            f"ReferenceBank({self.batch} mixtures of {self.sources} sources, {span} samples,\n"
            f"  measures: {', '.join(self.measures)},\n"
            f"  frames: {scored} with at least two active sources,\n"
            f"  memory: {self.nbytes / 2**20:.1f} MiB on {self.device},\n"
            f"  encoders: {', '.join(sorted(encoders)) or 'none'})"
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
        groups = tree_map_only(Tensor, change, self.groups)
        return ReferenceBank(groups, self.samples, self.settings)

    @torch.inference_mode(False)  # as what `prepare` makes, it serves in training too
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
        if others or group.deferred is not None:
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
        sums = any(part.others is not None for part in group.encoded.values())
        if sums and bool((chosen != chosen[:, :1]).any()):
            raise ValueError(
                'index makes new mixtures of three or more sources, of which "decomposition" '
                "encodes sums of the others. Prepare without it: prepare(references, "
                'measures=("separation", "match")), or prepare the new mixtures.'
            )
        source = torch.arange(self.sources, device=chosen.device)

        def pick(tensor: Tensor) -> Tensor:
            return tensor[chosen, source]  # a group that is alone holds the mixtures in order

        waves, audible, valid = map(pick, (group.waves, group.audible, group.valid))
        items, scored = tuple(range(len(chosen))), scored_frames(audible, valid)
        encoded = tree_map_only(Tensor, pick, group.encoded)
        new = Group(items, group.samples, waves, audible, valid, scored, encoded)
        return ReferenceBank((new,), self.samples, self.settings)

    def save(self, path: str | os.PathLike[str]) -> None:
        """Write the bank to a file for :meth:`load`."""
        torch.save({"format": FORMAT, "bank": self}, path)

    @staticmethod
    @torch.inference_mode(False)
    def load(
        path: str | os.PathLike[str], map_location: torch.device | str | None = None
    ) -> ReferenceBank:
        """Read a bank written by :meth:`save`; no code in the file is run.

        Raises:
            FileNotFoundError: no such file.
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
    @torch.inference_mode(False)
    def join(banks: Iterable[ReferenceBank]) -> ReferenceBank:
        """One bank of the mixtures of several, in order: a ``collate_fn`` for cached banks.

        Mixtures of equal length and equal shapes are stacked, so that they are scored together.

        Raises:
            TypeError: something else than banks.
            ValueError: no bank, or banks of different settings, measures or numbers of sources.
        """
        given = list(banks)
        if not given:
            raise ValueError("at least one bank is needed, got none.")
        offset, groups = 0, []
        for bank in given:
            if not isinstance(bank, ReferenceBank):
                raise TypeError(
                    f"join takes ReferenceBanks, got {type(bank).__name__}. Where a data set gives "
                    "more than banks, join the banks of the batch in a collate_fn of your own."
                )
            both = ({**x.settings, "sources": x.sources} for x in (given[0], bank))
            for name, one, other in differing(*both):
                raise ValueError(
                    f"banks to be joined must have the same settings, but {name} is {one} in the "
                    f"first and {other} in another."
                )
            for group in bank.groups:
                groups.append(group._replace(items=tuple(item + offset for item in group.items)))
            offset += bank.batch
        samples = max(bank.samples for bank in given)
        return ReferenceBank(_stacked(groups), samples, given[0].settings)


def _stacked(groups: Sequence[Group]) -> tuple[Group, ...]:
    """Groups of one length as one group, distortions padded to the most and masked."""
    by_length: dict[tuple[int, ...], list[Group]] = {}
    for group in groups:
        alone = () if group.deferred is None else group.items
        by_length.setdefault((group.samples, *alone), []).append(group)
    return tuple(_stack(same) if len(same) > 1 else same[0] for same in by_length.values())


def _stack(groups: Sequence[Group]) -> Group:
    waves, audible, valid = map(torch.cat, zip(*((g.waves, g.audible, g.valid) for g in groups)))
    encoded = {
        name: _stack_encoded([group.encoded[name] for group in groups])
        for name in groups[0].encoded
    }
    items = tuple(item for group in groups for item in group.items)
    scored = scored_frames(audible, valid)
    return Group(items, groups[0].samples, waves, audible, valid, scored, encoded)


def _stack_encoded(parts: Sequence[Encoded]) -> Encoded:
    most = max(part.distortions.shape[2] for part in parts)
    distortions, masks = [], []
    for part in parts:
        missing = most - part.distortions.shape[2]
        distortions.append(pad(part.distortions, (0, 0, 0, 0, 0, missing)))
        every = torch.ones_like(part.distortions[..., 0, 0], dtype=torch.bool)
        masks.append(pad(every if part.mask is None else part.mask, (0, missing)))
    ragged = any(part.mask is not None or part.distortions.shape[2] < most for part in parts)
    others = [part.others for part in parts if part.others is not None]
    return Encoded(
        torch.cat([part.references for part in parts]),
        torch.cat(distortions),
        torch.cat(masks) if ragged else None,
        torch.cat(others) if others else None,
    )
