"""The worst moments of a test set: where a measure is lowest for at least 0.3 s.

Frames of 25 ms that score badly come alone by chance; what one can hear lasts. So a *segment* is a
stretch of at least :data:`LEAST_S`: the window of that length with the lowest mean over its scored
frames, joined by the neighbouring frames that are no better. Of one estimate no two segments of a
measure overlap. With sampled frames there are no neighbours: single frames are listed.
"""

from __future__ import annotations

import heapq
import os
from collections.abc import Iterator, Sequence
from typing import Any, NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from torch_mapss import audio
from torch_mapss.evaluation import files
from torch_mapss.evaluation.frame_store import SystemFrames
from torch_mapss.evaluation.measures import LABELS, RANK
from torch_mapss.evaluation.progress import file_name
from torch_mapss.evaluation.results import Results

#: Seconds a segment lasts at least, and at most.
LEAST_S, MOST_S = 0.3, 3.0
#: Seconds of sound around a segment, to hear where it comes from.
CONTEXT_S = 0.5
#: Measures of frames, which may have worst segments; PM's rank in the conformal convention alone.
MEASURES = ("ps", "pm", "log_pm", RANK, "foreign_distance")
#: Those that have them by default.
WORST_OF = ("ps", "log_pm")
# A window is judged if so much of it is scored.
_SHARE = 0.5


class Segment(NamedTuple):
    """A stretch of one estimate where a measure is low."""

    measure: str  # one of MEASURES
    mixture_id: str
    system: str
    place: int  # row of the estimate in the frames of its system
    source: str  # name of its reference
    start: float  # seconds
    end: float
    score: float  # mean over the scored frames in it
    frames: int  # scored in it


def worst_segments(
    results: Results,
    count: int = 20,
    measures: Sequence[str] = WORST_OF,
    *,
    mixtures: Sequence[str] | None = None,
    systems: Sequence[str] | None = None,
) -> list[Segment]:
    """The worst segments of a set, for each measure the lowest first.

    Args:
        results: of :func:`~torch_mapss.evaluation.results.load_results`.
        count: segments of each measure.
        measures: of "ps", "pm", "log_pm", "pm_rank" (of results in the conformal convention),
            "foreign_distance".
        mixtures, systems: look in these alone.

    Returns:
        Up to ``count`` for every measure, measure after measure.

    Raises:
        ValueError: another measure, mixture or system, or a count below 1.
    """
    _check_measures(measures, results)
    if count < 1:
        raise ValueError(f"count must be at least 1, got {count}.")
    _check_known(mixtures, "mixtures", results.mixtures)
    _check_known(systems, "systems", results.systems)
    lowest: dict[str, list[Segment]] = {name: [] for name in measures}
    for mixture in results.mixtures if mixtures is None else mixtures:
        frames = results.frames(mixture)
        sources = results.audio(mixture).sources
        for system, found in frames.systems.items():
            if systems is not None and system not in systems:
                continue
            for name in measures:
                made = _of_system(found, frames.times, name, count, results.sampled)
                own = [
                    Segment(name, mixture, system, place, sources[found.attributed[place]], *rest)
                    for place, rest in made
                ]
                # Merged as they come, so that a large set needs no more memory than its answer.
                lowest[name] = heapq.nsmallest(count, [*lowest[name], *own], key=_order)
    return [segment for name in measures for segment in lowest[name]]


def _check_measures(wanted: Sequence[str], results: Results) -> None:
    known = MEASURES if RANK in results.measures else [m for m in MEASURES if m != RANK]
    for name in wanted:
        if name == RANK and RANK not in known:
            raise ValueError(
                f"these results have no {RANK}, PM's rank: they were scored in the "
                f"{results.settings.get('convention')!r} convention. Score the set with "
                "--convention conformal."
            )
        if name not in known:
            raise ValueError(f"measures must be of {', '.join(known)}, got {name!r}.")


def _check_known(wanted: Sequence[str] | None, name: str, there: Sequence[str]) -> None:
    for one in wanted or ():
        if one not in there:
            known = ", ".join(map(repr, there[:20])) + (", ..." if len(there) > 20 else "")
            raise ValueError(f"{name} must be of {known}, got {one!r}.")


def _order(segment: Segment) -> tuple[Any, ...]:
    return segment.score, segment.mixture_id, segment.system, segment.place, segment.start


def _of_system(
    frames: SystemFrames, times: NDArray[np.float64], name: str, count: int, sampled: bool
) -> Iterator[tuple[int, tuple[float, float, float, int]]]:
    """(place, (start, end, score, frames)) of the lowest segments of every estimate."""
    step = float(times[1] - times[0]) if len(times) > 1 else LEAST_S
    least = 1 if sampled else max(1, round(LEAST_S / step))
    most = 1 if sampled else max(least, round(MOST_S / step))
    stored = getattr(frames, name)
    if stored is None:  # rows with a rank, and frames that were kept before these had one
        raise ValueError(f"the frames of these results hold no {name}. Score the set again.")
    for place, (values, active) in enumerate(zip(stored, frames.active)):
        scores = np.where(active, values.astype(np.float64), np.nan)
        for begin, end, score in lowest_runs(scores, least, most, count):
            # A frame stands for the step around its centre.
            start = max(0.0, float(times[begin]) - step / 2)
            scored = int(np.isfinite(scores[begin:end]).sum())
            yield place, (start, float(times[end - 1]) + step / 2, score, scored)


def lowest_runs(
    scores: NDArray[np.float64], least: int, most: int, count: int
) -> list[tuple[int, int, float]]:
    """The lowest stretches of a sequence with gaps.

    Args:
        scores: (F,) NaN where there is none.
        least, most: frames in a stretch; ``most`` bounds how far it grows.
        count: stretches wanted.

    Returns:
        Up to ``count`` of (begin, end, mean), lowest first, none overlapping.
    """
    least = min(least, len(scores))
    if least == 0:
        return []
    there = np.isfinite(scores)
    sums = np.concatenate([[0.0], np.cumsum(np.where(there, scores, 0.0))])
    counts = np.concatenate([[0], np.cumsum(there)])
    scored = counts[least:] - counts[:-least]
    enough = scored >= max(1, int(np.ceil(_SHARE * least)))
    means = np.where(enough, (sums[least:] - sums[:-least]) / np.maximum(scored, 1), np.inf)
    taken = np.zeros(len(scores), dtype=bool)
    found: list[tuple[int, int, float]] = []
    while len(found) < count:
        begin = int(means.argmin())
        if not np.isfinite(means[begin]):
            break
        begin, end = _grown(scores, taken, begin, begin + least, most)
        taken[begin:end] = True
        means[max(0, begin - least + 1) : end] = np.inf  # windows that would overlap
        found.append((begin, end, float(np.nanmean(scores[begin:end]))))
    return sorted(found, key=lambda run: run[2])


def _grown(
    scores: NDArray[np.float64], taken: NDArray[np.bool_], begin: int, end: int, most: int
) -> tuple[int, int]:
    """The stretch with the neighbouring frames that score no better than it does."""
    mean = float(np.nanmean(scores[begin:end]))
    mean += 1e-9 * abs(mean)  # rounding of the mean
    while end - begin < most and end < len(scores) and scores[end] <= mean and not taken[end]:
        end += 1
    while end - begin < most and begin and scores[begin - 1] <= mean and not taken[begin - 1]:
        begin -= 1
    return begin, end


def listed(segments: Sequence[Segment]) -> tuple[list[str], list[list[str]]]:
    """Columns and cells of a table to print."""
    columns = ["measure", "mixture", "system", "source", "from (s)", "to (s)", "score", "frames"]
    rows = [
        [LABELS[one.measure], one.mixture_id, one.system, one.source]
        + [f"{one.start:.2f}", f"{one.end:.2f}", f"{one.score:.3g}", str(one.frames)]
        for one in segments
    ]
    return columns, rows


# ------------------------------------------------------------------------------------------------
# Sound
# ------------------------------------------------------------------------------------------------


def segment_sound(
    results: Results, segment: Segment, context: float = CONTEXT_S
) -> tuple[Tensor, Tensor, int, float]:
    """What a segment sounds like.

    Args:
        results: that the segment is of.
        segment: of :func:`worst_segments`.
        context: seconds of sound before and behind it.

    Returns:
        Estimate and reference, (T,) each, their rate in Hz (the higher of the two files'), and
        the second of the file at which they begin.

    Raises:
        FileNotFoundError: the audio is gone.
    """
    read = [audio.load_audio(path) for path in _paths(results, segment)]
    rate = max(found for _, found in read)
    waves = [audio.resample(audio.to_mono(samples), found, rate) for samples, found in read]
    begin = max(0, round((segment.start - context) * rate))
    end = min(round((segment.end + context) * rate), *(len(wave) for wave in waves))
    return waves[0][begin:end], waves[1][begin:end], rate, begin / rate


def _paths(results: Results, segment: Segment) -> tuple[str, str]:
    """Estimate and reference of a segment."""
    paths = results.audio(segment.mixture_id)
    attributed = results.frames(segment.mixture_id).systems[segment.system].attributed
    return (
        paths.estimates[segment.system][segment.place],
        paths.references[int(attributed[segment.place])],
    )


def write_segments(
    results: Results,
    segments: Sequence[Segment],
    folder: str | os.PathLike[str],
    *,
    stereo: bool = False,
) -> tuple[str, ...]:
    """Write segments as WAV (32 bit, unchanged level), named by rank, measure and place.

    Args:
        results: that they are of.
        segments: of :func:`worst_segments`.
        folder: made if need be.
        stereo: one file each, estimate on the left and reference on the right, instead of two.

    Returns:
        The files.

    Raises:
        FileNotFoundError: audio that is gone; nothing is written then.
    """
    results.check_audio(path for segment in segments for path in _paths(results, segment))
    folder = files.make_folder(folder)
    written, ranks = [], dict.fromkeys((segment.measure for segment in segments), 0)
    for segment in segments:
        ranks[segment.measure] += 1
        estimate, reference, rate, _ = segment_sound(results, segment)
        words = (segment.mixture_id, segment.system, segment.source, f"{segment.start:.2f}s")
        name = f"{segment.measure}_{ranks[segment.measure]:03d}_" + "_".join(words)
        parts = (
            {"": torch.stack([estimate, reference], 1)}
            if stereo
            else {"_estimate": estimate, "_reference": reference}
        )
        for suffix, wave in parts.items():
            path = os.path.join(folder, files.native(file_name(name) + f"{suffix}.wav"))
            files.write_wave(path, wave, rate)
            written.append(path)
    return tuple(written)
