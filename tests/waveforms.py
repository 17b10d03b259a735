"""Made-up signals: one function for each kind, the same in every process."""

from __future__ import annotations

import functools
import math

import numpy as np
import scipy.signal
import torch
from torch import Tensor

RATE = 16_000


def noise(
    *shape: int, seed: int = 0, level: float = 0.1, dtype: torch.dtype = torch.float32
) -> Tensor:
    """White Gaussian noise with an RMS of ``level``, the same whatever torch's defaults are."""
    generator = torch.Generator(device="cpu").manual_seed(seed)
    options = {"generator": generator, "dtype": torch.float64, "device": torch.device("cpu")}
    return (level * torch.randn(*shape, **options)).to(dtype)


noise64 = functools.partial(noise, dtype=torch.float64)
loud_noise = functools.partial(noise, level=1.0, dtype=torch.float64)


def sine(frequency: float, seconds: float = 1.0, rate: int = RATE, level: float = 0.1) -> Tensor:
    """(T,) a sine of amplitude ``level``, float64."""
    time = torch.arange(round(seconds * rate), dtype=torch.float64) / rate
    return level * torch.sin(2 * math.pi * frequency * time)


def sine_steps(sections: list[tuple[float, float]], rate: int, hertz: float = 1000.0) -> Tensor:
    """(T,) a sine through (dBFS, seconds) sections; 0 dBFS is amplitude 1. float64."""
    amplitudes = [np.full(round(seconds * rate), 10 ** (level / 20)) for level, seconds in sections]
    amplitude = torch.from_numpy(np.concatenate(amplitudes))
    return amplitude * sine(hertz, len(amplitude) / rate, rate, level=1.0)


def hum(pitch: float, seed: int, seconds: float = 0.6) -> Tensor:
    """(T,) a swelling tone with overtones and a little noise."""
    generator = torch.Generator().manual_seed(seed)
    clock = torch.arange(int(RATE * seconds)) / RATE
    tone = sum((math.tau * k * pitch * clock).sin() / k for k in range(1, 6))
    swell = 0.2 + (math.tau * 3 * clock + seed).sin().square()
    return 0.1 * swell * tone + 0.002 * torch.randn(len(clock), generator=generator)


def tones(count: int = 2, seconds: float = 0.5, seed: int = 0, rate: int = RATE) -> Tensor:
    """(S, T) harmonic tones of slowly moving level, unlike each other, all sounding throughout."""
    generator = torch.Generator().manual_seed(seed)
    t = torch.arange(int(seconds * rate)) / rate
    waves = []
    for k in range(count):
        pitch = 110.0 * 1.6**k * (1.0 + 0.05 * float(torch.rand(1, generator=generator)))
        # Partials end below 4 kHz: any rate that the tests use holds them.
        partials = [torch.sin(2 * torch.pi * pitch * h * t + h) / h for h in range(1, 9)]
        level = 0.6 + 0.3 * torch.sin(2 * torch.pi * (2.0 + k) * t)
        breath = 0.01 * torch.randn(t.shape, generator=generator)
        waves.append(0.3 * level * torch.stack(partials).sum(0) + breath)
    return torch.stack(waves)


def voices(batch: int = 1, sources: int = 2, samples: int = 8000, seed: int = 0) -> Tensor:
    """(B, S, T) noise and a moving tone, their levels moving too: one character per source."""
    generator = torch.Generator().manual_seed(seed)
    time = torch.arange(samples) / RATE
    waves = []
    for b in range(batch):
        for s in range(sources):
            breath = torch.randn(samples, generator=generator)
            tone = torch.sin(2 * torch.pi * (180 + 130 * s) * time + 3 * torch.sin(9 * time + b))
            level = 0.6 + 0.4 * torch.sin(2 * torch.pi * (2 + s) * time + s)
            waves.append(level * (0.15 * breath + 0.3 * tone))
    return torch.stack(waves).reshape(batch, sources, samples)


def bursts(seconds: float, sources: int = 2, seed: int = 0, rate: int = RATE) -> Tensor:
    """(S, T) low-heavy noise whose sources come and go at rates of their own."""
    generator = torch.Generator().manual_seed(seed)
    samples = round(seconds * rate)
    waves = torch.randn(sources, samples, generator=generator)
    waves = waves + 4 * torch.nn.functional.avg_pool1d(waves.unsqueeze(1), 9, 1, 4).squeeze(1)
    time = torch.arange(samples) / rate
    beats = 1.7 + 0.6 * torch.arange(sources).unsqueeze(-1)
    return 0.05 * waves * (0.05 + (torch.sin(2 * math.pi * beats * time) > -0.4))


def red_bursts(sources: int, samples: int, seed: int = 0) -> Tensor:
    """(S, T) first-order low-pass noise in bursts: peaks, quantiles and gaps differ; float64."""
    waves = scipy.signal.lfilter([1], [1, -0.9], noise64(sources, samples, seed=seed))
    time = torch.arange(samples, dtype=torch.float64) / RATE
    return 0.2 * torch.from_numpy(waves) * (0.02 + (torch.sin(2 * math.pi * 2.3 * time) > -0.3))


def syllables(seconds: float, rate: int, seed: int = 0) -> Tensor:
    """(T,) band-passed noise at 4 syllables a second, with pauses and a slow drift; float64."""
    rng = np.random.default_rng(seed)
    t = np.arange(int(seconds * rate)) / rate
    b, a = scipy.signal.butter(1, [150 / (rate / 2), 1000 / (rate / 2)], "bandpass")
    carrier = scipy.signal.lfilter(b, a, rng.standard_normal(len(t)))
    envelope = np.clip(np.sin(2 * np.pi * 4 * t), 0, None) ** 2
    phrase = (np.sin(2 * np.pi * 0.35 * t + rng.uniform(0, 6)) > -0.5) * 1.0
    drift = 10 ** (0.4 * np.sin(2 * np.pi * 0.11 * t))
    floor = 1e-3 * rng.standard_normal(len(t))
    return torch.from_numpy(0.3 * carrier * envelope * phrase * drift + floor)


def interrupted_noise(*shape: int, seed: int = 0) -> Tensor:
    """Brown noise up to 0.1, almost silent in samples 2000 to 3500; float64."""
    wave = noise64(*shape, seed=seed).cumsum(-1)
    wave = wave - wave.mean(-1, keepdim=True)
    wave[..., 2000:3500] *= 1e-9
    return 0.1 * wave / wave.abs().max()


def leaky(references: Tensor, amount: float = 0.2) -> Tensor:
    """Estimates (…, S, T) with the sum of the other sources leaking in."""
    return references + amount * (references.sum(-2, keepdim=True) - references)


def impaired(references: Tensor, leakage: float = 0.3) -> Tensor:
    """Estimates (…, S, T) with leakage of the sources in reverse order, and a distortion."""
    return references + leakage * references.flip(-2) + 0.01 * torch.sign(references)


def rms(wave: Tensor) -> Tensor:
    """(…, T) -> (…)."""
    return wave.square().mean(-1).sqrt()
