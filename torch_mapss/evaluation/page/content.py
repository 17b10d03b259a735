"""What a page holds: answer, ranking, table, curves and worst segments, as plain values."""

from __future__ import annotations

import datetime
import functools
import math
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from torch_mapss.evaluation import console, io
from torch_mapss.evaluation.comparison import Comparison, compare
from torch_mapss.evaluation.frame_store import MixtureFrames
from torch_mapss.evaluation.measures import COLUMNS, label
from torch_mapss.evaluation.page.tracks import Budget, make_tracks
from torch_mapss.evaluation.results import Results, records
from torch_mapss.evaluation.worst import Segment, measures_of, paths_of, worst_segments

# Values of curves in a page, some 6 bytes each. Curves of a large set are means of several frames,
# of at least so many points.
_VALUES, _FEWEST = 1_000_000, 50

Row = dict[str, Any]


def page_content(results: Results, page: str, embed_bytes: int, worst: int) -> dict[str, Any]:
    """Everything on the page, ready for JSON.

    Args:
        results: of :func:`~torch_mapss.evaluation.results.load_results`.
        page: path of the file to be, which links are relative to.
        embed_bytes: budget of sounds and their pictures.
        worst: segments of each measure.

    Raises:
        ValueError: frame scores are missing or damaged.
    """
    comparison = compare(results)
    shown = comparison.measures
    rows = table_rows(results, shown)
    number = {(row["mixture"], row["system"], row["index"]): k for k, row in enumerate(rows)}
    segments = worst_segments(results, worst) if worst else []
    listed = [_segment(one, number) for one in segments]
    first = dict.fromkeys(entry["row"] for entry in listed)
    order = [*first, *(k for k in range(len(rows)) if k not in first)]
    tracks = make_tracks(
        [path for k in order for path in rows[k]["paths"].values()],
        [(one, dict(zip(("estimate", "reference"), paths_of(results, one)))) for one in segments],
        page,
        embed_bytes,
    )
    add_curves(results, rows, order)
    for row in rows:
        there = {role: tracks.places.get(path) for role, path in row.pop("paths").items()}
        row["tracks"] = {role: place for role, place in there.items() if place is not None}
    missing = [*map(io.shown, tracks.missing)]
    count = len(tracks.places) + len(missing)
    return {
        "measures": {name: label(name) for name in shown},
        "meanings": {name: COLUMNS[name].meaning for name in shown},
        "panels": panels(results),
        "answer": comparison.answer(),
        "ranking": ranking_rows(comparison, shown),
        "notes": comparison.notes(shown),
        "boxes": box_values(comparison, shown),
        "rows": rows,
        "tracks": tracks.entries,
        "segments": [entry | {"clips": clip} for entry, clip in zip(listed, tracks.clips)],
        "sampled": results.sampled,
        "embedded": tracks.told,
        "missing": [f"{io.shown(path)}: {why}" for path, why in tracks.missing.items()],
        "advice": results.without_audio(missing, count) if missing else "",
    }


# ------------------------------------------------------------------------------------------------
# Tables
# ------------------------------------------------------------------------------------------------


def ranking_rows(comparison: Comparison, shown: Sequence[str]) -> list[Row]:
    """The ranking of the shown measures."""
    kept = ("measure", "system", "n", "mean", "low", "high", "group")
    rows = records(comparison.ranking)
    return [{k: plain(row[k]) for k in kept} for row in rows if row["measure"] in shown]


def box_values(comparison: Comparison, shown: Sequence[str]) -> dict[str, dict[str, list[float]]]:
    """The mixtures' values of every measure and system."""
    scores = comparison.scores
    return {
        name: {
            system: [plain(v) for v in scores.values[name][:, k] if math.isfinite(v)]
            for k, system in enumerate(scores.systems)
        }
        for name in shown
        if name in scores.values
    }


def table_rows(results: Results, shown: Sequence[str]) -> list[Row]:
    """One row per estimate, with the paths of its sounds; ``index`` is that of its source."""
    mixtures = {name: results.audio(name).mixture for name in results.mixtures}
    rows = []
    for row in records(results.scores):
        paths = {
            "reference": results.locate(row["reference"]),
            "estimate": results.locate(row["estimate"]),
            "mixture": mixtures[row["mixture_id"]],
        }
        rows.append(
            {
                "mixture": row["mixture_id"],
                "system": row["system"],
                "source": row["source"],
                "index": int(row["source_index"]),
                **{name: plain(row.get(name)) for name in shown},
                "frames": plain(row.get("frames")),
                "note": row.get("reason") or row.get("warnings") or "",
                "paths": {role: path for role, path in paths.items() if path is not None},
            }
        )
    return rows


def plain(value: Any) -> Any:
    """Numbers with six digits, undefined ones as None."""
    if isinstance(value, float | np.floating):
        return float(f"{value:.6g}") if math.isfinite(value) else None
    return value.item() if isinstance(value, np.generic) else value


def _segment(one: Segment, number: Mapping[tuple[str, str, int], int]) -> Row:
    """A worst segment, as a row of its table."""
    return {
        "label": one.title,
        "text": one.value,
        "start": plain(one.start),
        "end": plain(one.end),
        "row": number[one.mixture_id, one.system, one.source_index],
    }


def facts(results: Results) -> list[tuple[str, str]]:
    """What was scored and with what, for the foot of the page."""
    settings = results.settings
    encoder = settings.get("encoder") or {}
    seconds = float(results.items.groupby("mixture_id")["seconds"].max().sum())
    told = {
        "written": datetime.datetime.now().strftime("%Y-%m-%d %H:%M"),
        "scored": f"{len(results.mixtures)} mixtures, {console.duration(seconds)} in all, by "
        f"{len(results.systems)} systems",
        "encoder": " ".join(
            str(encoder[name]) for name in ("name", "checkpoint", "layer") if name in encoder
        ),
        "convention": settings.get("convention"),
        "rate": f"{settings.get('encoder_rate')} Hz",
        "protocol": results.protocol,
        "versions": ", ".join(f"{name} {value}" for name, value in results.versions.items()),
    }
    return [(name, str(value)) for name, value in told.items() if value]


# ------------------------------------------------------------------------------------------------
# Curves
# ------------------------------------------------------------------------------------------------


def panels(results: Results) -> list[dict[str, Any]]:
    """The charts over time, from top to bottom: names and labels of the curves in each."""
    have = measures_of(results)
    together = (("clearance", "fidelity"), ("ps", "pm"), ("log_pm",), ("bleed_db",))
    return [
        {
            "curves": {name: label(name) for name in names if name in have},
            "range": [0, 1] if COLUMNS[names[0]].limits == (0.0, 1.0) else None,
        }
        for names in together
        if any(name in have for name in names)
    ]


def add_curves(results: Results, rows: Sequence[Row], order: Sequence[int]) -> None:
    """Put the scores over time into the rows: ``curve``, None where there is none."""
    names = measures_of(results)
    points = max(_FEWEST, _VALUES // max(1, len(rows) * len(names)))
    budget = Budget(2 * _VALUES)
    frames_of = functools.lru_cache(4)(results.frames)
    for row in (rows[k] for k in order):
        frames = frames_of(row["mixture"])
        found = frames.systems.get(row["system"])
        row["curve"] = None
        if found is None or row["index"] not in found.attributed:
            continue  # it failed
        place = found.attributed.tolist().index(row["index"])
        made = {name: found.scores[name][place] for name in names if name in found.scores}
        if not any(np.isfinite(values).any() for values in made.values()):
            continue
        if not budget.take(len(made) * min(points, len(frames.times))):
            row["note"] = f"{row['note']} no curve: the set is too large".strip()
            continue
        row["curve"] = _curve(frames, made, -(-len(frames.times) // points))


def _curve(frames: MixtureFrames, made: Mapping[str, Any], share: int) -> dict[str, Any]:
    """Curves as means over ``share`` frames each, None where none of them is scored."""
    times = frames.times
    step = float(times[1] - times[0]) if len(times) > 1 else 0.02
    starts = np.arange(0, len(times), share)
    curve: dict[str, Any] = {"step": round(share * step, 6)}
    curve["first"] = round(float(times[0]) + (share - 1) * step / 2, 6)
    for name, values in made.items():
        there = np.isfinite(values)
        sums = np.add.reduceat(np.where(there, values, 0.0).astype(np.float64), starts)
        counts = np.add.reduceat(there.astype(int), starts)
        means = sums / np.maximum(counts, 1)
        curve[name] = [float(f"{m:.4g}") if n else None for m, n in zip(means, counts)]
    return curve
