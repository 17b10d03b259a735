"""Are results what they say? Protocol, audio, tables and a few scores, done again.

Scores depend in their last digits on processor and library, hence the tolerance; a score that lies
further off was not made in this way.
"""

from __future__ import annotations

import os
import random
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import TYPE_CHECKING, NamedTuple

import numpy as np
import torch
from pandas.api.types import is_numeric_dtype

from torch_mapss.core.checks import differing
from torch_mapss.evaluation import io, pooled
from torch_mapss.evaluation.manifest import short
from torch_mapss.evaluation.protocol import protocol_id, relevant, settings_of
from torch_mapss.evaluation.records import SystemFrames
from torch_mapss.evaluation.results import Results
from torch_mapss.evaluation.score import evaluate
from torch_mapss.evaluation.settings import scoring_settings
from torch_mapss.pipeline.measures import checked_measures
from torch_mapss.pipeline.scores import Scores
from torch_mapss.score_table import SCORES, present

if TYPE_CHECKING:
    from pandas import DataFrame

    from torch_mapss.pipeline.mapss import MAPSS

# Between a number and its like made again, relative beyond 1: frames are stored in float32; scores
# differ between machines.
_ROUNDING, _TOLERANCE = 1e-5, 1e-3
# Differences that are told one by one: of a set whose audio has moved, every file is one.
_PRINTED = 20
_PAIR = ["mixture_id", "system"]
_ROW = [*_PAIR, "source"]


class Verification(NamedTuple):
    """What was compared, and what differs."""

    differences: Sequence[str]  # none: the results are what they say
    files: int  # audio files whose hash was compared
    rows: int  # rows of scores.csv redone from their frames
    scored: int = 0  # estimates scored again
    largest: float = 0.0  # difference of a score from its row
    notes: Sequence[str] = ()  # what could not be compared and why, and what to do

    @property
    def passed(self) -> bool:
        """Some score was compared, and nothing differs."""
        return self.rows + self.scored > 0 and not self.differences

    def summary(self) -> str:
        """What to print."""
        largest = f" (largest difference {self.largest:.2g})" if self.scored else ""
        lines = [
            f"{self.files} audio files compared by SHA-256, {self.rows} rows redone from their "
            f"frames, {self.scored} estimates scored again{largest}.",
            *(f"differs: {one}" for one in self.differences[:_PRINTED]),
        ]
        if len(self.differences) > _PRINTED:
            lines.append(f"and {len(self.differences) - _PRINTED} differences more.")
        lines += [f"{note}." for note in self.notes]
        if not self.rows + self.scored:
            lines.append("No score could be compared: nothing is verified.")
        elif self.passed:
            lines.append("Nothing differs.")
        return "\n".join(lines)


def verify(
    results: Results, make_scorer: Callable[[], MAPSS] | None = None, *, pairs: int = 3
) -> Verification:
    """Check results against their settings, audio and frames.

    Args:
        results: of :func:`~torch_mapss.evaluation.results.load_results`.
        make_scorer: makes the scorer that they claim; None leaves scoring out.
        pairs: of mixture and system, drawn at random, to score again.
    """
    tables = {name: _exported(results, name) for name in ("scores", "items", "summary")}
    scores = tables["scores"]
    stored = scores[scores["status"] != "failed"].set_index(_ROW)
    found, gone = _of_files(results)
    again = _joined(_from_frames(results, found))
    found += _of_table("scores.csv", stored, again, _ROUNDING)
    for file, table, below, keys in (
        ("items.csv", tables["items"], scores, _PAIR),
        ("summary.csv", tables["summary"], tables["items"], ["system"]),
    ):
        means = below.groupby(keys)[[*present(below.columns)]].mean()
        found += _of_table(file, table.set_index(keys), means, _ROUNDING)
    files, rows = len(results.sha256) - len(gone), int(stored.index.isin(again.index).sum())
    notes = [*_without_score(scores)]
    notes += [results.without_audio(gone, len(results.sha256))] if gone else []
    if make_scorer is None or pairs < 1:
        return Verification(found, files, rows, notes=notes)
    scorer = make_scorer()
    here = relevant(settings_of(scorer, scoring_settings(results.settings)))
    if unlike := [*differing(relevant(results.settings), here)]:  # then every score differs
        found += [_difference(f"setting {name}", *map(short, both)) for name, *both in unlike]
        notes.append("Nothing was scored again, as the settings differ")
        return Verification(found, files, rows, notes=notes)
    again = _joined(_scored_again(results, scorer, pairs, found))
    own = stored[stored.index.isin(again.index)]
    found += _of_table("scored again", own, again, _TOLERANCE)
    largest = _distances(own, again).to_numpy(float).max(initial=0.0)
    return Verification(found, files, rows, len(again), float(largest), notes)


def _exported(results: Results, name: str) -> DataFrame:
    """A table as it was exported; where it was not yet, as the records tell it."""
    path = os.path.join(results.folder, f"{name}.csv")
    table: DataFrame = getattr(results, name)
    if not os.path.exists(path):
        return table
    words = [column for column in table if not is_numeric_dtype(table[column])]
    return io.read_table(path, ["system"], content="a table of results", text=words)


def _without_score(scores: DataFrame) -> Iterator[str]:
    """Every reason why estimates have no score, with their number."""
    rows = scores[scores["status"] != "ok"]
    if rows.empty:
        return
    yield f"{len(rows)} of {len(scores)} estimates have no score"
    for (status, reason), own in rows.groupby(["status", "reason"], sort=False):
        yield f"  {len(own)} {status}{f': {reason}' if reason else ''}".removesuffix(".")


def _difference(what: str, stored: str, found: str) -> str:
    return f"{what}: {stored} in the results, {found} here"


def _of_files(results: Results) -> tuple[list[str], list[str]]:
    """Differences of the protocol id and of audio files, and those of the files that are gone."""
    gone = []
    found = {"protocol id of the settings": (str(results.protocol), protocol_id(results.settings))}
    if not results.sha256:
        found["hashes of audio files"] = ("none", "nothing to compare")
    for path, noted in results.sha256.items():
        try:
            here = io.sha256(results.locate(path))
        except OSError as error:
            here = f"cannot be read ({error.strerror})"
            gone.append(path)
        found[f"SHA-256 of {path!r}"] = (noted, here)
    return [_difference(what, *both) for what, both in found.items() if both[0] != both[1]], gone


def _of_table(file: str, stored: DataFrame, again: DataFrame, tolerance: float) -> Iterator[str]:
    """Scores of a table that were made again under the same index, and are not the same."""
    distances = _distances(stored, again)
    for row, column in zip(*(distances > tolerance).to_numpy().nonzero()):
        name, key = distances.columns[column], stored.index[row]
        values = key if isinstance(key, tuple) else (key,)
        where = [f"{str(k).removesuffix('_id')} {v!r}" for k, v in zip(stored.index.names, values)]
        old, new = stored.loc[key, name], again[name].get(key, float("nan"))
        yield _difference(", ".join([file, *where, name]), f"{old:.6g}", f"{new:.6g}")


def _distances(stored: DataFrame, again: DataFrame) -> DataFrame:
    """How far scores lie off, relative beyond 1; infinitely where one of them is undefined."""
    old = stored[[name for name in present(stored.columns) if name in again]]
    new = again.reindex(old.index)[[*old.columns]]
    found = ((new - old).abs() / old.abs().clip(lower=1.0)).fillna(float("inf"))
    return found.mask(old.isna() & new.isna(), 0.0)


def _joined(tables: Iterable[DataFrame]) -> DataFrame:
    """Rows by mixture, system and source."""
    import pandas

    return pandas.concat([*tables] or [pandas.DataFrame(columns=_ROW)]).set_index(_ROW)


def _from_frames(results: Results, differences: list[str]) -> Iterator[DataFrame]:
    """The rows of scores.csv, pooled from their frames again."""
    measures = checked_measures(scoring_settings(results.settings).pipeline_measures)
    for mixture in results.mixtures:
        try:
            systems = results.frames(mixture).systems
        except ValueError as error:
            what = f"frames of mixture {mixture!r}"
            differences.append(_difference(what, "scores", str(error)))
            continue
        names = np.array(results.audio(mixture).sources)
        for system, frames in systems.items():
            table, source = pooled.columns(_scores(frames, measures)), names[frames.attributed]
            yield table.assign(mixture_id=mixture, system=system, source=source)


def _scores(frames: SystemFrames, measures: tuple[str, ...]) -> Scores:
    """Frames of a file as they came out of the scorer."""
    values = {name: torch.from_numpy(x).double()[None] for name, x in frames.scores.items()}
    defined_fields = {name: SCORES[name].defined_field for name in values}
    defined = {
        field: ~values[name].isnan() for name, field in defined_fields.items() if field != "active"
    }
    values |= {name: x.nan_to_num() for name, x in values.items() if name != "bleed_db"}
    active = torch.from_numpy(frames.active)[None]
    return Scores(active, torch.empty(0), measures, **values, **defined)


def _scored_again(
    results: Results, scorer: MAPSS, pairs: int, differences: list[str]
) -> Iterator[DataFrame]:
    """Rows of some pairs, drawn at random."""
    scored = results.scores[results.scores["status"] != "failed"]
    known = sorted({*scored[_PAIR].itertuples(index=False, name=None)})
    request = scoring_settings(results.settings)._replace(bounds=False)._asdict()
    for mixture, system in random.Random(0).sample(known, min(pairs, len(known))):
        audio, paths = results.audio(mixture), results.entries[mixture]["systems"][system]
        try:
            report = evaluate(
                estimates=[None if path is None else results.locate(path) for path in paths],
                references=audio.references,
                names=audio.sources,
                mapss=scorer,
                mixture_id=mixture,
                **request,
            )
        except (OSError, ValueError) as error:
            what = f"mixture {mixture!r}, system {system!r}, scored again"
            differences.append(_difference(what, "scores", str(error)))
        else:
            yield report.scores.assign(mixture_id=mixture, system=system)
