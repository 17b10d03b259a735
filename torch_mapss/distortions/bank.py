"""The distortion bank: its members, its seed, and the methods that make distorted copies."""

from __future__ import annotations

import copy
import math
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence

import torch
from torch import Tensor

from torch_mapss.core.checks import check_seed, check_whole
from torch_mapss.core.eager import eager
from torch_mapss.distortions.bank_members import (
    check_extra,
    check_unique,
    paper_members,
    select_members,
    spread_evenly,
)
from torch_mapss.distortions.distorted_copies import CopyTask
from torch_mapss.distortions.distortion import Distorted, Distortion, Measured
from torch_mapss.distortions.signal import samples

LOWEST_SAMPLE_RATE = 4000
CHUNK = 8
FADE = 0.02
"""Seconds of fade where a segment is cut out of a signal; a step would ring for longer."""


class DistortionBank:
    """The distortions of [app:distortionsbank] for PS or for PM.

    Calling the bank returns the distorted copies ("cluster") of every reference. The bank holds
    only settings: banks with equal settings compare equal, hash alike and give equal numbers on
    every device, whatever the state of the global random generators. Noise is drawn from (seed,
    source index, member's name), so a source's copies do not depend on the rest of the batch or of
    the bank, and the noise of a longer clip begins with that of a shorter one. Since tensors carry
    no names, the key is a source's index: reordering the sources changes the noise, and log PM of
    single outputs moves by up to 26 (where it is some hundreds below 0). Keep the order of the
    sources in everything that you compare.

    References should be mono and loudness-normalised (-23 LUFS), the level that the absolute
    thresholds for PS refer to. The copies are not normalised again; that is left to the caller.

    Args:
        kind: ``"separation"`` for the PS column of the paper's table, 70 members; ``"match"`` for
            the PM column, whose parameters come from each reference: 63 members and up to 20
            notches.
        only: Families or members to keep; None keeps all.
        without: Families or members to leave out, after `only`.
        extra: Your own members, appended; their copies are checked for shape and finite values.
        seed: Seed of all noise.
        size: Number of members to take, spread evenly over the families; None takes all. A smaller
            bank is faster and needs less memory, but describes the cluster more coarsely.

    Attributes:
        kind: The argument ``kind``.
        seed: The argument ``seed``, as an int.
        members: The `Distortion` records, in order.

    Raises:
        ValueError: If `kind`, a family or a member is unknown, a name occurs twice, nothing is
            left, or `size` is not between 1 and the number of members.
        TypeError: If `extra` holds anything but `Distortion`, or the seed is not an integer.
    """

    kind: str
    seed: int
    members: tuple[Distortion, ...]

    def __init__(
        self,
        kind: str = "separation",
        *,
        only: Iterable[str] | None = None,
        without: Iterable[str] = (),
        extra: Iterable[Distortion] = (),
        seed: int = 0,
        size: int | None = None,
    ) -> None:
        self.kind = kind
        self.seed = check_seed(seed)
        members = paper_members(kind)
        if only is not None:
            members = select_members(members, only, "only", kind)
        left_out = select_members(members, without, "without", kind)
        members = tuple(member for member in members if member not in left_out)
        self.members = check_unique(members + check_extra(extra), kind)
        if size is not None:
            self.members = spread_evenly(self.members, size, kind)

    def subset(self, size: int) -> DistortionBank:
        """Copy of the bank with only `size` of its members, spread evenly over the families.

        Args:
            size: Between 1 and ``len(bank)``.

        Returns:
            A new bank; random members keep their noise.
        """
        smaller = copy.copy(self)
        smaller.members = spread_evenly(self.members, size, self.kind)
        return smaller

    @property
    def families(self) -> dict[str, int]:
        """Number of members in each family, in order."""
        return dict(Counter(member.family for member in self.members))

    def __len__(self) -> int:
        """N_p, the number of members."""
        return len(self.members)

    def names(self, sample_rate: int | None = None) -> tuple[str, ...]:
        """Names of the members, in the order of the P axis.

        Args:
            sample_rate: In Hz; leaves out members that need a higher one (a notch at 8 kHz exists
                from 16 kHz on). None names all.
        """
        return tuple(member.name for member in self.available(sample_rate))

    @eager
    def __call__(
        self, references: Tensor, sample_rate: int, sources: Sequence[int] | None = None
    ) -> Distorted:
        """Distort every reference by every member.

        Args:
            references: (..., S, T), float32 or float64, loudness-normalised.
            sample_rate: In Hz.
            sources: Indices of the S sources, which seed their noise; None counts from 0. Pass the
                original indices if `references` holds a selection of the sources.

        Returns:
            `Distorted` with waveforms (..., S, P, T), mask (..., S, P) and the P names. No
            gradient.

        Raises:
            ValueError: If shapes, values or the sample rate are unusable, or an added member
                returns another shape or values that are not finite.
            TypeError: If `references` is not a float32 or float64 tensor.
        """
        measured = self.measure(references, sample_rate, sources, pieces=False)
        waveforms = references.new_empty(*measured.mask.shape, references.shape[-1])
        chunks = self.chunks(references, sample_rate, sources, measured=measured)
        for members, copies, _ in chunks:
            waveforms[..., members, :] = copies
        return Distorted(waveforms, measured.mask, self.names(sample_rate))

    def measure(
        self,
        references: Tensor,
        sample_rate: int,
        sources: Sequence[int] | None = None,
        *,
        pieces: bool = True,
    ) -> Measured:
        """Measure what members need of entire references in order to distort segments of them.

        Args:
            references: (..., S, T), the entire signals.
            sample_rate: In Hz.
            sources: As in the call.
            pieces: If False, measure only what is needed to distort the entire signals.

        Returns:
            `Measured`, to be passed to `chunks` with any segment of these references.

        Raises:
            ValueError: As the call, or if a member has no `Distortion.reach`.
            TypeError: As the call.
        """
        if pieces:
            self.reach(sample_rate)  # refuses members that need the entire signal
        return self._task(references, sample_rate, sources).measure(pieces)

    def reach(self, sample_rate: int) -> tuple[float, float]:
        """Seconds before and after a sample that its copies may depend on, see `Distortion.reach`.

        A segment must extend this far beyond both ends of the part of its copies that is used.

        Raises:
            ValueError: If a member has none.
        """
        members = self.available(sample_rate)
        unknown = [member.name for member in members if member.reach is None]
        if unknown:
            raise ValueError(
                f"distortions {unknown} have no reach, which distorting in segments requires. Pass "
                f"Distortion(..., reach=(seconds before, seconds after)), or score entire files "
                f"(segment=None)."
            )
        reaches_before, reaches_after = zip(*(member.reach for member in members if member.reach))
        return max(reaches_before) + FADE, max(reaches_after) + FADE

    def _task(
        self, references: Tensor, sample_rate: int, sources: Sequence[int] | None, start: int = 0
    ) -> CopyTask:
        """Check the arguments of the call, and return the task that makes the copies."""
        sample_rate = check_whole(sample_rate, "sample_rate", LOWEST_SAMPLE_RATE)
        is_tensor = isinstance(references, Tensor)
        if not is_tensor or references.dtype not in (torch.float32, torch.float64):
            got = getattr(references, "dtype", type(references).__name__)
            raise TypeError(
                f"references must be a float32 or float64 tensor (..., S, T), got {got}. "
                f"Convert first, e.g. references.float()."
            )
        if references.ndim < 2 or 0 in references.shape[-2:]:
            raise ValueError(
                f"references must have shape (..., S, T) with at least one source and one sample, "
                f"got {tuple(references.shape)}. A single waveform is references[None]."
            )
        if not references.isfinite().all():
            raise ValueError(
                "references must be finite, got NaN or infinity. Repair the file or the step "
                "before."
            )
        count = references.shape[-2]
        indices = tuple(range(count)) if sources is None else tuple(int(s) for s in sources)
        if len(indices) != count:
            raise ValueError(
                f"sources must give one index per reference, got {len(indices)} for {count}. They "
                f"seed each source's noise; leave them out to count from 0."
            )
        members = self.available(sample_rate)
        return CopyTask(members, references.detach(), sample_rate, self.seed, indices, start)

    def chunks(
        self,
        references: Tensor,
        sample_rate: int,
        sources: Sequence[int] | None = None,
        chunk: int = CHUNK,
        *,
        measured: Measured | None = None,
        start: int = 0,
    ) -> Iterator[tuple[slice, Tensor, Tensor]]:
        """Distort the references by a few members at a time, to bound memory.

        Args:
            references: As in the call, or a segment of them.
            sample_rate: In Hz.
            sources: As in the call.
            chunk: Number of members at a time; a larger one is no faster, and takes chunk · S · T
                numbers.
            measured: Result of `measure` on the entire references, if `references` is a segment of
                them.
            start: Position of a segment's first sample. Its copies are those of the entire signal
                except within `reach` of an end at which it was cut.

        Yields:
            The slice of the P axis, waveforms (..., S, p, T) and mask (..., S, p), p <= chunk.

        Raises:
            ValueError: As the call, if `chunk` is below 1, or if `start` is given without
                `measured`.
            TypeError: As the call.
        """
        chunk = check_whole(chunk, "chunk", 1)
        if start and measured is None:
            raise ValueError(
                f"start={start} requires measured=bank.measure(references, ...) of the entire "
                f"references, on which the copies of a segment depend."
            )
        if measured is not None and references.shape[-1] < measured.length:
            references = faded(references, sample_rate, start, measured.length)
        task = self._task(references, sample_rate, sources, start)
        if measured is None:
            measured = task.measure()
        for first_member in range(0, len(task.members), chunk):
            members = slice(first_member, min(first_member + chunk, len(task.members)))
            yield members, task.copies(members, measured), measured.mask[..., members]

    def available(self, sample_rate: int | None) -> tuple[Distortion, ...]:
        """The members that exist at a sample rate in Hz; None: all."""
        rate = math.inf if sample_rate is None else sample_rate
        return tuple(member for member in self.members if rate >= member.lowest_rate)

    def __eq__(self, other: object) -> bool:
        """Banks of equal kind, seed and members are equal."""
        if not isinstance(other, DistortionBank):
            return NotImplemented
        return self._key() == other._key()

    def __hash__(self) -> int:
        """Hash of the settings."""
        return hash(self._key())

    def _key(self) -> tuple[str, int, tuple[Distortion, ...]]:
        return self.kind, self.seed, self.members

    def __repr__(self) -> str:
        """Kind, size and seed."""
        return f"DistortionBank({self.kind!r}, size={len(self)}, seed={self.seed})"


def faded(references: Tensor, sample_rate: int, start: int, length: int) -> Tensor:
    """Segment (..., T) of a signal of `length` samples, faded where it was cut."""
    count = min(samples(FADE, sample_rate), references.shape[-1])
    index = torch.arange(1, count + 1, dtype=references.dtype, device=references.device)
    fade = 0.5 - 0.5 * torch.cos(torch.pi * index / (count + 1))
    gain = torch.ones_like(references[(0,) * (references.ndim - 1)])
    if start > 0:
        gain[:count] = fade
    if start + references.shape[-1] < length:
        gain[-count:] *= fade.flip(0)
    return references * gain
