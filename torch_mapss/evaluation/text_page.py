"""Tables with sentences around them, as text for a terminal, HTML for notebooks, and Markdown."""

from __future__ import annotations

import textwrap
from collections.abc import Sequence
from typing import NamedTuple

from torch_mapss.evaluation import io


class Table(NamedTuple):
    """Cells as text."""

    header: Sequence[str]
    rows: Sequence[Sequence[str]]
    left: int = 1  # so many columns are words, the rest numbers


class Page(NamedTuple):
    """Tables in sections, and sentences before and after them."""

    head: str
    sections: Sequence[tuple[str, Sequence[Table]]]  # title, or "", and tables
    notes: Sequence[str]

    def text(self, wrap: bool = True) -> str:
        """For a terminal; notes of many words or, with paths in them, a line each."""
        parts = [*textwrap.wrap(self.head, 100), ""] if self.head else []
        for title, tables in self.sections:
            parts += [title, ""] if title else []
            for table in tables:
                parts += [io.text_table(table.header, table.rows, table.left), ""]
        notes = [line for n in self.notes for line in (textwrap.wrap(n, 100) if wrap else [n])]
        return "\n".join([*parts, *notes])

    def html(self) -> str:
        """For a notebook."""
        from html import escape

        from pandas import DataFrame

        parts = [f"<p><b>{escape(self.head)}</b></p>"] if self.head else []
        for title, tables in self.sections:
            parts += [f"<h4>{escape(title)}</h4>"] if title else []
            parts += [
                DataFrame([*t.rows], columns=[*t.header]).to_html(index=False) for t in tables
            ]
        return "".join([*parts, *(f"<p>{escape(note)}</p>" for note in self.notes)])

    def markdown(self, title: str) -> str:
        """For a file: by hand, since pandas needs another package for it."""
        parts = [f"# {title}", "", *([self.head, ""] if self.head else [])]
        for section, tables in self.sections:
            parts += [f"## {section}", ""] if section else []
            for table in tables:
                lines = [table.header, ["---"] * len(table.header), *table.rows]
                cells = ([cell.replace("|", "\\|") for cell in line] for line in lines)
                parts += [*(f"| {' | '.join(line)} |" for line in cells), ""]
        return "\n".join([*parts, *(f"- {note}" for note in self.notes), ""])
