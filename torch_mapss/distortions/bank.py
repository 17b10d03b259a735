"""The bank: which members, in which order, from which seed, for which reference."""

from __future__ import annotations

import hashlib
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from torch_mapss.distortions import additive, dynamics, echoes, filters, pitch
from torch_mapss.distortions.leakage import leakage_members
from torch_mapss.distortions.records import Distorted, Distortion
from torch_mapss.distortions.traits import SpectralPeak, Traits

FAMILIES = (
    "notch",
    "comb",
    "tremolo",
    "noise",
    "tone",
    "reverb",
    "gate",
    "pitch",
    "lowpass",
    "highpass",
    "echo",
    "clipping",
    "vibrato",
)
"""The paper's families, in the order of its table."""

KINDS = ("separation", "match")
LOWEST_SAMPLE_RATE = 4000
CHUNK = 8


class DistortionBank:
    """The distortions of [app:distortionsbank] for one of the two measures.

    Calling the bank makes the cluster of every reference. It holds settings only: banks with equal
    settings are equal, hash alike and give equal numbers on every device, whatever the state of
    the global random generators. Random members draw from (seed, source index, member's name), so
    a source's copies do not depend on what else is in the batch or in the bank. A longer clip has
    noise of its own, not a continuation of a shorter one's.

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
            has of each colour; more lets through more leakage.

    Attributes:
        kind: As given.
        seed: As given.
        members: The `Distortion` records, in order.

    Raises:
        ValueError: If `kind`, a family or a member is unknown, a name occurs twice, nothing is
            left, `size` is not between 1 and the number of members, or `leakage` is negative or
            asked of a bank for PS.
        TypeError: If `extra` holds something else than `Distortion`, or the seed or `leakage` is no
            integer.
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
    ) -> None:
        if not isinstance(seed, int) or isinstance(seed, bool):
            raise TypeError(f"seed must be an integer, got {seed!r}. Pass e.g. seed=0.")
        self.kind = kind
        self.seed = seed
        members = _paper_members(kind) + leakage_members(_checked_leakage(leakage, kind))
        if only is not None:
            members = tuple(m for m, hit in _selected(members, only, "only") if hit)
        members = tuple(m for m, hit in _selected(members, without, "without") if not hit)
        self.members = _distinct(members + _extras(extra))
        if size is not None:
            self.members = _spread(self.members, size)

    def subset(self, size: int) -> DistortionBank:
        """The same bank with `size` of its members, spread evenly over the families.

        Args:
            size: Between 1 and ``len(bank)``.

        Returns:
            A new bank; random members keep their noise.
        """
        smaller = object.__new__(type(self))
        smaller.kind, smaller.seed = self.kind, self.seed
        smaller.members = _spread(self.members, size)
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
        shape = (*_check_references(references).shape[:-1], len(names))
        waveforms = references.new_empty(*shape, references.shape[-1])
        mask = torch.empty(shape, dtype=torch.bool, device=references.device)
        for part, copies, present in self.iterate(
            references, sample_rate, sources, chunk=1, mixture=mixture
        ):
            waveforms[..., part, :] = copies
            mask[..., part] = present
        return Distorted(waveforms, mask, names)

    def iterate(
        self,
        references: Tensor,
        sample_rate: int,
        sources: Sequence[int] | None = None,
        chunk: int = CHUNK,
        mixture: Tensor | None = None,
    ) -> Iterator[tuple[slice, Tensor, Tensor]]:
        """Distort the references by a few members at a time, to bound memory.

        Args:
            references: As in the call.
            sample_rate: In Hz.
            sources: As in the call.
            chunk: Number of members at a time; more is no faster, and needs chunk · S · T numbers.
            mixture: As in the call.

        Yields:
            The slice of the P axis, waveforms (..., S, p, T) and mask (..., S, p), p <= chunk.

        Raises:
            ValueError: As the call, or if `chunk` is below 1.
            TypeError: As the call.
        """
        members = self._available(_checked_rate(sample_rate))
        references = _check_references(references).detach()
        indices = _checked_sources(sources, references.shape[-2])
        if chunk < 1:
            raise ValueError(f"chunk must be at least 1 member at a time, got {chunk}.")
        others = None
        if any(member.mixes for member in members):
            others = _others(references, indices, mixture)
        with torch.no_grad():
            values, present = _measure(members, Traits(references, sample_rate), others)
        for start in range(0, len(members), chunk):
            part = slice(start, min(start + chunk, len(members)))
            seeds = [self._seeds(member, indices) for member in members[part]]
            mask = present[..., part]
            with torch.no_grad():  # inside the loop: a generator must not hold it while suspended
                copies = [
                    _apply(
                        member,
                        references,
                        sample_rate,
                        {**measured, **_given(member, Draw(seed, references), others)},
                        here,
                    )
                    for member, measured, seed, here in zip(
                        members[part], values[part], seeds, mask.unbind(-1)
                    )
                ]
            yield part, torch.stack(copies, -2), mask

    def _available(self, sample_rate: int | None) -> tuple[Distortion, ...]:
        if sample_rate is None:
            return self.members
        return tuple(m for m in self.members if sample_rate >= m.lowest_rate)

    def _seeds(self, member: Distortion, sources: Sequence[int]) -> tuple[int, ...]:
        return tuple(stable_seed(self.seed, source, member.name) for source in sources)

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


@dataclass(frozen=True)
class Draw:
    """Standard normal numbers, one row per source: from a length to (S, length).

    Drawn in float32 on the CPU and moved afterwards, so that dtype and device change nothing.
    """

    seeds: tuple[int, ...]
    like: Tensor

    def __call__(self, length: int) -> Tensor:
        rows = [self._row(seed, length) for seed in self.seeds]
        return torch.stack(rows).to(self.like)

    @staticmethod
    def _row(seed: int, length: int) -> Tensor:
        generator = torch.Generator("cpu").manual_seed(seed)
        return torch.randn(length, generator=generator, dtype=torch.float32, device="cpu")


def stable_seed(seed: int, source: int, name: str) -> int:
    """63-bit hash of seed, source index and member name, the same in every process."""
    digest = hashlib.sha256(f"{seed}/{source}/{name}".encode()).digest()
    return int.from_bytes(digest[:8], "big") >> 1


def _paper_members(kind: str) -> tuple[Distortion, ...]:
    """The members of a column of the table, in the order of its rows."""
    if kind not in KINDS:
        raise ValueError(
            f"kind must be one of {KINDS}, got {kind!r}. PS is scored against the "
            f"'separation' bank and PM against the 'match' bank."
        )
    attribute = kind.upper()
    table: dict[str, tuple[Distortion, ...]] = {}
    for module in (filters, echoes, additive, dynamics, pitch):
        table |= getattr(module, attribute)
    return tuple(member for family in FAMILIES for member in table[family])


def _selected(
    members: tuple[Distortion, ...], chosen: Iterable[str], argument: str
) -> list[tuple[Distortion, bool]]:
    """Each member with whether it, or its family, is among the chosen."""
    wanted = {chosen} if isinstance(chosen, str) else set(chosen)
    families = dict.fromkeys(member.family for member in members)
    unknown = wanted - set(families) - {member.name for member in members}
    if unknown:
        raise ValueError(
            f"{argument} names {sorted(unknown)}, which this bank has neither as families nor as "
            f"members. Families: {', '.join(families)}; members: see DistortionBank.names()."
        )
    return [(member, bool({member.family, member.name} & wanted)) for member in members]


def _extras(extra: Iterable[Distortion]) -> tuple[Distortion, ...]:
    members = (extra,) if isinstance(extra, Distortion) else tuple(extra)
    for member in members:
        if not isinstance(member, Distortion):
            raise TypeError(
                f"extra must hold Distortion records, got {type(member).__name__}. Wrap a function "
                f"as Distortion(name, family, function, parameters)."
            )
    return members


def _distinct(members: tuple[Distortion, ...]) -> tuple[Distortion, ...]:
    """The members, if there are any and no two share a name (they would share their noise)."""
    twice = [name for name, n in Counter(member.name for member in members).items() if n > 1]
    if twice:
        raise ValueError(
            f"member names must be unique, but {twice} occur twice. Rename the extra member, or "
            f"leave the bank's own out with without={twice}."
        )
    if not members:
        raise ValueError("the bank has no members left. Leave out fewer families, or add extra.")
    return members


def _spread(members: tuple[Distortion, ...], size: int) -> tuple[Distortion, ...]:
    """`size` members, as evenly over the families, and within each, as counts allow."""
    if not 1 <= size <= len(members):
        raise ValueError(
            f"size must lie between 1 and {len(members)}, the members this bank has, got {size}."
        )
    groups: dict[str, list[int]] = {}
    for index, member in enumerate(members):
        groups.setdefault(member.family, []).append(index)
    quota = _quotas({family: len(group) for family, group in groups.items()}, size)
    kept = {
        group[place]
        for family, group in groups.items()
        for place in _places([members[index] for index in group], quota[family])
    }
    return tuple(members[index] for index in sorted(kept))


def _quotas(counts: dict[str, int], size: int) -> dict[str, int]:
    """Deal `size` places to families in rounds of one each; the last round goes to every n-th."""
    quota = dict.fromkeys(counts, 0)
    left = size
    while left:
        open_families = [family for family, count in counts.items() if quota[family] < count]
        dealt = min(left, len(open_families))
        for place in _even(len(open_families), dealt):
            quota[open_families[place]] += 1
        left -= dealt
    return quota


def _places(family: list[Distortion], quota: int) -> Sequence[int]:
    """Which members of a family to keep: the strongest peaks, else evenly spaced."""
    peaks = any(isinstance(m, SpectralPeak) for d in family for m in d.measured.values())
    return range(quota) if peaks else _even(len(family), quota)


def _even(count: int, quota: int) -> list[int]:
    """`quota` of `count` places, evenly spaced about the middle."""
    return [(2 * i + 1) * count // (2 * quota) for i in range(quota)]


def _others(references: Tensor, sources: tuple[int, ...], mixture: Tensor | None) -> Tensor:
    """(..., S, S'-1, T), for each source the other references of its mixture, in their order."""
    if mixture is None:
        mixture, sources = references, tuple(range(references.shape[-2]))
    else:
        mixture = _check_references(mixture).detach()
        _check_mixture(references, sources, mixture)
    everyone = range(mixture.shape[-2])
    index = [[other for other in everyone if other != source] for source in sources]
    shape = (len(sources), len(everyone) - 1)
    return mixture[..., torch.tensor(index, dtype=torch.int64).reshape(shape), :]


def _check_mixture(references: Tensor, sources: tuple[int, ...], mixture: Tensor) -> None:
    fits = mixture.ndim == references.ndim and mixture.shape[:-2] == references.shape[:-2]
    fits = fits and mixture.shape[-1] == references.shape[-1]
    if not fits or not all(0 <= source < mixture.shape[-2] for source in sources):
        raise ValueError(
            f"mixture must hold all references (..., S', T) of the mixtures whose sources "
            f"{list(sources)} are given, got {tuple(mixture.shape)} for references "
            f"{tuple(references.shape)}. Leave it out where references are all of them."
        )


def _given(
    member: Distortion, draw: Callable[[int], Tensor], others: Tensor | None
) -> dict[str, Any]:
    """What a member's function is handed beside its parameters."""
    handed: dict[str, Any] = {"noise": draw} if member.random else {}
    return handed | ({"others": others} if member.mixes else {})


def _measure(
    members: Sequence[Distortion], traits: Traits, others: Tensor | None
) -> tuple[list[dict[str, Tensor]], Tensor]:
    """What every member measures on the references, and who exists: mask (..., S, P)."""
    values = [{key: ask(traits) for key, ask in m.measured.items()} for m in members]
    present: list[Tensor] = []
    everywhere = torch.ones_like(traits.waveform[..., 0], dtype=torch.bool)
    accompanied = everywhere if others is None else (others != 0).flatten(-2).any(-1)
    for i, member in enumerate(members):
        here = accompanied if member.mixes else everywhere
        for value in values[i].values():
            here = here & ~value.squeeze(-1).isnan()
        for j in range(i):
            if member.distinct and members[j].family == member.family:
                here = here & ~_same(values[i], values[j], member.distinct)
        present.append(here)
    return values, torch.stack(present, -1)


def _same(one: dict[str, Tensor], other: dict[str, Tensor], key: str) -> Tensor:
    """Where two members measured the same value, (..., S). NaN differs from everything."""
    if key not in other:
        return torch.zeros_like(one[key].squeeze(-1), dtype=torch.bool)
    return (one[key] == other[key]).squeeze(-1)


def _apply(
    member: Distortion,
    references: Tensor,
    sample_rate: int,
    arguments: dict[str, Any],
    present: Tensor,
) -> Tensor:
    """One member's copies (..., S, T), checked; the reference where it is not present (..., S)."""
    inputs = [references, *([arguments["others"]] if member.mixes else [])]
    if member.mixes and inputs[1].shape[-2] == 0:  # no other source: present nowhere
        return references
    before = [None if x.is_inference() else x._version for x in inputs]
    copy = member.function(references, sample_rate, **{**member.parameters, **arguments})
    if [None if x.is_inference() else x._version for x in inputs] != before:
        raise ValueError(
            f"distortion {member.name!r} changed its input in place: the members after it would "
            f"distort something else than the reference. Return a new tensor, e.g. of wave.clone()."
        )
    if not isinstance(copy, Tensor) or copy.shape != references.shape:
        got = tuple(copy.shape) if isinstance(copy, Tensor) else type(copy).__name__
        raise ValueError(
            f"distortion {member.name!r} must return a tensor of its input's shape "
            f"{tuple(references.shape)}, got {got}. A copy has to stay aligned with its "
            f"reference: keep every leading axis and the length."
        )
    return _filled(member.name, copy.to(references), references, present)


def _filled(name: str, copy: Tensor, references: Tensor, present: Tensor) -> Tensor:
    """The copy where the member is present, else the reference; finite or an error."""
    if not present.all():
        copy = torch.where(present.unsqueeze(-1), copy, references)
    # The sum is quick and sees every NaN and infinity; only if it is off, look at each value.
    if not copy.sum().isfinite() and not copy.isfinite().all():
        raise ValueError(
            f"distortion {name!r} must return finite values, got NaN or infinity from "
            f"finite references. Guard its divisions and logarithms (a reference can be silent)."
        )
    return copy


def _check_references(references: Tensor) -> Tensor:
    if not isinstance(references, Tensor) or references.dtype not in (torch.float32, torch.float64):
        got = getattr(references, "dtype", type(references).__name__)
        raise TypeError(
            f"references must be a float32 or float64 tensor (..., S, T), got {got}. "
            f"Convert first, e.g. references.float()."
        )
    if references.ndim < 2 or 0 in references.shape[-2:]:
        raise ValueError(
            f"references must have shape (..., S, T) with at least one source and one sample, got "
            f"{tuple(references.shape)}. A single waveform is references[None]."
        )
    if not references.isfinite().all():
        raise ValueError(
            "references must be finite, got NaN or infinity. No distortion of such a waveform "
            "means anything; repair the file or the step that made it."
        )
    return references


def _checked_leakage(leakage: int, kind: str) -> int:
    if not isinstance(leakage, int) or isinstance(leakage, bool):
        raise TypeError(f"leakage must be an integer, got {leakage!r}. Pass e.g. leakage=7.")
    if leakage < 0:
        raise ValueError(f"leakage must be a number of members, at least 0, got {leakage}.")
    if leakage and kind != "match":
        raise ValueError(
            f"leakage belongs into the 'match' bank, got kind={kind!r}: members that hold the "
            f"other sources would hide from PS what it measures. Make a DistortionBank('match', "
            f"leakage={leakage})."
        )
    return leakage


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
