"""Ratings by listeners, and which stimulus of a results folder each belongs to.

A ratings table is a CSV file with one row per stimulus and question, in the columns of `COLUMNS`
(others can be named). Stimuli are known by track (the manifest's ``mixture_id``), system and
source; names that differ in their Unicode form alone are the same.
"""

from __future__ import annotations

import os
import re
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np

from torch_mapss.evaluation import io

COLUMNS = ("track", "system", "source", "question", "role", "scenario", "rating")
"""What a rating is known by; the file's own names by default, ``rating`` is ``mean_rating``."""

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
    cluster: str = ""  # what is resampled together; empty: the track


class Ratings(NamedTuple):
    """All ratings of a file."""

    rows: tuple[Rating, ...]
    has_roles: bool  # else every row counts as a system's
    averaged: int  # rows that repeated a stimulus and question


def load_ratings(
    path: str | os.PathLike[str],
    columns: Mapping[str, str] | None = None,
    cluster: str | None = None,
) -> Ratings:
    """Read a table of ratings.

    Args:
        path: a CSV file with a header, see :func:`torch_mapss.evaluation.io.read_table`.
        columns: names of the file's columns where they are not those of `COLUMNS`, e.g.
            ``{"track": "item", "rating": "mos"}``. ``source``, ``question``, ``role`` and
            ``scenario`` may be absent.
        cluster: column of what is resampled together, e.g. ``"talker"``; the track by default.

    Returns:
        The ratings; rows of one stimulus and question are averaged, and counted.

    Raises:
        FileNotFoundError: no such file.
        ValueError: no such columns, a rating that is no number, no rating at all, or rows of one
            stimulus in two clusters.
    """
    unknown = sorted({*(columns or {})} - {*COLUMNS})
    if unknown:
        raise ValueError(f"columns must be of {', '.join(COLUMNS)}, got {', '.join(unknown)}.")
    names = {**_DEFAULT_NAMES, **(columns or {})}
    needed = [names[name] for name in dict.fromkeys((*_NEEDED, *(columns or {})))]
    if cluster is not None:
        needed.append(names.get(cluster, cluster))
    content = "a table of ratings (--columns track=item says which column is which)"
    table = io.read_table(path, needed, [names["rating"]], content)
    values = table[names["rating"]].to_numpy(float)
    wrong = table.index[~np.isfinite(values)]
    if len(wrong) or table.empty:
        where = f", line {wrong[0]}" if len(wrong) else ""
        raise ValueError(f"{io.shown(path)!r}{where}: no rating. Leave rows without a number out.")

    def texts(name: str, otherwise: str = "") -> list[str]:
        if name not in table:
            return [otherwise] * len(table)
        return [io.same_name(text.strip()) for text in table[name]]

    found = [
        Rating(
            track,
            system.removeprefix(CONTROL),
            source,
            question,
            scenario or "all",
            role == SYSTEM_ROLE,
            value,
            own,
        )
        for track, system, source, question, scenario, role, own, value in zip(
            *(texts(names[name]) for name in ("track", "system", "source")),
            texts(names["question"], "rating"),
            texts(names["scenario"]),
            texts(names["role"], SYSTEM_ROLE),
            [""] * len(table) if cluster is None else texts(needed[-1]),
            values.tolist(),
        )
    ]
    blank = [line for line, rating in zip(table.index, found) if cluster and not rating.cluster]
    if blank:
        raise ValueError(
            f"{io.shown(path)!r}, line {blank[0]}: cluster column {cluster!r} is blank."
        )
    merged = _averaged(found, cluster)
    return Ratings(merged, names["role"] in table, len(found) - len(merged))


def _averaged(found: Sequence[Rating], cluster: str | None) -> tuple[Rating, ...]:
    values: dict[Rating, list[float]] = {}
    clusters: dict[Rating, str] = {}
    for rating in found:
        key = rating._replace(value=0.0, cluster="")
        values.setdefault(key, []).append(rating.value)
        if clusters.setdefault(key, rating.cluster) != rating.cluster:
            raise ValueError(
                f"cluster must be one for all ratings of a stimulus, but track {rating.track!r}, "
                f"system {rating.system!r} has {clusters[key]!r} and {rating.cluster!r} in column "
                f"{cluster!r}."
            )
    return tuple(
        key._replace(value=sum(v) / len(v), cluster=clusters[key]) for key, v in values.items()
    )


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
    cluster: str = ""  # what is resampled together; empty: the track


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
    kept = [
        one._replace(
            **{name: io.same_name(getattr(one, name)) for name in ("track", "system", "source")}
        )
        for one in outputs
        if controls or not one.system.startswith(CONTROL)
    ]
    mapping = {io.same_name(k): io.same_name(v) for k, v in (sources or {}).items()}
    named, guessed = _named(kept, wanted, mapping)
    stimuli = []
    for rating in wanted:
        output = named.get((rating.track, rating.source, rating.system))
        if output is not None:
            key = rating.scenario, rating.question, rating.track, rating.source, rating.system
            about = rating.value, output.scores, output.bounds, rating.cluster
            stimuli.append(Stimulus(*key, *about))
    if not stimuli:
        raise ValueError(_no_match(outputs, ratings.rows))
    return Joined(tuple(stimuli), tuple(_notes(stimuli, wanted, named, guessed, ratings)))


def _named(
    outputs: Iterable[Scored], ratings: Iterable[Rating], mapping: Mapping[str, str]
) -> tuple[dict[tuple[str, str, str], Scored], Counter[tuple[str, str]]]:
    """(track, rated source, system) -> output; and the pairs of source names that were guessed."""
    rated: dict[str, dict[str, None]] = {}
    for rating in ratings:
        rated.setdefault(rating.track, {})[rating.source] = None
    by_track: dict[str, list[Scored]] = {}
    for output in outputs:
        by_track.setdefault(output.track, []).append(output)
    named: dict[tuple[str, str, str], Scored] = {}
    guessed: Counter[tuple[str, str]] = Counter()
    for track, here in by_track.items():
        present = dict.fromkeys(output.source for output in here)
        pairs, guesses = match_names(list(present), list(rated.get(track, ())), mapping)
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
    unpaired = [name for name in found if name not in pairs and name not in mapping]
    for rate in list(left):
        alike = [name for name in unpaired if rate and rate.lower() in _words(name)]
        if len(alike) == 1:
            guessed[alike[0]] = rate
            left.remove(rate)
            unpaired.remove(alike[0])
    if len(left) == 1 and len(unpaired) == 1:
        guessed[unpaired[0]] = left[0]
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
    def some(rows: Sequence[Any]) -> str:
        return "; ".join(
            f"{name}s {io.listed(dict.fromkeys(repr(getattr(row, name)) for row in rows), 3)}"
            for name in ("track", "system", "source")
        )

    return (
        f"no rating belongs to a scored output. The results have {some(outputs)}; the ratings "
        f"{some(ratings)}. Name sources with --source-map FOUND=RATED, take other columns with "
        "--columns, or keep references and anchors with --controls."
    )
