"""Conversion of webMUSHRA's results, with the key of the test, to a table of ratings.

One row of :data:`RATING_COLUMNS` per stimulus and question, over listeners, higher is better, as
``torch-mapss correlate`` reads it. ``track`` is the ``mixture_id``. ``mean_norm`` and
``median_norm`` use ratings that were first stretched to 0..100 on every page of every listener,
since people use the scale differently.
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from typing import TYPE_CHECKING

from torch_mapss.core.checks import warn_user
from torch_mapss.evaluation.csv_input import read_csv_table
from torch_mapss.evaluation.io import listed, shown

if TYPE_CHECKING:
    from pandas import DataFrame, Series

RATING_COLUMNS = (
    *("dataset", "track", "source", "system", "question", "role", "mean_rating", "n_ratings"),
    *("std", "median_rating", "mean_norm", "median_norm"),
)
LISTENER_COLUMNS = ("question", "track", "source", "system", "listener", "rating", "norm")
# Sounds that webMUSHRA adds, which the key lacks, and their roles.
_ANCHORS = {"anchor35": "anchor_35", "anchor70": "anchor_70"}
_CELL = ["session_test_id", "trial_id", "rating_stimulus"]  # test, page and condition
# Columns of a rating; all others belong to the form that the listener filled in.
_OF_A_RATING = (*_CELL, "rating_score", "rating_time", "rating_comment", "session_uuid")


def read_ratings(paths: Sequence[str | os.PathLike[str]]) -> DataFrame:
    """Read the files ``mushra.csv`` that webMUSHRA wrote.

    A listener is identified by ``session_uuid``; without that column, by all columns of the
    participant's form together, and a repeated condition of a page then counts as another
    listener's.

    Returns:
        One row per rating: ``question``, ``page``, ``condition``, ``listener``, ``score``.

    Warns:
        UserWarning: listeners gave the same answers in the form, or sessions rated a page again.

    Raises:
        ValueError: a file cannot be read, lacks columns, or has a rating that is not a number from
            0 to 100; names the line.
    """
    import pandas

    ratings = pandas.concat([_read_file(path) for path in paths], ignore_index=True)
    if ratings.empty:
        raise ValueError(
            f"{listed([repr(shown(path)) for path in paths], 3)} holds no rating: expected the "
            "mushra.csv of webMUSHRA, with a row for every rating that a listener gave."
        )
    ratings["listener"] = _listeners(ratings)
    ratings["question"] = ratings["session_test_id"].str.split("-").str[-1]
    names = {"trial_id": "page", "rating_stimulus": "condition", "rating_score": "score"}
    return ratings.rename(columns=names)[["question", *names.values(), "listener"]]


def _read_file(path: str | os.PathLike[str]) -> DataFrame:
    """Ratings of a file, with ``uuid`` and the answers in the ``form``, empty where missing.

    Raises:
        ValueError: as :func:`read_ratings`.
    """
    needed = (*_CELL, "rating_score")
    table = read_csv_table(path, needed, needed[-1:], "the mushra.csv of webMUSHRA")
    outside = table["rating_score"][~table["rating_score"].between(0.0, 100.0)]
    if len(outside):
        raise ValueError(
            f"{shown(path)!r}, line {outside.index[0]}: rating_score must be a number from "
            f"0 to 100, got {outside.iloc[0]:g}."
        )
    form = table.drop(columns=[*_OF_A_RATING], errors="ignore")
    answers = ["/".join(row) for row in form.to_numpy()]
    uuid = table.get("session_uuid", "")
    return table[[*needed]].assign(form=answers, uuid=uuid, file=shown(path))


def _listeners(ratings: DataFrame) -> Series:
    """Listener of each rating."""
    has_uuid, has_form = ratings["uuid"] != "", ratings["form"] != ""
    answers = ratings["form"].where(has_form, ratings["file"])
    listeners = ratings["uuid"].where(has_uuid, answers)
    cells = ratings[_CELL].assign(listener=listeners)
    number = cells.groupby(["listener", *_CELL]).cumcount() + 1
    if repeated := int((has_uuid & (number > 1)).sum()):
        warn_user(
            f"{repeated} ratings were given again by the same session_uuid; a listener counts "
            "once, with the mean."
        )
    another = ~has_uuid & (number > 1)  # the same answers in somebody else's session
    listeners = listeners.mask(another, listeners + " (" + number.astype(str) + ")")
    same_form = ratings.assign(listener=listeners)[another & has_form]
    same_form = same_form.drop_duplicates("listener")
    if len(same_form):
        warn_user(
            f"{len(same_form)} sessions have the same answers in the form as one before them "
            f"(first {same_form['form'].iloc[0]!r}) and rate the same pages: they are "
            "counted as separate listeners; a session_uuid column would settle it."
        )
    return listeners


def read_key(path: str | os.PathLike[str]) -> DataFrame:
    """Read ``stimuli.csv``, the key of a test.

    Raises:
        FileNotFoundError, ValueError: as :func:`torch_mapss.evaluation.csv_input.read_csv_table`.
    """
    needed = ("page", "condition", "mixture_id", "source", "system", "role")
    content = "the stimuli.csv of a listening test"
    key = read_csv_table(path, needed, content=content)
    if key.empty:
        raise ValueError(f"{shown(path)!r} should be {content}, but has no rows.")
    return key


def mark_of(key: DataFrame) -> str:
    """Mark of a test, with which the ids of its pages begin; "" if it has none."""
    return str(key["page"].iloc[0]).rpartition("-")[0]


def rating_tables(ratings: DataFrame, key: DataFrame) -> tuple[DataFrame, DataFrame]:
    """Tables of ratings per stimulus and per listener, with names from the key of the test.

    Returns:
        Tables of :data:`RATING_COLUMNS` and of :data:`LISTENER_COLUMNS`.

    Raises:
        ValueError: the ratings are of another test, or a page or condition is not in the key.
    """
    import pandas

    pages = key.drop_duplicates("page")
    anchors = [pages.assign(condition=n, system=n, role=role) for n, role in _ANCHORS.items()]
    conditions = pandas.concat([key, *anchors]).rename(columns={"mixture_id": "track"})
    stimulus, cell = ["track", "source", "system", "role"], ["page", "condition"]
    conditions = conditions.drop_duplicates(cell)[[*cell, *stimulus]]
    named = ratings.merge(conditions, how="left", on=cell)
    if unknown := named.loc[named["track"].isna(), cell].to_numpy().tolist():
        raise ValueError(
            f"page {unknown[0][0]!r}, condition {unknown[0][1]!r} is not in the key, whose pages "
            f"begin with {mark_of(key)!r}: the ratings are of another test. Give the stimuli.csv "
            "that was written with it."
        )
    trial = ["question", "page", "listener"]
    # The same page rated again is another trial.
    trial = [*trial, named.groupby([*trial, "condition"]).cumcount()]
    scores = named.groupby(trial)["score"]
    low, high = scores.transform("min"), scores.transform("max")
    named["norm"] = (100.0 * (named["score"] - low) / (high - low)).where(high > low)
    stimulus = ["question", *stimulus]
    single = named.groupby([*stimulus, "listener"], sort=False)[["score", "norm"]].mean()
    means = {"mean_rating": ("score", "mean"), "n_ratings": ("score", "size")}
    means |= {"std": ("score", "std"), "median_rating": ("score", "median")}
    means |= {"mean_norm": ("norm", "mean"), "median_norm": ("norm", "median")}
    over_listeners = single.groupby(stimulus, sort=False).agg(**means)
    listeners = single.rename(columns={"score": "rating"}).reset_index()
    stimuli = over_listeners.reset_index().assign(dataset="listening")
    return stimuli[[*RATING_COLUMNS]], listeners[[*LISTENER_COLUMNS]]
