"""Slopes of PM as a loss, by distance and convention, and what a convention costs.

    OMP_NUM_THREADS=1 python benchmarks/match_gradients.py --data FOLDER_OF_SEPARATED

FOLDER holds ``manifest.json`` of two-talker mixtures; the estimate of the first source is the
source plus other speech and white noise at a distance of -40 to +20 dB of it. The slope is the
norm of the gradient times the norm of the estimate: by how much the loss changes when the estimate
changes by a part of itself. The cost is that of PM alone, from embeddings, forward and backward,
both conventions in turns and the least of several rounds.
"""

from __future__ import annotations

import argparse
import json
import time
from collections.abc import Callable
from pathlib import Path

import conformal_page
import torch
from bounds_page import table
from selectivity import read
from torch import Tensor

from torch_mapss import MAPSS, DistortionBank, MatchLoss
from torch_mapss import functional as F

CONVENTIONS = ("paper", "reference", "conformal")
MODES = ("linear", "log", "log1p")
LEVELS = (-40, -30, -20, -10, 0, 10, 20)


def estimate(references: Tensor, level: float) -> Tensor:
    """(1, 1, T) the first source and, at ``level`` dB of it, half leakage and half noise."""
    noise = torch.randn(references[:1].shape, generator=torch.Generator().manual_seed(0))
    parts = [x / x.norm() for x in (references[1:2], noise)]
    added = sum(parts) / sum(parts).norm() * references[:1].norm()  # type: ignore[union-attr]
    return (references[:1] + 10 ** (level / 20) * added).unsqueeze(0)


def slope(loss: MatchLoss, bank: object, wave: Tensor) -> tuple[float, float]:
    """Value and relative slope."""
    leaf = wave.clone().requires_grad_()
    value = loss(leaf, bank, attributed=(0,))
    value.backward()
    assert leaf.grad is not None
    return float(value.detach()), float(leaf.grad.norm() * wave.norm())


def gradient_rows(data: Path, seconds: float) -> list[list[str]]:
    items = json.loads((data / "manifest.json").read_text())["items"]
    pairs = [
        torch.stack([read(data / p, seconds) for p in item["references"].values()])
        for item in items[::2]
    ]
    rows = []
    for convention in CONVENTIONS:
        mapss = MAPSS("mel", convention=convention, separation_bank=DistortionBank(size=1))
        banks = [mapss.prepare(pair.unsqueeze(0), measures="match") for pair in pairs]
        for mode in MODES:
            loss = MatchLoss(mapss, mode=mode, frames=24).eval()
            cells = [convention, mode]
            for level in LEVELS:
                found = [
                    slope(loss, bank, estimate(pair, level))
                    for bank, pair in zip(banks, pairs, strict=True)
                ]
                mean = torch.tensor(found).mean(0).tolist()
                cells.append(f"{mean[0]:.3g} / {mean[1]:.2g}")
            rows.append(cells)
    return rows


def least_seconds(rounds: int, calls: dict[str, Callable[[], None]]) -> dict[str, float]:
    """The least processor time of each call, taken in turns so that load falls on all alike."""
    times: dict[str, list[float]] = {name: [] for name in calls}
    for _ in range(rounds):
        for name, call in calls.items():
            start = time.process_time()
            call()
            times[name].append(time.process_time() - start)
    return {name: min(values) for name, values in times.items()}


def cost_rows(rounds: int) -> list[list[str]]:
    rows = []
    for members, features in ((70, 240), (83, 1024), (16, 240)):
        generator = torch.Generator().manual_seed(0)
        references = torch.randn(40, 2, features, generator=generator)
        around = torch.randn(40, 2, members, features, generator=generator)
        outputs = references + 0.3 * torch.randn(40, 2, features, generator=generator)
        distortions = references.unsqueeze(2) + 0.5 * around

        def backward(convention: str, outputs=outputs, others=(references, distortions)) -> None:
            leaf = outputs.clone().requires_grad_()
            F.perceptual_match(leaf, *others, log=True, convention=convention).sum().backward()

        def forward(convention: str, outputs=outputs, others=(references, distortions)) -> None:
            F.perceptual_match(outputs, *others, log=True, convention=convention)

        for label, call in (("forward", forward), ("forward and backward", backward)):
            calls = {
                name: (lambda name=name, call=call: call(name)) for name in ("paper", "conformal")
            }
            least = least_seconds(rounds, calls)
            ratio = least["conformal"] / least["paper"]
            rows.append([str(members), str(features), label, f"{ratio:.2f}"])
    return rows


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--data", type=Path, required=True)
    parser.add_argument("--seconds", type=float, default=2.0)
    parser.add_argument("--rounds", type=int, default=7)
    arguments = parser.parse_args()
    start = time.perf_counter()
    slopes = gradient_rows(arguments.data, arguments.seconds)
    costs = cost_rows(arguments.rounds)
    text = f"""## Slopes of `MatchLoss`, and cost (`match_gradients.py`)

Loss / relative slope against how far the estimate is from its source (half other speech, half
noise), means over three mixtures, 24 frames each, `mel`.

{table(["convention", "mode", *(f"{level:+d} dB" for level in LEVELS)], slopes)}

Processor time of log PM of 40 frames in the conformal convention over that in the paper's, from
embeddings on:

{table(["distortions", "features", "what", "conformal / paper"], costs)}

{time.perf_counter() - start:.0f} s.
"""
    conformal_page.write("slopes", text)


if __name__ == "__main__":
    main()
