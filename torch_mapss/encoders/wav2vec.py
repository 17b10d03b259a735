"""wav2vec 2.0, HuBERT, WavLM and MERT, cut off above the layer asked for.

"Large" models (with `do_stable_layer_norm`) normalise once more after their last block. Whether
`hidden_states[last]` has that norm depends on the version of transformers (4.x: yes, 5.x: no), and
so does it here, for this layer alone. The layers below it never have the norm.
"""

from __future__ import annotations

import dataclasses
import math
import warnings
from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor, nn

from torch_mapss.core.checks import warn_user

from .building import built_empty, full_config, import_transformers
from .checkpoint import PREPROCESSOR, Checkpoint
from .convolutions import keep_channels_last
from .joining import at_true_length, inside
from .settings import Architecture, TransformerSettings
from .transformer import TransformerEncoder, unknown_family

# Name in config.json -> the architecture of transformers it is built as. MERT is a HuBERT base.
ARCHITECTURES = {
    "wav2vec2": "wav2vec2",
    "hubert": "hubert",
    "wavlm": "wavlm",
    "mert_model": "hubert",
}
_INFERENCE = {
    "layerdrop": 0.0,
    "apply_spec_augment": False,
    "mask_time_prob": 0.0,  # with both at 0 the embedding of masked frames is not built
    "mask_feature_prob": 0.0,
    "add_adapter": False,  # comes after the last layer
}


@dataclasses.dataclass(frozen=True)
class ConvolutionalArchitecture(Architecture):
    """What a checkpoint of this kind says besides."""

    normalize: bool  # zero mean, unit variance per item
    kernels: tuple[int, ...]  # of the convolutions, in samples of their input
    strides: tuple[int, ...]
    channels: tuple[int, ...]
    last_norm: bool  # whether a norm follows the last block ("large" models)
    framewise: bool  # whether every norm is over the features of one frame


class Wav2VecEncoder(TransformerEncoder):
    """Convolutions over the waveform, then transformer blocks. See `TransformerEncoder`.

    Nested floors (T - k) // s + 1 of the convolutions fold into a single one, so the frame count of
    `Encoder` is exact.

    Where the convolutions have layer norms ("large" models), clips of several lengths share a
    batch: each is normalised at its true length, and an attention mask keeps the frames of the
    padding out of the positional convolution (where they count as the zeros that stand at the end
    of any clip) and out of the attention. Group norms take their statistics over the whole clip, of
    which padding would be a part: such models encode every length on its own.
    """

    families = tuple(ARCHITECTURES)

    @classmethod
    def read_architecture(cls, checkpoint: Checkpoint) -> ConvolutionalArchitecture:
        """What the checkpoint's two JSON files say.

        A checkpoint without preprocessor settings gets the rule of its kind: layer-norm
        convolutions ("large") take zero-mean, unit-variance input, group-norm ones take it as it
        is; with a warning, for some published group-norm checkpoints do ask for normalisation.

        Raises:
            ValueError: the architecture is none of those supported.
        """
        _check_family(checkpoint)
        config = _full_config(checkpoint)
        preprocessor = checkpoint.preprocessor
        if preprocessor is None:
            preprocessor = _assumed_preprocessor(checkpoint, config)
        kernels, strides = tuple(config.conv_kernel), tuple(config.conv_stride)
        return ConvolutionalArchitecture(
            family=checkpoint.config["model_type"],
            sample_rate=int(preprocessor.get("sampling_rate", _default_rate(checkpoint.config))),
            hop=math.prod(strides),
            receptive_field=receptive_field(kernels, strides),
            heads=config.num_attention_heads,
            features=config.hidden_size,
            layers=config.num_hidden_layers,
            normalize=bool(preprocessor.get("do_normalize", True)),
            kernels=kernels,
            strides=strides,
            channels=tuple(config.conv_dim),
            last_norm=bool(config.do_stable_layer_norm),
            framewise=config.feat_extract_norm == "layer"
            # Shifts the zeros of the padding before the positional convolution sees them.
            and not getattr(config, "conv_pos_batch_norm", False),
        )

    @classmethod
    def default_layer(cls, architecture: Architecture) -> int:
        """2 for wav2vec 2.0 and base models, 3 for large HuBERT and WavLM and for MERT."""
        family, layers = architecture.family, architecture.layers
        late = family == "mert_model" or (family in ("hubert", "wavlm") and layers >= 24)
        return min(3 if late else 2, layers)

    @classmethod
    def empty_model(
        cls, checkpoint: Checkpoint, architecture: Any, settings: TransformerSettings
    ) -> Any:
        """The architecture up to the layer, its positional convolution with one plain weight."""
        config = _full_config(checkpoint)
        config.num_hidden_layers = settings.layer
        with built_empty(settings) as options:
            model = import_transformers().AutoModel.from_config(config, **options)
        _fold_weight_norm(model)
        keep_channels_last(model)
        if architecture.last_norm and settings.layer != architecture.layers:
            model.encoder.layer_norm = nn.Identity()  # follows the last block, which is not built
        return model

    @property
    def joins(self) -> bool:
        """Whether every norm is over one frame: then padding can be kept out of sight."""
        return bool(self.architecture.framewise)

    def _hidden(self, flat: Tensor, lengths: tuple[int, ...] | None = None) -> Tensor:
        if self.architecture.last_norm and self.layer == self.architecture.layers:
            # The only layer of which versions of transformers disagree, so ask the one at hand.
            return self._states(flat, lengths)[-1]
        return self._run(flat, lengths)[0]

    def _states(self, flat: Tensor, lengths: tuple[int, ...] | None = None) -> Sequence[Tensor]:
        options = {"output_hidden_states": True, "return_dict": True}
        return self._run(flat, lengths, **options).hidden_states

    def _run(self, flat: Tensor, lengths: tuple[int, ...] | None = None, **options: Any) -> Any:
        if self.architecture.normalize:
            flat = at_true_length(normalize_input, flat, lengths or (flat.shape[-1],) * len(flat))
        if lengths is not None:  # of samples: transformers makes that of the frames from it
            options["attention_mask"] = inside(lengths, flat.shape[-1], flat.device).long()
        with warnings.catch_warnings(), torch.random.fork_rng(devices=[]):
            # The attention of WavLM in transformers takes masks of two types, which torch dislikes.
            warnings.filterwarnings("ignore", "Support for mismatched key_padding_mask")
            # Generators are kept because transformers 4.x draws for layer drop even here.
            return self.model(flat.to(self.settings.dtype), **options)

    def _item_bytes(self, samples: int) -> int:
        return activation_bytes(self.architecture, self.settings, samples)


def receptive_field(kernels: Sequence[int], strides: Sequence[int]) -> int:
    """Samples a frame sees. A kernel k widens it by k - 1 steps of the strides below."""
    steps = [math.prod(strides[:i]) for i in range(len(strides))]
    return 1 + sum((kernel - 1) * step for kernel, step in zip(kernels, steps))


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
    architecture: ConvolutionalArchitecture, settings: TransformerSettings, samples: int
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


def _check_family(checkpoint: Checkpoint) -> None:
    """Refuse the MERT models that are no HuBERT."""
    if checkpoint.config["model_type"] != "mert_model":
        return
    unlike_hubert = [
        key for key in ("deepnorm", "feature_extractor_cqt") if checkpoint.config.get(key)
    ]
    if unlike_hubert:
        raise ValueError(unknown_family(checkpoint, f" with {' with '.join(unlike_hubert)}"))


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


def _full_config(checkpoint: Checkpoint) -> Any:
    return full_config(checkpoint, ARCHITECTURES[checkpoint.config["model_type"]], _INFERENCE)


def _fold_weight_norm(model: Any) -> None:
    """The positional convolution with one plain weight: frozen, it need not be split."""
    convolution = model.encoder.pos_conv_embed.conv
    if nn.utils.parametrize.is_parametrized(convolution, "weight"):
        nn.utils.parametrize.remove_parametrizations(convolution, "weight")
    elif hasattr(convolution, "weight_g"):
        nn.utils.remove_weight_norm(convolution)
