"""The directive ``picture``: a picture of ``recipes/guide_pictures.py``, drawn while building."""

from __future__ import annotations

import os
import sys
from pathlib import Path
from typing import Any

from docutils import nodes
from docutils.parsers.rst import directives
from sphinx.util import logging
from sphinx.util.docutils import SphinxDirective

logger = logging.getLogger(__name__)
RECIPES = Path(__file__).parents[2] / "recipes"
sys.path.append(str(RECIPES))


class Picture(SphinxDirective):
    """A figure: its name is the argument, its caption the content, ``:alt:`` its description."""

    required_arguments = 1
    has_content = True
    option_spec = {"alt": directives.unchanged_required}  # noqa: RUF012

    def run(self) -> list[nodes.Node]:
        import guide_pictures

        (name,) = self.arguments
        path = Path(self.env.app.doctreedir).absolute() / "pictures" / f"{name}.png"
        if not path.exists():
            path.parent.mkdir(parents=True, exist_ok=True)
            try:
                guide_pictures.DRAW[name](path)
            except guide_pictures.NoBrowser as error:
                logger.info("%s is left out: %s", name, error)  # the text stands without it
                return []
        folder = (Path(self.env.srcdir) / self.env.docname).parent
        figure = nodes.figure()
        figure += nodes.image(uri=os.path.relpath(path, folder), alt=self.options["alt"])
        caption = nodes.paragraph()
        self.state.nested_parse(self.content, self.content_offset, caption)
        text = nodes.caption("", "", *(child for block in caption for child in block.children))
        figure += text
        return [figure]


def setup(app: Any) -> dict[str, bool]:
    app.add_directive("picture", Picture)
    return {"parallel_read_safe": True, "parallel_write_safe": True}
