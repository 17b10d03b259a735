"""Are results what they say? Protocol, audio, tables and a few scores, done again.

* the protocol id is that of the stored settings;
* every audio file has the SHA-256 that was noted when it was scored;
* the tables are the means of the frame scores, and of each other;
* some pairs, drawn at random, are scored again and give the same numbers.

Scores depend in their last digits on processor and library, hence the tolerance; a score that lies
further off was not made in this way.
"""

from __future__ import annotations

import math
import random
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import numpy as np

from torch_mapss.evaluation import io
from torch_mapss.evaluation.manifest import short
from torch_mapss.evaluation.measures import present
from torch_mapss.evaluation.options import Request
from torch_mapss.evaluation.protocol import described, protocol_id, relevant
from torch_mapss.evaluation.report import versions
from torch_mapss.evaluation.results import Results, records
from torch_mapss.evaluation.score import evaluate

if TYPE_CHECKING:
    from torch_mapss.pipeline.mapss import MAPSS

# Frames are kept in float32; means over them agree to so much.
_ROUNDING = 1e-5
# Differences that are told one by one: of a set whose audio has moved, every file is one.
_PRINTED = 20


@dataclass(frozen=True)
class Verification:
    """What was looked at, and what differs."""

    differences: tuple[str, ...]  # one line each; none: the results are what they say
    files: int  # audio files whose hash was compared
    rows: int  # rows of scores.csv redone from their frames
    scored: int  # estimates scored again
    largest: float = field(default=0.0)  # difference of a score from its row
    estimates: int = 0  # rows of scores.csv, those without a score included
    advice: str = ""  # what to do about audio that is not there

    @property
    def compared(self) -> bool:
        """There was a score to look at."""
        return self.rows > 0

    @property
    def passed(self) -> bool:
        """Something was compared, and nothing differs."""
        return self.compared and not self.differences

    def summary(self) -> str:
        """What to print."""
        lines = [
            f"{self.files} audio files compared by SHA-256, {self.rows} rows redone from their "
            f"frames, {self.scored} estimates scored again"
            + (f" (largest difference {self.largest:.2g})." if self.scored else ".")
        ]
        lines += [f"differs: {line}" for line in self.differences[:_PRINTED]]
        if len(self.differences) > _PRINTED:
            lines.append(f"and {len(self.differences) - _PRINTED} differences more.")
        lines += [f"{self.advice}."] if self.advice else []
        if not self.compared:
            lines.append(
                f"There was no score to compare: none of {self.estimates} estimates has one. The "
                "column `reason` of scores.csv says why; mend that, and score the set again."
            )
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
        tolerance: between a score and its row: absolute for PS and PM, relative beyond 1.
        seed: of which pairs.

    Returns:
        A :class:`Verification`.
    """
    differences = list(_of_protocol(results))
    found, checked, gone = _of_audio(results)
    differences += found
    advice = results.without_audio(gone, len(results.sha256)) if gone else ""
    found, redone = _of_tables(results)
    differences += found
    scored, largest = 0, 0.0
    if make_scorer is not None and pairs > 0:
        scorer = make_scorer()
        unlike = list(_of_scorer(results, scorer))
        differences += unlike
        if not unlike:  # else every score differs, which says nothing new
            found, scored, largest = _of_scores(
                results, scorer, request or Request(), pairs, tolerance, seed
            )
            differences += found
    estimates = len(results.scores)
    return Verification(tuple(differences), checked, redone, scored, largest, estimates, advice)


def _of_protocol(results: Results) -> Iterator[str]:
    found = protocol_id(results.settings)
    if results.protocol != found:
        yield (
            f"the protocol id is {results.protocol}, but that of the stored settings is {found}: "
            "one of them was changed"
        )


def _of_scorer(results: Results, scorer: MAPSS) -> Iterator[str]:
    here = io.plain({**described(scorer), "version": versions()["torch_mapss"]})
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
        place = results.locate(path)
        try:
            found = io.sha256(place)
        except OSError as error:
            differences.append(f"{path!r} cannot be read: {error.strerror}")
            gone.append(path)
            continue
        checked += 1
        if found != noted:
            differences.append(f"{path!r} is other audio than was scored")
    return differences, checked, gone


def _of_tables(results: Results) -> tuple[list[str], int]:
    """Frames to rows to items to sets."""
    differences: list[str] = []
    rows: dict[tuple[str, str], list[Mapping[str, Any]]] = {}
    for row in records(results.scores):
        rows.setdefault((row["mixture_id"], row["system"]), []).append(row)
    redone = 0
    for mixture in results.mixtures:
        try:
            frames = results.frames(mixture).systems
        except ValueError as error:
            differences.append(str(error))
            continue
        for system, own in rows.items():
            if system[0] != mixture or own[0]["status"] == "failed":
                continue
            redone += len(own)
            differences += _of_frames(own, frames.get(system[1]))
    for item in records(results.items):
        own = rows.get((item["mixture_id"], item["system"]), [])
        where = f"items.csv, mixture {item['mixture_id']!r}, system {item['system']!r}"
        differences += _of_means(where, item, own)
    for one in records(results.summary):
        items = [item for item in records(results.items) if item["system"] == one["system"]]
        differences += _of_means(f"summary.csv, system {one['system']!r}", one, items)
    return differences, redone


def _of_frames(rows: Sequence[Mapping[str, Any]], frames: Any) -> Iterator[str]:
    first = rows[0]
    where = f"scores.csv, mixture {first['mixture_id']!r}, system {first['system']!r}"
    if frames is None or len(frames.active) != len(rows):
        yield f"{where}: has no frame scores"
        return
    for place, row in enumerate(rows):
        active = frames.active[place]
        for name in {"clearance", "ps", "pm", "log_pm", "foreign_distance"} & set(frames.scores):
            values = frames.scores[name][place][active].astype(np.float64)
            values = values[~np.isnan(values)]
            made = float(values.mean()) if len(values) else math.nan
            if not _close(made, row[name], _ROUNDING):
                yield f"{where}, {name} of {row['source']!r}: {row[name]}, its frames give {made}"


def _of_means(
    where: str, row: Mapping[str, Any], below: Sequence[Mapping[str, Any]]
) -> Iterator[str]:
    for name in present(row):
        found = [other[name] for other in below if not math.isnan(other[name])]
        made = sum(found) / len(found) if found else math.nan
        if not _close(made, row[name], _ROUNDING):
            yield f"{where}, {name}: {row[name]}, its rows give {made}"


def _close(one: float, other: float, tolerance: float) -> bool:
    return (one != one and other != other) or abs(one - other) <= tolerance * max(1.0, abs(other))


def _of_scores(
    results: Results,
    scorer: MAPSS,
    request: Request,
    pairs: int,
    tolerance: float,
    seed: int,
) -> tuple[list[str], int, float]:
    """Some pairs, scored again."""
    rows: dict[tuple[str, str], list[Mapping[str, Any]]] = {}
    for row in records(results.scores):
        if row["status"] != "failed":
            rows.setdefault((row["mixture_id"], row["system"]), []).append(row)
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
        for row, made in zip(rows[mixture, system], report.rows):
            scored += 1
            for name in present(row):
                found = made[name]
                distance = abs(found - row[name]) / max(1.0, abs(row[name]))
                largest = max(largest, 0.0 if math.isnan(distance) else distance)
                if not _close(found, row[name], tolerance):
                    differences.append(
                        f"{where}, {name} of {row['source']!r}: {row[name]:.6g} in the table, "
                        f"{found:.6g} now"
                    )
    return differences, scored, largest
