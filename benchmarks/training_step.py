"""Cost of perceptual losses in a training step, and the effect of smaller banks and fewer frames.

    python benchmarks/training_step.py [--batch 8] [--seconds 4]

One thread; processor seconds, the minimum of several rounds, of which only ratios carry over to
other machines. Mixtures of two sources at 16 kHz, encoder ``mel``; the separator is that of
``recipes/separator_training.py``.
"""

from __future__ import annotations

import argparse
import math
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from common import forget_peak, leaky, least_time, resident, table, voices
from torch import Tensor

from torch_mapss import DecompositionLoss, DistortionBank, MAPSSLoss
from torch_mapss.evaluation.correlation_stats import correlation
from torch_mapss.training.losses import PerceptualLoss

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "recipes"))
from separator_training import Separator


def small(size: int) -> dict[str, DistortionBank]:
    """Banks of PS and PM with ``size`` distortions, as arguments of a loss."""
    return {f"{kind}_bank": DistortionBank(kind, size=size) for kind in ("separation", "match")}


PS_ONLY, PM_ONLY = {"match": 0.0}, {"separation": 0.0, "match": 1.0}
LOSSES: dict[str, Callable[[], PerceptualLoss]] = {
    "PS and PM": lambda: MAPSSLoss(encoder="mel"),
    "PS and PM, 100 frames": lambda: MAPSSLoss(encoder="mel", frames=100),
    "PS and PM, 24 distortions": lambda: MAPSSLoss(encoder="mel", **small(24)),
    "PS and PM, 24 distortions, 100 frames": lambda: MAPSSLoss(
        encoder="mel", frames=100, **small(24)
    ),
    "clearance and fidelity": lambda: DecompositionLoss(encoder="mel"),
    "clearance and fidelity, 100 frames": lambda: DecompositionLoss(encoder="mel", frames=100),
}


class Step:
    """Training steps of the recipe's separator with one loss or another."""

    def __init__(self, references: Tensor) -> None:
        self.references = references
        torch.manual_seed(0)
        self.model = Separator()
        self.optimizer = torch.optim.Adam(self.model.parameters())

    def __call__(self, loss: Callable[[Tensor], Tensor]) -> None:
        loss(self.model(self.references.sum(1))).backward()
        self.optimizer.step()
        self.optimizer.zero_grad()


def costs(references: Tensor) -> str:
    """Table of losses: preparing, forward, forward and backward, and a whole step."""
    step = Step(references)
    without = least_time(lambda: step(lambda e: (e - references).abs().mean()), 2)
    estimates = leaky(references, 0.3).requires_grad_()
    rows: list[list[Any]] = [["none", "", "", "", f"{without:.2f}", "", ""]]
    for name, make in LOSSES.items():
        loss = make()
        bank = loss.prepare(references)

        def gradient(loss: PerceptualLoss = loss, bank: Any = bank) -> object:
            return torch.autograd.grad(loss(estimates, bank), estimates)

        seconds = [
            least_time(lambda loss=loss: loss.prepare(references), 1),
            least_time(lambda loss=loss, bank=bank: loss(estimates, bank), 1),
            least_time(gradient, 1),
        ]
        forget_peak()
        memory_before = resident("VmRSS")
        seconds.append(least_time(lambda loss=loss, bank=bank: step(lambda e: loss(e, bank)), 1))
        peak = 1024 * (resident("VmHWM") - memory_before)
        rows.append([name, *(f"{s:.2f}" for s in seconds)])
        rows[-1] += [f"{bank.nbytes / 2**20:.0f}", f"{peak:.0f}"]
    titles = "loss|preparing, once a mixture [s]|forward [s]|forward and backward [s]"
    titles += "|step of the separator [s]|bank [MiB]|peak of a step [MiB]"
    return table(titles.split("|"), rows)


def smaller_banks(references: Tensor) -> str:
    """Table of bank sizes: value, and rank correlation with the whole bank over estimates."""
    noise = torch.randn(references.shape, generator=torch.Generator().manual_seed(1))
    leaks = (0.03, 0.1, 0.2, 0.3, 0.5, 0.8)
    outputs = [references + leak * (references.flip(1) + 0.05 * noise) for leak in leaks]
    rows = []
    for title, weights in {"1 - PS": PS_ONLY, "log(1 - log PM)": PM_ONLY}.items():
        of_whole_bank: Tensor | None = None
        for size in (None, 40, 24, 16, 8):
            banks = {} if size is None else small(size)
            loss = MAPSSLoss(encoder="mel", reduction="none", **weights, **banks)
            bank = loss.prepare(references)
            values = torch.cat([loss(output, bank).flatten() for output in outputs])
            of_whole_bank = values if of_whole_bank is None else of_whole_bank
            (srcc,) = correlation(values.numpy(), of_whole_bank.numpy(), "srcc")
            rows.append([title, size or "all", f"{float(values.mean()):.3f}", f"{srcc:.3f}"])
    titles = ["loss", "distortions", "mean", "rank correlation with the whole bank"]
    return table(titles, rows)


def fewer_frames(references: Tensor) -> str:
    """Table of numbers of random frames: bias and spread of the loss over draws."""
    estimates = leaky(references, 0.2)
    loss = MAPSSLoss(encoder="mel", **PS_ONLY, **small(16))
    bank = loss.prepare(references)
    exact, rows = float(loss(estimates, bank)), []
    for frames in (8, 25, 50, 100):
        drawn = MAPSSLoss(loss.mapss, frames=frames, **PS_ONLY)
        values = torch.tensor([float(drawn(estimates, bank)) for _ in range(100)])
        error = float(values.std()) / math.sqrt(len(values))
        bias, spread = float(values.mean()) - exact, float(values.std())
        rows.append([frames, f"{bias:+.4f}", f"{error:.4f}", f"{spread:.4f}"])
    count = sum(len(group.scored) for group in bank.groups)
    titles = [f"random frames of {count}", f"bias of 1 - PS ({exact:.4f})", "its standard error"]
    return table([*titles, "spread of one draw"], rows)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--batch", type=int, default=8, help="mixtures of a step")
    parser.add_argument("--seconds", type=float, default=4.0, help="duration of each")
    options = parser.parse_args()
    torch.set_num_threads(1)
    print(f"{options.batch} mixtures of two, {options.seconds:g} s, one thread.\n", flush=True)
    print(costs(voices(options.seconds, batch=options.batch)), flush=True)
    references = voices(2.0, batch=4)
    print("\nA smaller bank is another measure: its values lie elsewhere, their order is kept.\n")
    print(smaller_banks(references), flush=True)
    print(f"\n{fewer_frames(references)}")


if __name__ == "__main__":
    main()
