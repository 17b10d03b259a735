"""Writes the API reference into a folder: ``python .ci/docs.py site``.

The pages are the docstrings, by pdoc; formulas become MathML here, so that the site needs neither
a network nor a script to show them. Any warning ends the build.
"""

from __future__ import annotations

import html
import importlib
import inspect
import pkgutil
import re
import sys
import textwrap
import warnings
from pathlib import Path
from types import ModuleType

import pdoc
from latex2mathml.converter import convert as to_mathml
from pdoc import doc_ast, docstrings, render_helpers

import torch_mapss

FORMULA = re.compile(r":math:`(.+?)`", re.DOTALL)
BLOCK = re.compile(r"\.\. math::\n\n((?:[ \t]+\S.*\n?|\n)+)")
SHORTENED = re.compile(r"(:\w+:`)~")
LABEL = re.compile(r"\[((?:eq|app|tab|fig|sec):[\w, :]+)\]")
CSS = """
main, header { width: calc(64rem + var(--sidebar-width)) !important; }
.pdoc-code { white-space: pre; }
.eq { color: #666; font-size: 0.9em; white-space: nowrap; }
math { font-size: 1.05em; }
"""


def pages() -> list[str]:
    """The package, which brings its wings, and every public room of theirs."""
    found = pkgutil.walk_packages(torch_mapss.__path__, "torch_mapss.")
    rooms = [module.name for module in found if module.name.count(".") == 2]
    return ["torch_mapss", *(name for name in rooms if "._" not in name and not is_handed_on(name))]


def is_handed_on(room: str) -> bool:
    """Whether a wing has a public name like the room's: pdoc then makes its page by itself."""
    wing, _, name = room.rpartition(".")
    return name in getattr(importlib.import_module(wing), "__all__", ())


def with_formulas(text: str) -> str:
    """reStructuredText formulas as MathML, labels of equations set apart."""

    def formula(match: re.Match[str]) -> str:
        return to_mathml(" ".join(match[1].split()))

    def block(match: re.Match[str]) -> str:
        return to_mathml(" ".join(match[1].split()), display="block") + "\n\n"

    text = FORMULA.sub(formula, BLOCK.sub(block, SHORTENED.sub(r"\1", text)))
    return LABEL.sub(lambda m: f'<span class="eq">[{html.escape(m[1])}]</span>', text)


def resolve_generated(module: ModuleType) -> None:
    """Constructors of records know their module, where pdoc looks their types up."""
    for value in vars(module).values():
        if inspect.isclass(value) and value.__module__.startswith("torch_mapss"):
            for name in ("__init__", "__new__"):
                made = vars(value).get(name)
                made = getattr(made, "__func__", made)
                if inspect.isfunction(made) and made.__module__ != value.__module__:
                    made.__module__ = value.__module__


def comments(cls: type) -> dict[str, str]:
    """What the source says behind each field of a record."""
    try:
        source = textwrap.dedent(inspect.getsource(cls))
    except (OSError, TypeError):
        return {}
    found = re.findall(r"^    (\w+): [^#\n]*?  # (.+)$", source, re.MULTILINE)
    return dict(found)


def tell_fields(module: ModuleType) -> None:
    """Comments behind the fields of records become their documentation."""
    for value in vars(module).values():
        if inspect.isclass(value) and value.__module__.startswith("torch_mapss"):
            told = doc_ast.walk_tree(value).var_docstrings
            for name, text in comments(value).items():
                told.setdefault(name, text)
                field = vars(value).get(name)
                if type(field).__name__ == "_tuplegetter":
                    field.__doc__ = text


def build(folder: Path) -> None:
    """The whole site."""
    convert = docstrings.convert
    docstrings.convert = lambda text, *rest: convert(with_formulas(text), *rest)
    assert render_helpers.docstrings is docstrings
    names = pages()
    for name in (*names, *(f"torch_mapss.{wing}" for wing in torch_mapss._WINGS)):
        module = importlib.import_module(name)
        resolve_generated(module)
        tell_fields(module)
    folder.mkdir(parents=True, exist_ok=True)
    theme = folder / ".theme"
    theme.mkdir(exist_ok=True)
    (theme / "custom.css").write_text(CSS, encoding="utf-8")
    pdoc.render.configure(
        docformat="google",
        template_directory=theme,
        footer_text=f"torch_mapss {torch_mapss.__version__}",
    )
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        pdoc.pdoc(*names, output_directory=folder)
    for path in (theme / "custom.css", theme):
        path.unlink() if path.is_file() else path.rmdir()
    print(f"{len(names)} pages in {folder}")


if __name__ == "__main__":
    if len(sys.argv) != 2:
        sys.exit("usage: python .ci/docs.py FOLDER")
    build(Path(sys.argv[1]))
