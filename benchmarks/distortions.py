"""Time of the distortion banks by family, and error of those that have a closed form.

    python benchmarks/distortions.py [--seconds 5] [--rate 16000] [--sources 2]

One thread. Times are processor time, the minimum of several rounds, which depends little on other
work on the machine.
"""

from __future__ import annotations

import argparse
import math

import torch
from common import least_time, sine, table, voices
from torch import Tensor

from torch_mapss import distortions
from torch_mapss.distortions import DistortionBank


def print_times(waves: Tensor, rate: int, rounds: int) -> None:
    """Print a table of families: members and milliseconds of either bank."""
    kinds = ("separation", "match")
    banks_by_family = {}
    for family in distortions.FAMILIES:
        banks_by_family[family] = [DistortionBank(kind, only=(family,)) for kind in kinds]
    banks_by_family["all"] = [DistortionBank(kind) for kind in kinds]
    rows = []
    for family, banks in banks_by_family.items():
        row: list[object] = [family]
        for bank in banks:
            took = least_time(lambda b=bank: b(waves, rate), rounds)
            row += [len(bank), f"{1e3 * took:.1f}"]
        rows.append(row)
    print(table(["family", "PS members", "ms", "PM members", "ms"], rows) + "\n")


def vibrato_error(frequency: float, rate: int) -> float:
    """Interpolation error of the warp against the closed form, in dB of the signal."""
    clock = torch.arange(rate, dtype=torch.float64) / rate
    warped = clock + 0.02 / (2 * math.pi * 5) * torch.sin(2 * math.pi * 5 * clock)
    expected = torch.sin(2 * math.pi * frequency * warped)
    warped_sine = distortions.pitch.vibrato(sine(frequency, rate), rate, rate=5.0, depth=0.02)
    inner = slice(rate // 8, -rate // 8)
    return 10 * math.log10(float((warped_sine - expected)[inner].square().mean() / 0.5))


def pitch_error(semitones: int, rate: int) -> float:
    """Deviation of a shifted 440 Hz sine in cents, from its phase over half a second."""
    shifted = distortions.pitch.shift_pitch(sine(440, rate), rate, semitones=semitones)
    expected = 440 * 2 ** (semitones / 12)
    clock = torch.arange(rate, dtype=torch.float64) / rate
    baseband = shifted * torch.exp(-2j * math.pi * expected * clock)
    early, late = (baseband[s * rate // 8 : (s + 2) * rate // 8].mean() for s in (2, 4))
    drift = float((late / early).angle()) / (2 * math.pi * 0.25)  # Hz
    return 1200 * math.log2(1 + drift / expected)


def print_errors(rate: int) -> None:
    """Print the errors of the families that approximate."""
    for share in (0.05, 0.25, 0.45):
        error = vibrato_error(share * rate, rate)
        print(f"* vibrato, interpolation error at {share:.2f} f_s: {error:.1f} dB")
    for semitones in (-4, -2, 2, 4):
        print(f"* pitch {semitones:+d} st, 440 Hz sine: {pitch_error(semitones, rate):+.3f} cents")


def main() -> None:
    """Parse the command line and print both tables."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--seconds", type=float, default=5.0, help="duration of the signals")
    parser.add_argument("--rate", type=int, default=16000, help="Hz")
    parser.add_argument("--sources", type=int, default=2, help="number of signals")
    parser.add_argument("--rounds", type=int, default=3, help="of which the fastest counts")
    options = parser.parse_args()
    torch.set_num_threads(1)
    waves = voices(options.seconds, options.sources, rate=options.rate)
    print(f"{options.sources} sources, {options.seconds:g} s at {options.rate} Hz, one thread:\n")
    print_times(waves, options.rate, options.rounds)
    print_errors(options.rate)


if __name__ == "__main__":
    main()
