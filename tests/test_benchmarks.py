"""Every benchmark starts and says what it can be asked."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from torch_mapss import functional
from torch_mapss.evaluation import cli

FOLDER = Path(__file__).parent.parent / "benchmarks"


@pytest.mark.slow
@pytest.mark.parametrize("script", sorted(FOLDER.glob("*.py")), ids=lambda path: path.name)
def test_help(script: Path, tmp_path: Path) -> None:
    """In an empty folder, which stays empty: ``--help`` must not be taken for something to do."""
    takes_arguments = "ArgumentParser" in script.read_text(encoding="utf-8")
    command = [sys.executable, str(script), *["--help"] * takes_arguments]
    around = {**os.environ, "PYTHONPATH": str(FOLDER.parent)}
    done = subprocess.run(command, capture_output=True, text=True, cwd=tmp_path, env=around)
    assert done.returncode == 0, done.stderr
    assert ("usage:" in done.stdout) == takes_arguments
    assert not list(tmp_path.iterdir())


def _errors_of_float32() -> dict[str, list[float]]:
    """By what it is an error of: the worst encoder's median, mean, 99 % quantile and maximum."""
    page = (FOLDER / "results" / "cpu.md").read_text(encoding="utf-8")
    section = page.split("<!-- eigh -->")[1].split("<!-- end eigh -->")[0]
    found: dict[str, list[float]] = {}
    for line in section.splitlines():
        cells = [cell.strip() for cell in line.strip("|").split("|")]
        if cells[0] in ("mel", "waveform"):
            numbers = [float(cell) for cell in cells[3:7]]
            found[cells[1]] = [max(pair) for pair in zip(numbers, found.get(cells[1], numbers))]
    return found


@pytest.mark.parametrize("where", ["docstring", "help"])
def test_what_is_said_of_float32_is_what_the_benchmark_printed(
    where: str, capsys: pytest.CaptureFixture[str]
) -> None:
    text = functional.perceptual_separation.__doc__ or ""
    if where == "help":
        with pytest.raises(SystemExit):
            cli.main(["score", "--help"])
        text = capsys.readouterr().out
    text = " ".join(text.split())
    number = r"(\d+(?:e-\d+)?)"
    said = re.search(
        rf"PS (?:moves )?by {number} \((?:median; at most )?{number}.*?log PM by {number} of "
        rf"itself \({number} on average, (?:at most )?{number} %",
        text,
    )
    assert said is not None, text
    ps, ps_most, log_pm, mean, most = map(float, said.groups())
    found = _errors_of_float32()
    typical = [(ps, found["PS"][0]), (log_pm, found["log PM, relative"][0])]
    for claim, measured in [*typical, (mean, found["log PM, relative"][1])]:
        assert claim == pytest.approx(measured, rel=0.3)
    for claim, measured in ((ps_most, found["PS"][3]), (most / 100, found["log PM, relative"][3])):
        assert measured <= claim <= 1.5 * measured
    if where == "docstring":
        gradients = [found[f"gradient of {name}, relative"] for name in ("PS", "log PM")]
        match = re.search(rf"gradient by {number} \(up to {number} % in 99", text)
        assert match is not None
        assert float(match[1]) == pytest.approx(max(x[0] for x in gradients), rel=0.3)
        assert 0.3 < max(x[2] for x in gradients) / (float(match[2]) / 100) <= 1.0
