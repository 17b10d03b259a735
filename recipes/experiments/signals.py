"""Faulty outputs made from references, without any separator.

Each maker takes references (S, T), the target first, the rate in Hz and an amount (its unit is in
the docstring of the maker), and returns an output (T,).
"""

from __future__ import annotations

import io
import math
from collections.abc import Callable

import toolkit
import torch
from torch import Tensor

from torch_mapss.audio import resample, shift

Maker = Callable[[Tensor, int, float], Tensor]
PACKET_SECONDS = 0.020
CODECS = {"opus": ("OGG", "OPUS"), "mp3": ("MP3", "MPEG_LAYER_III")}
WINDOW = 512  # samples, of the STFT


def _seeded() -> torch.Generator:
    return torch.Generator().manual_seed(toolkit.SEED)


def _spectrum(wave: Tensor) -> Tensor:
    window = torch.hann_window(WINDOW)
    return torch.stft(wave, WINDOW, WINDOW // 4, window=window, return_complex=True)


def _wave(spectrum: Tensor, length: int) -> Tensor:
    window = torch.hann_window(WINDOW)
    return torch.istft(spectrum, WINDOW, WINDOW // 4, window=window, length=length)


def _level(wave: Tensor) -> Tensor:
    """RMS over all samples."""
    return wave.square().mean().sqrt()


def leakage(references: Tensor, rate: int, amount: float) -> Tensor:
    """The target plus ``amount`` times the sum of the other sources."""
    return references[0] + amount * references[1:].sum(0)


def filtered_leakage(references: Tensor, rate: int, amount: float) -> Tensor:
    """As `leakage`, of which only what lies below 1 kHz leaks."""
    interferers = lowpass(references[1:].sum(0, keepdim=True), rate, 1000.0)
    return references[0] + amount * interferers


def delayed_leakage(references: Tensor, rate: int, amount: float) -> Tensor:
    """As `leakage`, 30 ms late."""
    interferers = delayed(references[1:].sum(0, keepdim=True), rate, 30.0)
    return references[0] + amount * interferers


def reverberant_leakage(references: Tensor, rate: int, amount: float) -> Tensor:
    """As `leakage`, through a reverberation with an RT60 of 0.3 s that keeps the level."""
    interferers = references[1:].sum(0)
    clock = torch.arange(round(0.3 * rate)) / rate
    tail = torch.randn(len(clock), generator=_seeded()) * torch.exp(-math.log(1000) * clock / 0.3)
    size = len(interferers) + len(tail)
    spectrum = torch.fft.rfft(interferers, size) * torch.fft.rfft(tail, size)
    wet = torch.fft.irfft(spectrum, size)[: len(interferers)]
    return references[0] + amount * wet * _level(interferers) / _level(wet)


def random_phase(references: Tensor, rate: int, amount: float) -> Tensor:
    """STFT phases rotated by uniform random angles within ±π·amount; magnitudes almost stay."""
    spectrum = _spectrum(references[0])
    angle = (2 * torch.rand(spectrum.shape, generator=_seeded()) - 1) * math.pi * amount
    return _wave(spectrum * torch.polar(torch.ones_like(angle), angle), references.shape[-1])


def noisy(references: Tensor, rate: int, amount: float) -> Tensor:
    """The target in white noise at an SNR of ``amount`` dB."""
    noise = torch.randn(references.shape[-1], generator=_seeded())
    return references[0] + noise * _level(references[0]) * 10 ** (-amount / 20)


def lowpass(references: Tensor, rate: int, amount: float) -> Tensor:
    """The target without what lies above ``amount`` Hz."""
    spectrum = torch.fft.rfft(references[0])
    spectrum[round(amount / rate * references.shape[-1]) :] = 0.0
    return torch.fft.irfft(spectrum, references.shape[-1])


def clipped(references: Tensor, rate: int, amount: float) -> Tensor:
    """The target clipped at ``amount`` times its peak."""
    limit = float(amount * references[0].abs().max())
    return references[0].clamp(-limit, limit)


def delayed(references: Tensor, rate: int, amount: float) -> Tensor:
    """The target ``amount`` ms late: silence at the beginning, the end cut off."""
    return shift(references[0], -round(rate * amount / 1000))


def scaled(references: Tensor, rate: int, amount: float) -> Tensor:
    """The target times ``amount``."""
    return amount * references[0]


def source(references: Tensor, rate: int, amount: float) -> Tensor:
    """The reference with index ``amount`` instead of the target."""
    return references[int(amount)]


def others(references: Tensor, rate: int, amount: float) -> Tensor:
    """The sum of the other sources instead of the target."""
    return references[1:].sum(0)


def silence(references: Tensor, rate: int, amount: float) -> Tensor:
    """Zeros; ``amount`` is not read."""
    return torch.zeros_like(references[0])


def noise_alone(references: Tensor, rate: int, amount: float) -> Tensor:
    """White noise at the level of the target; ``amount`` is not read."""
    return torch.randn(references.shape[-1], generator=_seeded()) * _level(references[0])


def ratio_mask(references: Tensor, rate: int, amount: float) -> Tensor:
    """The mixture through an ideal ratio mask; ``amount`` is not read."""
    powers = torch.stack([_spectrum(wave).abs().square() for wave in references])
    mask = (powers[0] / powers.sum(0).clamp(min=1e-12)).sqrt()
    return _wave(mask * _spectrum(references.sum(0)), references.shape[-1])


def lost_packets(references: Tensor, rate: int, amount: float, codec: str = "opus") -> Tensor:
    """A share ``amount`` of 20 ms packets deleted, coded and stretched back, as in the paper."""
    if amount == 0.0:
        return references[0]
    from scipy.signal import resample as fourier_resample

    shortened = coded(drop(references[0], rate, amount), rate, codec)
    stretched = fourier_resample(shortened.double().numpy(), references.shape[-1])
    return torch.from_numpy(stretched).float()


def drop(wave: Tensor, rate: int, share: float) -> Tensor:
    """What is left of (T,) after deleting ``share`` of its whole packets, (T',).

    Losses are nested: packets that are lost at 5 % are lost at 10 % as well.
    """
    size = round(PACKET_SECONDS * rate)
    count = len(wave) // size
    lost = torch.zeros(count, dtype=torch.bool)
    lost[torch.randperm(count, generator=_seeded())[: round(share * count)]] = True
    received = wave[: count * size].reshape(count, size)[~lost].flatten()
    return torch.cat([received, wave[count * size :]])


def coded(wave: Tensor, rate: int, codec: str) -> Tensor:
    """(T,) through the encoder and decoder of ``codec``, at the same rate and length."""
    if codec == "none":
        return wave
    import soundfile

    container, subtype = CODECS[codec]
    buffer = io.BytesIO()
    buffer.name = f"x.{container.lower()}"
    soundfile.write(buffer, wave.numpy(), rate, format=container, subtype=subtype)
    buffer.seek(0)
    samples, decoded_rate = soundfile.read(buffer, dtype="float32")
    decoded = resample(torch.from_numpy(samples), decoded_rate, rate)
    missing = max(0, len(wave) - len(decoded))
    return torch.nn.functional.pad(decoded, (0, missing))[: len(wave)]
