"""The files of a listening test: sounds at one loudness, webMUSHRA's configurations, the key."""

from __future__ import annotations

import json
import os
import random
import warnings
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor

from torch_mapss import audio
from torch_mapss.evaluation import files
from torch_mapss.evaluation.frame_store import SystemFrames
from torch_mapss.evaluation.listen import Page, Stimulus
from torch_mapss.evaluation.measures import RANK, columns_of
from torch_mapss.evaluation.progress import file_name
from torch_mapss.evaluation.results import Results

KEY_COLUMNS = (
    *("page", "condition", "mixture_id", "source", "system", "role"),
    *("ps", "log_pm", RANK, "start_s", "end_s", "loudness_lufs", "file", "test_id"),
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
# Beyond so many seconds one cannot keep two sounds apart (BS.1534 advises about 10, at most 12).
LONG_S = 12.0


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
        ValueError: an unknown question, or a name that makes no path.
        FileNotFoundError: audio that is gone. Nothing is written then, as after every error.
    """
    unknown = [name for name in questions if name not in QUESTIONS]
    if unknown or not questions:
        raise ValueError(f"questions must be of {', '.join(QUESTIONS)}, got {list(questions)!r}.")
    if not test_id or file_name(test_id) != test_id or " " in test_id:
        raise ValueError(f"the test id must make a file name without spaces, got {test_id!r}.")
    results.check_audio(path for page in pages for path in _paths(results, page))
    with files.filled_at_once(out) as folder:
        files.make_folder(os.path.join(folder, "audio"))
        chance, rows, listed = random.Random(seed), [], []
        for number, page in enumerate(pages, 1):
            made = _write_page(results, page, f"p{number:02d}", folder, loudness, seconds, chance)
            rows += [row | {"test_id": test_id} for row in made]
            listed.append(_page(made, f"configs/{test_id}"))
        files.write_csv(os.path.join(folder, "stimuli.csv"), columns_of(KEY_COLUMNS, rows), rows)
        for question in questions:
            text = _yaml(_configuration(listed, test_id, question, rows[0]["file"]))
            files.write_bytes(os.path.join(folder, f"{question}.yaml"), text.encode())
    longest = max(row["end_s"] - row["start_s"] for row in rows)
    if longest > LONG_S:
        warnings.warn(
            f"the longest sound lasts {longest:.0f} s; beyond {LONG_S:g} s listeners cannot keep "
            "two sounds apart. Cut them with seconds=10 (--seconds 10).",
            stacklevel=2,
        )
    names = ("stimuli.csv", *(f"{question}.yaml" for question in questions))
    return tuple(os.path.join(os.fspath(out), name) for name in names)


def _paths(results: Results, page: Page, stimuli: Sequence[Stimulus] | None = None) -> list[str]:
    """The files of a page: reference, then estimates, in the order of ``stimuli``."""
    paths = results.audio(page.mixture_id)
    shown = page.stimuli if stimuli is None else stimuli
    estimates = [paths.estimates[one.system][one.place] for one in shown]
    return [paths.references[page.source_index], *estimates]


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
    stimuli = list(page.stimuli)
    chance.shuffle(stimuli)
    waves, rate = _read(_paths(results, page, stimuli))
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
    names = ("ps", "log_pm") if frames.pm_rank is None else ("ps", "log_pm", RANK)
    if not inside.any():
        return dict.fromkeys(names, float("nan"))
    return {
        name: float(getattr(frames, name)[place][inside].mean(dtype=np.float64)) for name in names
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
