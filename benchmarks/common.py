"""What the benchmarks share: signals, tables, clocks, memory."""

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
    """Made-up voices: harmonics of a gliding pitch and a little breath, in syllables with pauses.

    Args:
        seconds: duration.
        sources: S, each with a pitch and a pace of its own.
        batch: B mixtures; None: one, without that dimension.
        rate: Hz.
        seed: of pitch, pace and breath.

    Returns:
        (S, T) or (B, S, T), at an RMS of about 0.05.
    """
    generator = torch.Generator("cpu").manual_seed(seed)
    clock = torch.arange(round(seconds * rate)) / rate
    count = sources * (batch or 1)
    draws = torch.rand(5, count, 1, generator=generator)
    pitch = 90.0 * 2.0 ** (2.0 * draws[0])
    glide = clock + 0.02 * torch.sin(math.tau * (0.5 + draws[1]) * clock)
    tone = sum((math.tau * k * pitch * glide).sin() / k for k in range(1, 13))
    breath = 0.1 * torch.randn(count, len(clock), generator=generator)
    syllables = torch.sin(math.tau * ((1.5 + draws[2]) * clock + draws[3])).clamp(min=-0.2) + 0.2
    waves = 0.1 * syllables * (tone + breath)
    return waves if batch is None else waves.unflatten(0, (batch, sources))


def leaky(references: Tensor, gain: float = 0.2) -> Tensor:
    """Estimates (…, S, T) with the next source leaking in."""
    return references + gain * references.roll(1, -2)


def table(header: Sequence[str], rows: Sequence[Sequence[object]]) -> str:
    """A Markdown table."""
    lines = [header, ["---"] * len(header), *rows]
    return "\n".join("| " + " | ".join(str(cell) for cell in line) + " |" for line in lines)


def least_time(
    work: Callable[[], object], rounds: int = 3, clock: Callable[[], float] = time.process_time
) -> float:
    """Least seconds of several rounds, after one to warm up: other work disturbs it little."""
    work()
    times = []
    for _ in range(rounds):
        start = clock()
        work()
        times.append(clock() - start)
    return min(times)


def in_turn(works: dict[str, Callable[[], object]], rounds: int = 3) -> dict[str, float]:
    """Least processor seconds of each, measured in turn so that a ratio compares like with like."""
    for work in works.values():
        work()
    best = dict.fromkeys(works, float("inf"))
    for _ in range(rounds):
        for name, work in works.items():
            start = time.process_time()
            work()
            best[name] = min(best[name], time.process_time() - start)
    return best


def resident(field: str) -> float:
    """GiB of this process (Linux): ``VmRSS`` now, ``VmHWM`` at its highest."""
    with open("/proc/self/status", encoding="ascii") as file:
        lines = dict(line.split(":", 1) for line in file)
    return int(lines[field].split()[0]) / 2**20


def forget_peak() -> None:
    """Let ``VmHWM`` begin anew from ``VmRSS``."""
    with open("/proc/self/clear_refs", "w", encoding="ascii") as file:
        file.write("5")
