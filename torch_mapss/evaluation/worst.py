"""Worst moments of a test set: the segments of at least 0.3 s with the worst scores.

Single bad frames (25 ms) occur by chance; audible faults last longer. So a *segment* is a span of
at least :data:`LEAST_S`: the window of that length with the worst mean over its scored frames,
extended by neighbouring frames that are no better. Segments of the same score and estimate do not
overlap. Sampled frames have no neighbours, so single frames are listed. Hidden references and
anchors are left out, since an anchor is bad throughout.

Bleed is worst where it is highest; its segments name the source that is audible there.
"""

from __future__ import annotations

import functools
import os
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from torch_mapss.core.checks import check_whole
from torch_mapss.evaluation import io, sounds
from torch_mapss.evaluation.comparison_tables import without_controls
from torch_mapss.evaluation.records import rows_of
from torch_mapss.evaluation.results import Results
from torch_mapss.score_table import (
    FRAME_SCORES,
    SCORES,
    score_label,
    score_names,
    score_text,
    scores_in,
)

if TYPE_CHECKING:
    from pandas import DataFrame

#: Seconds a segment lasts at least, and at most.
LEAST_S, MOST_S = 0.3, 3.0
#: Seconds of sound around a segment, to hear it in context.
CONTEXT_S = 0.5
#: Scores with worst segments by default, if the results have them.
WORST_OF = ("clearance", "fidelity", "ps", "log_pm", "bleed_db")
#: Bleed below this level is not worth listing.
LEAST_BLEED_DB = -60.0
_SEGMENT_COLUMNS = ("measure", "score", "start", "end", "frames", "title", "value")
Floats = NDArray[np.float64]
Row = dict[str, Any]


def worst_segments(
    results: Results,
    count: int = 20,
    measures: str | Sequence[str] | None = None,
    controls: bool = False,
) -> DataFrame:
    """Worst segments of a set by score, worst first.

    Args:
        results: result of :func:`~torch_mapss.evaluation.results.load_results`.
        count: number of segments per score.
        measures: names of measures and of scores by which systems are ranked and that frames have;
            by default those of :data:`WORST_OF` that the results have.
        controls: list hidden references and anchors (systems ``control:NAME``) as well; they are
            listed anyway where there is no other system.

    Returns:
        Up to ``count`` rows for every measure, measure after measure: ``measure``, ``score`` (mean
        over the scored frames; of bleed, dB of the mean power), ``start``, ``end`` (seconds),
        ``frames`` (scored ones), ``title`` ("PS", or "bleed of drums"), ``value`` (the score as
        text); ``row`` (its number in scores.csv) and the columns of that row, with paths to open.

    Raises:
        ValueError: an unknown name, or a count below 1.
    """
    from pandas import DataFrame

    count = check_whole(count, "count", 1)
    names = _listed_measures(results, measures)
    systems = [*results.systems] if controls else without_controls(results.systems)
    worst: dict[str, list[Row]] = {name: [] for name in names}
    columns = ("mixture_id", "system", "source", "source_index", "estimate", "reference")
    rows = [row | {"row": index} for index, row in enumerate(rows_of(results.scores))]
    listed_rows = [row for row in rows if row["system"] in systems]
    for row, times, curves in frame_curves(results, listed_rows):
        description = {column: row[column] for column in ("row", *columns)}
        for name in worst.keys() & curves:
            sign = 1.0 if SCORES[name].higher_is_better else -1.0
            for segment in _segments(name, times, curves[name], results.sampled, count):
                worst[name].append(segment | description)
            worst[name].sort(key=lambda segment: sign * segment["score"])
            del worst[name][count:]
    for name, segments in worst.items():
        for segment in segments:
            segment |= _described(results, name, segment)
    table = [segment for segments in worst.values() for segment in segments]
    return DataFrame(table, columns=[*_SEGMENT_COLUMNS, "row", *columns])


def _listed_measures(results: Results, measures: str | Sequence[str] | None) -> tuple[str, ...]:
    """Names of the scores to find worst segments of."""
    ranked = scores_in(results.measures, ranked=True)
    available = [name for name in ranked if name in FRAME_SCORES]
    if measures is None:
        return tuple(name for name in WORST_OF if name in available)
    asked = [measures] if isinstance(measures, str) else measures
    for name in asked:
        if name in results.measures and name not in FRAME_SCORES:
            pooled = SCORES[name].frame_field
            instead = f" It pools {pooled}, which has some." if pooled in available else ""
            raise ValueError(
                f"measures must be of {', '.join(available)}, got {name!r}, which is defined per "
                f"utterance only, so it has no worst moments.{instead}"
            )
    return score_names(asked, available)


def _described(results: Results, name: str, segment: Row) -> Row:
    """Add paths to open, the name of the score, its title and its value as text."""
    paths = {role: results.locate(segment[role]) for role in ("estimate", "reference")}
    source = _bleeding_source(results, segment) if name == "bleed_db" else ""
    large = abs(segment["score"]) >= 1e5
    score = f"{segment['score']:.3g}" if large else score_text(name, segment["score"])
    title = score_label(name, unit=False) + (f" of {source}" if source else "")
    value = f"{score} {SCORES[name].unit}".strip()
    return {**paths, "measure": name, "title": title, "value": value}


def frame_curves(
    results: Results, rows: Sequence[Row]
) -> Iterator[tuple[Row, Floats, dict[str, Floats]]]:
    """Yield every row of scores.csv with times and frame scores; without scores if it failed.

    Evenly spaced: between excerpts the scores are NaN.
    """
    read = functools.lru_cache(4)(results.frames)  # rows of a mixture are consecutive
    for row in rows:
        times, systems = read(row["mixture_id"])
        frames = systems.get(row["system"])
        if frames is None or not len(times):
            yield row, times, {}
            continue
        output_index = frames.attributed.tolist().index(row["source_index"])
        step = _step(times)
        frame_indices = np.rint((times - times[0]) / step).astype(int)
        frame_count = frame_indices[-1] + 1
        curves = {}
        for name, scores in frames.scores.items():
            curves[name] = np.full(frame_count, np.nan)
            curves[name][frame_indices] = scores[output_index]
        yield row, times[0] + step * np.arange(frame_count), curves


def _step(times: Floats) -> float:
    """Seconds from one frame to the next."""
    return float(times[1] - times[0]) if len(times) > 1 else LEAST_S


def _segments(
    name: str, times: Floats, values: Floats, sampled: bool, count: int
) -> Iterator[dict[str, Any]]:
    """The worst segments of one estimate."""
    step = _step(times)
    least = 1 if sampled else max(1, round(LEAST_S / step))
    most = 1 if sampled else max(least, round(MOST_S / step))
    is_bleed = name == "bleed_db"
    # The mean of bleed is of its power, and the highest is the worst.
    scores = -(10.0 ** (values / 10.0)) if is_bleed else values
    for begin, end, mean in lowest_runs(scores, least, most, count):
        score = 10.0 * float(np.log10(max(-mean, 1e-30))) if is_bleed else mean
        if is_bleed and score < LEAST_BLEED_DB:
            continue
        # Each frame covers one step around its centre.
        begin_s = max(0.0, float(times[begin]) - step / 2)
        end_s = float(times[end - 1]) + step / 2
        scored = int(np.isfinite(values[begin:end]).sum())
        yield {"score": score, "start": begin_s, "end": end_s, "frames": scored}


def lowest_runs(scores: Floats, least: int, most: int, count: int) -> list[tuple[int, int, float]]:
    """Find the lowest spans of a sequence with gaps.

    Args:
        scores: (F,), NaN in gaps.
        least, most: number of frames in a span, half of which must be scored; ``most`` limits its
            growth.
        count: largest number of spans.

    Returns:
        Up to ``count`` of (begin, end, mean), lowest first, none overlapping.
    """
    import pandas

    least = min(least, len(scores))
    rolling = pandas.Series(scores).rolling(max(least, 1), min_periods=-(-least // 2))
    means = rolling.mean().to_numpy()[least - 1 :].copy()
    free = np.isfinite(scores)
    runs: list[tuple[int, int, float]] = []
    while len(runs) < count and np.isfinite(means).any():
        begin = int(np.nanargmin(means))
        end = begin + least
        mean = float(np.nanmean(scores[begin:end]))
        # Extend by neighbours that are no better, up to rounding of the mean.
        joins = free & (scores <= mean + 1e-9 * abs(mean))
        end += int(np.argmin(np.append(joins[end : begin + most], False)))
        begin -= int(np.argmin(np.append(joins[max(0, end - most) : begin][::-1], False)))
        free[begin:end] = False
        means[max(0, begin - least + 1) : end] = np.nan  # windows that would overlap
        runs.append((begin, end, float(np.nanmean(scores[begin:end]))))
    return sorted(runs, key=lambda run: run[2])


def _bleeding_source(results: Results, segment: Row) -> str:
    """Loudest other source in a segment; "" if the audio is gone."""
    paths = results.audio(segment["mixture_id"])
    indices = [k for k in range(len(paths.sources)) if k != segment["source_index"]]
    try:
        waves, rate = sounds.read_together([paths.references[k] for k in indices])
    except (OSError, ValueError):
        return paths.sources[indices[0]] if len(indices) == 1 else ""
    levels = sounds.cut(waves, rate, segment["start"], segment["end"]).square().sum(-1)
    return paths.sources[indices[int(levels.argmax())]]


def write_segments(
    results: Results, segments: DataFrame, folder: str | os.PathLike[str]
) -> tuple[str, ...]:
    """Write :func:`worst_segments`, with sound around them, as WAV (32 bit float, level unchanged).

    Returns:
        The files: estimate and reference of every segment, named by measure, rank and time.

    Raises:
        FileNotFoundError: audio is missing; nothing is written then.
    """
    results.check_audio(segments[["estimate", "reference"]].to_numpy().ravel())
    folder = io.make_folder(folder)
    written: list[str] = []
    ranks = segments.groupby("measure").cumcount() + 1
    for rank, segment in zip(ranks, rows_of(segments)):
        output = "_".join(segment[name] for name in ("mixture_id", "system", "source"))
        waves, rate = sounds.read_together([segment["estimate"], segment["reference"]])
        context = segment["start"] - CONTEXT_S, segment["end"] + CONTEXT_S
        for role, wave in zip(("estimate", "reference"), sounds.cut(waves, rate, *context)):
            name = f"{segment['measure']}_{rank:03d}_{output}_{segment['start']:.2f}s_{role}"
            written.append(os.path.join(folder, io.native(io.file_name(name) + ".wav")))
            io.write_wave(written[-1], wave, rate)
    return tuple(written)
