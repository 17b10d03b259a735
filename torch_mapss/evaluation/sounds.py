"""Audio files of results for listening: mono, whole or as excerpts, several at one rate."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from torch_mapss import audio


def read_mono(path: str) -> tuple[Tensor, int]:
    """Read a file as (T,) samples and its rate in Hz; errors as in :func:`audio.load_audio`."""
    samples, rate = audio.load_audio(path)
    return audio.to_mono(samples), rate


def read_together(paths: Sequence[str]) -> tuple[Tensor, int]:
    """Read files as (n, T) mono waveforms, at their highest rate and cut to the shortest."""
    clips = [read_mono(path) for path in paths]
    rate = max(file_rate for _, file_rate in clips)  # a lower rate would remove audible content
    waves = [audio.resample(wave, file_rate, rate) for wave, file_rate in clips]
    shortest = min(len(wave) for wave in waves)
    return torch.stack([wave[:shortest] for wave in waves]), rate


def cut(wave: Tensor, rate: int, begin: float, end: float) -> Tensor:
    """Samples between two times in seconds, as far as they exist."""
    return wave[..., max(0, round(begin * rate)) : max(0, round(end * rate))]
