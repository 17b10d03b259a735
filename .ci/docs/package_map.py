"""The directive ``package-map``: what each module of some subpackages says of itself."""

from __future__ import annotations

import importlib
import pkgutil
from typing import Any

from docutils import nodes
from docutils.statemachine import StringList
from sphinx.util.docutils import SphinxDirective

import torch_mapss


def module_names(subpackage: str) -> list[str]:
    """A subpackage and its public modules."""
    package = importlib.import_module(f"{torch_mapss.__name__}.{subpackage}")
    inside = pkgutil.iter_modules(package.__path__, f"{package.__name__}.")
    return [package.__name__, *(module.name for module in inside)]


class PackageMap(SphinxDirective):
    """A section for each subpackage that the content names, with the docstrings of its modules."""

    has_content = True

    def run(self) -> list[nodes.Node]:
        sections: list[nodes.Node] = []
        for subpackage in " ".join(self.content).split():
            section = nodes.section(ids=[nodes.make_id(subpackage)], names=[subpackage])
            section += nodes.title(subpackage, subpackage)
            lines = []
            for name in module_names(subpackage):
                lines += [f".. automodule:: {name}", "   :no-members:", ""]
            self.state.nested_parse(StringList(lines, source=subpackage), 0, section)
            sections.append(section)
        return sections


def setup(app: Any) -> dict[str, bool]:
    app.add_directive("package-map", PackageMap)
    return {"parallel_read_safe": True, "parallel_write_safe": True}
