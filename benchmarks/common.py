"""What the benchmarks share: signals, tables, clocks, memory."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence

import torch
from torch import Tensor

RATE = 16_000


def voices(seconds: float, sources: int = 2) -> Tensor:
    """(S, T) noise whose level swells and falls, another seed for every source."""
    generator = torch.Generator("cpu").manual_seed(0)
    clock = torch.arange(round(seconds * RATE)) / RATE
    level = 1.2 + torch.sin(clock * torch.arange(1, sources + 1)[:, None])
    return 0.1 * level * torch.randn(sources, len(clock), generator=generator)


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
