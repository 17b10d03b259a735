"""Base of all pretrained transformers: layers, frozen weights held once, loading.

Layers are numbered as in the `hidden_states` of transformers: 0 is the input of the first
transformer block (convolutions and positions), k the output of the k-th. The model is loaded with
only that many blocks, and equals the full model up to there.

An architecture is a subclass of `TransformerEncoder`: `wav2vec` (wav2vec 2.0, HuBERT, WavLM, MERT)
and `whisper`. Subclasses are registered for the values of `model_type` in their `families`.
"""

from __future__ import annotations

import copy
from typing import Any, ClassVar, NamedTuple

import torch
from torch import Tensor, nn

from torch_mapss.core.checks import check_whole
from torch_mapss.encoders.base import Encoder, EncoderRow
from torch_mapss.encoders.loading import (
    Checkpoint,
    find_checkpoint,
    import_transformers,
    moved_weights,
    shared_weights,
)

_CLASSES: dict[str, type[TransformerEncoder]] = {}  # by model_type


class Source(NamedTuple):
    """Arguments that an encoder was loaded with, see `load_encoder`; all that its pickle holds."""

    name: str  # as the user wrote it
    checkpoint: str  # absolute folder, or hub id
    layer: int | None  # None: the default of the architecture
    dtype: torch.dtype
    device: str
    local_files_only: bool
    cache_dir: str | None
    memory_budget: int
    activation_checkpointing: bool


class TransformerEncoder(Encoder):
    """Hidden states of one layer of a speech or music transformer. Use `load_encoder` to make one.

    A subclass states its `families` and implements `describe`, `load_model` and `_encode`.

    The weights are frozen and shared by all encoders with equal checkpoint, layer, dtype and
    device. They are freed when the last of these encoders is gone. Moving an encoder to another
    device gives it the shared weights of that device and leaves other encoders unchanged; `half()`
    and the like do nothing, since precision is a setting (`dtype`). Copies share the weights; a
    pickle holds the settings and reads the checkpoint again. `state_dict` and `parameters` are
    empty, because the weights belong to the shared `model`.

    Attributes:
        checkpoint: folder or hub id of the weights.
        device: device of the weights.
        layers: number of transformer blocks in the full model.
        config: settings of the full model, as a config of transformers.
        model: the part of the model that is used, with its weights.
    """

    settings = ("checkpoint", "layer", "dtype")
    families: ClassVar[tuple[str, ...]] = ()  # values of model_type in config.json
    dtype: torch.dtype
    model: Any

    def __init_subclass__(cls, **options: Any) -> None:
        super().__init_subclass__(**options)
        _CLASSES.update(dict.fromkeys(cls.families, cls))

    @classmethod
    def describe(cls, checkpoint: Checkpoint) -> tuple[Any, EncoderRow]:
        """A checkpoint's settings as a config of transformers, and its row of the table.

        Raises:
            ValueError: the checkpoint is not supported.
        """
        raise NotImplementedError

    @classmethod
    def load_model(cls, checkpoint: Checkpoint, layer: int) -> Any:
        """The model with `layer` blocks, in float32 on the CPU."""
        raise NotImplementedError

    def __init__(
        self, source: Source, checkpoint: Checkpoint, config: Any, row: EncoderRow, model: Any
    ) -> None:
        """Made by `load_transformer`, from its source and the parts found or loaded for it."""
        super().__init__(
            name=source.name,
            sample_rate=row.sample_rate,
            hop=row.hop,
            receptive_field=row.receptive_field,
            feature_size=config.hidden_size,
            layer=source.layer,
            maximum_samples=row.maximum_samples,
            dtype=source.dtype,
            memory_budget=source.memory_budget,
            activation_checkpointing=source.activation_checkpointing,
        )
        self._source = source
        self.checkpoint = source.checkpoint
        self.device = torch.device(source.device)
        self.config = config
        self.layers = int(config.num_hidden_layers)
        self._hold(model)

    def _hold(self, model: Any) -> None:
        # Not a submodule, so that the shared weights stay out of `state_dict` and a parent's
        # `requires_grad_` cannot unfreeze them.
        object.__setattr__(self, "model", model)

    def _check(self, waveform: Tensor) -> None:
        if isinstance(waveform, Tensor) and waveform.device != self.device:
            raise ValueError(
                f"waveform is on {waveform.device}, but encoder {self.name!r} is on {self.device}. "
                f"Move one: encoder.to({str(waveform.device)!r})."
            )
        super()._check(waveform)

    def _cast(self, waveform: Tensor) -> Tensor:
        # Cast to the weights' dtype only after normalisation or the log-mel spectrum, which would
        # lose digits in half precision.
        return waveform.to(torch.promote_types(waveform.dtype, torch.float32))

    def _apply(self, fn: Any, recurse: bool = True) -> TransformerEncoder:
        # Called by to(), cuda(), half(), …: only the device changes, see the class.
        device = fn(torch.empty(0, dtype=self.dtype, device=self.device)).device
        if device != self.device:
            self._hold(moved_weights(self.model, device))
            self.device = device
        return self

    def _load_from_state_dict(self, *args: Any, **kwargs: Any) -> None:
        """Do nothing: a state saved with weights must not overwrite the shared ones."""

    def __deepcopy__(self, memo: dict[int, Any]) -> TransformerEncoder:
        memo[id(self)] = clone = type(self).__new__(type(self))
        # Dictionaries of nn.Module are copied, the model in them is not.
        attributes = {
            k: copy.copy(v) if isinstance(v, dict) else v for k, v in self.__dict__.items()
        }
        clone.__dict__.update(attributes)
        return clone

    def __reduce__(self) -> tuple[Any, ...]:
        source = self._source._replace(
            device=str(self.device),
            memory_budget=self.memory_budget,
            activation_checkpointing=self.activation_checkpointing,
        )
        return _restore, (source,)


# --- Loading ------------------------------------------------------------------------------------


def load_transformer(source: Source) -> TransformerEncoder:
    """Load an encoder; weights that an equal encoder already holds are shared.

    Raises:
        ImportError: transformers is not installed, or fails to import.
        TypeError: the layer is not an integer.
        ValueError: the checkpoint has an unsupported architecture, or is incomplete or damaged; the
            layer does not exist; the device is not available.
        OSError: the checkpoint is on the hub and cannot be fetched.
    """
    lookup = source.local_files_only, source.cache_dir
    kind, files, config, row = described(source.checkpoint, *lookup)
    layers = int(config.num_hidden_layers)
    layer = check_whole(row.layer if source.layer is None else source.layer, "layer")
    if not 0 <= layer <= layers:
        raise ValueError(
            f"layer must be from 0 to {layers} for encoder {source.name!r}, but is {layer}: 0 is "
            f"the input of the first block, {layers} the output of the last."
        )
    device, dtype = checked_device(source.device), source.dtype

    def build() -> nn.Module:
        model = kind.load_model(files, layer)
        return model.to(device, dtype).eval().requires_grad_(False)

    model = shared_weights((files.fingerprint(), layer, dtype, str(device)), build)
    return kind(source._replace(layer=layer, device=str(device)), files, config, row, model)


def described(
    name: str,
    local_files_only: bool = False,
    cache_dir: str | None = None,
    weights: bool = True,
) -> tuple[type[TransformerEncoder], Checkpoint, Any, EncoderRow]:
    """Class for a checkpoint's architecture, its files, its config, and its row of the table.

    Args:
        name, local_files_only, cache_dir, weights: see `find_checkpoint`.
    """
    import_transformers()
    checkpoint = find_checkpoint(name, local_files_only, cache_dir, weights)
    if checkpoint.family not in _CLASSES:
        raise unsupported(checkpoint)
    kind = _CLASSES[checkpoint.family]
    return kind, checkpoint, *kind.describe(checkpoint)


def unsupported(checkpoint: Checkpoint, reason: str = "") -> ValueError:
    """The error for a checkpoint of an unsupported architecture."""
    return ValueError(
        f"checkpoint {checkpoint.name!r} has model_type {checkpoint.family!r}{reason}, but must "
        f"be one of {', '.join(_CLASSES)}. Wrap any other model in a callable, see as_encoder."
    )


def checked_device(device: torch.device | str) -> torch.device:
    """Check that a device is usable, and return it with its index ("cuda" as "cuda:0")."""
    try:
        return torch.empty(0, device=device).device
    except (RuntimeError, AssertionError, NotImplementedError) as error:
        reason = str(error).strip().splitlines()[:1]
        raise ValueError(
            f"device {device!r} cannot be used here ({''.join(reason)}). Pass 'cpu', or a device "
            "that torch reports as available."
        ) from error


def _restore(source: Source) -> TransformerEncoder:
    """Unpickle on the same device, or on the CPU if that device does not exist here."""
    try:
        checked_device(source.device)
    except ValueError:
        source = source._replace(device="cpu")
    return load_transformer(source)
