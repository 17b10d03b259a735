"""Draw the picture of the front page: three estimates above their clearance and fidelity.

    python recipes/front_picture.py recipes/front_picture.png

The estimates are those of ``torch-mapss demo``: the other voice leaks in more and more, and the
phases of the spectrogram are randomised more and more.
"""

from __future__ import annotations

import argparse
import io
from typing import Any


def path_to_write() -> str:
    """The argument of the command line."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("path", help="PNG file to write")
    return str(parser.parse_args().path)


if __name__ == "__main__":
    path_to_write()  # --help answers here, without the seconds that torch takes to load

import torch
from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from PIL import Image
from torch import Tensor

from torch_mapss import MAPSS, audio
from torch_mapss.evaluation import demo, plots

SMOOTH = 15  # frames of the moving mean, 300 ms
CLEARANCE, FIDELITY = "#0b4f7d", "#d9730d"


def moving_mean(values: Tensor, defined: Tensor) -> Tensor:
    """Mean over the defined frames around each frame; NaN where a whole window has none."""

    def summed(x: Tensor) -> Tensor:
        return torch.nn.functional.avg_pool1d(x[None, None], SMOOTH, 1, SMOOTH // 2)[0, 0]

    return summed(torch.where(defined, values, 0.0)) / summed(defined.to(values.dtype))


def draw_column(axes: Any, wave: Tensor, rate: int, scores: Any, title: str) -> None:
    """Spectrogram of one estimate above its scores."""
    upper, lower = axes
    plots.draw_spectrogram(upper, wave, rate)
    upper.set_title(title, fontsize=10)
    upper.set(xlabel="", ylabel="", xticklabels=[])
    means = scores.utterance()
    for name, colour, right in (("clearance", CLEARANCE, 0.52), ("fidelity", FIDELITY, 1.0)):
        values, defined = getattr(scores, name)[0, 0], scores.defined(name)[0, 0]
        frames = scores.times[defined], values[defined]
        lower.plot(*frames, ".", color=colour, markersize=2.5, alpha=0.4, markeredgewidth=0)
        lower.plot(scores.times, moving_mean(values, defined), color=colour, linewidth=2.0)
        text = f"{name} {float(getattr(means, name)[0, 0]):.2f}"
        style = {"color": colour, "fontsize": 9, "weight": "bold", "ha": "right"}
        lower.text(right, 1.03, text, transform=lower.transAxes, **style)
    lower.set(ylim=(-0.02, 1.04), xlim=upper.get_xlim(), xlabel="time (s)")
    lower.set_axisbelow(True)
    lower.grid(axis="y", alpha=0.3)


def picture() -> Figure:
    """The whole figure, 8 in wide."""
    references, rate = demo.voices()
    mapss = MAPSS("mel", sample_rate=rate, measures="decomposition")
    bank = mapss.prepare(references)
    figure = Figure(figsize=(8.0, 3.6), layout="constrained")
    axes = figure.subplots(2, len(demo.GRADES), sharey="row", height_ratios=(1, 1.25))
    for column, grade in zip(axes.T, demo.GRADES):
        waves = demo.separated(references, grade)
        with torch.no_grad():
            scores = mapss(waves, bank)
        wave = audio.normalize_loudness(waves[0], rate)
        title = f"{grade.name}: leakage {grade.leakage_db:g} dB"
        draw_column(column, wave, rate, scores, title)
    axes[0, 0].set_ylabel("kHz")
    axes[1, 0].set_ylabel("score, 0 to 1")
    handles = [
        Line2D([], [], color=CLEARANCE, linewidth=2.0),
        Line2D([], [], color=FIDELITY, linewidth=2.0),
        Line2D([], [], color="#888888", marker=".", markersize=4, linestyle=""),
    ]
    labels = ("clearance", "fidelity", "single frames")
    axes[1, 0].legend(handles, labels, loc="lower left", fontsize=8, framealpha=0.9)
    return figure


def main() -> None:
    """Draw the picture and write it with 32 colours, which keeps the file small."""
    path = path_to_write()
    buffer = io.BytesIO()
    picture().savefig(buffer, format="png", dpi=190)
    Image.open(buffer).convert("RGB").quantize(32).save(path, optimize=True)
    print(f"written to {path}")


if __name__ == "__main__":
    main()
