"""wav2vec 2.0, HuBERT, WavLM and MERT, cut off above the layer asked for.

"Large" models (with `do_stable_layer_norm`) normalise once more after their last block. Whether
`hidden_states[last]` has that norm depends on the version of transformers (4.x: yes, 5.x: no), and
so does it here, for this layer alone. The layers below it never have the norm.
"""

from __future__ import annotations

import math
import warnings
from typing import Any

import torch
from torch import Tensor, nn

from torch_mapss.core.checks import warn_user

from .base import EncoderRow
from .loading import PREPROCESSOR, Checkpoint, full_config, import_transformers, load_weights
from .transformer import Source, TransformerEncoder, unsupported

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


class Wav2VecEncoder(TransformerEncoder):
    """Convolutions over the waveform, then transformer blocks. See `TransformerEncoder`.

    Nested floors (T - k) // s + 1 of the convolutions fold into a single one, so the frame count of
    `Encoder` is exact.

    Attributes:
        normalize: whether each waveform is given zero mean and unit variance first, as the
            checkpoint's preprocessor says. Without its file: as is usual for the kind of
            convolutions, with a warning.
    """

    families = tuple(ARCHITECTURES)

    def __init__(
        self, source: Source, checkpoint: Checkpoint, config: Any, row: EncoderRow, model: Any
    ) -> None:
        super().__init__(source, checkpoint, config, row, model)
        usual = config.feat_extract_norm == "layer"
        if checkpoint.preprocessor is None:
            warn_user(
                f"checkpoint {checkpoint.name!r} has no {PREPROCESSOR}: its input is assumed to be "
                f"at {self.sample_rate} Hz and {'' if usual else 'not '}normalised, as is usual "
                f"with {config.feat_extract_norm} norm. Add the file to be sure."
            )
        self.normalize = bool(
            (checkpoint.preprocessor or {"do_normalize": usual}).get("do_normalize", True)
        )
        # The only layer of which versions of transformers disagree, so ask the one at hand.
        self._disputed = bool(config.do_stable_layer_norm) and self.layer == self.layers

    @classmethod
    def describe(cls, checkpoint: Checkpoint) -> tuple[Any, EncoderRow]:
        """Rate of the preprocessor, hop and receptive field of the convolutions.

        The default layer is 2 for wav2vec 2.0 and base models, 3 for large HuBERT and WavLM and for
        MERT. MERT models that are no HuBERT are refused.
        """
        family, mert = checkpoint.family, checkpoint.family == "mert_model"
        for key in ("deepnorm", "feature_extractor_cqt"):
            if mert and checkpoint.config.get(key):
                raise unsupported(checkpoint, f" with {key}")
        config = full_config(checkpoint, ARCHITECTURES[family], _INFERENCE)
        usual = checkpoint.config.get("sample_rate", 24_000 if mert else 16_000)
        rate = int((checkpoint.preprocessor or {}).get("sampling_rate", usual))
        hop, field = math.prod(config.conv_stride), receptive_field(config)
        layers = int(config.num_hidden_layers)
        late = mert or (family in ("hubert", "wavlm") and layers >= 24)
        layer = min(3 if late else 2, layers)
        return config, EncoderRow(checkpoint.name, checkpoint.name, rate, layer, hop, field)

    @classmethod
    def load_model(cls, checkpoint: Checkpoint, layer: int) -> Any:
        """The model with `layer` blocks, its positional convolution with one plain weight."""
        config, _ = cls.describe(checkpoint)
        above = config.num_hidden_layers - layer
        config.num_hidden_layers = layer
        model_class = import_transformers().MODEL_MAPPING[type(config)]
        model = load_weights(model_class, config, checkpoint)
        _fold_weight_norm(model)
        keep_channels_last(model)
        if above and config.do_stable_layer_norm:
            model.encoder.layer_norm = nn.Identity()  # follows the last block, which is not built
        return model

    def _encode(self, flat: Tensor) -> Tensor:
        if self.normalize:
            flat = normalize_input(flat)
        options = {"output_hidden_states": True, "return_dict": True} if self._disputed else {}
        with warnings.catch_warnings(), torch.random.fork_rng(devices=[]):
            # The attention of WavLM in transformers takes masks of two types, which torch dislikes.
            warnings.filterwarnings("ignore", "Support for mismatched key_padding_mask")
            # Generators are restored because transformers 4.x draws for layer drop even here.
            output = self.model(flat.to(self.dtype), **options)
        return output.hidden_states[-1] if self._disputed else output[0]

    def _item_bytes(self, samples: int) -> int:
        # The first convolution is the widest point (100 floats per sample); without `sdpa` the
        # attention matrices overtake it after about half a minute.
        length, widest = samples, samples
        config = self.config
        for kernel, stride, channels in zip(
            config.conv_kernel, config.conv_stride, config.conv_dim
        ):
            length = max((length - kernel) // stride + 1, 1)
            widest = max(widest, 4 * length * channels)  # output, norm, its transpose, activation
        attention = 3 * config.num_attention_heads * length**2
        return int(self.dtype.itemsize * max(widest, attention))


def receptive_field(config: Any) -> int:
    """Samples a frame sees. A kernel k widens it by k - 1 steps of the strides below."""
    field, step = 1, 1
    for kernel, stride in zip(config.conv_kernel, config.conv_stride):
        field += (kernel - 1) * step
        step *= stride
    return field


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


def _fold_weight_norm(model: Any) -> None:
    """The positional convolution with one plain weight: frozen, it need not be split."""
    convolution = model.encoder.pos_conv_embed.conv
    if nn.utils.parametrize.is_parametrized(convolution, "weight"):
        nn.utils.parametrize.remove_parametrizations(convolution, "weight")
    elif hasattr(convolution, "weight_g"):
        nn.utils.remove_weight_norm(convolution)


# --- Layer-norm convolutions without copies -------------------------------------------------------
#
# The feature encoders of "large" models normalise over the channels after each convolution: conv,
# transpose, norm, transpose, activation. The norm wants the channels last in memory and torch's
# one-dimensional convolution wants time last, so both copy: on a CPU a fifth of what these layers
# take, and far more of their backward pass (`benchmarks/results/encoders.md`). A two-dimensional
# convolution of height 1 takes channels that come last as they are, and every transpose is a view.
# Group-norm models ("base") have no transposes and gain nothing.


class ChannelsLastConvLayer(nn.Module):
    """Convolution over time, layer norm over channels, activation; (B, C, T) -> (B, C', T').

    Equal to the layer it is made of up to rounding, with its submodules under their names, so that
    checkpoints fit. The result of a CPU is laid out (B, T', C'). Elsewhere the convolution stays
    one-dimensional: the gain was measured on a CPU alone.

    Args:
        layer: a layer with `conv`, `layer_norm` and `activation`, in this order.
    """

    def __init__(self, layer: Any) -> None:
        super().__init__()
        self.conv = layer.conv
        self.layer_norm = layer.layer_norm
        self.activation = layer.activation

    def forward(self, hidden_states: Tensor) -> Tensor:
        """(B, C, T) -> (B, C', T')."""
        frames = self.layer_norm(self._convolved(hidden_states))
        return self.activation(frames).transpose(-2, -1)

    def _convolved(self, x: Tensor) -> Tensor:
        """(B, C, T) -> (B, T', C')."""
        weight, bias, (stride,) = self.conv.weight, self.conv.bias, self.conv.stride
        if x.device.type != "cpu":
            return self.conv(x).transpose(-2, -1)
        if x.shape[1] == 1:  # windows of the waveform, a product with each
            return nn.functional.linear(
                x.squeeze(1).unfold(-1, weight.shape[-1], stride), weight[:, 0], bias
            )
        frames = nn.functional.conv2d(x.unsqueeze(2), weight.unsqueeze(2), bias, (1, stride))
        return frames.squeeze(2).transpose(-2, -1)


def keep_channels_last(model: Any) -> None:
    """Replace the layer-norm convolutions of transformers in a wav2vec-like model, in place."""
    layers = model.feature_extractor.conv_layers
    for index, layer in enumerate(layers):
        if isinstance(getattr(layer, "layer_norm", None), nn.LayerNorm):
            layers[index] = ChannelsLastConvLayer(layer)
