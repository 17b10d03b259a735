"""The encoder of Whisper, cut off above the layer asked for, over a log-mel spectrum made in torch.

Transformers pads every clip to 30 s of silence and lets attention see it all. Here a clip keeps its
length: the spectrum is that of the clip alone, the positions are cut to it, and what comes out
equals transformers' encoder on `WhisperFeatureExtractor(..., padding="do_not_pad")` with as many
positions. Layer 0 is what enters the first block, convolutions and positions included; the last
layer includes the norm that follows it, as `hidden_states` of transformers does.
"""

from __future__ import annotations

import dataclasses
import inspect
from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor, nn

from .building import built_empty, full_config, import_transformers
from .checkpoint import Checkpoint
from .joining import at_true_length, inside
from .mel import hann_energies
from .settings import Architecture, TransformerSettings
from .transformer import TransformerEncoder

_INFERENCE = {"encoder_layerdrop": 0.0}
SMALLEST_ENERGY = 1e-10
DYNAMIC_RANGE = 8.0  # decades below the loudest point of a clip


@dataclasses.dataclass(frozen=True)
class WhisperArchitecture(Architecture):
    """What a Whisper checkpoint says besides."""

    bands: int  # of the mel spectrum
    window: int  # samples
    step: int  # samples between two spectra; the second convolution takes every other one
    positions: int  # frames there are positions for: 1500, 30 s


class WhisperEncoder(TransformerEncoder):
    """Hidden states of Whisper's encoder, 50 frames a second. See `TransformerEncoder`.

    Frame f is transformers' frame f. It comes of five spectra of 400 samples, 10 ms apart, the
    middle one centred on sample 320 f (the clip is mirrored at its ends). The grid is the one of
    the other encoders, frame f having the samples from 320 f to 320 f + 400: these are
    within what the frame sees, with their centre 12.5 ms after that of the frame. What hangs over
    the end of the clip by half a window or more is left out.

    Attention and the floor of the spectrum, eight decades below its loudest point, reach over the
    whole clip. There are positions for 30 s; longer clips are refused, never cut.
    """

    families = ("whisper",)

    @classmethod
    def read_architecture(cls, checkpoint: Checkpoint) -> WhisperArchitecture:
        """What the checkpoint's JSON files say; without preprocessor settings, what Whisper has."""
        config = _full_config(checkpoint)
        preprocessor = checkpoint.preprocessor or {}
        step, window = int(preprocessor.get("hop_length", 160)), int(preprocessor.get("n_fft", 400))
        return WhisperArchitecture(
            family=checkpoint.config["model_type"],
            sample_rate=int(preprocessor.get("sampling_rate", 16_000)),
            hop=2 * step,
            receptive_field=window,
            heads=config.encoder_attention_heads,
            features=config.d_model,
            layers=config.encoder_layers,
            bands=config.num_mel_bins,
            window=window,
            step=step,
            positions=config.max_source_positions,
        )

    @classmethod
    def default_layer(cls, architecture: Architecture) -> int:
        """1: the first block."""
        return min(1, architecture.layers)

    @classmethod
    def empty_model(
        cls, checkpoint: Checkpoint, architecture: Architecture, settings: TransformerSettings
    ) -> Any:
        """The encoder alone, under the name it has in the whole model."""
        import_transformers()
        from transformers.models.whisper import modeling_whisper

        config = _full_config(checkpoint)
        config.encoder_layers = settings.layer
        with built_empty(settings) as options:
            encoder = modeling_whisper.WhisperEncoder._from_config(config, **options)
        if settings.layer != architecture.layers:
            encoder.layer_norm = nn.Identity()  # follows the last block, which is not built
        return nn.ModuleDict({"encoder": encoder})

    @property
    def maximum_samples(self) -> int:
        """As many as there are positions for: 480,000, 30 s."""
        return int(self.architecture.positions * self.hop)

    @property
    def joins(self) -> bool:
        """True: every norm is over one frame, and padding is kept out of everything else."""
        return True

    def _states(self, flat: Tensor, lengths: tuple[int, ...] | None = None) -> Sequence[Tensor]:
        true = lengths or (flat.shape[-1],) * len(flat)
        spectrum = at_true_length(self._spectrum, flat, true)
        spectra = None if lengths is None else [length // self.architecture.step for length in true]
        states = self._blocks(spectrum.to(self.settings.dtype), spectra)
        frames = self.frame_count(flat.shape[-1])
        return [state[:, :frames] for state in states]

    def _spectrum(self, flat: Tensor) -> Tensor:
        layers = self.architecture
        return log_mel(flat, layers.bands, layers.sample_rate, layers.window, layers.step)

    def _blocks(self, spectrum: Tensor, spectra: Sequence[int] | None) -> list[Tensor]:
        """(N, bands, spectra) -> what enters the first block and what leaves every one.

        The modules are those of transformers, called one by one: its own forward takes clips of
        30 s and no others. `spectra` (N,) are the true numbers of padded ones; None: all.
        """
        model, gelu = self.model.encoder, nn.functional.gelu
        narrow = gelu(model.conv1(spectrum))
        if spectra is not None:  # the second convolution has zeros behind the end of any clip
            narrow = narrow * inside(spectra, narrow.shape[-1], narrow.device).unsqueeze(1)
        hidden = gelu(model.conv2(narrow)).transpose(1, 2)
        hidden = hidden + model.embed_positions.weight[: hidden.shape[1]]
        mask = None if spectra is None else _attention_mask([-(-n // 2) for n in spectra], hidden)
        states = [hidden]
        for block in model.layers:
            states.append(_run_block(block, states[-1], mask))
        if self.layer == self.architecture.layers:
            states[-1] = model.layer_norm(states[-1])
        return states

    def _item_bytes(self, samples: int) -> int:
        architecture, size = self.architecture, self.settings.dtype.itemsize
        spectra = samples // architecture.step + 1
        mel = 4 * spectra * (3 * architecture.window + 2 * architecture.bands)
        convolved = 3 * spectra * architecture.features
        attention = 3 * architecture.heads * (spectra // 2 + 1) ** 2
        return max(mel, size * max(convolved, attention))


def log_mel(
    waveform: Tensor,
    bands: int = 80,
    sample_rate: int = 16_000,
    window: int = 400,
    step: int = 160,
) -> Tensor:
    """Whisper's log-mel spectrum, as transformers' `WhisperFeatureExtractor` makes it.

    log10 of the mel energies of Hann windows centred on every `step`-th sample (the waveform is
    mirrored at its ends), not below 1e-10 nor more than eight decades below the clip's largest
    value, then (x + 4) / 4. Differentiable; the floor, which hangs on the largest value, too.

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


def _full_config(checkpoint: Checkpoint) -> Any:
    return full_config(checkpoint, "whisper", _INFERENCE)


def _attention_mask(counts: Sequence[int], hidden: Tensor) -> Tensor:
    """(N, 1, F, F) to be added to the logits of hidden states (N, F, M): all see the first
    `counts` (N,) and no more.
    """
    frames = hidden.shape[1]
    unseen = ~inside(counts, frames, hidden.device)[:, None, None]
    mask = hidden.new_zeros(unseen.shape).masked_fill(unseen, torch.finfo(hidden.dtype).min)
    return mask.expand(-1, 1, frames, frames)


def _run_block(block: Any, hidden: Tensor, mask: Tensor | None) -> Tensor:
    """A transformer block, whose call differs between versions of transformers."""
    arguments: dict[str, Any] = {"attention_mask": mask}
    if "layer_head_mask" in inspect.signature(block.forward).parameters:  # 4.x wants it said
        arguments["layer_head_mask"] = None
    output = block(hidden, **arguments)
    return output if isinstance(output, Tensor) else output[0]
