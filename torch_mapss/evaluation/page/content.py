"""What a page holds, as JSON; and the file it is written to."""

from __future__ import annotations

import datetime
import html
import json
import os
from importlib import resources
from string import Template
from typing import Any

import numpy as np

from torch_mapss.core.checks import check_real, warn_user
from torch_mapss.evaluation import console, io
from torch_mapss.evaluation.comparison import compare
from torch_mapss.evaluation.page.tracks import make_tracks
from torch_mapss.evaluation.results import Results, load_results, records
from torch_mapss.evaluation.worst import frame_curves, worst_segments
from torch_mapss.score_table import SCORES, present, score_label

# Worst segments of each measure that are listed.
_WORST = 20
# Values of curves in a page, some 6 bytes each. Curves of a large set are means of several frames,
# of at least so many points.
_VALUES, _FEWEST = 1_000_000, 50
_SEGMENT = ["title", "value", "start", "end", "row"]


def write_page(
    results: Results | str | os.PathLike[str],
    path: str | os.PathLike[str],
    *,
    embed_mb: float = 15.0,
    title: str | None = None,
) -> str:
    """Write a results folder as one HTML page to read and to listen to.

    The page asks for nothing from a network. Audio is embedded unchanged (WAV if short, else FLAC)
    up to ``embed_mb``; the rest is linked by its path relative to the page. The file is replaced in
    one step.

    Args:
        results: the folder, or what :func:`~torch_mapss.evaluation.results.load_results` read.
        path: of the HTML file.
        embed_mb: megabytes of audio and spectrograms in the page, besides some 5 MB of plotly's
            script and the curves. 0 embeds none.
        title: heading of the page; the folder's name by default.

    Returns:
        How many audio files are embedded, and what embeds all.

    Warns:
        UserWarning: audio files that are not where they were.

    Raises:
        ImportError: plotly or Pillow is missing.
        ValueError: no folder of results, an option out of range, or no place to write to.
    """
    check_real(embed_mb, "embed_mb", "[0, 1000]")
    try:
        import PIL.Image  # noqa: F401
        from plotly.offline import get_plotlyjs
    except ImportError as error:
        raise ImportError(
            "the report needs plotly and Pillow: pip install 'torch_mapss[report]'"
        ) from error
    results = load_results(results)
    path = os.fspath(path)
    if os.path.isdir(path):
        raise ValueError(f"{io.shown(path)!r} is a folder; name an HTML file to write.")
    io.make_folder(os.path.dirname(os.path.abspath(path)))
    content = page_content(results, path, int(embed_mb * 1e6))
    content["title"] = title or content["title"]
    here = resources.files("torch_mapss.evaluation.page")
    page = Template((here / "page.html").read_text("utf-8")).substitute(
        title=html.escape(content["title"]),
        style=(here / "page.css").read_text("utf-8"),
        script=(here / "page.js").read_text("utf-8"),
        plotly=get_plotlyjs(),
        content=json.dumps(io.plain(content), ensure_ascii=False).replace("<", "\\u003c"),
    )
    io.write_bytes(path, page.encode("utf-8", errors="replace"))
    if content["missing"]:
        warn_user(f"{content['advice']}. The page has no sound of them.")
    embedded: str = content["embedded"]
    return embedded


def page_content(results: Results, page: str, embed_bytes: int) -> dict[str, Any]:
    """Everything on the page, whose path links are relative to.

    Raises:
        ValueError: frame scores are missing or damaged.
    """
    comparison = compare(results)
    shown = list(comparison.measures)
    rows = records(results.scores)
    paths = []
    for row in rows:
        given = {role: row[role] for role in ("reference", "estimate")}
        given["mixture"] = results.entries[row["mixture_id"]]["mixture"]
        paths.append({role: results.locate(path) for role, path in given.items() if path})
    segments = worst_segments(results, _WORST)
    order = [*dict.fromkeys([*segments["row"], *range(len(rows))])]  # worst first
    files = [path for k in order for path in paths[k].values()]
    tracks = make_tracks(files, segments, page, embed_bytes)
    index = {path: k for k, path in enumerate(tracks.files)}
    for row, own in zip(rows, paths):
        row["mixture"], row["note"] = row["mixture_id"], row["reason"] or row["warnings"] or ""
        row["tracks"] = {role: index[path] for role, path in own.items() if path in index}
    add_curves(results, [rows[k] for k in order])
    missing = [*map(io.shown, tracks.missing)]
    count = len(tracks.files) + len(missing)
    seconds = float(results.items.groupby("mixture_id")["seconds"].max().sum())
    return {
        "title": os.path.basename(os.path.abspath(io.shown(results.folder))),
        "answer": comparison.answer(),
        "written": datetime.datetime.now().strftime("%Y-%m-%d %H:%M"),
        "scored": f"{len(results.mixtures)} mixtures, {console.duration(seconds)} in all, by "
        f"{len(results.systems)} systems",
        "statement": results.statement(),
        "measures": {name: score_label(name) for name in shown},
        "meanings": {name: SCORES[name].meaning for name in shown},
        "ranking": records(comparison.ranking),
        "pairs": records(comparison.shown_pairs()),
        "notes": comparison.notes(),
        "items": records(results.items[["system", *shown]]),
        "rows": rows,
        "tracks": [*tracks.files.values()],
        "segments": records(segments[_SEGMENT].assign(clips=tracks.clips)),
        "sampled": results.sampled,
        "embedded": tracks.summary,
        "missing": [f"{io.shown(path)}: {why}" for path, why in tracks.missing.items()],
        "advice": results.without_audio(missing, count) if missing else "",
    }


def add_curves(results: Results, rows: list[dict[str, Any]]) -> None:
    """Put the scores over time into rows: ``curve``, None in the last ones of a very large set."""
    import pandas

    names = present(results.measures, ranked=True)
    points = max(_FEWEST, _VALUES // max(1, len(rows) * len(names)))
    most = 2 * _VALUES // (points * max(1, len(names)))
    for count, (row, times, found) in enumerate(frame_curves(results, rows)):
        row["curve"] = None
        curves = pandas.DataFrame({name: found[name] for name in names if name in found})
        if not curves.notna().any(axis=None):
            continue  # it failed, or no frame is scored
        if count >= most:
            row["note"] = f"{row['note']} no curve: the set is too large".strip()
            continue
        share = -(-len(times) // points)
        means = curves.groupby(np.arange(len(times)) // share).mean()
        row["curve"] = {
            "first": float(times[:share].mean()),
            "step": float(share * (times[-1] - times[0]) / max(1, len(times) - 1)),
            **{name: [float(f"{x:.4g}") for x in means[name]] for name in means},
        }
