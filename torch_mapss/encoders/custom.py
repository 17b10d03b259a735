"""Your own encoder behind the common interface."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Protocol, runtime_checkable

from torch import Tensor, nn

from .base import Encoder

_REQUIRED = ("sample_rate", "hop", "receptive_field")


@runtime_checkable
class EncoderLike(Protocol):
    """What your own encoder must offer: three numbers, and a call from (N, T) to (N, F, M).

    F must be `(T - receptive_field) // hop + 1`; features must be floating point.
    """

    sample_rate: int
    hop: int
    receptive_field: int

    def __call__(self, waveform: Tensor, /) -> Tensor:
        """(N, T) -> (N, F, M)."""
        ...


class CustomEncoder(Encoder):
    """Any callable with the attributes of `EncoderLike`, checked at every call.

    A module is frozen and held in evaluation mode: a measure that learns measures nothing.

    Args:
        function: the callable or module; optional attributes are `name`, `layer`, `feature_size`.

    Raises:
        TypeError: it cannot be called or lacks an attribute.
    """

    def __init__(self, function: Callable[[Tensor], Tensor]) -> None:
        grid = _read_grid(function)
        super().__init__(
            name=str(getattr(function, "name", type(function).__name__)),
            feature_size=getattr(function, "feature_size", None),
            layer=getattr(function, "layer", None),
            sample_rate=grid["sample_rate"],
            hop=grid["hop"],
            receptive_field=grid["receptive_field"],
        )
        self.function = function
        if isinstance(function, nn.Module):
            function.requires_grad_(False)
            self.eval()

    def _encode_in_chunks(self, flat: Tensor) -> Tensor:
        return self._encode(flat)  # what a user's model needs per item is not known

    def _encode(self, flat: Tensor) -> Tensor:
        embeddings = self.function(flat)
        self._check_output(embeddings, flat)
        return embeddings

    def _check_output(self, embeddings: Any, flat: Tensor) -> None:
        expected = (flat.shape[0], self.frame_count(flat.shape[-1]))
        found = tuple(getattr(embeddings, "shape", ()))
        if not isinstance(embeddings, Tensor) or len(found) != 3 or found[:2] != expected:
            raise ValueError(
                f"encoder {self.name!r} should turn a waveform of shape {tuple(flat.shape)} into "
                f"features of shape ({expected[0]}, {expected[1]}, M), but gave "
                f"{found or type(embeddings).__name__}. Frames would lie at other times than hop "
                f"{self.hop} and receptive field {self.receptive_field} say: set these to what "
                "the encoder does, or trim its output."
            )


def _read_grid(function: Any) -> dict[str, int]:
    missing = [name for name in _REQUIRED if not hasattr(function, name)]
    if missing or not callable(function):
        raise TypeError(
            f"an encoder should be callable and have {', '.join(_REQUIRED)}, but "
            f"{type(function).__name__} lacks {', '.join(missing) or 'the call'}. Without them the "
            "frames have no place in time: set them as attributes, in Hz and samples."
        )
    return {name: int(getattr(function, name)) for name in _REQUIRED}
