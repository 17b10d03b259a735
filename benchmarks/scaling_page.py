"""The page of results on duration, size and memory: sections, rows that are kept, the reading."""

from __future__ import annotations

import os
import platform
import textwrap
from collections.abc import Sequence
from pathlib import Path

import torch
from bounds_page import table, write_section

PAGE = Path(__file__).parent / "results" / "scaling.md"
TITLE = """# Duration, size and memory, measured

Every section is written by the script it names, a run or an axis at a time.
"""


def kept_rows(section: str) -> list[list[str]]:
    """The rows of the table in a section of the page, as text, without their header."""
    page = PAGE.read_text(encoding="utf-8") if PAGE.exists() else ""
    start, end = f"<!-- {section} -->", f"<!-- /{section} -->"
    if start not in page:
        return []
    lines = page.split(start)[1].split(end)[0].splitlines()
    rows = [line.strip("| ").split(" | ") for line in lines if line.startswith("| ")]
    return [[cell.strip() for cell in row] for row in rows[2:]]


def put_rows(
    section: str, intro: str, header: list[str], rows: Sequence[list[str]], keys: int
) -> list[list[str]]:
    """Put rows in a section's table beside those of other runs, and say what it holds now.

    Args:
        section: its name.
        intro: heading and a paragraph above the table.
        header: of the table.
        rows: new ones, each as long as the header.
        keys: so many cells at the front name a row: an old one of the same name goes.
    """
    found = {tuple(row[:keys]): row for row in [*kept_rows(section), *rows]}
    merged = sorted(found.values(), key=lambda row: [_order(cell) for cell in row[:keys]])
    heading, text = intro.split("\n\n")
    wrapped = f"{heading}\n\n{textwrap.fill(text, 100, break_on_hyphens=False)}"
    write_section(section, f"{wrapped}\n\n{table(header, merged)}\n", PAGE, TITLE)
    _renew_title()
    return merged


def _order(cell: str) -> tuple[int, float, str]:
    """Numbers by size, before words."""
    try:
        return 0, float(cell), ""
    except ValueError:
        return 1, 0.0, cell


def _renew_title() -> None:
    """The title is this module's, whatever stood above the sections before."""
    page = PAGE.read_text(encoding="utf-8")
    PAGE.write_text(TITLE + "\n" + page[page.index("<!-- ") :], encoding="utf-8")


def machine() -> str:
    """What it ran on, in words."""
    model = platform.processor() or platform.machine()
    try:
        with open("/proc/cpuinfo", encoding="ascii") as file:
            names = [line.split(":", 1)[1].strip() for line in file if line.startswith("model n")]
        model = names[0] if names else model
    except (OSError, UnicodeDecodeError):  # no such file on this system
        pass
    cores = f"one thread of {os.cpu_count()} shared cores"
    return (
        f"{cores} ({model}, {torch.backends.cpu.get_cpu_capability()}), torch {torch.__version__}"
    )
