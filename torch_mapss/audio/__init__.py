"""Files -> level-matched mono waveforms on an encoder's frame grid.

* *Reading and channels* (``files``, ``waveforms``): :func:`load_audio`, :func:`as_waveform`,
  :func:`to_mono`, :func:`resample`, :func:`check_source_rate`.
* *Loudness*, ITU-R BS.1770-4 with gating, batched and differentiable (``loudness``):
  :func:`integrated_loudness`, :func:`normalize_loudness`, :func:`is_silent`.
* *Frames* of an encoder, receptive field and hop in samples, nothing padded (``frames``):
  :func:`frame_count`, :func:`frame_times`, :func:`frame_signal`, :func:`frame_rms`,
  :func:`source_activity`.
* *Assignment of estimates to references*, and their lag (``matching``): :func:`si_sdr`,
  :func:`pairwise_si_sdr`, :func:`match_sources`, :func:`estimate_lag`, :func:`shift`.
* *Signal diagnostics* (``bandwidth``, ``matching``): :func:`bandwidth`, :func:`is_constant`.

Level rules:

* A signal whose peak is below `SILENCE_PEAK` is *silent*: its loudness is -inf, normalising returns
  it unchanged, with zero gradient, and it is active in no frame.
* Where no gating block is left (the signal is shorter than one block of 400 ms, or all of it is
  below -70 LUFS), the loudness is that of the whole signal, ungated.
* :func:`normalize_loudness` applies the gates at the level of the *output*, so that scaling the
  input by any factor changes nothing, even for a signal 100 dB down.

Example:
    >>> import torch
    >>> from torch_mapss import audio
    >>> tone = torch.sin(2 * torch.pi * 997 * torch.arange(48000) / 48000)
    >>> round(float(audio.integrated_loudness(tone, 48000)), 2)   # LUFS
    -3.01
    >>> loud = audio.normalize_loudness(1e-3 * tone, 48000)
    >>> round(float(audio.integrated_loudness(loud, 48000)), 2)
    -23.0
    >>> audio.frame_count(16000, receptive_field=400, hop=320)
    49
"""

from __future__ import annotations

from torch_mapss.audio.bandwidth import bandwidth
from torch_mapss.audio.files import load_audio
from torch_mapss.audio.frames import frame_rms, frame_signal, frame_times, source_activity
from torch_mapss.audio.loudness import integrated_loudness, normalize_loudness
from torch_mapss.audio.matching import (
    estimate_lag,
    is_constant,
    match_sources,
    pairwise_si_sdr,
    shift,
    si_sdr,
)
from torch_mapss.audio.waveforms import (
    SILENCE_PEAK,
    as_waveform,
    check_source_rate,
    is_silent,
    resample,
    to_mono,
)
from torch_mapss.core.lengths import frame_count

__all__ = [
    "SILENCE_PEAK",
    "as_waveform",
    "bandwidth",
    "check_source_rate",
    "estimate_lag",
    "frame_count",
    "frame_rms",
    "frame_signal",
    "frame_times",
    "integrated_loudness",
    "is_constant",
    "is_silent",
    "load_audio",
    "match_sources",
    "normalize_loudness",
    "pairwise_si_sdr",
    "resample",
    "shift",
    "si_sdr",
    "source_activity",
    "to_mono",
]
