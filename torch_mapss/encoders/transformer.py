"""What all pretrained transformers share: layers, frozen weights held once, loading.

Layers are numbered as in the `hidden_states` of transformers: 0 is what enters the first
transformer block (convolutions and positions), k what leaves the k-th. The model is built with that
many blocks and no more, and equals the full model there.

An architecture is a subclass of `TransformerEncoder`: `wav2vec` (wav2vec 2.0, HuBERT, WavLM, MERT)
and `whisper`. It names the `model_type` of the checkpoints it reads, and is found by it.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from typing import Any, ClassVar

import torch
from torch import Tensor, nn

from .base import Encode, Encoder
from .building import filled, import_transformers
from .checkpoint import Checkpoint, find_checkpoint
from .settings import Architecture, TransformerSettings, checked_device, checked_layer
from .sharing import moved_weights, shared_weights

_CLASSES: dict[str, type[TransformerEncoder]] = {}  # by model_type


class TransformerEncoder(Encoder):
    """Hidden states of one layer of a speech or music transformer. Use `load_encoder` to make one.

    A subclass names its `families` and writes `read_architecture`, `empty_model`, `default_layer`
    and `_states`. Its clips may share batches with others of another length if it says so by
    `joins`, and lets no frame see the padding behind the `lengths` that `_states` is then told.

    The weights are frozen and shared by all encoders with equal checkpoint, layer, dtype and
    device. They are freed when the last of these encoders is gone. Moving an encoder to another
    device gives it the weights of that device and leaves the others alone; `half()` and its like
    change nothing, for precision is a setting (`dtype`). Copies share the weights; a pickle holds
    the settings and reads the checkpoint again. `state_dict` holds nothing, for the same reason.

    Args:
        settings: what was asked for.
        architecture: what the checkpoint says.
        model: the frozen model.
    """

    families: ClassVar[tuple[str, ...]] = ()  # values of model_type in config.json
    settings: TransformerSettings
    model: Any

    def __init_subclass__(cls, **options: Any) -> None:
        super().__init_subclass__(**options)
        _CLASSES.update(dict.fromkeys(cls.families, cls))

    @classmethod
    def read_architecture(cls, checkpoint: Checkpoint) -> Architecture:
        """What the checkpoint's JSON files say; ValueError if it cannot be built here."""
        raise NotImplementedError

    @classmethod
    def empty_model(
        cls, checkpoint: Checkpoint, architecture: Architecture, settings: TransformerSettings
    ) -> Any:
        """The model up to the layer, without storage (on the device "meta")."""
        raise NotImplementedError

    @classmethod
    def default_layer(cls, architecture: Architecture) -> int:
        """The layer to read when none is asked for."""
        raise NotImplementedError

    def __init__(self, settings: TransformerSettings, architecture: Any, model: nn.Module) -> None:
        super().__init__(
            name=settings.name,
            sample_rate=architecture.sample_rate,
            hop=architecture.hop,
            receptive_field=architecture.receptive_field,
            feature_size=architecture.features,
            layer=settings.layer,
            dtype=settings.dtype,
            memory_budget=settings.memory_budget,
            activation_checkpointing=settings.activation_checkpointing,
        )
        self.settings = settings
        self.architecture = architecture
        self.model = model

    @property
    def checkpoint(self) -> str:
        """Folder or hub id of the weights."""
        return self.settings.checkpoint

    @property
    def device(self) -> torch.device:
        """Where the weights are."""
        return torch.device(self.settings.device)

    @property
    def depth(self) -> int:
        """Transformer blocks that are built: `layer`, as a number."""
        return self.settings.layer or 0

    def _check(self, waveform: Tensor) -> None:
        if isinstance(waveform, Tensor) and waveform.device != self.device:
            raise ValueError(
                f"waveform is on {waveform.device}, but encoder {self.name!r} is on {self.device}: "
                f"they cannot meet. Move one: encoder.to({str(waveform.device)!r})."
            )
        super()._check(waveform)

    def _cast(self, waveform: Tensor) -> Tensor:
        # To the weights' dtype only after what comes before them, which would lose digits in half
        # precision: normalisation, or the log-mel spectrum.
        return waveform.to(torch.promote_types(waveform.dtype, torch.float32))

    def _encode(self, flat: Tensor) -> Tensor:
        return self._lifted(self._hidden, flat)

    def _encode_padded(self, flat: Tensor, lengths: tuple[int, ...]) -> Tensor:
        return self._lifted(lambda waves: self._hidden(waves, lengths), flat)

    def _encode_states(self, flat: Tensor) -> Tensor:
        return self._lifted(lambda waves: torch.cat([*self._states(waves)], -1), flat)

    def _lifted(self, encode: Encode, flat: Tensor) -> Tensor:
        self.model.requires_grad_(False)  # a parent's requires_grad_() may have thawed them
        found = encode(flat)
        return found.to(torch.promote_types(found.dtype, torch.float32))

    def _hidden(self, flat: Tensor, lengths: tuple[int, ...] | None = None) -> Tensor:
        """(N, T) -> (N, F, M), the layer asked for."""
        return self._states(flat, lengths)[-1]

    def _states(self, flat: Tensor, lengths: tuple[int, ...] | None = None) -> Sequence[Tensor]:
        """(N, T) -> layers 0 to the one asked for, each (N, F, M).

        `lengths` (N,) are the true ones, in samples, of waveforms padded with zeros; None: all are
        T long.
        """
        raise NotImplementedError

    def hidden_states(self, waveform: Tensor) -> tuple[Tensor, ...]:
        """Every layer from 0 to `layer` in one pass, at the cost of the last alone.

        Args:
            waveform: (..., T), as for a call.

        Returns:
            `layer + 1` tensors (..., F, M); the k-th equals what the same checkpoint gives when
            loaded with `layer=k`.

        Raises:
            TypeError, ValueError: as a call does.
        """
        size = self.architecture.features
        joined = self._encoded(waveform, self._encode_states, (self.depth + 1) * size)
        return joined.split(size, -1)

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
        clone = type(self)(self._current_settings(), self.architecture, self.model)
        memo[id(self)] = clone
        return clone

    def __reduce__(self) -> tuple[Any, ...]:
        return _restore, (self._current_settings(),)

    def _current_settings(self) -> TransformerSettings:
        return dataclasses.replace(
            self.settings,
            memory_budget=self.memory_budget,
            activation_checkpointing=self.activation_checkpointing,
        )


# --- Loading ------------------------------------------------------------------------------------


def load_transformer(settings: TransformerSettings) -> TransformerEncoder:
    """Load an encoder; weights that an equal one already holds are shared.

    Raises:
        ImportError: transformers is not installed, or fails to import.
        ValueError: the checkpoint is of another architecture, incomplete or damaged; the layer does
            not exist; the device or attention is not available.
        OSError: the checkpoint is on the hub and cannot be fetched.
    """
    import_transformers()
    checkpoint = find_checkpoint(
        settings.checkpoint,
        local_files_only=settings.local_files_only,
        cache_dir=settings.cache_dir,
    )
    kind = _class_for(checkpoint)
    architecture = kind.read_architecture(checkpoint)
    layer = checked_layer(settings, architecture, kind.default_layer(architecture))
    device = checked_device(settings.device)
    settings = dataclasses.replace(settings, layer=layer, device=str(device))
    key = (checkpoint.fingerprint(), layer, settings.dtype, settings.attention, str(device))

    def build() -> nn.Module:
        empty = kind.empty_model(checkpoint, architecture, settings)
        return filled(empty, checkpoint, settings)

    return kind(settings, architecture, shared_weights(key, build))


def _class_for(checkpoint: Checkpoint) -> type[TransformerEncoder]:
    """The subclass that reads such checkpoints."""
    family = checkpoint.config.get("model_type")
    if family not in _CLASSES:
        raise ValueError(unknown_family(checkpoint))
    return _CLASSES[family]


def unknown_family(checkpoint: Checkpoint, reason: str = "") -> str:
    """The message for a checkpoint that is of none of the architectures."""
    family = checkpoint.config.get("model_type")
    return (
        f"an encoder should be one of {', '.join(_CLASSES)}, but checkpoint {checkpoint.name!r} is "
        f"{family!r}{reason}: it cannot be built here. Wrap it in a module of your own, see "
        "as_encoder."
    )


def _restore(settings: TransformerSettings) -> TransformerEncoder:
    """Unpickle: on the same device, or on the CPU where there is no such device."""
    try:
        checked_device(settings.device)
    except ValueError:
        settings = dataclasses.replace(settings, device="cpu")
    return load_transformer(settings)
