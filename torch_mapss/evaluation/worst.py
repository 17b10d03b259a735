"""The worst moments of a test set: where a measure is worst for at least 0.3 s.

Frames of 25 ms that score badly come alone by chance; what one can notice lasts. So a *segment* is
a stretch of at least :data:`LEAST_S`: the window of that length with the worst mean over its scored
frames, joined by the neighbouring frames that are no better. Of one estimate no two segments of a
measure overlap. With sampled frames there are no neighbours: single frames are listed.

Bleed, the level of an estimate while its source is silent, is worst where it is highest; its
segments name the source that is heard there.
"""

from __future__ import annotations

import heapq
import os
from collections.abc import Iterator, Sequence
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from torch_mapss.evaluation import io, sounds
from torch_mapss.evaluation.measures import COLUMNS, label, text
from torch_mapss.evaluation.results import Results

#: Seconds a segment lasts at least, and at most.
LEAST_S, MOST_S = 0.3, 3.0
#: Seconds of sound around a segment, to hear where it comes from.
CONTEXT_S = 0.5
#: Measures that have worst segments by default, where the results have them.
WORST_OF = ("clearance", "fidelity", "ps", "log_pm", "bleed_db")
#: Bleed below this level is no worst moment of anything.
LEAST_BLEED_DB = -60.0
# A window is judged if so much of it is scored.
_SHARE = 0.5

Floats = NDArray[np.float64]


class Segment(NamedTuple):
    """A stretch of one estimate where a measure is bad."""

    measure: str  # of `measures_of`
    mixture_id: str
    system: str
    place: int  # row of the estimate in the frames of its system
    source_index: int  # of its reference
    source: str  # name of its reference
    start: float  # seconds
    end: float
    score: float  # mean over the scored frames in it; of bleed, dB of the mean power
    frames: int  # scored in it
    other: str = ""  # of bleed: the source that is heard

    @property
    def title(self) -> str:
        """What is bad: "PS", or "bleed of drums"."""
        name = label(self.measure, unit=False)
        return f"{name} of {self.other}" if self.other else name

    @property
    def value(self) -> str:
        """The score with its unit."""
        short = f"{self.score:.3g}" if abs(self.score) >= 1e5 else text(self.measure, self.score)
        return f"{short} {COLUMNS[self.measure].unit}".strip()

    @property
    def order(self) -> tuple[float, str, str, int, float]:
        """Worst first."""
        sign = 1.0 if COLUMNS[self.measure].higher_is_better else -1.0
        return sign * self.score, self.mixture_id, self.system, self.place, self.start


def measures_of(results: Results) -> tuple[str, ...]:
    """The measures of results that may have worst segments."""
    return tuple(m for m in results.measures if COLUMNS[m].ranked and COLUMNS[m].frames)


def worst_segments(
    results: Results,
    count: int = 20,
    measures: Sequence[str] | None = None,
    *,
    mixtures: Sequence[str] | None = None,
    systems: Sequence[str] | None = None,
) -> list[Segment]:
    """The worst segments of a set, for each measure the worst first.

    Args:
        results: of :func:`~torch_mapss.evaluation.results.load_results`.
        count: segments of each measure.
        measures: of :func:`measures_of`; by default those of :data:`WORST_OF` among them.
        mixtures, systems: look in these alone.

    Returns:
        Up to ``count`` for every measure, measure after measure.

    Raises:
        ValueError: another measure, mixture or system, or a count below 1.
    """
    known = measures_of(results)
    wanted = [name for name in WORST_OF if name in known] if measures is None else measures
    _check_known(wanted, "measures", known)
    if count < 1:
        raise ValueError(f"count must be at least 1, got {count}.")
    _check_known(mixtures, "mixtures", results.mixtures)
    _check_known(systems, "systems", results.systems)
    found: dict[str, list[Segment]] = {name: [] for name in wanted}
    for mixture in results.mixtures if mixtures is None else mixtures:
        for name in wanted:
            made = _of_mixture(results, mixture, name, count, systems)
            # Merged as they come, so that a large set needs no more memory than its answer.
            best = heapq.nsmallest(count, [*found[name], *made], key=lambda one: one.order)
            found[name] = best
    bleeds = found.get("bleed_db", [])
    found["bleed_db"] = [one._replace(other=_bleeding(results, one)) for one in bleeds]
    return [segment for name in wanted for segment in found[name]]


def _check_known(wanted: Sequence[str] | None, name: str, known: Sequence[str]) -> None:
    for one in wanted or ():
        if one not in known:
            raise ValueError(f"{name} must be of {io.listed(map(repr, known), 20)}, got {one!r}.")


def _of_mixture(
    results: Results, mixture: str, name: str, count: int, systems: Sequence[str] | None
) -> Iterator[Segment]:
    """The worst segments of every estimate of a mixture."""
    frames = results.frames(mixture)
    names = results.audio(mixture).sources
    step = float(frames.times[1] - frames.times[0]) if len(frames.times) > 1 else LEAST_S
    least = 1 if results.sampled else max(1, round(LEAST_S / step))
    most = 1 if results.sampled else max(least, round(MOST_S / step))
    for system, found in frames.systems.items():
        if (systems is not None and system not in systems) or name not in found.scores:
            continue
        for place, values in enumerate(found.scores[name].astype(np.float64)):
            source = int(found.attributed[place])
            for begin, end, score, scored in _runs(name, values, least, most, count):
                # A frame stands for the step around its centre.
                start = max(0.0, float(frames.times[begin]) - step / 2)
                last = float(frames.times[end - 1]) + step / 2
                where = (mixture, system, place, source, names[source], start, last)
                yield Segment(name, *where, score, scored)


def _runs(
    name: str, values: Floats, least: int, most: int, count: int
) -> Iterator[tuple[int, int, float, int]]:
    """(begin, end, score, scored frames) of the worst stretches of one estimate."""
    bleed = name == "bleed_db"
    scores = -(10.0 ** (values / 10.0)) if bleed else values  # the mean of bleed is of its power
    for begin, end, score in lowest_runs(scores, least, most, count):
        score = 10.0 * float(np.log10(max(-score, 1e-30))) if bleed else score
        if not bleed or score >= LEAST_BLEED_DB:
            yield begin, end, score, int(np.isfinite(values[begin:end]).sum())


def lowest_runs(scores: Floats, least: int, most: int, count: int) -> list[tuple[int, int, float]]:
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
    scores: Floats, taken: NDArray[np.bool_], begin: int, end: int, most: int
) -> tuple[int, int]:
    """The stretch with the neighbouring frames that score no better than it does."""
    mean = float(np.nanmean(scores[begin:end]))
    mean += 1e-9 * abs(mean)  # rounding of the mean
    while end - begin < most and end < len(scores) and scores[end] <= mean and not taken[end]:
        end += 1
    while end - begin < most and begin and scores[begin - 1] <= mean and not taken[begin - 1]:
        begin -= 1
    return begin, end


def _bleeding(results: Results, segment: Segment) -> str:
    """The other source that is loudest in a segment; empty where its audio is gone."""
    paths = results.audio(segment.mixture_id)
    others = [k for k in range(len(paths.sources)) if k != segment.source_index]
    if len(others) > 1:
        try:
            waves, rate = sounds.read_together([paths.references[k] for k in others])
        except (OSError, ValueError):
            return ""
        levels = sounds.cut(waves, rate, segment.start, segment.end).square().sum(-1)
        others = [others[int(levels.argmax())]]
    return paths.sources[others[0]]


def listed(segments: Sequence[Segment]) -> tuple[list[str], list[list[str]]]:
    """Columns and cells of a table to print."""
    columns = ["measure", "mixture", "system", "source", "from (s)", "to (s)", "score", "frames"]
    rows = [
        [one.title, one.mixture_id, one.system, one.source, f"{one.start:.2f}", f"{one.end:.2f}"]
        + [one.value, str(one.frames)]
        for one in segments
    ]
    return columns, rows


# ------------------------------------------------------------------------------------------------
# Sound
# ------------------------------------------------------------------------------------------------


def paths_of(results: Results, segment: Segment) -> tuple[str, str]:
    """The files of a segment: estimate and reference."""
    paths = results.audio(segment.mixture_id)
    return paths.estimates[segment.system][segment.place], paths.references[segment.source_index]


def write_segments(
    results: Results, segments: Sequence[Segment], folder: str | os.PathLike[str]
) -> tuple[str, ...]:
    """Write segments, :data:`CONTEXT_S` around them, as WAV (32 bit float, unchanged level).

    Args:
        results: that they are of.
        segments: of :func:`worst_segments`.
        folder: made if need be.

    Returns:
        The files: estimate and reference of every segment, named by measure, rank and place.

    Raises:
        FileNotFoundError: audio that is gone; nothing is written then.
    """
    results.check_audio(path for segment in segments for path in paths_of(results, segment))
    folder = io.make_folder(folder)
    written: list[str] = []
    ranks = dict.fromkeys((segment.measure for segment in segments), 0)
    for one in segments:
        ranks[one.measure] += 1
        waves, rate = sounds.read_together(paths_of(results, one))
        words = (one.mixture_id, one.system, one.source, f"{one.start:.2f}s")
        name = f"{one.measure}_{ranks[one.measure]:03d}_" + "_".join(words)
        for role, wave in zip(("estimate", "reference"), waves):
            path = os.path.join(folder, io.native(io.file_name(f"{name}_{role}") + ".wav"))
            stretch = sounds.cut(wave, rate, one.start - CONTEXT_S, one.end + CONTEXT_S)
            io.write_wave(path, stretch, rate)
            written.append(path)
    return tuple(written)
