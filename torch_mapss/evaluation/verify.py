"""Verify a results folder: compare the hashes of settings and audio, and recompute scores.

All scores are pooled again from the frames in the folder, which needs no audio, and a few outputs
are scored again from their files. Records are the source of truth, and the exported tables are
compared with them. The last digits of scores depend on processor and libraries, hence the
tolerance; a score outside it was not made with these settings.
"""

from __future__ import annotations

import os
import random
from collections.abc import Callable, Iterator, Sequence
from typing import TYPE_CHECKING, NamedTuple

import numpy as np
import torch

from torch_mapss.core.checks import differing
from torch_mapss.evaluation import io, pooled
from torch_mapss.evaluation.csv_input import read_csv_table
from torch_mapss.evaluation.manifest import short
from torch_mapss.evaluation.protocol import protocol_id, relevant, settings_of
from torch_mapss.evaluation.records import SystemFrames
from torch_mapss.evaluation.results import Results
from torch_mapss.evaluation.settings import scoring_settings
from torch_mapss.evaluation.single_mixture import evaluate
from torch_mapss.pipeline.measures import checked_measures
from torch_mapss.pipeline.scores import Scores
from torch_mapss.score_table import SCORES, scores_in

if TYPE_CHECKING:
    from pandas import DataFrame

    from torch_mapss.evaluation.report import Report
    from torch_mapss.pipeline.mapss import MAPSS

# Tolerance between a stored and a recomputed number, relative above 1: tables have nine digits,
# frames are stored in float32, and scores differ between machines.
_ROUNDING, _TOLERANCE = 1e-5, 1e-3
# Differences up to this number are listed one by one.
_PRINTED = 20
_ITEM = ["mixture_id", "system"]
# The exports, and the columns that identify their rows.
_ROWS = [*_ITEM, "source"]
_EXPORTS = {"scores": _ROWS, "channels": [*_ROWS, "channel"], "items": _ITEM, "summary": ["system"]}


class Verification(NamedTuple):
    """Result of a verification: the amounts compared, and the differences."""

    differences: Sequence[str]  # empty if the results are verified
    files: int  # number of audio files whose hash was compared
    rows: int  # number of estimates whose scores were pooled again from frames
    scored: int = 0  # number of estimates scored again
    largest: float = 0.0  # largest difference of a score from its record
    notes: Sequence[str] = ()  # comparisons that were not possible, with reason and remedy

    @property
    def passed(self) -> bool:
        """Whether scores were compared and nothing differs."""
        return self.rows + self.scored > 0 and not self.differences

    def summary(self) -> str:
        """Summary to print."""
        largest = f" (largest difference {self.largest:.2g})" if self.scored else ""
        lines = [
            f"{self.files} audio files compared by SHA-256, {self.rows} rows pooled again from "
            f"their frames, {self.scored} estimates scored again{largest}.",
            *(f"differs: {difference}" for difference in self.differences[:_PRINTED]),
        ]
        if len(self.differences) > _PRINTED:
            lines.append(f"and {len(self.differences) - _PRINTED} more differences.")
        lines += [f"{note}." for note in self.notes]
        if not self.rows + self.scored:
            lines.append("No score could be compared: nothing is verified.")
        elif self.passed:
            lines.append("Nothing differs.")
        return "\n".join(lines)


def verify(
    results: Results, make_scorer: Callable[[], MAPSS] | None = None, *, pairs: int = 3
) -> Verification:
    """Check results against their settings and audio.

    Args:
        results: result of :func:`~torch_mapss.evaluation.results.load_results`.
        make_scorer: makes the scorer of their settings; None skips scoring.
        pairs: number of outputs (one system, one mixture) to score again, drawn at random.
    """
    missing, differences = _audio_differences(results)
    differences = [*_protocol_differences(results), *differences]
    for name in _EXPORTS:
        differences += _export_differences(results, name)
    pooled_again, pooling_differences = _pooled_again(results)
    differences += pooling_differences
    checked = Verification(
        differences=differences,
        files=len(results.sha256) - len(missing),
        rows=pooled_again,
        notes=[*_without_frames(results), *_without_score(results.scores)],
    )
    if make_scorer is None or pairs < 1:
        return checked
    scorer = make_scorer()
    current = relevant(settings_of(scorer, scoring_settings(results.settings)))
    setting_differences = [
        _difference(f"setting {name}", short(stored), short(current_value))
        for name, stored, current_value in differing(relevant(results.settings), current)
    ]
    if setting_differences:  # then every score differs
        notes = [*checked.notes, "Nothing was scored again, as the settings differ"]
        return checked._replace(differences=[*differences, *setting_differences], notes=notes)
    scored, largest, score_differences = _rescored(results, scorer, pairs)
    differences += score_differences
    return checked._replace(differences=differences, scored=scored, largest=largest)


def _difference(subject: str, stored: str, current: str) -> str:
    return f"{subject}: {stored} in the results, {current} here"


def _protocol_differences(results: Results) -> Iterator[str]:
    computed = protocol_id(results.settings)
    if str(results.protocol) != computed:
        yield _difference("protocol id of the settings", str(results.protocol), computed)


def _audio_differences(results: Results) -> tuple[list[str], list[str]]:
    """Unreadable files, and differences: one for the unreadable files, then one per other file."""
    if not results.sha256:
        return [], [_difference("hashes of audio files", "none", "nothing to compare")]
    missing, differences = [], []
    for path, stored in results.sha256.items():
        try:
            current = io.sha256(results.locate(path))
        except OSError:
            missing.append(path)
            continue
        if current != stored:
            differences.append(_difference(f"SHA-256 of {path!r}", stored, current))
    if missing:
        differences.insert(0, results.without_audio(missing, len(results.sha256)))
    return missing, differences


def _export_differences(results: Results, name: str) -> Iterator[str]:
    """Yield differences between an exported table and the records."""
    table: DataFrame = getattr(results, name)
    path = os.path.join(results.folder, f"{name}.csv")
    if not os.path.exists(path):
        return  # the run is not finished
    keys, scores = _EXPORTS[name], scores_in(table.columns)
    try:
        exported = read_csv_table(path, keys, [*scores], "an exported table of results")
    except (OSError, ValueError) as error:
        yield f"{str(error).removesuffix('.')}; `torch-mapss evaluate` writes it again"
        return
    stored, exported = _keyed(table, keys), _keyed(exported, keys)
    yield from _table_differences(f"{name}.csv", exported, stored, _ROUNDING)
    lost = stored.index.difference(exported.index)
    if len(lost):
        yield f"{name}.csv: lacks {len(lost)} of {len(stored)} rows of the records"


def _keyed(table: DataFrame, keys: Sequence[str]) -> DataFrame:
    """Index a table by the names of its rows."""
    names = {key: table[key].astype(str).map(io.same_name) for key in keys}
    return table.assign(**names).drop_duplicates([*keys]).set_index([*keys])


def _table_differences(
    name: str, stored: DataFrame, current: DataFrame, tolerance: float
) -> Iterator[str]:
    """Yield scores of a table that differ from those of another with the same index."""
    distances = _distances(stored, current)
    for row, column in zip(*(distances > tolerance).to_numpy().nonzero()):
        score, key = distances.columns[column], stored.index[row]
        values = key if isinstance(key, tuple) else (key,)
        names = [str(level).removesuffix("_id") for level in stored.index.names]
        labels = [f"{level} {value!r}" for level, value in zip(names, values)]
        before, recomputed = stored.loc[key, score], current[score].get(key, float("nan"))
        yield _difference(", ".join([name, *labels, score]), f"{before:.6g}", f"{recomputed:.6g}")


def _distances(stored: DataFrame, current: DataFrame) -> DataFrame:
    """Distances between scores, relative above 1; infinite where only one is defined."""
    before = stored[[name for name in scores_in(stored.columns) if name in current]].astype(float)
    recomputed = current.reindex(before.index)[[*before.columns]].astype(float)
    distances = ((recomputed - before).abs() / before.abs().clip(lower=1.0)).fillna(float("inf"))
    return distances.mask(before.isna() & recomputed.isna(), 0.0)


def _pooled_again(results: Results) -> tuple[int, list[str]]:
    """Number of estimates pooled again from their frames or channels, and what differs."""
    import pandas

    tables, differences = [], []
    measures = checked_measures(scoring_settings(results.settings).pipeline_measures)
    scored = results.scores[results.scores["status"] != "failed"]
    # Frames are kept as means over channels, whose scores are pooled channel by channel.
    pairs_with_channels = {*results.channels[_ITEM].itertuples(index=False, name=None)}
    if pairs_with_channels:
        of_estimates = results.channels.groupby(_ROWS, sort=False)
        tables.append(of_estimates[[*scores_in(results.channels)]].mean().reset_index())
    for mixture in scored["mixture_id"].unique():
        try:
            systems = results.frames(mixture).systems
        except (OSError, ValueError) as error:
            text = _difference(f"frames of mixture {mixture!r}", "scores", str(error))
            differences.append(text.removesuffix("."))
            continue
        sources = np.array(results.audio(mixture).sources)
        for system, frames in systems.items():
            if (mixture, system) in pairs_with_channels:
                continue
            table = pooled.columns(_frame_scores(frames, measures))
            if results.settings.get("excerpts") is not None:
                # Bleed is of the whole signal, but the file has only the frames of excerpts.
                table = table.drop(columns="bleed_db", errors="ignore")
            names = {"mixture_id": mixture, "system": system}
            tables.append(table.assign(**names, source=sources[frames.attributed]))
    if not tables:
        return 0, differences
    current = _keyed(pandas.concat(tables), _EXPORTS["scores"])
    stored = _keyed(scored, _EXPORTS["scores"])
    stored_with_frames = stored[stored.index.isin(current.index)]
    differences += _table_differences("records", stored_with_frames, current, _ROUNDING)
    return len(stored_with_frames), differences


def _frame_scores(frames: SystemFrames, measures: tuple[str, ...]) -> Scores:
    """Frames of a file, as :class:`Scores`."""
    values = {name: torch.from_numpy(x).double()[None] for name, x in frames.scores.items()}
    defined_fields = {name: SCORES[name].defined_field for name in values}
    defined = {
        field: ~values[name].isnan() for name, field in defined_fields.items() if field != "active"
    }
    values |= {name: x.nan_to_num() for name, x in values.items() if name != "bleed_db"}
    active = torch.from_numpy(frames.active)[None]
    return Scores(active, torch.empty(0, dtype=torch.float64), measures, **values, **defined)


def _without_frames(results: Results) -> Iterator[str]:
    """The score that cannot be pooled again from the frames of the folder."""
    if results.settings.get("excerpts") is not None and "bleed_db" in results.scores:
        yield (
            "bleed is of whole signals and the folder holds the frames of excerpts: it is compared "
            "only for the estimates that are scored again"
        )


def _without_score(scores: DataFrame) -> Iterator[str]:
    """Yield each reason for missing scores, with the number of estimates."""
    rows = scores[scores["status"] != "ok"]
    if rows.empty:
        return
    yield f"{len(rows)} of {len(scores)} estimates have no score"
    for (status, reason), group in rows.groupby(["status", "reason"], sort=False):
        cause = f": {reason}" if reason else ""
        yield f"  {len(group)} {status}{cause}".removesuffix(".")


def _rescored(results: Results, scorer: MAPSS, count: int) -> tuple[int, float, list[str]]:
    """Number of estimates scored again, the largest difference, and all differences."""
    scored = results.scores[results.scores["status"] != "failed"]
    outputs = sorted({*scored[_ITEM].itertuples(index=False, name=None)})
    rows, largest, differences = 0, 0.0, []
    for mixture, system in random.Random(0).sample(outputs, min(count, len(outputs))):
        label = f"mixture {mixture!r}, system {system!r}"
        try:
            report = _scored_again(results, scorer, mixture, system)
        except (OSError, ValueError) as error:
            differences.append(_difference(f"{label}, scored again", "scores", str(error)))
            continue
        table = report.scores.assign(mixture_id=mixture, system=system)
        current, stored = (_keyed(rows_of, _EXPORTS["scores"]) for rows_of in (table, scored))
        stored = stored[stored.index.isin(current.index)]
        rows += len(current)
        largest = max(largest, _distances(stored, current).to_numpy(float).max(initial=0.0))
        differences += _table_differences("scored again", stored, current, _TOLERANCE)
    return rows, float(largest), differences


def _scored_again(results: Results, scorer: MAPSS, mixture: str, system: str) -> Report:
    audio, paths = results.audio(mixture), results.entries[mixture]["systems"][system]
    settings = scoring_settings(results.settings)._replace(bounds=False)._asdict()
    return evaluate(
        estimates=[None if path is None else results.locate(path) for path in paths],
        references=audio.references,
        names=audio.sources,
        mapss=scorer,
        mixture_id=mixture,
        **settings,
    )
