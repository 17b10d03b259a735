"""The page of results that the benchmarks of the bounds write, one section each."""

from __future__ import annotations

from pathlib import Path

PAGE = Path(__file__).parent / "results" / "bounds.md"
TITLE = "# Error bounds, measured\n\nEvery section is written by the script it names.\n"


def write_section(name: str, text: str) -> None:
    """Print ``text`` and put it in place of the section ``name`` of the page."""
    print(text)
    start, end = f"<!-- {name} -->\n", f"<!-- /{name} -->\n"
    page = PAGE.read_text(encoding="utf-8") if PAGE.exists() else TITLE
    section = f"{start}\n{text.strip()}\n\n{end}"
    if start in page:
        before, rest = page.split(start)
        page = before + section + rest.split(end)[1]
    else:
        page = f"{page}\n{section}"
    PAGE.parent.mkdir(exist_ok=True)
    PAGE.write_text(page, encoding="utf-8")


def table(header: list[str], rows: list[list[str]]) -> str:
    """A markdown table."""
    lines = [header, ["---"] * len(header), *rows]
    return "\n".join("| " + " | ".join(line) + " |" for line in lines)
