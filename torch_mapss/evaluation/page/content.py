"""What a page holds: ranking, table, curves, sounds and worst segments, as plain values.

Sound is large, so there is a budget of bytes for what is embedded. It is spent in this order: the
worst segments with half a second around them; then item by item, those with worst segments first,
curves, spectrograms and whole files. A file that does not fit is linked by its relative path.
"""

from __future__ import annotations

import functools
import math
import os
from collections.abc import Callable, Mapping, Sequence
from pathlib import PurePath
from typing import Any, NamedTuple
from urllib.parse import quote

import numpy as np

from torch_mapss.evaluation import files
from torch_mapss.evaluation.comparison import Comparison, compare
from torch_mapss.evaluation.frame_store import MixtureFrames
from torch_mapss.evaluation.measures import LABELS, RANK
from torch_mapss.evaluation.page.sound import Sound, data_uri, flac, picture, read_sound
from torch_mapss.evaluation.results import Results, records
from torch_mapss.evaluation.worst import CONTEXT_S, Segment, worst_segments

#: Measures of the box plots and of the table, where the results have them.
SHOWN = ("clearance", "fidelity", "ps", "log_pm", "pm", RANK, "bleed_db")
# Audio files kept decoded while the page is made: those of one mixture, and then some.
_KEPT = 32


class Wanted(NamedTuple):
    """What a page should hold."""

    embed_bytes: int  # budget of all that is embedded beside the table
    worst: int  # segments of each measure


class Budget:
    """Bytes left to embed."""

    def __init__(self, total: int) -> None:
        self.left = total

    def take(self, size: int) -> bool:
        """Whether ``size`` more bytes fit; they are spent if so."""
        if size > self.left:
            return False
        self.left -= size
        return True


class Sounds:
    """Audio files, read once while they are needed; a file that is gone is noted, not fatal."""

    def __init__(self, page: str) -> None:
        self.folder = os.path.dirname(os.path.abspath(page))
        self.missing: dict[str, str] = {}
        self._asked: set[str] = set()
        self.read: Callable[[str], Sound] = functools.lru_cache(_KEPT)(read_sound)

    @property
    def wanted(self) -> int:
        """How many files were asked for."""
        return len(self._asked)

    def get(self, path: str) -> Sound | None:
        """The sound of a file, or None."""
        self._asked.add(path)
        try:
            return self.read(path)
        except (OSError, ValueError) as error:
            self.missing.setdefault(path, " ".join(str(error).split()))
            return None

    def link(self, path: str) -> str:
        """The file's address as seen from the page."""
        full = os.path.abspath(path)
        try:
            relative = os.path.relpath(full, self.folder)
        except ValueError:  # another drive
            return PurePath(full).as_uri()
        return quote(PurePath(relative).as_posix())


def page_content(results: Results, page: str, wanted: Wanted) -> dict[str, Any]:
    """Everything on the page, ready for JSON.

    Args:
        results: of :func:`~torch_mapss.evaluation.results.load_results`.
        page: path of the file to be, which links are relative to.
        wanted: how much of it.

    Raises:
        ValueError: frame scores are missing or damaged.
        ImportError: Pillow is missing.
    """
    comparison = compare(results)
    segments = worst_segments(results, wanted.worst) if wanted.worst else []
    shown = [name for name in SHOWN if name in comparison.measures]
    rows = table_rows(results, shown)
    places = {(row["mixture"], row["system"], row["place"]): n for n, row in enumerate(rows)}
    sounds, budget = Sounds(page), Budget(wanted.embed_bytes)
    listed = [segment_entry(results, segment, places, sounds, budget) for segment in segments]
    first = dict.fromkeys(entry["row"] for entry in listed)
    order = [*first, *(n for n in range(len(rows)) if n not in first)]
    details, tracks = all_details(results, rows, order, sounds, budget)
    return {
        "measures": {name: LABELS[name] for name in shown},
        "ranking": ranking_rows(comparison, shown),
        # The page's head tells of PM's rank, with its number of distortions.
        "notes": comparison.notes([name for name in shown if name != RANK]),
        "boxes": box_values(comparison, shown),
        "rows": rows,
        "details": details,
        "tracks": tracks,
        "segments": listed,
        "sampled": results.sampled,
        "missing": [f"{files.shown(path)}: {why}" for path, why in sounds.missing.items()],
        "advice": results.without_audio([*map(files.shown, sounds.missing)], sounds.wanted)
        if sounds.missing
        else "",
    }


# ------------------------------------------------------------------------------------------------
# Tables
# ------------------------------------------------------------------------------------------------


def ranking_rows(comparison: Comparison, shown: Sequence[str]) -> list[dict[str, Any]]:
    """The ranking of the shown measures."""
    kept = ("measure", "system", "n", "mean", "low", "high", "group")
    return [
        {name: plain(row[name]) for name in kept}
        for row in comparison.ranking.to_dict("records")
        if row["measure"] in shown
    ]


def box_values(comparison: Comparison, shown: Sequence[str]) -> dict[str, dict[str, list[float]]]:
    """The mixtures' values of every measure and system."""
    scores = comparison.scores
    return {
        name: {
            system: [float(f"{v:.6g}") for v in scores.values[name][:, k] if math.isfinite(v)]
            for k, system in enumerate(scores.systems)
        }
        for name in shown
    }


def table_rows(results: Results, shown: Sequence[str]) -> list[dict[str, Any]]:
    """One row per estimate; ``place`` is its row in the frames of its system."""
    rows: list[dict[str, Any]] = []
    seen: dict[tuple[str, str], int] = {}
    for row in records(results.scores):
        key = row["mixture_id"], row["system"]
        ok = row["status"] == "ok"
        place = seen.get(key, 0) if ok else None
        seen[key] = seen.get(key, 0) + ok
        rows.append(
            {
                "mixture": row["mixture_id"],
                "system": row["system"],
                "source": row["source"],
                "place": place,
                **{name: plain(row.get(name)) for name in shown},
                "frames": plain(row.get("frames")),
                "note": row["reason"] if not ok else row.get("warnings") or "",
                "detail": None,
            }
        )
    return rows


def plain(value: Any) -> Any:
    """Numbers with six digits, undefined ones as None."""
    if isinstance(value, float | np.floating):
        return float(f"{value:.6g}") if math.isfinite(value) else None
    return value


# ------------------------------------------------------------------------------------------------
# Worst segments
# ------------------------------------------------------------------------------------------------


def segment_entry(
    results: Results,
    segment: Segment,
    places: Mapping[tuple[str, str, int], int],
    sounds: Sounds,
    budget: Budget,
) -> dict[str, Any]:
    """One worst segment, with its sound if that fits."""
    paths = results.audio(segment.mixture_id)
    reference = paths.sources.index(segment.source)
    given = {
        "reference": paths.references[reference],
        "estimate": paths.estimates[segment.system][segment.place],
    }
    begin = max(0.0, segment.start - CONTEXT_S)
    clips: dict[str, dict[str, Any]] | None = {}
    for role, path in given.items():
        sound = sounds.get(path)
        if sound is None:
            clips = None
            break
        source = data_uri(flac(sound, begin, segment.end + CONTEXT_S), "audio/flac")
        assert clips is not None
        clips[role] = {"src": source, "gain": plain(sound.gain)}
    if clips is not None and not budget.take(sum(len(clip["src"]) for clip in clips.values())):
        clips = None
    return {
        "measure": segment.measure,
        "label": LABELS[segment.measure],
        "score": plain(segment.score),
        "start": plain(segment.start),
        "end": plain(segment.end),
        "row": places[segment.mixture_id, segment.system, segment.place],
        "offset": plain(begin),
        "clips": clips,
    }


# ------------------------------------------------------------------------------------------------
# Items
# ------------------------------------------------------------------------------------------------


class Tracks:
    """The audio files of the page, each once however many items play it."""

    def __init__(self, sounds: Sounds, budget: Budget) -> None:
        self.sounds, self.budget = sounds, budget
        self.entries: list[dict[str, Any]] = []
        self._known: dict[str, int | None] = {}

    def place(self, path: str) -> int | None:
        """Where the file stands in ``entries``; None: it is gone."""
        if path not in self._known:
            name = os.path.basename(files.shown(path))
            made = track_entry(path, name, self.sounds, self.budget)
            self._known[path] = None if made is None else len(self.entries)
            self.entries += [] if made is None else [made]
        return self._known[path]


def all_details(
    results: Results,
    rows: list[dict[str, Any]],
    order: Sequence[int],
    sounds: Sounds,
    budget: Budget,
) -> tuple[list[dict[str, Any]], list[dict[str, Any]]]:
    """Curves and tracks of the rows in ``order``; rows learn where their detail is."""
    details: list[dict[str, Any]] = []
    tracks = Tracks(sounds, budget)
    frames_of = functools.lru_cache(4)(results.frames)
    for row in (rows[number] for number in order):
        if row["place"] is None:
            continue
        frames = frames_of(row["mixture"])
        curve = curves(frames, row["system"], row["place"])
        if not budget.take(6 * (2 + (RANK in curve)) * len(curve["ps"]) + 200):
            break
        paths = results.audio(row["mixture"])
        source = int(frames.systems[row["system"]].attributed[row["place"]])
        given = {
            "reference": paths.references[source],
            "estimate": paths.estimates[row["system"]][row["place"]],
            "mixture": paths.mixture,
        }
        row["detail"] = len(details)
        there = {role: tracks.place(path) for role, path in given.items() if path is not None}
        details.append({**curve, "tracks": there})
    return details, tracks.entries


def curves(frames: MixtureFrames, system: str, place: int) -> dict[str, Any]:
    """PS, log PM and, if conformal, PM's rank over time, None where a frame is not scored."""
    found = frames.systems[system]
    active = found.active[place]

    def line(values: Any) -> list[float | None]:
        return [
            float(f"{value:.4g}") if there and math.isfinite(value) else None
            for value, there in zip(values[place], active)
        ]

    times = frames.times
    step = float(times[1] - times[0]) if len(times) > 1 else 0.02
    first = float(times[0]) if len(times) else 0.0
    lines = {"ps": found.ps, "log_pm": found.log_pm, RANK: found.pm_rank}
    return {
        "first": round(first, 6),
        "step": round(step, 6),
        **{name: line(values) for name, values in lines.items() if values is not None},
    }


def track_entry(path: str, name: str, sounds: Sounds, budget: Budget) -> dict[str, Any] | None:
    """One audio file on the page: embedded if it fits, else linked; None: it is gone."""
    sound = sounds.get(path)
    if sound is None:
        return None
    image = data_uri(picture(sound), "image/png")
    source = data_uri(flac(sound), "audio/flac")
    shown = budget.take(len(image))
    embedded = budget.take(len(source))
    return {
        "name": name,
        "src": source if embedded else sounds.link(path),
        "embedded": embedded,
        "picture": image if shown else None,
        "gain": plain(sound.gain),
        "seconds": plain(len(sound.wave) / sound.rate),
        "khz": plain(sound.rate / 2000.0),
    }
