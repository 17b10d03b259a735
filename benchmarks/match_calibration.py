"""Is PM below u as often as it says? Outputs drawn as the distortions are.

    OMP_NUM_THREADS=1 python benchmarks/match_calibration.py

If output and distortions are exchangeable, a number that deserves to be called a tail probability
is at most u in a share u of the cases. Every draw is one cluster of 70 distortions and an output in
its retained space, about a reference at 0, points = spectrum^½ · z (the spectrum falling like 1/l):

* Gaussian,
* heavy-tailed: each point scaled by a Student factor of 3 degrees of freedom,
* correlated: every point shares a part of one vector of its cluster (dependent, exchangeable),
* tied: a third of the points drawn coincide with another one, or with the reference.

The last rows go the whole way, from features to scores (`functional`, all points in one graph).
Nothing is tuned: the table is the result.
"""

from __future__ import annotations

import argparse
import math
import time

import torch
from bounds_page import table, write_section
from conformal_page import PAGE, TITLE
from coverage import as_embedding, spectrum
from torch import Tensor

from torch_mapss import functional as F
from torch_mapss.core.conformal import leverages, log_normal_fit, match_rank, smooth_match
from torch_mapss.core.layout import Layout
from torch_mapss.core.manifold import Embedding
from torch_mapss.core.match import match_parts
from torch_mapss.core.settings import Settings

DISTORTIONS = 70
LEVELS = (0.01, 0.05, 0.1, 0.25, 0.5)
KINDS = ("Gaussian", "heavy-tailed", "correlated", "tied")
LAYOUT = Layout((0, 1), 2, DISTORTIONS, None, None)
BATCH = 250  # of two outputs


def exchangeable(kind: str, frames: int, dimension: int, generator: torch.Generator) -> Tensor:
    """(F, 2, 71, d) points of two clusters, the last one of each the output."""
    shape = (frames, 2, DISTORTIONS + 1)

    def normal(*size: int) -> Tensor:
        return torch.randn(*size, generator=generator, dtype=torch.float64)

    z = normal(*shape, dimension)
    if kind == "heavy-tailed":
        z = z / normal(*shape, 3).square().mean(-1, keepdim=True).sqrt()
    if kind == "correlated":
        z = math.sqrt(0.7) * z + math.sqrt(0.3) * normal(frames, 2, 1, dimension)
    if kind == "tied":  # of other points' values, or 0, and then in any order
        third = (DISTORTIONS + 1) // 3
        z[:, :, :third] = z[:, :, third : 2 * third]
        z[:, :, : third // 3] = 0.0
        order = torch.rand(shape, generator=generator).argsort(-1).unsqueeze(-1)
        z = z.gather(2, order.expand_as(z))
    return z * spectrum(dimension).sqrt()


def retained(points: Tensor) -> Embedding:
    """The points as the retained coordinates of a frame, references at 0."""
    clusters = torch.cat([torch.zeros_like(points[:, :, :1]), points[:, :, :-1]], 2)
    embedding = as_embedding(points[:, :, -1], clusters)
    apart = embedding.squared_distances.expand(-1, *[embedding.coordinates.shape[1]] * 2)
    return embedding._replace(squared_distances=apart)


def ranks(points: Tensor) -> Tensor:
    """Rank forms of both outputs of every draw, which are independent."""
    return match_rank(retained(points), LAYOUT).flatten()


def others(points: Tensor) -> dict[str, Tensor]:
    """The other scores of both outputs of every draw."""
    embedding = retained(points)
    smooth, _ = smooth_match(embedding, LAYOUT)
    deviation = log_normal_fit(leverages(embedding, LAYOUT), embedding.degenerate).deviation
    paper, _ = match_parts(embedding, LAYOUT, Settings())
    found = {"smooth form": smooth, "paper": paper, "deviation": deviation}
    return {name: values.flatten() for name, values in found.items()}


def mapped(kind: str, frames: int, generator: torch.Generator) -> dict[str, Tensor]:
    """The same from features: 30 of them, clusters three deviations apart."""
    points = exchangeable(kind, frames, 30, generator)
    references = torch.zeros(frames, 2, 30, dtype=torch.float64)
    references[:, 1, 0] = 3.0
    points = points + references.unsqueeze(2)
    embeddings = points[:, :, -1], references, points[:, :, :-1]
    return {
        "rank form": F.match_rank(*embeddings)[:, 0],
        "smooth form": F.perceptual_match(*embeddings, convention="conformal")[:, 0],
        "paper": F.perceptual_match(*embeddings)[:, 0],
    }


def row_of(label: str, kind: str, name: str, values: Tensor, deviation: str = "") -> list[str]:
    shares = [float((values <= u).double().mean()) for u in LEVELS]
    excess = [
        (share - u) / math.sqrt(u * (1 - u) / len(values))
        for u, share in zip(LEVELS, shares, strict=True)
    ]
    cells = [f"{share:.3f}" for share in shares]
    return [label, kind, name, str(len(values)), *cells, f"{max(excess):+.1f}", deviation]


def rows_of(kind: str, dimension: int, draws: int, fewer: int) -> list[list[str]]:
    """Rank form of ``draws`` outputs, the other scores of ``fewer``."""
    generator = torch.Generator().manual_seed(0)
    rank: list[Tensor] = []
    rest: dict[str, list[Tensor]] = {}
    for start in range(0, draws // 2, BATCH):
        points = exchangeable(kind, BATCH, dimension, generator)
        rank.append(ranks(points))
        if start < fewer // 2:
            for name, values in others(points).items():
                rest.setdefault(name, []).append(values)
    found = {name: torch.cat(parts) for name, parts in rest.items()}
    spread = f"{found.pop('deviation').mean():.2f}"
    rows = [row_of(str(dimension), kind, "rank form", torch.cat(rank))]
    for name, values in found.items():
        deviation = spread if name == "smooth form" else ""
        rows.append(row_of(str(dimension), kind, name, values, deviation))
    return rows


def mapped_rows(kind: str, frames: int) -> list[list[str]]:
    generator = torch.Generator().manual_seed(0)
    parts = [mapped(kind, BATCH, generator) for _ in range(0, frames, BATCH)]
    return [
        row_of("map", kind, name, torch.cat([part[name] for part in parts])) for name in parts[0]
    ]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--draws", type=int, default=20_000, help="of outputs, for the rank form")
    parser.add_argument("--fewer", type=int, default=4000, help="of them for the other scores")
    parser.add_argument("--mapped", type=int, default=1000, help="draws that go through a map")
    parser.add_argument("--dimensions", type=int, nargs="+", default=[2, 20, 45, 66])
    arguments = parser.parse_args()
    start, rows = time.perf_counter(), []
    for dimension in arguments.dimensions:
        for kind in KINDS:
            rows += rows_of(kind, dimension, arguments.draws, arguments.fewer)
    for kind in KINDS:
        rows += mapped_rows(kind, arguments.mapped)
    header = ["d", "points", "PM", "draws", *(f"PM ≤ {u:g}" for u in LEVELS)]
    header += ["largest excess [s.e.]", "deviation of log r"]
    text = f"""## Under exchangeability (`match_calibration.py`)

Share of outputs with PM at most u, for outputs drawn as their {DISTORTIONS} distortions are. A
valid number stays at or below u; the largest excess over u is in standard errors of that share.
`map` rows go through a whole diffusion map. `deviation of log r` is the mean over clusters of the
deviation σ of the smooth form's fit.

{table(header, rows)}

{time.perf_counter() - start:.0f} s.
"""
    write_section("calibration", text, PAGE, TITLE)


if __name__ == "__main__":
    main()
