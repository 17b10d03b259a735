"""Ratings by listeners, and which stimulus of a results folder each belongs to.

A ratings table is a CSV file with one row per stimulus and question, in the columns of `COLUMNS`
(others can be named). Stimuli are known by track (the manifest's ``mixture_id``), system and
source; names that differ in their Unicode form alone are the same.
"""

from __future__ import annotations

import os
import re
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from torch_mapss.evaluation import io

if TYPE_CHECKING:
    from pandas import DataFrame

COLUMNS = ("track", "system", "source", "question", "role", "scenario", "rating")
"""What a rating is known by; the file's own names by default, ``rating`` is ``mean_rating``."""

KEYS = ("scenario", "question", "track", "source", "system")
"""What tells stimuli and their questions apart."""

SYSTEM_ROLE = "system"
CONTROL = "control:"
_NAMES = ["track", "system", "source"]


class Ratings(NamedTuple):
    """All ratings of a file."""

    table: DataFrame  # `KEYS`, is_system (no hidden reference, no anchor), rating, cluster
    averaged: int  # rows that repeated a stimulus and question


class Joined(NamedTuple):
    """What `join` found."""

    stimuli: DataFrame  # as ratings, with the columns of their outputs
    notes: tuple[str, ...]  # what was matched by guess, left out, averaged


def load_ratings(
    path: str | os.PathLike[str],
    columns: Mapping[str, str] | None = None,
    cluster: str | None = None,
) -> Ratings:
    """Read a table of ratings, higher is better.

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
    from pandas import DataFrame

    unknown = sorted({*(columns or {})} - {*COLUMNS})
    if unknown:
        raise ValueError(f"columns must be of {', '.join(COLUMNS)}, got {', '.join(unknown)}.")
    names = {name: name for name in COLUMNS} | {"rating": "mean_rating"} | dict(columns or {})
    of = names.get(cluster or "track", cluster or "")
    needed = [names[name] for name in ("track", "system", "rating", *(columns or {}))]
    content = "a table of ratings (--columns track=item says which column is which)"
    read = io.read_table(path, [*dict.fromkeys([*needed, of])], [names["rating"]], content)

    def texts(column: str, otherwise: str) -> list[str]:
        if column not in read:
            return [otherwise] * len(read)
        return [io.same_name(text.strip()) for text in read[column]]

    defaults = {"question": "rating", "role": SYSTEM_ROLE}
    found = {name: texts(names[name], defaults.get(name, "")) for name in COLUMNS[:-1]}
    table = DataFrame(found, read.index, dtype=object)
    table["scenario"] = table["scenario"].replace("", "all")
    table["system"] = table["system"].str.removeprefix(CONTROL)
    table["is_system"] = table.pop("role") == SYSTEM_ROLE
    table["rating"], table["cluster"] = read[names["rating"]], texts(of, "")
    wrong = table.index[~np.isfinite(table["rating"]) | (table["cluster"] == "")]
    if table.empty:
        raise ValueError(f"{io.shown(path)!r} holds no rating.")
    if len(wrong):
        raise ValueError(
            f"{io.shown(path)!r}, line {wrong[0]}: expected a rating, a finite number, and a "
            f"cluster ({of!r}). Leave rows without them out."
        )
    stimuli = table.groupby([*KEYS, "is_system"], sort=False)
    several = stimuli["cluster"].nunique() > 1
    if several.any():
        raise ValueError(
            "cluster must be one for all ratings of a stimulus, but column "
            f"{of!r} has several for {dict(zip(KEYS, several.index[several][0]))}."
        )
    merged = stimuli.agg({"rating": "mean", "cluster": "first"}).reset_index()
    return Ratings(merged, len(table) - len(merged))


def join(
    outputs: DataFrame,
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
        outputs: ``track``, ``system``, ``source`` and any columns, as scores; a row per output.
        ratings: of `load_ratings`.
        sources: name in the results -> name in the ratings.
        controls: keep hidden references and anchors (systems ``control:NAME`` of the manifest).

    Raises:
        ValueError: not one rating found its scores.
    """
    outputs = outputs.assign(**{n: outputs[n].map(io.same_name) for n in _NAMES})
    # A system of the same name as a control is the one that is meant.
    outputs["control"] = outputs["system"].str.startswith(CONTROL)
    kept = outputs[controls | ~outputs["control"]].sort_values("control", kind="stable")
    wanted = ratings.table[controls | ratings.table["is_system"]]
    mapping = {io.same_name(k): io.same_name(v) for k, v in (sources or {}).items()}
    rated = wanted.groupby("track")["source"].unique()
    names: dict[tuple[str, str], str] = {}
    guessed: Counter[tuple[str, str]] = Counter()
    for track, own in kept.groupby("track", sort=False)["source"]:
        pairs, guesses = match_names(list(own.unique()), list(rated.get(track, ())), mapping)
        names |= {(str(track), found): rate for found, rate in pairs.items()}
        guessed.update(guesses.items())
    kept = kept.assign(
        source=[names.get(key) for key in zip(kept["track"], kept["source"])],
        system=kept["system"].str.removeprefix(CONTROL),
    )
    kept = kept.drop(columns="control").dropna(subset="source").drop_duplicates(_NAMES)
    merged = wanted.merge(kept, on=_NAMES, how="left", indicator="_found")
    stimuli = merged[merged["_found"] == "both"].drop(columns="_found").reset_index(drop=True)
    if stimuli.empty:
        raise ValueError(
            f"no rating belongs to a scored output. The results have {_some(outputs)}; the ratings "
            f"{_some(ratings.table)}. Name sources with --source-map FOUND=RATED, take other "
            "columns with --columns, or keep references and anchors (controls=True)."
        )
    lost = merged[merged["_found"] != "both"]
    return Joined(stimuli, tuple(_notes(guessed, lost, len(merged), ratings.averaged)))


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
    guessed: Counter[tuple[str, str]], lost: DataFrame, of: int, averaged: int
) -> Iterator[str]:
    for (found, rated), count in guessed.items():
        yield (
            f"source {found!r} of the results taken as {rated or 'the rated one'!r} in {count} "
            "track(s); say otherwise with --source-map"
        )
    if len(lost):
        example = ", ".join(f"{name} {lost[name].iloc[0]!r}" for name in _NAMES)
        yield f"{len(lost)} of {of} ratings have no scored output, e.g. {example}"
    if averaged:
        yield f"{averaged} rows repeated a stimulus and question, and were averaged"


def _some(table: DataFrame) -> str:
    found = (f"{n}s {io.listed(map(repr, table[n].unique()), 3)}" for n in _NAMES)
    return ", ".join(found)
