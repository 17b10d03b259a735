"""Ratings by listeners, and which stimulus of a results folder each belongs to.

A ratings table is a CSV file with one row per stimulus and question, in the columns of `COLUMNS`
(others can be named). Stimuli are told by track (the manifest's ``mixture_id``), system and source.
"""

from __future__ import annotations

import csv
import math
import os
import re
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, NamedTuple

from torch_mapss.evaluation import files

COLUMNS = ("track", "system", "source", "question", "role", "scenario", "rating")
"""What a rating is told by; the file's own names by default, ``rating`` is ``mean_rating``."""

_DEFAULT_NAMES = {name: name for name in COLUMNS} | {"rating": "mean_rating"}
_NEEDED = ("track", "system", "rating")
SYSTEM_ROLE = "system"
CONTROL = "control:"


class Rating(NamedTuple):
    """What listeners said of one stimulus to one question."""

    track: str
    system: str
    source: str  # empty: the file has no column for it
    question: str
    scenario: str
    is_system: bool  # no hidden reference, no anchor
    value: float  # mean over listeners, higher is better


class Ratings(NamedTuple):
    """All ratings of a file."""

    rows: tuple[Rating, ...]
    has_roles: bool  # else every row counts as a system's
    averaged: int  # rows that repeated a stimulus and question


def load_ratings(path: str | os.PathLike[str], columns: Mapping[str, str] | None = None) -> Ratings:
    """Read a table of ratings.

    Args:
        path: a CSV file, UTF-8, with a header.
        columns: names of the file's columns where they are not those of `COLUMNS`, e.g.
            ``{"track": "item", "rating": "mos"}``. ``source``, ``question``, ``role`` and
            ``scenario`` may be absent.

    Returns:
        The ratings; rows of one stimulus and question are averaged, and counted.

    Raises:
        ValueError: no such file or columns, a rating that is no number, or no rating at all.
    """
    shown = files.shown(path)
    names = {**_DEFAULT_NAMES, **_checked(columns or {})}
    try:
        with open(path, encoding="utf-8-sig", newline="") as file:
            reader = csv.DictReader(file)
            header = list(reader.fieldnames or ())
            lines = list(reader)
    except (OSError, UnicodeDecodeError) as error:
        raise ValueError(f"{shown!r} cannot be read as a table of ratings: {error}") from None
    if not header:
        raise ValueError(f"{shown!r} is empty. It should be a CSV table, a line per rating.")
    asked = {*_NEEDED, *(columns or {})}
    missing = sorted(names[name] for name in asked if names[name] not in header)
    if missing:
        raise ValueError(
            f"{shown!r} lacks the column(s) {', '.join(missing)}; it has {', '.join(header)}. Say "
            "which column is which, e.g. --columns track=item rating=mos."
        )
    found = [
        _rating(line, names, header, f"{shown}, line {place}")
        for place, line in enumerate(lines, 2)
    ]
    if not found:
        raise ValueError(f"{shown!r} holds no rating.")
    merged = _averaged(found)
    return Ratings(merged, names["role"] in header, len(found) - len(merged))


def _checked(columns: Mapping[str, str]) -> dict[str, str]:
    unknown = sorted(set(columns) - set(COLUMNS))
    if unknown:
        raise ValueError(f"columns must be of {', '.join(COLUMNS)}, got {', '.join(unknown)}.")
    return dict(columns)


def _rating(
    line: Mapping[str, str], names: Mapping[str, str], header: Sequence[str], where: str
) -> Rating:
    def text(name: str, otherwise: str) -> str:
        return (line[names[name]] or "").strip() if names[name] in header else otherwise

    try:
        value = float(text("rating", ""))
    except ValueError:
        value = math.nan
    if not math.isfinite(value):
        raise ValueError(
            f"{where}: {names['rating']} must be a number, got {line[names['rating']]!r}. Leave "
            "rows without a rating out."
        )
    return Rating(
        text("track", ""),
        text("system", "").removeprefix(CONTROL),
        text("source", ""),
        text("question", "rating"),
        text("scenario", "") or "all",
        text("role", SYSTEM_ROLE) == SYSTEM_ROLE,
        value,
    )


def _averaged(found: Sequence[Rating]) -> tuple[Rating, ...]:
    values: dict[Rating, list[float]] = {}
    for rating in found:
        values.setdefault(rating._replace(value=0.0), []).append(rating.value)
    return tuple(key._replace(value=sum(v) / len(v)) for key, v in values.items())


# ------------------------------------------------------------------------------------------------
# Joining
# ------------------------------------------------------------------------------------------------


class Stimulus(NamedTuple):
    """One rated output and its scores."""

    scenario: str
    question: str
    track: str
    source: str  # as in the ratings
    system: str
    rating: float
    scores: Mapping[str, float]  # measure -> score, NaN where undefined
    bounds: Mapping[str, tuple[float, float]]  # measure -> radius, half-width


class Joined(NamedTuple):
    """What `join` found."""

    stimuli: tuple[Stimulus, ...]
    notes: tuple[str, ...]  # what was matched by guess, left out, averaged


class Scored(NamedTuple):
    """One output of a results folder."""

    track: str
    system: str
    source: str
    scores: Mapping[str, float]
    bounds: Mapping[str, tuple[float, float]]


def join(
    outputs: Sequence[Scored],
    ratings: Ratings,
    *,
    sources: Mapping[str, str] | None = None,
    controls: bool = False,
) -> Joined:
    """Give every rating its scores.

    Sources have the same name in both, or the one that ``sources`` says. Failing that, names are
    compared word by word (``ref_bass`` is ``bass``), and a track with one source left on each side
    has those two paired; what was paired so is told in the notes.

    Args:
        outputs: of a results folder.
        ratings: of `load_ratings`.
        sources: name in the results -> name in the ratings.
        controls: keep hidden references and anchors (systems ``control:NAME`` of the manifest).

    Raises:
        ValueError: not one rating found its scores.
    """
    wanted = [r for r in ratings.rows if controls or r.is_system]
    kept = [o for o in outputs if controls or not o.system.startswith(CONTROL)]
    named, guessed = _named(kept, wanted, sources or {})
    stimuli = []
    for rating in wanted:
        output = named.get((rating.track, rating.source, rating.system))
        if output is not None:
            key = rating.scenario, rating.question, rating.track, rating.source, rating.system
            stimuli.append(Stimulus(*key, rating.value, output.scores, output.bounds))
    if not stimuli:
        raise ValueError(_no_match(outputs, ratings.rows))
    return Joined(tuple(stimuli), tuple(_notes(stimuli, wanted, named, guessed, ratings)))


def _named(
    outputs: Iterable[Scored], ratings: Iterable[Rating], mapping: Mapping[str, str]
) -> tuple[dict[tuple[str, str, str], Scored], Counter[tuple[str, str]]]:
    """(track, rated source, system) -> output; and the pairs of source names that were guessed."""
    rated: dict[str, list[str]] = {}
    for rating in ratings:
        names = rated.setdefault(rating.track, [])
        if rating.source not in names:
            names.append(rating.source)
    by_track: dict[str, list[Scored]] = {}
    for output in outputs:
        by_track.setdefault(output.track, []).append(output)
    named: dict[tuple[str, str, str], Scored] = {}
    guessed: Counter[tuple[str, str]] = Counter()
    for track, here in by_track.items():
        present = dict.fromkeys(output.source for output in here)
        pairs, guesses = match_names(list(present), rated.get(track, []), mapping)
        guessed.update(guesses.items())
        # A system of the same name as a control is the one that is meant.
        for output in sorted(here, key=lambda o: not o.system.startswith(CONTROL)):
            if output.source in pairs:
                system = output.system.removeprefix(CONTROL)
                named[track, pairs[output.source], system] = output
    return named, guessed


def match_names(
    found: Sequence[str], rated: Sequence[str], mapping: Mapping[str, str]
) -> tuple[dict[str, str], dict[str, str]]:
    """Sources of the results -> sources of the ratings; and those of them that were guessed."""
    pairs = {name: mapping.get(name, name) for name in found}
    pairs = {name: rate for name, rate in pairs.items() if rate in rated}
    guessed: dict[str, str] = {}
    left = [name for name in rated if name not in pairs.values()]
    open_names = [name for name in found if name not in pairs and name not in mapping]
    for rate in list(left):
        alike = [name for name in open_names if rate and rate.lower() in _words(name)]
        if len(alike) == 1:
            guessed[alike[0]] = rate
            left.remove(rate)
            open_names.remove(alike[0])
    if len(left) == 1 and len(open_names) == 1:
        guessed[open_names[0]] = left[0]
    return {**pairs, **guessed}, guessed


def _words(name: str) -> list[str]:
    return [word for word in re.split(r"[\W_]+", name.lower()) if word]


def _notes(
    stimuli: Sequence[Stimulus],
    wanted: Sequence[Rating],
    named: Mapping[tuple[str, str, str], Scored],
    guessed: Counter[tuple[str, str]],
    ratings: Ratings,
) -> Iterable[str]:
    for (found, rated), count in guessed.items():
        yield (
            f"source {found!r} of the results taken as {rated or 'the rated one'!r} in {count} "
            "track(s); say otherwise with --source-map"
        )
    lost = len(wanted) - len(stimuli)
    if lost:
        example = next(r for r in wanted if (r.track, r.source, r.system) not in named)
        yield (
            f"{lost} of {len(wanted)} ratings have no scored output, e.g. track {example.track!r}, "
            f"source {example.source!r}, system {example.system!r}"
        )
    if ratings.averaged:
        yield f"{ratings.averaged} rows repeated a stimulus and question, and were averaged"


def _no_match(outputs: Sequence[Scored], ratings: Sequence[Rating]) -> str:
    def some(values: Iterable[Any]) -> str:
        return ", ".join(repr(value) for value in list(dict.fromkeys(values))[:3])

    return (
        "no rating belongs to a scored output. The results have tracks "
        f"{some(o.track for o in outputs)}, systems {some(o.system for o in outputs)}, sources "
        f"{some(o.source for o in outputs)}; the ratings tracks {some(r.track for r in ratings)}, "
        f"systems {some(r.system for r in ratings)}, sources {some(r.source for r in ratings)}. "
        "Name sources with --source-map FOUND=RATED, take other columns with --columns, or keep "
        "references and anchors with --controls."
    )
