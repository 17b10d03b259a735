"""How often the half-widths of the scores hold.

    OMP_NUM_THREADS=1 python benchmarks/coverage.py [--parts banks excerpts]

**PS and PM**: clusters drawn from known distributions. Every draw is one frame in its retained
space: two clusters of 71 points (a reference and 70 distortions) and one output each. Points are
mean + spectrum^½ · z with z

* Gaussian,
* heavy-tailed: independent Student t of 5 degrees of freedom, scaled to unit variance,
* correlated: Gaussian, each point correlated by 0.3 with the one before,

and, for PS, Gaussian with all coordinates 30 times smaller ("small") or all distances 20 times
larger ("far"), both of which hardly change how well PS is estimated.

The score with the true mean and covariance (for PM the true moments of the squared distances) is
known in closed form; an interval holds if that score is no further than the tail from the estimated
one. No parameter is tuned to the table.

**Clearance and fidelity**, of frames and of utterances, with other draws of a bank. Of the 70
members of PS's bank 20 are drawn at random, the same for both sources; a half-width holds if a
draw's score is no further than that from the mean over all draws. Drawn without replacement from
70, these banks differ less than independently drawn ones would. The signals are two synthetic
voices, with leakage in one output and noise in the other.

**Excerpts**: clearance and fidelity of a whole signal estimated from a few seconds of it, with the
standard errors that an evaluation states, over draws of the excerpts. In one signal levels, leakage
and noise rise and fall slowly; the second one is dither except for ten seconds of music.
"""

from __future__ import annotations

import argparse
import math
from typing import NamedTuple

import torch
from common import RATE, leaky, table, voices
from torch import Tensor

from torch_mapss import MAPSS, DistortionBank, functional
from torch_mapss.audio.loudness import at_loudness
from torch_mapss.bounds import utterance_decomposition_bounds
from torch_mapss.bounds.bootstrap import bootstrap_match, bootstrap_separation, half_width
from torch_mapss.bounds.match import match_widths
from torch_mapss.bounds.separation import separation_widths
from torch_mapss.bounds.settings import BoundSettings
from torch_mapss.core.diffusion_map import FrameMaps
from torch_mapss.core.gamma import gammaincc
from torch_mapss.core.mahalanobis import RIDGE
from torch_mapss.core.points import Points
from torch_mapss.core.pooling import masked_mean, pool_fidelity
from torch_mapss.core.settings import MapSettings
from torch_mapss.evaluation import pooled
from torch_mapss.evaluation.excerpts import excerpt_spans

DISTORTIONS = 70
CONFIDENCES = (0.80, 0.90, 0.95)
CORRELATION = 0.3
KURTOSIS = {"Gaussian": 3.0, "heavy-tailed": 9.0, "correlated": 3.0}  # of one coordinate
SCALES = {"small": (1.0 / 30.0, 1.0), "far": (1.0, 20.0)}  # of coordinates, of distances
KINDS = {"PS": [*KURTOSIS, *SCALES], "PM": [*KURTOSIS]}
ROWS: dict[str, BoundSettings] = {
    "paper": BoundSettings(convention="paper"),
    "reference": BoundSettings(convention="reference"),
    "derived": BoundSettings(convention="derived"),
}
PS_ROWS = {"derived, Bartlett": BoundSettings(convention="derived", n_eff="bartlett")}
PM_ROWS = {"derived, box not cut": BoundSettings(convention="derived", cap=math.inf)}


class Sample(NamedTuple):
    """Frames and the scores with true statistics."""

    maps: FrameMaps
    truth: Tensor  # (F, 2)


def noise(kind: str, frames: int, dimension: int, generator: torch.Generator) -> Tensor:
    """z (F, 2, 71, d) of unit variance."""
    shape = (frames, 2, DISTORTIONS + 1, dimension)
    z = torch.randn(shape, generator=generator, dtype=torch.float64)
    if kind == "heavy-tailed":
        chi = torch.randn(*shape, 5, generator=generator, dtype=torch.float64).square().sum(-1)
        return z * (3.0 / chi).sqrt()
    if kind == "correlated":
        for p in range(1, DISTORTIONS + 1):
            z[:, :, p] *= math.sqrt(1.0 - CORRELATION**2)
            z[:, :, p] += CORRELATION * z[:, :, p - 1]
    return z


def unit_vectors(frames: int, dimension: int, generator: torch.Generator) -> Tensor:
    """Random directions (F, 2, d)."""
    x = torch.randn(frames, 2, dimension, generator=generator, dtype=torch.float64)
    return x / x.norm(dim=-1, keepdim=True)


def spectrum(dimension: int) -> Tensor:
    """Covariance eigenvalues, falling like 1/l."""
    return 1.0 / torch.arange(1, dimension + 1, dtype=torch.float64)


def as_maps(outputs: Tensor, clusters: Tensor) -> FrameMaps:
    """The maps whose coordinates are outputs (F, 2, d) and clusters (F, 2, 71, d)."""
    frames, _, _, dimension = clusters.shape
    points = torch.cat([outputs, clusters[:, :, 0], clusters[:, :, 1:].flatten(1, 2)], 1)
    nothing = torch.zeros(frames, 1, 1, dtype=torch.float64)
    return FrameMaps(
        coordinates=points,
        dimension=torch.full((frames,), dimension),
        eigenvalues=nothing[:, 0],
        stationary=nothing[:, 0],
        squared_distances=nothing,
        degenerate=torch.zeros(frames, dtype=torch.bool),
        needs_values=torch.tensor(False),
        all_coordinates=points,
    )


def separation_sample(kind: str, frames: int, dimension: int, seed: int) -> Sample:
    """Clusters 3√d apart, outputs at 0.3 to 1.5 √d of their own (Mahalanobis)."""
    generator = torch.Generator().manual_seed(seed)
    scale, farther = SCALES.get(kind, (1.0, 1.0))
    root, reach = scale * spectrum(dimension).sqrt(), farther * math.sqrt(dimension)
    mean = 1.5 * reach * root * unit_vectors(frames, dimension, generator)[:, :1]
    mean = torch.cat([mean, -mean], 1)
    clusters = mean.unsqueeze(2) + root * noise(kind, frames, dimension, generator)
    length = 0.3 + 1.2 * torch.rand(frames, 2, 1, generator=generator, dtype=torch.float64)
    outputs = mean + reach * length * root * unit_vectors(frames, dimension, generator)
    delta = outputs.unsqueeze(2) - mean.unsqueeze(1)  # output, cluster
    distance = (delta.square() / (root.square() + RIDGE)).sum(-1).sqrt()
    attributed = distance.diagonal(dim1=1, dim2=2)  # to the output's own cluster
    foreign = distance.flip(2).diagonal(dim1=1, dim2=2)
    return Sample(as_maps(outputs, clusters), foreign / (attributed + foreign))


def match_sample(kind: str, frames: int, dimension: int, seed: int) -> Sample:
    """References at the centre of their distortions; outputs at 0.6 to 1.4 of the mean distance."""
    generator = torch.Generator().manual_seed(seed)
    variance = spectrum(dimension)
    clusters = variance.sqrt() * noise(kind, frames, dimension, generator)
    clusters[:, :, 0] = 0.0
    length = 0.6 + 0.8 * torch.rand(frames, 2, 1, generator=generator, dtype=torch.float64)
    outputs = (length * dimension).sqrt() * variance.sqrt()
    outputs = outputs * unit_vectors(frames, dimension, generator)
    share = variance / (variance + RIDGE)  # g = Σ share z²
    mean, spread = share.sum(), (KURTOSIS[kind] - 1.0) * share.square().sum()
    a = (outputs.square() / (variance + RIDGE)).sum(-1)
    truth = gammaincc((mean.square() / spread).expand_as(a), a * mean / spread)
    return Sample(as_maps(outputs, clusters), truth)


def half_widths(measure: str, sample: Sample, draws: int) -> dict[str, list[Tensor]]:
    """Name -> tails (F, 2) at every confidence; under "score" the estimated score."""
    kernel = separation_widths if measure == "PS" else match_widths
    resample = bootstrap_separation if measure == "PS" else bootstrap_match
    frames = len(sample.truth)
    blank = torch.zeros(frames, 2, DISTORTIONS, 0)  # only the map is read
    record = Points(blank[:, :, 0], blank[:, :, 0], blank, (0, 1))
    tails = {}
    for name, options in (ROWS | (PS_ROWS if measure == "PS" else PM_ROWS)).items():
        graph = MapSettings(convention="reference" if name == "reference" else "paper")
        tails[name] = [
            kernel(sample.maps, record, graph, options._replace(confidence=c))[1]
            for c in CONFIDENCES
        ]
    score, resampled = resample(sample.maps, record, MapSettings(), draws, 0)
    tails["bootstrap"] = [half_width(resampled, score, c) for c in CONFIDENCES]
    tails["score"] = [score]
    return tails


def rows_of(measure: str, kind: str, dimension: int, frames: int, draws: int) -> list[list[str]]:
    """A row for each kind of interval, and one with the median error of the score."""
    sample = (separation_sample if measure == "PS" else match_sample)(kind, frames, dimension, 1)
    tails_by_name = half_widths(measure, sample, draws)
    # One output of each frame, since its two outputs are not independent.
    error = (tails_by_name.pop("score")[0] - sample.truth).abs()[:, 0]
    rows = []
    for name, tails in tails_by_name.items():
        coverage = [f"{(error <= tail[:, 0]).double().mean():.1%}" for tail in tails]
        medians = [f"{tail[:, 0].median():.3f}" for tail in tails]
        rows.append([measure, str(dimension), kind, name, *coverage, *medians])
    median_error = f"{error.median():.3f}"
    rows.append([measure, str(dimension), kind, "(median error)", "", "", "", median_error, "", ""])
    return rows


# --------------------------------------------------------------------------------------------
# Clearance and fidelity: other draws of the bank
# --------------------------------------------------------------------------------------------

DRAWN = 20  # members of a bank


def clouds_of(seconds: float) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Outputs (F, 2, M), references (F, 2, M), distortions (F, 2, 70, M), active (F, 2)."""
    references = voices(seconds)
    generator = torch.Generator().manual_seed(1)
    outputs = leaky(references)
    outputs[1] = references[1] + 0.2 * outputs[1].std() * torch.randn(
        outputs.shape[1:], generator=generator
    )
    mapss = MAPSS("mel", measures="decomposition", decomposition_bank=DistortionBank("separation"))
    clips = mapss.prepare(references).groups[0]
    encoded = clips.encoded["decomposition"]
    assert encoded.mask is None
    levelled = at_loudness(outputs, RATE, mapss.config.loudness, gates=clips.gates[0])
    embedded = mapss.decomposition_encoder(levelled), encoded.references[0], encoded.distortions[0]
    frames_first = (x.movedim(-2, 0) for x in embedded)
    return *frames_first, clips.active[0].T


def draws_of_banks(seconds: float, draws: int, confidence: float = 0.95) -> list[list[str]]:
    """Rows for frames and for the utterance, for clearance and fidelity."""
    outputs, references, distortions, active = clouds_of(seconds)
    generator = torch.Generator().manual_seed(0)
    values: dict[str, list[Tensor]] = {}
    half_widths: dict[str, list[Tensor]] = {}
    all_active = active.all(-1)  # frames in which both scores are defined
    for _ in range(draws):
        members = torch.randperm(distortions.shape[2], generator=generator)[:DRAWN]
        chosen = distortions[all_active][:, :, members]
        points = outputs[all_active], references[all_active], chosen
        frames = {
            "clearance": functional.clearance(*points),
            "fidelity": functional.fidelity(*points),
        }
        of_frames = functional.decomposition_bounds(*points, confidence=confidence)
        of_utterance = utterance_decomposition_bounds(*points, confidence=confidence)
        everywhere = torch.ones_like(frames["clearance"].T, dtype=torch.bool)
        utterance = {
            "clearance": masked_mean(frames["clearance"].T, everywhere),
            "fidelity": pool_fidelity(frames["fidelity"].T),
        }
        for name in frames:
            for level, score, bounds in (
                (f"{name}, frame", frames[name], getattr(of_frames, name)),
                (f"{name}, utterance", utterance[name], getattr(of_utterance, name)),
            ):
                values.setdefault(level, []).append(score)
                half_widths.setdefault(level, []).append(bounds.tail)
    rows = []
    for level in values:
        score, width = torch.stack(values[level]), torch.stack(half_widths[level])
        holds = (score - score.mean(0)).abs() <= width + 1e-6
        numbers = f"{score.std(0).mean():.4f}", f"{width.mean():.4f}"
        rows.append([level, f"{seconds:g} s", *numbers, f"{holds.double().mean():.1%}"])
    return rows


# --------------------------------------------------------------------------------------------
# Excerpts: the scores of the whole from a few seconds of it
# --------------------------------------------------------------------------------------------

EXCERPTS = 6
EXCERPT_SECONDS = 5.0
BLOCK_SECONDS = 0.1  # by which activity is judged, as in an evaluation


def swelling(seconds: float = 100.0) -> tuple[Tensor, Tensor]:
    """References and estimates (2, T) whose levels, leakage and noise rise and fall slowly."""
    references = voices(seconds)
    time = torch.arange(references.shape[-1]) / RATE
    periods = torch.tensor([[23.0], [31.0]])
    swell = torch.sin(math.tau * time / periods)  # (2, T)
    references = references * 10.0 ** (8.0 * swell / 20.0)
    generator = torch.Generator().manual_seed(2)
    noise = torch.randn(references.shape, generator=generator)
    hiss = 0.004 * (1.0 + swell.roll(1, 0)) * noise
    return references, leaky(references) + hiss


def short_music(seconds: float = 90.0, begin: float = 40.0, end: float = 50.0):
    """References and estimates (2, T) that play for ten seconds; the rest is dither."""
    waves = voices(seconds)
    time = torch.arange(waves.shape[-1]) / RATE
    generator = torch.Generator().manual_seed(3)
    dither = 1e-5 * torch.randn(waves.shape, generator=generator)
    references = torch.where((time >= begin) & (time < end), waves, dither)
    estimates = leaky(references) + 1e-5 * torch.randn(waves.shape, generator=generator)
    return references, estimates


class DrawnExcerpts(NamedTuple):
    """Scores of two estimates from excerpts, and of the whole signal."""

    scores: Tensor  # (draws, 2)
    errors: Tensor  # (draws, 2) stated standard errors
    scores_of_whole: Tensor  # (2,)


def excerpts_of(
    references: Tensor,
    estimates: Tensor,
    draws: int,
    count: int = EXCERPTS,
    length: float = EXCERPT_SECONDS,
) -> dict[str, DrawnExcerpts]:
    """Clearance and fidelity from draws of excerpts, with the standard errors of an evaluation.

    The whole is scored once; an excerpt takes those of its frames that lie in it.
    """
    mapss = MAPSS("mel", measures="decomposition", segment=20.0)
    frame_scores = mapss(estimates, references)
    names = ("clearance", "fidelity")
    scores: dict[str, list[Tensor]] = {name: [] for name in names}
    errors: dict[str, list[Tensor]] = {name: [] for name in names}
    samples = references.shape[-1]
    for seed in range(draws):
        spans = excerpt_spans(
            references,
            count=count,
            length=round(length * RATE),
            samples=samples,
            block=round(BLOCK_SECONDS * RATE),
            activity=mapss.config.activity,
            seed=seed,
        )
        seconds = torch.tensor(spans, dtype=torch.float64) / RATE
        times = frame_scores.times.unsqueeze(-1)
        inside = (times >= seconds[:, 0]) & (times < seconds[:, 1])  # (F, excerpts)
        excerpted = pooled.covered(frame_scores, inside.any(-1).expand(len(estimates), -1))
        of_estimates = excerpted.utterance()
        sampled, _ = pooled.sampling([excerpted], inside)
        for name in names:
            scores[name].append(getattr(of_estimates, name)[0])
            errors[name].append(torch.tensor(sampled[f"{name}_se"].to_numpy()))
    of_whole = frame_scores.utterance()
    return {
        name: DrawnExcerpts(
            torch.stack(scores[name]), torch.stack(errors[name]), getattr(of_whole, name)[0]
        )
        for name in names
    }


def excerpt_rows(draws: int) -> list[list[str]]:
    """Rows of both signals and both scores."""
    rows = []
    for signal, make in (("100 s, swells", swelling), ("90 s, 10 s of music", short_music)):
        for name, drawn in excerpts_of(*make(), draws).items():
            deviations = (drawn.scores - drawn.scores_of_whole).abs()
            coverage = (deviations <= 2.0 * drawn.errors).double().mean()
            numbers = [drawn.scores_of_whole.mean(), deviations.mean(), deviations.max()]
            numbers.append(drawn.errors.mean())
            rows.append([signal, name, *(f"{x:.3f}" for x in numbers), f"{coverage:.1%}"])
    return rows


def print_points(arguments: argparse.Namespace) -> None:
    """PS and PM of clusters from known distributions."""
    rows = []
    for measure in ("PS", "PM"):
        for dimension in arguments.dimensions:
            for kind in KINDS[measure]:
                rows += rows_of(measure, kind, dimension, arguments.frames, arguments.draws)
    header = ["measure", "d", "points", "interval", "80 %", "90 %", "95 %"]
    header += ["half-width at 80 %", "at 90 %", "at 95 %"]
    print(
        f"How often score ± tail holds the score of the true mean and covariance, and the median "
        f"half-width, over {arguments.frames} frames a row ({arguments.draws} bootstrap draws; 70 "
        "distortions; standard error of a coverage about 1 %). A half-width of ½ or more says "
        "nothing.\n"
    )
    print(table(header, rows))


def print_banks(arguments: argparse.Namespace) -> None:
    """Clearance and fidelity over draws of the bank."""
    rows = []
    for seconds in arguments.seconds:
        rows += draws_of_banks(seconds, arguments.banks)
    print(
        f"Clearance and fidelity over {arguments.banks} draws of {DRAWN} of {DISTORTIONS} "
        "distortions: how often score ± half-width holds the mean over all draws, nominal 95 %.\n"
    )
    print(table(["score", "length", "standard deviation", "mean half-width", "holds"], rows))


def print_excerpts(arguments: argparse.Namespace) -> None:
    """Clearance and fidelity of the whole from excerpts."""
    print(
        f"At most {EXCERPTS} excerpts of {EXCERPT_SECONDS:g} s, {arguments.excerpts} draws, both "
        "estimates of each signal: how far they are from the score of the whole, and how often "
        "within two of the standard errors that an evaluation states.\n"
    )
    header = ["signal", "score", "whole", "mean error", "largest error", "standard error", "holds"]
    print(table(header, excerpt_rows(arguments.excerpts)))


PARTS = {"points": print_points, "banks": print_banks, "excerpts": print_excerpts}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument(
        "--parts", nargs="+", choices=PARTS, default=[*PARTS], help="tables to print (default: all)"
    )
    parser.add_argument("--frames", type=int, default=2000, help="points: frames of a row")
    parser.add_argument("--draws", type=int, default=60, help="points: bootstrap draws of a frame")
    parser.add_argument(
        "--dimensions", type=int, nargs="+", default=[8, 24], help="points: retained coordinates"
    )
    parser.add_argument(
        "--seconds", type=float, nargs="+", default=[3.0, 12.0], help="banks: lengths of signals"
    )
    parser.add_argument("--banks", type=int, default=40, help="banks: draws of a bank")
    parser.add_argument("--excerpts", type=int, default=100, help="excerpts: draws of them")
    arguments = parser.parse_args()
    for name in arguments.parts:
        PARTS[name](arguments)
        print()


if __name__ == "__main__":
    main()
