"""What listeners said: webMUSHRA's results, with the key of the test, as a table of ratings.

One row per stimulus and question, over listeners, higher is better: ``dataset, track, source,
system, question, role, mean_rating, n_ratings, std, median_rating, mean_norm, median_norm``, the
layout that ``torch-mapss correlate`` reads. ``track`` is the ``mixture_id``. A listener who rated a
page twice counts once, with the mean. ``mean_norm`` and ``median_norm`` are of ratings that were
brought to 0..100 on every page of every listener first: people use the scale differently.
"""

from __future__ import annotations

import csv
import os
import statistics
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, NamedTuple

from torch_mapss.evaluation import files

RATING_COLUMNS = (
    *("dataset", "track", "source", "system", "question", "role", "mean_rating", "n_ratings"),
    *("std", "median_rating", "mean_norm", "median_norm"),
)
LISTENER_COLUMNS = ("question", "track", "source", "system", "listener", "rating", "norm")
_ANCHORS = {"anchor35": "anchor_35", "anchor70": "anchor_70"}
_NEEDED = ("session_test_id", "trial_id", "rating_stimulus", "rating_score")
# Columns of a rating; what else there is tells the listener.
_OF_A_RATING = {*_NEEDED, "rating_time", "rating_comment"}


class Rating(NamedTuple):
    """What one listener said of one stimulus."""

    question: str
    page: str
    condition: str
    listener: str
    score: float


def read_ratings(paths: Sequence[str | os.PathLike[str]]) -> list[Rating]:
    """Read the files ``mushra.csv`` that webMUSHRA wrote.

    Listeners are told apart by all columns of the participant's form (``session_uuid`` alone if
    there is one); without any, a listener ends where a page comes again with the same condition.

    Args:
        paths: of the files.

    Returns:
        The ratings, in order.

    Raises:
        ValueError: a file that cannot be read, without the columns, or with a rating that is no
            number from 0 to 100.
    """
    found: list[Rating] = []
    for place, path in enumerate(paths):
        rows = _rows(path)
        listeners = _listeners(rows, place)
        for row, listener in zip(rows, listeners):
            score = _score(row["rating_score"], path)
            test = row["session_test_id"]
            question = test.rpartition("-")[2]
            found.append(Rating(question, row["trial_id"], row["rating_stimulus"], listener, score))
    return found


def _rows(path: str | os.PathLike[str]) -> list[dict[str, str]]:
    try:
        with open(path, encoding="utf-8-sig", newline="") as file:
            reader = csv.DictReader(file)
            missing = [name for name in _NEEDED if name not in (reader.fieldnames or ())]
            rows = list(reader)
    except (OSError, UnicodeDecodeError) as error:
        raise ValueError(f"{files.shown(path)!r} cannot be read: {error}.") from None
    if missing:
        raise ValueError(
            f"{files.shown(path)!r} should be the mushra.csv of webMUSHRA, but lacks the columns "
            f"{', '.join(missing)}."
        )
    return rows


def _score(text: str, path: str | os.PathLike[str]) -> float:
    try:
        score = float(text)
    except (TypeError, ValueError):
        score = float("nan")
    if not 0.0 <= score <= 100.0:
        raise ValueError(
            f"{files.shown(path)!r} holds the rating {text!r}; ratings are numbers from 0 to 100."
        )
    return score


def _listeners(rows: Sequence[Mapping[str, str]], file: int) -> list[str]:
    """A name for the listener of every row."""
    columns = [name for name in (rows[0] if rows else ()) if name and name not in _OF_A_RATING]
    columns = ["session_uuid"] if "session_uuid" in columns else columns
    if columns:
        return ["/".join(row[name] or "" for name in columns) for row in rows]
    names: list[str] = []
    seen: set[tuple[str, ...]] = set()
    number = 1
    for row in rows:
        cell = row["session_test_id"], row["trial_id"], row["rating_stimulus"]
        if cell in seen:
            seen, number = set(), number + 1
        seen.add(cell)
        names.append(f"{file + 1}.{number}")
    return names


def read_key(path: str | os.PathLike[str]) -> list[dict[str, str]]:
    """The rows of the ``stimuli.csv`` of a test.

    Raises:
        ValueError: there is none, or it is another table.
    """
    try:
        with open(path, encoding="utf-8", newline="") as file:
            rows = list(csv.DictReader(file))
    except (OSError, UnicodeDecodeError) as error:
        raise ValueError(
            f"{files.shown(path)!r} should be the key of the test, but cannot be read: {error}."
        ) from None
    needed = ("page", "condition", "mixture_id", "source", "system", "role")
    if not rows or any(name not in rows[0] for name in needed):
        raise ValueError(
            f"{files.shown(path)!r} should be the stimuli.csv of a listening test, with the "
            f"columns {', '.join(needed)}."
        )
    return rows


def rating_tables(
    ratings: Iterable[Rating], key: Sequence[Mapping[str, str]], dataset: str = "listening"
) -> tuple[list[dict[str, Any]], list[dict[str, Any]]]:
    """Ratings per stimulus and per listener.

    Args:
        ratings: of :func:`read_ratings`.
        key: rows of the ``stimuli.csv`` of the test.
        dataset: a name for the first column.

    Returns:
        Rows of :data:`RATING_COLUMNS` and of :data:`LISTENER_COLUMNS`.

    Raises:
        ValueError: a page or condition that is not in the key.
    """
    stimuli = {(row["page"], row["condition"]): row for row in key}
    pages = {row["page"]: row for row in key}
    single = []
    for one in _normalised(ratings):
        rating = one[0]
        known = stimuli.get((rating.page, rating.condition))
        if known is None and rating.condition in _ANCHORS and rating.page in pages:
            role = _ANCHORS[rating.condition]
            known = {**pages[rating.page], "system": rating.condition, "role": role}
        if known is None:
            raise ValueError(
                f"page {rating.page!r}, condition {rating.condition!r} is not in the key. Give the "
                "stimuli.csv that was written with this test."
            )
        single.append((rating, one[1], known))
    return _over_listeners(single, dataset), _per_listener(single)


def _normalised(ratings: Iterable[Rating]) -> list[tuple[Rating, float]]:
    """Every rating with itself on 0..100 of its page and listener; NaN where all are equal."""
    given = list(ratings)
    trials: dict[tuple[str, str, str, int], list[float]] = {}
    keys = []
    times: dict[tuple[str, str, str, str], int] = {}
    for one in given:  # the same page rated again is another trial
        cell = one.question, one.page, one.listener, one.condition
        times[cell] = times.get(cell, 0) + 1
        keys.append((*cell[:3], times[cell]))
        trials.setdefault(keys[-1], []).append(one.score)
    found = []
    for one, key in zip(given, keys):
        low, high = min(trials[key]), max(trials[key])
        norm = 100.0 * (one.score - low) / (high - low) if high > low else float("nan")
        found.append((one, norm))
    return found


Single = tuple[Rating, float, Mapping[str, str]]


def _cell(single: Single) -> tuple[str, str, str, str, str]:
    rating, _, known = single
    place = known["mixture_id"], known["source"], known["system"], known["role"]
    return (rating.question, *place)


def _by_listener(single: Sequence[Single]) -> dict[Any, dict[str, tuple[float, float]]]:
    """Stimulus and question -> listener -> mean rating and mean normalised one."""
    found: dict[Any, dict[str, list[Single]]] = {}
    for one in single:
        found.setdefault(_cell(one), {}).setdefault(one[0].listener, []).append(one)
    return {
        cell: {
            name: (_mean([one[0].score for one in own]), _mean([one[1] for one in own]))
            for name, own in listeners.items()
        }
        for cell, listeners in found.items()
    }


def _mean(values: Sequence[float]) -> float:
    there = [value for value in values if value == value]
    return statistics.fmean(there) if there else float("nan")


def _median(values: Sequence[float]) -> float:
    there = [value for value in values if value == value]
    return statistics.median(there) if there else float("nan")


def _over_listeners(single: Sequence[Single], dataset: str) -> list[dict[str, Any]]:
    rows = []
    for (question, track, source, system, role), listeners in _by_listener(single).items():
        scores = [score for score, _ in listeners.values()]
        norms = [norm for _, norm in listeners.values()]
        spread = statistics.stdev(scores) if len(scores) > 1 else float("nan")
        rows.append(
            {"dataset": dataset, "track": track, "source": source, "system": system}
            | {"question": question, "role": role, "mean_rating": _mean(scores)}
            | {"n_ratings": len(scores), "std": spread, "median_rating": _median(scores)}
            | {"mean_norm": _mean(norms), "median_norm": _median(norms)}
        )
    return rows


def _per_listener(single: Sequence[Single]) -> list[dict[str, Any]]:
    return [
        {"question": question, "track": track, "source": source, "system": system}
        | {"listener": name, "rating": score, "norm": norm}
        for (question, track, source, system, _), listeners in _by_listener(single).items()
        for name, (score, norm) in listeners.items()
    ]
