"""Error and time of BS.1770-4 loudness, compared with pyloudnorm and a recursive filter.

    python benchmarks/loudness.py [--signals 140] [--seconds 4] [--rate 16000]

The error of the filter is the largest deviation from SciPy's float64 recursion, relative to the
largest output. pyloudnorm takes one signal at a time and has no gradient; it designs its filters
for every rate, so that they differ from the standard's table by some hundredths of a LU.
"""

from __future__ import annotations

import argparse
import math

import numpy as np
import pyloudnorm
import torch
from common import least_time, table, voices
from scipy import signal
from torch import Tensor

from torch_mapss import audio
from torch_mapss.audio import loudness


def coefficients(rate: int) -> list[tuple[np.ndarray, np.ndarray]]:
    """The digital sections (b, a) at `rate`, by SciPy's bilinear transform of the prototypes."""
    sections = []
    for section in loudness._SECTIONS_48K:
        polynomials = [(c0 + c1 + c2, 2 * (c0 - c2), c0 - c1 + c2) for c0, c1, c2 in section]
        numerator, denominator = map(np.array, polynomials)
        k48 = math.sqrt(denominator[0] / denominator[2])
        ratio = k48 / math.tan(math.atan(k48) * 48000 / rate)
        powers = ratio ** np.arange(2, -1, -1)
        # fs = 1/2 makes SciPy's s equal to (z - 1) / (z + 1).
        sections.append(
            signal.bilinear(powers * numerator[::-1], powers * denominator[::-1], fs=0.5)
        )
    return sections


def oracle(wave: Tensor, rate: int) -> Tensor:
    """K-weighted signals (N, T), by SciPy's recursion in float64."""
    y = wave.double().numpy()
    for b, a in coefficients(rate):
        y = signal.lfilter(b, a, y)
    return torch.from_numpy(y)


def signals(count: int, seconds: float, rate: int) -> Tensor:
    """Voices with pauses (N, T), whose levels span 30 dB."""
    level = 10.0 ** (-1.5 * torch.arange(count) / count)
    return level.unsqueeze(-1) * voices(seconds, count, rate=rate)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--signals", type=int, default=140, help="number of them in a batch")
    parser.add_argument("--seconds", type=float, default=4.0, help="duration of each")
    parser.add_argument("--rate", type=int, default=16000, help="Hz")
    options = parser.parse_args()
    torch.set_num_threads(1)
    rate = options.rate
    wave = signals(options.signals, options.seconds, rate)
    meter = pyloudnorm.Meter(rate)
    arrays = wave.double().numpy()
    exact = oracle(wave, rate)
    expected = torch.tensor([meter.integrated_loudness(row) for row in arrays])
    loudness_lufs = audio.integrated_loudness(wave, rate)
    difference = f"{float((loudness_lufs - expected).abs().max()):.3f}"
    leaf = wave.clone().requires_grad_()
    rows = []
    for function in (audio.integrated_loudness, audio.normalize_loudness):
        forward = least_time(lambda f=function: f(wave, rate))
        backward = least_time(lambda f=function: f(leaf, rate).square().sum().backward())
        rows.append([f"`{function.__name__}`", f"{forward:.3f}", f"{backward:.3f}", difference])
    looped = least_time(lambda: [meter.integrated_loudness(row) for row in arrays], 1)
    rows.append(["pyloudnorm, in a loop", f"{looped:.3f}", "", "0.000"])
    print(f"{options.signals} signals of {options.seconds:g} s at {rate} Hz, one thread:\n")
    print(table(["", "forward s", "with backward s", "to pyloudnorm, LU"], rows))
    errors = {
        dtype: float((loudness.k_weighted(wave.to(dtype), rate) - exact).abs().max())
        / float(exact.abs().max())
        for dtype in (torch.float32, torch.float64)
    }
    shown = ", ".join(f"{str(dtype)[6:]} {error:.1e}" for dtype, error in errors.items())
    print(f"\nError of the K-weighting filter: {shown}.")


if __name__ == "__main__":
    main()
