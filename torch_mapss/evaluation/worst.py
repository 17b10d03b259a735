"""The worst moments of a test set: where a measure is worst for at least 0.3 s.

Frames of 25 ms that score badly come alone by chance; what one can notice lasts. So a *segment* is
a span of at least :data:`LEAST_S`: the window of that length with the worst mean over its scored
frames, joined by the neighbouring frames that are no better. Of one estimate no two segments of a
measure overlap. With sampled frames there are no neighbours: single frames are listed.

Bleed, the level of an estimate while its source is silent, is worst where it is highest; its
segments name the source that is heard there.
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
from torch_mapss.evaluation.results import Results, records
from torch_mapss.score_table import SCORES, present, score_label, score_text

if TYPE_CHECKING:
    from pandas import DataFrame

#: Seconds a segment lasts at least, and at most.
LEAST_S, MOST_S = 0.3, 3.0
#: Seconds of sound around a segment, to hear where it comes from.
CONTEXT_S = 0.5
#: Measures that have worst segments by default, where the results have them.
WORST_OF = ("clearance", "fidelity", "ps", "log_pm", "bleed_db")
#: Bleed below this level is no worst moment of anything.
LEAST_BLEED_DB = -60.0
Floats = NDArray[np.float64]
Row = dict[str, Any]


def worst_segments(
    results: Results, count: int = 20, measures: Sequence[str] | None = None
) -> DataFrame:
    """The worst segments of a set, for each measure the worst first.

    Args:
        results: of :func:`~torch_mapss.evaluation.results.load_results`.
        count: segments of each measure.
        measures: by which systems are ranked; by default those of :data:`WORST_OF` among them.

    Returns:
        Up to ``count`` rows for every measure, measure after measure: ``measure``, ``score`` (mean
        over the scored frames; of bleed, dB of the mean power), ``start``, ``end`` (seconds),
        ``frames`` (scored ones), ``title`` ("PS", or "bleed of drums"), ``value`` (the score for
        people); ``row`` (counted in scores.csv) and what it says there, with paths to open.

    Raises:
        ValueError: another measure, or a count below 1.
    """
    from pandas import DataFrame

    known = present(results.measures, ranked=True)
    wanted = [name for name in WORST_OF if name in known] if measures is None else measures
    if unknown := [name for name in wanted if name not in known]:
        raise ValueError(f"measures must be of {', '.join(known)}, got {unknown[0]!r}.")
    check_whole(count, "count", 1)
    worst: dict[str, list[Row]] = {name: [] for name in wanted}
    keys = ("mixture_id", "system", "source", "source_index", "estimate", "reference")
    for place, (row, times, curves) in enumerate(frame_curves(results, records(results.scores))):
        about = {"row": place, **{key: row[key] for key in keys}}
        for name in worst.keys() & curves:
            found = _of_estimate(name, times, curves[name], results.sampled, count)
            sign = 1.0 if SCORES[name].higher_is_better else -1.0
            every = [*worst[name], *({**one, **about} for one in found)]
            worst[name] = sorted(every, key=lambda one: sign * one["score"])[:count]
    for name, segments in worst.items():
        for one in segments:
            one |= {role: results.locate(one[role]) for role in ("estimate", "reference")}
            other = _bleeding(results, one) if name == "bleed_db" else ""
            large = abs(one["score"]) >= 1e5
            score = f"{one['score']:.3g}" if large else score_text(name, one["score"])
            one |= {"measure": name, "value": f"{score} {SCORES[name].unit}".strip()}
            one["title"] = score_label(name, unit=False) + (f" of {other}" if other else "")
    columns = ("measure", "score", "start", "end", "frames", "title", "value", "row", *keys)
    return DataFrame([one for found in worst.values() for one in found], columns=columns)


def frame_curves(
    results: Results, rows: Sequence[Row]
) -> Iterator[tuple[Row, Floats, dict[str, Floats]]]:
    """Every row of scores.csv with seconds and frame scores; no scores if it failed.

    Evenly spaced: between excerpts the scores are NaN.
    """
    read = functools.lru_cache(4)(results.frames)  # rows of one mixture follow each other
    for row in rows:
        times, systems = read(row["mixture_id"])
        found = systems.get(row["system"])
        if found is None or not len(times):
            yield row, times, {}
            continue
        place = found.attributed.tolist().index(row["source_index"])
        step = _step(times)
        number = np.rint((times - times[0]) / step).astype(int)
        curves = {name: np.full(number[-1] + 1, np.nan) for name in found.scores}
        for name, curve in curves.items():
            curve[number] = found.scores[name][place]
        yield row, times[0] + step * np.arange(number[-1] + 1), curves


def _step(times: Floats) -> float:
    return float(times[1] - times[0]) if len(times) > 1 else LEAST_S


def _of_estimate(
    name: str, times: Floats, values: Floats, sampled: bool, count: int
) -> Iterator[dict[str, Any]]:
    """The worst segments of one estimate."""
    step = _step(times)
    least = 1 if sampled else max(1, round(LEAST_S / step))
    most = 1 if sampled else max(least, round(MOST_S / step))
    bleed = name == "bleed_db"
    scores = -(10.0 ** (values / 10.0)) if bleed else values  # the mean of bleed is of its power
    for begin, end, score in lowest_runs(scores, least, most, count):
        score = 10.0 * float(np.log10(max(-score, 1e-30))) if bleed else score
        if bleed and score < LEAST_BLEED_DB:
            continue
        # A frame stands for the step around its centre.
        start, last = max(0.0, float(times[begin]) - step / 2), float(times[end - 1]) + step / 2
        scored = int(np.isfinite(values[begin:end]).sum())
        yield {"score": score, "start": start, "end": last, "frames": scored}


def lowest_runs(scores: Floats, least: int, most: int, count: int) -> list[tuple[int, int, float]]:
    """The lowest spans of a sequence with gaps.

    Args:
        scores: (F,) NaN where there is none.
        least, most: frames in a span, half of which must be scored; ``most`` bounds how far it
            grows.
        count: spans wanted.

    Returns:
        Up to ``count`` of (begin, end, mean), lowest first, none overlapping.
    """
    import pandas

    least = min(least, len(scores))
    rolling = pandas.Series(scores).rolling(max(least, 1), min_periods=-(-least // 2))
    means = rolling.mean().to_numpy()[least - 1 :].copy()
    free = np.isfinite(scores)
    found: list[tuple[int, int, float]] = []
    while len(found) < count and np.isfinite(means).any():
        begin = int(np.nanargmin(means))
        end = begin + least
        mean = float(np.nanmean(scores[begin:end]))
        # Neighbours that are no better, but for rounding of the mean.
        joins = free & (scores <= mean + 1e-9 * abs(mean))
        end += int(np.argmin(np.append(joins[end : begin + most], False)))
        begin -= int(np.argmin(np.append(joins[max(0, end - most) : begin][::-1], False)))
        free[begin:end] = False
        means[max(0, begin - least + 1) : end] = np.nan  # windows that would overlap
        found.append((begin, end, float(np.nanmean(scores[begin:end]))))
    return sorted(found, key=lambda run: run[2])


def _bleeding(results: Results, segment: Row) -> str:
    """The other source that is loudest in a segment; empty where its audio is gone."""
    paths = results.audio(segment["mixture_id"])
    others = [k for k in range(len(paths.sources)) if k != segment["source_index"]]
    try:
        waves, rate = sounds.read_together([paths.references[k] for k in others])
    except (OSError, ValueError):
        return paths.sources[others[0]] if len(others) == 1 else ""
    levels = sounds.cut(waves, rate, segment["start"], segment["end"]).square().sum(-1)
    return paths.sources[others[int(levels.argmax())]]


def write_segments(
    results: Results, segments: DataFrame, folder: str | os.PathLike[str]
) -> tuple[str, ...]:
    """Write :func:`worst_segments`, with sound around them, as WAV (32 bit float, level unchanged).

    Returns:
        The files: estimate and reference of every segment, named by measure, rank and place.

    Raises:
        FileNotFoundError: audio that is gone; nothing is written then.
    """
    results.check_audio(segments[["estimate", "reference"]].to_numpy().ravel())
    folder = io.make_folder(folder)
    written: list[str] = []
    ranks = segments.groupby("measure").cumcount() + 1
    for rank, one in zip(ranks, records(segments)):
        names = "_".join(one[name] for name in ("mixture_id", "system", "source"))
        waves, rate = sounds.read_together([one["estimate"], one["reference"]])
        pieces = sounds.cut(waves, rate, one["start"] - CONTEXT_S, one["end"] + CONTEXT_S)
        for role, wave in zip(("estimate", "reference"), pieces):
            name = f"{one['measure']}_{rank:03d}_{names}_{one['start']:.2f}s_{role}"
            written.append(os.path.join(folder, io.native(io.file_name(name) + ".wav")))
            io.write_wave(written[-1], wave, rate)
    return tuple(written)
