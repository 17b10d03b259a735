"""Front ends made of other encoders, to find one as sensitive to leakage as to distortion.

    python recipes/experiments/learned.py --encoders mel whisper-tiny.en@2:standardised \\
        mel+whisper-tiny.en@2 whisper-tiny.en@2:local --families pair ...

``NAME@LAYER:standardised`` brings every channel to mean 0 and variance 1, so that no channel
dominates the distances by its scale. ``A+B`` joins two encoders: each is standardised, and both
have the same share in a squared distance. ``NAME@LAYER:local`` limits the attention of a Whisper
to 0.2 s on either side.

Mean and variance are those of the two demo voices of the package, whatever is scored: a front end
that adapted to a clip would move references and outputs differently.
"""

from __future__ import annotations

import inspect

import torch
from torch import Tensor

from torch_mapss.audio import resample
from torch_mapss.encoders import Encoder
from torch_mapss.encoders.whisper import WhisperEncoder, log_mel
from torch_mapss.evaluation import demo

REACH = 10  # frames of 20 ms on either side that local attention reads


class Standardised:
    """An encoder whose channels have mean 0 and variance 1 on the demo voices."""

    def __init__(self, encoder: Encoder) -> None:
        self.encoder = encoder
        self.name = f"{encoder.name}:standardised"
        self.sample_rate, self.hop = encoder.sample_rate, encoder.hop
        self.receptive_field = encoder.receptive_field
        waves, rate = demo.voices()
        with torch.no_grad():
            features = encoder(resample(waves, rate, encoder.sample_rate))
        deviation, self.mean = torch.std_mean(features.flatten(0, -2), 0)
        self.deviation = deviation.clamp(min=1e-6 * float(deviation.max()))

    def __call__(self, waveform: Tensor) -> Tensor:
        return (self.encoder(waveform) - self.mean) / self.deviation


class Joined:
    """Two encoders on the same frames, with equal shares in a squared distance."""

    def __init__(self, left: Encoder, right: Encoder) -> None:
        grids = {(x.sample_rate, x.hop, x.receptive_field) for x in (left, right)}
        if len(grids) > 1:
            raise SystemExit(
                f"{left.name}+{right.name} should have the same frames (rate, hop, receptive "
                f"field), but have {sorted(grids)}."
            )
        self.encoders = Standardised(left), Standardised(right)
        self.name = f"{left.name}+{right.name}"
        ((self.sample_rate, self.hop, self.receptive_field),) = grids

    def __call__(self, waveform: Tensor) -> Tensor:
        embeddings = [encoder(waveform) for encoder in self.encoders]
        return torch.cat([x / x.shape[-1] ** 0.5 for x in embeddings], -1)


class LocalAttention:
    """A Whisper whose attention reaches over `REACH` frames to either side."""

    def __init__(self, encoder: Encoder) -> None:
        if not isinstance(encoder, WhisperEncoder):
            raise SystemExit(
                f"{encoder.name} is not a Whisper: `:local` limits the attention of Whispers only."
            )
        self.encoder = encoder
        self.name = f"{encoder.name}:local"
        self.sample_rate, self.hop = encoder.sample_rate, encoder.hop
        self.receptive_field = encoder.receptive_field

    def __call__(self, waveform: Tensor) -> Tensor:
        encoder, model = self.encoder, self.encoder.model.encoder
        window, step = encoder.receptive_field, encoder.hop // 2
        bands = encoder.config.num_mel_bins
        spectrum = log_mel(waveform.float(), bands, encoder.sample_rate, window, step)
        gelu = torch.nn.functional.gelu
        hidden = gelu(model.conv2(gelu(model.conv1(spectrum)))).transpose(1, 2)
        hidden = hidden + model.embed_positions.weight[: hidden.shape[1]]
        frame = torch.arange(hidden.shape[1])
        too_far = (frame[:, None] - frame).abs() > REACH
        mask = torch.zeros(too_far.shape).masked_fill(too_far, torch.finfo(hidden.dtype).min)
        # Older releases of transformers ask for a mask of attention heads as well.
        names = inspect.signature(type(model.layers[0]).forward).parameters
        options = {"layer_head_mask": None} if "layer_head_mask" in names else {}
        for block in model.layers:
            output = block(hidden, attention_mask=mask[None, None], **options)
            hidden = output if isinstance(output, Tensor) else output[0]
        return model.layer_norm(hidden)[:, : encoder.frame_count(waveform.shape[-1])]


FRONT_ENDS = {"standardised": Standardised, "local": LocalAttention}
