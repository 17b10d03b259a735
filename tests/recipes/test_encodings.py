"""Encoders, layers and overlays of the experiments, on voices made up here and a random Whisper."""

from __future__ import annotations

import csv
import json
from pathlib import Path

import pytest
import torch
from checkpoints import write_whisper
from recipe_scripts import recipe, voice, write

from torch_mapss.encoders import load_encoder


@pytest.fixture(scope="module")
def whisper(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("checkpoints") / "small"
    write_whisper(folder)
    return folder


@pytest.fixture(scope="module")
def rated(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Two mixtures with four systems that leak more and more, and ratings."""
    folder = tmp_path_factory.mktemp("rated")
    entries, ratings = [], [("track", "system", "question", "mean_rating")]
    for place, track in enumerate(("one", "two")):
        target, other = voice(110.0, place), voice(170.0 + 20 * place, place + 3)
        write(folder / track / "voice.wav", target)
        write(folder / track / "band.wav", other)
        systems = {}
        for leak in (0.05, 0.3, 0.6, 0.9):
            name = f"S{leak}"
            write(folder / track / f"{name}.wav", target + leak * other)
            systems[name] = [f"{track}/{name}.wav", None]
            ratings.append((track, name, "leak", str(90 - 80 * leak)))
        files = [f"{track}/{n}.wav" for n in ("voice", "band")]
        entries.append({"mixture_id": track, "references": files, "systems": systems})
    (folder / "mapss.json").write_text(json.dumps(entries))
    with open(folder / "ratings.csv", "w", newline="") as file:
        csv.writer(file).writerows(ratings)
    return folder


@pytest.mark.slow
def test_layers_are_encoders_of_their_own(whisper, rated, tmp_path):
    script = recipe("listeners")
    arguments = ["--manifest", str(rated / "mapss.json"), "--ratings", str(rated / "ratings.csv")]
    arguments += ["--encoders", f"{whisper}@0", f"{whisper}@1", "--out", str(tmp_path)]
    arguments += ["--sample-frames", "3", "--bank-size", "6", "--no-rivals", "--no-variants"]
    rows = script.main(arguments)["scores"]
    one, other = (rows.where(encoder=name, mixture="one") for name in rows.distinct("encoder"))
    assert len(one) == len(other) == 4
    assert all(a["ps"] != b["ps"] and a["clearance"] != b["clearance"] for a, b in zip(one, other))
    assert (tmp_path / "layers.png").stat().st_size > 5000
    page = (tmp_path / "listeners.md").read_text(encoding="utf-8")
    assert "| small@1 |" in page
    layers = page.split("| layer | leak |")[1].splitlines()[2:4]
    assert [line.split("|")[1].strip() for line in layers] == ["0", "1"]
    assert float(layers[0].split("|")[2]) <= 1.0
    assert str(rated) not in page
    assert str(whisper) not in page


@pytest.mark.slow
def test_overlay_of_two_encoders(rated, tmp_path):
    script = recipe("overlays")
    arguments = ["--manifest", str(rated / "mapss.json"), "--out", str(tmp_path)]
    found = script.main([*arguments, "--encoders", "mel", "waveform", "--system", "S0.6"])
    assert set(found) == {"mel", "waveform"}
    assert found["mel"]["times"].shape == found["mel"]["ps"].shape
    assert bool(found["mel"]["clearance"].nanmean() < 0.95)
    assert (tmp_path / "overlay.png").stat().st_size > 5000


def test_a_random_twin_is_drawn_anew_and_alike(tmp_path, monkeypatch):
    script = recipe("untrained")
    small = {"d_model": 16, "encoder_layers": 2, "heads": 2}
    monkeypatch.setitem(script.SHAPES, "whisper-tiny.en", ("whisper", small))
    folders = [script.main(["whisper-tiny.en", str(tmp_path / name)]) for name in "ab"]
    a, b = (load_encoder(str(folder), layer=1) for folder in folders)
    wave = voice(120.0, 0)[None]
    torch.testing.assert_close(a(wave), b(wave))
    assert a.sample_rate == 16000


def test_every_published_shape_is_known():
    script = recipe("untrained")
    known = {row.name for row in script.encoder_table()}
    assert set(script.SHAPES) <= known
