"""What PS and PM cost a training step: time, memory, and the bias of cheaper settings.

Run ``python benchmarks/training_step.py [--out benchmarks/results/training.md]``. One thread,
processor seconds, the least of several rounds, so that a busy machine disturbs little; ratios
count, times do not. One column is wall time with all threads. Signals are made up here: swelling
harmonic tones, four mixtures of two, four seconds each, 16 kHz, encoder ``mel``, whole banks
(N about 140 points a frame), 100 random frames a step.
"""

from __future__ import annotations

import argparse
import importlib.util
import json
import math
import platform
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from types import ModuleType

import torch
from torch import Tensor

from torch_mapss import MAPSS, DistortionBank, MAPSSLoss, MatchLoss, SeparationLoss

ROUNDS = 4
HERE = Path(__file__).resolve().parent


def least_time(
    work: Callable[[], object],
    rounds: int = ROUNDS,
    clock: Callable[[], float] = time.process_time,
) -> float:
    """Least seconds by ``clock`` of several rounds, after one to warm up."""
    work()
    times = []
    for _ in range(rounds):
        start = clock()
        work()
        times.append(clock() - start)
    return min(times)


def voices(batch: int, seconds: float) -> Tensor:
    """(B, 2, T) harmonic tones that swell and fall, with a little noise."""
    generator = torch.Generator("cpu").manual_seed(0)
    clock = torch.arange(round(seconds * 16000)) / 16000
    shape = (batch, 2, 1)
    pitch = 100 + 300 * torch.rand(shape, generator=generator)
    swell = 2 + 3 * torch.rand(shape, generator=generator)
    tone = sum((math.tau * k * pitch * clock).sin() / k for k in range(1, 8))
    noise = torch.randn(batch, 2, len(clock), generator=generator)
    return 0.05 * (0.3 + (math.tau * swell * clock).sin().square()) * tone + 0.002 * noise


def recipe() -> ModuleType:
    """The training recipe, for its separator."""
    path = HERE.parent / "recipes" / "train_separator.py"
    spec = importlib.util.spec_from_file_location("train_separator", path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules["train_separator"] = module
    spec.loader.exec_module(module)
    return module


def plain_loss(estimates: Tensor, references: Tensor) -> Tensor:
    return (estimates - references).abs().mean()


class Step:
    """Training steps of the recipe's separator with one loss or another."""

    def __init__(self, references: Tensor) -> None:
        self.references = references
        self.model = recipe().new_separator(0)
        self.optimizer = torch.optim.Adam(self.model.parameters())

    def __call__(self, loss: Callable[[Tensor], Tensor]) -> None:
        loss(self.model(self.references.sum(1))).backward()
        self.optimizer.step()
        self.optimizer.zero_grad()


def bare_eigh(frames: int, points: int) -> Callable[[], object]:
    """``torch.linalg.eigh`` of as many matrices as the loss decomposes."""
    generator = torch.Generator("cpu").manual_seed(0)
    x = torch.randn(frames, points, 80, generator=generator, dtype=torch.float64)
    kernels = (-torch.cdist(x, x).square() / 160.0).exp()
    return lambda: torch.linalg.eigh(kernels)


def points_of(mapss: MAPSS, bank: object) -> dict[str, int]:
    """N of each graph: two sources with reference, output and distortions."""
    group = bank.groups[0]  # type: ignore[attr-defined]
    return {k: 2 * (getattr(group, k).distortions.shape[2] + 2) for k in ("separation", "match")}


LOSSES: dict[str, tuple[type[torch.nn.Module], tuple[str, ...]]] = {
    "SeparationLoss": (SeparationLoss, ("separation",)),
    "MatchLoss": (MatchLoss, ("match",)),
    "MAPSSLoss": (MAPSSLoss, ("separation", "match")),
}


class Setup:
    """Mixtures, their prepared bank, and leaky estimates that want a gradient."""

    def __init__(self, frames: int) -> None:
        self.references = voices(4, 4.0)
        self.mapss = MAPSS("mel")
        self.bank = self.mapss.prepare(self.references)
        self.points = points_of(self.mapss, self.bank)
        self.frames = frames
        self.estimates = (self.references + 0.3 * self.references.flip(1)).requires_grad_()

    def loss(self, name: str) -> Callable[[Tensor], Tensor]:
        module = LOSSES[name][0](self.mapss, frames=self.frames)
        return lambda estimates: module(estimates, self.bank)

    def around(self, name: str) -> Callable[[], object]:
        """Forward and backward of a loss alone."""
        loss = self.loss(name)
        return lambda: torch.autograd.grad(loss(self.estimates), self.estimates)

    def bare(self, name: str, clock: Callable[[], float] = time.process_time) -> float:
        """Seconds of the bare eigh of the frames of a loss."""
        kinds = LOSSES[name][1]
        works = [bare_eigh(self.frames, self.points[kind]) for kind in kinds]
        return sum(least_time(work, clock=clock) for work in works)


def wall_ratios(frames: int) -> list[float]:
    """Forward and backward of each loss over the bare eigh: wall time, all threads."""
    setup, ratios = Setup(frames), []
    for name in LOSSES:
        before = setup.bare(name, time.perf_counter)
        mine = least_time(setup.around(name), 2 * ROUNDS, time.perf_counter)
        ratios.append(mine / min(before, setup.bare(name, time.perf_counter)))
    return ratios


def costs(frames: int) -> list[str]:
    """Table of step costs."""
    setup = Setup(frames)
    references, bank, points = setup.references, setup.bank, setup.points
    step = Step(references)
    without = least_time(lambda: step(lambda e: plain_loss(e, references)))
    lines = [
        f"Four mixtures of 4 s, {frames} random frames a step, N = {points['separation']} (PS) and "
        f"{points['match']} (PM); bank in memory {bank.nbytes / 2**20:.0f} MiB.",
        "",
        "| loss | alone, forward [s] | forward + backward [s] | over the bare eigh of its frames | "
        "the same, wall time, all threads | step of the separator with it over without |",
        "|---|---|---|---|---|---|",
    ]
    walls = json.loads(in_own_process("--wall", "--frames", str(frames)))
    for name, wall in zip(LOSSES, walls):
        loss = setup.loss(name)
        forward = least_time(lambda loss=loss: loss(setup.estimates))
        around = least_time(setup.around(name))
        whole = least_time(lambda loss=loss: step(loss), 2)
        lines.append(
            f"| {name} | {forward:.2f} | {around:.2f} | {around / setup.bare(name):.2f} | "
            f"{wall:.2f} | {whole / without:.1f} |"
        )
    preparing = least_time(lambda: setup.mapss.prepare(references), 1)
    lines += [
        "",
        f"The separator's step without: {without:.2f} s. Preparing the bank, once per mixture: "
        f"{preparing:.1f} s for these four, {preparing / without:.0f} steps of the separator; not "
        f"cached, it would be paid in every step. Recombining prepared sources into new mixtures: "
        f"{least_time(lambda: bank.recombined([[0, 1], [1, 2], [2, 3], [3, 0]])):.3f} s.",
    ]
    return lines


def cheaper() -> list[str]:
    """Table of smaller banks and fewer frames: cost, value, and agreement with the whole."""
    references = voices(4, 2.0)
    leaks = [0.03, 0.1, 0.2, 0.3, 0.5, 0.8]
    generator = torch.Generator("cpu").manual_seed(1)
    noise = torch.randn(references.shape, generator=generator)
    outputs = [references + leak * (references.flip(1) + 0.05 * noise) for leak in leaks]
    losses = [("1 - PS", SeparationLoss, {}), ("log(1 - log PM)", MatchLoss, {"mode": "log1p"})]
    lines = [
        "| loss | distortions | seconds, all frames | mean of the loss | rank correlation with the "
        "whole bank, over estimates |",
        "|---|---|---|---|---|",
    ]
    for title, make, options in losses:
        whole: Tensor | None = None
        for size in (None, 40, 24, 16, 8):
            kind = make.measures
            sized = {} if size is None else {f"{kind}_bank": DistortionBank(kind, size=size)}
            loss = make(encoder="mel", reduction="none", **options, **sized)
            bank = loss.mapss.prepare(references, measures=kind)
            seconds = least_time(lambda loss=loss, bank=bank: loss(outputs[0], bank), 1)
            values = torch.cat([loss(output, bank).flatten() for output in outputs])
            whole = values if whole is None else whole
            agreement = spearman(values, whole)
            lines.append(
                f"| {title} | {size or 'all'} | {seconds:.2f} | {float(values.mean()):.3f} | "
                f"{agreement:.3f} |"
            )
    return [*lines, "", *draws(references, outputs[2])]


def draws(references: Tensor, estimates: Tensor) -> list[str]:
    """Table of random frames: spread and bias of the loss over draws."""
    mapss = MAPSS(
        "mel", separation_bank=DistortionBank("separation", size=16),
        match_bank=DistortionBank("match", size=16),
    )  # fmt: skip
    bank = mapss.prepare(references)
    count = sum(len(group.scored) for group in bank.groups)
    lines = [
        f"| random frames of {count} | bias of 1 - PS | its standard error | spread of one draw | "
        "value of all frames |",
        "|---|---|---|---|---|",
    ]
    exact = float(SeparationLoss(mapss)(estimates, bank))
    for frames in (8, 25, 50, 100):
        loss = SeparationLoss(mapss, frames=frames)
        values = torch.tensor([float(loss(estimates, bank)) for _ in range(100)])
        error = float(values.std()) / math.sqrt(len(values))
        lines.append(
            f"| {frames} | {float(values.mean()) - exact:+.4f} | {error:.4f} | "
            f"{float(values.std()):.4f} | {exact:.4f} |"
        )
    return lines


def spearman(x: Tensor, y: Tensor) -> float:
    ranks = torch.stack([x, y]).argsort(-1).argsort(-1).double()
    return float(torch.corrcoef(ranks)[0, 1])


def peak_memory(kind: str) -> float:
    """MiB at the peak of two steps in a process of its own, above those of its start."""
    return float(in_own_process("--memory", kind))


def in_own_process(*options: str) -> str:
    """What this script prints with other options."""
    command = [sys.executable, str(Path(__file__).resolve()), *options]
    return subprocess.run(command, capture_output=True, text=True, check=True).stdout


def resident(name: str) -> float:
    """MiB that Linux notes of this process: VmRSS now, VmHWM at its peak.

    Not ``ru_maxrss``, which a process inherits from the one that started it.
    """
    for line in Path("/proc/self/status").read_text(encoding="ascii").splitlines():
        if line.startswith(name):
            return int(line.split()[1]) / 1024
    raise RuntimeError(f"/proc/self/status has no {name}: memory is measured on Linux only")


def own_peak(kind: str) -> float:
    """MiB this process gains at its peak over the step without the loss, or with it."""
    references = voices(4, 4.0)
    step = Step(references)
    loss: Callable[[Tensor], Tensor] = lambda e: plain_loss(e, references)  # noqa: E731
    start = resident("VmRSS")
    if kind != "without":
        module = MAPSSLoss(encoder="mel", frames=100)
        bank = module.mapss.prepare(references) if kind == "cached" else references
        loss = lambda e: module(e, bank)  # noqa: E731
    for _ in range(2):
        step(loss)
    return resident("VmHWM") - start


def memory() -> list[str]:
    """Peaks of a step, MiB above the process before it."""
    peaks = {kind: peak_memory(kind) for kind in ("without", "cached", "uncached")}
    return [
        "| step | peak above the start [MiB] |",
        "|---|---|",
        f"| without the loss | {peaks['without']:.0f} |",
        f"| with MAPSSLoss, preparing the bank included | {peaks['cached']:.0f} |",
        f"| with MAPSSLoss, prepared in every step | {peaks['uncached']:.0f} |",
    ]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--out", help="Markdown file; the section between its marks is replaced")
    parser.add_argument("--frames", type=int, default=100)
    parser.add_argument("--memory", choices=["without", "cached", "uncached"])
    parser.add_argument("--wall", action="store_true", help="only the column of wall times")
    options = parser.parse_args()
    if options.wall:
        print(json.dumps(wall_ratios(options.frames)))
        return
    torch.set_num_threads(1)
    if options.memory:
        print(own_peak(options.memory))
        return
    lines = [
        f"torch {torch.__version__}, {platform.machine()}, one thread; processor time.",
        "",
        *costs(options.frames),
        "",
        *memory(),
        "",
        *cheaper(),
    ]
    text = "\n".join(lines) + "\n"
    print(text)
    if options.out:
        replace_section(Path(options.out), text)


def replace_section(path: Path, text: str) -> None:
    """Put the text between the marks of a page, which keeps what else is written there."""
    start, end = "<!-- training_step.py -->\n", "<!-- end -->\n"
    page = path.read_text(encoding="utf-8") if path.exists() else start + end
    before, rest = page.split(start)
    path.write_text(before + start + text + end + rest.split(end)[1], encoding="utf-8")


if __name__ == "__main__":
    main()
