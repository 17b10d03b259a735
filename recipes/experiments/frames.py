"""Scores of single frames: histograms, mutual information, SNR of the references.

    python recipes/experiments/frames.py --manifest FOLDER/mapss.json --out runs/frames

* [fig:pm_ps_histograms], [fig:combined_histograms]: histograms of PS, PM, clearance and fidelity,
  of their radius and half-width at 95 %, with the numbers that the paper states about them;
* [fig:threshold_correlation], [tab:nmi_threshold_counts_wide]: PS and PM of every frame are scaled
  to [0, 1] within their utterance. Over the frames up to a threshold: the normalised mutual
  information 2·I/(H1 + H2) [Danon et al. 2005] with ``--bins`` bins of equal width (the paper gives
  no number), the same after shuffling the pairs, and with bins of equal counts. A tight threshold
  leaves a single bin of equal width, so that its NMI goes to 0 whatever the frames say;
* [fig:snr_histograms_en_es]: level of each reference over that of the other sources, in 25 ms
  frames.
"""

from __future__ import annotations

import argparse
import itertools
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import toolkit
import torch
from numpy.typing import NDArray
from scipy import stats

from torch_mapss import MAPSS, ReferenceBank
from torch_mapss.audio import frame_rms

SCORES = ("clearance", "fidelity", "ps", "pm")
SUFFIXES = ("", "_radius", "_tail")  # of the score itself and of its bounds
FIELDS = tuple(map("".join, itertools.product(SCORES, SUFFIXES)))
THRESHOLDS = tuple(k / 10 for k in range(1, 11))
DRAWS = 20  # shuffles
_Array = NDArray[Any]


# ------------------------------------------------------------------------------------------------
# Frames of outputs
# ------------------------------------------------------------------------------------------------


def collected(
    options: argparse.Namespace, encoder: str
) -> tuple[dict[str, list[_Array]], list[_Array]]:
    """Field -> values of the frames of each output; and the SNR of the references' frames.

    Where a mixture lists no system, its references leak into each other at -10 dB.
    """
    mapss = toolkit.scorer(options, encoder)
    values_by_field: dict[str, list[_Array]] = {field: [] for field in FIELDS}
    ratios = []
    for mixture in toolkit.load_mixtures(options, mapss.grid.sample_rate, systems=True):
        ratios.append(snr(mixture.references))
        bank = mapss.prepare(mixture.references[None], measures=toolkit.ENCODED)
        outputs = [(source_index, output) for _, source_index, output in mixture.outputs()]
        if not outputs:
            leaking = mixture.references + 10 ** (-10 / 20) * mixture.references.roll(1, 0)
            outputs = list(enumerate(leaking))
        for source_index, output in outputs:
            values = scored(mapss, bank, output, source_index, options.sample_frames)
            for field in FIELDS:
                values_by_field[field].append(values[field])
    return values_by_field, ratios


@torch.no_grad()
def scored(
    mapss: MAPSS, bank: ReferenceBank, output: torch.Tensor, source_index: int, frames: int | None
) -> dict[str, _Array]:
    """Field -> its values in the scored frames of one output (T,); NaN where undefined."""
    bounds = mapss.bounds(output[None, None], bank, attributed=(source_index,), frames=frames)
    active = bounds.active[0, 0]
    values = {}
    for name in SCORES:
        bound, defined = getattr(bounds, name), bounds.scores.defined(name)[0, 0][active]
        tensors = getattr(bounds.scores, name), bound.radius, bound.tail
        for suffix, tensor in zip(SUFFIXES, tensors):
            of_frames = torch.where(defined, tensor[0, 0][active].double(), torch.nan)
            values[name + suffix] = of_frames.numpy()
    return values


def snr(references: torch.Tensor) -> _Array:
    """dB of every reference over the sum of the other ones, in frames where both are audible."""
    powers = frame_rms(references, 400, 320).square()
    interferers = powers.sum(0, keepdim=True) - powers
    audible = (powers > 1e-8) & (interferers > 1e-8)
    return 10.0 * (powers[audible] / interferers[audible]).log10().numpy()


# ------------------------------------------------------------------------------------------------
# Mutual information
# ------------------------------------------------------------------------------------------------


def normalised(values: _Array) -> _Array:
    """Values of an utterance scaled to [0, 1]; all NaN where they are equal."""
    low, high = values.min(), values.max()
    return (values - low) / (high - low) if high > low else np.full_like(values, np.nan)


def nmi(x: _Array, y: _Array, bins: int) -> float:
    """2·I(X; Y)/(H(X) + H(Y)) over equal bins of [0, 1]; 0 where all values lie in one bin."""
    joint, _, _ = np.histogram2d(x, y, bins=bins, range=[[0.0, 1.0], [0.0, 1.0]])
    p = joint / max(joint.sum(), 1.0)
    entropies = float(stats.entropy(p.sum(1)) + stats.entropy(p.sum(0))) if len(x) else 0.0
    shared = entropies - float(stats.entropy(p.ravel())) if len(x) else 0.0
    return 2.0 * shared / entropies if entropies > 0.0 else 0.0


def equal_counts(values: _Array, bins: int) -> _Array:
    """The values replaced by the centres of bins that each hold (ties aside) as many of them."""
    bin_index = np.floor((stats.rankdata(values) - 0.5) / len(values) * bins)
    return (bin_index + 0.5) / bins


def normalised_pairs(values_by_field: dict[str, list[_Array]]) -> tuple[_Array, _Array]:
    """PS and PM of all frames, scaled within each utterance; utterances of one value are left out.

    Raises:
        SystemExit: no utterance is left.
    """
    ps_of_utterances, pm_of_utterances = [], []
    for ps, pm in zip(values_by_field["ps"], values_by_field["pm"]):
        if len(ps):
            ps, pm = normalised(ps), normalised(pm)
            if not (np.isnan(ps).any() or np.isnan(pm).any()):
                ps_of_utterances.append(ps)
                pm_of_utterances.append(pm)
    if not ps_of_utterances:
        raise SystemExit("PS or PM is the same in all frames of every utterance.")
    return np.concatenate(ps_of_utterances), np.concatenate(pm_of_utterances)


def nmi_table(values_by_field: dict[str, list[_Array]], bins: int) -> str:
    """A line per threshold; for PS and PM: frames, NMI, NMI by chance, NMI over equal counts."""
    ps, pm = normalised_pairs(values_by_field)
    rng = np.random.default_rng(toolkit.SEED)
    lines = []
    for threshold in THRESHOLDS:
        line = [f"{threshold:.1f}"]
        for values in (ps, pm):
            x, y = ps[values <= threshold], pm[values <= threshold]
            line.append(str(len(x)))
            if len(x) > 1:
                chance = np.mean([nmi(x, rng.permutation(y), bins) for _ in range(DRAWS)])
                ranked = nmi(equal_counts(x, bins), equal_counts(y, bins), bins)
                line += [f"{v:.3f}" for v in (nmi(x, y, bins), chance, ranked)]
            else:
                line += ["–"] * 3
        lines.append(line)
    header = ["threshold"]
    for name in ("PS", "PM"):
        header += [f"{name} ≤ th: frames", "NMI", "by chance", "NMI, equal counts"]
    return toolkit.markdown(header, lines)


# ------------------------------------------------------------------------------------------------
# Page
# ------------------------------------------------------------------------------------------------


def summary(values_by_field: dict[str, _Array]) -> str:
    """The numbers that the paper states about its histograms."""
    lines = []
    for name in SCORES:
        values, radius, tail = (values_by_field[name + suffix] for suffix in SUFFIXES)
        cells = [np.mean(values > 0.9), np.mean(values < 0.1), np.nanmean(radius), np.nanmean(tail)]
        cells += [np.mean(tail < 0.01), np.mean(radius > 1.0)]
        count = int(np.isfinite(values).sum())
        lines.append([toolkit.LABELS[name], str(count), *(f"{cell:.3f}" for cell in cells)])
    header = ["", "frames", "above 0.9", "below 0.1", "mean radius", "mean half-width"]
    return toolkit.markdown([*header, "half-width < 0.01", "radius > 1"], lines)


def draw(values_by_field: dict[str, _Array], ratios: _Array, path: Path) -> None:
    """Histograms: a line of panels for each score and its bounds; in a second file the SNR."""
    figure = toolkit.new_figure(9.0, 8.0)
    grid = figure.subplots(len(SCORES), 3, sharex=True)
    for line, name in zip(grid, SCORES):
        for axis, suffix, title in zip(line, SUFFIXES, ("", "radius", "half-width")):
            values = values_by_field[name + suffix]
            axis.hist(np.clip(values[np.isfinite(values)], 0.0, 1.0), bins=40, range=(0.0, 1.0))
            axis.set(title=f"{toolkit.LABELS[name]} {title}", yscale="log")
    toolkit.save_figure(figure, path)
    figure = toolkit.new_figure(4.5, 3.0)
    axis = figure.subplots()
    axis.hist(ratios, bins=60, range=(-40.0, 40.0))
    axis.set(xlabel="SNR of the references' frames (dB)", ylabel="frames")
    toolkit.save_figure(figure, path.with_name("snr.png"))


def main(arguments: Sequence[str] | None = None) -> dict[str, dict[str, _Array]]:
    parser = toolkit.parser(__doc__)
    parser.add_argument(
        "--bins",
        type=int,
        default=10,
        help="equal bins of PS and of PM for the NMI (default: %(default)s)",
    )
    options = parser.parse_args(arguments)
    made: dict[str, dict[str, _Array]] = {}
    text: list[str] = []
    for encoder in options.encoders:
        values_by_field, ratios = collected(options, encoder)
        made[encoder] = {field: np.concatenate(arrays) for field, arrays in values_by_field.items()}
        text += ["", f"## Histograms, `{encoder}`", "", summary(made[encoder]), ""]
        text += [f"## Mutual information of PS and PM, `{encoder}`", ""]
        text += [nmi_table(values_by_field, options.bins)]
        draw(made[encoder], np.concatenate(ratios), options.out / f"histograms_{encoder}.png")
    levels = np.concatenate(ratios)
    count = options.sample_frames
    about = f"Outputs of `{options.manifest.parent.name}`, "
    about += f"{count} frames each, drawn at random, " if count else "every frame, "
    about += f"`{options.convention}` convention. Paper: PS near 1, PM near 0; 10 to 15 % of PM's"
    about += " half-widths near 0; radius a tenth of the half-width; NMI 0.15 over all frames,"
    about += " falling towards 0. SNR of the references' frames: median"
    about += f" {np.median(levels):.1f} dB, {np.percentile(levels, 5):.1f} to"
    about += f" {np.percentile(levels, 95):.1f} dB in 90 %."
    head = toolkit.page_head("Scores of single frames", __file__, arguments, about)
    toolkit.finish(options, "frames", [*head, *text])
    return made


if __name__ == "__main__":
    main()
