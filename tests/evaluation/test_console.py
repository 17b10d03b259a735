"""Progress without a terminal, and words about time."""

from __future__ import annotations

import time
from pathlib import Path

import pytest
from separations import small_mapss, sources

from torch_mapss import evaluate
from torch_mapss.evaluation import console


@pytest.mark.parametrize(
    ("seconds", "text"),
    [(0.4, "0 s"), (59.4, "59 s"), (61.0, "1 min"), (3599.0, "1 h 0 min"), (8000.0, "2 h 13 min")],
)
def test_durations(seconds: float, text: str) -> None:
    assert console.duration(seconds) == text


def test_states() -> None:
    assert console.state(0, 4, "mixture", 31.0) == "0 of 4 mixtures done, 4 left, 31 s so far"
    assert console.state(1, 4, "mixture", 40.0).endswith("40 s so far, about 2 min left")


def test_lines_without_a_terminal(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(console, "INTERVAL", 0.05)
    for _ in console.progress([1, 2], desc="scoring", unit="mixture"):
        time.sleep(0.13)  # a single item may take longer than the interval
    lines = capsys.readouterr().err.splitlines()
    assert lines[0].startswith("torch-mapss: scoring: 0 of 2 mixtures done, 2 left")
    assert any("1 of 2 mixtures done, 1 left" in line and "min" not in line for line in lines)
    assert 3 <= len(lines) <= 6
    time.sleep(0.12)
    assert capsys.readouterr().err == ""  # the end is the end
    list(console.progress([1, 2], quiet=True))
    assert capsys.readouterr().err == ""


def test_stages_without_a_terminal(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(console, "INTERVAL", 0.03)
    with console.stages(3, quiet=False) as stage:
        assert stage is not None
        stage("reading files")
        time.sleep(0.08)
    assert "torch-mapss: reading files (stage 1 of 3), 0 s so far" in capsys.readouterr().err


def test_a_report_is_five_lines_and_a_small_table(tmp_path: Path) -> None:
    truth = sources()
    report = evaluate(
        estimates=truth * 1.0, references=truth, names=["<b>", "a & b"], mapss=small_mapss()
    )
    assert len(repr(report).splitlines()) == 5
    assert "2 estimates, 2 references, 24 frames at 16000 Hz" in repr(report)
    html = report._repr_html_()
    assert "&lt;b&gt;" in html
    assert "a &amp; b" in html
    assert "<b>" not in html
    assert html.count("<tr>") == 4
