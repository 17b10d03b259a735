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
    left: int = 1  # number of columns of words; the others are numbers
    title: str = ""


class Page(NamedTuple):
    """Tables, and sentences before and after them."""

    head: str
    tables: Sequence[Table]
    notes: Sequence[str]

    def text(self, wrap: bool = True) -> str:
        """Text for a terminal; long notes, and those with paths, take one line each."""
        pieces = [*textwrap.wrap(self.head, 100), ""] if self.head else []
        for table in self.tables:
            pieces += [table.title, ""] if table.title else []
            pieces += [io.text_table(table.header, table.rows, table.left), ""]
        notes = [line for n in self.notes for line in (textwrap.wrap(n, 100) if wrap else [n])]
        return "\n".join([*pieces, *notes])

    def html(self) -> str:
        """HTML for a notebook."""
        from html import escape

        from pandas import DataFrame

        pieces = [f"<p><b>{escape(self.head)}</b></p>"] if self.head else []
        for table in self.tables:
            pieces += [f"<h4>{escape(table.title)}</h4>"] if table.title else []
            pieces.append(DataFrame([*table.rows], columns=[*table.header]).to_html(index=False))
        return "".join([*pieces, *(f"<p>{escape(note)}</p>" for note in self.notes)])

    def markdown(self, title: str) -> str:
        """Markdown for a file; written by hand, since pandas needs another package for it."""
        pieces = [f"# {title}", ""]
        for table in self.tables:
            pieces += [f"## {table.title}", ""] if table.title else []
            for line in (table.header, ["---"] * len(table.header), *table.rows):
                cells = [cell.replace("|", "\\|") for cell in line]
                pieces.append(f"| {' | '.join(cells)} |")
            pieces.append("")
        return "\n".join([*pieces, *(f"- {note}" for note in self.notes), ""])
