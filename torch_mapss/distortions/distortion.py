"""The records of a distortion bank: one member, and what the bank returns."""

from __future__ import annotations

import functools
import hashlib
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, fields
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor

from torch_mapss.distortions.reference_features import ReferenceFeatures


@dataclass(frozen=True, eq=False)
class Distortion:
    """One member of a bank: a function of the waveform and the parameters it is called with.

    The function is called as ``function(waveform, sample_rate, **parameters)`` with a waveform of
    shape (..., T) and must return the same shape, finite. It must treat every row of the leading
    axes by itself (normalise along the last axis only), or an item would score differently
    alone and in a batch. Keep it at module level if the bank is to be pickled.

    Two members are equal if all their fields are, tensors and arrays by their values.

    Args:
        name: Unique in its bank, by custom ``"family/setting"``.
        family: The group it is dropped with and counted in.
        function: ``(waveform (..., T), sample_rate, **parameters) -> (..., T)``.
        parameters: Keyword arguments, the same for every reference.
        measured: Keyword arguments taken from each reference: a callable from
            `ReferenceFeatures` to a tensor (..., 1), see the module of that name. NaN means that
            this reference has no such member, and its slot is masked.
        distinct: The measured argument that tells members of a family apart: where it equals that
            of an earlier member of the family, the two are one member and the later is masked.
        random: The function also gets ``noise``, a callable from a length (and the position of the
            first sample, default 0) to standard normal numbers (S, length), a function of the
            bank's seed, the source index, the member's name and the position.
        lowest_rate: In Hz; at lower sample rates the member does not exist.
        batched: The function takes several members at once: ``waveform`` is then (..., S, 1, T),
            floats in ``parameters`` are float64 CPU tensors (p, 1), ``measured`` arguments
            (..., S, p, 1), ``noise`` gives (S, p, length), and it returns (..., S, p, T). Members
            whose other parameters differ are called apart.
        reach: Seconds of the signal before and after a sample on which the copy depends there,
            apart from what is measured. None: not known; such a member needs the entire signal,
            and long files cannot be distorted in segments.
        timed: The function also gets ``start``, the position of the waveform's first sample in its
            signal: 0 unless it is given a segment of it.
        context: What the function must know of the entire signal when it is given a segment: called
            with the entire waveform and everything else the function gets, it returns a tensor,
            which the function then gets as ``context``.

    Raises:
        TypeError: If `name` or `family` is not a non-empty string or `function` not callable.
    """

    name: str
    family: str
    function: Callable[..., Tensor]
    parameters: Mapping[str, Any] = field(default_factory=dict)
    measured: Mapping[str, Callable[[ReferenceFeatures], Tensor]] = field(default_factory=dict)
    distinct: str | None = None
    random: bool = False
    lowest_rate: float = 0.0
    batched: bool = False
    reach: tuple[float, float] | None = None
    timed: bool = False
    context: Callable[..., Tensor] | None = None

    def __post_init__(self) -> None:
        for label in ("name", "family"):
            value = getattr(self, label)
            if not isinstance(value, str) or not value:
                raise TypeError(
                    f"a distortion's {label} must be a non-empty string, got {value!r}. "
                    f"Distortion takes (name, family, function, parameters) in this order."
                )
        if not callable(self.function):
            raise TypeError(
                f"the function of distortion {self.name!r} must be callable as (waveform, "
                f"sample_rate, **parameters), got {type(self.function).__name__}. "
                f"Distortion takes (name, family, function, parameters) in this order."
            )
        object.__setattr__(self, "parameters", dict(self.parameters))
        object.__setattr__(self, "measured", dict(self.measured))

    @functools.cached_property
    def description(self) -> str:
        """All fields as text, the same in every process: functions by name, tensors by content."""
        described = {field.name: _described(getattr(self, field.name)) for field in fields(self)}
        return str(described)

    def __eq__(self, other: object) -> bool:
        """Members of equal fields are equal."""
        if not isinstance(other, Distortion):
            return NotImplemented
        return self.function == other.function and self.description == other.description

    def __hash__(self) -> int:
        """Hash of all fields."""
        return hash(self.description)


def _described(value: Any) -> Any:
    if isinstance(value, Tensor):  # NumPy has no bfloat16
        plain = value.float() if value.dtype == torch.bfloat16 else value
        return f"{value.dtype} {_described(plain.detach().cpu().numpy())}"
    if isinstance(value, np.ndarray):
        content = hashlib.sha256(np.ascontiguousarray(value).tobytes()).hexdigest()
        return f"{value.dtype} {value.shape} {content}"
    if isinstance(value, Mapping):
        return sorted((str(key), _described(entry)) for key, entry in value.items())
    if isinstance(value, list | tuple):
        return [_described(entry) for entry in value]
    if isinstance(value, functools.partial):
        return [_described(piece) for piece in (value.func, value.args, value.keywords)]
    if hasattr(value, "__qualname__"):  # the repr of a function holds its address in memory
        return f"{value.__module__}.{value.__qualname__}"
    return repr(value)


class Measured(NamedTuple):
    """What a bank measured on entire references, to distort segments of them alike.

    Args:
        mask: (..., S, P) bool, true where the member exists for this reference.
        values: For each of the P members what it has measured, (..., S, 1) each.
        context: For each member that needs it the result of `Distortion.context`, (..., S, ...).
        length: T of the entire references.
    """

    mask: Tensor
    values: tuple[dict[str, Tensor], ...]
    context: dict[str, Tensor]
    length: int

    def of_sources(self, sources: slice) -> Measured:
        """The same for some of the S sources."""
        axis = self.mask.ndim - 2

        def pick(tensor: Tensor) -> Tensor:
            return tensor[(slice(None),) * axis + (sources,)]

        values = tuple(
            {key: pick(x) for key, x in member_values.items()} for member_values in self.values
        )
        context = {name: pick(x) for name, x in self.context.items()}
        return Measured(pick(self.mask), values, context, self.length)


class Distorted(NamedTuple):
    """Distorted references.

    Args:
        waveforms: (..., S, P, T), not loudness-normalised. A masked slot holds the reference.
        mask: (..., S, P) bool, true where the member exists for this reference.
        names: The P members, in the order of the P axis.
    """

    waveforms: Tensor
    mask: Tensor
    names: tuple[str, ...]
