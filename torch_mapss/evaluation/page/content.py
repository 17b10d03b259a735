"""The content of a report page, as JSON, and the file it is written to."""

from __future__ import annotations

import datetime
import html
import json
import os
import re
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from importlib import resources
from string import Template
from typing import TYPE_CHECKING, Any

import numpy as np

from torch_mapss.core.checks import check_real, warn_user
from torch_mapss.evaluation import console, io
from torch_mapss.evaluation.comparison import MOST_SOURCES, Comparison, compare
from torch_mapss.evaluation.manifest import CONTROL
from torch_mapss.evaluation.page.tracks import make_tracks
from torch_mapss.evaluation.plots import AXES
from torch_mapss.evaluation.records import rows_of
from torch_mapss.evaluation.results import Results, load_results
from torch_mapss.evaluation.significance import p_text
from torch_mapss.evaluation.worst import frame_curves, worst_segments
from torch_mapss.score_table import SCORES, score_label

if TYPE_CHECKING:
    from pandas import DataFrame

# Worst segments listed per score.
_WORST = 20
# Upper limit of curve values in a page, about 6 bytes each. The curves of a large set are means
# over several frames, with at least MIN_CURVE_POINTS points.
MAX_CURVE_VALUES, MIN_CURVE_POINTS = 1_000_000, 50
_SCRIPTS = ("format.js", "charts.js", "player.js", "page.js")
_SEGMENT_COLUMNS = ["measure", "title", "score", "start", "end", "row"]


def write_page(
    results: Results | str | os.PathLike[str],
    path: str | os.PathLike[str],
    *,
    embed_mb: float = 8.0,
    title: str | None = None,
) -> str:
    """Write a results folder as one HTML page to read and to listen to.

    The page needs no network. Sounds are embedded up to ``embed_mb``, as MP3 (variable bit rate,
    the encoder's best quality) or, where libsndfile cannot write that, as WAV or FLAC; the others
    are linked by their path relative to the page. Every file has its spectrogram, whether embedded
    or linked. The page is replaced in one step.

    Args:
        results: the folder, or a result of :func:`~torch_mapss.evaluation.results.load_results`.
        path: path of the HTML file.
        embed_mb: megabytes of embedded sound, in addition to the curves and 5 to 15 kB of
            spectrogram per file. 0 embeds none.
        title: heading of the page; the folder's name by default.

    Returns:
        A sentence on the number of audio files embedded, and how to embed all.

    Warns:
        UserWarning: audio files that cannot be read.

    Raises:
        ImportError: Pillow is missing.
        ValueError: not a results folder, an option out of range, or the page cannot be written.
    """
    check_real(embed_mb, "embed_mb", "[0, 1000]")
    try:
        import PIL.Image  # noqa: F401
    except ImportError as error:
        raise ImportError("the report needs Pillow: pip install 'torch_mapss[report]'") from error
    results = load_results(results)
    path = os.fspath(path)
    if os.path.isdir(path):
        raise ValueError(f"{io.shown(path)!r} is a folder; name an HTML file to write.")
    io.make_folder(os.path.dirname(os.path.abspath(path)))
    content = page_content(results, path, int(embed_mb * 1e6))
    content["title"] = title or content["title"]
    io.write_bytes(path, page_text(content).encode("utf-8", errors="replace"))
    if content["missing"]:
        warn_user(f"{content['advice']}. The page contains no sound for them.")
    embedded: str = content["embedded"]
    return embedded


def page_text(content: Mapping[str, Any]) -> str:
    """The HTML of a page with its style, scripts and content."""
    folder = resources.files("torch_mapss.evaluation.page")
    scripts = [(folder / name).read_text("utf-8") for name in _SCRIPTS]
    # "<" could end the script element that holds the content.
    content_json = json.dumps(io.plain(content), ensure_ascii=False).replace("<", "\\u003c")
    return Template((folder / "page.html").read_text("utf-8")).substitute(
        title=html.escape(content["title"]),
        style=(folder / "page.css").read_text("utf-8"),
        script="\n".join(scripts),
        content=content_json,
    )


def page_content(results: Results, page: str, embed_bytes: int) -> dict[str, Any]:
    """Everything on the page at the path ``page``, to which links are relative.

    Raises:
        ValueError: frame scores are missing or damaged.
    """
    comparison = compare(results)
    score_names = list(comparison.measures)
    rows = rows_of(results.scores)
    paths_by_role = [_paths_by_role(results, row) for row in rows]
    segments = worst_of_systems(results)
    # Files of worst moments first: they are embedded before the others.
    row_order = [*dict.fromkeys([*segments["row"], *range(len(rows))])]
    paths: list[str] = []
    for index in row_order:
        paths += paths_by_role[index].values()
    tracks, clips, unreadable, embedded = make_tracks(paths, segments, page, embed_bytes)
    track_index = {path: index for index, path in enumerate(tracks)}
    shorten = path_shortener(_mentioned_paths(results))
    # Remarks name the files as they were opened, even if the manifest's paths are relative.
    shorten = {results.locate(path): short_path for path, short_path in shorten.items()} | shorten
    shown_rows = [_shown_row(row, score_names, shorten) for row in rows]
    for shown_row, paths_of_row in zip(shown_rows, paths_by_role):
        readable = {role: path for role, path in paths_of_row.items() if path in track_index}
        shown_row["tracks"] = {role: track_index[path] for role, path in readable.items()}
    panels = _panels(score_names)
    curve_names = [name for panel in panels for name in panel]
    add_curves(results, curve_names, shown_rows, row_order)
    add_channels(results, rows, shown_rows)
    missing = [*map(io.shown, unreadable)]
    file_count = len(tracks) + len(missing)
    return {
        "title": os.path.basename(os.path.abspath(io.shown(results.folder))),
        "answer": comparison.answer(),
        "written": datetime.datetime.now().strftime("%Y-%m-%d %H:%M"),
        "scored": _extent(results),
        "statement": results.statement(),
        "input": input_notes(results),
        "scores": [_shown_score(name) for name in score_names],
        "panels": panels,
        "ranking": rows_of(comparison.ranking),
        "pairs": _pair_rows(comparison),
        "notes": comparison.notes(),
        "values": _ranked_values(comparison),
        "controls": _control_means(comparison),
        "sources": _source_means(comparison),
        "channels": _channel_means(results, score_names),
        "rows": shown_rows,
        "tracks": [*tracks.values()],
        "segments": rows_of(segments[_SEGMENT_COLUMNS].assign(clips=clips)),
        "sampled": results.sampled,
        "embedded": embedded,
        "missing": [f"{io.shown(path)}: {why}" for path, why in unreadable.items()],
        "advice": results.without_audio(missing, file_count) if missing else "",
    }


def worst_of_systems(results: Results) -> DataFrame:
    """The worst segments without those of hidden references and anchors, if there are systems."""
    is_system = ~results.scores["system"].str.startswith(CONTROL).to_numpy()
    if not is_system.any():
        return worst_segments(results, _WORST)
    scores = results.scores[is_system].reset_index(drop=True)
    segments = worst_segments(replace(results, scores=scores), _WORST)
    row_indices = np.flatnonzero(is_system)
    return segments.assign(row=row_indices[segments["row"].to_numpy(int)])


def _paths_by_role(results: Results, row: Mapping[str, Any]) -> dict[str, str]:
    """Paths to open of the reference, the estimate and, where it is named, the mixture."""
    paths = {role: row[role] for role in ("reference", "estimate")}
    paths["mixture"] = results.entries[row["mixture_id"]]["mixture"]
    return {role: results.locate(path) for role, path in paths.items() if path}


def _shown_row(
    row: Mapping[str, Any], score_names: Sequence[str], shorten: Mapping[str, str]
) -> dict[str, Any]:
    """Content of the page for a row of scores.csv."""
    note = shortened(row["reason"] or row["warnings"] or "", shorten)
    return {
        "mixture": row["mixture_id"],
        "system": row["system"].removeprefix(CONTROL),
        "control": row["system"].startswith(CONTROL),
        "source": row["source"],
        **{name: row[name] for name in score_names},
        "frames": row["frames"],
        "note": note,
    }


def _mentioned_paths(results: Results) -> list[str]:
    """Every audio path that a note may mention, as the tables write it."""
    paths = results.scores[["estimate", "reference"]].to_numpy().ravel().tolist()
    for entry in results.entries.values():
        paths += [*entry["references"], entry["mixture"]]
    return [*dict.fromkeys(path for path in paths if path)]


def path_shortener(paths: Sequence[str]) -> dict[str, str]:
    """Paths mapped to short forms, without the folders that all have in common.

    Longer paths come first, so that no path is replaced inside another.

    Example:
        >>> path_shortener(["/data/set/m1/a.wav", "/data/set/m2/a.wav"])
        {'/data/set/m1/a.wav': 'm1/a.wav', '/data/set/m2/a.wav': 'm2/a.wav'}
    """
    names_by_path = {path: path.replace("\\", "/").split("/") for path in paths}
    shared = 0
    for folder_names in zip(*(names[:-1] for names in names_by_path.values())):
        if len({*folder_names}) > 1:
            break
        shared += 1
    short_paths = {path: "/".join(names[shared:]) for path, names in names_by_path.items()}
    return {path: short_paths[path] for path in sorted(short_paths, key=len, reverse=True)}


def shortened(note: str, short_paths: Mapping[str, str]) -> str:
    """A note with each whole path in its short form; paths inside longer ones stay.

    Example:
        >>> shortened("'/set/a.wav' is silent; 'b/set/a.wav' is not", {"/set/a.wav": "a.wav"})
        "'a.wav' is silent; 'b/set/a.wav' is not"
    """
    longest_first = sorted(short_paths, key=len, reverse=True)
    if not longest_first:
        return note
    pattern = rf"(?<![\w/\\.-])(?:{'|'.join(map(re.escape, longest_first))})(?![\w/\\-]|\.\w)"
    return re.sub(pattern, lambda match: short_paths[match[0]], note)


def _extent(results: Results) -> str:
    """Phrase on the amount of data scored."""
    seconds = float(results.items.groupby("mixture_id")["seconds"].max().sum())
    systems = [name for name in results.systems if not name.startswith(CONTROL)]
    control_count = len(results.systems) - len(systems)
    phrases = [
        f"{_counted(len(results.mixtures), 'mixture')}, {console.duration(seconds)} in all",
        _counted(len(systems), "system"),
    ]
    if control_count:
        phrases.append(
            _counted(control_count, "hidden reference or anchor", "hidden references and anchors")
        )
    return ", ".join(phrases)


def _counted(count: int, singular: str, plural: str = "") -> str:
    return f"{count} {singular if count == 1 else plural or singular + 's'}"


def input_notes(results: Results) -> list[str]:
    """Changes made to the audio before scoring, with the number of estimates."""
    counts: Counter[str] = Counter()
    for text in results.scores["notes"].dropna():
        # A note begins with the file it is about, which may itself contain a colon.
        kinds = [note.rpartition(": ")[2] for note in str(text).split("; ") if note]
        counts.update([*dict.fromkeys(kinds)])  # once an estimate, in the order of the notes
    total = len(results.scores)
    return [f"{kind} ({count} of {total} estimates)" for kind, count in counts.most_common()]


def _shown_score(name: str) -> dict[str, Any]:
    """Properties of a score for the page, from :data:`torch_mapss.score_table.SCORES`."""
    score = SCORES[name]
    return {
        "name": name,
        "label": score_label(name),
        "meaning": score.meaning,
        "digits": score.digits,
        "limits": score.limits,
    }


def _panels(score_names: Sequence[str]) -> list[list[str]]:
    """Scores over time by panel, those in [0, 1] in pairs."""
    with_frames = [name for name in score_names if SCORES[name].has_frames]
    panels: list[list[str]] = []
    paired: set[str] = set()
    for pair in AXES:
        panels.append([name for name in pair if name in with_frames])
        paired.update(pair)
    panels += [[name] for name in with_frames if name not in paired]
    return [panel for panel in panels if panel]


def _pair_rows(comparison: Comparison) -> list[dict[str, Any]]:
    """Tests of two systems each; p is written as everywhere else."""
    pairs = comparison.shown_pairs()
    return rows_of(pairs.assign(p_text=pairs["p_holm"].map(p_text)))


def _ranked_values(comparison: Comparison) -> dict[str, dict[str, list[float]]]:
    """By score and system: the values of the mixtures that means are over."""
    values_by_score: dict[str, dict[str, list[float]]] = {}
    for name in comparison.measures:
        table = comparison.scores.ranked_values(name)
        values_by_score[name] = {str(system): table[system].dropna().tolist() for system in table}
    return values_by_score


def _control_means(comparison: Comparison) -> list[dict[str, Any]]:
    """Means of hidden references and anchors, a row of scores each."""
    means = comparison.controls
    if means.empty:
        return []
    table = means.pivot(index="system", columns="measure", values="mean").reset_index()
    table["system"] = table["system"].str.removeprefix(CONTROL)
    return rows_of(table)


def _source_means(comparison: Comparison) -> dict[str, Any]:
    """Means by source name and system, for sets whose sources are the same in all mixtures."""
    means: DataFrame = comparison.sources
    names = means["source"].unique().tolist()
    if not 1 < len(names) <= MOST_SOURCES:
        return {"names": [], "means": []}
    return {"names": names, "means": rows_of(means)}


def _channel_means(results: Results, score_names: Sequence[str]) -> dict[str, Any]:
    """Means by system and channel, where each channel was scored; hidden references have none."""
    is_system = ~results.channels["system"].str.startswith(CONTROL)
    table = results.channels[is_system]
    names = [name for name in score_names if name in table]
    of_mixtures = table.groupby(["mixture_id", "system", "channel"], sort=False)[names].mean()
    means = of_mixtures.groupby(["system", "channel"], sort=False).mean().reset_index()
    return {"numbers": sorted(table["channel"].unique().tolist()), "means": rows_of(means)}


def add_channels(
    results: Results, rows: Sequence[Mapping[str, Any]], shown_rows: Sequence[dict[str, Any]]
) -> None:
    """Put the scores of the channels into the rows of the page, as ``channels``."""
    keys = ("mixture_id", "system", "source")
    by_estimate: dict[tuple[Any, ...], list[dict[str, Any]]] = {}
    for channel in rows_of(results.channels):
        by_estimate.setdefault(tuple(channel[key] for key in keys), []).append(channel)
    for row, shown_row in zip(rows, shown_rows):
        shown_row["channels"] = by_estimate.get(tuple(row[key] for key in keys), [])


def add_curves(
    results: Results,
    names: Sequence[str],
    shown_rows: Sequence[dict[str, Any]],
    row_order: Iterable[int],
) -> None:
    """Put the scores over time of these names into the rows of the page, as ``curve``.

    It is None where no frame is scored, and in the last rows of ``row_order`` of a very large set.
    """
    import pandas

    indices = [*row_order]
    rows = rows_of(results.scores)
    points = max(MIN_CURVE_POINTS, MAX_CURVE_VALUES // max(1, len(rows) * len(names)))
    most_curves = 2 * MAX_CURVE_VALUES // (points * max(1, len(names)))
    curves_of_rows = frame_curves(results, [rows[index] for index in indices])
    for count, (index, (_, times, scores)) in enumerate(zip(indices, curves_of_rows)):
        shown_row = shown_rows[index]
        shown_row["curve"] = None
        curves = pandas.DataFrame({name: scores[name] for name in names if name in scores})
        if not curves.notna().any(axis=None):
            continue  # it failed, or no frame is scored
        if count >= most_curves:
            shown_row["note"] = f"{shown_row['note']} no curve: the set is too large".strip()
            continue
        stride = -(-len(times) // points)
        means = curves.groupby(np.arange(len(times)) // stride).mean()
        frame_step = float(times[-1] - times[0]) / max(1, len(times) - 1)
        shown_row["curve"] = {"first": float(times[:stride].mean()), "step": stride * frame_step}
        for name in means:
            shown_row["curve"][name] = [float(f"{value:.4g}") for value in means[name]]
