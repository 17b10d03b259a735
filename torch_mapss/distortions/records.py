"""The records of a distortion bank: one member, and what the bank returns."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from torch import Tensor

from torch_mapss.distortions.traits import Traits


@dataclass(frozen=True)
class Distortion:
    """One member of a bank: a function of the waveform and the parameters it is called with.

    The function is called as ``function(waveform, sample_rate, **parameters)`` with a waveform of
    shape (..., T) and must return the same shape, finite. It must treat every row of the leading
    axes by itself (normalise along the last axis only), or an item would score differently
    alone and in a batch. Keep it at module level if the bank is to be pickled.

    Two members are equal if all their fields are.

    Args:
        name: Unique in its bank, by custom ``"family/setting"``.
        family: The group it is dropped with and counted in.
        function: ``(waveform (..., T), sample_rate, **parameters) -> (..., T)``.
        parameters: Keyword arguments, the same for every reference.
        measured: Keyword arguments taken from each reference: a callable from `Traits` to a
            tensor (..., 1), see `torch_mapss.distortions.traits`. NaN means that this reference
            has no such member, and its slot is masked.
        distinct: The measured argument that tells members of a family apart: where it equals that
            of an earlier member of the family, the two are one member and the later is masked.
        random: The function also gets ``noise``, a callable from a length to standard normal
            numbers (S, length), drawn from the bank's seed, the source index and the member's name.
        lowest_rate: In Hz; at lower sample rates the member does not exist.

    Raises:
        TypeError: If `name` or `family` is not a non-empty string or `function` not callable.
    """

    name: str
    family: str
    function: Callable[..., Tensor]
    parameters: Mapping[str, Any] = field(default_factory=dict)
    measured: Mapping[str, Callable[[Traits], Tensor]] = field(default_factory=dict)
    distinct: str | None = None
    random: bool = False
    lowest_rate: float = 0.0

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

    def __hash__(self) -> int:
        """Hash of name, family and function (parameters may be unhashable; equality sees them)."""
        return hash((self.name, self.family, self.function))


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
