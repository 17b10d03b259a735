"""Are results what they say? Protocol, audio, tables and a few scores, done again.

* the protocol id is that of the stored settings;
* every audio file has the SHA-256 that was noted when it was scored;
* the tables are pooled from the frame scores, and from each other;
* some pairs, drawn at random, are scored again and give the same numbers.

Scores depend in their last digits on processor and library, hence the tolerance; a score that lies
further off was not made in this way.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import torch

from torch_mapss.core import pooling
from torch_mapss.evaluation import io
from torch_mapss.evaluation.manifest import short
from torch_mapss.evaluation.measures import present
from torch_mapss.evaluation.options import Request
from torch_mapss.evaluation.protocol import described, protocol_id, relevant
from torch_mapss.evaluation.report import versions
from torch_mapss.evaluation.results import Results, SystemFrames, records
from torch_mapss.evaluation.score import evaluate

if TYPE_CHECKING:
    from torch_mapss.pipeline.mapss import MAPSS

# Frames are kept in float32; what is pooled from them agrees to so much.
_ROUNDING = 1e-5
# Differences that are told one by one: of a set whose audio has moved, every file is one.
_PRINTED = 20


@dataclass(frozen=True)
class Verification:
    """What was compared, and what differs."""

    differences: tuple[str, ...]  # one line each; none: the results are what they say
    files: int  # audio files whose hash was compared
    rows: int  # rows of scores.csv redone from their frames
    scored: int  # estimates scored again
    largest: float = 0.0  # difference of a score from its row
    notes: tuple[str, ...] = ()  # what could not be compared and why, and what to do

    @property
    def compared(self) -> bool:
        """There was a score to compare."""
        return self.rows + self.scored > 0

    @property
    def passed(self) -> bool:
        """Some score was compared, and nothing differs."""
        return self.compared and not self.differences

    def summary(self) -> str:
        """What to print."""
        largest = f" (largest difference {self.largest:.2g})" if self.scored else ""
        lines = [
            f"{self.files} audio files compared by SHA-256, {self.rows} rows redone from their "
            f"frames, {self.scored} estimates scored again{largest}."
        ]
        lines += [f"differs: {line}" for line in self.differences[:_PRINTED]]
        if len(self.differences) > _PRINTED:
            lines.append(f"and {len(self.differences) - _PRINTED} differences more.")
        lines += [f"{note}." for note in self.notes]
        if not self.compared:
            lines.append("No score could be compared: nothing is verified.")
        elif not self.differences:
            lines.append("Nothing differs.")
        return "\n".join(lines)


def verify(
    results: Results,
    make_scorer: Callable[[], MAPSS] | None = None,
    request: Request | None = None,
    *,
    pairs: int = 3,
    tolerance: float = 1e-3,
    seed: int = 0,
) -> Verification:
    """Check results against their settings, audio and frames.

    Args:
        results: of :func:`~torch_mapss.evaluation.results.load_results`.
        make_scorer: makes the scorer that they claim; None leaves scoring out.
        request: what was asked of the scoring.
        pairs: of mixture and system to score again.
        tolerance: between a score and its row: absolute up to 1, relative beyond.
        seed: of which pairs.

    Returns:
        A :class:`Verification`.
    """
    differences, notes = list(_of_protocol(results)), list(_without_score(results))
    found, checked, gone = _of_audio(results)
    differences += found
    notes += [results.without_audio(gone, len(results.sha256))] if gone else []
    found, redone = _of_frames(results)
    differences += [*found, *_of_means(results)]
    scored, largest = 0, 0.0
    if make_scorer is not None and pairs > 0:
        scorer = make_scorer()
        unlike = list(_of_scorer(results, scorer))
        differences += unlike
        if unlike:  # then every score differs, which says nothing new
            notes.append("Nothing was scored again, as the settings differ")
        else:
            again = request or Request()
            found, scored, largest = _of_scores(results, scorer, again, pairs, tolerance, seed)
            differences += found
    return Verification(tuple(differences), checked, redone, scored, largest, tuple(notes))


def _without_score(results: Results) -> Iterator[str]:
    """Every reason why estimates have no score, with their number."""
    rows = results.scores[results.scores["status"] != "ok"]
    if rows.empty:
        return
    yield f"{len(rows)} of {len(results.scores)} estimates have no score"
    for (status, reason), own in rows.groupby(["status", "reason"], sort=False):
        yield f"  {len(own)} {status}{f': {reason}' if reason else ''}".removesuffix(".")


def _of_protocol(results: Results) -> Iterator[str]:
    found = protocol_id(results.settings)
    if results.protocol != found:
        yield (
            f"the protocol id is {results.protocol}, but that of the stored settings is {found}: "
            "one of them was changed"
        )


def _of_scorer(results: Results, scorer: MAPSS) -> Iterator[str]:
    measures = results.settings.get("measures")
    here = io.plain({**described(scorer, measures), "version": versions()["torch_mapss"]})
    stored = results.settings
    wanted = relevant({name: stored[name] for name in stored if name in here})
    made = relevant(here)
    for name in sorted({*wanted, *made}):
        if wanted.get(name) != made.get(name):
            yield (
                f"setting {name}: {short(wanted.get(name))} in the results, "
                f"{short(made.get(name))} here"
            )


def _of_audio(results: Results) -> tuple[list[str], int, list[str]]:
    """What differs, how many files were hashed, and those that are gone."""
    differences, checked, gone = [], 0, []
    if not results.sha256:
        return ["no hashes of audio files are noted"], 0, []
    for path, noted in results.sha256.items():
        try:
            found = io.sha256(results.locate(path))
        except OSError as error:
            differences.append(f"{path!r} cannot be read: {error.strerror}")
            gone.append(path)
            continue
        checked += 1
        if found != noted:
            differences.append(f"{path!r} is other audio than was scored")
    return differences, checked, gone


def _pairs(results: Results) -> dict[tuple[str, str], list[dict[str, Any]]]:
    """The rows of every mixture and system that did not fail."""
    found: dict[tuple[str, str], list[dict[str, Any]]] = {}
    for row in records(results.scores[results.scores["status"] != "failed"]):
        found.setdefault((row["mixture_id"], row["system"]), []).append(row)
    return found


def _of_frames(results: Results) -> tuple[list[str], int]:
    """The rows of scores.csv pooled from their frames again; how many there are."""
    differences: list[str] = []
    redone = 0
    frames: dict[str, Mapping[str, SystemFrames]] = {}
    for (mixture, system), rows in _pairs(results).items():
        try:
            if mixture not in frames:  # pairs of one mixture follow each other
                frames = {mixture: results.frames(mixture).systems}
        except ValueError as error:
            frames = {mixture: {}}
            differences.append(str(error))
        own = frames[mixture].get(system)
        where = f"scores.csv, mixture {mixture!r}, system {system!r}"
        if own is None or len(own.active) != len(rows):
            differences.append(f"{where}: has no frame scores")
            continue
        redone += len(rows)
        for name, pooled in _pooled(own).items():
            for row, made in zip(rows, pooled):
                if name in row and not _close(made, row[name], _ROUNDING):
                    of = f"{name} of {row['source']!r}"
                    differences.append(f"{where}, {of}: {row[name]}, its frames give {made}")
    return differences, redone


def _pooled(frames: SystemFrames) -> dict[str, list[float]]:
    """The columns of scores.csv, (S',) each, from frames."""
    active = torch.from_numpy(frames.active)
    scores = {name: torch.from_numpy(x).double() for name, x in frames.scores.items()}
    there = {name: active & ~x.isnan() for name, x in scores.items()}
    whole = {name: x.nan_to_num() for name, x in scores.items()}
    found = {name: pooling.masked_mean(x, there[name]) for name, x in whole.items()}
    if "fidelity" in scores:
        found["fidelity"] = pooling.pool_fidelity(whole["fidelity"], there["fidelity"], active)
    if "bleed_db" in scores:  # where the own source is silent, so that no frame is active
        heard = ~scores["bleed_db"].isnan()
        found["bleed_db"] = pooling.pool_power_db(whole["bleed_db"], heard)
    if "ps" in scores:
        found["ps_pesq"] = pooling.pool_separation(whole["ps"], active)
    if "log_pm" in scores:
        found["log_pm_compressed"] = pooling.pool_log_match_compressed(whole["log_pm"], active)
    return {name: values.tolist() for name, values in found.items()}


def _of_means(results: Results) -> Iterator[str]:
    """items.csv as means of scores.csv, and summary.csv as means of items.csv."""
    for file, table, below, keys in (
        ("items.csv", results.items, results.scores, ["mixture_id", "system"]),
        ("summary.csv", results.summary, results.items, ["system"]),
    ):
        names = [name for name in present(table.columns) if name in below]
        made = below.groupby(keys)[names].mean()
        for row in records(table):
            key = tuple(row[name] for name in keys)
            own = made.loc[key if len(keys) > 1 else key[0]] if len(below) else {}
            for name in names:
                if not _close(own[name], row[name], _ROUNDING):
                    where = ", ".join(f"{k.removesuffix('_id')} {row[k]!r}" for k in keys)
                    yield f"{file}, {where}, {name}: {row[name]}, its rows give {own[name]}"


def _close(one: float, other: float, tolerance: float) -> bool:
    return (one != one and other != other) or abs(one - other) <= tolerance * max(1.0, abs(other))


def _of_scores(
    results: Results, scorer: MAPSS, request: Request, pairs: int, tolerance: float, seed: int
) -> tuple[list[str], int, float]:
    """Some pairs, scored again."""
    rows = _pairs(results)
    chosen = random.Random(seed).sample(sorted(rows), min(pairs, len(rows)))
    differences, scored, largest = [], 0, 0.0
    for mixture, system in chosen:
        entry, where = results.entries[mixture], f"mixture {mixture!r}, system {system!r}"
        paths = [None if p is None else results.locate(p) for p in entry["systems"][system]]
        try:
            report = evaluate(
                estimates=paths,
                references=results.audio(mixture).references,
                mapss=scorer,
                mixture_id=mixture,
                **{**request._asdict(), "bounds": False},
            )
        except (OSError, ValueError) as error:
            differences.append(f"{where} cannot be scored again: {error}")
            continue
        scored += len(report.rows)
        for row, made in zip(rows[mixture, system], report.rows):
            found = {name: (row[name], made[name]) for name in present(row)}
            for name, (old, new) in found.items():
                largest = max(largest, abs(new - old) / max(1.0, abs(old)))  # not a NaN
                if not _close(new, old, tolerance):
                    of = f"{name} of {row['source']!r}"
                    differences.append(f"{where}, {of}: {old:.6g} in the table, {new:.6g} now")
    return differences, scored, largest
