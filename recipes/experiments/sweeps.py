"""Faults of growing strength in one source: which measure reacts to what? Uses no separator.

    python recipes/experiments/sweeps.py leakage phase --manifest FOLDER/manifest.json --out runs/x

* ``leakage`` and ``phase`` [tab:alpha_lambda]: the target y1 plus α times the other sources, and y1
  with the phase of every STFT bin rotated by a uniform random angle within ±πλ. The paper does not
  name its distortion; this one is in no bank and almost keeps the magnitudes.
* ``delay`` and ``aligned`` [fig:combined_misalignment]: y1 delayed by 0 to 100 ms, and the same
  aligned again before it is scored; compared with PESQ, which aligns by itself.
* ``loss`` [tab:pm_ps_vs_pesq_compact]: a share of the 20 ms packets lost, the remaining ones coded
  (``--codec``) and stretched back to the full length; compared with PESQ.
"""

from __future__ import annotations

import argparse
import functools
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

import numpy as np
import rivals
import signals
import toolkit
from torch import Tensor

from torch_mapss.audio import estimate_lag, shift
from torch_mapss.evaluation.correlation_stats import correlation

SHOWN = ("clearance", "fidelity", "ps", "pm", "log_pm_compressed", "log_foreign_distance")
KEYS = ("encoder", "scenario", "mixture", "sweep", "amount")


class Sweep(NamedTuple):
    """How a source is changed, and by how much."""

    maker: signals.Maker
    unit: str  # of the amount
    largest_amount: float
    pesq: bool  # whether PESQ is computed as well
    paper: str  # the paper's numbers, which are of other encoders


def aligned(references: Tensor, rate: int, amount: float) -> Tensor:
    """The target delayed by ``amount`` ms and aligned again, as `--align` does it."""
    late = signals.delayed(references, rate, amount)
    return shift(late, int(estimate_lag(late, references[0], round(0.2 * rate)).samples))


SWEEPS = {
    "leakage": Sweep(
        signals.leakage, "α", 1.0, False, "PS 0.91 at 0.11 to 0.50 at 1, PM 0.91 to 0.83"
    ),
    "phase": Sweep(
        signals.random_phase, "λ", 1.0, False, "PS 1.00 to 0.98, PM 0.94 to 0.36 (its distortion)"
    ),
    "delay": Sweep(
        signals.delayed, "ms", 100.0, True, "PM 0.84 to 0.89 at 20 ms, 0.78 to 0.86 at 100 ms"
    ),
    "aligned": Sweep(aligned, "ms", 100.0, True, "none"),
    "loss": Sweep(signals.lost_packets, "share", 0.2, True, "PS 0.93 to 0.97 throughout"),
}


def run(options: argparse.Namespace) -> toolkit.Rows:
    """Score every mixture at every strength."""
    settings = toolkit.settings_of(options, "sweeps")
    rows = toolkit.Rows(options.out, KEYS, (*toolkit.MEASURES, "frames", "pesq"), settings)
    for encoder in options.encoders:
        mapss = toolkit.scorer(options, encoder)
        rate = mapss.grid.sample_rate
        for mixture in toolkit.load_mixtures(options, rate):
            bank = None
            for name in options.sweeps:
                sweep = SWEEPS[name]
                for step in range(options.steps):
                    amount = sweep.largest_amount * step / max(options.steps - 1, 1)
                    key = toolkit.shown(encoder), mixture.scenario, mixture.name, name, amount
                    if rows.has(*key):
                        continue
                    bank = bank or mapss.prepare(mixture.references[None], measures=toolkit.ENCODED)
                    estimate = _maker(name, options)(mixture.references, rate, amount)
                    scores = toolkit.target_scores(
                        mapss, bank, estimate, frames=options.sample_frames
                    )
                    if sweep.pesq:
                        target = mixture.references[0]
                        scores["pesq"] = rivals.quietly(rivals.pesq, estimate, target, rate)
                    rows.add(*key, **scores)
    return rows


def _maker(name: str, options: argparse.Namespace) -> signals.Maker:
    maker = SWEEPS[name].maker
    return functools.partial(maker, codec=options.codec) if name == "loss" else maker


def table(rows: toolkit.Rows, name: str, encoder: str) -> str:
    """A line for every strength, means over mixtures; below, correlations with the strength."""
    sweep = SWEEPS[name]
    shown = (*SHOWN, "pesq") if sweep.pesq else SHOWN
    lines = []
    for amount in amounts_of(rows, name, encoder):
        means = [rows.mean(m, sweep=name, encoder=encoder, amount=amount) for m in shown]
        lines.append([f"{amount:.3g}", *map(toolkit.number, means)])
    correlations = [_correlation_with_amount(rows, m, name, encoder) for m in shown]
    lines.append(["SRCC", *map(toolkit.number, correlations)])
    labels = [toolkit.LABELS.get(m, m.upper()) for m in shown]
    return toolkit.markdown([sweep.unit, *labels], lines)


def amounts_of(rows: toolkit.Rows, name: str, encoder: str) -> list[float]:
    """The strengths of a sweep, from the weakest on."""
    return sorted({float(row["amount"]) for row in rows.where(sweep=name, encoder=encoder)})


def _correlation_with_amount(rows: toolkit.Rows, measure: str, name: str, encoder: str) -> float:
    """SRCC with the strength within a mixture, averaged over the mixtures."""
    correlations = []
    for mixture in rows.distinct("mixture"):
        scored = [
            row for row in rows.where(mixture=mixture, sweep=name, encoder=encoder) if row[measure]
        ]
        scores = [float(row[measure]) for row in scored]
        amounts = [float(row["amount"]) for row in scored]
        if len(scores) > 2 and len(set(scores)) > 1:
            (srcc,) = correlation(np.array(scores), np.array(amounts), "srcc")
            correlations.append(float(srcc))
    return toolkit.finite_mean(correlations)


def draw(rows: toolkit.Rows, names: Sequence[str], encoder: str, path: Path) -> None:
    """Measures in [0, 1] over the strength."""
    figure = toolkit.new_figure(3.2 * len(names), 3.0)
    grid = figure.subplots(1, len(names), squeeze=False, sharey=True)[0]
    for axis, name in zip(grid, names):
        amounts = amounts_of(rows, name, encoder)
        for measure in ("clearance", "fidelity", "ps", "pm"):
            values = [
                rows.mean(measure, sweep=name, encoder=encoder, amount=amount) for amount in amounts
            ]
            axis.plot(amounts, values, "o-", markersize=3, label=toolkit.LABELS[measure])
        axis.set(xlabel=SWEEPS[name].unit, ylim=(-0.02, 1.02), title=name)
        axis.grid(alpha=0.3)
    grid[0].legend(fontsize=7)
    toolkit.save_figure(figure, path)


def main(arguments: Sequence[str] | None = None) -> toolkit.Rows:
    parser = toolkit.parser(__doc__)
    parser.add_argument("sweeps", nargs="+", choices=SWEEPS, help="what is changed, see above")
    parser.add_argument(
        "--steps",
        type=int,
        default=10,
        help="number of strengths, from none to the largest (default: %(default)s)",
    )
    parser.add_argument(
        "--codec",
        choices=(*signals.CODECS, "none"),
        default="opus",
        help="of the sweep loss (default: %(default)s)",
    )
    options = parser.parse_args(arguments)
    rows = run(options)
    about = f"{toolkit.subset(options, rows)} The first source of each is the target. Means over"
    about += " frames (log PM by the bounded mean of -log(1 - log PM)), then mixtures; last line:"
    about += " SRCC with the strength within a mixture."
    text = toolkit.page_head("One source, changed more and more", __file__, arguments, about)
    for encoder in map(toolkit.shown, options.encoders):
        for name in options.sweeps:
            text += ["", f"## {name}, `{encoder}`", "", f"Paper: {SWEEPS[name].paper}.", ""]
            text += [table(rows, name, encoder)]
        draw(rows, options.sweeps, encoder, options.out / f"sweeps_{encoder}.png")
    toolkit.finish(options, "sweeps", text)
    return rows


if __name__ == "__main__":
    main()
