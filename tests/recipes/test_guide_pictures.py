"""The pictures of the guide: each is drawn, and each that a page names exists."""

from __future__ import annotations

import re
from pathlib import Path

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


def test_pictures_draw_the_numbers_of_the_pages() -> None:
    singing = pictures.older_separators("ward2018", "interference")
    assert {"clearance", "fidelity", "PS", "log PM", "SIR", "SAR"} == {*singing}
    page = (FOLDER / "experiments" / "results" / "ward2018.md").read_text("utf-8")
    value, low, high = singing["SIR"]
    assert f"| SIR |  | {value:.2f} [{low:.2f}, {high:.2f}] |" in page
    learned = pictures.modern_separators("whisper-tiny.en@3")
    page = (FOLDER / "experiments" / "results" / "gensvs.md").read_text("utf-8")
    value, low, high = learned["clearance"]
    assert f"| `whisper-tiny.en@3` | {value:.2f} [{low:.2f}, {high:.2f}] |" in page


# Column of the evidence and question of the page that it is from, by words that open the row.
SINGING, SPEECH = "ward2018", "p835ref"
README_ROWS = {
    "| How much of the others": {SINGING: "interference", SPEECH: "bak"},
    "| How damaged": {SINGING: "quality", SPEECH: "sig"},
    "| How good": {SPEECH: "ovrl"},
}
GUIDE_ROWS = {
    "| singing, interference": (SINGING, "interference"),
    "| singing, quality": (SINGING, "quality"),
    "| speech in noise, background": (SPEECH, "bak"),
    "| speech in noise, signal": (SPEECH, "sig"),
}
FRAME_COLUMNS = ("clearance", "fidelity", "PS", "PM", "log PM", "log PM (compressed)")
PRINTED = re.compile(
    r"(?P<name>log PM|log B|PS|PM|SIR|SAR|PESQ|clearance|fidelity) (?P<value>−?0\.\d+)"
)


def row_of(path: Path, opening: str) -> list[str]:
    """Cells of the one line of a Markdown file that starts with some words."""
    (line,) = [x for x in path.read_text("utf-8").splitlines() if x.startswith(opening)]
    return pictures.cells_of(line)


def on_page(set_name: str, question: str, measure: str) -> tuple[float, float, float]:
    """SRCC of a measure under `mel`, with its interval, as the page that has it says."""
    if measure in FRAME_COLUMNS:
        rows = pictures.tables_of("gensvs.md")[question]
        (row,) = [row for row in rows if row.get("encoder") == "`mel`"]
        return pictures.with_interval(row[measure])
    rows = pictures.tables_of(f"{set_name}.md")[question]
    (row,) = [r for r in rows if r.get("measure") == measure and r["encoder"] in ("", "mel")]
    return pictures.with_interval(row["SRCC"])


def check_cell(cell: str, set_name: str, question: str) -> int:
    """Compare the measures named in a cell with their page; returns how many there are."""
    printed = list(PRINTED.finditer(cell))
    for match in printed:
        value, _, _ = on_page(set_name, question, match["name"])
        assert float(match["value"].replace("−", "-")) == value, (question, match[0])
    return len(printed)


def test_numbers_of_the_readme_are_those_of_the_pages() -> None:
    readme = FOLDER.parent / "README.md"
    checked = 0
    for opening, questions in README_ROWS.items():
        _, measure, singing, speech = row_of(readme, opening)
        for cell, set_name in ((singing, SINGING), (speech, SPEECH)):
            if set_name not in questions:
                continue
            question = questions[set_name]
            checked += check_cell(cell, set_name, question)
            if measure.startswith("**"):
                value, low, high = on_page(set_name, question, measure.strip("*"))
                interval = f"{value:.2f} [{low:.2f}, {high:.2f}]".replace("[0.", "[.")
                assert cell.startswith(interval.replace(", 0.", ", .")), cell
    assert checked == 15
    modern = pictures.tables_of("gensvs.md")
    cell = row_of(readme, "| Which modern")[2]
    for heading, text in (
        ("dmos, pooled", "{} and {} pooled"),
        ("dmos, within tracks", "{} and {} within songs"),
    ):
        rows = [row for row in modern[heading] if row.get("encoder") == "`whisper-tiny.en@3`"]
        cells = rows[0]["PS"], rows[0]["log PM (compressed)"]
        assert text.format(*(x.split()[0] for x in cells)) in cell


def test_numbers_of_the_guide_are_those_of_the_pages() -> None:
    numbers = FOLDER / "guide" / "numbers.md"
    checked = 0
    for opening, (set_name, question) in GUIDE_ROWS.items():
        _, measure, srcc, others = row_of(numbers, opening)
        value, _, _ = on_page(set_name, question, measure)
        assert srcc.startswith(f"{value:.2f} [")
        checked += check_cell(others, set_name, question)
    assert checked == 15


@pytest.mark.slow
@pytest.mark.parametrize("name", [name for name in pictures.NAMES if name != "report"])
def test_pictures_are_drawn(name, tmp_path) -> None:
    pictures.DRAW[name](tmp_path / f"{name}.png")
    assert (tmp_path / f"{name}.png").stat().st_size > 10_000


def test_the_page_needs_a_browser(monkeypatch, tmp_path) -> None:
    monkeypatch.setattr(pictures.shutil, "which", lambda name: None)
    with pytest.raises(pictures.NoBrowser, match="Chromium"):
        pictures.report(tmp_path / "report.png")
