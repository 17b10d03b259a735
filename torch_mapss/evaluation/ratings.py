"""Ratings by listeners, and their assignment to the stimuli of a results folder.

A ratings table is a CSV file with one row per stimulus and question, in the columns of
:data:`READ_COLUMNS` (others can be named). Stimuli are identified by track (the manifest's
``mixture_id``), system and source; names that differ only in their Unicode form are the same.
"""

from __future__ import annotations

import os
import re
from collections import Counter
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from torch_mapss.evaluation.csv_input import read_csv_table
from torch_mapss.evaluation.io import listed, same_name, shown
from torch_mapss.evaluation.manifest import CONTROL

if TYPE_CHECKING:
    from pandas import DataFrame

READ_COLUMNS = ("track", "system", "source", "question", "role", "scenario", "rating")
"""Columns of a rating -> default names in the file, where ``rating`` is ``mean_rating``."""

KEYS = ("scenario", "question", "track", "source", "system")
"""Columns that identify a stimulus and question."""

_STIMULUS = ["track", "system", "source"]
# Defaults for columns that a file lacks.
_DEFAULTS = {"source": "", "question": "rating", "role": "system", "scenario": "all"}


def load_ratings(
    path: str | os.PathLike[str], columns: Mapping[str, str] | None = None, cluster: str = "track"
) -> tuple[DataFrame, tuple[str, ...]]:
    """Read a table of ratings, higher is better.

    Args:
        path: a CSV file with a header, see
            :func:`torch_mapss.evaluation.csv_input.read_csv_table`.
        columns: names of the file's columns if they differ from :data:`READ_COLUMNS`, e.g.
            ``{"track": "item", "rating": "mos"}``. ``source``, ``question``, ``role`` and
            ``scenario`` may be absent.
        cluster: column whose values are resampled together, e.g. ``"talker"``.

    Returns:
        A row per stimulus and question: `KEYS`, is_system (False for hidden references and
        anchors), rating and cluster. Repeated rows are averaged, which a note reports.

    Raises:
        FileNotFoundError: the file does not exist.
        ValueError: columns are missing, a rating is not a number, there is no rating, or a stimulus
            is in two clusters.
    """
    unknown = sorted({*(columns or {})} - {*READ_COLUMNS})
    if unknown:
        raise ValueError(f"columns must be of {', '.join(READ_COLUMNS)}, got {', '.join(unknown)}.")
    names = {name: name for name in READ_COLUMNS} | {"rating": "mean_rating"} | dict(columns or {})
    cluster = names.get(cluster, cluster)
    table = _read(path, names, [*(columns or {})], cluster)
    invalid = table.index[~np.isfinite(table["rating"]) | (table["cluster"] == "")]
    if len(invalid):
        raise ValueError(
            f"{shown(path)!r}, line {invalid[0]}: expected a rating, a finite number, and a "
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
    repeated = len(table) - len(merged)
    note = f"{repeated} rows repeated a stimulus and question, and were averaged"
    return merged, (note,) if repeated else ()


def _read(
    path: str | os.PathLike[str], names: Mapping[str, str], renamed: Sequence[str], cluster: str
) -> DataFrame:
    """The rows of a file: `KEYS`, rating, cluster and is_system.

    Args:
        path: path of the file.
        names: the file's column for each of :data:`READ_COLUMNS`.
        renamed: columns that the user named, which must exist.
        cluster: the file's column of clusters.
    """
    from pandas import DataFrame

    required = [names[name] for name in ("track", "system", "rating", *renamed)]
    content = "a table of ratings (--columns track=item says which column is which)"
    columns = [*dict.fromkeys([*required, cluster])]
    rows = read_csv_table(path, columns, [names["rating"]], content)
    if rows.empty:
        raise ValueError(f"{shown(path)!r} holds no rating.")
    filled = {name: rows.get(names[name], _DEFAULTS.get(name)) for name in READ_COLUMNS}
    table = DataFrame(filled).assign(cluster=rows[cluster].astype(str))
    for name in table.columns.drop("rating"):
        table[name] = table[name].str.strip().map(same_name)
    table["scenario"] = table["scenario"].replace("", "all")
    table["system"] = table["system"].str.removeprefix(CONTROL)
    table["is_system"] = table.pop("role") == "system"
    return table


def join(
    outputs: DataFrame,
    ratings: DataFrame,
    *,
    sources: Mapping[str, str] | None = None,
    controls: bool = False,
) -> tuple[DataFrame, tuple[str, ...]]:
    """Join every rating with its scores.

    Sources have the same name in both, or the one that ``sources`` states. Otherwise names are
    compared word by word (``ref_bass`` is ``bass``), and if a track has one source left on each
    side, these two are matched; the notes list such matches.

    Args:
        outputs: ``track``, ``system``, ``source`` and any columns, as scores; a row per output.
        ratings: table that `load_ratings` returns.
        sources: name in the results -> name in the ratings.
        controls: keep hidden references and anchors (systems ``control:NAME`` of the manifest).

    Returns:
        The ratings with the columns of their outputs, and notes on guesses and omissions.

    Raises:
        ValueError: no rating has scores.
    """
    rated = ratings[controls | ratings["is_system"]]
    scored, guesses = _with_rated_sources(_scored_stimuli(outputs, controls), rated, sources or {})
    merged = rated.merge(scored, on=_STIMULUS, how="left", indicator="_match")
    stimuli = merged[merged["_match"] == "both"].drop(columns="_match").reset_index(drop=True)
    if stimuli.empty:
        raise ValueError(
            f"no rating belongs to a scored output. The results have {_names_of(outputs)}; the "
            f"ratings {_names_of(ratings)}. Name sources with --source-map FOUND=RATED, take "
            "other columns with --columns, or keep references and anchors (in Python, "
            "controls=True)."
        )
    notes = [
        f"source {source!r} of the results taken as {rated_source or 'the rated one'!r} in {count} "
        "track(s); correct it with --source-map"
        for (source, rated_source), count in guesses.items()
    ]
    lost = merged[merged["_match"] != "both"]
    if len(lost):
        example = ", ".join(f"{name} {lost[name].iloc[0]!r}" for name in _STIMULUS)
        notes.append(f"{len(lost)} of {len(merged)} ratings have no scored output, e.g. {example}")
    return stimuli, tuple(notes)


def _scored_stimuli(outputs: DataFrame, controls: bool) -> DataFrame:
    """Outputs with the names that ratings use; controls come after systems, or are left out."""
    import pandas

    outputs = outputs.assign(**{name: outputs[name].map(same_name) for name in _STIMULUS})
    control = outputs["system"].str.startswith(CONTROL)
    # Systems come first, so that they win if a control has the name of a system.
    scored = pandas.concat([outputs[~control], outputs[control & controls]])
    return scored.assign(system=scored["system"].str.removeprefix(CONTROL))


def _with_rated_sources(
    scored: DataFrame, rated: DataFrame, sources: Mapping[str, str]
) -> tuple[DataFrame, Counter[tuple[str, str]]]:
    """Outputs with the ratings' names of sources, and the number of guesses for each."""
    mapping = {same_name(name): same_name(rated_name) for name, rated_name in sources.items()}
    rated_sources = rated.groupby("track")["source"].unique()
    names: dict[tuple[str, str], str] = {}
    guesses: Counter[tuple[str, str]] = Counter()
    for track, track_sources in scored.groupby("track", sort=False)["source"]:
        names_of_track = list(rated_sources.get(track, ()))
        matched, guessed = match_names(list(track_sources.unique()), names_of_track, mapping)
        names |= {(str(track), name): rated_name for name, rated_name in matched.items()}
        guesses.update(guessed.items())
    keys = zip(scored["track"], scored["source"])
    rated_names: Any = [names.get(key) for key in keys]
    scored = scored.assign(source=rated_names)
    return scored.dropna(subset="source").drop_duplicates(_STIMULUS), guesses


def match_names(
    scored: Sequence[str], rated: Sequence[str], mapping: Mapping[str, str]
) -> tuple[dict[str, str], dict[str, str]]:
    """Sources of the results -> sources of the ratings, and the set of guessed ones."""
    mapped = {name: mapping.get(name, name) for name in scored}
    matched = {name: rated_name for name, rated_name in mapped.items() if rated_name in rated}
    unmatched = [name for name in scored if name not in matched and name not in mapping]
    guessed: dict[str, str] = {}
    for rated_name in rated:
        if rated_name in matched.values() or not rated_name:
            continue
        similar = [name for name in unmatched if rated_name.lower() in _words(name)]
        if len(similar) == 1:
            guessed[similar[0]] = rated_name
            unmatched.remove(similar[0])
    taken = {*matched.values(), *guessed.values()}
    unrated = [rated_name for rated_name in rated if rated_name not in taken]
    if len(unrated) == 1 and len(unmatched) == 1:
        guessed[unmatched[0]] = unrated[0]
    return {**matched, **guessed}, guessed


def _words(name: str) -> list[str]:
    return re.split(r"[\W_]+", name.lower())


def _names_of(table: DataFrame) -> str:
    texts = (f"{name}s {listed(map(repr, table[name].unique()), 3)}" for name in _STIMULUS)
    return ", ".join(texts)
