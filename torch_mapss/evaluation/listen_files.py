"""The files of a listening test: sounds at one loudness, webMUSHRA's configurations, the key.

All sounds are brought to one loudness (ITU-R BS.1770), all of a page lower by the same gain if a
peak would not fit. Names of files and conditions tell nothing; ``stimuli.csv`` is the key, to be
kept from the listeners. Every page's id begins with the *mark* of the test, a hash of its key and
sounds, so that ratings are never read with the key of another test.
"""

from __future__ import annotations

import hashlib
import json
import os
import random
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor

from torch_mapss import audio
from torch_mapss.core.checks import warn_user
from torch_mapss.evaluation import io, sounds
from torch_mapss.evaluation.listen import SPANNED, Page
from torch_mapss.evaluation.listen_ratings import mark_of, read_key
from torch_mapss.evaluation.results import Results

#: Measures of the sounds in the key, where the results have them.
KEY_MEASURES = tuple(name for pair in SPANNED for name in pair)
KEY_COLUMNS = (
    *("page", "condition", "mixture_id", "source", "system", "role", *KEY_MEASURES),
    *("start_s", "end_s", "loudness_lufs", "file", "test_id"),
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
        pages: of :func:`~torch_mapss.evaluation.listen.choose`.
        out: folder, made if need be. The same test may be written again, with other questions.
        test_id: name of the test; goes into paths and results.
        questions: of :data:`QUESTIONS`.
        loudness: of all sounds, in LUFS.
        seconds: cut longer sounds to so much, where most frames are scored; whole by default. The
            scores in the key are then means over the frames of the excerpt.
        seed: of the order of conditions.

    Returns:
        The configurations and the key.

    Raises:
        ValueError: an unknown question, a name that makes no path, or a folder that holds another
            test.
        FileNotFoundError: audio that is gone. Nothing is written then, as after every error.
    """
    unknown = [name for name in questions if name not in QUESTIONS]
    if unknown or not questions:
        raise ValueError(f"questions must be of {', '.join(QUESTIONS)}, got {list(questions)!r}.")
    if not test_id or io.file_name(test_id) != test_id or " " in test_id:
        raise ValueError(f"test_id must make a file name without spaces, got {test_id!r}.")
    results.check_audio(path for page in pages for path in _paths(results, page.rows))
    with io.filled_at_once(out) as folder:
        io.make_folder(os.path.join(folder, "audio"))
        chance, rows = random.Random(seed), []
        for number, page in enumerate(pages, 1):
            made = _write_page(results, page, f"p{number:02d}", folder, loudness, seconds, chance)
            rows += [row | {"test_id": test_id} for row in made]
        mark = _mark(folder, rows)
        _check_no_other(out, mark)
        rows = [row | {"page": f"{mark}-{row['page']}"} for row in rows]
        columns = [name for name in KEY_COLUMNS if any(name in row for row in rows)]
        io.write_table(os.path.join(folder, "stimuli.csv"), rows, columns, undefined="")
        for question in questions:
            text = _yaml(_configuration(rows, test_id, question))
            io.write_bytes(os.path.join(folder, f"{question}.yaml"), text.encode())
    longest = max(row["end_s"] - row["start_s"] for row in rows)
    if longest > LONG_S:
        warn_user(
            f"the longest sound lasts {longest:.0f} s; beyond {LONG_S:g} s listeners cannot keep "
            "two sounds apart. Cut them with --seconds 10 (seconds=10)."
        )
    names = ("stimuli.csv", *(f"{question}.yaml" for question in questions))
    return tuple(os.path.join(os.fspath(out), name) for name in names)


def _mark(folder: str, rows: Sequence[Mapping[str, Any]]) -> str:
    """Eight digits that tell this test from every other one: of its key, and of its sounds."""
    names = ("page", "condition", "mixture_id", "source", "system")
    content = [[*map(row.get, names), io.sha256(os.path.join(folder, row["file"]))] for row in rows]
    return hashlib.sha256(json.dumps(content).encode()).hexdigest()[:8]


def _check_no_other(out: str | os.PathLike[str], mark: str) -> None:
    """Refuse to replace the key of another test: its ratings could not be read any more."""
    path = os.path.join(os.fspath(out), "stimuli.csv")
    if os.path.exists(path) and mark_of(read_key(path)) != mark:
        raise ValueError(
            f"{io.shown(out)!r} holds another listening test, whose ratings can be read with "
            "its own key alone. Name a new folder with --out, or delete that test first."
        )


def _paths(results: Results, rows: Sequence[Mapping[str, Any]]) -> list[str]:
    """The files of a page: reference, then estimates, in the order of ``rows``."""
    return [results.locate(path) for path in (rows[0]["reference"], *(r["estimate"] for r in rows))]


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
    shown = list(page.rows)
    chance.shuffle(shown)
    waves, rate = sounds.read_together(_paths(results, shown))
    start, end = _excerpt(results, page, waves.shape[-1] / rate, seconds)
    waves = _levelled(sounds.cut(waves, rate, start, end), rate, loudness)
    measured = audio.integrated_loudness(waves, rate).tolist()
    common = {"mixture_id": page.mixture_id, "source": page.source, "start_s": start, "end_s": end}
    told: list[dict[str, Any]] = [{"system": "reference", "role": "hidden_reference"}]
    for row in shown:
        scores = {m: row[m] for m in KEY_MEASURES if row.get(m) is not None}
        if seconds is not None:
            scores = _heard(results, row, scores, start, end)
        told.append({"system": row["system"], "role": "system"} | scores)
    rows = []
    for place, (wave, own) in enumerate(zip(waves, told)):
        condition = f"C{place}" if place else "reference"
        file = f"audio/{name}_{condition}.wav"
        io.write_wave(os.path.join(folder, file), wave, rate, "PCM_24")
        level = {"loudness_lufs": round(measured[place], 2)}
        rows.append({"page": name, "condition": condition, "file": file} | common | level | own)
    return rows


def _heard(
    results: Results, row: Mapping[str, Any], names: Iterable[str], start: float, end: float
) -> dict[str, float]:
    """Scores of an excerpt, pooled as utterances are; NaN where none of its frames is scored."""
    frames = results.frames(row["mixture_id"])
    found = frames.systems[row["system"]]
    place = found.attributed.tolist().index(row["source_index"])
    inside = (frames.times >= start) & (frames.times <= end)
    means = {}
    for name in names:
        values = getattr(found, name)[place][inside & found.active[place]].astype(np.float64)
        values = values[np.isfinite(values)]
        if name == "fidelity":  # by its RMS, which bad moments weigh in
            values = 1.0 - np.sqrt(np.square(1.0 - values).mean(keepdims=values.size > 0))
        means[name] = float(values.mean()) if values.size else float("nan")
    return means


def _excerpt(
    results: Results, page: Page, length: float, seconds: float | None
) -> tuple[float, float]:
    """Where most frames are scored: start and end in s."""
    if seconds is None or seconds >= length:
        return 0.0, length
    frames = results.frames(page.mixture_id)
    system = frames.systems[page.rows[0]["system"]]
    active = system.active[system.attributed.tolist().index(page.source_index)]
    starts = np.arange(0.0, length - seconds + 1e-9, 0.1)
    counts = np.concatenate([[0], np.cumsum(active)])
    first, last = (np.searchsorted(frames.times, starts + more) for more in (0.0, seconds))
    start = float(starts[int(np.argmax(counts[last] - counts[first]))])
    return start, start + seconds


def _levelled(waves: Tensor, rate: int, loudness: float) -> Tensor:
    """Waveforms (n, T) at one loudness, lower by one gain for all if a peak would not fit."""
    found = audio.integrated_loudness(waves, rate)
    gain = torch.where(found.isfinite(), 10.0 ** ((loudness - found) / 20.0), 1.0)
    waves = waves * gain.unsqueeze(-1)
    return waves / waves.abs().max().clamp(min=1.0)


def _configuration(
    rows: Sequence[Mapping[str, Any]], test_id: str, question: str
) -> dict[str, Any]:
    """What webMUSHRA reads."""
    text, folder = QUESTIONS[question], f"configs/{test_id}"
    asked: dict[str, dict[str, Any]] = {}
    for row in rows:
        path = f"{folder}/{row['file']}"
        if row["condition"] == "reference":
            page = {"type": "mushra", "id": row["page"], "name": f"Page {len(asked) + 1}"}
            page |= {"content": text, "showWaveform": True, "enableLooping": True, "strict": False}
            page |= {"createAnchor35": True, "createAnchor70": False, "randomize": True}
            page |= {"showConditionNames": False, "reference": path, "stimuli": {}}
            asked[row["page"]] = page
        else:
            asked[row["page"]]["stimuli"][row["condition"]] = path
    start = {"type": "generic", "id": "start", "name": "Welcome", "content": text}
    volume = {"type": "volume", "id": "volume", "name": "Volume", "defaultVolume": 0.5}
    volume |= {"content": "Set a comfortable volume, and leave it there."}
    volume |= {"stimulus": f"{folder}/{rows[0]['file']}"}
    end: dict[str, Any] = {"type": "finish", "name": "Thank you", "content": "Send your ratings."}
    end |= {"popupContent": "", "showResults": False, "writeResults": True}
    return {
        "testname": f"Listening test: {question}",
        "testId": f"{test_id}-{question}",
        "bufferSize": 2048,
        "stopOnErrors": True,
        "showButtonPreviousPage": True,
        "remoteService": "service/write.php",
        "pages": [start, volume, ["random", *asked.values()], end],
    }


def _yaml(value: Any, indent: int = 0) -> str:
    """Block YAML of dictionaries, lists and scalars; scalars as JSON writes them.

    webMUSHRA's parser (yamljs) does not read the nested lists that PyYAML writes.
    """
    lead = "  " * indent
    if isinstance(value, Mapping):
        return "".join(f"{lead}{key}:{_nested(item, indent)}" for key, item in value.items())
    return "".join(f"{lead}-{_nested(item, indent)}" for item in value)


def _nested(value: Any, indent: int) -> str:
    if isinstance(value, Mapping | list):
        return "\n" + _yaml(value, indent + 1)
    return f" {json.dumps(value, ensure_ascii=False)}\n"
