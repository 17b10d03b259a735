"""Prepared references, which any number of calls compare their estimates with."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, fields, replace
from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch.nn.functional import pad
from torch.utils._pytree import tree_leaves, tree_map_only

from torch_mapss.core.checks import differing
from torch_mapss.core.points import Points
from torch_mapss.distortions import Measured
from torch_mapss.pipeline.activity import active_sources, frames_to_score

FORMAT = 9  # of saved reference banks; one of another format is refused


# ------------------------------------------------------------------------------------------------
# The mixtures of one length
# ------------------------------------------------------------------------------------------------


class Clusters(NamedTuple):
    """Embedded references, each with its distortions, of the mixtures of one length."""

    references: Tensor  # (b, S, F, M)
    distortions: Tensor  # (b, S, P, F, M)
    mask: Tensor | None  # (b, S, P) bool, which distortions are present; None: all
    others: Tensor | None = None  # (b, S, F, M) sum of the other references

    def points(self, item: Tensor | int, frame: Tensor | slice) -> Points:
        """Gather n frames, by item and frame index, as :class:`Points` without outputs."""

        references = self.references.movedim(-2, 1)[item, frame]
        mask, others = self.mask, self.others
        if mask is not None:
            mask = mask[item].expand(len(references), -1, -1)
        if others is not None:
            others = others.movedim(-2, 1)[item, frame]
        return Points(
            references[:, :0],
            references,
            self.distortions.movedim(-2, 1)[item, frame],
            attributed=(),
            mask=mask,
            others=others,
        )

    def usable(self) -> Tensor:
        """(b, S, F) bool: frames in which all embeddings of a source are finite."""
        # A sum over features keeps NaN and infinity, and does not copy a view.
        usable = self.distortions.sum(-1).isfinite().all(2)
        usable = usable & self.references.sum(-1).isfinite()
        return usable if self.others is None else usable & self.others.sum(-1).isfinite()


@dataclass(frozen=True, eq=False, kw_only=True)
class PreparedClips:
    """Prepared references of the mixtures of one length, with their distortions."""

    items: tuple[int, ...]  # their indices in the batch
    samples: int  # length before resampling
    waves: Tensor  # (b, S, T) normalised references at the encoder's rate
    audible: Tensor  # (b, S, F) bool: source loud enough by itself
    valid: Tensor  # (b, S, F) bool: source without a bad sample, and its embeddings finite
    scored: Tensor  # (n, 2) int64: item (of these clips) and frame with two active sources or more
    pauses: Tensor  # (m, 2) int64: item and frame with one active source, while another one pauses
    gates: Tensor  # (b, S, K) bool: blocks of 400 ms that pass the gates of a reference's loudness
    encoded: dict[str, Clusters] = field(default_factory=dict)  # by measure; a LongClip holds none

    @property
    def active(self) -> Tensor:
        """(b, S, F) bool: where a source is active, in frames in which all sources are valid."""
        return active_sources(self.audible, self.valid)


@dataclass(frozen=True, eq=False, kw_only=True)
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
        length_of_item: dict[int, int] = {}
        for clips in groups:
            length_of_item |= dict.fromkeys(clips.items, clips.samples)
        #: (B,) true length of each mixture in samples.
        self.lengths = tuple(length_of_item[item] for item in sorted(length_of_item))
        #: Number of mixtures B.
        self.batch = len(self.lengths)
        #: Number of sources S.
        self.sources = groups[0].waves.shape[1]
        #: Number of frames F of the longest mixture.
        self.frames = max(clips.audible.shape[-1] for clips in groups)
        #: Measures that the bank was prepared for.
        self.measures = tuple(settings["measures"])
        #: Device of its tensors.
        self.device = groups[0].waves.device

    def __iter__(self) -> Iterator[Tensor]:
        """Yield a single tensor (B,) of the lengths in samples, for Lightning only.

        Lightning iterates over the contents of a batch to find its size, by which it weights the
        mean of an epoch.
        """
        yield torch.tensor(self.lengths, dtype=torch.int64, device="cpu")

    @property
    def nbytes(self) -> int:
        """Bytes that its tensors keep alive, each storage counted once."""
        leaves = tree_leaves([vars(clips) for clips in self.groups])
        storages = [leaf.untyped_storage() for leaf in leaves if isinstance(leaf, Tensor)]
        return sum({storage.data_ptr(): storage.nbytes() for storage in storages}.values())

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
        groups = []
        for clips in self.groups:
            values = {entry.name: getattr(clips, entry.name) for entry in fields(clips)}
            groups.append(replace(clips, **tree_map_only(Tensor, change, values)))
        return ReferenceBank(tuple(groups), self.samples, self.settings)

    # -------------------------------------------------------------------------- new mixtures

    @torch.inference_mode(False)  # usable in training, like the result of `prepare`
    def recombined(self, index: Tensor | Sequence[Sequence[int]]) -> ReferenceBank:
        """Make a reference bank of new mixtures of the same sources, without preparing any again.

        A source is distorted and encoded on its own, so it can be mixed with any other: n prepared
        pairs make n² mixtures. Its level is arbitrary too, since scoring normalises it.

        Args:
            index: (B', S), the mixture that each source of each new mixture comes from. Sources
                keep their index, since their noise was drawn for it.

        Returns:
            A bank of B' mixtures, whose scores are the same as if their references had been
            prepared directly.

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
        if len(self.groups) > 1 or isinstance(clips, LongClip):
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
        has_sums = any(clusters.others is not None for clusters in clips.encoded.values())
        if has_sums and bool((mixtures != mixtures[:, :1]).any()):
            raise ValueError(
                'index makes new mixtures of three or more sources, for which "decomposition" '
                "encodes sums of the others. Prepare without it: prepare(references, "
                'measures=("separation", "match")), or prepare the new mixtures.'
            )
        # A single group holds the mixtures in order.
        selection = mixtures, torch.arange(self.sources, device=mixtures.device)
        audible, valid = clips.audible[selection], clips.valid[selection]
        scored, pauses = frames_to_score(active_sources(audible, valid))
        mixed = PreparedClips(
            items=tuple(range(len(mixtures))),
            samples=clips.samples,
            waves=clips.waves[selection],
            audible=audible,
            valid=valid,
            scored=scored,
            pauses=pauses,
            gates=clips.gates[selection],
            encoded=tree_map_only(Tensor, lambda tensor: tensor[selection], clips.encoded),
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
    if "measured" in values:
        measured = {name: Measured(**entry) for name, entry in values["measured"].items()}
        return LongClip(**{**values, "measured": measured})
    encoded = {name: Clusters(**entry) for name, entry in values["encoded"].items()}
    return PreparedClips(**{**values, "encoded": encoded})


# ------------------------------------------------------------------------------------------------
# Joining
# ------------------------------------------------------------------------------------------------


def _check_joinable(reference: ReferenceBank, bank: object) -> None:
    """Raise TypeError or ValueError unless a bank can be joined with the ``reference`` bank."""
    if not isinstance(bank, ReferenceBank):
        raise TypeError(
            f"join takes ReferenceBanks, got {type(bank).__name__}. If a data set returns "
            "more than banks, join them in your own collate_fn."
        )
    expected = {**reference.settings, "sources": reference.sources}
    for name, value, other_value in differing(expected, {**bank.settings, "sources": bank.sources}):
        raise ValueError(
            f"banks to be joined must have the same settings, but {name} is {value} in the "
            f"first and {other_value} in another."
        )


def _stacked_by_length(groups: Sequence[PreparedClips]) -> tuple[PreparedClips, ...]:
    """Join the clips of each length into one group, except for long clips, which stay single."""
    # By length, and also by number for a long clip.
    to_stack: dict[tuple[int, ...], list[PreparedClips]] = {}
    for number, clips in enumerate(groups):
        alone = (number,) if isinstance(clips, LongClip) else ()
        to_stack.setdefault((clips.samples, *alone), []).append(clips)
    return tuple(_stacked(same_length) for same_length in to_stack.values())


def _stacked(groups: Sequence[PreparedClips]) -> PreparedClips:
    """Join clips of equal length into one group."""
    if len(groups) == 1:
        return groups[0]
    audible = torch.cat([clips.audible for clips in groups])
    valid = torch.cat([clips.valid for clips in groups])
    scored, pauses = frames_to_score(active_sources(audible, valid))
    encoded = {}
    for measure in groups[0].encoded:
        encoded[measure] = _stacked_clusters([clips.encoded[measure] for clips in groups])
    return PreparedClips(
        items=tuple(item for clips in groups for item in clips.items),
        samples=groups[0].samples,
        waves=torch.cat([clips.waves for clips in groups]),
        audible=audible,
        valid=valid,
        scored=scored,
        pauses=pauses,
        gates=torch.cat([clips.gates for clips in groups]),
        encoded=encoded,
    )


def _stacked_clusters(sets: Sequence[Clusters]) -> Clusters:
    """Join embeddings of clips of equal length; distortions are padded to one number and masked."""
    members = max(clusters.distortions.shape[2] for clusters in sets)
    distortions, masks = [], []
    for clusters in sets:
        missing = members - clusters.distortions.shape[2]
        distortions.append(pad(clusters.distortions, (0, 0, 0, 0, 0, missing)))
        mask = clusters.mask
        if mask is None:
            mask = torch.ones_like(clusters.distortions[..., 0, 0], dtype=torch.bool)
        masks.append(pad(mask, (0, missing)))
    is_ragged = any(
        clusters.mask is not None or clusters.distortions.shape[2] < members for clusters in sets
    )
    others = [clusters.others for clusters in sets if clusters.others is not None]
    return Clusters(
        torch.cat([clusters.references for clusters in sets]),
        torch.cat(distortions),
        torch.cat(masks) if is_ragged else None,
        torch.cat(others) if others else None,
    )
