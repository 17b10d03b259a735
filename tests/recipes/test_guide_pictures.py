"""The pictures of the guide: each is drawn, and each that a page names exists."""

from __future__ import annotations

import re

import pytest
from recipe_scripts import FOLDER, recipe

pytest.importorskip("matplotlib")
pictures = recipe("guide_pictures")
DIRECTIVE = re.compile(r"^```\{picture\} (\w+)\n:alt: (.+)\n\n(.+?)^```", re.MULTILINE | re.DOTALL)


def test_pages_name_the_pictures_there_are_with_alternative_text_and_caption() -> None:
    names = []
    for page in sorted(FOLDER.glob("guide/*.md")):
        text = page.read_text("utf-8")
        directives = DIRECTIVE.findall(text)
        assert len(directives) == text.count("{picture}")
        names += [name for name, _, _ in directives]
    assert sorted(names) == sorted(pictures.NAMES) == sorted(pictures.DRAW)


def test_numbers_of_the_evidence_are_those_of_the_pages() -> None:
    singing = pictures.older_separators("ward2018", "interference")
    assert {"clearance", "fidelity", "PS", "log PM", "SIR", "SAR"} == {*singing}
    page = (FOLDER / "experiments" / "results" / "ward2018.md").read_text("utf-8")
    value, low, high = singing["SIR"]
    assert f"| SIR |  | {value:.2f} [{low:.2f}, {high:.2f}] |" in page
    learned = pictures.modern_separators("whisper-tiny.en@3")
    page = (FOLDER / "experiments" / "results" / "gensvs.md").read_text("utf-8")
    value, low, high = learned["clearance"]
    assert f"| `whisper-tiny.en@3` | {value:.2f} [{low:.2f}, {high:.2f}] |" in page


@pytest.mark.slow
@pytest.mark.parametrize("name", [name for name in pictures.NAMES if name != "report"])
def test_pictures_are_drawn(name, tmp_path) -> None:
    pictures.DRAW[name](tmp_path / f"{name}.png")
    assert (tmp_path / f"{name}.png").stat().st_size > 10_000


def test_the_page_needs_a_browser(monkeypatch, tmp_path) -> None:
    monkeypatch.setattr(pictures.shutil, "which", lambda name: None)
    with pytest.raises(pictures.NoBrowser, match="Chromium"):
        pictures.report(tmp_path / "report.png")
