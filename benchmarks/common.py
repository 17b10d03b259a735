"""What the benchmarks share: signals, tables, timing, memory."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Sequence

import torch
from torch import Tensor

RATE = 16_000


def voices(
    seconds: float, sources: int = 2, batch: int | None = None, rate: int = RATE, seed: int = 0
) -> Tensor:
    """Synthetic voices: harmonics of a gliding pitch and breath noise, in syllables with pauses.

    Args:
        seconds: duration.
        sources: S, each with its own pitch and pace.
        batch: B mixtures; None: one mixture, without that dimension.
        rate: Hz.
        seed: of pitch, pace and breath.

    Returns:
        (S, T) or (B, S, T), at an RMS of about 0.05.
    """
    generator = torch.Generator("cpu").manual_seed(seed)
    time_s = torch.arange(round(seconds * rate)) / rate
    count = sources * (batch or 1)
    draws = torch.rand(5, count, 1, generator=generator)
    pitch = 90.0 * 2.0 ** (2.0 * draws[0])
    glide = time_s + 0.02 * torch.sin(math.tau * (0.5 + draws[1]) * time_s)
    tone = sum((math.tau * k * pitch * glide).sin() / k for k in range(1, 13))
    breath = 0.1 * torch.randn(count, len(time_s), generator=generator)
    pace = (1.5 + draws[2]) * time_s + draws[3]
    syllables = torch.sin(math.tau * pace).clamp(min=-0.2) + 0.2
    waves = 0.1 * syllables * (tone + breath)
    return waves if batch is None else waves.unflatten(0, (batch, sources))


def sine(frequency: float, rate: int) -> Tensor:
    """One second of a sine, float64."""
    clock = torch.arange(rate, dtype=torch.float64) / rate
    return torch.sin(2 * math.pi * frequency * clock)


def leaky(references: Tensor, gain: float = 0.2) -> Tensor:
    """Estimates (…, S, T) with the next source leaking in."""
    return references + gain * references.roll(1, -2)


def table(header: Sequence[str], rows: Sequence[Sequence[object]]) -> str:
    """A Markdown table."""
    lines = []
    for cells in (header, ["---"] * len(header), *rows):
        lines.append("| " + " | ".join(map(str, cells)) + " |")
    return "\n".join(lines)


def least_time(
    function: Callable[[], object], rounds: int = 3, clock: Callable[[], float] = time.process_time
) -> float:
    """Minimum over several rounds of the seconds of a call, after one call to warm up.

    The minimum depends least on what runs on the machine at the same time.
    """
    function()
    times = []
    for _ in range(rounds):
        began = clock()
        function()
        times.append(clock() - began)
    return min(times)


def in_turn(functions: dict[str, Callable[[], object]], rounds: int = 3) -> dict[str, float]:
    """Minimum processor seconds of each, called in turn, so that ratios compare like with like."""
    for function in functions.values():
        function()
    best = dict.fromkeys(functions, float("inf"))
    for _ in range(rounds):
        for name, function in functions.items():
            began = time.process_time()
            function()
            best[name] = min(best[name], time.process_time() - began)
    return best


def resident(field: str) -> float:
    """Memory of this process in GiB (Linux): ``VmRSS`` is the current value, ``VmHWM`` the peak."""
    with open("/proc/self/status", encoding="ascii") as file:
        lines = dict(line.split(":", 1) for line in file)
    return int(lines[field].split()[0]) / 2**20


def forget_peak() -> None:
    """Reset ``VmHWM`` to ``VmRSS``."""
    with open("/proc/self/clear_refs", "w", encoding="ascii") as file:
        file.write("5")
