"""Draw the pictures of the guide; the site draws them each time it is built.

    python recipes/guide_pictures.py --out FOLDER                    # all
    python recipes/guide_pictures.py --out FOLDER --only stereo      # one

They are made from the two voices of the demo and from the tables in
``recipes/experiments/results``. The picture of the report page needs Chromium.
"""

from __future__ import annotations

import argparse
import importlib
import re
import shutil
import subprocess
import sys
import tempfile
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

NAMES = ("which_number", "stereo", "losses", "activity", "correlate", "report")


def arguments() -> argparse.Namespace:
    """The command line."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--out", type=Path, required=True, help="folder of the pictures")
    parser.add_argument(
        "--only", nargs="+", choices=NAMES, default=NAMES, help="names of pictures (default: all)"
    )
    return parser.parse_args()


if __name__ == "__main__":
    arguments()  # --help answers here, without the seconds that torch takes to load

import numpy as np
import pandas
import soundfile
import torch
from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from torch import Tensor

from torch_mapss import MAPSS, DecompositionLoss, evaluate, evaluate_set
from torch_mapss.evaluation import demo, plots
from torch_mapss.evaluation.correlate import correlate
from torch_mapss.evaluation.page.content import write_page

HERE = Path(__file__).parent
RESULTS = HERE / "experiments" / "results"
BLUE, ORANGE, GREY = "#0b4f7d", "#d9730d", "#777777"
BROWSERS = ("chromium", "chromium-browser", "google-chrome", "chrome")
LOW, HIGH = 0, 1  # indices of the demo's voices


class NoBrowser(RuntimeError):
    """The picture of a page needs Chromium, which is not installed or has failed."""


# ------------------------------------------------------------------ which number


def tables_of(page: str) -> dict[str, list[dict[str, str]]]:
    """Heading -> rows of the tables below it, of a page of results."""
    rows_by_heading: dict[str, list[dict[str, str]]] = {}
    heading, columns = "", list[str]()
    for line in (RESULTS / page).read_text(encoding="utf-8").splitlines():
        if line.startswith("#"):
            heading, columns = line.lstrip("#").strip(), []
        elif not line.startswith("| "):
            columns = []
        elif not columns:
            columns = cells_of(line)
        elif not set(line) <= set("| -"):
            rows_by_heading.setdefault(heading, []).append(dict(zip(columns, cells_of(line))))
    return rows_by_heading


def cells_of(line: str) -> list[str]:
    """Cells of a line of a Markdown table."""
    return [cell.strip() for cell in line.strip().strip("|").split("|")]


def with_interval(cell: str) -> tuple[float, float, float]:
    """Value, low and high of a cell like ``0.92 [0.89, 0.94]``."""
    value, low, high = map(float, re.findall(r"-?\d+\.\d+", cell))
    return value, low, high


def older_separators(set_name: str, question: str) -> dict[str, tuple[float, float, float]]:
    """SRCC of measures under `mel` with one question of a rated set, with their intervals.

    Scores of frames are those of every frame; energy ratios are of the whole clip.
    """
    (mel,) = [row for row in tables_of("gensvs.md")[question] if row.get("encoder") == "`mel`"]
    names = "clearance", "fidelity", "PS", "log PM"
    measured = {name: with_interval(mel[name]) for name in names}
    for row in tables_of(f"{set_name}.md")[question]:
        if row.get("measure") in ("SIR", "SAR"):
            measured[row["measure"]] = with_interval(row["SRCC"])
    return measured


def modern_separators(encoder: str) -> dict[str, tuple[float, float, float]]:
    """SRCC within songs with the overall degradation of ``gensvs``."""
    pages = tables_of("gensvs.md")
    (row,) = [row for row in pages["dmos, within tracks"] if row.get("encoder") == f"`{encoder}`"]
    names = {"clearance": "clearance", "fidelity": "fidelity", "PS": "PS"}
    names["log PM"] = "log PM (compressed)"
    measured = {name: with_interval(row[column]) for name, column in names.items()}
    for rival in pages["dmos: other measures"]:
        if rival["measure"] in ("`sir`", "`sar`"):
            name = rival["measure"].strip("`").upper()
            measured[name] = with_interval(rival["within tracks"])
    return measured


def which_number(path: Path) -> None:
    """Rank correlations with listeners: five questions, six measures."""
    panels: list[tuple[str, list[tuple[dict[str, tuple[float, float, float]], str, str]]]] = [
        ("singing:\ninterference", [(older_separators("ward2018", "interference"), BLUE, "mel")]),
        ("speech in noise:\nbackground", [(older_separators("p835ref", "bak"), BLUE, "mel")]),
        ("singing:\nquality", [(older_separators("ward2018", "quality"), BLUE, "mel")]),
        ("speech in noise:\nsignal", [(older_separators("p835ref", "sig"), BLUE, "mel")]),
        (
            "modern separators:\noverall, within songs",
            [
                (modern_separators("mel"), BLUE, "mel"),
                (modern_separators("whisper-tiny.en@3"), ORANGE, "Whisper tiny.en, layer 3"),
            ],
        ),
    ]
    figure = plots.new_figure(10.0, 3.0)
    axes = figure.subplots(1, len(panels), sharey=True)
    names = ("clearance", "fidelity", "PS", "log PM", "SIR", "SAR")
    for ax, (title, series) in zip(axes, panels):
        for number, (measured, colour, _) in enumerate(series):
            shift = 0.3 * (number - (len(series) - 1) / 2)
            for position, name in enumerate(names):
                if name not in measured:
                    continue
                value, low, high = measured[name]
                # Energy ratios read no encoder.
                point = GREY if name in ("SIR", "SAR") else colour
                y = position + (0.0 if point == GREY else shift)
                ax.plot([low, high], [y, y], color=point, linewidth=2.0, alpha=0.55)
                ax.plot(value, y, "o", color=point, markersize=5)
        ax.axvline(0.0, color="#444444", linewidth=0.8)
        ax.set_title(title, fontsize=9)
        ax.set(xlim=(-1.02, 1.02), xticks=(-1.0, -0.5, 0.0, 0.5, 1.0))
        ax.tick_params(labelsize=8)
        plots.plain_axes(ax, "x")
    axes[0].set_yticks(range(len(names)), names)
    axes[0].invert_yaxis()
    label = "rank correlation with listeners (SRCC), 95 % interval over tracks"
    figure.supxlabel(label, x=0.01, ha="left", fontsize=9)
    labels = {BLUE: "mel", ORANGE: "Whisper tiny.en, layer 3", GREY: "energy ratios"}
    handles = [Line2D([], [], color=colour, marker="o", linewidth=2.0) for colour in labels]
    figure.legend(
        handles, [*labels.values()], loc="outside lower right", ncols=3, fontsize=8, frameon=False
    )
    save(figure, path)


# ------------------------------------------------------------------ stereo


def stereo(path: Path) -> None:
    """Left and right spectrograms of stereo estimates, with the scores of each."""
    experiment = experiment_module("stereo")
    voices, rate = demo.voices()
    truth = experiment.images(voices)
    cases = {
        "leakage on the right alone": experiment.leakage_on_the_right,
        "right channel dead": experiment.right_dead,
        "sides swapped": experiment.sides_swapped,
    }
    mapss = MAPSS("mel", measures="decomposition")
    shared: dict[str, Any] = {"references": truth, "mapss": mapss, "sample_rate": rate}
    figure = plots.new_figure(10.0, 4.0)
    axes = figure.subplots(2, 1 + len(cases), sharex=True, sharey=True)
    draw_channels(axes[:, 0], truth[LOW], rate, "reference", ["", ""])
    for column, (title, make) in zip(axes.T[1:], cases.items()):
        estimates = make(truth, rate)
        with quietly():
            channels = evaluate(estimates=estimates, **shared, channels="each").channels
            of_mean = evaluate(
                estimates=estimates.mean(1), **{**shared, "references": truth.mean(1)}
            ).rows[LOW]
        assert channels is not None
        rows = channels[channels["source_index"] == LOW]
        texts = []
        for clearance, fidelity in zip(rows["clearance"], rows["fidelity"]):
            texts.append(f"clearance {clearance:.2f}, fidelity {fidelity:.2f}")
        title = f"{title}\n(mean of the channels: {of_mean.clearance:.2f}, {of_mean.fidelity:.2f})"
        draw_channels(column, estimates[LOW], rate, title, texts)
    for ax in axes.flat:
        ax.label_outer()
    for ax, side in zip(axes[:, 0], ("left", "right")):
        ax.set_ylabel(f"{side}\nkHz")
    save(figure, path)


def draw_channels(axes: Any, waves: Tensor, rate: int, title: str, texts: list[str]) -> None:
    """Spectrograms of the channels (C, T) of a file on one scale of levels."""
    level_db = 70.0
    loudest = max(float(magnitudes(wave).max()) for wave in waves)
    for ax, wave, text in zip(axes, waves, texts):
        relative = (magnitudes(wave) / max(loudest, 1e-9)).clamp(min=10 ** (-level_db / 20))
        extent = (0.0, wave.shape[-1] / rate, 0.0, rate / 2000)
        ax.imshow(
            20.0 * relative.log10().numpy(),
            extent=extent,
            origin="lower",
            aspect="auto",
            cmap="Greys",
            vmin=-level_db,
            vmax=0.0,
        )
        ax.set_xlabel("time (s)")
        ax.text(
            0.5,
            0.97,
            text,
            transform=ax.transAxes,
            ha="center",
            va="top",
            fontsize=9,
            color=BLUE,
            weight="bold",
            bbox={"facecolor": "white", "alpha": 0.85, "edgecolor": "none", "pad": 1.5},
        )
    axes[0].set_title(title, fontsize=9)


def magnitudes(wave: Tensor) -> Tensor:
    """Magnitude of the short-time spectrum, (bins, frames)."""
    return torch.stft(wave, 512, 128, window=torch.hann_window(512), return_complex=True).abs()


# ------------------------------------------------------------------ losses


def losses(path: Path) -> None:
    """The two terms of DecompositionLoss while leakage or distortion grows."""
    references, rate = demo.voices()
    mapss = MAPSS("mel", measures="decomposition", sample_rate=rate)
    bank = mapss.prepare(references[None])
    loss = DecompositionLoss(mapss, reduction="mean")
    levels = np.linspace(-40.0, 0.0, 11)
    cutoffs = np.geomspace(300.0, 8000.0, 11)[::-1]
    leaking = [references + 10.0 ** (level / 20.0) * references.flip(0) for level in levels]
    distorted = [low_passed(references, float(cutoff), rate) for cutoff in cutoffs]
    figure = plots.new_figure(9.0, 3.0)
    axes = figure.subplots(1, 2, sharey=True)
    sweeps = [
        ("level of the other voice (dB)", levels, leaking),
        ("cutoff of a low-pass filter (kHz)", cutoffs / 1000.0, distorted),
    ]
    terms = {"clearance_loss": ("clearance_loss: leakage", BLUE)}
    terms["fidelity_loss"] = ("fidelity_loss: distortion", ORANGE)
    for ax, (label, values, estimates) in zip(axes, sweeps):
        curves: dict[str, list[float]] = {name: [] for name in terms}
        for waves in estimates:
            with torch.no_grad():
                loss(waves[None], bank)
            for name in terms:
                curves[name].append(float(loss.last.terms[name]))
        for name, (text, colour) in terms.items():
            ax.plot(values, curves[name], "o-", color=colour, markersize=4, label=text)
        ax.set_xlabel(label)
        plots.plain_axes(ax, "y")
    axes[1].set_xscale("log")
    axes[1].invert_xaxis()
    axes[1].set_xticks([8, 4, 2, 1, 0.5, 0.3], ["8", "4", "2", "1", "0.5", "0.3"])
    axes[1].minorticks_off()
    axes[0].set_ylabel("loss term, 0 is best")
    axes[0].set_title("leakage grows", fontsize=10)
    axes[1].set_title("distortion grows", fontsize=10)
    axes[0].legend(frameon=False, fontsize=9, loc="upper left")
    save(figure, path)


def low_passed(waves: Tensor, cutoff: float, rate: int) -> Tensor:
    """``waves`` (S, T) without what lies above ``cutoff`` Hz."""
    spectrum = torch.fft.rfft(waves)
    frequencies = torch.fft.rfftfreq(waves.shape[-1], 1.0 / rate)
    return torch.fft.irfft(spectrum * (frequencies <= cutoff), waves.shape[-1])


# ------------------------------------------------------------------ activity


def activity(path: Path) -> None:
    """Where the scores of one source are defined, depending on which sources are active."""
    references, rate = demo.voices()
    estimates = demo.separated(references, demo.GRADES[1])
    mapss = MAPSS("mel", sample_rate=rate)
    scores = mapss(estimates, references)
    times = scores.times.numpy()
    figure = plots.new_figure(9.0, 3.2)
    axes = figure.subplots(3, 1, sharex=True, height_ratios=(1, 1, 1.1))
    seconds = np.arange(references.shape[-1]) / rate
    names = ("its own source", "the other source")
    for ax, wave, colour, name in zip(axes, references, (BLUE, GREY), names):
        ax.plot(seconds, wave.numpy(), color=colour, linewidth=0.5)
        ax.set(yticks=[], xlim=(0.0, float(seconds[-1])))
        ax.set_ylabel(name, rotation=0, ha="right", va="center")
        ax.spines[["top", "right", "left"]].set_visible(False)
    lines = {"clearance": ("clearance", BLUE), "fidelity": ("fidelity, PS, PM", ORANGE)}
    lines["bleed_db"] = ("bleed", GREY)
    step = float(np.diff(times).mean())
    for position, (name, (label, colour)) in enumerate(lines.items()):
        defined = scores.defined(name)[0, LOW].numpy()
        for time in times[defined]:
            axes[2].barh(-position, step, left=time - step / 2, height=0.6, color=colour)
        axes[2].text(
            -0.02,
            -position,
            label,
            transform=axes[2].get_yaxis_transform(),
            ha="right",
            va="center",
            color=colour,
            weight="bold",
        )
    axes[2].set(yticks=[], ylim=(-2.6, 0.6), xlabel="time (s)")
    axes[2].spines[["top", "right", "left"]].set_visible(False)
    figure.align_ylabels(axes[:2])
    save(figure, path)


# ------------------------------------------------------------------ correlate, report


def made_up_set(folder: Path) -> Path:
    """A scored set: eight extracts of the demo's voices, four systems and a hidden reference."""
    voices, rate = demo.voices()
    samples = voices.shape[-1] // 3
    entries = []
    systems = {"open": (-26.0, 0.25), "wave": (-19.0, 0.5), "mask": (-14.0, 0.35)}
    systems["old"] = (-11.0, 0.6)
    for track in range(8):
        begin = track % 3 * samples
        pieces = [voices[LOW, begin:][:samples], voices[HIGH].roll(track * samples // 2)[:samples]]
        truth = torch.stack(pieces)
        paths = {"control:ref": write(folder / f"song{track + 1}" / "references", truth, rate)}
        for name, (leakage_db, shake) in systems.items():
            # Songs are not equally hard.
            grade = demo.Grade(name, leakage_db + 0.8 * (track - 3.5), shake * (0.8 + 0.05 * track))
            made = demo.separated(truth, grade)
            paths[name] = write(folder / f"song{track + 1}" / name, made, rate)
        entries.append(
            {
                "mixture_id": f"song{track + 1}",
                "references": paths["control:ref"],
                "sources": ["low", "high"],
                "systems": paths,
            }
        )
    with quietly():
        evaluate_set(entries, out=folder / "results", encoder="mel", measures="decomposition")
    return folder / "results"


def write(folder: Path, waves: Tensor, rate: int) -> list[str]:
    """Write the two voices as files; returns their paths."""
    folder.mkdir(parents=True, exist_ok=True)
    paths = [str(folder / f"{name}.wav") for name in ("low", "high")]
    for path, wave in zip(paths, waves):
        soundfile.write(path, wave.numpy(), rate, subtype="FLOAT")
    return paths


def correlate_picture(path: Path) -> None:
    """What ``torch-mapss correlate`` draws, for made-up ratings."""
    with tempfile.TemporaryDirectory() as scratch:
        results = made_up_set(Path(scratch))
        scores = pandas.read_csv(results / "scores.csv")
        generator = np.random.default_rng(0)
        rows = scores[~scores["system"].str.startswith("control:")]
        heard = 100.0 * rows["clearance"] - 25.0 + 5.0 * generator.standard_normal(len(rows))
        ratings = pandas.DataFrame(
            {
                "track": rows["mixture_id"],
                "source": rows["source"],
                "system": rows["system"],
                "question": "interference",
                "mean_rating": heard.clip(0.0, 100.0),
            }
        )
        ratings.to_csv(Path(scratch) / "ratings.csv", index=False)
        figure = correlate(results, Path(scratch) / "ratings.csv", draws=200).plot()
        save(figure, path)


def report(path: Path) -> None:
    """The top of the report page of a set, as a browser shows it.

    Raises:
        NoBrowser: no Chromium is installed, or it took no picture.
    """
    browser = next(filter(None, map(shutil.which, BROWSERS)), None)
    if browser is None:
        raise NoBrowser("the picture of the report page needs Chromium")
    with tempfile.TemporaryDirectory() as scratch:
        results = made_up_set(Path(scratch))
        page = Path(scratch) / "report.html"
        write_page(results, page, title="Eight songs")
        flags = ("--headless", "--no-sandbox", "--disable-gpu", "--disable-dev-shm-usage")
        flags += ("--hide-scrollbars", "--no-first-run", "--disable-background-networking")
        flags += ("--disable-component-update", "--disable-sync", "--window-size=1180,1900")
        command = [browser, *flags, f"--user-data-dir={scratch}/profile"]
        command += [f"--screenshot={path.absolute()}", page.as_uri()]
        try:
            subprocess.run(command, check=True, capture_output=True, timeout=120)
        except subprocess.SubprocessError as error:
            raise NoBrowser(f"{browser} took no picture: {error}") from error


# ------------------------------------------------------------------ shared


def experiment_module(name: str) -> Any:
    """A script of ``recipes/experiments`` as a module."""
    folder = str(HERE / "experiments")
    if folder not in sys.path:
        sys.path.append(folder)
    return importlib.import_module(name)


@contextmanager
def quietly() -> Iterator[None]:
    """Suppress warnings, which made-up estimates are bound to cause."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        yield


def save(figure: Figure, path: Path) -> None:
    plots.save_figure(figure, path, dpi=130)


DRAW: dict[str, Callable[[Path], None]] = {
    "which_number": which_number,
    "stereo": stereo,
    "losses": losses,
    "activity": activity,
    "correlate": correlate_picture,
    "report": report,
}


def main() -> None:
    """Draw the pictures that the command line names."""
    options = arguments()
    options.out.mkdir(parents=True, exist_ok=True)
    for name in options.only:
        DRAW[name](options.out / f"{name}.png")
        print(options.out / f"{name}.png")


if __name__ == "__main__":
    main()
