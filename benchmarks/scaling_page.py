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

![Time and memory over seconds, sources, mixtures and systems](scaling.png)

**Reading.**

- *Memory* of a long mixture in segments is that of its budget (1 GiB with `memory="auto"` on a
  CPU) and of some copies of its waveforms, not of its embeddings: ten minutes of two sources take
  1.0 GiB above the start, two minutes with 1024 features 1.3 GiB. With small banks, whose
  embeddings do not hide it, it grows from three minutes to ten by 1.3 MiB for each second of two
  sources, about ten copies of them, which measuring whole references takes: an hour would take
  about 5 GiB.
- *Seconds.* Linear. A clip in segments costs a third as much again for each second as one that is
  scored whole, since its copies are made twice, once for their levels and once for their scores:
  a step at the length of a segment, which lifts the slope over all sizes above 1. Among clips
  in segments, up to ten minutes, the exponent is 0.99 (with banks of twelve below it).
- *Mixtures.* Linear in time. So is memory: the bank of a batch of short clips is held whole. Pass
  fewer at a time, or let `evaluate` take them one by one.
- *Systems* of one mixture share its distortions and their embeddings: 32 of them cost 0.4 of 32
  runs, in the memory of one. What is left of each is its own graphs, an eigenproblem per frame and
  measure, as its outputs are points of them: no system can share that with another.
- *Sources* S: distortions and encodings grow with S, the eigenproblems of about 70 S points a frame
  towards S cubed: S^2.6 between three and eight. With six they take more than half of the time.
- *In segments and whole* scores are the same: d is equal in all frames of speech, of singing and
  of instruments, and there the largest difference is 1.4e-4 for PS and PM, and below 1e-3 of its
  size for log PM.
- Absolute times are of a machine that was busy with other work; compare within a table. In the
  table of memory the runs of ten minutes and of 1024 features were made with copies in longer
  pieces than today's, which is slower and needs as much memory.
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
