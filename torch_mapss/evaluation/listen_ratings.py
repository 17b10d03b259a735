"""What listeners said: webMUSHRA's results, with the key of the test, as a table of ratings.

One row per stimulus and question, over listeners, higher is better: ``dataset, track, source,
system, question, role, mean_rating, n_ratings, std, median_rating, mean_norm, median_norm``, the
layout that ``torch-mapss correlate`` reads. ``track`` is the ``mixture_id``. ``mean_norm`` and
``median_norm`` are of ratings that were brought to 0..100 on every page of every listener first:
people use the scale differently.
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, NamedTuple

from torch_mapss.core.checks import warn_user
from torch_mapss.evaluation import io
from torch_mapss.evaluation.results import records

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


# ------------------------------------------------------------------------------------------------
# Files
# ------------------------------------------------------------------------------------------------


def read_ratings(paths: Sequence[str | os.PathLike[str]]) -> list[Rating]:
    """Read the files ``mushra.csv`` that webMUSHRA wrote.

    A listener is a ``session_uuid``; without that column, all columns of the participant's form
    together, and a condition of a page that comes again under them begins another listener.

    Args:
        paths: of the files.

    Returns:
        The ratings, in order.

    Warns:
        UserWarning: listeners that gave the same answers in the form, or sessions that rated a
            page again.

    Raises:
        ValueError: a file that cannot be read, without the columns, or with a rating that is no
            number from 0 to 100; names the line.
    """
    found: list[Rating] = []
    sessions = _Sessions()
    for path in paths:
        table = io.read_table(path, _NEEDED, ("rating_score",), "the mushra.csv of webMUSHRA")
        outside = table.index[~table["rating_score"].between(0.0, 100.0)]
        if len(outside):
            raise ValueError(
                f"{io.shown(path)!r}, line {outside[0]}: rating_score must be a number from 0 to "
                f"100, got {table['rating_score'][outside[0]]:g}."
            )
        for row in records(table):
            cell = row["session_test_id"], row["trial_id"], row["rating_stimulus"]
            who = sessions.listener(row, cell, path)
            found.append(Rating(cell[0].rpartition("-")[2], *cell[1:], who, row["rating_score"]))
    sessions.tell()
    return found


class _Sessions:
    """Who gave a rating."""

    def __init__(self) -> None:
        self.seen: dict[str, set[tuple[str, ...]]] = {}  # by name, in its present session
        self.number: dict[str, int] = {}
        self.alike: list[str] = []  # answers in the form that began another session
        self.again = 0  # ratings that came again under one session_uuid

    def listener(
        self, row: Mapping[str, Any], cell: tuple[str, ...], path: str | os.PathLike[str]
    ) -> str:
        """The name of the listener of a row; ``cell`` is test, page and condition."""
        if row.get("session_uuid"):
            name = row["session_uuid"]
            known = self.seen.setdefault(name, set())
            self.again += cell in known
            known.add(cell)
            return name
        answers = [text for column, text in row.items() if column not in _OF_A_RATING]
        name = "/".join(answers) if answers else io.shown(path)
        if cell in self.seen.setdefault(name, set()):
            self.seen[name].clear()
            self.number[name] = self.number.get(name, 1) + 1
            self.alike += [name] if answers else []
        self.seen[name].add(cell)
        number = self.number.get(name, 1)
        return name if number == 1 else f"{name} ({number})"

    def tell(self) -> None:
        if self.alike:
            warn_user(
                f"{len(self.alike)} sessions have the same answers in the form as one before them "
                f"(first {self.alike[0]!r}) and rate the same pages: they count as listeners of "
                "their own. A column session_uuid would tell."
            )
        if self.again:
            warn_user(
                f"{self.again} ratings were given again by the same session_uuid; a listener "
                "counts once, with the mean."
            )


def read_key(path: str | os.PathLike[str]) -> list[dict[str, str]]:
    """The rows of ``stimuli.csv``, the key of a test.

    Raises:
        FileNotFoundError, ValueError: as :func:`torch_mapss.evaluation.io.read_table`.
    """
    needed = ("page", "condition", "mixture_id", "source", "system", "role")
    content = "the stimuli.csv of a listening test"
    rows = records(io.read_table(path, needed, content=content))
    if not rows:
        raise ValueError(f"{io.shown(path)!r} should be {content}, but has no rows.")
    return rows


def mark_of(key: Sequence[Mapping[str, str]]) -> str:
    """The mark of a test, with which the ids of its pages begin; empty: made without one."""
    return key[0]["page"].rpartition("-")[0]


# ------------------------------------------------------------------------------------------------
# Tables
# ------------------------------------------------------------------------------------------------


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
        ValueError: ratings of another test, or a page or condition that is not in the key.
    """
    import pandas as pd

    stimuli = {(row["page"], row["condition"]): row for row in key}
    pages = {row["page"]: row for row in key}
    given = pd.DataFrame(ratings, columns=Rating._fields)
    known = [_known(one, stimuli, pages) for one in given[["page", "condition"]].itertuples()]
    cells = ("mixture_id", "source", "system", "role")
    given[["track", *cells[1:]]] = [[row[name] for name in cells] for row in known]
    # The same page rated again is another trial.
    trial = ["question", "page", "listener"]
    given["time"] = given.groupby([*trial, "condition"]).cumcount()
    scores = given.groupby([*trial, "time"])["score"]
    low, high = scores.transform("min"), scores.transform("max")
    given["norm"] = (100.0 * (given["score"] - low) / (high - low)).where(high > low)
    stimulus = ["question", "track", "source", "system", "role"]
    single = given.groupby([*stimulus, "listener"], sort=False)[["score", "norm"]].mean()
    over = single.groupby(stimulus, sort=False).agg(
        mean_rating=("score", "mean"),
        n_ratings=("score", "size"),
        std=("score", "std"),
        median_rating=("score", "median"),
        mean_norm=("norm", "mean"),
        median_norm=("norm", "median"),
    )
    over.insert(0, "dataset", dataset)
    single = single.rename(columns={"score": "rating"})
    return over.reset_index().to_dict("records"), single.reset_index().to_dict("records")


def _known(
    rating: Any,
    stimuli: Mapping[tuple[str, str], Mapping[str, str]],
    pages: Mapping[str, Mapping[str, str]],
) -> Mapping[str, str]:
    """The row of the key that a rating is of; the anchors, which webMUSHRA makes, have none."""
    page, condition = rating.page, rating.condition
    found = stimuli.get((page, condition))
    if found is None and condition in _ANCHORS and page in pages:
        return {**pages[page], "system": condition, "role": _ANCHORS[condition]}
    if found is not None:
        return found
    mark, own = page.rpartition("-")[0], mark_of([*pages.values()])
    if page not in pages and mark != own:
        raise ValueError(
            f"the ratings are of another test than this key: their page {page!r} has the mark "
            f"{mark!r}, the key has {own!r}. Read them with the stimuli.csv that was written with "
            "their test."
        )
    raise ValueError(
        f"page {page!r}, condition {condition!r} is not in the key. Give the stimuli.csv that was "
        "written with this test."
    )
