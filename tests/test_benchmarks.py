"""Every benchmark starts and says what it can be asked."""

from __future__ import annotations

import importlib
import importlib.util
import runpy
import sys
from pathlib import Path

import pytest
import torch

FOLDER = Path(__file__).parent.parent / "benchmarks"


@pytest.mark.parametrize("script", sorted(FOLDER.glob("*.py")), ids=lambda path: path.name)
def test_help(
    script: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    """In an empty folder, which stays empty: ``--help`` must not be taken for something to do.

    In this process, as a process for each script spends seconds on loading torch.
    """
    takes_arguments = "ArgumentParser" in script.read_text(encoding="utf-8")
    monkeypatch.setattr(sys, "argv", [str(script), *["--help"] * takes_arguments])
    monkeypatch.setattr(sys, "path", [str(FOLDER), *sys.path])
    monkeypatch.chdir(tmp_path)
    exit_code = None
    try:
        runpy.run_path(str(script), run_name="__main__")
    except SystemExit as exit_of_script:
        exit_code = exit_of_script.code
    assert not exit_code
    assert ("usage:" in capsys.readouterr().out) == takes_arguments
    assert not list(tmp_path.iterdir())


def test_page_lists_missing_parts_and_different_commits(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.syspath_prepend(FOLDER)
    run_all = importlib.import_module("run_all")
    sections = {"core": "## Kernels (commit abc1)", "pair": "## Pair (commit abc1)"}
    text = run_all.page(sections)
    assert "`scaling.py` (Duration, sources, systems: time and memory)" in text.split("<!--")[0]
    assert "commits" not in text
    assert "of 2 commits" in run_all.page({**sections, "gpu": "## G (commit f00)"})
    complete = run_all.page(dict.fromkeys(run_all.SECTIONS, "x"))
    assert "Not run" not in complete


def test_made_up_voices_are_equal_for_equal_seeds(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(FOLDER)
    voices = importlib.import_module("common").voices
    mixtures = voices(0.5, sources=3, batch=2)
    assert mixtures.shape == (2, 3, 8000)
    assert torch.equal(mixtures, voices(0.5, sources=3, batch=2))
    assert not torch.equal(mixtures[0], mixtures[1])
    powers = voices(2.0, 4).square().mean(-1).sqrt()
    assert bool(((powers > 0.02) & (powers < 0.1)).all())


@pytest.mark.slow
def test_standard_errors_of_excerpts_hold_the_scores_of_the_whole(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Where levels and faults swell, and where music fills a ninth of the signal."""
    monkeypatch.syspath_prepend(FOLDER)
    spec = importlib.util.spec_from_file_location("coverage_benchmark", FOLDER / "coverage.py")
    assert spec is not None
    assert spec.loader is not None
    benchmark = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(benchmark)
    for name, drawn in benchmark.excerpts_of(*benchmark.swelling(), draws=30).items():
        errors = (drawn.scores - drawn.scores_of_whole).abs()
        assert (errors <= 2.0 * drawn.errors).double().mean() > 0.8, name
        assert drawn.errors.mean() < 0.06, name  # so wide that it says nothing would not do
    for name, drawn in benchmark.excerpts_of(*benchmark.short_music(), draws=10).items():
        assert (drawn.scores - drawn.scores_of_whole).abs().max() < 0.03, name
