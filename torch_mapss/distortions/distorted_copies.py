"""Distorted copies of references, and the measurements on the references that they need."""

from __future__ import annotations

import functools
import hashlib
import itertools
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from torch_mapss.distortions.bank_members import KINDS, paper_members
from torch_mapss.distortions.distortion import Distortion, Measured
from torch_mapss.distortions.noise import normals
from torch_mapss.distortions.reference_features import ReferenceFeatures

_PAPER = {member.name: member.function for kind in KINDS for member in paper_members(kind)}


def _noise(
    length: int, start: int = 0, *, seeds: list[list[int]] | list[int], reference: Tensor
) -> Tensor:
    """Standard normal numbers of ``seeds`` (S, [p]), from a first position on.

    Their shape is (S, [p,] length). They are drawn in float32 from integers, so that dtype and
    device change nothing.
    """
    seeds_tensor = torch.tensor(seeds, dtype=torch.int64, device=reference.device)
    return normals(seeds_tensor, start, length).to(reference.dtype)


def stable_seed(seed: int, source: int, name: str) -> int:
    """63-bit hash of seed, source index and member name, the same in every process."""
    digest = hashlib.sha256(f"{seed}/{source}/{name}".encode()).digest()
    return int.from_bytes(digest[:8], "big") >> 1


@dataclass(frozen=True)
class CopyTask:
    """Members of a bank, and the references (or a segment of them) to distort."""

    members: tuple[Distortion, ...]
    references: Tensor  # (..., S, T)
    sample_rate: int
    seed: int
    sources: tuple[int, ...]  # index of each of the S sources
    start: int  # position of the first sample in its signal

    def copies(self, members: slice, measured: Measured) -> Tensor:
        """Copies (..., S, p, T) by a slice of the members; the reference where one is absent."""
        copies = []
        for group in _groups(self.members[members], members.start):
            member = self.members[group[0]]
            made = self._made(group, measured)
            if member.measured:  # a measured member may be absent
                present = measured.mask[..., group.start : group.stop, None]
                made = torch.where(present, made, self.references.unsqueeze(-2))
            if _PAPER.get(member.name) != member.function:
                _check_finite(member.name, made)  # the paper's members stay finite
            copies.append(made)
        return torch.cat(copies, -2)

    def context(self, group: range, values: Sequence[dict[str, Tensor]]) -> dict[str, Tensor]:
        """Results of `Distortion.context` for a group of members, by name."""
        member = self.members[group[0]]
        if member.context is None:
            return {}
        arguments = self._arguments(group, values)
        arguments.pop("start", None)
        contexts = member.context(self._input(member), self.sample_rate, **arguments)
        if not member.batched:
            return {member.name: contexts}
        axis = self.references.ndim - 1
        return {self.members[i].name: context for i, context in zip(group, contexts.unbind(axis))}

    def _made(self, group: range, measured: Measured) -> Tensor:
        """Copies (..., S, p, T) by one group of members, checked."""
        member = self.members[group[0]]
        arguments = self._arguments(group, [measured.values[index] for index in group])
        if member.context is not None and measured.context:
            contexts = [measured.context[self.members[index].name] for index in group]
            axis = self.references.ndim - 1
            arguments["context"] = torch.stack(contexts, axis) if member.batched else contexts[0]
        references = self.references
        before = None if references.is_inference() else references._version
        copy = member.function(self._input(member), self.sample_rate, **arguments)
        if before is not None and references._version != before:
            raise ValueError(
                f"distortion {member.name!r} changed its input in place: the members after it "
                f"would distort something else than the reference. Return a new tensor, e.g. of "
                f"wave.clone()."
            )
        shape = references.shape
        if member.batched:
            shape = torch.Size([*shape[:-1], len(group), shape[-1]])
        if not isinstance(copy, Tensor) or copy.shape != shape:
            got = tuple(copy.shape) if isinstance(copy, Tensor) else type(copy).__name__
            raise ValueError(
                f"distortion {member.name!r} must return a tensor of its input's shape "
                f"{tuple(shape)}, got {got}. Keep every leading axis and the length."
            )
        return (copy if member.batched else copy.unsqueeze(-2)).to(references)

    def _input(self, member: Distortion) -> Tensor:
        return self.references.unsqueeze(-2) if member.batched else self.references

    def _arguments(self, group: range, values: Sequence[dict[str, Tensor]]) -> dict[str, Any]:
        """Keyword arguments for the call that makes the copies of a group."""
        leader = self.members[group[0]]
        members = [self.members[index] for index in group]
        arguments: dict[str, Any] = dict(leader.parameters)
        if leader.batched:
            for key, value in leader.parameters.items():
                if isinstance(value, float):
                    column = [[member.parameters[key]] for member in members]
                    arguments[key] = torch.tensor(column, dtype=torch.float64, device="cpu")
            for key in leader.measured:
                arguments[key] = torch.stack([value[key] for value in values], -2)
        else:
            arguments |= values[0]
        if leader.random:
            seeds: list[Any] = []
            for source in self.sources:
                row = [stable_seed(self.seed, source, member.name) for member in members]
                seeds.append(row if leader.batched else row[0])
            arguments["noise"] = functools.partial(_noise, seeds=seeds, reference=self.references)
        if leader.timed:
            arguments["start"] = self.start
        return arguments


def _groups(members: Sequence[Distortion], start: int) -> Iterator[range]:
    """Yield runs of neighbours that differ only in numbers, so that one call makes their copies."""
    for _, group in itertools.groupby(members, _formula):
        stop = start + len(list(group))
        yield range(start, stop)
        start = stop


def _formula(member: Distortion) -> tuple[Any, ...]:
    if not member.batched:
        return (member.name,)
    settings = {k: v if not isinstance(v, float) else None for k, v in member.parameters.items()}
    asked = tuple(member.measured)
    return member.function, member.context, member.random, member.timed, asked, settings


def measure_members(task: CopyTask, pieces: bool = False) -> Measured:
    """Measure what the members need of the references, and which members exist.

    Args:
        task: Task with the entire references.
        pieces: Also measure what members need for distorting segments.
    """
    features, members = ReferenceFeatures(task.references, task.sample_rate), task.members
    values = []
    for member in members:
        values.append({name: measure(features) for name, measure in member.measured.items()})
    context: dict[str, Tensor] = {}
    if pieces:
        for group in _groups(members, 0):
            context |= task.context(group, [values[index] for index in group])
    mask = _present(task, values)
    return Measured(mask, tuple(values), context, task.references.shape[-1])


def _present(task: CopyTask, values: Sequence[dict[str, Tensor]]) -> Tensor:
    """(..., S, P) bool, members that exist."""
    masks: list[Tensor] = []
    for i, member in enumerate(task.members):
        present = torch.ones_like(task.references[..., 0], dtype=torch.bool)
        for value in values[i].values():
            present = present & ~value.squeeze(-1).isnan()
        key = member.distinct
        for j in range(i):
            if key and key in values[j] and task.members[j].family == member.family:
                present = present & (values[i][key] != values[j][key]).squeeze(-1)
        masks.append(present)
    return torch.stack(masks, -1)


def _check_finite(name: str, copy: Tensor) -> None:
    # The sum is quick and catches every NaN and infinity; only if it is not finite check each
    # value.
    if not copy.sum().isfinite() and not copy.isfinite().all():
        raise ValueError(
            f"distortion {name!r} must return finite values, got NaN or infinity from "
            f"finite references. Guard its divisions and logarithms (a reference can be silent)."
        )


def check_references(references: Tensor) -> Tensor:
    """Check that a bank can distort the references, and return them.

    Raises:
        TypeError: They are not a float32 or float64 tensor.
        ValueError: They lack a source or sample axis, are empty, or are not finite.
    """
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
            "references must be finite, got NaN or infinity. Repair the file or the step before."
        )
    return references
