"""What a pretrained encoder is asked to be, and what its checkpoint says it is."""

from __future__ import annotations

import dataclasses
import os

import torch

from .base import MEMORY_BUDGET

ATTENTION = ("eager", "sdpa")


@dataclasses.dataclass(frozen=True)
class TransformerSettings:
    """Everything that is needed to load an encoder again."""

    name: str  # what the user asked for
    checkpoint: str  # folder or hub id
    layer: int | None = None  # None: the default of the architecture
    dtype: torch.dtype = torch.float32  # of the weights
    device: str = "cpu"  # of the weights
    attention: str | None = None  # "sdpa", "eager"; None: the faster one the architecture has
    local_files_only: bool = False  # never use the network
    cache_dir: str | None = None  # where the hub's files are kept
    memory_budget: int = MEMORY_BUDGET  # bytes of activations a chunk may take
    activation_checkpointing: bool = False  # encode again in the backward pass


@dataclasses.dataclass(frozen=True)
class Architecture:
    """What the checkpoint says about itself."""

    family: str  # its model_type
    sample_rate: int  # Hz
    hop: int  # samples between frames
    receptive_field: int  # samples a frame sees
    heads: int
    features: int  # M
    layers: int  # of the full model


def checked_layer(settings: TransformerSettings, architecture: Architecture, default: int) -> int:
    """The layer asked for, or the default.

    Raises:
        TypeError: it is no integer.
        ValueError: the model has no such layer.
    """
    layer = settings.layer
    if layer is None:
        return default
    if isinstance(layer, bool) or not isinstance(layer, int):
        raise TypeError(
            f"layer should be an integer, not {layer!r}: it counts transformer blocks. Pass 0 to "
            f"{architecture.layers}."
        )
    if not 0 <= layer <= architecture.layers:
        raise ValueError(
            f"layer should be from 0 to {architecture.layers} for encoder {settings.name!r}, but "
            f"is {layer}: 0 is what enters the first block, {architecture.layers} what leaves the "
            "last, and negative numbers do not count from the end. Pass one of these."
        )
    return layer


def checked_device(device: torch.device | str) -> torch.device:
    """With its index, so that "cuda" and "cuda:0" are one."""
    try:
        return torch.empty(0, device=device).device
    except (RuntimeError, AssertionError, NotImplementedError) as error:
        reason = str(error).strip().splitlines()[:1]
        raise ValueError(
            f"device {device!r} cannot be used here ({''.join(reason)}). Pass 'cpu', or a device "
            "that torch reports as available."
        ) from error


def settings_for(
    name: str,
    checkpoint: str,
    *,
    layer: int | None,
    dtype: torch.dtype | None,
    device: torch.device | str | None,
    attention: str | None,
    local_files_only: bool,
    cache_dir: str | os.PathLike[str] | None,
    memory_budget: int,
    activation_checkpointing: bool,
) -> TransformerSettings:
    """Settings from what a user passes: folders made absolute, defaults filled in.

    Raises:
        ValueError: attention is neither of those known.
    """
    if attention is not None and attention not in ATTENTION:
        raise ValueError(
            f"attention should be one of {', '.join(ATTENTION)} or None, not {attention!r}: "
            "other kinds are not tested here. Leave it out to get the faster one."
        )
    folder = os.path.expanduser(checkpoint)
    return TransformerSettings(
        name=name,
        checkpoint=os.path.abspath(folder) if os.path.isdir(folder) else checkpoint,
        layer=layer,
        dtype=dtype or torch.float32,
        device=str(device or "cpu"),
        attention=attention,
        local_files_only=local_files_only,
        cache_dir=None if cache_dir is None else os.path.abspath(os.fspath(cache_dir)),
        memory_budget=memory_budget,
        activation_checkpointing=activation_checkpointing,
    )
