"""wav2vec 2.0, HuBERT, WavLM and MERT, cut off above the requested layer.

"Large" models (with `do_stable_layer_norm`) normalise once more after their last block. Whether
`hidden_states[last]` includes that norm depends on the version of transformers (4.x: yes, 5.x: no);
for this one layer the encoder follows the installed version. The layers below never include it.
"""

from __future__ import annotations

import math
import warnings
from typing import Any

import torch
from torch import Tensor, nn

from torch_mapss.core.checks import warn_user
from torch_mapss.encoders.base import EncoderRow
from torch_mapss.encoders.loading import (
    PREPROCESSOR,
    Checkpoint,
    full_config,
    import_transformers,
    load_weights,
)
from torch_mapss.encoders.transformer import Source, TransformerEncoder, unsupported

# model_type in config.json -> architecture of transformers that builds it. MERT is a HuBERT base.
ARCHITECTURES = {
    "wav2vec2": "wav2vec2",
    "hubert": "hubert",
    "wavlm": "wavlm",
    "mert_model": "hubert",
}
_INFERENCE = {
    "layerdrop": 0.0,
    "apply_spec_augment": False,
    "mask_time_prob": 0.0,  # if both are 0, the embedding of masked frames is not built
    "mask_feature_prob": 0.0,
    "add_adapter": False,  # comes after the last layer
}


class Wav2VecEncoder(TransformerEncoder):
    """Convolutions over the waveform, then transformer blocks. See `TransformerEncoder`.

    The nested floors (T - k) // s + 1 of the convolutions fold into a single one, so `frame_count`
    is exact.

    Attributes:
        normalize: whether each waveform is first brought to zero mean and unit variance, as the
            checkpoint's preprocessor file says. Without the file, what is usual for the type of
            convolutions is assumed, with a warning.
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
        # Versions of transformers disagree only on this layer, so ask the installed one.
        self._disputed = bool(config.do_stable_layer_norm) and self.layer == self.layers

    @classmethod
    def describe(cls, checkpoint: Checkpoint) -> tuple[Any, EncoderRow]:
        """Rate from the preprocessor; hop and receptive field from the convolutions.

        The default layer is 2 for wav2vec 2.0 and base models, and 3 for large HuBERT and WavLM and
        for MERT. MERT models that are not a HuBERT are refused.
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
        """The model with `layer` blocks, and its positional convolution with one plain weight."""
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
            # Generators are restored because transformers 4.x draws for layer drop even in
            # evaluation.
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
    """Samples that a frame covers; a kernel k adds k - 1 steps of the strides below it."""
    field, step = 1, 1
    for kernel, stride in zip(config.conv_kernel, config.conv_stride):
        field += (kernel - 1) * step
        step *= stride
    return field


def normalize_input(waveform: Tensor) -> Tensor:
    """Bring to zero mean and unit variance along time, as the checkpoints' own preprocessor does.

    Args:
        waveform: (..., T).

    Returns:
        (..., T); silence stays silence, with a finite gradient.
    """
    centred = waveform - waveform.mean(-1, keepdim=True)
    variance = centred.square().mean(-1, keepdim=True)
    return centred / (variance + 1e-7).sqrt()


def _fold_weight_norm(model: Any) -> None:
    """Merge the positional convolution's weight: once frozen, it need not be split."""
    convolution = model.encoder.pos_conv_embed.conv
    if nn.utils.parametrize.is_parametrized(convolution, "weight"):
        nn.utils.parametrize.remove_parametrizations(convolution, "weight")
    elif hasattr(convolution, "weight_g"):
        nn.utils.remove_weight_norm(convolution)


# --- Layer-norm convolutions without copies -------------------------------------------------------
#
# The feature encoders of "large" models normalise over the channels after each convolution: conv,
# transpose, norm, transpose, activation. The norm needs the channels last in memory and torch's
# one-dimensional convolution needs time last, so both copy: on a CPU this is a fifth of these
# layers' time, and far more in their backward pass (`benchmarks/results/encoders.md`). A
# two-dimensional convolution of height 1 accepts channels last, and every transpose is a view.
# Group-norm models ("base") have no transposes and gain nothing.


class ChannelsLastConvLayer(nn.Module):
    """Convolution over time, layer norm over channels, activation; (B, C, T) -> (B, C', T').

    Equal up to rounding to the layer it replaces, whose submodules keep their names, so that
    checkpoints fit. On a CPU the result is laid out as (B, T', C'). Elsewhere the convolution stays
    one-dimensional, because the gain was measured only on a CPU.

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
        if x.shape[1] == 1:  # as products with windows of the waveform
            return nn.functional.linear(
                x.squeeze(1).unfold(-1, weight.shape[-1], stride), weight[:, 0], bias
            )
        frames = nn.functional.conv2d(x.unsqueeze(2), weight.unsqueeze(2), bias, (1, stride))
        return frames.squeeze(2).transpose(-2, -1)


def keep_channels_last(model: Any) -> None:
    """Replace the layer-norm convolutions in a wav2vec-like model of transformers, in place."""
    layers = model.feature_extractor.conv_layers
    for index, layer in enumerate(layers):
        if isinstance(getattr(layer, "layer_norm", None), nn.LayerNorm):
            layers[index] = ChannelsLastConvLayer(layer)
