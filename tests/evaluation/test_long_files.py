"""Long files on the way through evaluate and the command line: one pass, progress, settings."""

from __future__ import annotations

import json
import math
from pathlib import Path

import pytest
import torch
from separations import score_set, write_all

from torch_mapss import MAPSS, DistortionBank, evaluate
from torch_mapss.evaluation import console
from torch_mapss.evaluation.results import records


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
    return write_all(folder, waves, (f"{name}0", f"{name}1"))


def test_systems_of_a_long_mixture_share_a_pass_and_fail_alone(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
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
    prepared = []
    prepare = MAPSS.prepare
    monkeypatch.setattr(MAPSS, "prepare", lambda *a, **k: prepared.append(1) or prepare(*a, **k))
    outcome = score_set(tmp_path / "m.json", tmp_path / "out", small(segment=1.2))
    assert len(prepared) == 1  # not once more for the second system
    items = records(outcome.results.items)
    assert [item["status"] for item in items] == ["ok", "failed", "ok"]
    assert "20000 samples" in outcome.failures[0]
    whole = score_set(tmp_path / "m.json", tmp_path / "whole", small())
    for one, other in zip(items, records(whole.results.items)):
        if one["status"] == "ok":
            for name in ("ps", "pm", "clearance"):
                assert one[name] == pytest.approx(other[name], abs=1e-3)
    settings = json.loads((tmp_path / "out" / "settings.json").read_text())["settings"]
    assert settings["segment"] == 1.2


def test_segments_are_told_of(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    references = voices(3.0)
    given = {"references": written(tmp_path, "s", references)}
    made = written(tmp_path, "a", references + 0.2 * references.flip(0))
    entry = given | {"mixture_id": "long", "systems": {"A": made}}
    (tmp_path / "m.json").write_text(json.dumps([entry]))
    monkeypatch.setattr(console, "INTERVAL", 0.01)
    score_set(tmp_path / "m.json", tmp_path / "out", small(segment=1.0), quiet=False)
    lines = capsys.readouterr().err.splitlines()
    assert any("scoring:  67%, 1 of 1: long," in line and "left" in line for line in lines), lines
    told: list[tuple[int, int]] = []
    report = evaluate(
        estimates=references + 0.2 * references.flip(0),
        references=references,
        mapss=small(segment=1.0),
        on_segment=lambda *state: told.append(state),
    )
    assert told[:4] == [(0, 3), (1, 3), (2, 3), (3, 3)]
    assert report.settings["segment"] == 1.0
    assert MAPSS("mel", segment="auto").config.segment == 60
