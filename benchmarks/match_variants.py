r"""Why the smooth form of PM is as it is: its ridge, shift and fit, held against others.

    OMP_NUM_THREADS=1 python benchmarks/match_variants.py --data FOLDER [--step 20] [--draws 10000]

All variants measure an output among its distortions by r, the squared distance with the point
itself taken out of the covariance; see :mod:`torch_mapss.core.conformal`. They differ in

* the ridge: κ of the mean variance, or the weight of Chen et al. (2010), which assumes Gaussians
  ("oracle approximating shrinkage"),
* the shift c of the log-normal of :math:`r + c\,\bar r`, or median and MAD of log r without a
  shift, or the Gamma of the mean and variance of r.

Each is held against laws (is it at most u in a share u of exchangeable draws; does it stay where it
is when some distortions change nothing) and against the listeners of FOLDER/ward2018 and
FOLDER/p835ref, as in ``rated_match.py``. The variants live here alone; the one with the settings of
the package must equal it, or the script ends with an error.
"""

from __future__ import annotations

import argparse
import math
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import NamedTuple

import conformal_page
import torch
from bounds_data import Frames
from bounds_page import table
from match_calibration import exchangeable, layout, retained
from rated_match import (
    SETS,
    Output,
    by_track,
    mean_over_tracks,
    outputs,
    scored,
    with_ratings,
)
from torch import Tensor

from torch_mapss.core import checks
from torch_mapss.core.conformal import KAPPA, SHIFT, log_match, match_rank
from torch_mapss.core.diffusion_map import Embedding
from torch_mapss.core.frame_batches import score_frames
from torch_mapss.core.gamma import both_tails
from torch_mapss.core.layout import Layout
from torch_mapss.core.match import attributed_deviations, masked_moments, match_parts
from torch_mapss.core.settings import Settings

MEMBERS = 70
DIMENSIONS = (2, 20, 66)
KINDS = ("Gaussian", "heavy-tailed", "tied")
NEUTRAL = (0, 1, 3, 8)
REACH = 3.0  # times too far: the output whose log PM must not hang on neutral distortions
BATCH = 250
LEVELS = (0.01, 0.05, 0.5)
SATURATED = math.log(1e-6)
RATED = ("ward2018", "p835ref")
TINY = 1e-300  # stands for a distance of 0 under a logarithm


class Cluster(NamedTuple):
    """Deviations of distortions and output from their reference."""

    rows: Tensor  # (..., P + 1, D), the output last; zero where absent or beyond d
    there: Tensor  # (..., P) bool
    count: Tensor  # (...) N_p
    dimension: Tensor  # (...) d


def cluster(embedding: Embedding, of: Layout) -> Cluster:
    deviations, output, there, count = attributed_deviations(embedding, of)
    dimension = embedding.dimension.unsqueeze(-1).expand_as(count)
    return Cluster(torch.cat([deviations, output.unsqueeze(-2)], -2), there, count, dimension)


# --------------------------------------------------------------------------------------------
# Ridges: weights a and b of aS + bI
# --------------------------------------------------------------------------------------------

Ridge = Callable[[Tensor, Tensor, Tensor], tuple[Tensor, Tensor]]  # S, n, d -> a, b


def share(kappa: float) -> Ridge:
    """S + κ(tr S/d)I."""

    def weights(s: Tensor, points: Tensor, dimension: Tensor) -> tuple[Tensor, Tensor]:
        variance = s.diagonal(dim1=-2, dim2=-1).sum(-1) / dimension
        return torch.ones_like(variance), kappa * variance

    return weights


def oas_weight(s: Tensor, points: Tensor, dimension: Tensor) -> Tensor:
    r"""The share of the sphere in :math:`(1 - w)S + w(\mathrm{tr}\,S/d)I` by Chen et al. (2010).

    .. math:: w = \min\Big(1, \frac{(1 - 2/d)\,\mathrm{tr}\,S^2 + \mathrm{tr}^2 S}
              {(n + 1 - 2/d)(\mathrm{tr}\,S^2 - \mathrm{tr}^2 S/d)}\Big), their equation (23), for
    n Gaussian points of known mean.
    """
    squares = s.square().sum((-2, -1))  # tr S²
    trace = s.diagonal(dim1=-2, dim2=-1).sum(-1).square()
    above = (1.0 - 2.0 / dimension) * squares + trace
    below = (points + 1.0 - 2.0 / dimension) * (squares - trace / dimension)
    return torch.where(below > above, above / below.clamp(min=TINY), 1.0)


def oas(s: Tensor, points: Tensor, dimension: Tensor) -> tuple[Tensor, Tensor]:
    w = oas_weight(s, points, dimension)
    return 1.0 - w, w * s.diagonal(dim1=-2, dim2=-1).sum(-1) / dimension


def distances(given: Cluster, ridge: Ridge) -> Tensor:
    """r (..., P + 1): Δᵀ(a(S - ΔΔᵀ/n) + bI)⁻¹Δ of every point."""
    rows, points = given.rows, (given.count + 1).to(given.rows.dtype)
    s = rows.mT @ rows / points[..., None, None]
    a, b = ridge(s, points, given.dimension.to(rows.dtype))
    b = torch.where(b > 0.0, b, 1.0)
    matrix = a[..., None, None] * s + b[..., None, None] * torch.eye(s.shape[-1], dtype=s.dtype)
    h = (rows * torch.cholesky_solve(rows.mT, torch.linalg.cholesky(matrix)).mT).sum(-1)
    return h / (1.0 - (a / points).unsqueeze(-1) * h)


# --------------------------------------------------------------------------------------------
# Fits: log of the tail of the output among the distortions
# --------------------------------------------------------------------------------------------

Fit = Callable[[Tensor, Cluster], Tensor]  # r, cluster -> log PM


def log_tail(z: Tensor) -> Tensor:
    return torch.special.log_ndtr(-z)


def log_normal(shift: float) -> Fit:
    """The shifted log-normal of mean and deviation, given that r is not negative."""

    def fit(r: Tensor, given: Cluster) -> Tensor:
        mean, _ = masked_moments(r[..., :-1], given.there, given.count)
        c = shift * mean.clamp(min=TINY)
        logs = (r + c.unsqueeze(-1)).clamp(min=TINY).log()
        middle, variance = masked_moments(logs[..., :-1], given.there, given.count)
        deviation = variance.clamp(min=TINY).sqrt()
        nearest = (c.log() - middle) / deviation
        return log_tail((logs[..., -1] - middle) / deviation) - log_tail(nearest)

    return fit


def robust_normal(r: Tensor, given: Cluster) -> Tensor:
    """Median and MAD of log r, whose deviation is 1.4826 MAD for a Gaussian."""
    logs = r.clamp(min=TINY).log()
    known = torch.where(given.there, logs[..., :-1], math.nan)
    middle = known.nanmedian(-1).values
    spread = 1.4826 * (known - middle.unsqueeze(-1)).abs().nanmedian(-1).values
    return log_tail((logs[..., -1] - middle) / spread.clamp(min=TINY))


def gamma(r: Tensor, given: Cluster) -> Tensor:
    """The Gamma of the same mean and variance."""
    mean, variance = masked_moments(r[..., :-1], given.there, given.count)
    shape = mean.square() / variance.clamp(min=TINY)
    _, log = both_tails(shape, r[..., -1] * shape / mean.clamp(min=TINY))
    return log


DEFAULT = f"log-normal, κ = {KAPPA:g}, c = {SHIFT:g}"
VARIANTS: dict[str, tuple[Ridge, Fit]] = {
    DEFAULT: (share(KAPPA), log_normal(SHIFT)),
    **{f"κ = {k:g}": (share(k), log_normal(SHIFT)) for k in (1e-3, 1e-2, 1.0)},
    "OAS weight": (oas, log_normal(SHIFT)),
    **{f"c = {c:g}": (share(KAPPA), log_normal(c)) for c in (0.01, 0.03, 0.3, 1.0)},
    "median and MAD": (share(KAPPA), robust_normal),
    "Gamma": (share(KAPPA), gamma),
}
PACKAGE = "the package"
NAMES = (*VARIANTS, "rank form", "paper")


def all_scores(embedding: Embedding, of: Layout, settings: Settings) -> tuple[Tensor, ...]:
    """log PM (F, S') of every variant, of the rank form, of the paper's, and of the package."""
    given = cluster(embedding, of)
    r = {ridge: distances(given, ridge) for ridge, _ in VARIANTS.values()}
    found = [fit(r[ridge], given) for ridge, fit in VARIANTS.values()]
    rank, (_, paper) = match_rank(embedding, of).log(), match_parts(embedding, of, settings)
    return *found, rank, paper, log_match(embedding, of)


def named(values: Sequence[Tensor]) -> dict[str, Tensor]:
    """By name; checks that the variant with the package's settings is the package's."""
    found = dict(zip((*NAMES, PACKAGE), values, strict=True))
    ours, theirs = found.pop(PACKAGE), found[DEFAULT]
    if not torch.allclose(ours, theirs, rtol=1e-6, atol=1e-9):
        raise SystemExit(f"the package differs by {float((ours - theirs).abs().max()):g}")
    return found


# --------------------------------------------------------------------------------------------
# Laws
# --------------------------------------------------------------------------------------------


def shares(draws: int) -> dict[tuple[str, int], dict[str, dict[float, float]]]:
    """How often PM is at most u, by law and d, variant, and u."""
    found = {}
    for kind in KINDS:
        for dimension in DIMENSIONS:
            generator = torch.Generator().manual_seed(0)
            parts = []
            for _ in range(0, draws // 2, BATCH):
                points = exchangeable(kind, BATCH, MEMBERS, dimension, generator)
                parts.append(named(all_scores(retained(points), layout(MEMBERS), Settings())))
            logs = {name: torch.cat([part[name] for part in parts]) for name in NAMES}
            found[kind, dimension] = {
                name: {u: float((log.exp() <= u).double().mean()) for u in LEVELS}
                for name, log in logs.items()
            }
    return found


def steadiness() -> dict[int, dict[str, float]]:
    """Mean log PM of an output three times too far, some distortions of which are neutral."""
    generator = torch.Generator().manual_seed(0)
    points = exchangeable("Gaussian", BATCH, MEMBERS, 20, generator)
    points[:, :, -1] *= REACH
    found = {}
    for neutral in NEUTRAL:
        points[:, :, :neutral] *= 1e-9
        logs = named(all_scores(retained(points), layout(MEMBERS), Settings()))
        found[neutral] = {name: float(log.mean()) for name, log in logs.items()}
    return found


def laws(draws: int) -> tuple[list[str], dict[str, list[str]]]:
    """The columns of the laws, by variant."""
    calibration, steady = shares(draws), steadiness()
    header = ["variant", *(f"≤ 0.05, {kind}" for kind in KINDS), "≤ 0.01, most", "≤ 0.5, most"]
    header += [f"log PM of a bad output, {'/'.join(map(str, NEUTRAL))} neutral"]
    rows = {name: [name] for name in NAMES}
    for name, cells in rows.items():
        for kind in KINDS:
            each = (calibration[kind, d][name][0.05] for d in DIMENSIONS)
            cells.append(" / ".join(f"{value:.3f}" for value in each))
        for u in (0.01, 0.5):
            cells.append(f"{max(found[name][u] for found in calibration.values()):.3f}")
        cells.append(" / ".join(f"{steady[count][name]:.1f}" for count in NEUTRAL))
    return header, rows


# --------------------------------------------------------------------------------------------
# Listeners
# --------------------------------------------------------------------------------------------


def of_frames(frames: Frames) -> dict[str, Tensor]:
    """log PM (F, S') by variant; 0 where a source is inactive."""
    outputs, references, distortions, options = frames
    names = ("attributed", "active", "mask")
    clouds = checks.check_clouds(
        outputs, references, distortions, *(options.get(name) for name in names), 2
    )
    values, there = score_frames(clouds, Settings(), all_scores), scored(frames)
    for name, log in zip((*NAMES, PACKAGE), values, strict=True):
        if not log[there].isfinite().all():
            raise SystemExit(f"{name}: log PM of {int((~log[there].isfinite()).sum())} frames")
    return named([torch.where(there, log.double(), 0.0) for log in values])


def correlation_cells(root: Path, name: str, given: list[Output]) -> tuple[list[str], dict]:
    """Names of the columns, and their cells by variant; a star as the section explains."""
    of_track = by_track(given)
    each = {variant: with_ratings(root, SETS[name], of_track, variant) for variant in NAMES}
    cells = {
        variant: [
            mean_over_tracks(mine, default)
            for (_, mine), (_, default) in zip(found, each[DEFAULT], strict=True)
        ]
        for variant, found in each.items()
    }
    return [f"{name}: {column}" for column, _ in each[DEFAULT]], cells


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--data", type=Path, required=True)
    parser.add_argument("--step", type=int, default=20, help="score every n-th frame")
    parser.add_argument("--draws", type=int, default=10_000, help="of outputs, for the laws")
    arguments = parser.parse_args()
    start = time.process_time()
    header, rows = laws(arguments.draws)
    counts: list[str] = []
    for name in RATED:
        write(header, rows, counts, arguments)
        root = arguments.data / name
        given = list(outputs(root, SETS[name], "mel", arguments.step, 0, of_frames))
        frames = sum(len(output.log_pm[DEFAULT]) for output in given)
        counts.append(f"`{name}`: {len(given)} outputs, {frames} frames")
        header.append(f"{name}: PM < 1e-6")
        for variant, cells in rows.items():
            every = torch.cat([output.log_pm[variant] for output in given])
            cells.append(f"{(every < SATURATED).double().mean():.1%}")
        columns, found = correlation_cells(root, name, given)
        header += columns
        for variant, cells in rows.items():
            cells += found[variant]
    write(header, rows, counts, arguments)
    print(f"{time.process_time() - start:.0f} s")


def write(
    header: list[str], rows: dict[str, list[str]], counts: list[str], arguments: argparse.Namespace
) -> None:
    most = "/".join(map(str, DIMENSIONS))
    text = f"""## Other ridges, shifts and fits of the smooth form (`match_variants.py`)

The first row is the package's and equals it; every other one differs in what it names. `≤ 0.05`:
share of {arguments.draws} outputs, drawn as their {MEMBERS} distortions are, with PM at most 0.05,
for d = {most}; `≤ 0.01, most` and `≤ 0.5, most`: the largest such share of these nine laws. Bad
output: {REACH:g} times too far among Gaussian points, d = 20, with so many of the {MEMBERS}
distortions that change nothing. Listeners: `mel`, no leakage members, every {arguments.step}th
frame; SRCC within tracks (95 % interval over tracks), with a star where the difference from the
first row, within tracks, has an interval without 0 (of the many cells one in twenty by chance).
{"; ".join(counts)}.

{table(header, list(rows.values()))}
"""
    conformal_page.write("variants", text)


if __name__ == "__main__":
    main()
