"""Whisper's encoder, cut off above the requested layer, on a log-mel spectrum computed in torch.

Transformers pads every clip to 30 s of silence and lets attention see it all. Here a clip keeps its
length: the spectrum is that of the clip alone, the positions are cut to it, and the output equals
that of transformers' encoder on `WhisperFeatureExtractor(..., padding="do_not_pad")` with as many
positions. Layer 0 is the input of the first block, after convolutions and positions; the last layer
includes the norm that follows it, as in `hidden_states` of transformers.
"""

from __future__ import annotations

import inspect
from typing import Any

import torch
from torch import Tensor, nn

from torch_mapss.encoders.base import EncoderRow
from torch_mapss.encoders.loading import Checkpoint, full_config, import_transformers, load_weights
from torch_mapss.encoders.mel import hann_energies
from torch_mapss.encoders.transformer import TransformerEncoder

SMALLEST_ENERGY = 1e-10
DYNAMIC_RANGE = 8.0  # decades below the loudest point of a clip


class WhisperEncoder(TransformerEncoder):
    """Hidden states of Whisper's encoder, 50 frames a second. See `TransformerEncoder`.

    Frame f is transformers' frame f. It is computed from five spectra of 400 samples, 10 ms apart,
    the middle one centred on sample 320 f (the clip is mirrored at its ends). The grid is that of
    the other encoders, where frame f covers samples 320 f to 320 f + 400: these lie within what the
    frame depends on, but their centre is 12.5 ms later than the frame's. Frames that extend beyond
    the end of the clip by half a window or more are left out.

    Attention, and the floor of the spectrum at eight decades below its loudest point, extend over
    the whole clip. There are positions for 30 s; longer clips are refused, never cut.
    """

    families = ("whisper",)

    @classmethod
    def describe(cls, checkpoint: Checkpoint) -> tuple[Any, EncoderRow]:
        """Settings from the preprocessor file, or Whisper's defaults; layer 1, the first block."""
        config = full_config(checkpoint, "whisper", {"encoder_layerdrop": 0.0})
        preprocessor = checkpoint.preprocessor or {}
        rate = int(preprocessor.get("sampling_rate", 16_000))
        hop = 2 * int(preprocessor.get("hop_length", 160))  # the convolutions halve the rate
        field = int(preprocessor.get("n_fft", 400))
        longest, layer = int(config.max_source_positions * hop), min(1, int(config.encoder_layers))
        name = checkpoint.name
        return config, EncoderRow(name, name, rate, layer, hop, field, longest)

    @classmethod
    def load_model(cls, checkpoint: Checkpoint, layer: int) -> Any:
        """The encoder alone, with `layer` blocks, under its name in the whole model."""
        import_transformers()
        from transformers.models.whisper import modeling_whisper

        class EncoderOnly(modeling_whisper.WhisperPreTrainedModel):  # type: ignore[misc]
            def __init__(self, config: Any) -> None:
                super().__init__(config)
                self.encoder = modeling_whisper.WhisperEncoder(config)
                self.post_init()

        config, _ = cls.describe(checkpoint)
        above = config.encoder_layers - layer
        config.encoder_layers = layer
        encoder = load_weights(EncoderOnly, config, checkpoint).encoder
        if above:
            encoder.layer_norm = nn.Identity()  # follows the last block, which is not built
        return nn.ModuleDict({"encoder": encoder})

    def _encode(self, flat: Tensor) -> Tensor:
        # The modules of transformers are called one by one, because its own forward accepts only
        # clips of 30 s.
        spectrum = log_mel(
            flat, self.config.num_mel_bins, self.sample_rate, self.receptive_field, self.hop // 2
        ).to(self.dtype)
        model, gelu = self.model.encoder, nn.functional.gelu
        hidden = gelu(model.conv2(gelu(model.conv1(spectrum)))).transpose(1, 2)
        hidden = hidden + model.embed_positions.weight[: hidden.shape[1]]
        for block in model.layers:
            hidden = _run_block(block, hidden)
        return model.layer_norm(hidden)[:, : self.frame_count(flat.shape[-1])]

    def _item_bytes(self, samples: int) -> int:
        config, size = self.config, self.dtype.itemsize
        spectra = 2 * samples // self.hop + 1
        mel = 4 * spectra * (3 * self.receptive_field + 2 * config.num_mel_bins)
        convolved = 3 * spectra * config.d_model
        attention = 3 * config.encoder_attention_heads * (spectra // 2 + 1) ** 2
        return int(max(mel, size * max(convolved, attention)))


def log_mel(
    waveform: Tensor,
    bands: int = 80,
    sample_rate: int = 16_000,
    window: int = 400,
    step: int = 160,
) -> Tensor:
    """Whisper's log-mel spectrum, as computed by transformers' `WhisperFeatureExtractor`.

    log10 of the mel energies of Hann windows centred on every `step`-th sample (the waveform is
    mirrored at its ends), clamped to 1e-10 and to eight decades below the clip's largest value,
    then (x + 4) / 4. Differentiable, including the floor.

    Args:
        waveform: (..., T), T above `window / 2`.
        bands: mel bands from 0 to half the rate.
        sample_rate: Hz.
        window: samples, also the length of the FFT.
        step: samples between two spectra.

    Returns:
        (..., bands, T // step).
    """
    flat = waveform.reshape(-1, waveform.shape[-1])
    mirrored = nn.functional.pad(flat, (window // 2, window // 2), mode="reflect")
    frames = mirrored.unfold(-1, window, step)[:, : flat.shape[-1] // step]
    energies = hann_energies(frames, bands, sample_rate, window)
    logs = energies.clamp(min=SMALLEST_ENERGY).log10()
    loudest = logs.amax((-2, -1), keepdim=True)
    logs = torch.maximum(logs, loudest - DYNAMIC_RANGE)
    return ((logs + 4.0) / 4.0).transpose(-2, -1).reshape(*waveform.shape[:-1], bands, -1)


def _run_block(block: Any, hidden: Tensor) -> Tensor:
    """Call a transformer block, whose signature differs between versions of transformers."""
    options: dict[str, Any] = {"attention_mask": None}
    if "layer_head_mask" in inspect.signature(block.forward).parameters:  # 4.x requires it
        options["layer_head_mask"] = None
    output = block(hidden, **options)
    return output if isinstance(output, Tensor) else output[0]
