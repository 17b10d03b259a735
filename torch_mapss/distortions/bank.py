"""The bank: which members, in which order, from which seed, for which reference."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Sequence

import torch
from torch import Tensor

from torch_mapss.core.torch_defaults import with_torch_defaults
from torch_mapss.distortions.apply import Call, check_references, measure_members, other_sources
from torch_mapss.distortions.leakage import leakage_members
from torch_mapss.distortions.records import Distorted, Distortion, Measured
from torch_mapss.distortions.selection import (
    check_leakage_kept,
    checked_leakage,
    distinct,
    extras,
    paper_members,
    selected,
    spread,
)
from torch_mapss.distortions.signal import samples

LOWEST_SAMPLE_RATE = 4000
CHUNK = 8
FADE = 0.02
"""Seconds of fade where a piece is cut out of a signal: a step would ring further than it."""


class DistortionBank:
    """The distortions of [app:distortionsbank] for one of the two measures.

    Calling the bank makes the cluster of every reference. It holds settings only: banks with equal
    settings are equal, hash alike and give equal numbers on every device, whatever the state of
    the global random generators. Random members draw from (seed, source index, member's name), so
    a source's copies do not depend on what else is in the batch or in the bank. A longer clip's
    noise begins with a shorter one's.

    References are expected mono and loudness-normalised (-23 LUFS): PS's absolute thresholds refer
    to that. The copies are not normalised again; that is the caller's step.

    Args:
        kind: ``"separation"`` is the PS column, 70 members; ``"match"`` the PM column, whose
            parameters come from each reference: 63 members and up to 20 notches.
        only: Families or members to keep; None keeps all.
        without: Families or members to leave out, after `only`.
        extra: Members of your own, appended; each is checked to keep shape and be finite.
        seed: Of all noise.
        size: Take only this many members, spread evenly over the families; None takes all. Smaller
            is faster and needs less memory, but describes the cluster more coarsely.
        leakage: Add so many members that hold the other sources of the mixture, from -35 to +5 dB,
            to a ``"match"`` bank (a fourteenth family, which the paper's table does not have). With
            them PM falls less with leakage, and with distortion as before. 7 is as many as noise
            has of each colour; more lets through more leakage. They hold all others at once: where
            there are more than two sources, one of them leaking alone still lowers PM.
        leakage_alone: For mixtures of S > 2 sources: add the same levels of so many other sources
            by themselves. S - 1 is all of them; fewer are the first ones, so order counts. Of two
            sources the only other one is there already.

    Attributes:
        kind: As given.
        seed: As given.
        members: The `Distortion` records, in order.

    Raises:
        ValueError: If `kind`, a family or a member is unknown, a name occurs twice, nothing is
            left, `size` is not between 1 and the number of members, `leakage` is negative,
            asked of a bank for PS, or all its members are left out again, or `leakage_alone` is
            negative or without `leakage`.
        TypeError: If `extra` holds something else than `Distortion`, or the seed, `leakage` or
            `leakage_alone` is no integer.
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
        leakage: int = 0,
        leakage_alone: int = 0,
    ) -> None:
        if not isinstance(seed, int) or isinstance(seed, bool):
            raise TypeError(f"seed must be an integer, got {seed!r}. Pass e.g. seed=0.")
        self.kind = kind
        self.seed = seed
        members = paper_members(kind)
        members += leakage_members(*checked_leakage(leakage, leakage_alone, kind))
        if only is not None:
            members = tuple(m for m, hit in selected(members, only, "only", kind) if hit)
        members = tuple(m for m, hit in selected(members, without, "without", kind) if not hit)
        self.members = distinct(members + extras(extra), kind)
        if size is not None:
            self.members = spread(self.members, size, kind)
        check_leakage_kept(self.members, leakage)

    def subset(self, size: int) -> DistortionBank:
        """The same bank with `size` of its members, spread evenly over the families.

        Args:
            size: Between 1 and ``len(bank)``.

        Returns:
            A new bank; random members keep their noise.
        """
        smaller = object.__new__(type(self))
        smaller.kind, smaller.seed = self.kind, self.seed
        smaller.members = spread(self.members, size, self.kind)
        return smaller

    @property
    def families(self) -> dict[str, int]:
        """Number of members of each family, in order."""
        return dict(Counter(member.family for member in self.members))

    @property
    def mixes(self) -> bool:
        """Whether a member is made of the other sources as well, and so belongs to its mixture."""
        return any(member.mixes for member in self.members)

    @property
    def size(self) -> int:
        """N_p, the number of members."""
        return len(self.members)

    def __len__(self) -> int:
        """N_p, the number of members."""
        return len(self.members)

    def names(self, sample_rate: int | None = None) -> tuple[str, ...]:
        """Names of the members, in the order of the P axis.

        Args:
            sample_rate: In Hz; leaves out members that need a higher one (a notch at 8 kHz exists
                from 16 kHz on). None names all.
        """
        return tuple(member.name for member in self._available(sample_rate))

    @with_torch_defaults
    def __call__(
        self,
        references: Tensor,
        sample_rate: int,
        sources: Sequence[int] | None = None,
        mixture: Tensor | None = None,
    ) -> Distorted:
        """Distort every reference by every member.

        Args:
            references: (..., S, T), float32 or float64, loudness-normalised.
            sample_rate: In Hz.
            sources: Index of each of the S sources for their noise; None counts from 0. Pass the
                original indices when `references` holds a selection of the sources.
            mixture: (..., S', T) all references of the mixture, the S sources at their indices
                `sources` among them; None says that `references` are all. Only members that hold
                other sources read it.

        Returns:
            `Distorted` with waveforms (..., S, P, T), mask (..., S, P) and the P names. No
            gradient.

        Raises:
            ValueError: If shapes, values or the sample rate are unusable, or an added member
                returns another shape or values that are not finite.
            TypeError: If `references` is not a float32 or float64 tensor.
        """
        names = self.names(_checked_rate(sample_rate))
        shape = (*check_references(references).shape[:-1], len(names))
        waveforms = references.new_empty(*shape, references.shape[-1])
        mask = torch.empty(shape, dtype=torch.bool, device=references.device)
        for part, copies, present in self.iterate(
            references, sample_rate, sources, mixture=mixture
        ):
            waveforms[..., part, :] = copies
            mask[..., part] = present
        return Distorted(waveforms, mask, names)

    def measure(
        self,
        references: Tensor,
        sample_rate: int,
        sources: Sequence[int] | None = None,
        mixture: Tensor | None = None,
        *,
        pieces: bool = True,
    ) -> Measured:
        """What the members must know of whole references before they are handed pieces of them.

        Args:
            references: (..., S, T), the whole.
            sample_rate: In Hz.
            sources: As in the call.
            mixture: As in the call.
            pieces: False: what is enough to distort them as a whole.

        Returns:
            `Measured`, to be handed to `iterate` with any piece of these references.

        Raises:
            ValueError: As the call, or if a member states no `Distortion.reach`.
            TypeError: As the call.
        """
        if pieces:
            self.reach(sample_rate)  # refuses members that need the whole
        call = self._call(references, sample_rate, sources, mixture)
        with torch.no_grad():
            return measure_members(call, whole=pieces)

    def reach(self, sample_rate: int) -> tuple[float, float]:
        """Seconds before and after a sample on which its copies may depend, see `Distortion.reach`.

        A piece of a signal must have as much on both sides of what is kept of its copies.

        Raises:
            ValueError: If a member does not state it.
        """
        members = self._available(sample_rate)
        unknown = [member.name for member in members if member.reach is None]
        if unknown:
            raise ValueError(
                f"distortions {unknown} do not say how far they reach, so that long files cannot "
                f"be distorted in segments. Say it, Distortion(..., reach=(seconds before, seconds "
                f"after)), or score the whole file at once (segment=None)."
            )
        before, after = (max(m.reach[side] for m in members if m.reach) for side in (0, 1))
        return before + FADE, after + FADE

    def _call(
        self,
        references: Tensor,
        sample_rate: int,
        sources: Sequence[int] | None,
        mixture: Tensor | None,
        start: int = 0,
    ) -> Call:
        members = self._available(_checked_rate(sample_rate))
        references = check_references(references).detach()
        indices = _checked_sources(sources, references.shape[-2])
        others = None
        if any(member.mixes for member in members):
            others = other_sources(references, indices, mixture)
        return Call(members, references, sample_rate, self.seed, indices, others, start)

    def iterate(
        self,
        references: Tensor,
        sample_rate: int,
        sources: Sequence[int] | None = None,
        chunk: int = CHUNK,
        mixture: Tensor | None = None,
        *,
        measured: Measured | None = None,
        start: int = 0,
    ) -> Iterator[tuple[slice, Tensor, Tensor]]:
        """Distort the references by a few members at a time, to bound memory.

        Args:
            references: As in the call, or a piece of them.
            sample_rate: In Hz.
            sources: As in the call.
            chunk: Number of members at a time; more is no faster, and needs chunk · S · T numbers.
            mixture: As in the call; a piece where `references` are one.
            measured: What `measure` found on the whole references, for a piece of them.
            start: Place of the first sample of a piece. Its copies are those of the whole except
                within `reach` of an end at which it was cut.

        Yields:
            The slice of the P axis, waveforms (..., S, p, T) and mask (..., S, p), p <= chunk.

        Raises:
            ValueError: As the call, if `chunk` is below 1, or if `start` is given without
                `measured`.
            TypeError: As the call.
        """
        if chunk < 1:
            raise ValueError(f"chunk must be at least 1 member at a time, got {chunk}.")
        if start and measured is None:
            raise ValueError(
                f"start is {start}, but the copies of a piece depend on what is measured on the "
                f"whole. Pass measured=bank.measure(references, ...) of the whole references."
            )
        if measured is not None:
            references = faded(references, sample_rate, start, measured.length)
        call = self._call(references, sample_rate, sources, mixture, start)
        with torch.no_grad():
            known = measure_members(call) if measured is None else measured
        for first in range(0, len(call.members), chunk):
            part = slice(first, min(first + chunk, len(call.members)))
            with torch.no_grad():  # inside the loop: a generator must not hold it while suspended
                copies = call.copies(part, known)
            yield part, copies, known.mask[..., part]

    def _available(self, sample_rate: int | None) -> tuple[Distortion, ...]:
        if sample_rate is None:
            return self.members
        return tuple(m for m in self.members if sample_rate >= m.lowest_rate)

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
        """Kind, size, seed and the families with their counts."""
        counts = ", ".join(f"{family} {count}" for family, count in self.families.items())
        return f"DistortionBank({self.kind!r}, {len(self)} members, seed={self.seed}: {counts})"


def faded(references: Tensor, sample_rate: int, start: int, length: int) -> Tensor:
    """A piece (..., T) of a signal of some length, faded where it was cut from it."""
    count = min(samples(FADE, sample_rate), references.shape[-1])
    place = torch.arange(1, count + 1, dtype=references.dtype, device=references.device)
    fade = 0.5 - 0.5 * torch.cos(torch.pi * place / (count + 1))
    gain = torch.ones_like(references[(0,) * (references.ndim - 1)])
    if start > 0:
        gain[:count] = fade
    if start + references.shape[-1] < length:
        gain[-count:] *= fade.flip(0)
    return references * gain


def _checked_rate(sample_rate: int) -> int:
    if isinstance(sample_rate, bool) or int(sample_rate) != sample_rate:
        raise TypeError(f"sample_rate must be an integer in Hz, got {sample_rate!r}.")
    if sample_rate < LOWEST_SAMPLE_RATE:
        raise ValueError(
            f"sample_rate must be at least {LOWEST_SAMPLE_RATE} Hz, got {sample_rate}. It counts "
            f"samples per second (16000, not 16); below that the bank's filters do not fit."
        )
    return int(sample_rate)


def _checked_sources(sources: Sequence[int] | None, count: int) -> tuple[int, ...]:
    indices = tuple(range(count)) if sources is None else tuple(int(s) for s in sources)
    if len(indices) != count:
        raise ValueError(
            f"sources must give one index per reference, got {len(indices)} for {count}. They "
            f"seed each source's noise; leave them out to count from 0."
        )
    return indices
