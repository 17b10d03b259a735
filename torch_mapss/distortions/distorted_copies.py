"""Distorted copies of references, and the measurements on the references that they need."""

from __future__ import annotations

import functools
import hashlib
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from torch_mapss.distortions.bank_members import KINDS, paper_members
from torch_mapss.distortions.distortion import Distortion, Measured
from torch_mapss.distortions.noise import normals
from torch_mapss.distortions.reference_features import ReferenceFeatures

_PAPER = {member.name: member.function for kind in KINDS for member in paper_members(kind)}


@dataclass(frozen=True)
class CopyTask:
    """Members of a distortion bank, and the references (or a segment of them) to distort."""

    members: tuple[Distortion, ...]
    references: Tensor  # (..., S, T)
    sample_rate: int
    seed: int
    sources: tuple[int, ...]  # index of each of the S sources
    start: int  # position of the first sample in its signal

    @torch.no_grad()
    def copies(self, members: slice, measured: Measured) -> Tensor:
        """Copies (..., S, p, T) by a slice of the members; the reference where one is absent."""
        references, member_axis = self.references, self.references.ndim - 1
        copies = []
        for group in self.groups(members):
            member = self.members[group.start]
            arguments = self.arguments(group, measured.values)
            if member.context is not None and measured.context:
                contexts = [measured.context[self.members[index].name] for index in group]
                arguments["context"] = contexts[0]
                if member.batched:
                    arguments["context"] = torch.stack(contexts, member_axis)
            waveform = references.unsqueeze(member_axis) if member.batched else references
            is_added = _PAPER.get(member.name) != member.function
            if is_added:
                copy = _call_checked(member, waveform, self.sample_rate, arguments, len(group))
            else:  # the paper's members are tested
                copy = member.function(waveform, self.sample_rate, **arguments)
            copy = (copy if member.batched else copy.unsqueeze(member_axis)).to(references)
            if member.measured:  # a measured member may be absent
                present = measured.mask[..., group.start : group.stop, None]
                copy = torch.where(present, copy, references.unsqueeze(member_axis))
            if is_added:
                _check_finite(member.name, copy)
            copies.append(copy)
        return torch.cat(copies, member_axis)

    def groups(self, members: slice) -> Iterator[range]:
        """Yield runs of neighbours that differ only in numbers, so that one call makes them all."""
        begin = members.start
        formula_of_run: Any = None
        for index in range(members.start, members.stop):
            member = self.members[index]
            formula: Any = member.name  # a member that is called alone
            if member.batched:
                settings = dict(member.parameters)
                for name, value in settings.items():
                    settings[name] = None if isinstance(value, float) else value
                functions = member.function, member.context, member.random, member.timed
                formula = functions, tuple(member.measured), settings
            if index > begin and formula != formula_of_run:
                yield range(begin, index)
                begin = index
            formula_of_run = formula
        yield range(begin, members.stop)

    def arguments(self, group: range, values: Sequence[Mapping[str, Tensor]]) -> dict[str, Any]:
        """Keyword arguments for the call that makes the copies of a group of members.

        Args:
            group: Their indices.
            values: Measured arguments of all members, see `Measured`.
        """
        leader = self.members[group.start]
        members = [self.members[index] for index in group]
        arguments: dict[str, Any] = {**leader.parameters, **values[group.start]}
        if leader.batched:
            for key, value in leader.parameters.items():
                if isinstance(value, float):
                    column = [[member.parameters[key]] for member in members]
                    arguments[key] = torch.tensor(column, dtype=torch.float64, device="cpu")
            for key in leader.measured:
                arguments[key] = torch.stack([values[index][key] for index in group], -2)
        if leader.random:
            # A hash of the bank's seed, the source and the member is the same in every process.
            seeds = []
            for source in self.sources:
                for member in members:
                    digest = hashlib.sha256(f"{self.seed}/{source}/{member.name}".encode()).digest()
                    seeds.append(int.from_bytes(digest[:8], "big") >> 1)  # 63 bits
            shape = (-1, len(members)) if leader.batched else (-1,)
            device, dtype = self.references.device, self.references.dtype
            sequences = torch.tensor(seeds, dtype=torch.int64, device=device).reshape(shape)
            arguments["noise"] = functools.partial(normals, sequences, dtype=dtype)
        if leader.timed:
            arguments["start"] = self.start
        return arguments

    @torch.no_grad()
    def measure(self, pieces: bool = False) -> Measured:
        """Measure what the members need of entire references, and which members exist.

        Args:
            pieces: Also measure what members need for distorting segments.
        """
        references, member_axis = self.references, self.references.ndim - 1
        features = ReferenceFeatures(references, self.sample_rate)
        values = []
        for member in self.members:
            values.append({name: measure(features) for name, measure in member.measured.items()})
        # A member exists unless one of its arguments is NaN, or an earlier one equals it.
        masks = []
        for i, member in enumerate(self.members):
            present = torch.ones_like(references[..., 0], dtype=torch.bool)
            for value in values[i].values():
                present = present & ~value.squeeze(-1).isnan()
            key = member.distinct
            for j in range(i):
                if key and key in values[j] and self.members[j].family == member.family:
                    present = present & (values[i][key] != values[j][key]).squeeze(-1)
            masks.append(present)
        mask = torch.stack(masks, -1)
        context: dict[str, Tensor] = {}
        for group in self.groups(slice(0, len(self.members))) if pieces else ():
            member = self.members[group.start]
            if member.context is None:
                continue
            arguments = self.arguments(group, values)
            arguments.pop("start", None)
            waveform = references.unsqueeze(member_axis) if member.batched else references
            result = member.context(waveform, self.sample_rate, **arguments)
            contexts = result.unbind(member_axis) if member.batched else (result,)
            for index, context_of_member in zip(group, contexts):
                context[self.members[index].name] = context_of_member
        return Measured(mask, tuple(values), context, references.shape[-1])


def _call_checked(
    member: Distortion,
    waveform: Tensor,
    sample_rate: int,
    arguments: Mapping[str, Any],
    count: int,
) -> Tensor:
    """Call an added member (or `count` of them, if batched); ValueError if it breaks a rule.

    It must leave its input as it is, and return a tensor of that shape.
    """
    before = None if waveform.is_inference() else waveform._version
    copy = member.function(waveform, sample_rate, **arguments)
    if before is not None and waveform._version != before:
        raise ValueError(
            f"distortion {member.name!r} changed its input in place: the members after it "
            f"would not distort the reference itself. Return a new tensor, e.g. of "
            f"wave.clone()."
        )
    shape = waveform.shape
    if member.batched:
        shape = torch.Size([*shape[:-2], count, shape[-1]])
    if not isinstance(copy, Tensor) or copy.shape != shape:
        got = tuple(copy.shape) if isinstance(copy, Tensor) else type(copy).__name__
        raise ValueError(
            f"distortion {member.name!r} must return a tensor of its input's shape "
            f"{tuple(shape)}, got {got}. Keep every leading axis and the length."
        )
    return copy


def _check_finite(name: str, copy: Tensor) -> None:
    # The sum is quick and catches every NaN and infinity; only if it is not finite check each
    # value.
    if not copy.sum().isfinite() and not copy.isfinite().all():
        raise ValueError(
            f"distortion {name!r} must return finite values, got NaN or infinity from "
            f"finite references. Guard its divisions and logarithms (a reference can be silent)."
        )
