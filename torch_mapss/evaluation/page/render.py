"""Template, style, script and content joined into one file."""

from __future__ import annotations

import os
from importlib import resources
from typing import Any, NamedTuple

from torch_mapss.core.checks import warn_user
from torch_mapss.evaluation import io
from torch_mapss.evaluation.page.content import facts, page_content
from torch_mapss.evaluation.results import Results, load_results

INSTALL = "the report needs plotly, jinja2 and Pillow: pip install 'torch_mapss[report]'"
#: What a reader of the numbers must know.
CAVEATS = (
    "Scores compare only within one protocol: the same encoder, distortions and settings.",
    "Estimates must be aligned with their references: a constant delay counts as distortion.",
    "Scores are over frames in which the source and at least one other are active; what leaks into "
    "its pauses is told by bleed alone.",
    "Clearance and fidelity are read together: an output that is another source has no fidelity.",
    "What listeners confirmed, with mel features on singing and speech: clearance follows rated "
    "interference and fidelity rated quality (rank correlation 0.77 to 0.91 within a track). PS "
    "falls with distortion as well, and mean PM saturates at 0.",
)


class Page(NamedTuple):
    """A page that was written."""

    path: str
    embedded: str  # how many audio files are in it, and what embeds all


def write_page(
    results: Results | str | os.PathLike[str],
    path: str | os.PathLike[str],
    *,
    embed_mb: float = 15.0,
    worst: int = 20,
    title: str | None = None,
) -> Page:
    """Write a results folder as one HTML page to read and to listen to.

    The page asks for nothing from a network. Audio is embedded unchanged (WAV if short, else FLAC)
    up to ``embed_mb``; the rest is linked by its path relative to the page. The file is replaced in
    one step.

    Args:
        results: the folder, or what :func:`~torch_mapss.evaluation.results.load_results` read.
        path: of the HTML file.
        embed_mb: megabytes of audio and spectrograms in the page, beside some 5 MB of plotly's
            script and the curves. 0 embeds none.
        worst: worst segments of every measure that are listed.
        title: heading of the page; the folder's name by default.

    Returns:
        The path written, and how much is embedded.

    Warns:
        UserWarning: audio files that are not where they were.

    Raises:
        ImportError: plotly, jinja2 or Pillow is missing.
        ValueError: no folder of results, an option out of range, or no place to write to.
    """
    if not 0.0 <= embed_mb <= 1000.0:
        raise ValueError(f"embed_mb must lie in [0, 1000], got {embed_mb}.")
    if worst < 0:
        raise ValueError(f"worst must be at least 0, got {worst}.")
    jinja2, plotly_script = _packages()
    if not isinstance(results, Results):
        results = load_results(results)
    path = os.fspath(path)
    if os.path.isdir(path):
        raise ValueError(f"{io.shown(path)!r} is a folder; name an HTML file to write.")
    io.make_folder(os.path.dirname(os.path.abspath(path)))
    content = page_content(results, path, int(embed_mb * 1e6), worst)
    here = resources.files("torch_mapss.evaluation.page")
    environment = jinja2.Environment(autoescape=True, trim_blocks=True, lstrip_blocks=True)
    environment.policies["json.dumps_kwargs"] = {"sort_keys": False}  # systems keep their order
    template = environment.from_string((here / "page.html").read_text("utf-8"))
    rendered = template.render(
        title=title or os.path.basename(os.path.abspath(results.folder)),
        style=(here / "page.css").read_text("utf-8"),
        script=(here / "page.js").read_text("utf-8"),
        plotly=plotly_script,
        content=content,
        caveats=[*CAVEATS],
        facts=facts(results),
    )
    io.write_bytes(path, rendered.encode("utf-8", errors="replace"))
    if content["missing"]:
        warn_user(f"{content['advice']}. The page has no sound of them.")
    return Page(path, content["embedded"])


def _packages() -> tuple[Any, str]:
    try:
        import jinja2
        from PIL import Image
        from plotly.offline import get_plotlyjs
    except ImportError as error:
        raise ImportError(INSTALL) from error
    del Image
    return jinja2, get_plotlyjs()
