"""Prepared references, which any number of calls compare their estimates with."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, fields, replace
from typing import Any, NamedTuple, TypeVar

import torch
from torch import Tensor
from torch.nn.functional import pad
from torch.utils._pytree import tree_leaves, tree_map_only

from torch_mapss.core.checks import differing
from torch_mapss.core.points import Points
from torch_mapss.distortions import Measured
from torch_mapss.pipeline.activity import active_sources, frames_of_pauses, frames_to_score

FORMAT = 9  # of saved banks; a bank of another format is refused


# ------------------------------------------------------------------------------------------------
# The mixtures of one length
# ------------------------------------------------------------------------------------------------


class Encoded(NamedTuple):
    """References and distortions of the mixtures of one length, encoded for one measure."""

    references: Tensor  # (b, S, F, M)
    distortions: Tensor  # (b, S, P, F, M)
    mask: Tensor | None  # (b, S, P) bool, which distortions are present; None: all
    others: Tensor | None = None  # (b, S, F, M) sum of the other references

    def points(self, item: Tensor | int, frame: Tensor | slice) -> Points:
        """Gather n frames, by item and frame index, as :class:`Points` without outputs."""

        def gather(embeddings: Tensor) -> Tensor:
            return embeddings.movedim(-2, 1)[item, frame]

        references = gather(self.references)
        return Points(
            references[:, :0],
            references,
            gather(self.distortions),
            attributed=(),
            mask=None if self.mask is None else self.mask[item].expand(len(references), -1, -1),
            others=None if self.others is None else gather(self.others),
        )

    def usable(self) -> Tensor:
        """(b, S, F) bool: frames in which all embeddings of a source are finite."""
        # A sum over features keeps NaN and infinity, and does not copy a view.
        usable = self.distortions.sum(-1).isfinite().all(2)
        usable = usable & self.references.sum(-1).isfinite()
        return usable if self.others is None else usable & self.others.sum(-1).isfinite()

    @property
    def frame_bytes(self) -> int:
        """Bytes of one frame of one mixture."""
        _, sources, members, _, features = self.distortions.shape
        return sources * (members + 1) * features * self.distortions.element_size()


@dataclass(frozen=True, eq=False)
class PreparedClips:
    """Prepared references of the mixtures of one length. Subclasses: EncodedClips, LongClip."""

    items: tuple[int, ...]  # their indices in the batch
    samples: int  # length before resampling
    waves: Tensor  # (b, S, T) normalised references at the encoder's rate
    audible: Tensor  # (b, S, F) bool: source loud enough by itself
    valid: Tensor  # (b, S, F) bool: source without a bad sample, and its embeddings finite
    scored: Tensor  # (n, 2) int64: item (of these clips) and frame with two active sources or more
    pauses: Tensor  # (m, 2) int64: item and frame with one active source, while another one pauses
    gates: (
        Tensor  # (b, S, K) bool: blocks of 400 ms that pass the gates of the references' loudness
    )

    @property
    def frames(self) -> int:
        """F."""
        return self.audible.shape[-1]

    @property
    def active(self) -> Tensor:
        """(b, S, F) bool: where a source is active, in frames in which all sources are valid."""
        return active_sources(self.audible, self.valid)


@dataclass(frozen=True, eq=False)
class EncodedClips(PreparedClips):
    """Clips whose references and distortions are encoded and held in memory."""

    encoded: dict[str, Encoded]  # by measure


@dataclass(frozen=True, eq=False)
class LongClip(PreparedClips):
    """A clip longer than a segment, which is distorted and encoded whenever it is scored."""

    # Ingredients for making any part of the copies, by measure: what the members measured on the
    # entire references (1, S, T), and the gains (1, S, P) that bring each copy to its level; 0
    # where the copy is absent.
    measured: dict[str, Measured]
    gains: dict[str, Tensor]
    others: Tensor | None  # (1, S, T) normalised sums of the other references; None where unused
    # (n, 2) int64, first frame and end frame of each excerpt; None: the whole clip is scored.
    excerpts: Tensor | None = None


Kind = TypeVar("Kind", bound=PreparedClips)


def mapped(clips: Kind, change: Callable[[Tensor], Tensor]) -> Kind:
    """Copy of the clips with ``change`` applied to every tensor."""
    values = {field.name: getattr(clips, field.name) for field in fields(clips)}
    return replace(clips, **tree_map_only(Tensor, change, values))


# ------------------------------------------------------------------------------------------------
# The bank
# ------------------------------------------------------------------------------------------------


class ReferenceBank:
    """References, distorted and encoded once, for comparison with any number of estimates.

    Made by :meth:`torch_mapss.MAPSS.prepare`; valid for every MAPSS, loss and metric with the same
    ``settings`` for the measures it computes. Custom encoders and distortions are identified by
    name and settings, not by their weights or code: rename them when they change. A bank holds no
    graph. Its size is about S · (sum of P over the measures) · F · M numbers, see ``nbytes``; for
    clips longer than a segment it holds only what is needed to make their distortions again, little
    more than the references.

    Not a dataclass, because frameworks convert and count the fields of dataclasses in a batch.
    """

    def __init__(
        self, groups: tuple[PreparedClips, ...], samples: int, settings: Mapping[str, Any]
    ) -> None:
        self.groups = groups  # one per length
        self.samples = samples  # longest length T, before resampling
        self.settings = settings  # sample rate, loudness, …; by measure encoder and distortions

    def __iter__(self) -> Iterator[Tensor]:
        """Yield a single tensor (B,) of the lengths in samples, for Lightning only.

        Lightning iterates over the contents of a batch to find its size, by which it weights the
        mean of an epoch.
        """
        yield torch.tensor(self.lengths, dtype=torch.int64, device="cpu")

    @property
    def lengths(self) -> tuple[int, ...]:
        """(B,) true length of each mixture in samples."""
        samples = {item: clips.samples for clips in self.groups for item in clips.items}
        return tuple(samples[item] for item in sorted(samples))

    @property
    def batch(self) -> int:
        """Number of mixtures B."""
        return sum(len(clips.items) for clips in self.groups)

    @property
    def sources(self) -> int:
        """Number of sources S."""
        return self.groups[0].waves.shape[1]

    @property
    def frames(self) -> int:
        """Number of frames F of the longest mixture."""
        return max(clips.frames for clips in self.groups)

    @property
    def measures(self) -> tuple[str, ...]:
        """Measures that the bank was prepared for."""
        return tuple(self.settings["measures"])

    @property
    def nbytes(self) -> int:
        """Bytes that its tensors keep alive, each storage counted once."""
        leaves = tree_leaves([vars(clips) for clips in self.groups])
        storages = [leaf.untyped_storage() for leaf in leaves if isinstance(leaf, Tensor)]
        return sum({storage.data_ptr(): storage.nbytes() for storage in storages}.values())

    @property
    def device(self) -> torch.device:
        """Device of its tensors."""
        return self.groups[0].waves.device

    def __repr__(self) -> str:
        """Summary in five lines, for ``print``."""
        extremes = sorted({min(self.lengths), max(self.lengths)})
        scored = sum(len(clips.scored) for clips in self.groups)
        described = [
            settings["encoder"] for settings in self.settings["measures"].values() if settings
        ]
        encoders = sorted({text.split(" (")[0] for text in described})
        return (
            f"ReferenceBank({self.batch} mixtures of {self.sources} sources, "
            f"{' to '.join(map(str, extremes))} samples,\n"
            f"  measures: {', '.join(self.measures)},\n"
            f"  frames: {scored} with at least two active sources,\n"
            f"  memory: {self.nbytes / 2**20:.1f} MiB on {self.device},\n"
            f"  encoders: {', '.join(encoders) or 'none'})"
        )

    def to(self, device: torch.device | str) -> ReferenceBank:
        """Copy of the bank with its tensors on ``device``."""
        # A non-blocking copy to the CPU may be read before it completes.
        non_blocking = torch.device(device).type != "cpu"
        return self._mapped(lambda tensor: tensor.to(device, non_blocking=non_blocking))

    def pin_memory(self) -> ReferenceBank:
        """Copy of the bank in page-locked memory, for DataLoader's ``pin_memory=True``."""
        return self._mapped(lambda tensor: tensor.pin_memory())

    def _mapped(self, change: Callable[[Tensor], Tensor]) -> ReferenceBank:
        groups = tuple(mapped(clips, change) for clips in self.groups)
        return ReferenceBank(groups, self.samples, self.settings)

    # -------------------------------------------------------------------------- new mixtures

    @torch.inference_mode(False)  # like the result of `prepare`, it serves in training too
    def recombined(self, index: Tensor | Sequence[Sequence[int]]) -> ReferenceBank:
        """Make a bank of new mixtures of the same sources, without preparing anything again.

        A source is distorted and encoded on its own, so it can be mixed with any other: n prepared
        pairs make n² mixtures. Its level is arbitrary too, since scoring normalises it.

        Args:
            index: (B', S), the mixture that each source of each new mixture comes from. Sources
                keep their index, since their noise was drawn for it.

        Returns:
            A bank of B' mixtures, with the scores that preparing their references would give.

        Raises:
            TypeError: the index does not hold whole numbers.
            ValueError: mixtures of several lengths or in segments, an index that does not fit, or
                new mixtures of three and more sources where "decomposition" was prepared, which
                encodes sums of sources.
        """
        mixtures = torch.as_tensor(index, device=self.device)
        if mixtures.is_floating_point() or mixtures.is_complex() or mixtures.dtype == torch.bool:
            raise TypeError(f"index must hold whole numbers, got {mixtures.dtype}.")
        clips = self.groups[0]
        if len(self.groups) > 1 or not isinstance(clips, EncodedClips):
            raise ValueError(
                "only mixtures of one length that is not scored in segments can be recombined, got "
                f"{sorted(set(self.lengths))} samples. Cut them to one length, or pass "
                "segment=None where they are longer than a segment."
            )
        fits = mixtures.ndim == 2 and mixtures.shape[1] == self.sources and len(mixtures) > 0
        if not fits or bool(((mixtures < 0) | (mixtures >= self.batch)).any()):
            raise ValueError(
                f"index must be (B', S) = (…, {self.sources}) mixtures in [0, {self.batch}), got "
                f"{mixtures.tolist()}."
            )
        has_sums = any(encoded.others is not None for encoded in clips.encoded.values())
        if has_sums and bool((mixtures != mixtures[:, :1]).any()):
            raise ValueError(
                'index makes new mixtures of three or more sources, of which "decomposition" '
                "encodes sums of the others. Prepare without it: prepare(references, "
                'measures=("separation", "match")), or prepare the new mixtures.'
            )
        source = torch.arange(self.sources, device=mixtures.device)

        def select(tensor: Tensor) -> Tensor:
            return tensor[mixtures, source]  # a single group holds the mixtures in order

        audible, valid = select(clips.audible), select(clips.valid)
        active = active_sources(audible, valid)
        mixed = EncodedClips(
            items=tuple(range(len(mixtures))),
            samples=clips.samples,
            waves=select(clips.waves),
            audible=audible,
            valid=valid,
            scored=frames_to_score(active),
            pauses=frames_of_pauses(active),
            gates=select(clips.gates),
            encoded=tree_map_only(Tensor, select, clips.encoded),
        )
        return ReferenceBank((mixed,), self.samples, self.settings)

    @staticmethod
    @torch.inference_mode(False)
    def join(banks: Iterable[ReferenceBank]) -> ReferenceBank:
        """Join the mixtures of several banks into one, in order: a ``collate_fn`` for cached banks.

        Mixtures of equal length and equal shapes are stacked, so that they are scored together.

        Raises:
            TypeError: an entry is not a bank.
            ValueError: there is no bank, or banks differ in settings, measures or number of
                sources.
        """
        banks = list(banks)
        if not banks:
            raise ValueError("at least one bank is needed, got none.")
        offset, groups = 0, []
        for bank in banks:
            _check_joinable(banks[0], bank)
            for clips in bank.groups:
                groups.append(replace(clips, items=tuple(item + offset for item in clips.items)))
            offset += bank.batch
        samples = max(bank.samples for bank in banks)
        return ReferenceBank(_stacked_by_length(groups), samples, banks[0].settings)

    # -------------------------------------------------------------------------- files

    def save(self, path: str | os.PathLike[str]) -> None:
        """Write the bank to a file for :meth:`load`."""
        stored = {
            "format": FORMAT,
            "samples": self.samples,
            "settings": _plain(self.settings),
            "groups": [_plain(vars(clips)) for clips in self.groups],
        }
        torch.save(stored, path)

    @staticmethod
    @torch.inference_mode(False)
    def load(
        path: str | os.PathLike[str], map_location: torch.device | str | None = None
    ) -> ReferenceBank:
        """Read a bank written by :meth:`save`; no code in the file is run.

        Raises:
            FileNotFoundError: the file does not exist.
            ValueError: the file does not hold a bank, or holds one of another format.
        """
        # The file holds plain containers: our own records would need an entry in torch's list of
        # safe classes, which is global to the process, and changing it would affect other threads.
        try:
            stored = torch.load(path, map_location=map_location, weights_only=True)
        except FileNotFoundError:
            raise
        except Exception as error:
            raise ValueError(
                f"{os.fspath(path)!r} holds no saved ReferenceBank, or one of an older version: "
                f"{error}"
            ) from None
        if not isinstance(stored, dict) or stored.get("format") != FORMAT:
            raise ValueError(
                f"{os.fspath(path)!r} holds no ReferenceBank of format {FORMAT}. Make it again "
                "with MAPSS.prepare(...).save(path)."
            )
        groups = tuple(_rebuilt(values) for values in stored["groups"])
        return ReferenceBank(groups, stored["samples"], stored["settings"])


def _plain(value: Any) -> Any:
    """Convert records to dictionaries, recursively; tensors, texts and numbers stay as they are."""
    if hasattr(value, "_asdict"):
        value = value._asdict()
    if isinstance(value, Mapping):
        return {name: _plain(entry) for name, entry in value.items()}
    if isinstance(value, tuple | list):
        return type(value)(_plain(entry) for entry in value)
    return value


def _rebuilt(values: dict[str, Any]) -> PreparedClips:
    """Undo :func:`_plain` for the fields of a record."""
    if "encoded" in values:
        encoded = {name: Encoded(**entry) for name, entry in values["encoded"].items()}
        return EncodedClips(**{**values, "encoded": encoded})
    measured = {name: Measured(**entry) for name, entry in values["measured"].items()}
    return LongClip(**{**values, "measured": measured})


# ------------------------------------------------------------------------------------------------
# Joining
# ------------------------------------------------------------------------------------------------


def _check_joinable(reference: ReferenceBank, bank: object) -> None:
    """Raise TypeError or ValueError unless a bank can be joined with the ``reference`` bank."""
    if not isinstance(bank, ReferenceBank):
        raise TypeError(
            f"join takes ReferenceBanks, got {type(bank).__name__}. Where a data set gives "
            "more than banks, join the banks of the batch in a collate_fn of your own."
        )
    expected = {**reference.settings, "sources": reference.sources}
    for name, value, unlike in differing(expected, {**bank.settings, "sources": bank.sources}):
        raise ValueError(
            f"banks to be joined must have the same settings, but {name} is {value} in the "
            f"first and {unlike} in another."
        )


def _stacked_by_length(groups: Sequence[PreparedClips]) -> tuple[PreparedClips, ...]:
    """Join the clips of each length into one group, except for long clips, which stay single."""
    by_length: dict[int, list[EncodedClips]] = {}
    order: list[int | LongClip] = []
    for clips in groups:
        if isinstance(clips, LongClip):
            order.append(clips)
        elif isinstance(clips, EncodedClips):
            if clips.samples not in by_length:
                order.append(clips.samples)
            by_length.setdefault(clips.samples, []).append(clips)
    return tuple(_stacked(by_length[key]) if isinstance(key, int) else key for key in order)


def _stacked(groups: Sequence[EncodedClips]) -> EncodedClips:
    """Join clips of equal length into one group."""
    if len(groups) == 1:
        return groups[0]
    audible = torch.cat([clips.audible for clips in groups])
    valid = torch.cat([clips.valid for clips in groups])
    active = active_sources(audible, valid)
    return EncodedClips(
        items=tuple(item for clips in groups for item in clips.items),
        samples=groups[0].samples,
        waves=torch.cat([clips.waves for clips in groups]),
        audible=audible,
        valid=valid,
        scored=frames_to_score(active),
        pauses=frames_of_pauses(active),
        gates=torch.cat([clips.gates for clips in groups]),
        encoded={
            name: _stacked_embeddings([clips.encoded[name] for clips in groups])
            for name in groups[0].encoded
        },
    )


def _stacked_embeddings(sets: Sequence[Encoded]) -> Encoded:
    """Join embeddings of clips of equal length; distortions are padded to one number and masked."""
    members = max(encoded.distortions.shape[2] for encoded in sets)
    distortions, masks = [], []
    for encoded in sets:
        missing = members - encoded.distortions.shape[2]
        distortions.append(pad(encoded.distortions, (0, 0, 0, 0, 0, missing)))
        mask = encoded.mask
        if mask is None:
            mask = torch.ones_like(encoded.distortions[..., 0, 0], dtype=torch.bool)
        masks.append(pad(mask, (0, missing)))
    is_ragged = any(
        encoded.mask is not None or encoded.distortions.shape[2] < members for encoded in sets
    )
    others = [encoded.others for encoded in sets if encoded.others is not None]
    return Encoded(
        torch.cat([encoded.references for encoded in sets]),
        torch.cat(distortions),
        torch.cat(masks) if is_ragged else None,
        torch.cat(others) if others else None,
    )
