"""A made-up separation of two voices, scored offline in seconds.

The two clips come with the package (``recipes/make_demo_voices.py`` made them with a speech
synthesiser). Estimates of three grades are made here, with increasing leakage of the other voice
and increasing random phase shifts in the spectrogram, a distortion that the banks do not contain.
"""

from __future__ import annotations

import math
import os
import warnings
from collections.abc import Sequence
from importlib import resources
from typing import Any, NamedTuple

import torch
from torch import Tensor

from torch_mapss import audio
from torch_mapss.evaluation import io, plots
from torch_mapss.evaluation.report import Report, plot_reports
from torch_mapss.evaluation.single_mixture import evaluate
from torch_mapss.pipeline.mapss import MAPSS
from torch_mapss.score_table import SCORES, score_label, score_text, scores_in

VOICES = ("low voice", "high voice")
_CLIPS = ("voice_low.flac", "voice_high.flac")


class Grade(NamedTuple):
    """Grade of a made-up estimate."""

    name: str
    leakage_db: float  # level of the other voice
    shake: float  # largest phase shift in half turns


GRADES = (Grade("good", -30.0, 0.15), Grade("fair", -20.0, 0.45), Grade("poor", -8.0, 0.8))


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
    """Shift all phases in the spectrogram of ``waves`` (S, T) by up to ``amount`` * π."""
    size, hop = 512, 128
    window = torch.hann_window(size, dtype=waves.dtype, device=waves.device)
    spectrum = torch.stft(waves, size, hop, window=window, return_complex=True)
    generator = torch.Generator().manual_seed(seed)
    uniform = torch.rand(spectrum.shape, generator=generator, dtype=torch.float32, device="cpu")
    angle = amount * math.pi * (2.0 * uniform - 1.0)
    turned = spectrum * torch.polar(torch.ones_like(angle), angle)
    return torch.istft(turned, size, hop, window=window, length=waves.shape[-1])


def make_demo(folder: str | os.PathLike[str], encoder: str = "mel") -> str:
    """Score the three grades and write tables, audio and (with matplotlib) a plot.

    Returns:
        The table, to print.
    """
    folder, reports = io.make_folder(folder), []
    audio_folder = io.make_folder(os.path.join(folder, "audio"))
    references, rate = voices()
    signals: dict[str, Any] = {"references": references, "names": VOICES, "sample_rate": rate}
    signals |= {"mixture": references.sum(0), "mapss": MAPSS(encoder)}
    sounds = {"mixture": references.sum(0)} | _named("reference", references)
    for grade in GRADES:
        waves = separated(references, grade)
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # about the poor grade, which is meant to be poor
            reports.append(evaluate(estimates=waves, **signals))
        reports[-1].save(os.path.join(folder, "results"), system=grade.name)
        sounds |= _named(grade.name, waves)
    graded = zip(GRADES, reports)
    rows = [{"grade": grade.name, **row} for grade, report in graded for row in report.table()]
    io.write_table(os.path.join(folder, "scores.csv"), rows)
    for name, wave in sounds.items():  # all at the same level
        path = os.path.join(audio_folder, f"{name.replace(' ', '_')}.wav")
        io.write_wave(path, (0.5 * wave).clamp(-1.0, 1.0), rate, "PCM_16")
    words = text(reports)
    try:
        titles = [f"{grade.name} (leakage {grade.leakage_db:g} dB)" for grade in GRADES]
        plots.save_figure(plot_reports(reports, titles), os.path.join(folder, "demo.png"))
    except ImportError:
        words += f"\nNo plot was drawn: {plots.INSTALL}"
    return words


def text(reports: Sequence[Report]) -> str:
    """The table of the demo, with what its numbers mean."""
    names = [n for n in scores_in(reports[0].scores, ranked=True) if n != "bleed_db"]
    columns = ["estimate", "source", "leakage", *map(score_label, names)]
    rows = []
    for grade, report in zip(GRADES, reports):
        for row in report.rows:
            scores = [score_text(name, row[name]) for name in names]
            rows.append([grade.name, row.source, f"{grade.leakage_db:g} dB", *scores])
    meanings = [f"{SCORES[name].meaning}." for name in names]
    table = io.text_table(columns, rows, left=2)
    return "\n".join([table, "", *meanings, "All fall from good to poor."])


def _named(kind: str, waves: Tensor) -> dict[str, Tensor]:
    return {f"{kind}_{name}": wave for name, wave in zip(VOICES, waves)}
