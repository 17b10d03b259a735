"""Which K-weighting filter, and what loudness costs: error beside time.

    python benchmarks/loudness.py [--signals 140] [--seconds 4] [--rate 16000] [--out FILE]

Four ways to run the two recursive sections of BS.1770-4 over a batch:

* `product of spectra`: one FFT over the whole signal plus the decay (what the library does);
* `overlap-save`: the same in blocks of fixed length;
* `recursion`: `torchaudio.functional.lfilter`, a loop over samples in C++;
* `pyloudnorm`: one signal at a time in SciPy, float64, no gradient; its filters are designed anew
  for every rate and differ from the standard's table by some hundredths of a LU.

The error of a filter is its largest deviation from SciPy's float64 recursion, relative to the
largest output; of the loudness, the largest deviation in LU from the same oracle. Times are seconds
of CPU on one thread, the best of three. The run fails if a claim of `failed_claims` does not hold.
"""

from __future__ import annotations

import argparse
import math
import resource
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import numpy as np
import torch
from scipy import signal
from torch import Tensor

from torch_mapss import audio
from torch_mapss.audio import loudness

Filter = Callable[[Tensor, int], Tensor]


def coefficients(rate: int) -> list[tuple[np.ndarray, np.ndarray]]:
    """The digital sections (b, a) at `rate`, by SciPy's bilinear transform of the prototypes."""
    sections = []
    for section in (loudness._SHELF_48K, loudness._HIGH_PASS_48K):
        numerator, denominator = loudness._prototype(section)
        k48 = math.sqrt(denominator[0] / denominator[2])
        ratio = k48 / math.tan(math.atan(k48) * 48000 / rate)
        powers = ratio ** np.arange(2, -1, -1)
        # fs = 1/2 makes SciPy's s equal to (z - 1) / (z + 1).
        sections.append(
            signal.bilinear(powers * numerator[::-1], powers * denominator[::-1], fs=0.5)
        )
    return sections


def oracle(wave: Tensor, rate: int) -> Tensor:
    y = wave.double().numpy()
    for b, a in coefficients(rate):
        y = signal.lfilter(b, a, y)
    return torch.from_numpy(y)


def recursion(wave: Tensor, rate: int) -> Tensor:
    from torchaudio.functional import lfilter

    for b, a in coefficients(rate):
        wave = lfilter(wave, *(torch.as_tensor(c).to(wave) for c in (a, b)), clamp=False)
    return wave


def overlap_save(block: int) -> Filter:
    def run(wave: Tensor, rate: int) -> Tensor:
        lead = math.ceil(loudness._DECAY * rate)
        step, samples = block - lead, wave.shape[-1]
        blocks = -(-samples // step)
        padded = torch.nn.functional.pad(wave, (lead, blocks * step - samples))
        spectrum = torch.fft.rfft(padded.unfold(-1, block, step))
        spectrum = spectrum * loudness._k_response(rate, block).to(spectrum.dtype)
        y = torch.fft.irfft(spectrum, n=block)[..., lead:]
        return y.flatten(-2)[..., :samples]

    return run


def signals(count: int, seconds: float, rate: int) -> Tensor:
    """Bursts of low-passed noise with pauses, over 30 dB of level, float32."""
    rng = np.random.default_rng(0)
    t = np.arange(int(seconds * rate)) / rate
    carrier = signal.lfilter([1], [1, -0.9], rng.standard_normal((count, len(t))))
    syllables = np.clip(np.sin(2 * np.pi * (4 * t + rng.uniform(0, 1, (count, 1)))), 0, None)
    level = 10 ** (-1.5 * np.arange(count) / count)
    return torch.from_numpy(0.1 * level[:, None] * carrier * syllables).float()


def loudness_of(filtered: Tensor, rate: int) -> Tensor:
    """BS.1770-4 after the filter, in the library's own gating: isolates the filter's error."""
    original = loudness._k_weight
    loudness._k_weight = lambda wave, _: wave
    try:
        return audio.integrated_loudness(filtered, rate)
    finally:
        loudness._k_weight = original


def best_of(run: Callable[[], object], repeats: int = 3) -> float:
    times = []
    for _ in range(repeats):
        start = time.process_time()
        run()
        times.append(time.process_time() - start)
    return min(times)


def filter_rows(wave: Tensor, rate: int) -> Iterator[tuple[str, float, float, float, float]]:
    """(name, forward s, forward and backward s, error of the filter, error in LU)."""
    exact = oracle(wave, rate)
    exact_loudness = loudness_of(exact, rate)
    ways: dict[str, Filter] = {
        "product of spectra (used)": loudness._k_weight,
        "overlap-save, 8192": overlap_save(8192),
        "overlap-save, 32768": overlap_save(32768),
        "recursion": recursion,
    }
    for name, way in ways.items():
        for dtype in (torch.float32, torch.float64):
            x = wave.to(dtype, copy=True).requires_grad_()
            y = way(x.detach(), rate)
            error = float((y - exact).abs().max() / exact.abs().max())
            lu = float((loudness_of(y, rate) - exact_loudness).abs().max())
            forward = best_of(lambda way=way, x=x: way(x.detach(), rate))
            both = best_of(lambda way=way, x=x: way(x, rate).square().sum().backward())
            yield f"{name}, {str(dtype)[6:]}", forward, both, error, lu


def whole_rows(wave: Tensor, rate: int) -> Iterator[tuple[str, float, float | None, float]]:
    """(name, forward s, forward and backward s, largest difference to pyloudnorm in LU)."""
    import pyloudnorm

    meter = pyloudnorm.Meter(rate)
    rows = wave.double().numpy()
    yardstick = torch.tensor([meter.integrated_loudness(row) for row in rows])
    ours = audio.integrated_loudness(wave, rate)
    x = wave.clone().requires_grad_()
    for function in (audio.integrated_loudness, audio.normalize_loudness):
        yield (
            function.__name__,
            best_of(lambda f=function: f(wave, rate)),
            best_of(lambda f=function: f(x, rate).square().sum().backward()),
            float((ours - yardstick).abs().max()),
        )
    yield (
        "pyloudnorm, looped",
        best_of(lambda: [meter.integrated_loudness(row) for row in rows], 1),
        None,
        0.0,
    )


def growth_rows(rate: int) -> Iterator[tuple[float, float, float]]:
    """(seconds of one signal, forward s, growth of the peak memory in MiB) up to 16 minutes."""
    for seconds in (60, 240, 960):
        x = torch.randn(1, seconds * rate)
        before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
        spent = best_of(lambda x=x: audio.normalize_loudness(x, rate), 1)
        after = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
        yield seconds, spent, (after - before) / 1024


def decay_line(rate: int) -> str:
    impulse = torch.zeros(1, rate)
    impulse[0, 0] = 1
    tail = oracle(impulse, rate)[0, math.ceil(loudness._DECAY * rate) :].abs().sum()
    return (
        f"Impulse response beyond {loudness._DECAY} s at {rate} Hz: sum of magnitudes {tail:.1e}."
    )


def report(count: int, seconds: float, rate: int) -> tuple[str, list[str]]:
    """The page, and the claims that failed."""
    # Growth first: later work would hide it under its own peak.
    growth = list(growth_rows(rate))
    wave = signals(count, seconds, rate)
    filters, wholes = list(filter_rows(wave, rate)), list(whole_rows(wave, rate))
    lines = [
        f"# Loudness of {count} signals of {seconds:g} s at {rate} Hz, "
        f"{torch.get_num_threads()} thread(s), torch {torch.__version__}",
        "",
        *(decay_line(r) for r in (8000, rate, 48000)),
        "",
        "| filter | forward, s | with backward, s | error | error, LU |",
        "|---|---|---|---|---|",
        *(f"| {n} | {f:.3f} | {b:.3f} | {e:.1e} | {lu:.1e} |" for n, f, b, e, lu in filters),
        "",
        "| whole measure | forward, s | with backward, s | to pyloudnorm, LU |",
        "|---|---|---|---|",
        *(
            f"| {n} | {f:.3f} | {'–' if b is None else f'{b:.3f}'} | {e:.3f} |"
            for n, f, b, e in wholes
        ),
        "",
        "| one signal of, s | normalize_loudness, s | peak memory grows by, MiB |",
        "|---|---|---|",
        *(f"| {s:g} | {t:.3f} | {m:.0f} |" for s, t, m in growth),
    ]
    return "\n".join(lines), failed_claims(filters, wholes)


def failed_claims(filters: list, wholes: list) -> list[str]:
    used32, used64 = filters[0], filters[1]
    recursions = [row for row in filters if row[0].startswith("recursion")]
    claims = {
        "float32 filter within 1e-6, loudness within 1e-4 LU": used32[3] < 1e-6
        and used32[4] < 1e-4,
        "float64 filter within 1e-12": used64[3] < 1e-12,
        "faster than the recursion in either precision": used32[1] < min(r[1] for r in recursions),
        "within 0.1 LU of pyloudnorm": wholes[0][3] < 0.1,
        "faster than pyloudnorm": wholes[0][1] < wholes[-1][1],
    }
    return [claim for claim, holds in claims.items() if not holds]


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--signals", type=int, default=140)
    parser.add_argument("--seconds", type=float, default=4.0)
    parser.add_argument("--rate", type=int, default=16000)
    parser.add_argument("--out", type=Path, help="write the page here as well")
    options = parser.parse_args()
    torch.set_num_threads(1)
    page, failed = report(options.signals, options.seconds, options.rate)
    print(page)
    if options.out:
        options.out.write_text(page + "\n", encoding="utf-8")
    for claim in failed:
        print(f"does not hold: {claim}", file=sys.stderr)
    return bool(failed)


if __name__ == "__main__":
    sys.exit(main())
