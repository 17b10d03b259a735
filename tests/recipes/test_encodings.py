"""Encoders, layers and overlays of the experiments, on voices made up here and a random Whisper."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from checkpoints import write_whisper
from recipe_scripts import recipe
from waveforms import hum

from torch_mapss.encoders import load_encoder


@pytest.fixture(scope="module")
def whisper(tmp_path_factory: pytest.TempPathFactory) -> Path:
    write_whisper(folder := tmp_path_factory.mktemp("checkpoints") / "small")
    return folder


@pytest.mark.slow
def test_layers_are_encoders_of_their_own(whisper, rated, tmp_path):
    arguments = [*rated, "--encoders", f"{whisper}@0", f"{whisper}@1", "--out", str(tmp_path)]
    arguments += ["--sample-frames", "3", "--bank-size", "6", "--no-rivals", "--no-variants"]
    rows = recipe("listeners").main(arguments)["scores"]
    names = rows.distinct("encoder")
    for system in ("s0", "s1", "s2"):
        layers = [rows.where(encoder=e, mixture="t0", system=system)[0] for e in names]
        assert layers[0]["ps"] != layers[1]["ps"]
        assert layers[0]["clearance"] != layers[1]["clearance"]
    assert (tmp_path / "layers.png").stat().st_size > 5000
    page = (tmp_path / "listeners.md").read_text(encoding="utf-8")
    assert "| small@1 |" in page
    layers = page.split("| layer | interference |")[1].splitlines()[2:4]
    assert [line.split("|")[1].strip() for line in layers] == ["0", "1"]
    assert float(layers[0].split("|")[2]) <= 1.0
    assert not any(str(folder) in page for folder in (Path(rated[1]).parent, whisper))


@pytest.mark.slow
def test_overlay_of_two_encoders(rated, tmp_path):
    arguments = [*rated[:2], "--out", str(tmp_path), "--encoders", "mel", "waveform"]
    scores_by_encoder = recipe("overlays").main([*arguments, "--system", "s2"])
    assert set(scores_by_encoder) == {"mel", "waveform"}
    mel = scores_by_encoder["mel"]
    assert mel["times"].shape == mel["ps"].shape
    assert bool(mel["clearance"].nanmean() < 0.95)
    assert (tmp_path / "overlay.png").stat().st_size > 5000


def test_a_random_twin_is_drawn_anew_and_alike(tmp_path, monkeypatch):
    script = recipe("untrained")
    small = {"d_model": 16, "encoder_layers": 2, "heads": 2}
    monkeypatch.setitem(script.SHAPES, "whisper-tiny.en", ("whisper", small))
    folders = [script.main(["whisper-tiny.en", str(tmp_path / name)]) for name in "ab"]
    a, b = (load_encoder(str(folder), layer=1) for folder in folders)
    wave = hum(120.0, 0)[None]
    torch.testing.assert_close(a(wave), b(wave))
    assert a.sample_rate == 16000


def test_every_published_shape_is_known():
    script = recipe("untrained")
    assert {*script.SHAPES} <= {row.name for row in script.encoder_table()}
