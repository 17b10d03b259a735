"""Configuration of the site: guide pages in `recipes/guide`, reference from code and parsers."""

from __future__ import annotations

import inspect
import re
import sys
from pathlib import Path
from typing import Any

import torch_mapss

HERE = Path(__file__).parent
sys.path.insert(0, str(HERE))  # for the extensions beside this file

project = "torch_mapss"
author = "the torch_mapss authors"
copyright = author
version = release = torch_mapss.__version__

extensions = [
    "sphinx.ext.autodoc",
    "sphinx.ext.autosummary",
    "sphinx.ext.napoleon",
    "myst_parser",
    "command_reference",
    "mathml",
    "package_map",
    "pictures",
]
templates_path = [str(HERE / "templates")]
myst_enable_extensions = ["colon_fence", "deflist", "dollarmath", "fieldlist"]
myst_heading_anchors = 3
default_role = "literal"
autodoc_member_order = "bysource"
autodoc_typehints = "none"
autosummary_generate = True
napoleon_google_docstring = True
napoleon_numpy_docstring = False
napoleon_use_ivar = True

html_theme = "furo"
html_static_path = [str(HERE / "static")]
html_css_files = ["site.css"]
html_title = f"torch_mapss {release}"
html_math_renderer = "mathml"
html_show_sourcelink = False
html_copy_source = False
pygments_dark_style = "monokai"


def describe_fields(
    app: Any, what: str, name: str, obj: Any, options: Any, lines: list[str]
) -> None:
    """Comments behind the fields of a record become its attributes' documentation."""
    if what != "class":
        return
    fields = re.findall(r"^    (\w+): [^#\n]*?  # (.+)$", inspect.getsource(obj), re.MULTILINE)
    if fields:
        lines += ["", "Attributes:", *(f"    {field}: {text}" for field, text in fields), ""]


def skip_fields(app: Any, what: str, name: str, obj: Any, skip: bool, options: Any) -> bool | None:
    """Fields of named tuples are described with their class."""
    return True if type(obj).__name__ == "_tuplegetter" else None


def setup(app: Any) -> None:
    app.connect("autodoc-process-docstring", describe_fields, priority=400)  # before napoleon
    app.connect("autodoc-skip-member", skip_fields)
