"""The recipes of single data sets, on miniatures in the true layouts, from the bundled voices."""

from __future__ import annotations

import csv
from pathlib import Path

import pytest
import torch
from recipe_scripts import recipe, write
from torch import Tensor

from torch_mapss.evaluation import demo

MEASURES = ("decomposition", "bss")
SMALL = ("--bank-size", "8", "--sample-frames", "10", "--quiet")


@pytest.fixture(scope="module")
def voices() -> tuple[Tensor, int]:
    waves, rate = demo.voices()
    return waves[:, : 2 * rate], rate


def musdb(root: Path, voices: Tensor, rate: int) -> list[str]:
    sources = {"vocals": 0, "drums": 1, "bass": 0, "other": 1}
    for song in ("AM Contra - Heart", "Al James - Schoolboy"):
        waves = torch.stack([voices[i].roll(400 * k) for k, i in enumerate(sources.values())])
        for name, wave in zip(sources, waves):
            write(root / "test" / song / f"{name}.wav", wave, rate, channels=2)
            leaky = wave + 0.2 * waves.sum(0)
            write(root / "umx" / song / f"{name}.wav", leaky, rate, channels=2)
        write(root / "test" / song / "mixture.wav", waves.sum(0), rate, channels=2)
    return [str(root / "test"), "--system", f"umx={root / 'umx'}"]


def librimix(root: Path, voices: Tensor, rate: int) -> list[str]:
    for number in ("61-70968-0000", "61-70968-0001"):
        noise = 0.01 * torch.randn_like(voices[0])
        for k, name in enumerate(("s1", "s2")):
            write(root / "test" / name / f"{number}.wav", voices[k], rate)
            swapped = voices[1 - k] + 0.1 * voices[k]
            write(root / "out" / name / f"{number}.wav", swapped, rate)
        write(root / "test" / "noise" / f"{number}.wav", noise, rate)
        write(root / "test" / "mix_both" / f"{number}.wav", voices.sum(0) + noise, rate)
    return [
        str(root / "test"),
        "--system",
        f"net={root / 'out'}",
        "--permute",
        "--measures",
        *MEASURES,
    ]


def dns(root: Path, voices: Tensor, rate: int) -> list[str]:
    for number in (0, 1):
        noisy = voices[0] + 0.3 * voices[1]
        write(root / "clean" / f"clean_fileid_{number}.wav", voices[0], rate)
        write(root / "noisy" / f"book_snr5_fileid_{number}.wav", noisy, rate)
        write(root / "enhanced" / f"{number}.wav", voices[0] + 0.05 * voices[1], rate)
    options = ["--clean", "clean/clean_fileid_{mixture}.wav"]
    options += ["--noisy", "noisy/*_fileid_{mixture}.wav"]
    return [str(root), "--system", f"gate={root / 'enhanced'}", *options]


@pytest.mark.slow
@pytest.mark.parametrize(
    ("name", "build", "rows"),
    [("score_musdb", musdb, 8), ("score_librimix", librimix, 4), ("score_dns", dns, 2)],
)
def test_a_miniature_is_scored(name, build, rows, voices, tmp_path):
    arguments = build(tmp_path, *voices)
    out = tmp_path / "results"
    assert recipe(name).main([*arguments, "--out", str(out), *SMALL]) == 0
    scores = list(csv.DictReader((out / "scores.csv").open(encoding="utf-8")))
    assert len(scores) == rows
    assert all(0.2 < float(row["clearance"]) <= 1.0 for row in scores)
    ratios = {"sdr", "sir", "sar"}
    assert ratios & {*scores[0]} == (ratios if "bss" in arguments else set())
    if "bss" in arguments:  # outputs were swapped, each has the other talker at -20 dB
        assert all(10.0 < float(row["sir"]) < 30.0 for row in scores)
