"""Does the full space stay within the radius? Random frames and recorded speech; diagnostics.

    OMP_NUM_THREADS=1 python benchmarks/bounds_radius.py --data DIR_OF_SPEECH

``DIR_OF_SPEECH`` holds ``manifest.json`` with ``items`` of ``id``, ``path`` and ``speaker``.
"""

from __future__ import annotations

import argparse
import time
from functools import partial
from pathlib import Path

import torch
from bounds_data import Frames, random_frames, speech_mixtures
from bounds_page import table, write_section
from torch import Tensor

from torch_mapss import MAPSS
from torch_mapss.bounds import diagnostics
from torch_mapss.bounds.match import gamma, match_kernel, match_parts
from torch_mapss.bounds.schur import Options, full_factor, is_retained, schur_parts, whole_space
from torch_mapss.bounds.separation import separation_kernel, separation_sides
from torch_mapss.core import checks
from torch_mapss.core import match as core_match
from torch_mapss.core.diffusion_map import Embedding
from torch_mapss.core.frame_batches import Kernel, score_frames
from torch_mapss.core.gamma import gammaincc
from torch_mapss.core.layout import Layout, presence, split_points
from torch_mapss.core.mahalanobis import RIDGE
from torch_mapss.core.match import gamma_fit, masked_moments
from torch_mapss.core.separation import cluster_statistics
from torch_mapss.core.settings import Settings
from torch_mapss.functional import perceptual_match, perceptual_separation

CONVENTIONS = ("paper", "derived")


def run(frames: Frames, kernel: Kernel) -> tuple[Tensor, ...]:
    options = {"attributed": None, "active": None, "mask": None} | frames.options
    clouds = checks.check_clouds(*frames[:3], **options, minimum_distortions=2)
    clouds = clouds._replace(
        outputs=clouds.outputs.double(),
        references=clouds.references.double(),
        distortions=clouds.distortions.double(),
    )
    return score_frames(clouds, Settings(), kernel, rest=True)


def separation_check(
    embedding: Embedding, layout: Layout, settings: Settings
) -> tuple[Tensor, ...]:
    """|full - retained| of PS, the printed radius, and the error of the Schur identity."""
    sides = separation_sides(embedding, layout, settings)
    a, b = sides.distance.unbind(-1)
    full_a, full_b = (sides.distance.square() + sides.discarded).sqrt().unbind(-1)
    change = (full_b / (full_a + full_b) - b / (a + b)).abs()
    radius, _ = separation_kernel(embedding, layout, settings, Options())
    return change, radius, schur_error(embedding, layout, settings), sides.scored


def schur_error(embedding: Embedding, layout: Layout, settings: Settings) -> Tensor:
    """(F,) largest relative error of retained + discarded, over all points and clusters."""
    full = whole_space(embedding)
    _, clusters = split_points(full.coordinates, layout)
    _, present = presence(layout, len(clusters), clusters.device)
    mean, deviations, divisor = cluster_statistics(clusters, present)
    retained = is_retained(embedding, mean.shape[-1])
    delta = full.coordinates.unsqueeze(1) - mean.unsqueeze(2)
    factor = full_factor(deviations, divisor, retained, settings)
    kept, discarded = schur_parts(factor, delta, retained)
    covariance = deviations.mT @ deviations / divisor[..., None, None]
    covariance.diagonal(dim1=-2, dim2=-1).add_(RIDGE)
    direct = (delta * torch.linalg.solve(covariance, delta.mT).mT).sum(-1)
    return ((kept + discarded) / direct.clamp(min=1e-12) - 1.0).abs().flatten(1).amax(-1)


def match_check(embedding: Embedding, layout: Layout, settings: Settings) -> tuple[Tensor, ...]:
    """|full - retained| of PM, and its radius in both conventions."""
    parts = match_parts(embedding, layout, settings)
    mean, variance = masked_moments(parts.g + parts.gaps, parts.there, parts.members)
    fit = gamma(mean, variance)
    full = gammaincc(fit.k, (parts.a + parts.gap_a) / fit.theta)
    retained, _ = core_match.match_parts(embedding, layout, settings)
    radii = [
        match_kernel(embedding, layout, settings, Options(convention=c))[0] for c in CONVENTIONS
    ]
    fitted = gamma_fit(embedding, layout, settings)
    return (full - retained).abs(), *radii, fitted.defined & ~fitted.collapsed


def summary(name: str, change: Tensor, radius: Tensor) -> list[str]:
    out = change > radius + 1e-9
    return [
        name,
        str(change.numel()),
        f"{int(out.sum())} ({out.double().mean():.2%})",
        f"{(change - radius).clamp(min=0.0).max():.3f}",
        f"{(radius > 0.5).double().mean():.1%}",
        f"{radius.median():.4f}",
        f"{change.median():.4f}",
    ]


def checked(
    label: str, separation: list[Frames], match: list[Frames]
) -> tuple[list[list[str]], float]:
    ps = [run(f, separation_check) for f in separation]
    pm = [run(f, match_check) for f in match]
    change, radius, scored = (torch.cat([r[i] for r in ps]) for i in (0, 1, 3))
    rows = [summary(f"{label}: PS", change[scored], radius[scored])]
    change, printed, derived, scored = (torch.cat([r[i] for r in pm]) for i in range(4))
    rows.append(summary(f"{label}: PM, paper (C₁ = C₂ = 1)", change[scored], printed[scored]))
    rows.append(summary(f"{label}: PM, derived", change[scored], derived[scored]))
    return rows, float(torch.cat([r[2] for r in ps]).max())


def every(frames: Frames, step: int) -> Frames:
    """Every ``step``-th frame."""
    options = {
        name: value[::step] if isinstance(value, Tensor) else value
        for name, value in frames.options.items()
    }
    return Frames(*(x[::step] for x in frames[:3]), options)


def assumptions(separation: list[Frames], match: list[Frames], label: str) -> list[str]:
    """One row of the table of diagnostics."""
    totals, tests, held, reach, rho = [], [], [], [], []
    for ps, pm in zip(separation, match, strict=True):
        totals.append(diagnostics.bank_correlation(*ps[:3], **ps.options).total.flatten())
        test = diagnostics.gamma_fit_test(*pm[:3], **pm.options)
        tests.append(test.statistic.flatten())
        held.append((test.p_value < 0.05).flatten())
        for frames, score in ((ps, perceptual_separation), (pm, perceptual_match)):
            values = score(*frames[:3], **frames.options).T
            reach.append(diagnostics.frame_correlation(values, lags=20).gap)
        some = every(ps, 10)
        rho.append(diagnostics.source_correlation(*some[:3], **some.options, draws=40).mean)
    total, statistic = torch.cat(totals), torch.cat(tests)
    gaps = torch.stack(reach).reshape(len(separation), 2, -1)
    return [
        label,
        f"{total.mean():.2f} ({total.quantile(0.1):.2f} to {total.quantile(0.9):.2f})",
        f"{(1.0 / (1.0 + 2.0 * total).clamp(min=1.0)).mean():.2f}",
        f"{statistic.median():.2f}",
        f"{torch.cat(held).double().mean():.0%}",
        f"{gaps[:, 0].double().mean():.1f} / {gaps[:, 1].double().mean():.1f}",
        f"{torch.stack(rho).mean():.2f}",
    ]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument(
        "--data", type=Path, help="folder of the speech; random frames alone without"
    )
    parser.add_argument("--frames", type=int, default=10_000, help="random frames")
    parser.add_argument("--pairs", type=int, default=6, help="mixtures of two utterances")
    parser.add_argument("--seconds", type=float, default=5.0)
    arguments = parser.parse_args()
    start = time.perf_counter()
    blocks = [random_frames(1000, 30, seed) for seed in range(-(-arguments.frames // 1000))]
    rows, error = checked("random", blocks, blocks)
    notes, diagnosis = [f"random {error:.0e}"], []
    for encoder in ("mel", "waveform") if arguments.data else ():
        mapss = MAPSS(encoder)
        mixtures = partial(speech_mixtures, arguments.data, mapss, arguments.pairs)
        _, separation, match = zip(*mixtures(arguments.seconds, 1), strict=True)
        more, error = checked(f"speech, {encoder}", list(separation), list(match))
        rows += more
        notes.append(f"speech, {encoder} {error:.0e}")
        diagnosis.append(assumptions(list(separation), list(match), encoder))
    header = ["frames", "scores", "outside the radius", "by at most", "radius above ½"]
    header += ["median radius", "median change"]
    columns = ["encoder", "Σρ̂ along the bank (10 to 90 %)", "n_eff/n", "KS distance"]
    columns += ["p < 0.05", "g of PS / PM scores", "ρ_l of PS"]
    text = f"""## Truncation (`bounds_radius.py`)

The score over all N-1 coordinates (j* kept) against the score over d: how often the change is
outside the radius, and how often the radius says nothing. PS: [eq:truncation_error_ps]; it cannot
be left (distances only grow, see `torch_mapss/_separation_error.py`). PM: the printed box with
C₁ = C₂ = 1, and the derived one, which uses the full-space k and θ.

{table(header, rows)}

Largest relative error of retained + discarded = full ridge distance, all points and clusters:
{"; ".join(notes)}.
"""
    if diagnosis:
        text += f"""
## Assumptions on recorded speech (`bounds_radius.py`)

{arguments.pairs} mixtures of two speakers, {arguments.seconds:g} s each, estimates with leakage and
noise. The paper saw Σρ̂ = 0.2 (n_eff/n = 0.7) and independence beyond g = 4 frames. KS: distance of
the squared distances of a cluster from the Gamma fitted to them, and how often a test rejects it
(p values are too large, as the Gamma is fitted). g: last lag before the first insignificant
autocorrelation of the frame scores (20 at most). ρ_l: correlation of the errors of two sources.

{table(columns, diagnosis)}
"""
    write_section("radius", f"{text}\n{time.perf_counter() - start:.0f} s.\n")


if __name__ == "__main__":
    main()
