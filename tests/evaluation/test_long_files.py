"""Long files on the way through evaluate and the command line: one pass, progress, settings."""

from __future__ import annotations

import json
import math
from pathlib import Path

import pytest
import torch

from torch_mapss import MAPSS, DistortionBank, evaluate
from torch_mapss.evaluation import cli, console
from torch_mapss.evaluation.commands import evaluate as commands
from torch_mapss.evaluation.manifest import load_manifest
from torch_mapss.evaluation.run import run

soundfile = pytest.importorskip("soundfile")


def voices(seconds: float) -> torch.Tensor:
    time = torch.arange(round(16000 * seconds)) / 16000
    generator = torch.Generator().manual_seed(2)
    noise = 0.05 * torch.randn(2, len(time), generator=generator)
    beats = torch.tensor([[1.3], [2.1]])
    return noise * (0.1 + (torch.sin(2 * math.pi * beats * time) > -0.5))


def small(**options: object) -> MAPSS:
    banks = {
        "separation_bank": DistortionBank(size=6, without=("pitch", "vibrato")),
        "match_bank": DistortionBank("match", size=6, without=("pitch", "vibrato")),
    }
    return MAPSS("mel", **banks, **options)  # type: ignore[arg-type]


def written(folder: Path, name: str, waves: torch.Tensor) -> list[str]:
    names = [f"{name}{k}.wav" for k in range(len(waves))]
    for path, wave in zip(names, waves):
        soundfile.write(folder / path, wave.numpy(), 16000, subtype="FLOAT")
    return names


def test_systems_of_a_long_mixture_share_a_pass_and_fail_alone(tmp_path: Path) -> None:
    references = voices(3.0)
    entry = {
        "mixture_id": "long",
        "references": written(tmp_path, "s", references),
        "systems": {
            "A": written(tmp_path, "a", references + 0.2 * references.flip(0)),
            "short": written(tmp_path, "x", references[:, :20000]),
            "B": [written(tmp_path, "b", references.sign() * 0.1)[0], None],
        },
    }
    (tmp_path / "m.json").write_text(json.dumps([entry]))
    told: list[tuple[int, int]] = []
    mixtures = load_manifest(tmp_path / "m.json")
    outcome = run(
        mixtures,
        tmp_path / "out",
        lambda: small(segment=1.2),
        on_segment=lambda done, count: told.append((done, count)),
    )
    assert told == [(0, 3), (1, 3), (2, 3), (3, 3)]  # not once more for the second system
    assert [item["status"] for item in outcome.items] == ["ok", "failed", "ok"]
    assert "20000 samples" in outcome.failures[0]
    whole = run(mixtures, tmp_path / "whole", small)
    for one, other in zip(outcome.items, whole.items):
        if one["status"] == "ok":
            assert one["ps"] == pytest.approx(other["ps"], abs=1e-3)
            assert one["pm"] == pytest.approx(other["pm"], abs=1e-3)
    settings = json.loads((tmp_path / "out" / "settings.json").read_text())["settings"]
    assert settings["segment"] == 1.2


def test_evaluate_takes_segments_and_tells_of_them() -> None:
    references = voices(2.0)
    told: list[tuple[int, int]] = []
    report = evaluate(
        estimates=references.flip(0) * 0.2 + references,
        references=references,
        mapss=small(segment=1.0),
        on_segment=lambda *state: told.append(state),
    )
    assert told == [(0, 2), (1, 2), (2, 2)]
    assert report.settings["segment"] == 1.0
    assert MAPSS("mel", segment="auto").segment == 60


def test_the_line_tells_the_segment(monkeypatch: pytest.MonkeyPatch) -> None:
    clock = iter([10.0, 12.0, 16.0, 18.0])
    monkeypatch.setattr(console.time, "monotonic", lambda: next(clock))
    tell = console.segment_detail()
    tell(0, 4)
    assert console._behind() == " (0 of 4 segments scored)"
    tell(1, 4)
    assert console._behind() == " (1 of 4 segments scored, about 6 s left in this file)"
    tell(3, 4)
    assert console._behind() == " (3 of 4 segments scored, about 2 s left in this file)"
    tell(4, 4)
    assert console._behind() == ""


def write_manifest(folder: Path, references: torch.Tensor) -> None:
    entry = {
        "mixture_id": "long",
        "references": written(folder, "s", references),
        "systems": {"A": written(folder, "a", references + 0.2 * references.flip(0))},
    }
    (folder / "m.json").write_text(json.dumps([entry]))


@pytest.mark.parametrize("segment", [1.0, None])
def test_the_line_tells_that_a_long_mixture_is_prepared(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, segment: float | None
) -> None:
    """And nothing of a short one, of which there may be thousands."""
    write_manifest(tmp_path, voices(3.0))
    seen: list[str] = []
    prepare = MAPSS.prepare

    def watched(self: MAPSS, *given: object) -> object:
        seen.append(console._behind())
        return prepare(self, *given)  # type: ignore[arg-type]

    monkeypatch.setattr(MAPSS, "prepare", watched)
    monkeypatch.setattr(commands, "scorer_of", lambda args: small(segment=segment))
    arguments = ["evaluate", str(tmp_path / "m.json"), "--out", str(tmp_path / "o")]
    assert cli.main(arguments) == 0
    assert seen == ["" if segment is None else " (preparing references and distortions)"]
    assert console._behind() == ""


def test_the_line_of_a_mixture_that_failed_half_way_is_not_that_of_the_next(
    capsys: pytest.CaptureFixture[str],
) -> None:
    left = []
    for _ in console.progress([1, 2]):
        left.append(console._behind())
        console.detail("3 of 9 segments scored")
    assert left == ["", ""]
    assert console._behind() == ""


def test_a_log_gets_lines_with_segment_and_time_left(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    references = voices(3.0)
    write_manifest(tmp_path, references)
    monkeypatch.setattr(console, "INTERVAL", 0.01)
    run(
        load_manifest(tmp_path / "m.json"),
        tmp_path / "out",
        lambda: small(segment=1.0),
        progress=console.progress,
        on_segment=console.segment_detail(),
    )
    lines = capsys.readouterr().err.splitlines()
    found = [line for line in lines if "2 of 3 segments scored, about" in line]
    assert found, lines
    assert "scoring: 0 of 1 mixtures done, 1 left" in found[0]
    assert found[0].endswith("s left in this file)")
