"""Configuration of the site: guide pages in `recipes/guide`, API from the docstrings."""

from __future__ import annotations

import inspect
import re
from typing import Any

import torch_mapss

project = "torch_mapss"
author = "the torch_mapss authors"
copyright = author
version = release = torch_mapss.__version__

extensions = [
    "sphinx.ext.autodoc",
    "sphinx.ext.autosummary",
    "sphinx.ext.mathjax",
    "sphinx.ext.napoleon",
    "myst_parser",
]
myst_enable_extensions = ["colon_fence", "dollarmath", "fieldlist"]
myst_heading_anchors = 3
default_role = "literal"
autodoc_member_order = "bysource"
autodoc_typehints = "none"
autosummary_generate = True
napoleon_google_docstring = True
napoleon_numpy_docstring = False
napoleon_use_ivar = True

html_theme = "furo"
html_title = f"torch_mapss {release}"
html_show_sourcelink = False


def describe_fields(
    app: Any, what: str, name: str, obj: Any, options: Any, lines: list[str]
) -> None:
    """Comments behind the fields of a record become its attributes' documentation."""
    if what != "class":
        return
    fields = re.findall(r"^    (\w+): [^#\n]*?  # (.+)$", inspect.getsource(obj), re.MULTILINE)
    if fields:
        lines += ["", "Attributes:", *(f"    {field}: {text}" for field, text in fields), ""]


def setup(app: Any) -> None:
    app.connect("autodoc-process-docstring", describe_fields, priority=400)  # before napoleon
