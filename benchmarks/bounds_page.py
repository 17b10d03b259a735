"""Pages of results of one section a script; that of the bounds by default."""

from __future__ import annotations

from pathlib import Path

PAGE = Path(__file__).parent / "results" / "bounds.md"
TITLE = "# Error bounds, measured\n\nEvery section is written by the script it names.\n"


def write_section(name: str, text: str, path: Path = PAGE, title: str = TITLE) -> None:
    """Print ``text`` and put it in place of the section ``name`` of the page at ``path``."""
    print(text)
    start, end = f"<!-- {name} -->\n", f"<!-- /{name} -->\n"
    page = path.read_text(encoding="utf-8") if path.exists() else title
    section = f"{start}\n{text.strip()}\n\n{end}"
    if start in page:
        before, rest = page.split(start)
        page = before + section + rest.split(end)[1]
    else:
        page = f"{page}\n{section}"
    path.parent.mkdir(exist_ok=True)
    path.write_text(page, encoding="utf-8")


def table(header: list[str], rows: list[list[str]]) -> str:
    """A markdown table."""
    lines = [header, ["---"] * len(header), *rows]
    return "\n".join("| " + " | ".join(line) + " |" for line in lines)
