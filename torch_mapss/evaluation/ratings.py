"""Ratings by listeners, and which stimulus of a results folder each belongs to.

A ratings table is a CSV file with one row per stimulus and question, in the columns of `COLUMNS`
(others can be named). Stimuli are known by track (the manifest's ``mixture_id``), system and
source; names that differ in their Unicode form alone are the same.
"""

from __future__ import annotations

import os
import re
from collections import Counter
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from torch_mapss.evaluation import io
from torch_mapss.evaluation.manifest import CONTROL

if TYPE_CHECKING:
    from pandas import DataFrame

COLUMNS = ("track", "system", "source", "question", "role", "scenario", "rating")
"""What a rating is known by; the file's own names by default, ``rating`` is ``mean_rating``."""

KEYS = ("scenario", "question", "track", "source", "system")
"""What tells stimuli and their questions apart."""

_NAMES = ["track", "system", "source"]


class Stimuli(NamedTuple):
    """Ratings, and, once they are joined, the columns of their outputs."""

    table: DataFrame  # `KEYS`, is_system (no hidden reference, no anchor), rating, cluster
    notes: tuple[str, ...] = ()  # what was averaged, matched by guess, left out


def load_ratings(
    path: str | os.PathLike[str], columns: Mapping[str, str] | None = None, cluster: str = "track"
) -> Stimuli:
    """Read a table of ratings, higher is better.

    Args:
        path: a CSV file with a header, see :func:`torch_mapss.evaluation.io.read_table`.
        columns: names of the file's columns where they are not those of `COLUMNS`, e.g.
            ``{"track": "item", "rating": "mos"}``. ``source``, ``question``, ``role`` and
            ``scenario`` may be absent.
        cluster: column of what is resampled together, e.g. ``"talker"``.

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
    cluster = names.get(cluster, cluster)
    needed = [names[name] for name in ("track", "system", "rating", *(columns or {}))]
    content = "a table of ratings (--columns track=item says which column is which)"
    read = io.read_table(path, [*dict.fromkeys([*needed, cluster])], [names["rating"]], content)
    if read.empty:
        raise ValueError(f"{io.shown(path)!r} holds no rating.")
    absent = {"source": "", "question": "rating", "role": "system", "scenario": "all"}
    table = DataFrame({name: read.get(names[name], absent.get(name)) for name in COLUMNS})
    table["cluster"] = read[cluster].astype(str)
    for name in table.columns.drop("rating"):
        table[name] = table[name].str.strip().map(io.same_name)
    table["scenario"] = table["scenario"].replace("", "all")
    table["system"] = table["system"].str.removeprefix(CONTROL)
    table["is_system"] = table.pop("role") == "system"
    wrong = table.index[~np.isfinite(table["rating"]) | (table["cluster"] == "")]
    if len(wrong):
        raise ValueError(
            f"{io.shown(path)!r}, line {wrong[0]}: expected a rating, a finite number, and a "
            f"cluster ({cluster!r}). Leave rows without them out."
        )
    stimuli = table.groupby([*KEYS, "is_system"], sort=False)
    several = stimuli["cluster"].nunique() > 1
    if several.any():
        raise ValueError(
            f"cluster must be one for all ratings of a stimulus, but column {cluster!r} has "
            f"several for {dict(zip(KEYS, several.index[several][0]))}."
        )
    merged = stimuli.agg({"rating": "mean", "cluster": "first"}).reset_index()
    again = len(table) - len(merged)
    note = f"{again} rows repeated a stimulus and question, and were averaged"
    return Stimuli(merged, (note,) if again else ())


def join(
    outputs: DataFrame,
    ratings: Stimuli,
    *,
    sources: Mapping[str, str] | None = None,
    controls: bool = False,
) -> Stimuli:
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
    import pandas

    outputs = outputs.assign(**{n: outputs[n].map(io.same_name) for n in _NAMES})
    control = outputs["system"].str.startswith(CONTROL)
    # First the systems: one of the same name as a control is the one that is meant.
    scored = pandas.concat([outputs[~control], outputs[control & controls]])
    scored["system"] = scored["system"].str.removeprefix(CONTROL)
    wanted = ratings.table[controls | ratings.table["is_system"]]
    mapping = {io.same_name(k): io.same_name(v) for k, v in (sources or {}).items()}
    rated = wanted.groupby("track")["source"].unique()
    names: dict[tuple[str, str], str] = {}
    guessed: Counter[tuple[str, str]] = Counter()
    for track, own in scored.groupby("track", sort=False)["source"]:
        pairs, guesses = match_names(list(own.unique()), list(rated.get(track, ())), mapping)
        names |= {(str(track), found): rate for found, rate in pairs.items()}
        guessed.update(guesses.items())
    scored["source"] = [names.get(key) for key in zip(scored["track"], scored["source"])]
    scored = scored.dropna(subset="source").drop_duplicates(_NAMES)
    merged = wanted.merge(scored, on=_NAMES, how="left", indicator="_found")
    stimuli = merged[merged["_found"] == "both"].drop(columns="_found").reset_index(drop=True)
    if stimuli.empty:
        raise ValueError(
            f"no rating belongs to a scored output. The results have {_some(outputs)}; the ratings "
            f"{_some(ratings.table)}. Name sources with --source-map FOUND=RATED, take other "
            "columns with --columns, or keep references and anchors (in Python, controls=True)."
        )
    notes = [
        f"source {found!r} of the results taken as {rate or 'the rated one'!r} in {count} "
        "track(s); say otherwise with --source-map"
        for (found, rate), count in guessed.items()
    ]
    lost = merged[merged["_found"] != "both"]
    if len(lost):
        example = ", ".join(f"{name} {lost[name].iloc[0]!r}" for name in _NAMES)
        notes.append(f"{len(lost)} of {len(merged)} ratings have no scored output, e.g. {example}")
    return Stimuli(stimuli, (*notes, *ratings.notes))


def match_names(
    found: Sequence[str], rated: Sequence[str], mapping: Mapping[str, str]
) -> tuple[dict[str, str], dict[str, str]]:
    """Sources of the results -> sources of the ratings; and those of them that were guessed."""
    pairs = {name: mapping.get(name, name) for name in found}
    pairs = {name: rate for name, rate in pairs.items() if rate in rated}
    left = [name for name in rated if name not in pairs.values()]
    unpaired = [name for name in found if name not in pairs and name not in mapping]
    guessed: dict[str, str] = {}
    for rate in left:
        alike = [n for n in unpaired if rate and rate.lower() in re.split(r"[\W_]+", n.lower())]
        if len(alike) == 1:
            guessed[alike[0]] = rate
            unpaired.remove(alike[0])
    left = [name for name in left if name not in guessed.values()]
    if len(left) == 1 and len(unpaired) == 1:
        guessed[unpaired[0]] = left[0]
    return {**pairs, **guessed}, guessed


def _some(table: DataFrame) -> str:
    found = (f"{n}s {io.listed(map(repr, table[n].unique()), 3)}" for n in _NAMES)
    return ", ".join(found)
