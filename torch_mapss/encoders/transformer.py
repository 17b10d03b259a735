"""What all pretrained transformers share: layers, frozen weights held once, loading.

Layers are numbered as in the `hidden_states` of transformers: 0 is what enters the first
transformer block (convolutions and positions), k what leaves the k-th. The model is loaded with
that many blocks and no more, and equals the full model there.

An architecture is a subclass of `TransformerEncoder`: `wav2vec` (wav2vec 2.0, HuBERT, WavLM, MERT)
and `whisper`. It names the `model_type` of the checkpoints it reads, and is found by it.
"""

from __future__ import annotations

import copy
import dataclasses
from typing import Any, ClassVar, NamedTuple

import torch
from torch import Tensor, nn

from .base import MEMORY_BUDGET, Encoder
from .loading import (
    Checkpoint,
    find_checkpoint,
    import_transformers,
    moved_weights,
    shared_weights,
)

_CLASSES: dict[str, type[TransformerEncoder]] = {}  # by model_type


@dataclasses.dataclass(frozen=True)
class TransformerSettings:
    """Everything that is needed to load an encoder again."""

    name: str  # what the user asked for
    checkpoint: str  # folder or hub id
    layer: int | None = None  # None: the default of the architecture
    dtype: torch.dtype = torch.float32  # of the weights
    device: str = "cpu"  # of the weights
    local_files_only: bool = False  # never use the network
    cache_dir: str | None = None  # where the hub's files are stored
    memory_budget: int = MEMORY_BUDGET  # bytes of activations a chunk may take
    activation_checkpointing: bool = False  # encode again in the backward pass


class Description(NamedTuple):
    """What a checkpoint says of its full model."""

    config: Any  # its settings, as transformers holds them
    grid: dict[str, int]  # sample_rate, hop and receptive_field
    default_layer: int  # read when none is asked for
    maximum_samples: int | None = None  # the longest clip it accepts; None: no limit


class TransformerEncoder(Encoder):
    """Hidden states of one layer of a speech or music transformer. Use `load_encoder` to make one.

    A subclass names its `families` and writes `describe`, `load_model` and `_encode`.

    The weights are frozen and shared by all encoders with equal checkpoint, layer, dtype and
    device. They are freed when the last of these encoders is gone. Moving an encoder to another
    device gives it the weights of that device and leaves the others alone; `half()` and its like
    change nothing, for precision is a setting (`dtype`). Copies share the weights; a pickle holds
    the settings and reads the checkpoint again. `state_dict` is empty, for the same reason.

    Attributes:
        layers: transformer blocks of the full model.
        config: the settings of the full model, as transformers holds them.
    """

    families: ClassVar[tuple[str, ...]] = ()  # values of model_type in config.json
    settings: TransformerSettings
    model: Any

    def __init_subclass__(cls, **options: Any) -> None:
        super().__init_subclass__(**options)
        _CLASSES.update(dict.fromkeys(cls.families, cls))

    @classmethod
    def describe(cls, checkpoint: Checkpoint) -> Description:
        """Its settings, grid and default layer; ValueError if it is not supported."""
        raise NotImplementedError

    @classmethod
    def load_model(cls, checkpoint: Checkpoint, layer: int) -> Any:
        """The model with `layer` blocks, in float32 on the CPU."""
        raise NotImplementedError

    def __init__(
        self, settings: TransformerSettings, checkpoint: Checkpoint, found: Description, model: Any
    ) -> None:
        super().__init__(
            name=settings.name,
            feature_size=found.config.hidden_size,
            layer=settings.layer,
            dtype=settings.dtype,
            memory_budget=settings.memory_budget,
            activation_checkpointing=settings.activation_checkpointing,
            **found.grid,
        )
        self.settings = settings
        self.config = found.config
        self.layers = int(found.config.num_hidden_layers)
        self._longest = found.maximum_samples
        self.model = model

    @property
    def maximum_samples(self) -> int | None:
        """As many as there are positions for; None: there is no limit."""
        return self._longest

    @property
    def checkpoint(self) -> str:
        """Folder or hub id of the weights."""
        return self.settings.checkpoint

    @property
    def device(self) -> torch.device:
        """Where the weights are."""
        return torch.device(self.settings.device)

    def _check(self, waveform: Tensor) -> None:
        if isinstance(waveform, Tensor) and waveform.device != self.device:
            raise ValueError(
                f"waveform is on {waveform.device}, but encoder {self.name!r} is on {self.device}. "
                f"Move one: encoder.to({str(waveform.device)!r})."
            )
        super()._check(waveform)

    def _cast(self, waveform: Tensor) -> Tensor:
        # To the weights' dtype only after what comes before them, which would lose digits in half
        # precision: normalisation, or the log-mel spectrum.
        return waveform.to(torch.promote_types(waveform.dtype, torch.float32))

    def forward(self, waveform: Tensor) -> Tensor:
        """As `Encoder.forward`."""
        self.model.requires_grad_(False)  # a parent's requires_grad_() may have thawed them
        return super().forward(waveform)

    def _apply(self, fn: Any, recurse: bool = True) -> TransformerEncoder:
        # Called by to(), cuda(), half(), …: only the device is taken over, see the class.
        device = fn(torch.empty(0, dtype=self.settings.dtype, device=self.device)).device
        if device != self.device:
            self.model = moved_weights(self.model, device)
            self.settings = dataclasses.replace(self.settings, device=str(device))
        return self

    def state_dict(self, *args: Any, **kwargs: Any) -> dict[str, Any]:  # type: ignore[override]
        """Empty: weights come from the checkpoint and would only swell a training state."""
        destination = kwargs.get("destination", args[0] if args else None)
        return {} if destination is None else destination

    def _load_from_state_dict(
        self, state_dict: dict[str, Any], prefix: str, *args: Any, **kwargs: Any
    ) -> None:
        # The counterpart of state_dict(): the shared weights are never overwritten, and a strict
        # load misses nothing, whether or not the state was saved with them.
        own = self.model.state_dict(prefix=f"{prefix}model.")
        for name in [name for name in state_dict if name.startswith(prefix)]:
            del state_dict[name]
        state_dict.update(own)

    def __deepcopy__(self, memo: dict[int, Any]) -> TransformerEncoder:
        memo[id(self)] = clone = type(self).__new__(type(self))
        # Dictionaries of nn.Module are copied, the model in them is not.
        own = {k: copy.copy(v) if isinstance(v, dict) else v for k, v in self.__dict__.items()}
        clone.__dict__.update(own)
        return clone

    def __reduce__(self) -> tuple[Any, ...]:
        settings = dataclasses.replace(
            self.settings,
            memory_budget=self.memory_budget,
            activation_checkpointing=self.activation_checkpointing,
        )
        return _restore, (settings,)


# --- Loading ------------------------------------------------------------------------------------


def load_transformer(settings: TransformerSettings) -> TransformerEncoder:
    """Load an encoder; weights that an equal one already holds are shared.

    Raises:
        ImportError: transformers is not installed, or fails to import.
        TypeError: the layer is no integer.
        ValueError: the checkpoint is of another architecture, incomplete or damaged; the layer does
            not exist; the device is not available.
        OSError: the checkpoint is on the hub and cannot be fetched.
    """
    kind, checkpoint, found = described(
        settings.checkpoint, settings.local_files_only, settings.cache_dir
    )
    layer = _checked_layer(settings, found.default_layer, found.config.num_hidden_layers)
    device = checked_device(settings.device)
    settings = dataclasses.replace(settings, layer=layer, device=str(device))
    key = (checkpoint.fingerprint(), layer, settings.dtype, str(device))

    def build() -> nn.Module:
        model = kind.load_model(checkpoint, layer)
        return model.to(device, settings.dtype).eval().requires_grad_(False)

    return kind(settings, checkpoint, found, shared_weights(key, build))


def described(
    name: str, local_files_only: bool, cache_dir: str | None, weights: bool = True
) -> tuple[type[TransformerEncoder], Checkpoint, Description]:
    """The architecture of a checkpoint, where it is, and what it says of its full model.

    Args:
        name, local_files_only, cache_dir, weights: see `find_checkpoint`.
    """
    import_transformers()
    checkpoint = find_checkpoint(
        name, local_files_only=local_files_only, cache_dir=cache_dir, weights=weights
    )
    if checkpoint.family not in _CLASSES:
        raise unsupported(checkpoint)
    kind = _CLASSES[checkpoint.family]
    return kind, checkpoint, kind.describe(checkpoint)


def unsupported(checkpoint: Checkpoint, reason: str = "") -> ValueError:
    """The error for a checkpoint that is of none of the architectures."""
    return ValueError(
        f"checkpoint {checkpoint.name!r} has model_type {checkpoint.family!r}{reason}, but must "
        f"be one of {', '.join(_CLASSES)}. Wrap any other model in a callable, see as_encoder."
    )


def _checked_layer(settings: TransformerSettings, default: int, layers: int) -> int:
    layer = default if settings.layer is None else settings.layer
    if isinstance(layer, bool) or not isinstance(layer, int):
        raise TypeError(f"layer must be an integer from 0 to {layers}, not {layer!r}.")
    if not 0 <= layer <= layers:
        raise ValueError(
            f"layer must be from 0 to {layers} for encoder {settings.name!r}, but is {layer}: 0 is "
            f"what enters the first block, {layers} what leaves the last."
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


def _restore(settings: TransformerSettings) -> TransformerEncoder:
    """Unpickle: on the same device, or on the CPU where there is no such device."""
    try:
        checked_device(settings.device)
    except ValueError:
        settings = dataclasses.replace(settings, device="cpu")
    return load_transformer(settings)
