"""A listening test of what was scored: stimuli that span the measures, for webMUSHRA.

A *page* is one source of one mixture: its reference (open and hidden), the systems' estimates of
it, and an anchor that webMUSHRA makes (3.5 kHz low-pass). Pages are chosen so that their stimuli
fill a grid of PS and log PM, both by rank over the whole set, as evenly as they can: at every step
the page whose stimuli lie in the emptiest cells, by lot (seeded) among equals. Systems that differ
little then still give ratings over the whole range, which correlations need.

All sounds are brought to one loudness (ITU-R BS.1770), all of a page lower by the same amount if a
peak would not fit. Names of files and conditions tell nothing; ``stimuli.csv`` is the key, to be
kept from the listeners.

webMUSHRA is not part of this package: https://github.com/audiolabs/webMUSHRA.
"""

from __future__ import annotations

import json
import os
import random
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor

from torch_mapss import audio
from torch_mapss.evaluation import files
from torch_mapss.evaluation.frame_store import SystemFrames
from torch_mapss.evaluation.progress import file_name
from torch_mapss.evaluation.results import Results

KEY_COLUMNS = (
    *("page", "condition", "mixture_id", "source", "system", "role"),
    *("ps", "log_pm", "start_s", "end_s", "loudness_lufs", "file", "test_id"),
)
#: Questions that can be put to listeners, as the measures divide them.
QUESTIONS = {
    "quality": "Rate the basic audio quality of each sound against the reference: 100 = no "
    "difference can be heard. Other sources that are still there count as well.",
    "interference": "Rate how well the other sources are removed from each sound: 100 = nothing "
    "of them can be heard. Leave other artefacts aside.",
    "distortion": "Rate how undistorted the target itself sounds: 100 = as in the reference. "
    "Leave other sources that can still be heard aside.",
}
# Cells of the grid, each way.
_GRID = 4
# Beyond so many seconds one cannot keep two sounds apart (BS.1534 advises about 10, at most 12).
LONG_S = 12.0


class Stimulus(NamedTuple):
    """One estimate that may be rated."""

    mixture_id: str
    source: str
    system: str
    place: int  # row of the estimate in the frames of its system
    ps: float
    log_pm: float


class Page(NamedTuple):
    """What is rated together."""

    mixture_id: str
    source_index: int
    source: str
    stimuli: tuple[Stimulus, ...]


def choose(
    results: Results,
    count: int = 12,
    *,
    systems: Sequence[str] | None = None,
    most: int = 8,
    seed: int = 0,
) -> tuple[Page, ...]:
    """The pages of a test.

    Args:
        results: of :func:`~torch_mapss.evaluation.results.load_results`.
        count: pages wanted; fewer where the set has fewer.
        systems: those to be rated; all by default.
        most: systems on a page; more are drawn from.
        seed: equal seeds choose equal pages.

    Returns:
        The pages.

    Raises:
        ValueError: unknown systems, or nothing that is scored.
    """
    unknown = [name for name in systems or () if name not in results.systems]
    if unknown:
        raise ValueError(
            f"there is no system {unknown[0]!r} in these results; there are "
            f"{', '.join(map(repr, results.systems))}."
        )
    if count < 1 or most < 1:
        raise ValueError(f"pages and systems on a page must be at least 1, got {count} and {most}.")
    chance = random.Random(seed)
    pages = list(_pages(results, systems or results.systems, most, chance))
    if not pages:
        raise ValueError(
            "there is no estimate with scored frames, so there is nothing to listen to: see the "
            "column `reason` of scores.csv."
        )
    chance.shuffle(pages)
    cells = _cells([stimulus for page in pages for stimulus in page.stimuli])
    filled = np.zeros((_GRID, _GRID), dtype=int)
    chosen: list[Page] = []
    while pages and len(chosen) < count:
        # Emptiest cells first: the gain of a stimulus halves with every one that is there already.
        gains = [_gain([cells[one] for one in page.stimuli], filled) for page in pages]
        page = pages.pop(int(np.argmax(gains)))
        for one in page.stimuli:
            filled[cells[one]] += 1
        chosen.append(page)
    return tuple(chosen)


def _gain(cells: Sequence[tuple[int, int]], filled: Any) -> float:
    there = filled.copy()
    gain = 0.0
    for cell in cells:
        gain += 0.5 ** int(there[cell])
        there[cell] += 1
    return gain / len(cells)


def _pages(
    results: Results, systems: Sequence[str], most: int, chance: random.Random
) -> Iterator[Page]:
    """One page for every source of every mixture, with those systems that have a score for it."""
    by_source: dict[tuple[str, int], list[Stimulus]] = {}
    place: dict[tuple[str, str], int] = {}
    for row in results.scores:
        pair = row["mixture_id"], row["system"]
        place[pair] = place.get(pair, -1) + 1
        if row["status"] != "ok" or row["system"] not in systems:
            continue
        made = Stimulus(
            *pair[:1], row["source"], row["system"], place[pair], row["ps"], row["log_pm"]
        )
        by_source.setdefault((row["mixture_id"], row["source_index"]), []).append(made)
    for (mixture, index), stimuli in by_source.items():
        drawn = stimuli if len(stimuli) <= most else chance.sample(stimuli, most)
        yield Page(mixture, index, stimuli[0].source, tuple(drawn))


def _cells(stimuli: Sequence[Stimulus]) -> dict[Stimulus, tuple[int, int]]:
    """The cell of each in the grid of ranks."""
    from scipy.stats import rankdata

    parts = []
    for name in ("ps", "log_pm"):
        ranks = rankdata([getattr(one, name) for one in stimuli]) - 0.5
        parts.append(np.minimum((_GRID * ranks / len(stimuli)).astype(int), _GRID - 1))
    return {one: (int(x), int(y)) for one, x, y in zip(stimuli, *parts)}


# ------------------------------------------------------------------------------------------------
# Writing
# ------------------------------------------------------------------------------------------------


def write_test(
    results: Results,
    pages: Sequence[Page],
    out: str | os.PathLike[str],
    *,
    test_id: str = "mapss",
    questions: Sequence[str] = ("quality",),
    loudness: float = -23.0,
    seconds: float | None = None,
    seed: int = 0,
) -> tuple[str, ...]:
    """Write sounds, key and one webMUSHRA configuration for each question.

    ``out`` is to be copied to ``configs/TEST_ID`` of webMUSHRA and opened as
    ``?config=TEST_ID/QUESTION.yaml``.

    Args:
        results: that the pages were chosen from.
        pages: of :func:`choose`.
        out: folder, made if need be.
        test_id: name of the test; goes into paths and results.
        questions: of :data:`QUESTIONS`.
        loudness: of all sounds, in LUFS.
        seconds: cut longer sounds to so much, where most frames are scored; whole by default. The
            scores in the key are then those of what is heard.
        seed: of the order of conditions.

    Returns:
        The configurations and the key.

    Raises:
        ValueError: an unknown question, a name that makes no path, audio that is gone or not
            as long as its reference.
    """
    unknown = [name for name in questions if name not in QUESTIONS]
    if unknown or not questions:
        raise ValueError(f"questions must be of {', '.join(QUESTIONS)}, got {list(questions)!r}.")
    if not test_id or file_name(test_id) != test_id or " " in test_id:
        raise ValueError(f"the test id must make a file name without spaces, got {test_id!r}.")
    folder = files.make_folder(out)
    files.make_folder(os.path.join(folder, "audio"))
    chance, rows, listed = random.Random(seed), [], []
    for number, page in enumerate(pages, 1):
        made = _write_page(results, page, f"p{number:02d}", folder, loudness, seconds, chance)
        rows += [row | {"test_id": test_id} for row in made]
        listed.append(_page(made, f"configs/{test_id}"))
    written = [os.path.join(folder, "stimuli.csv")]
    files.write_csv(written[0], KEY_COLUMNS, rows)
    for question in questions:
        written.append(os.path.join(folder, f"{question}.yaml"))
        text = _yaml(_configuration(listed, test_id, question, rows[0]["file"]))
        files.write_bytes(written[-1], text.encode())
    return tuple(written)


def _write_page(
    results: Results,
    page: Page,
    name: str,
    folder: str,
    loudness: float,
    seconds: float | None,
    chance: random.Random,
) -> list[dict[str, Any]]:
    """The sounds of a page, and its rows of the key: the reference first."""
    paths = results.audio(page.mixture_id)
    stimuli = list(page.stimuli)
    chance.shuffle(stimuli)
    given = [paths.references[page.source_index]]
    given += [paths.estimates[one.system][one.place] for one in stimuli]
    waves, rate = _read(given)
    frames = results.frames(page.mixture_id)
    system = frames.systems[stimuli[0].system]
    length = waves.shape[-1] / rate
    start, end = _excerpt(frames.times, system.active[stimuli[0].place], length, seconds)
    waves = _levelled(waves[:, round(start * rate) : round(end * rate)], rate, loudness)
    measured = audio.integrated_loudness(waves, rate)
    rows = []
    for place, wave in enumerate(waves):
        condition = "reference" if place == 0 else f"C{place}"
        file = f"audio/{name}_{condition}.wav"
        files.write_wave(os.path.join(folder, file), wave, rate, "PCM_24")
        row: dict[str, Any] = {"page": name, "condition": condition, "file": file}
        row |= {"mixture_id": page.mixture_id, "source": page.source, "start_s": start}
        row |= {"end_s": end, "loudness_lufs": round(float(measured[place]), 2)}
        if place == 0:
            rows.append(row | {"system": "reference", "role": "hidden_reference"})
            continue
        one = stimuli[place - 1]
        heard = _heard(frames.systems[one.system], frames.times, one.place, start, end)
        rows.append(row | {"system": one.system, "role": "system"} | heard)
    return rows


def _heard(
    frames: SystemFrames, times: Any, place: int, start: float, end: float
) -> dict[str, float]:
    """Mean scores of what is heard."""
    inside = frames.active[place] & (times >= start) & (times <= end)
    if not inside.any():
        return {"ps": float("nan"), "log_pm": float("nan")}
    return {
        name: float(getattr(frames, name)[place][inside].mean(dtype=np.float64))
        for name in ("ps", "log_pm")
    }


def _read(paths: Sequence[str]) -> tuple[Tensor, int]:
    """(n, T) mono waveforms of one rate and length."""
    waves, rates = [], []
    for path in paths:
        samples, rate = audio.load_audio(path)
        waves.append(audio.to_mono(samples))
        rates.append(rate)
    highest = max(rates)  # resampling down would take away what one is to hear
    waves = [audio.resample(wave, rate, highest) for wave, rate in zip(waves, rates)]
    shortest = min(len(wave) for wave in waves)
    return torch.stack([wave[:shortest] for wave in waves]), highest


def _excerpt(times: Any, active: Any, length: float, seconds: float | None) -> tuple[float, float]:
    """Where most frames are scored: start and end in s."""
    if seconds is None or seconds >= length:
        return 0.0, length
    starts = np.arange(0.0, length - seconds + 1e-9, 0.1)
    inside = np.searchsorted(times, starts + seconds) - np.searchsorted(times, starts)
    counts = np.concatenate([[0], np.cumsum(active)])
    first = np.searchsorted(times, starts)
    start = float(starts[int(np.argmax(counts[first + inside] - counts[first]))])
    return start, start + seconds


def _levelled(waves: Tensor, rate: int, loudness: float) -> Tensor:
    """Waveforms (n, T) at one loudness, lower by one gain for all if a peak would not fit."""
    found = audio.integrated_loudness(waves, rate)
    gain = torch.where(found.isfinite(), 10.0 ** ((loudness - found) / 20.0), 1.0)
    waves = waves * gain.unsqueeze(-1)
    return waves / waves.abs().max().clamp(min=1.0)


def _page(rows: Sequence[Mapping[str, Any]], folder: str) -> dict[str, Any]:
    return {
        "type": "mushra",
        "id": rows[0]["page"],
        "name": f"Page {int(rows[0]['page'][1:])}",
        "showWaveform": True,
        "enableLooping": True,
        "strict": False,
        "reference": f"{folder}/{rows[0]['file']}",
        "createAnchor35": True,
        "createAnchor70": False,
        "randomize": True,
        "showConditionNames": False,
        "stimuli": {row["condition"]: f"{folder}/{row['file']}" for row in rows[1:]},
    }


def _configuration(
    pages: Sequence[Mapping[str, Any]], test_id: str, question: str, first: str
) -> dict[str, Any]:
    text = QUESTIONS[question]
    loud: dict[str, Any] = {"type": "volume", "id": "volume", "name": "Volume"}
    loud |= {"defaultVolume": 0.5}
    loud |= {"content": "Set a comfortable volume, and leave it there."}
    loud |= {"stimulus": f"configs/{test_id}/{first}"}
    asked = [dict(page) | {"content": text} for page in pages]
    end: dict[str, Any] = {"type": "finish", "name": "Thank you", "content": "Send your ratings."}
    end |= {"popupContent": "", "showResults": False, "writeResults": True}
    return {
        "testname": f"Listening test: {question}",
        "testId": f"{test_id}-{question}",
        "bufferSize": 2048,
        "stopOnErrors": True,
        "showButtonPreviousPage": True,
        "remoteService": "service/write.php",
        "pages": [
            {"type": "generic", "id": "start", "name": "Welcome", "content": text},
            loud,
            ["random", *asked],
            end,
        ],
    }


def _yaml(value: Any, indent: int = 0) -> str:
    """Block YAML of dictionaries, lists and scalars; scalars as JSON writes them."""
    lead = "  " * indent
    if isinstance(value, Mapping):
        pairs = value.items()
        return "".join(f"{lead}{key}:{_nested(item, indent)}" for key, item in pairs)
    return "".join(f"{lead}-{_nested(item, indent)}" for item in value)


def _nested(value: Any, indent: int) -> str:
    if isinstance(value, Mapping | list):
        return "\n" + _yaml(value, indent + 1)
    return f" {json.dumps(value, ensure_ascii=False)}\n"
