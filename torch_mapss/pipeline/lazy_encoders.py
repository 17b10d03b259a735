"""The encoders of a scorer, each of which is loaded at its first use."""

from __future__ import annotations

import math
import os
from collections.abc import Callable, Mapping
from functools import cached_property
from typing import Any

import torch
from torch import Tensor

from torch_mapss.core import checks
from torch_mapss.encoders import (
    Encoder,
    EncoderRow,
    as_encoder,
    encoder_row,
    known_row,
    mel_on_grid,
)
from torch_mapss.encoders.registry import as_dtype, checkpoint_of

EncoderChoice = str | os.PathLike[str] | Encoder | Callable[[Tensor], Tensor]


class LazyEncoder:
    """An encoder that is loaded at its first use.

    The rate and frames of a pretrained encoder are known without its weights.

    Args:
        choice: the encoder as a user passes it.
        options: options of :func:`torch_mapss.load_encoder`, if it is a name; None stands for the
            default.
        frames_of: another encoder, for the name "mel" only: the log-mel spectra are computed on
            the rate, hop and receptive field of that encoder. None: on mel's own.

    Raises:
        TypeError, ValueError: neither an encoder nor the name of one.
    """

    def __init__(
        self,
        choice: EncoderChoice,
        options: Mapping[str, Any],
        frames_of: LazyEncoder | None = None,
    ) -> None:
        self.choice = os.fspath(choice) if isinstance(choice, os.PathLike) else choice
        self._frames_of = frames_of
        self.options = {name: value for name, value in options.items() if value is not None}
        # Name, folder or hub id of weights on disk; None: it has none, or was passed already made.
        self.checkpoint: str | None = None
        # Whether its rate and frames are known without reading files.
        self.is_known: bool = frames_of is None or frames_of.is_known
        self._encoder: Encoder | None = None
        if isinstance(self.choice, str):
            row = known_row(self.choice)
            if row is None or row.needs_download:
                checkpoint_of(self.choice)
                self.checkpoint, self.is_known = self.choice, row is not None
        if self.checkpoint is None and self.is_known:
            self.load()
        #: Name for tables and messages.
        self.name = self.choice if isinstance(self.choice, str) else self.load().name

    def load(self) -> Encoder:
        """The encoder, loaded at its first use."""
        if self._encoder is None and self._frames_of is not None:
            frames = self._frames_of.frames
            self._encoder = mel_on_grid(frames.sample_rate, frames.hop, frames.receptive_field)
        elif self._encoder is None:
            self._encoder = as_encoder(self.choice, **self.options)
        return self._encoder

    @cached_property
    def frames(self) -> EncoderRow | Encoder:
        """Object with ``sample_rate``, ``hop`` and ``receptive_field``; loads no weights."""
        if self.checkpoint is None:
            return self.load()
        return encoder_row(self.checkpoint, **self.options)

    def __repr__(self) -> str:
        """The encoder's name."""
        return repr(self.name)

    @property
    def pretrained(self) -> bool:
        """Whether the encoder is a transformer."""
        return self.checkpoint is not None or hasattr(self._encoder, "checkpoint")

    @cached_property
    def seconds(self) -> float:
        """Maximum clip duration in seconds."""
        samples = self.frames.maximum_samples
        return samples / self.frames.sample_rate if samples else math.inf

    @property
    def device(self) -> torch.device:
        """Device of its weights, loaded or not; the CPU if it has none."""
        if self._encoder is None:
            return torch.device(self.options.get("device", "cpu"))
        module = getattr(self._encoder, "model", self._encoder)
        tensors = (*module.parameters(), *module.buffers())
        return tensors[0].device if tensors else torch.device("cpu")

    def move(self, change: Callable[[Tensor], Tensor]) -> None:
        """Apply ``nn.Module.to`` or the like; an encoder not yet loaded will be loaded there."""
        # Also raises for an unavailable device when there are no weights.
        moved = change(torch.empty(0, device=self.device)).device
        if self._encoder is not None:
            self._encoder._apply(change)
        else:
            self.options["device"] = moved

    def describe(self) -> dict[str, Any]:
        """Settings that its embeddings depend on, as plain values."""
        frames = self.frames
        if isinstance(frames, EncoderRow):  # the settings of a TransformerEncoder
            layer = self.options.get("layer", frames.layer)
            dtype = as_dtype(self.options.get("dtype")) or torch.float32
            settings = {"checkpoint": frames.checkpoint, "layer": layer, "dtype": dtype}
        else:
            settings = {name: getattr(frames, name, None) for name in frames.settings}
        settings = {"name": self.name, **settings}
        settings |= {
            name: getattr(frames, name) for name in ("sample_rate", "hop", "receptive_field")
        }
        return {
            name: str(value) if isinstance(value, torch.dtype) else value
            for name, value in settings.items()
            if isinstance(value, str | int | float | bool | torch.dtype)
        }


def lazy_encoders(
    encoder: EncoderChoice,
    match_encoder: EncoderChoice | None,
    decomposition_encoder: EncoderChoice,
    options: dict[str, Any],
    decomposition_layer: int | None = None,
) -> dict[str, LazyEncoder]:
    """Encoders by argument of :class:`~torch_mapss.MAPSS`.

    An argument that equals ``encoder`` (the same object, or the same name and layer) shares its
    :class:`LazyEncoder`, so that it is loaded once and encodes once. A decomposition encoder "mel"
    always has one of its own, on the frames of ``encoder``.
    """
    of_separation = LazyEncoder(encoder, options)

    def lazy_encoder(choice: EncoderChoice, layer: int | None = None) -> LazyEncoder:
        if not isinstance(choice, str | os.PathLike):
            return of_separation if choice is encoder else LazyEncoder(choice, {})
        is_equal = os.fspath(choice) == of_separation.choice and layer == options["layer"]
        return of_separation if is_equal else LazyEncoder(choice, {**options, "layer": layer})

    if decomposition_layer is not None:
        _check_layered(decomposition_encoder, decomposition_layer)

    if decomposition_encoder == "mel":  # on the frames of PS's encoder
        of_decomposition = LazyEncoder(decomposition_encoder, {}, frames_of=of_separation)
    else:
        of_decomposition = lazy_encoder(decomposition_encoder, decomposition_layer)
    if of_decomposition.pretrained:
        checks.warn_user(
            f"decomposition_encoder={of_decomposition.name!r} is a transformer: from its layer 1 "
            "on, fidelity follows the noise in an output instead of its distortion. 'mel' is the "
            "default."
        )
    return {
        "encoder": of_separation,
        "match_encoder": of_separation if match_encoder is None else lazy_encoder(match_encoder),
        "decomposition_encoder": of_decomposition,
    }


def _check_layered(decomposition_encoder: EncoderChoice, layer: int) -> None:
    """Raise ValueError for a layer of an encoder that has none or is already made."""
    message = f"decomposition_layer={layer} was passed, but decomposition_encoder"
    if not isinstance(decomposition_encoder, str | os.PathLike):
        raise ValueError(
            f"{message} is an encoder that is already made. Choose its layer there: "
            f"load_encoder(NAME, layer={layer})."
        )
    row = known_row(os.fspath(decomposition_encoder))
    if row is not None and not row.needs_download:
        raise ValueError(
            f"{message} {row.name!r} has no layers. Name the pretrained encoder with that layer "
            "(decomposition_encoder=, --pair-encoder), or leave the layer out."
        )
