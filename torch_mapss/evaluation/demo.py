"""A made-up separation of two voices, scored offline in seconds.

The two clips come with the package (``recipes/make_demo_voices.py`` made them with a speech
synthesiser). Estimates of three grades are made here: the other voice leaks in more and more, and
the phases of the spectrogram are shaken more and more, a distortion that the bank does not hold.
"""

from __future__ import annotations

import math
import os
from collections.abc import Sequence
from functools import partial
from importlib import resources
from typing import Any, NamedTuple

import torch
from torch import Tensor

from torch_mapss import audio
from torch_mapss.evaluation import io, measures, plots
from torch_mapss.evaluation.audio_input import renamed
from torch_mapss.evaluation.measures import COLUMNS
from torch_mapss.evaluation.report import Report
from torch_mapss.evaluation.score import Scorer

VOICES = ("low voice", "high voice")
_CLIPS = ("voice_low.flac", "voice_high.flac")


class Grade(NamedTuple):
    """How bad a made-up estimate is."""

    name: str
    leakage_db: float  # level of the other voice
    shake: float  # phases move by up to so many half turns


GRADES = (Grade("good", -30.0, 0.15), Grade("fair", -20.0, 0.45), Grade("poor", -8.0, 0.8))


_SHOWN = ("clearance", "fidelity", "ps", "pm", "log_pm")


class Result(NamedTuple):
    """What the demo found."""

    reports: tuple[Report, ...]  # one per grade
    text: str  # the table, to print
    files: tuple[str, ...]  # written


def voices() -> tuple[Tensor, int]:
    """The two clips: (2, T) waveforms and their rate in Hz."""
    waves, rate = [], 0
    for name in _CLIPS:
        with resources.as_file(resources.files("torch_mapss") / "assets" / name) as path:
            wave, rate = audio.load_audio(path)
        waves.append(audio.to_mono(wave))
    return torch.stack(waves), rate


def separated(references: Tensor, grade: Grade) -> Tensor:
    """Made-up estimates (2, T) of two references."""
    leak = 10.0 ** (grade.leakage_db / 20.0)
    return shaken(references, grade.shake) + leak * references.flip(0)


def shaken(waves: Tensor, amount: float, seed: int = 0) -> Tensor:
    """``waves`` (S, T) with every phase of the spectrogram moved by up to ``amount`` * π."""
    size, hop = 512, 128
    window = torch.hann_window(size)
    spectrum = torch.stft(waves, size, hop, window=window, return_complex=True)
    generator = torch.Generator().manual_seed(seed)
    angle = amount * math.pi * (2.0 * torch.rand(spectrum.shape, generator=generator) - 1.0)
    turned = spectrum * torch.polar(torch.ones_like(angle), angle)
    return torch.istft(turned, size, hop, window=window, length=waves.shape[-1])


def run(folder: str | os.PathLike[str], encoder: str = "mel", device: str | None = None) -> Result:
    """Score the three grades and write tables, audio and (with matplotlib) a plot.

    Args:
        folder: where to write; made if need be.
        encoder: ``"mel"`` needs no download.
        device: to compute on; CUDA where there is one, else MPS, else the CPU by default.

    Returns:
        A :class:`Result`.

    Raises:
        ValueError: the folder cannot be written to.
    """
    folder = io.make_folder(folder)
    references, rate = voices()
    reports = scored(references, rate, encoder, device)
    written = _write(folder, reports, references, rate)
    words = text(reports)
    if not any(path.endswith(".png") for path in written):
        words += f"\nNo plot was drawn: {plots.INSTALL}"
    return Result(reports, words, written)


def scored(references: Tensor, rate: int, encoder: str, device: str | None) -> tuple[Report, ...]:
    """The report of each grade."""
    scorer = Scorer.of({"encoder": encoder}, device)

    def clips(waves: Tensor, kind: str) -> Any:
        return renamed(scorer.read(waves, kind, rate), VOICES)

    (mixture,) = scorer.read([references.sum(0)], "mixture", rate)
    truth = clips(references, "references")
    made = [clips(separated(references, grade), "estimates") for grade in GRADES]
    entries = [scorer.entry(one, truth, mixture=mixture) for one in made]
    return tuple(scorer.reports(entries))


def text(reports: Sequence[Report]) -> str:
    """The table of the demo, with what its numbers mean."""
    names = [n for n in measures.present(reports[0].rows[0], ranked=True) if n in _SHOWN]
    columns = ["estimate", "source", "leakage", *map(measures.label, names)]
    rows = [
        [
            grade.name,
            row.source,
            f"{grade.leakage_db:g} dB",
            *(measures.text(name, row[name]) for name in names),
        ]
        for grade, report in zip(GRADES, reports)
        for row in report.rows
    ]
    table = io.text_table(columns, rows, left=2)
    meanings = [f"{COLUMNS[name].meaning}." for name in names]
    return "\n".join([table, "", *meanings, "All fall from good to poor."])


def _write(
    folder: str, reports: tuple[Report, ...], references: Tensor, rate: int
) -> tuple[str, ...]:
    rows = [
        {"grade": grade.name, **row}
        for grade, report in zip(GRADES, reports)
        for row in report.table()
    ]
    written = [os.path.join(folder, "scores.csv")]
    io.write_table(written[0], rows)
    for grade, report in zip(GRADES, reports):
        written.append(report.save(os.path.join(folder, grade.name)))
    written.append(_write_audio(folder, references, rate))
    picture = os.path.join(folder, "demo.png")
    if _draw(reports, picture):
        written.append(picture)
    return tuple(written)


def _write_audio(folder: str, references: Tensor, rate: int) -> str:
    """Everything to listen to, at one level."""
    import soundfile

    place = io.make_folder(os.path.join(folder, "audio"))
    clips = {"mixture": references.sum(0)}
    clips |= {f"reference_{name}": wave for name, wave in zip(VOICES, references)}
    for grade in GRADES:
        made = separated(references, grade)
        clips |= {f"{grade.name}_{name}": wave for name, wave in zip(VOICES, made)}
    for name, wave in clips.items():
        path = os.path.join(place, name.replace(" ", "_") + ".wav")
        samples = (0.5 * wave).clamp(-1.0, 1.0).numpy()
        io.write_with(path, partial(soundfile.write, data=samples, samplerate=rate))
    return place


def _draw(reports: tuple[Report, ...], path: str) -> bool:
    try:
        plots.check_available()
    except ImportError:
        return False
    panels = [
        report.panel(f"{grade.name} (leakage {grade.leakage_db:g} dB)")
        for grade, report in zip(GRADES, reports)
    ]
    plots.save_figure(plots.plot_panels(panels), path)
    return True
