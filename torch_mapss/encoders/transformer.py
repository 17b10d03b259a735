"""What all pretrained transformers share: layers, frozen weights held once, loading.

Layers are numbered as in the `hidden_states` of transformers: 0 is what enters the first
transformer block (convolutions and positions), k what leaves the k-th. The model is built with that
many blocks and no more, and equals the full model there.

An architecture is a subclass of `TransformerEncoder`: `wav2vec` (wav2vec 2.0, HuBERT, WavLM, MERT)
and `whisper`. It names the `model_type` of the checkpoints it reads, and is found by it.
"""

from __future__ import annotations

import copy
import dataclasses
import os
import threading
import weakref
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any, ClassVar

import torch
from torch import Tensor, nn

from .base import MEMORY_BUDGET, Encode, Encoder
from .checkpoint import Checkpoint, find_checkpoint, read_tensors

ATTENTION = ("eager", "sdpa")
_CLASSES: dict[str, type[TransformerEncoder]] = {}  # by model_type


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


class TransformerEncoder(Encoder):
    """Hidden states of one layer of a speech or music transformer. Use `load_encoder` to make one.

    A subclass names its `families` and writes `read_architecture`, `empty_model`, `default_layer`
    and `_states`.

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

    def forward(self, waveform: Tensor) -> Tensor:
        """See `Encoder.forward`. Computes in `dtype` and returns float32 or better."""
        self._check_device(waveform)
        return super().forward(waveform)

    def _check_device(self, waveform: Tensor) -> None:
        if isinstance(waveform, Tensor) and waveform.device != self.device:
            raise ValueError(
                f"waveform is on {waveform.device}, but encoder {self.name!r} is on {self.device}: "
                f"they cannot meet. Move one: encoder.to({str(waveform.device)!r})."
            )

    def _cast(self, waveform: Tensor) -> Tensor:
        # To the weights' dtype only after what comes before them, which would lose digits in half
        # precision: normalisation, or the log-mel spectrum.
        return waveform.to(torch.promote_types(waveform.dtype, torch.float32))

    def _encode(self, flat: Tensor) -> Tensor:
        return self._lifted(self._hidden, flat)

    def _encode_states(self, flat: Tensor) -> Tensor:
        return self._lifted(lambda waves: torch.cat([*self._states(waves)], -1), flat)

    def _lifted(self, encode: Encode, flat: Tensor) -> Tensor:
        self.model.requires_grad_(False)  # a parent's requires_grad_() may have thawed them
        found = encode(flat)
        return found.to(torch.promote_types(found.dtype, torch.float32))

    def _hidden(self, flat: Tensor) -> Tensor:
        """(N, T) -> (N, F, M), the layer asked for."""
        return self._states(flat)[-1]

    def _states(self, flat: Tensor) -> Sequence[Tensor]:
        """(N, T) -> layers 0 to the one asked for, each (N, F, M)."""
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
        self._check_device(waveform)
        size = self.architecture.features
        joined = self._encoded(waveform, self._encode_states, (self.depth + 1) * size)
        return joined.split(size, -1)

    def _apply(self, fn: Any, recurse: bool = True) -> TransformerEncoder:
        # Called by to(), cuda(), half(), …: only the device is taken over, see the class.
        device = fn(torch.empty(0, dtype=self.settings.dtype, device=self.device)).device
        if device != self.device:
            self.model = _moved(self.model, device)
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

_WEIGHTS: weakref.WeakValueDictionary[tuple[Any, ...], nn.Module] = weakref.WeakValueDictionary()
_LOCK = threading.RLock()


def clear_encoder_cache() -> None:
    """Forget all loaded weights: the next encoder reads its checkpoint again.

    Encoders in use keep theirs. The memory itself is freed with the last encoder (or metric, loss,
    …) that uses the weights, so `del` is all that is needed to release it.
    """
    with _LOCK:
        _WEIGHTS.clear()


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
    layer = _checked_layer(settings, architecture, kind.default_layer(architecture))
    device = checked_device(settings.device)
    settings = dataclasses.replace(settings, layer=layer, device=str(device))
    key = (checkpoint.fingerprint(), layer, settings.dtype, settings.attention, str(device))
    with _LOCK:
        model = _WEIGHTS.get(key)
        if model is None:
            empty = kind.empty_model(checkpoint, architecture, settings)
            model = _filled(empty, checkpoint, settings)
            _WEIGHTS[key] = _tagged(model, key)
    return kind(settings, architecture, model)


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


def _tagged(model: nn.Module, key: tuple[Any, ...]) -> nn.Module:
    model.__dict__["_mapss_key"] = key
    return model


def _moved(model: nn.Module, device: torch.device) -> nn.Module:
    """The same weights on another device, shared with whoever has them there."""
    key = (*model.__dict__["_mapss_key"][:-1], str(device))
    with _LOCK:
        moved = _WEIGHTS.get(key)
        if moved is None:
            moved = _tagged(copy.deepcopy(model).to(device), key)
            _WEIGHTS[key] = moved
    return moved


def _restore(settings: TransformerSettings) -> TransformerEncoder:
    """Unpickle: on the same device, or on the CPU where there is no such device."""
    try:
        checked_device(settings.device)
    except ValueError:
        settings = dataclasses.replace(settings, device="cpu")
    return load_transformer(settings)


def import_transformers() -> Any:
    """The package, imported only here.

    Raises:
        ImportError: it is not installed, or fails to import.
    """
    try:
        import transformers
    except Exception as error:  # missing, or broken by another package
        raise ImportError(
            f"this encoder needs transformers, which cannot be imported ({error}). Install it by "
            "`pip install transformers`, or use the encoders 'mel' or 'waveform', which need none."
        ) from error
    return transformers


def _checked_layer(settings: TransformerSettings, architecture: Architecture, default: int) -> int:
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


def _filled(model: Any, checkpoint: Checkpoint, settings: TransformerSettings) -> Any:
    """The empty model with the checkpoint's weights, frozen.

    Raises:
        ValueError: a weight is missing or has the wrong shape; see `read_tensors`.
    """
    wanted = {name: tensor.shape for name, tensor in model.state_dict().items()}
    tensors = read_tensors(checkpoint, wanted)
    model.load_state_dict(
        {name: _in_dtype(tensor, settings.dtype) for name, tensor in tensors.items()}, assign=True
    )
    return model.to(settings.device).eval().requires_grad_(False)


@contextmanager
def built_empty(settings: TransformerSettings) -> Iterator[dict[str, Any]]:
    """Within, a model has no storage: its weights cost no time, memory or random number.

    Yields the options that choose the attention; a model that has none such is an error.
    """
    options = {} if settings.attention is None else {"attn_implementation": settings.attention}
    try:
        with torch.device("meta"):
            yield options
    except (ValueError, ImportError) as error:
        raise ValueError(
            f"encoder {settings.name!r} cannot be built with attention={settings.attention!r} "
            f"({str(error).splitlines()[0]}). Leave attention out to get one that works."
        ) from error


# Keys of config.json that speak about loading, training or heads, none of which happens here.
_DROPPED = ("architectures", "auto_map", "gradient_checkpointing", "torch_dtype", "dtype")


def full_config(checkpoint: Checkpoint, kind: str, changes: dict[str, Any]) -> Any:
    """The checkpoint's settings as transformers holds them for its architecture `kind`."""
    values = {key: value for key, value in checkpoint.config.items() if key not in _DROPPED}
    values.pop("model_type")
    config_class = type(import_transformers().AutoConfig.for_model(kind))
    return config_class.from_dict({**values, **changes, **_QUIET})


_QUIET = {"output_hidden_states": False, "output_attentions": False}


def _in_dtype(tensor: Tensor, dtype: torch.dtype) -> Tensor:
    # Cloned: a tensor read from a file may map it, and files change.
    return tensor.to(dtype, copy=True) if tensor.is_floating_point() else tensor.clone()


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
