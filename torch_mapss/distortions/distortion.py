"""Records of a distortion bank: a member, its measurements, and the bank's result."""

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
    """Member of a distortion bank: a function of the waveform, and the parameters to call it with.

    The function is called as ``function(waveform, sample_rate, **parameters)`` with a waveform of
    shape (..., T) and must return the same shape, finite. It must treat each row of the leading
    axes separately (normalise along the last axis only), or an item would score differently alone
    and in a batch. Define it at module level if the bank is to be pickled.

    Two members are equal if all their fields are, tensors and arrays by their values.

    Args:
        name: Unique in its bank, conventionally ``"family/setting"``.
        family: Its group, by which members can be selected or left out.
        function: ``(waveform (..., T), sample_rate, **parameters) -> (..., T)``.
        parameters: Keyword arguments that are the same for every reference.
        measured: Keyword arguments measured on each reference, each a callable from
            `ReferenceFeatures` to a tensor (..., 1). NaN means that this reference lacks the
            member, and its slot is masked.
        distinct: Name of the measured argument that tells members of a family apart: a member whose
            value equals that of an earlier member of its family is masked as a duplicate.
        random: The function also gets ``noise``, a callable that takes a length (and the position
            of the first sample, default 0) and returns standard normal numbers (S, length). They
            depend only on the bank's seed, the source index, the member's name and the position.
        lowest_rate: In Hz; at lower sample rates the member does not exist.
        batched: The function takes several members at once: ``waveform`` is then (..., S, 1, T),
            floats in ``parameters`` are float64 CPU tensors (p, 1), ``measured`` arguments (..., S,
            p, 1), ``noise`` gives (S, p, length), and it returns (..., S, p, T). Members whose
            other parameters differ are called separately.
        reach: Seconds of the signal before and after a sample that the copy of this sample depends
            on, apart from what is measured. None: unknown; such a member needs the entire signal,
            and long files cannot be distorted in segments.
        timed: The function also gets ``start``, the position of the waveform's first sample in the
            entire signal: 0 unless the waveform is a segment.
        context: Function that measures what distorting a segment requires of the entire signal. It
            is called with the entire waveform and the other arguments of `function`, and returns a
            tensor, which `function` then gets as ``context``.

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
        """Members with equal fields are equal."""
        if not isinstance(other, Distortion):
            return NotImplemented
        if self.name != other.name or self.function != other.function:  # the quickest to compare
            return False
        return self.description == other.description

    def __hash__(self) -> int:
        """Hash of the name, which equal members share."""
        return hash(self.name)


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
    """Measurements on entire references, by which a distortion bank treats segments consistently.

    Args:
        mask: (..., S, P) bool, true where the member exists for this reference.
        values: Measured arguments of each of the P members by name, (..., S, 1) each.
        context: Results of `Distortion.context` by member name, (..., S, ...).
        length: Length T of the entire references.
    """

    mask: Tensor
    values: tuple[dict[str, Tensor], ...]
    context: dict[str, Tensor]
    length: int

    def of_sources(self, sources: slice) -> Measured:
        """Measurements of a slice of the S sources."""
        index = (slice(None),) * (self.mask.ndim - 2) + (sources,)
        values = []
        for arguments in self.values:
            values.append({name: value[index] for name, value in arguments.items()})
        context = {name: tensor[index] for name, tensor in self.context.items()}
        return Measured(self.mask[index], tuple(values), context, self.length)


class Distorted(NamedTuple):
    """Distorted copies of references.

    Args:
        waveforms: (..., S, P, T), not loudness-normalised. Masked slots hold the reference.
        mask: (..., S, P) bool, true where the member exists for this reference.
        names: The P members, in the order of the P axis.
    """

    waveforms: Tensor
    mask: Tensor
    names: tuple[str, ...]
