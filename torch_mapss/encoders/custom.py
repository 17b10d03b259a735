"""Custom encoders: your own callable behind the common interface."""

from __future__ import annotations

import copy
from collections.abc import Callable
from typing import Any

from torch import Tensor, nn

from torch_mapss.encoders.base import Encoder

_GRID = ("sample_rate", "hop", "receptive_field")


class CustomEncoder(Encoder):
    """Wraps a callable from (N, T) to (N, F, M) that states the grid of its frames.

    The callable must have the attributes `sample_rate`, `hop` and `receptive_field`. Every call
    checks that F is `(T - receptive_field) // hop + 1` and that the features are floating point.

    A module is frozen and put in evaluation mode again on every call, because it may also belong to
    a model in training: otherwise training would change the measure, and a measure that learns
    measures nothing. It gets waveforms in the dtype of its weights, which `half()` and the like on
    the encoder do not change. Copies share the module until one of them moves to another device.

    Args:
        function: the callable or module; optional attributes are `name`, `layer`, `feature_size`
            and `local` (see `Encoder`).
        activation_checkpointing: see `Encoder`.

    Raises:
        TypeError: it cannot be called or lacks an attribute.
    """

    def __init__(
        self, function: Callable[[Tensor], Tensor], *, activation_checkpointing: bool = False
    ) -> None:
        missing = [name for name in _GRID if not hasattr(function, name)]
        if missing or not callable(function):
            raise TypeError(
                f"an encoder should be callable and have {', '.join(_GRID)}, but "
                f"{type(function).__name__} lacks {', '.join(missing) or 'the call'}. Without them "
                "the frames have no place in time: set them as attributes, in Hz and samples."
            )
        grid: dict[str, Any] = {name: int(getattr(function, name)) for name in _GRID}
        super().__init__(
            name=str(getattr(function, "name", type(function).__name__)),
            feature_size=getattr(function, "feature_size", None),
            layer=getattr(function, "layer", None),
            activation_checkpointing=activation_checkpointing,
            **grid,
        )
        self.local = bool(getattr(function, "local", False))
        self.function = function
        self._shared = False  # whether a copy of this encoder holds the same module
        if isinstance(function, nn.Module):
            function.eval().requires_grad_(False)

    def _cast(self, waveform: Tensor) -> Tensor:
        # A module's layers accept only the dtype of their weights.
        for weight in (*self.parameters(), *self.buffers()):
            if weight.is_floating_point():
                return waveform.to(weight.dtype)
        return super()._cast(waveform)

    def _item_bytes(self, samples: int) -> int:
        return 0  # unknown: a batch is encoded at once

    def _encode(self, flat: Tensor) -> Tensor:
        if isinstance(self.function, nn.Module):  # it may belong to a model that is being trained
            self.function.eval().requires_grad_(False)
        return self.function(flat)

    def _apply(self, fn: Any, recurse: bool = True) -> CustomEncoder:
        # Called by to(), half(), …: the device changes, the precision stays the module's own.
        weights = [*self.parameters(), *self.buffers()]
        if self._shared and any(fn(x.new_empty(0)).device != x.device for x in weights):
            self.function = copy.deepcopy(self.function)  # the copy's stays where it is
            self._shared = False
        return super()._apply(lambda x: x.to(fn(x.new_empty(0)).device), recurse)

    def __deepcopy__(self, memo: dict[int, Any]) -> CustomEncoder:
        twin = type(self)(self.function, activation_checkpointing=self.activation_checkpointing)
        memo[id(self)] = twin
        twin._shared = self._shared = isinstance(self.function, nn.Module)
        return twin
