"""Encoders: waveform in, one feature vector per frame out.

All share one small interface (`Encoder`): `sample_rate`, `hop`, `receptive_field`, `feature_size`,
`frame_count(T)`, and `encoder(waveform (..., T)) -> (..., F, M)`.

* `base`         the interface, its checks, chunking over the batch
* `mel`          log-mel frames with context, on any frame grid: no weights
* `waveform`     the raw frames themselves
* `custom`       your own callable behind the same interface
* `transformer`  base of all pretrained transformers: layers, frozen weights, copies
* `wav2vec`      wav2vec 2.0, HuBERT, WavLM and MERT, cut off above the requested layer
* `whisper`      Whisper's encoder, cut off likewise, and its log-mel spectrum
* `loading`      finding checkpoints, on disk or on the hub, and reading them with transformers
* `registry`     the table of names, `load_encoder`, `as_encoder`

`transformers` is imported when the first transformer encoder is loaded, not before.
"""

from __future__ import annotations

from torch_mapss.encoders.base import Encoder, EncoderRow
from torch_mapss.encoders.custom import CustomEncoder
from torch_mapss.encoders.loading import clear_encoder_cache
from torch_mapss.encoders.mel import MelEncoder, mel_filterbank, mel_on_grid
from torch_mapss.encoders.registry import (
    as_encoder,
    encoder_row,
    encoder_table,
    known_row,
    load_encoder,
)
from torch_mapss.encoders.transformer import TransformerEncoder
from torch_mapss.encoders.waveform import WaveformEncoder
from torch_mapss.encoders.whisper import WhisperEncoder, log_mel

from .wav2vec import Wav2VecEncoder

__all__ = [
    "CustomEncoder",
    "Encoder",
    "EncoderRow",
    "MelEncoder",
    "TransformerEncoder",
    "Wav2VecEncoder",
    "WaveformEncoder",
    "WhisperEncoder",
    "as_encoder",
    "clear_encoder_cache",
    "encoder_row",
    "encoder_table",
    "known_row",
    "load_encoder",
    "log_mel",
    "mel_filterbank",
    "mel_on_grid",
]
