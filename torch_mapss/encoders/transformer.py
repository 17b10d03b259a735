"""wav2vec 2.0, HuBERT, WavLM and MERT, cut off above the layer asked for.

Layers are numbered as in the `hidden_states` of transformers: 0 is what enters the first
transformer block (convolutions, projection, positions), k what leaves the k-th. The model is built
with that many blocks and no more, and equals the full model there.

"Large" models (with `do_stable_layer_norm`) normalise once more after their last block. Whether
`hidden_states[last]` has that norm depends on the version of transformers (4.x: yes, 5.x: no), and
so does it here, for this layer alone. The layers below it never have the norm.
"""

from __future__ import annotations

import copy
import dataclasses
import math
import os
import threading
import weakref
from typing import Any

import torch
from torch import Tensor, nn

from torch_mapss._checks import warn_user

from .base import MEMORY_BUDGET, Encoder
from .checkpoint import PREPROCESSOR, Checkpoint, find_checkpoint, read_tensors

# Name in config.json -> the architecture of transformers it is built as. MERT is a HuBERT base.
ARCHITECTURES = {
    "wav2vec2": "wav2vec2",
    "hubert": "hubert",
    "wavlm": "wavlm",
    "mert_model": "hubert",
}
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

    family: str  # key of ARCHITECTURES
    sample_rate: int  # Hz
    normalize: bool  # zero mean, unit variance per item
    kernels: tuple[int, ...]  # of the convolutions, in samples of their input
    strides: tuple[int, ...]
    channels: tuple[int, ...]
    heads: int
    features: int  # M
    layers: int  # of the full model
    last_norm: bool  # whether a norm follows the last block ("large" models)

    @property
    def hop(self) -> int:
        """Samples between frames: the product of the strides."""
        return math.prod(self.strides)

    @property
    def receptive_field(self) -> int:
        """Samples a frame sees. A kernel k widens it by k - 1 steps of the strides below."""
        steps = [math.prod(self.strides[:i]) for i in range(len(self.strides))]
        return 1 + sum((kernel - 1) * step for kernel, step in zip(self.kernels, steps))


class TransformerEncoder(Encoder):
    """Hidden states of one layer of a speech or music transformer. Use `load_encoder` to make one.

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

    def __init__(
        self, settings: TransformerSettings, architecture: Architecture, model: nn.Module
    ) -> None:
        super().__init__(
            name=settings.name,
            sample_rate=architecture.sample_rate,
            hop=architecture.hop,
            # Nested floors (T - k) // s + 1 of the convolutions fold into a single one, so the
            # frame count of the base class is exact.
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

    def forward(self, waveform: Tensor) -> Tensor:
        """See `Encoder.forward`. Computes in `dtype` and returns float32 or better."""
        if isinstance(waveform, Tensor) and waveform.device != self.device:
            raise ValueError(
                f"waveform is on {waveform.device}, but encoder {self.name!r} is on {self.device}: "
                f"they cannot meet. Move one: encoder.to({str(waveform.device)!r})."
            )
        return super().forward(waveform)

    def _cast(self, waveform: Tensor) -> Tensor:
        # To the weights' dtype only after normalisation, which would lose digits in half precision.
        return waveform.to(torch.promote_types(waveform.dtype, torch.float32))

    def _encode(self, flat: Tensor) -> Tensor:
        self.model.requires_grad_(False)  # a parent's requires_grad_() may have thawed them
        if self.architecture.normalize:
            flat = normalize_input(flat)
        with torch.random.fork_rng(devices=[]):  # transformers 4.x draws for layer drop even here
            hidden = self._hidden(flat.to(self.settings.dtype))
        return hidden.to(torch.promote_types(hidden.dtype, torch.float32))

    def _hidden(self, flat: Tensor) -> Tensor:
        if self.architecture.last_norm and self.layer == self.architecture.layers:
            # The only layer of which versions of transformers disagree, so ask the one at hand.
            return self.model(flat, output_hidden_states=True, return_dict=True).hidden_states[-1]
        return self.model(flat)[0]

    def _item_bytes(self, samples: int) -> int:
        return activation_bytes(self.architecture, self.settings, samples)

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


def normalize_input(waveform: Tensor) -> Tensor:
    """Zero mean and unit variance along time, as the checkpoints' own preprocessor does it.

    Args:
        waveform: (..., T).

    Returns:
        (..., T); silence stays silence, with a finite gradient.
    """
    centred = waveform - waveform.mean(-1, keepdim=True)
    variance = centred.square().mean(-1, keepdim=True)
    return centred / (variance + 1e-7).sqrt()


def activation_bytes(
    architecture: Architecture, settings: TransformerSettings, samples: int
) -> int:
    """Rough peak of the activations of one item without a graph, in bytes.

    The first convolution is the widest point (100 floats per sample); without `sdpa` the attention
    matrices overtake it after about half a minute.
    """
    length, widest = samples, samples
    for kernel, stride, channels in zip(
        architecture.kernels, architecture.strides, architecture.channels
    ):
        length = max((length - kernel) // stride + 1, 1)
        widest = max(widest, 4 * length * channels)  # output, norm, its transpose, activation
    attention = 3 * architecture.heads * length**2
    return settings.dtype.itemsize * max(widest, attention)


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
    _import_transformers()
    checkpoint = find_checkpoint(
        settings.checkpoint,
        local_files_only=settings.local_files_only,
        cache_dir=settings.cache_dir,
    )
    architecture = read_architecture(checkpoint)
    layer = _checked_layer(settings, architecture)
    device = checked_device(settings.device)
    settings = dataclasses.replace(settings, layer=layer, device=str(device))
    key = (checkpoint.fingerprint(), layer, settings.dtype, settings.attention, str(device))
    with _LOCK:
        model = _WEIGHTS.get(key)
        if model is None:
            model = build_model(checkpoint, architecture, settings)
            _WEIGHTS[key] = _tagged(model, key)
    return TransformerEncoder(settings, architecture, model)


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


def _import_transformers() -> Any:
    try:
        import transformers
    except Exception as error:  # missing, or broken by another package
        raise ImportError(
            f"this encoder needs transformers, which cannot be imported ({error}). Install it by "
            "`pip install transformers`, or use the encoders 'mel' or 'waveform', which need none."
        ) from error
    return transformers


def read_architecture(checkpoint: Checkpoint) -> Architecture:
    """What the checkpoint's two JSON files say.

    A checkpoint without preprocessor settings gets the rule of its kind: layer-norm convolutions
    ("large") take zero-mean, unit-variance input, group-norm ones take it as it is; with a warning,
    for some published group-norm checkpoints do ask for normalisation.

    Raises:
        ValueError: the architecture is none of those supported.
    """
    family = _family(checkpoint)
    config = _full_config(checkpoint)
    preprocessor = checkpoint.preprocessor
    if preprocessor is None:
        preprocessor = _assumed_preprocessor(checkpoint, config)
    return Architecture(
        family=family,
        sample_rate=int(preprocessor.get("sampling_rate", _default_rate(checkpoint.config))),
        normalize=bool(preprocessor.get("do_normalize", True)),
        kernels=tuple(config.conv_kernel),
        strides=tuple(config.conv_stride),
        channels=tuple(config.conv_dim),
        heads=config.num_attention_heads,
        features=config.hidden_size,
        layers=config.num_hidden_layers,
        last_norm=bool(config.do_stable_layer_norm),
    )


def _family(checkpoint: Checkpoint) -> str:
    family = checkpoint.config.get("model_type")
    unlike_hubert = [
        key for key in ("deepnorm", "feature_extractor_cqt") if checkpoint.config.get(key)
    ]
    if family not in ARCHITECTURES or (family == "mert_model" and unlike_hubert):
        raise ValueError(
            f"an encoder should be one of {', '.join(ARCHITECTURES)}, but checkpoint "
            f"{checkpoint.name!r} is {family!r} {' with '.join(['', *unlike_hubert])}".rstrip()
            + ": it cannot be built here. Wrap it in a module of your own, see as_encoder."
        )
    return str(family)


def _default_rate(config: dict[str, Any]) -> int:
    return int(
        config.get("sample_rate", 24_000 if config["model_type"] == "mert_model" else 16_000)
    )


def _assumed_preprocessor(checkpoint: Checkpoint, config: Any) -> dict[str, Any]:
    normalize = config.feat_extract_norm == "layer"
    warn_user(
        f"checkpoint {checkpoint.name!r} has no {PREPROCESSOR}: its input is assumed to be "
        f"{_default_rate(checkpoint.config)} Hz and {'' if normalize else 'not '}normalised, as is "
        f"usual with {config.feat_extract_norm} norm. Add the file to be sure."
    )
    return {"do_normalize": normalize}


# Keys of config.json that speak about loading, training or heads, none of which happens here.
_DROPPED = ("auto_map", "architectures", "gradient_checkpointing", "torch_dtype", "dtype")
_INFERENCE = {
    "layerdrop": 0.0,
    "apply_spec_augment": False,
    "mask_time_prob": 0.0,  # with both at 0 the embedding of masked frames is not built
    "mask_feature_prob": 0.0,
    "add_adapter": False,  # comes after the last layer
    "output_hidden_states": False,
    "output_attentions": False,
}


def _full_config(checkpoint: Checkpoint) -> Any:
    transformers = _import_transformers()
    values = {key: value for key, value in checkpoint.config.items() if key not in _DROPPED}
    values.pop("model_type")
    values.update(_INFERENCE)
    kind = ARCHITECTURES[checkpoint.config["model_type"]]
    config_class = type(transformers.AutoConfig.for_model(kind))
    return config_class.from_dict(values)


def default_layer(family: str, layers: int) -> int:
    """2 for wav2vec 2.0 and base models, 3 for large HuBERT and WavLM and for MERT."""
    late = family == "mert_model" or (family in ("hubert", "wavlm") and layers >= 24)
    return min(3 if late else 2, layers)


def _checked_layer(settings: TransformerSettings, architecture: Architecture) -> int:
    layer = settings.layer
    if layer is None:
        return default_layer(architecture.family, architecture.layers)
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


def build_model(
    checkpoint: Checkpoint, architecture: Architecture, settings: TransformerSettings
) -> Any:
    """Build the model up to the layer, with the checkpoint's weights, frozen.

    Raises:
        ValueError: a weight is missing or has the wrong shape; see `read_tensors`.
    """
    model = _empty_model(checkpoint, settings)
    if architecture.last_norm and settings.layer != architecture.layers:
        model.encoder.layer_norm = nn.Identity()  # follows the last block only, which is not built
    wanted = {name: tensor.shape for name, tensor in model.state_dict().items()}
    tensors = read_tensors(checkpoint, wanted)
    model.load_state_dict(
        {name: _in_dtype(tensor, settings.dtype) for name, tensor in tensors.items()}, assign=True
    )
    return model.to(settings.device).eval().requires_grad_(False)


def _in_dtype(tensor: Tensor, dtype: torch.dtype) -> Tensor:
    # Cloned: a tensor read from a file may map it, and files change.
    return tensor.to(dtype, copy=True) if tensor.is_floating_point() else tensor.clone()


def _empty_model(checkpoint: Checkpoint, settings: TransformerSettings) -> Any:
    """The architecture without storage: its weights cost no time, memory or random number."""
    transformers = _import_transformers()
    config = _full_config(checkpoint)
    config.num_hidden_layers = settings.layer
    options = {} if settings.attention is None else {"attn_implementation": settings.attention}
    try:
        with torch.device("meta"):
            model = transformers.AutoModel.from_config(config, **options)
    except (ValueError, ImportError) as error:
        raise ValueError(
            f"encoder {settings.name!r} cannot be built with attention={settings.attention!r} "
            f"({str(error).splitlines()[0]}). Leave attention out to get one that works."
        ) from error
    _fold_weight_norm(model)
    return model


def _fold_weight_norm(model: Any) -> None:
    """The positional convolution with one plain weight: frozen, it need not be split."""
    convolution = model.encoder.pos_conv_embed.conv
    if nn.utils.parametrize.is_parametrized(convolution, "weight"):
        nn.utils.parametrize.remove_parametrizations(convolution, "weight")
    elif hasattr(convolution, "weight_g"):
        nn.utils.remove_weight_norm(convolution)


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
