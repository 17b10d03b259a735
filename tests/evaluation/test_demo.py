"""The demo: offline, quick, and its scores fall as its estimates get worse."""

from __future__ import annotations

import csv
import socket
import sys
from importlib import resources
from pathlib import Path
from typing import Any

import pytest
import torch
from separations import small_mapss

from torch_mapss.audio.files import load_audio
from torch_mapss.audio.loudness import integrated_loudness
from torch_mapss.evaluation import cli, demo


@pytest.fixture(scope="module")
def ran(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, str]:
    """The command's folder and what it printed, run once without a network."""
    out = tmp_path_factory.mktemp("demo") / "new"
    patch = pytest.MonkeyPatch()

    def refused(*_: Any, **__: Any) -> None:
        raise AssertionError("the demo opened a connection")

    patch.setattr(socket.socket, "connect", refused)
    patch.setattr(demo, "MAPSS", lambda _: small_mapss(6))
    printed: list[str] = []
    patch.setattr(sys.stdout, "write", lambda text: printed.append(text) or len(text))
    try:
        assert cli.main(["demo", "--out", str(out)]) == 0
    finally:
        patch.undo()
    return out, "".join(printed)


def test_scores_fall_with_the_grade(ran: tuple[Path, str]) -> None:
    out, text = ran
    with open(out / "scores.csv", encoding="utf-8", newline="") as file:
        rows = list(csv.DictReader(file))
    assert [(row["grade"], row["source"]) for row in rows] == [
        (grade.name, voice) for grade in demo.GRADES for voice in demo.VOICES
    ]
    for place in range(2):
        for measure in ("clearance", "fidelity", "ps", "pm", "log_pm"):
            values = [float(row[measure]) for row in rows[place::2]]
            assert values == sorted(values, reverse=True)
            assert values[0] - values[2] > 0.1
        assert float(rows[place]["ps"]) > 0.95
        # Few pauses: nearly all of the clips is scored.
        assert int(rows[place]["frames"]) > 0.8 * int(rows[place]["total_frames"])
    for row in rows:
        assert f"{float(row['ps']):.3f}" in text
    assert "(no leakage)" in text


def test_everything_is_written(ran: tuple[Path, str]) -> None:
    out, _ = ran
    for grade in demo.GRADES:
        assert (out / grade.name / "frames.csv").exists()
        assert (out / grade.name / "report.json").exists()
    assert (out / "demo.png").read_bytes().startswith(b"\x89PNG")
    clips = {path.name for path in (out / "audio").iterdir()}
    assert {"mixture.wav", "reference_low_voice.wav", "poor_high_voice.wav"} <= clips
    assert len(clips) == 9
    # All are at one level, so the mixture is the sum of the references.
    low, high, both = (
        load_audio(out / "audio" / f"{name}.wav")[0]
        for name in ("reference_low_voice", "reference_high_voice", "mixture")
    )
    torch.testing.assert_close(both, low + high, atol=1e-4, rtol=0.0)


def test_clips_are_small_mono_and_level() -> None:
    waves, rate = demo.voices()
    assert rate == 16_000
    assert waves.shape == (2, 48_000)
    assert float(waves.abs().max()) < 1.0
    torch.testing.assert_close(
        integrated_loudness(waves, rate), torch.tensor([-23.0, -23.0]), atol=0.2, rtol=0.0
    )
    for path in (resources.files("torch_mapss") / "assets").iterdir():
        assert len(path.read_bytes()) < 200 * 1024


def test_shaking_keeps_magnitudes_where_it_does_nothing_and_grows() -> None:
    waves, _ = demo.voices()
    torch.testing.assert_close(demo.shaken(waves, 0.0), waves, atol=1e-5, rtol=0.0)
    errors = [float((demo.shaken(waves, a) - waves).square().mean()) for a in (0.15, 0.45, 0.8)]
    assert errors == sorted(errors)
    assert torch.equal(demo.shaken(waves, 0.5), demo.shaken(waves, 0.5))


def test_leakage_has_its_level() -> None:
    waves, _ = demo.voices()
    made = demo.separated(waves, demo.Grade("", -20.0, 0.0))
    leak = made - waves
    ratio = 10 * torch.log10(leak.square().mean(-1) / waves.flip(0).square().mean(-1))
    torch.testing.assert_close(ratio, torch.tensor([-20.0, -20.0]), atol=0.05, rtol=0.0)


def test_a_file_in_the_way_is_told_before_the_work(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "taken").write_text("mine")
    assert cli.main(["demo", "--out", str(tmp_path / "taken")]) == 2
    assert capsys.readouterr().err.count("\n") == 1
