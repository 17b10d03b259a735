"""How much do PS and PM know of each other? [fig:threshold_correlation]

    python recipes/experiments/nmi.py --manifest FOLDER/mapss.json --out runs/nmi

[tab:nmi_threshold_counts_wide] as well. PS and PM of every frame are brought to [0, 1] within their
utterance. For thresholds from 0.1 to 1
the frames with PS (then with PM) up to the threshold are kept, and the normalised mutual
information 2·I/(H1 + H2) [Danon et al. 2005] of their pairs is computed, over `--bins` equal bins
of [0, 1] (the paper gives none). Few frames in many bins share information by chance: what is left
of it after shuffling the pairs stands beside it, and the NMI over bins of equal counts as well:
a tight threshold leaves one of the equal-width bins, so that their NMI goes to 0 whatever the
frames say. Prints the number of frames too.
"""

from __future__ import annotations

import argparse
import math
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import toolkit
from numpy.typing import NDArray

THRESHOLDS = tuple(k / 10 for k in range(1, 11))
_Array = NDArray[Any]


def normalised(values: _Array) -> _Array:
    """To [0, 1] within an utterance; NaN where they are all the same."""
    low, high = values.min(), values.max()
    return (values - low) / (high - low) if high > low else np.full_like(values, math.nan)


def nmi(x: _Array, y: _Array, bins: int) -> float:
    """2·I(X; Y)/(H(X) + H(Y)) of values in [0, 1] in equal bins, as Danon et al. define it.

    Two variables that each fill one bin say nothing: 0.
    """
    joint, _, _ = np.histogram2d(x, y, bins=bins, range=[[0.0, 1.0], [0.0, 1.0]])
    p = joint / max(joint.sum(), 1.0)
    one, other = p.sum(1), p.sum(0)
    entropies = _entropy(one) + _entropy(other)
    shared = entropies - _entropy(p.ravel())
    return float(2.0 * shared / entropies) if entropies > 0.0 else 0.0


def _entropy(p: _Array) -> float:
    some = p[p > 0.0]
    return float(-(some * np.log(some)).sum())


def equal_counts(values: _Array, bins: int) -> _Array:
    """Middles of bins of [0, 1] that hold (ties aside) equally many of the values."""
    from scipy.stats import rankdata

    place = np.floor((rankdata(values) - 0.5) / len(values) * bins)
    return (place + 0.5) / bins


def by_chance(x: _Array, y: _Array, bins: int, draws: int) -> float:
    """Mean NMI of the same values in random pairs."""
    rng = np.random.default_rng(0)
    return float(np.mean([nmi(x, rng.permutation(y), bins) for _ in range(draws)]))


def pairs(options: argparse.Namespace, encoder: str) -> dict[str, tuple[_Array, _Array]]:
    """Scenario -> (PS, PM) of all its frames, normalised within utterances."""
    found: dict[str, list[tuple[_Array, _Array]]] = {}
    for output in toolkit.frame_scores(options, encoder, bounds=False):
        if len(output.values["ps"]) == 0:
            continue
        both = normalised(output.values["ps"]), normalised(output.values["pm"])
        if not any(np.isnan(v).any() for v in both):
            found.setdefault(output.scenario, []).append(both)
    if not found:
        raise SystemExit("PS or PM is the same in all frames of every utterance.")
    return {name: tuple(map(np.concatenate, zip(*parts))) for name, parts in found.items()}


def rows_of(encoder: str, scenario: str, ps: _Array, pm: _Array, options: Any) -> list[dict]:
    """One row per threshold and thresholded measure."""
    rows = []
    for threshold in THRESHOLDS:
        for name, values in (("ps", ps), ("pm", pm)):
            keep = values <= threshold
            row = {"encoder": encoder, "scenario": scenario, "threshold": threshold, "below": name}
            row |= dict.fromkeys(("frames", "nmi", "by_chance", "nmi_counts"), math.nan)
            row["frames"] = int(keep.sum())
            if keep.sum() > 1:
                kept = ps[keep], pm[keep]
                row["nmi"] = nmi(*kept, options.bins)
                row["by_chance"] = by_chance(*kept, options.bins, options.draws)
                ranked = [equal_counts(v, options.bins) for v in kept]
                row["nmi_counts"] = nmi(*ranked, options.bins)
            rows.append(row)
    return rows


def table(rows: Sequence[dict]) -> tuple[list[str], list[list[str]]]:
    """A line per threshold; per scenario and measure the frames, the NMI and that by chance."""
    groups = list(dict.fromkeys((row["scenario"], row["below"]) for row in rows))
    header = ["threshold"]
    for scenario, below in groups:
        start = f"{scenario}: {below.upper()}≤th"
        header += [f"{start} frames", "NMI", "by chance", "NMI, equal counts"]
    lines = []
    for threshold in THRESHOLDS:
        line = [f"{threshold:.1f}"]
        for group in groups:
            (row,) = (
                r
                for r in rows
                if r["threshold"] == threshold and (r["scenario"], r["below"]) == group
            )
            names = ("nmi", "by_chance", "nmi_counts")
            line += [str(row["frames"]), *(toolkit.number(row[k], 3) for k in names)]
        lines.append(line)
    return header, lines


def draw(rows: Sequence[dict], path: Path) -> None:
    """NMI over the threshold, one line per scenario; dashed what chance leaves."""
    figure = toolkit.new_figure(8.0, 3.2)
    for axis, below in zip(figure.subplots(1, 2, sharey=True), ("ps", "pm")):
        for k, scenario in enumerate(dict.fromkeys(row["scenario"] for row in rows)):
            here = [r for r in rows if r["below"] == below and r["scenario"] == scenario]
            x = [row["threshold"] for row in here]
            axis.plot(x, [row["nmi"] for row in here], "o-", color=f"C{k}", label=scenario)
            axis.plot(x, [row["by_chance"] for row in here], "--", color=f"C{k}", linewidth=1)
        axis.set(xlabel=f"frames with {below.upper()} up to", ylabel="NMI of PS and PM")
        axis.set_ylim(bottom=0.0)
        axis.grid(alpha=0.3)
        axis.legend(fontsize=8)
    toolkit.save_figure(figure, path)


def main(arguments: Sequence[str] | None = None) -> list[dict]:
    parser = toolkit.parser(__doc__)
    parser.add_argument("--bins", type=int, default=10, help="of each measure")
    parser.add_argument("--draws", type=int, default=20, help="shuffles")
    toolkit.add_scoring(parser)
    options = parser.parse_args(arguments)
    text = ["# Mutual information of PS and PM", ""]
    text += [
        f"Frames of {options.manifest.parent.name}, `{options.convention}` convention, "
        f"{options.bins} bins; by chance: mean of {options.draws} shuffles."
    ]
    rows: list[dict] = []
    for encoder in options.encoders:
        here = []
        for scenario, (ps, pm) in pairs(options, encoder).items():
            here += rows_of(encoder, scenario, ps, pm, options)
        text += ["", f"## `{encoder}`", "", toolkit.markdown(*table(here))]
        draw(here, options.out / f"nmi_{encoder}.png")
        rows += here
    toolkit.write_page(options.out / "nmi.md", "\n".join(text))
    toolkit.write_csv(options.out / "nmi.csv", rows)
    print("\n".join(text))
    return rows


if __name__ == "__main__":
    main()
