"""Audio files of results as one listens to them: mono, whole or an excerpt, several at one rate."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from torch_mapss import audio


def read_mono(path: str) -> tuple[Tensor, int]:
    """A file as (T,) samples at its own rate in Hz; errors as of :func:`audio.load_audio`."""
    samples, rate = audio.load_audio(path)
    return audio.to_mono(samples), rate


def read_together(paths: Sequence[str]) -> tuple[Tensor, int]:
    """Files as (n, T) mono waveforms, at the highest of their rates and cut to the shortest."""
    clips = [read_mono(path) for path in paths]
    rate = max(file_rate for _, file_rate in clips)  # a lower one would remove what is listened for
    waves = [audio.resample(wave, file_rate, rate) for wave, file_rate in clips]
    shortest = min(len(wave) for wave in waves)
    return torch.stack([wave[:shortest] for wave in waves]), rate


def cut(wave: Tensor, rate: int, begin: float, end: float) -> Tensor:
    """The samples between two seconds, as far as there are any."""
    return wave[..., max(0, round(begin * rate)) : max(0, round(end * rate))]
