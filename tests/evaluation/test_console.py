"""Progress without a terminal, and words about time."""

from __future__ import annotations

import sys
import time

import pytest

from torch_mapss.evaluation import console


def test_durations() -> None:
    told = {0.4: "0 s", 59.4: "59 s", 61.0: "1 min", 3599.0: "1 h 0 min", 8000.0: "2 h 13 min"}
    assert {seconds: console.duration(seconds) for seconds in told} == told


def test_lines_without_a_terminal(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(console, "INTERVAL", 0.05)
    with console.progress(4.0) as bar:
        for done in (1.0, 2.0, 4.0):
            time.sleep(0.1)
            bar.set_postfix_str("m1", refresh=False)
            bar.update(done - bar.n)
    lines = capsys.readouterr().err.splitlines()
    assert lines
    assert all(line.startswith("torch-mapss: scoring: ") for line in lines)
    assert any("50%, m1, " in line and "left" in line for line in lines)
    with console.progress(4.0, quiet=True) as bar:
        bar.update(2.0)
    assert capsys.readouterr().err == ""


def test_a_bar_on_a_terminal(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(sys.stderr, "isatty", lambda: True, raising=False)
    with console.progress(4.0) as bar:
        bar.update(2.0)
        time.sleep(0.3)
        bar.update(2.0)
    assert "scoring: 100%|" in capsys.readouterr().err
