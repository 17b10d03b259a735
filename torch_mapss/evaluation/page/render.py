"""Template, style, script and content joined into one file."""

from __future__ import annotations

import os
from importlib import resources
from typing import Any

from torch_mapss.core import checks
from torch_mapss.evaluation import files
from torch_mapss.evaluation.measures import RANK, rank_meaning
from torch_mapss.evaluation.page.content import Wanted, page_content
from torch_mapss.evaluation.results import Results, load_results

INSTALL = "the report needs plotly, jinja2 and Pillow: pip install 'torch_mapss[report]'"


def write_page(
    results: Results | str | os.PathLike[str],
    path: str | os.PathLike[str],
    *,
    embed_mb: float = 15.0,
    worst: int = 20,
    title: str | None = None,
) -> str:
    """Write a results folder as one HTML page to read and to listen to.

    The page asks for nothing from a network. Audio is embedded as FLAC, unchanged, up to
    ``embed_mb``: the worst segments first, then whole files; the rest is linked by its path
    relative to the page. The file is replaced in one step.

    Args:
        results: the folder, or what :func:`~torch_mapss.evaluation.results.load_results` read.
        path: of the HTML file.
        embed_mb: megabytes of audio, pictures and curves in the page, beside some 5 MB of plotly's
            script. 0 embeds none.
        worst: worst segments of PS, and of log PM, that are listed.
        title: heading of the page; the folder's name by default.

    Returns:
        The path written.

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
        raise ValueError(f"{files.shown(path)!r} is a folder; name an HTML file to write.")
    files.make_folder(os.path.dirname(os.path.abspath(path)))
    content = page_content(results, path, Wanted(int(embed_mb * 1e6), worst))
    here = resources.files("torch_mapss.evaluation.page")
    environment = jinja2.Environment(autoescape=True, trim_blocks=True, lstrip_blocks=True)
    environment.policies["json.dumps_kwargs"] = {"sort_keys": False}  # systems keep their order
    template = environment.from_string((here / "page.html").read_text("utf-8"))
    text = template.render(
        title=title or os.path.basename(os.path.abspath(results.folder)),
        style=(here / "page.css").read_text("utf-8"),
        script=(here / "page.js").read_text("utf-8"),
        plotly=plotly_script,
        content=content,
        meaning=rank_meaning(results.settings) if RANK in content["measures"] else "",
        facts=facts(results),
    )
    files.write_bytes(path, text.encode("utf-8", errors="replace"))
    if content["missing"]:
        checks.warn_user(f"{content['advice']}. The page has no sound of them.")
    return path


def facts(results: Results) -> list[tuple[str, str]]:
    """What the scores depend on, for the foot of the page."""
    settings = results.settings
    encoder = settings.get("encoder") or {}
    told: dict[str, Any] = {
        "encoder": " ".join(
            str(encoder[name]) for name in ("name", "checkpoint", "layer") if name in encoder
        ),
        "convention": settings.get("convention"),
        "rate": f"{settings.get('encoder_rate')} Hz",
        "protocol": results.protocol,
        "versions": ", ".join(f"{name} {value}" for name, value in results.versions.items()),
        "mixtures": len(results.mixtures),
        "systems": len(results.systems),
    }
    return [(name, str(value)) for name, value in told.items() if value not in (None, "")]


def _packages() -> tuple[Any, str]:
    try:
        import jinja2
        from PIL import Image
        from plotly.offline import get_plotlyjs
    except ImportError as error:
        raise ImportError(INSTALL) from error
    del Image
    return jinja2, get_plotlyjs()
