"""What can become of a source: outputs made up from references, without any separator.

Each maker takes references (S, T), the target first, the rate and an amount, and returns (T,).
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
FRAME = 0.020  # seconds, of a packet
CODECS = {"opus": ("OGG", "OPUS"), "mp3": ("MP3", "MPEG_LAYER_III")}
WINDOW = 512


def _seeded() -> torch.Generator:
    return torch.Generator().manual_seed(toolkit.SEED)


def _spectrum(wave: Tensor) -> Tensor:
    window = torch.hann_window(WINDOW)
    return torch.stft(wave, WINDOW, WINDOW // 4, window=window, return_complex=True)


def _wave(spectrum: Tensor, length: int) -> Tensor:
    return torch.istft(
        spectrum, WINDOW, WINDOW // 4, window=torch.hann_window(WINDOW), length=length
    )


def _level(wave: Tensor) -> Tensor:
    return wave.square().mean().sqrt()


def leakage(references: Tensor, rate: int, amount: float) -> Tensor:
    """The target with ``amount`` of all others."""
    return references[0] + amount * references[1:].sum(0)


def filtered_leakage(references: Tensor, rate: int, amount: float) -> Tensor:
    """The others below 1 kHz alone."""
    others = lowpass(references[1:].sum(0, keepdim=True), rate, 1000.0)
    return references[0] + amount * others


def delayed_leakage(references: Tensor, rate: int, amount: float) -> Tensor:
    """The others 30 ms later."""
    return references[0] + amount * delayed(references[1:].sum(0, keepdim=True), rate, 30.0)


def reverberant_leakage(references: Tensor, rate: int, amount: float) -> Tensor:
    """The others through an exponentially decaying tail of 0.3 s (RT60), at their level."""
    others = references[1:].sum(0)
    clock = torch.arange(round(0.3 * rate)) / rate
    tail = torch.randn(len(clock), generator=_seeded()) * torch.exp(-math.log(1000) * clock / 0.3)
    size = len(others) + len(tail)
    wet = torch.fft.irfft(torch.fft.rfft(others, size) * torch.fft.rfft(tail, size), size)
    wet = wet[: len(others)]
    return references[0] + amount * wet * _level(others) / _level(wet)


def random_phase(references: Tensor, rate: int, amount: float) -> Tensor:
    """STFT phase turned by uniform angles within ±π·amount: magnitudes stay, almost."""
    spectrum = _spectrum(references[0])
    angle = (2 * torch.rand(spectrum.shape, generator=_seeded()) - 1) * math.pi * amount
    return _wave(spectrum * torch.polar(torch.ones_like(angle), angle), references.shape[-1])


def noisy(references: Tensor, rate: int, amount: float) -> Tensor:
    """White noise at an SNR of ``amount`` dB."""
    noise = torch.randn(references.shape[-1], generator=_seeded())
    return references[0] + noise * _level(references[0]) * 10 ** (-amount / 20)


def lowpass(references: Tensor, rate: int, amount: float) -> Tensor:
    """Nothing above ``amount`` Hz."""
    spectrum = torch.fft.rfft(references[0])
    spectrum[round(amount / rate * references.shape[-1]) :] = 0.0
    return torch.fft.irfft(spectrum, references.shape[-1])


def clipped(references: Tensor, rate: int, amount: float) -> Tensor:
    """Clipped at ``amount`` of the peak."""
    limit = float(amount * references[0].abs().max())
    return references[0].clamp(-limit, limit)


def delayed(references: Tensor, rate: int, amount: float) -> Tensor:
    """Later by ``amount`` ms; silence comes in, the end is cut off."""
    return shift(references[0], -round(rate * amount / 1000))


def scaled(references: Tensor, rate: int, amount: float) -> Tensor:
    """At ``amount`` times the level."""
    return amount * references[0]


def source(references: Tensor, rate: int, amount: float) -> Tensor:
    """The ``amount``-th reference instead."""
    return references[int(amount)]


def others(references: Tensor, rate: int, amount: float) -> Tensor:
    """The sum of all others instead."""
    return references[1:].sum(0)


def silence(references: Tensor, rate: int, amount: float) -> Tensor:
    return torch.zeros_like(references[0])


def noise_alone(references: Tensor, rate: int, amount: float) -> Tensor:
    return torch.randn(references.shape[-1], generator=_seeded()) * _level(references[0])


def ratio_mask(references: Tensor, rate: int, amount: float) -> Tensor:
    """The mixture through an ideal ratio mask."""
    powers = torch.stack([_spectrum(wave).abs().square() for wave in references])
    mask = (powers[0] / powers.sum(0).clamp(min=1e-12)).sqrt()
    return _wave(mask * _spectrum(references.sum(0)), references.shape[-1])


def lost_packets(references: Tensor, rate: int, amount: float, codec: str = "opus") -> Tensor:
    """A share of the 20 ms frames deleted, coded, stretched back, as in the paper."""
    if amount == 0.0:
        return references[0]
    kept = coded(drop(references[0], rate, amount), rate, codec)
    from scipy.signal import resample as fourier

    return torch.from_numpy(fourier(kept.double().numpy(), references.shape[-1])).float()


def drop(wave: Tensor, rate: int, share: float) -> Tensor:
    """(T',) what is left of (T,) after deleting ``share`` of its whole frames.

    Which frames go is nested: those lost at 5 % are lost at 10 % as well.
    """
    size = round(FRAME * rate)
    count = len(wave) // size
    lost = torch.zeros(count, dtype=torch.bool)
    lost[torch.randperm(count, generator=_seeded())[: round(share * count)]] = True
    kept = wave[: count * size].reshape(count, size)[~lost].flatten()
    return torch.cat([kept, wave[count * size :]])


def coded(wave: Tensor, rate: int, codec: str) -> Tensor:
    """(T,) through the encoder and decoder of ``codec``, at the same rate and length."""
    if codec == "none":
        return wave
    import soundfile

    form, subtype = CODECS[codec]
    buffer = io.BytesIO()
    buffer.name = f"x.{form.lower()}"
    soundfile.write(buffer, wave.numpy(), rate, format=form, subtype=subtype)
    buffer.seek(0)
    decoded, back = soundfile.read(buffer, dtype="float32")
    found = resample(torch.from_numpy(decoded), back, rate)
    return torch.nn.functional.pad(found, (0, max(0, len(wave) - len(found))))[: len(wave)]
