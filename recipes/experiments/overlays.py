"""Several encoders over one clip: spectrograms, and PS and PM of every source in time
[fig:spectro_wav_female].

    python recipes/experiments/overlays.py --encoders mel waveform wav2vec2-large \\
        --manifest FOLDER/mapss.json --mixture 0 --system NAME --out runs/overlay

Above, the spectrograms of each reference and its output; below, in line with them, a curve for
every encoder. Frames in which a source or its company is silent stay blank. Without ``--system``
the first that estimates every source; where the manifest has no outputs, half of the other sources
leaks into each. Writes the figure, the curves as CSV, and their means in Markdown.
"""

from __future__ import annotations

import argparse
import math
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import rated
import toolkit
import torch
from torch import Tensor

LEAK = 0.5
MEASURES = {"ps": "PS", "pm": "PM"}
COLOURS = ("#0b4f79", "#e8871e", "#2a9d5c", "#b5306f", "#6b6b6b", "#7b52ab")


class Clip(NamedTuple):
    """One mixture as one system separated it."""

    mixture: toolkit.Mixture
    system: str
    estimates: Tensor  # (S', T)
    attributed: tuple[int, ...]  # the source of each


class Curve(NamedTuple):
    """Scores in time by one encoder; NaN where there is none."""

    times: Tensor  # (F,) seconds
    scores: Mapping[str, Tensor]  # measure -> (S', F)


def clip(options: argparse.Namespace, rate: int) -> Clip:
    """The mixture and system asked for.

    Raises:
        SystemExit: there is no such mixture or system.
    """
    found = [*toolkit.load_mixtures(options.manifest, rate, seconds=options.seconds, systems=True)]
    names = [mixture.name for mixture in found]
    wanted = options.mixture
    place = int(wanted) if wanted.isdigit() and wanted not in names else -1
    if place >= len(found) or (place < 0 and wanted not in names):
        raise SystemExit(f"no mixture {wanted!r}; there are {', '.join(names[:20])}.")
    mixture = found[place] if place >= 0 else found[names.index(wanted)]
    if not mixture.systems:
        others = mixture.references.sum(0) - mixture.references
        estimates = mixture.references + LEAK * others
        return Clip(mixture, f"{LEAK:g} of the others", estimates, tuple(range(len(estimates))))
    return _separated(mixture, options.system)


def _separated(mixture: toolkit.Mixture, wanted: str | None) -> Clip:
    complete = [
        name for name, outputs in mixture.systems.items() if all(o is not None for o in outputs)
    ]
    name = wanted or next(iter([*complete, *mixture.systems]))
    if name not in mixture.systems:
        raise SystemExit(f"no system {name!r}; there are {', '.join(mixture.systems)}.")
    there = {k: wave for k, wave in enumerate(mixture.systems[name]) if wave is not None}
    length = min(mixture.references.shape[-1], *map(len, there.values()))
    estimates = torch.stack([wave[:length] for wave in there.values()])
    mixture = mixture._replace(references=mixture.references[:, :length])
    return Clip(mixture, name, estimates, tuple(there))


@torch.no_grad()
def curve(options: argparse.Namespace, encoder: Any, one: Clip) -> Curve:
    """Every frame of the clip by one encoder."""
    mapss = toolkit.scorer(argparse.Namespace(**{**vars(options), "layer": None}), encoder)
    scores = mapss(one.estimates[None], one.mixture.references[None], attributed=one.attributed)
    found = {
        name: torch.where(scores.active[0], getattr(scores, name)[0], math.nan).double().cpu()
        for name in (*MEASURES, "log_pm")
    }
    return Curve(scores.times.cpu(), found)


def curves(options: argparse.Namespace) -> tuple[Clip, int, dict[str, Curve]]:
    """The clip at 16 kHz for the spectrograms, its rate, and a curve for every encoder."""
    shown, rate = None, 16_000
    found: dict[str, Curve] = {}
    for text in toolkit.progress(options.encoders, "encoders"):
        choice = rated.Choice.of(text, options.layer)
        encoder = choice.load(options)
        one = clip(options, encoder.sample_rate)
        if shown is None or encoder.sample_rate == rate:
            shown, rate = one, encoder.sample_rate
        layer = "" if encoder.layer is None else f", layer {encoder.layer}"
        found[f"{rated.shown_name(choice.name)}{layer}"] = curve(options, encoder, one)
    assert shown is not None
    return shown, rate, found


def spectrogram(wave: Tensor, rate: int) -> tuple[Tensor, float]:
    """dB below the loudest point (frequencies, frames) and seconds between two frames."""
    size = 2 * round(0.016 * rate)
    window = torch.hann_window(size)
    power = torch.stft(wave, size, size // 4, window=window, return_complex=True).abs().square()
    return 10 * (power / power.max().clamp(min=1e-20)).clamp(min=1e-8).log10(), size / 4 / rate


def draw(one: Clip, rate: int, found: Mapping[str, Curve], path: Path) -> None:
    """A column for every output."""
    columns = len(one.attributed)
    figure = toolkit.new_figure(5.2 * columns, 8.4)
    grid = figure.subplots(4, columns, squeeze=False, sharex=True, sharey="row")
    for column, source in enumerate(one.attributed):
        waves = {"reference": one.mixture.references[source], one.system: one.estimates[column]}
        for axis, (title, wave) in zip(grid[:, column], waves.items()):
            values, hop = spectrogram(wave, rate)
            box = (0.0, values.shape[1] * hop, 0.0, rate / 2000)
            axis.imshow(values, origin="lower", aspect="auto", extent=box, vmin=-80, cmap="magma")
            axis.set_title(f"{one.mixture.sources[source]}, {title}", fontsize=9)
        for axis, (measure, label) in zip(grid[2:, column], MEASURES.items()):
            for place, (name, curve) in enumerate(found.items()):
                colour, width = COLOURS[place % len(COLOURS)], 1.1
                line = curve.scores[measure][column]
                axis.plot(curve.times, line, color=colour, linewidth=width, label=name)
            axis.set(ylim=(-0.02, 1.02))
            axis.grid(alpha=0.3)
            grid[2 + [*MEASURES].index(measure), 0].set_ylabel(label)
        grid[-1, column].set_xlabel("seconds")
    for row in (0, 1):
        grid[row, 0].set_ylabel("kHz")
    grid[2, 0].legend(fontsize=7)
    toolkit.save_figure(figure, path)


def write_curves(one: Clip, found: Mapping[str, Curve], path: Path) -> None:
    """encoder, source, seconds, ps, pm, log_pm; a blank where there is no score."""
    lines = ["encoder,source,seconds,ps,pm,log_pm"]
    for name, curve in found.items():
        for column, source in enumerate(one.attributed):
            for frame, seconds in enumerate(curve.times):
                values = [float(curve.scores[m][column, frame]) for m in (*MEASURES, "log_pm")]
                cells = ["" if math.isnan(value) else f"{value:.6g}" for value in values]
                named = f'"{name}","{one.mixture.sources[source]}",{float(seconds):.4f}'
                lines.append(",".join([named, *cells]))
    toolkit.write_page(path, "\n".join(lines))


def table(one: Clip, found: Mapping[str, Curve]) -> tuple[list[str], list[list[str]]]:
    """Means over the frames that are scored."""
    header = ["encoder", "source", "frames", "PS", "PM", "log PM"]
    lines = []
    for name, curve in found.items():
        for column, source in enumerate(one.attributed):
            values = [curve.scores[m][column] for m in (*MEASURES, "log_pm")]
            frames = int(values[0].isfinite().sum())
            means = [toolkit.number(float(value.nanmean())) for value in values]
            lines.append([name, one.mixture.sources[source], str(frames), *means])
    return header, lines


def main(arguments: Sequence[str] | None = None) -> dict[str, Curve]:
    parser = toolkit.parser(__doc__)
    toolkit.add_scoring(parser, ("mel", "waveform"))
    parser.add_argument("--mixture", default="0", help="its name or place; default: the first")
    parser.add_argument("--system", help="default: the first that estimates every source")
    options = parser.parse_args(arguments)
    one, rate, found = curves(options)
    title = f"# {one.mixture.name}, {one.system}\n\nMeans over the frames of each source.\n\n"
    text = title + toolkit.markdown(*table(one, found))
    toolkit.write_page(options.out / "overlay.md", text)
    write_curves(one, found, options.out / "overlay.csv")
    draw(one, rate, found, options.out / "overlay.png")
    print(text)
    return found


if __name__ == "__main__":
    main()
