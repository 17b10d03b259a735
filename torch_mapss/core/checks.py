"""Argument checks shared by all stages; every message says what is wrong and what to do.

Checks that read the values of a tensor (and so synchronise an accelerator)
say so; everything else looks at shapes and types alone.
"""

from __future__ import annotations

import importlib
import math
import numbers
import operator
import os
import sys
import warnings
from collections.abc import Iterable, Iterator, Mapping, Sequence, Set
from typing import Any

import numpy as np
import torch
from torch import Tensor

# Frames in these folders are skipped, so that a warning points at the user's own line.
_PACKAGE = os.path.dirname(os.path.dirname(__file__))
_INSIDE = tuple(path + os.sep for path in (_PACKAGE, os.path.dirname(torch.__file__)))


def warn_user(text: str) -> None:
    """Issue a UserWarning that points at the user's line that called the package."""
    level, frame = 2, sys._getframe(1)
    while frame.f_back is not None and frame.f_code.co_filename.startswith(_INSIDE):
        level, frame = level + 1, frame.f_back
    warnings.warn(text, UserWarning, stacklevel=level)


def import_package(name: str, user: str, hint: str = "") -> Any:
    """Import an optional package; ImportError, naming its ``user``, if it does not load."""
    try:
        return importlib.import_module(name)
    except Exception as error:  # not ImportError alone: a broken package may raise anything
        package = name.partition(".")[0]
        raise ImportError(
            f"{user} needs {package}, which does not load ({error}). Install it by `pip install "
            f"{package}`, in a version that fits this torch and Python{hint}."
        ) from error


def check_floating(tensor: object, name: str) -> Tensor:
    """Raise TypeError unless ``tensor`` is a dense, real floating-point tensor."""
    if isinstance(tensor, Tensor) and (tensor.is_nested or tensor.layout != torch.strided):
        kind = "nested" if tensor.is_nested else str(tensor.layout)
        raise TypeError(
            f"{name} must be a dense tensor, got a {kind} one. Pad it to one length "
            "(torch.nested.to_padded_tensor) or call .to_dense()."
        )
    if not isinstance(tensor, Tensor) or not tensor.dtype.is_floating_point:
        got = f"dtype {tensor.dtype}" if isinstance(tensor, Tensor) else type(tensor).__name__
        raise TypeError(
            f"{name} must be a real floating-point torch.Tensor, got {got}. Convert it first, and "
            "scale samples that are integers (16-bit PCM: x / 32768)."
        )
    return tensor


def check_real(value: Any, name: str, within: str = "", why: str = "") -> float:
    """``value`` as a float.

    Args:
        value: a number, or a tensor or array of one.
        name: name of the argument, for messages.
        within: interval that the value must lie in, such as ``"(0, 1]"`` or ``"[1, inf)"``.
        why: sentence added to the message about the range.

    Raises:
        TypeError: not a real number.
        ValueError: not finite, or out of the interval.
    """
    try:
        number = None if isinstance(value, str | bool) else float(value)
    except (TypeError, ValueError, RuntimeError):
        number = None
    if number is None:
        raise TypeError(f"{name} must be a number, got {value!r}. Pass a float.")
    if not math.isfinite(number):
        raise ValueError(f"{name} must be finite, got {value!r}.")
    if within:
        low, high = (float(end) for end in within[1:-1].split(","))
        above = number > low or (within[0] == "[" and number == low)
        if not (above and (number < high or (within[-1] == "]" and number == high))):
            rule = "be positive" if within == "(0, inf)" else f"lie in {within}"
            raise ValueError(f"{name} must {rule}, got {value!r}. {why}".rstrip())
    return number


def check_whole(value: Any, name: str, least: int | None = None, most: int | None = None) -> int:
    """``value`` as an int; a float is accepted where it is whole.

    Raises:
        TypeError: not a whole number.
        ValueError: below ``least`` or beyond ``most``.
    """
    if isinstance(value, Tensor) and value.numel() == 1:
        value = value.item()
    if isinstance(value, float) and value.is_integer():
        value = int(value)
    try:
        number = None if isinstance(value, bool) else operator.index(value)
    except TypeError:
        number = None
    if number is None:
        raise TypeError(f"{name} must be a whole number, got {value!r}. Pass an int.")
    if least is not None and number < least:
        raise ValueError(f"{name} must be at least {least}, got {number}.")
    if most is not None and number > most:
        raise ValueError(f"{name} must be at most {most}, got {number}.")
    return number


def check_seed(value: Any, name: str = "seed") -> int:
    """``value`` as a 64-bit int, as random generators take it. Raises as :func:`check_whole`."""
    return check_whole(value, name, -(2**63), 2**64 - 1)


def whole_numbers(values: Any, name: str) -> tuple[int, ...]:
    """A sequence, array or 1-D tensor of whole numbers, or a single one, as ints.

    Raises:
        TypeError: not a sequence, or an entry is not a whole number.
    """
    entries = values.tolist() if hasattr(values, "tolist") else values
    entries = (entries,) if isinstance(entries, int) else entries
    if isinstance(entries, str | bytes | Mapping | Set) or not isinstance(entries, Iterable):
        raise TypeError(
            f"{name} must be a sequence or 1-D tensor of whole numbers, got {values!r}."
        )
    entries = list(entries)
    try:
        return tuple(check_whole(entry, name) for entry in entries)
    except TypeError:
        raise TypeError(f"{name} must be whole numbers, got {entries!r}. Pass ints.") from None


def check_lengths(lengths: Any) -> tuple[int, ...]:
    """True lengths in samples as ints.

    Raises:
        TypeError: not a sequence of whole numbers.
        ValueError: fractions of the longest clip, which other toolkits pass with a padded batch.
    """
    entries = lengths.tolist() if hasattr(lengths, "tolist") else lengths
    if isinstance(entries, list | tuple):
        # No waveform is as short as a single sample, so numbers in (0, 1] are shares.
        shares = []
        for value in entries:
            is_number = isinstance(value, numbers.Real) and not isinstance(value, bool)
            shares.append(is_number and 0.0 < float(value) <= 1.0)
        if shares and all(shares):
            raise ValueError(
                f"lengths must count samples, got {list(entries)}, which look like shares of the "
                "longest. With T the padded length: lengths = (shares * T).round().long()."
            )
    return whole_numbers(lengths, "lengths")


def check_choice(value: str, name: str, choices: Sequence[str]) -> str:
    """Raise ValueError unless ``value`` is one of ``choices``."""
    if value not in choices:
        raise ValueError(f"{name} must be one of {', '.join(map(repr, choices))}, got {value!r}.")
    return value


def attributed_sources(attributed: Any) -> tuple[int, ...]:
    """The indices of an attribution (S',) as ints.

    Raises:
        TypeError: not whole numbers.
        ValueError: an attribution for each item of a batch.
    """
    entries = attributed.tolist() if hasattr(attributed, "tolist") else attributed
    if isinstance(entries, list | tuple) and any(isinstance(e, list | tuple) for e in entries):
        raise ValueError(
            f"attributed must have shape (S',), since one attribution holds for the whole batch, "
            f"got {entries!r}. Where the target differs by item, put its reference first in every "
            "item and pass attributed=(0,)."
        )
    return whole_numbers(attributed, "attributed")


def check_attributed(attributed: object, outputs: int, sources: int) -> tuple[int, ...]:
    """The source index of every output, validated.

    Args:
        attributed: None (all sources in order), or a sequence or 1-D integer tensor of length S'.
        outputs: number of outputs S'.
        sources: number of sources S.

    Raises:
        TypeError: not whole numbers.
        ValueError: another shape or length, an index outside [0, S), or one that occurs twice.
    """
    if attributed is None:
        if outputs != sources:
            raise ValueError(
                f"there are {outputs} estimates for {sources} references. Pass one estimate per "
                "reference in the same order, or attributed=(…) with the index of the reference "
                "each estimate belongs to, e.g. attributed=(0,) for the first one alone."
            )
        return tuple(range(sources))
    indices = attributed_sources(attributed)
    in_range = all(0 <= index < sources for index in indices)
    if len(indices) != outputs or len(set(indices)) != outputs or not in_range:
        raise ValueError(
            f"attributed must name one source for each of the {outputs} estimates, by different "
            f"indices from 0 to {sources - 1}, got {indices}. Score two estimates of one source in "
            "two calls; together they would change each other's graph."
        )
    return indices


def check_bool(mask: object, name: str, shape: tuple[int, ...]) -> Tensor:
    """``mask`` expanded to ``shape``; TypeError unless bool, ValueError if it does not fit."""
    if not isinstance(mask, Tensor) or mask.dtype != torch.bool:
        kind = mask.dtype if isinstance(mask, Tensor) else type(mask).__name__
        raise TypeError(f"{name} must be a bool tensor, got {kind}. Compare or cast it first.")
    try:
        return mask.expand(shape)
    except RuntimeError:
        raise ValueError(
            f"{name} must have shape {shape} (leading dimensions may be left out), got "
            f"{tuple(mask.shape)}."
        ) from None


def check_devices(**tensors: Tensor | None) -> torch.device:
    """Raise ValueError, naming the device of each, unless all tensors share one device."""
    devices = {name: tensor.device for name, tensor in tensors.items() if tensor is not None}
    if len(set(devices.values())) > 1:
        listed = ", ".join(f"{name} on {device}" for name, device in devices.items())
        raise ValueError(
            f"all inputs must be on one device, got {listed}. Move them with .to(device) first."
        )
    device = next(iter(devices.values()))
    if device.type == "meta":
        raise ValueError(
            f"{', '.join(devices)} are on the meta device, which holds shapes but no values, so "
            "there is nothing to score. Move the data to a real device."
        )
    return device


def describe_frame(frame: int, lead: torch.Size) -> str:
    """``frame``, an index into the flattened leading dimensions, in the caller's terms."""
    if len(lead) == 0:
        return "the frame"
    index = tuple(int(i) for i in np.unravel_index(frame, lead))
    return f"frame {index[0] if len(index) == 1 else index}"


def differing(
    expected: Mapping[str, Any], actual: Mapping[str, Any]
) -> Iterator[tuple[str, Any, Any]]:
    """Yield ``(key, expected, actual)`` where two nested mappings differ; keys as ``bank.size``."""
    for key in sorted({*expected, *actual}):
        expected_value, actual_value = expected.get(key), actual.get(key)
        if isinstance(expected_value, Mapping) and isinstance(actual_value, Mapping):
            for name, *values in differing(expected_value, actual_value):
                yield f"{key}.{name}", *values
        elif expected_value != actual_value:
            yield key, expected_value, actual_value
