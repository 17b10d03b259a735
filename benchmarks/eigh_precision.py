"""What ``eigh="float32"`` changes of scores and of their gradients, on real frames.

    OMP_NUM_THREADS=1 python benchmarks/eigh_precision.py --data FOLDER_OF_SEPARATED

FOLDER holds ``manifest.json`` of two-talker mixtures with outputs of separators. Every frame is
scored twice from the same embeddings, and its gradient to its outputs taken; nothing but the
precision of the eigendecomposition differs. Writes a page of results.
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Callable
from pathlib import Path

import torch
from bounds_page import table, write_section
from selectivity import read
from torch import Tensor

from torch_mapss import MAPSS
from torch_mapss import functional as F
from torch_mapss.audio.loudness import normalize_loudness

PAGE = Path(__file__).parent / "results" / "eigh_precision.md"
TITLE = """# The eigendecomposition in float32

`eigh="float32"` is for cards whose float64 is slow; everything else stays in float64. Written by
`benchmarks/eigh_precision.py`.

**Reading.** In 99 of 100 frames PS keeps four digits, log PM three, and a frame's gradient turns or
grows by at most 2 % of its length; in single frames by 6 to 16 %. So: training and means of many
frames yes; single frames, and comparing with published numbers, no. Nothing is said of speed, which
no card was there to measure.
"""
SYSTEMS = ("AuxIVA", "ILRMA")
SHARES = ("median", "99 %", "largest")
Measure = Callable[..., Tensor]


def score_of(place: int) -> Measure:
    return (
        F.perceptual_separation
        if place == 0
        else lambda *x, **options: F.perceptual_match(*x, log=True, **options)
    )


def clouds(mapss: MAPSS, references: Tensor, outputs: Tensor, most: int) -> list[list[Tensor]]:
    """Outputs, references, distortions and mask of up to ``most`` frames, for PS and for PM."""
    bank = mapss.prepare(references)
    (group,) = bank.groups
    places = group.scored[:, 1]
    places = places[:: max(1, len(places) // most)][:most]
    rate = mapss.grid.sample_rate
    encoded = mapss.encoder(normalize_loudness(outputs, rate, mapss.loudness))
    found = []
    for part in (group.separation, group.match):
        mask = part.mask
        found.append(
            [
                encoded.transpose(0, 1)[places],
                part.references[0].transpose(0, 1)[places],
                part.distortions[0].permute(2, 0, 1, 3)[places],
                None if mask is None else mask.expand(len(places), *mask.shape[1:]),
            ]
        )
    return found


def both(score: Measure, points: list[Tensor], eigh: str) -> tuple[Tensor, Tensor]:
    """Scores (n, S') and the gradient of each frame's sum to its outputs (n, S' M)."""
    outputs, references, distortions, mask = points
    leaf = outputs.double().requires_grad_()
    value = score(leaf, references.double(), distortions.double(), mask=mask, eigh=eigh)
    (gradient,) = torch.autograd.grad(value.sum(), leaf)
    return value.detach(), gradient.flatten(1)


def errors(score: Measure, points: list[Tensor], relative: bool) -> tuple[Tensor, Tensor]:
    """Of every score, and of every frame's gradient beside its length."""
    (exact, slope), (found, near) = (both(score, points, x) for x in ("float64", "float32"))
    scale = exact.abs().clamp(min=1e-3) if relative else torch.ones_like(exact)
    length = slope.norm(dim=-1).clamp(min=1e-300)
    return ((found - exact).abs() / scale).flatten(), (near - slope).norm(dim=-1) / length


def cells(values: Tensor) -> list[str]:
    levels = (values.median(), values.quantile(0.99), values.max())
    return [f"{float(x):.1e}" for x in levels]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--data", type=Path, required=True)
    parser.add_argument("--seconds", type=float, default=3.0)
    parser.add_argument("--mixtures", type=int, default=3)
    parser.add_argument("--frames", type=int, default=60, help="of every output")
    arguments = parser.parse_args()
    items = json.loads((arguments.data / "manifest.json").read_text(encoding="utf-8"))["items"]
    items = items[:: max(1, len(items) // arguments.mixtures)][: arguments.mixtures]
    rows, count = [], 0
    for encoder in ("mel", "waveform"):
        mapss = MAPSS(encoder)
        found: dict[str, list[tuple[Tensor, Tensor]]] = {"PS": [], "log PM, relative": []}
        for item in items:
            waves = _waves(arguments.data, item["references"], arguments.seconds)
            for system in SYSTEMS:
                outputs = _waves(arguments.data, item["outputs"][system], arguments.seconds)
                pair = clouds(mapss, waves, outputs, arguments.frames)
                for place, (name, points) in enumerate(zip(found, pair, strict=True)):
                    found[name].append(errors(score_of(place), points, relative=place == 1))
        for name, parts in found.items():
            scores, slopes = (torch.cat(x) for x in zip(*parts, strict=True))
            rows.append([encoder, name, *cells(scores), *cells(slopes)])
            count = len(slopes)
        print(rows[-2:], flush=True)
    header = ["encoder", "score", *(f"score, {x}" for x in SHARES)]
    header += [f"gradient of a frame, {x}" for x in SHARES]
    text = f"""Differences to float64 over {count} frames for each encoder: {len(items)} mixtures,
outputs of {" and ".join(SYSTEMS)}, whole banks, paper convention. That of a gradient is beside its
length.

{table(header, rows)}
"""
    write_section("precision", text, PAGE, TITLE)


def _waves(data: Path, paths: dict[str, str], seconds: float) -> Tensor:
    return torch.stack([read(data / path, seconds) for path in paths.values()])


if __name__ == "__main__":
    main()
