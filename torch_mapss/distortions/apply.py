"""Members at work: what they measure on the references, and the copies they make of them."""

from __future__ import annotations

import hashlib
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from torch_mapss.distortions.leakage import add_leakage, add_one_source, are_audible
from torch_mapss.distortions.philox import normals
from torch_mapss.distortions.records import Distortion, Measured
from torch_mapss.distortions.selection import KINDS, paper_members
from torch_mapss.distortions.traits import Traits

_OWN = {member.function for kind in KINDS for member in paper_members(kind)}
_OWN |= {add_leakage, add_one_source}
_PAPER = {member.name for kind in KINDS for member in paper_members(kind)}


@dataclass(frozen=True)
class Draw:
    """Standard normal numbers: from a length and a first place to (S, length), or (S, p, length).

    Drawn in float32 and from integers, so that dtype and device change nothing.
    """

    seeds: tuple[Any, ...]  # nested like the leading axes
    like: Tensor

    def __call__(self, length: int, start: int = 0) -> Tensor:
        seeds = torch.tensor(self.seeds, dtype=torch.int64, device=self.like.device)
        return normals(seeds, start, length).to(self.like.dtype)


def stable_seed(seed: int, source: int, name: str) -> int:
    """63-bit hash of seed, source index and member name, the same in every process."""
    digest = hashlib.sha256(f"{seed}/{source}/{name}".encode()).digest()
    return int.from_bytes(digest[:8], "big") >> 1


@dataclass(frozen=True)
class Call:
    """Members about to distort references, or a piece of them."""

    members: tuple[Distortion, ...]
    references: Tensor  # (..., S, T)
    sample_rate: int
    seed: int
    sources: tuple[int, ...]  # index of each of the S sources
    others: Tensor | None  # (..., S, S'-1, T) the other references of the mixture
    start: int  # place of the first sample in its signal

    def copies(self, part: slice, measured: Measured) -> Tensor:
        """Copies (..., S, p, T) by some of the members; the reference where one is not present."""
        found = []
        for group in _groups(self.members[part], part.start):
            values = [measured.values[place] for place in group]
            made = self._made(group, values, self._whole(group, measured))
            member = self.members[group[0]]
            if member.measured or member.mixes:  # which may be absent
                present = measured.mask[..., group.start : group.stop, None]
                made = torch.where(present, made, self.references.unsqueeze(-2))
            if not _is_own(member):
                _check_finite(member.name, made)
            found.append(made)
        return torch.cat(found, -2)

    def whole(self, group: range, values: Sequence[dict[str, Tensor]]) -> dict[str, Tensor]:
        """What the members of a group must know of whole references, by name."""
        member = self.members[group[0]]
        if member.whole is None:
            return {}
        arguments = self._arguments(group, values)
        arguments.pop("start", None)
        found = member.whole(self._input(member), self.sample_rate, **arguments)
        if not member.batched:
            return {member.name: found}
        axis = self.references.ndim - 1
        return {self.members[i].name: one for i, one in zip(group, found.unbind(axis))}

    def _whole(self, group: range, measured: Measured) -> dict[str, Tensor]:
        member = self.members[group[0]]
        if member.whole is None or not measured.whole:
            return {}
        found = [measured.whole[self.members[place].name] for place in group]
        return {
            "whole": torch.stack(found, self.references.ndim - 1) if member.batched else found[0]
        }

    def _made(
        self, group: range, values: Sequence[dict[str, Tensor]], whole: dict[str, Tensor]
    ) -> Tensor:
        """(..., S, p, T), checked."""
        member = self.members[group[0]]
        inputs = [self.references]
        if member.mixes:
            assert self.others is not None
            inputs.append(self.others)
            if self.others.shape[-2] == 0:  # no other source: present nowhere
                return self.references.unsqueeze(-2)
        before = [None if x.is_inference() else x._version for x in inputs]
        arguments = self._arguments(group, values) | whole
        copy = member.function(self._input(member), self.sample_rate, **arguments)
        if [None if x.is_inference() else x._version for x in inputs] != before:
            raise ValueError(
                f"distortion {member.name!r} changed its input in place: the members after it "
                f"would distort something else than the reference. Return a new tensor, e.g. of "
                f"wave.clone()."
            )
        _check_shape(member, copy, self.references, len(group))
        return (copy if member.batched else copy.unsqueeze(-2)).to(self.references)

    def _input(self, member: Distortion) -> Tensor:
        return self.references.unsqueeze(-2) if member.batched else self.references

    def _arguments(self, group: range, values: Sequence[dict[str, Tensor]]) -> dict[str, Any]:
        """Everything a group's function is called with beside the references."""
        first = self.members[group[0]]
        members = [self.members[place] for place in group]
        arguments: dict[str, Any] = dict(first.parameters)
        if first.batched:
            for key, value in first.parameters.items():
                if isinstance(value, float):
                    column = [[member.parameters[key]] for member in members]
                    arguments[key] = torch.tensor(column, dtype=torch.float64, device="cpu")
            for key in first.measured:
                arguments[key] = torch.stack([value[key] for value in values], -2)
        else:
            arguments |= values[0]
        if first.random:
            arguments["noise"] = self._draw(members, first.batched)
        if first.timed:
            arguments["start"] = self.start
        return arguments | ({"others": self.others} if first.mixes else {})

    def _draw(self, members: Sequence[Distortion], batched: bool) -> Draw:
        seeds = [
            [stable_seed(self.seed, source, member.name) for member in members]
            for source in self.sources
        ]
        return Draw(tuple(tuple(row) if batched else row[0] for row in seeds), self.references)


def _groups(members: Sequence[Distortion], start: int) -> Iterator[range]:
    """Places of neighbours that one call of their function makes together."""
    first = 0
    for place in range(1, len(members) + 1):
        if place == len(members) or not _together(members[first], members[place]):
            yield range(start + first, start + place)
            first = place


def _together(one: Distortion, other: Distortion) -> bool:
    """Whether two members differ in numbers alone."""
    if not (one.batched and other.batched) or one.mixes or other.mixes:
        return False
    return _kind(one) == _kind(other)


def _kind(member: Distortion) -> tuple[Any, ...]:
    settings = {k: v if not isinstance(v, float) else None for k, v in member.parameters.items()}
    asked = tuple(member.measured)
    return member.function, member.whole, member.random, member.timed, asked, settings


def measure_members(call: Call, whole: bool = False) -> Measured:
    """What every member measures on the references, and who exists.

    Args:
        call: With the whole references.
        whole: Also find what members must know before they are handed pieces.
    """
    traits, members = Traits(call.references, call.sample_rate), call.members
    values = tuple({key: ask(traits) for key, ask in m.measured.items()} for m in members)
    mask = _present(call, values)
    found: dict[str, Tensor] = {}
    if whole:
        for group in _groups(members, 0):
            found |= call.whole(group, [values[place] for place in group])
    return Measured(mask, values, found, call.references.shape[-1])


def _present(call: Call, values: Sequence[dict[str, Tensor]]) -> Tensor:
    """(..., S, P) who exists."""
    present: list[Tensor] = []
    everywhere = torch.ones_like(call.references[..., 0], dtype=torch.bool)
    heard: dict[int | None, Tensor] = {}  # by which other source leaks alone; None: all at once
    for i, member in enumerate(call.members):
        here = everywhere
        if member.mixes and call.others is not None:
            which = member.parameters["which"] if member.function is add_one_source else None
            if which not in heard:
                heard[which] = are_audible(call.others, which)
            here = heard[which]
        for value in values[i].values():
            here = here & ~value.squeeze(-1).isnan()
        for j in range(i):
            if member.distinct and call.members[j].family == member.family:
                here = here & ~_same(values[i], values[j], member.distinct)
        present.append(here)
    return torch.stack(present, -1)


def _same(one: dict[str, Tensor], other: dict[str, Tensor], key: str) -> Tensor:
    """Where two members measured the same value, (..., S). NaN differs from everything."""
    if key not in other:
        return torch.zeros_like(one[key].squeeze(-1), dtype=torch.bool)
    return (one[key] == other[key]).squeeze(-1)


def other_sources(references: Tensor, sources: tuple[int, ...], mixture: Tensor | None) -> Tensor:
    """(..., S, S'-1, T), for each source the other references of its mixture, in their order."""
    if mixture is None:
        mixture, sources = references, tuple(range(references.shape[-2]))
    else:
        mixture = check_references(mixture).detach()
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


def _is_own(member: Distortion) -> bool:
    """Whether it is one of the library's own, which are finite wherever the references are."""
    return member.function in _OWN and (member.name in _PAPER or member.mixes)


def _check_shape(member: Distortion, copy: object, references: Tensor, count: int) -> None:
    shape = references.shape
    if member.batched:
        shape = torch.Size([*shape[:-1], count, shape[-1]])
    if not isinstance(copy, Tensor) or copy.shape != shape:
        got = tuple(copy.shape) if isinstance(copy, Tensor) else type(copy).__name__
        raise ValueError(
            f"distortion {member.name!r} must return a tensor of its input's shape "
            f"{tuple(shape)}, got {got}. A copy has to stay aligned with its "
            f"reference: keep every leading axis and the length."
        )


def _check_finite(name: str, copy: Tensor) -> None:
    # The sum is quick and sees every NaN and infinity; only if it is off, look at each value.
    if not copy.sum().isfinite() and not copy.isfinite().all():
        raise ValueError(
            f"distortion {name!r} must return finite values, got NaN or infinity from "
            f"finite references. Guard its divisions and logarithms (a reference can be silent)."
        )


def check_references(references: Tensor) -> Tensor:
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
