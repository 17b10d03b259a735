"""Listening tests with the scored outputs, for webMUSHRA: stimuli that span the scores.

A *page* is one source of one mixture: its reference (open and hidden), the systems' estimates of
it, and an anchor that webMUSHRA makes (3.5 kHz low-pass). Pages are chosen so that their stimuli
fill a grid of two scores, both by rank over the whole set, as evenly as possible, because
correlations need ratings over the whole range. All sounds have the same loudness (ITU-R BS.1770);
if a peak would clip, the whole page is lowered by the same gain. Every page's id begins with the
*mark* of the test, a hash of its key and sounds. See ``recipes/guide/listening.md`` and
https://github.com/audiolabs/webMUSHRA.
"""

from __future__ import annotations

import hashlib
import json
import math
import os
import random
from collections import Counter
from collections.abc import Sequence
from importlib import resources
from string import Template
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from torch_mapss import audio
from torch_mapss.core.checks import check_whole, warn_user
from torch_mapss.core.pooling import masked_mean, pool_fidelity
from torch_mapss.evaluation import io, sounds
from torch_mapss.evaluation.listen_ratings import mark_of, read_key
from torch_mapss.evaluation.records import rows_of
from torch_mapss.evaluation.results import Results
from torch_mapss.evaluation.worst import frame_curves

#: Pairs of scores that a test may span: the first pair that the results contain.
SPANNED = (("clearance", "fidelity"), ("ps", "log_pm"))
#: Questions for listeners, divided like the scores.
QUESTIONS = {
    "quality": "Rate the basic audio quality of each sound against the reference: 100 = no "
    "difference can be heard. Other sources that are still there count as well.",
    "interference": "Rate how well the other sources are removed from each sound: 100 = nothing "
    "of them can be heard. Leave other artefacts aside.",
    "distortion": "Rate how undistorted the target itself sounds: 100 = as in the reference. "
    "Leave other sources that can still be heard aside.",
}
#: Name of the test, of its folder in webMUSHRA's ``configs`` and in its results.
TEST_ID = "mapss"
# Scores of the sounds in the key, if the results have them.
_KEY_MEASURES = [name for pair in SPANNED for name in pair]
_KEY_COLUMNS = (
    *("page", "condition", "mixture_id", "source", "system", "role", *_KEY_MEASURES),
    *("start_s", "end_s", "loudness_lufs", "file", "test_id"),
)
_GRID = 4  # cells of the grid per axis
#: Systems on a page, drawn at random if there are more.
MAX_SYSTEMS = 8
#: Loudness of every sound in LUFS.
LOUDNESS = -23.0
#: Listeners cannot compare longer sounds (BS.1534 advises about 10 s, at most 12).
LONG_S = 12.0

Row = dict[str, Any]


def spanned(results: Results) -> list[str]:
    """Scores that the stimuli of a test span: two, or one if there is no other."""
    have = results.measures
    return next((list(pair) for pair in SPANNED if {*pair} <= {*have}), list(have[:2]))


def choose(results: Results, count: int = 12, *, seed: int = 0) -> list[list[Row]]:
    """Choose the pages of a test: at every step the one whose stimuli lie in the emptiest cells.

    Args:
        results: results with scored frames.
        count: number of pages; fewer if the set has fewer.
        seed: seed for choosing among equals.

    Returns:
        The rows of scores.csv that are rated together, page by page, without those whose file is
        the reference, which webMUSHRA adds itself.

    Raises:
        ValueError: the count is below 1, or nothing is scored.
    """
    count = check_whole(count, "count", 1)
    scored = results.scores[results.scores["status"] == "ok"]
    hashes = [
        [results.sha256.get(path, path) for path in scored[column]]
        for column in ("estimate", "reference")
    ]
    is_reference = [estimate == reference for estimate, reference in zip(*hashes)]
    scored = scored[~np.array(is_reference, dtype=bool)]
    if scored.empty:
        raise ValueError(
            "no estimate has scored frames, so there is nothing to listen to: see the column "
            "`reason` of scores.csv."
        )
    # Cells by rank; undefined scores are the lowest.
    ranks = scored[spanned(results)].fillna(-np.inf).rank() - 0.5
    cells = (_GRID * ranks / len(scored)).astype(int)
    scored = scored.assign(cell=[*cells.itertuples(index=False, name=None)])
    chance = random.Random(seed)
    groups = scored.groupby(["mixture_id", "source_index"], sort=False)
    pages = [rows_of(rows) for _, rows in groups]
    pages = [
        rows if len(rows) <= MAX_SYSTEMS else chance.sample(rows, MAX_SYSTEMS) for rows in pages
    ]
    chance.shuffle(pages)
    filled: Counter[tuple[int, ...]] = Counter()
    chosen_pages: list[list[Row]] = []
    while pages and len(chosen_pages) < count:
        chosen_pages.append(pages.pop(int(np.argmax([_gain(rows, filled) for rows in pages]))))
        filled.update(row["cell"] for row in chosen_pages[-1])
    return chosen_pages


def _gain(rows: Sequence[Row], filled: Counter[tuple[int, ...]]) -> float:
    """Gain from adding a page: a stimulus counts half for each one already in its cell."""
    counts, gain = filled.copy(), 0.0
    for row in rows:
        gain += 0.5 ** counts[row["cell"]]
        counts[row["cell"]] += 1
    return gain / len(rows)


def write_test(
    results: Results,
    pages: Sequence[Sequence[Row]],
    out: str | os.PathLike[str],
    *,
    seconds: float | None = None,
    seed: int = 0,
) -> list[str]:
    """Write sounds, key and one webMUSHRA configuration for each question.

    ``out`` is to be copied to ``configs/mapss`` of webMUSHRA and opened as
    ``?config=mapss/QUESTION.yaml``.

    Args:
        results: results that the pages were chosen from.
        pages: result of :func:`choose`.
        out: folder, made if need be. The same test may be written again.
        seconds: length to cut longer sounds to, where most frames are scored; whole by default. The
            scores in the key are then those of the excerpt's frames.
        seed: seed of the order of conditions.

    Returns:
        The key and the configurations.

    Raises:
        ValueError: the folder holds another test.
        FileNotFoundError: audio is missing. After any error nothing is written.
    """
    results.check_audio(path for rows in pages for path in _paths(results, rows))
    out, names = os.fspath(out), ["stimuli.csv", *(f"{question}.yaml" for question in QUESTIONS)]
    with io.filled_at_once(out) as folder:
        io.make_folder(os.path.join(folder, "audio"))
        chance = random.Random(seed)
        key: list[Row] = []
        for number, rows in enumerate(pages, 1):
            shuffled = [*rows]
            chance.shuffle(shuffled)
            key += _write_page(results, shuffled, f"p{number:02d}", folder, seconds)
        mark = _mark(folder, key)
        key_before = os.path.join(out, "stimuli.csv")
        if os.path.exists(key_before) and mark_of(read_key(key_before)) != mark:
            raise ValueError(
                f"{io.shown(out)!r} holds another listening test, whose ratings need its own key. "
                "Choose a new folder with --out, or delete that test first."
            )
        key = [{**row, "page": f"{mark}-{row['page']}"} for row in key]
        present_names = set().union(*key)
        columns = [name for name in _KEY_COLUMNS if name in present_names]
        io.write_table(os.path.join(folder, "stimuli.csv"), key, columns, undefined="")
        for question in QUESTIONS:
            text = _configuration(key, question)
            io.write_bytes(os.path.join(folder, f"{question}.yaml"), text.encode())
    longest = max(row["end_s"] - row["start_s"] for row in key)
    if longest > LONG_S:
        warn_user(
            f"the longest sound lasts {longest:.0f} s; beyond {LONG_S:g} s listeners cannot keep "
            "two sounds apart. Cut them with --seconds 10 (seconds=10)."
        )
    return [os.path.join(out, name) for name in names]


def _mark(folder: str, key: Sequence[Row]) -> str:
    """Mark of a test: an eight-digit hash of its key and its sounds."""
    names = ("page", "condition", "mixture_id", "source", "system")
    content = [[*map(row.get, names), io.sha256(os.path.join(folder, row["file"]))] for row in key]
    return hashlib.sha256(json.dumps(content).encode()).hexdigest()[:8]


def _paths(results: Results, rows: Sequence[Row]) -> list[str]:
    estimates = [row["estimate"] for row in rows]
    return [results.locate(path) for path in (rows[0]["reference"], *estimates)]


def _write_page(
    results: Results, rows: Sequence[Row], name: str, folder: str, seconds: float | None
) -> list[Row]:
    """Write the sounds of a page; returns its rows of the key, reference first."""
    waves, rate = sounds.read_together(_paths(results, rows))
    key: list[Row] = [{"condition": "reference", "system": "reference", "role": "hidden_reference"}]
    for number, row in enumerate(rows, 1):
        scores = {measure: row[measure] for measure in _KEY_MEASURES if measure in row}
        condition = {"condition": f"C{number}", "system": row["system"], "role": "system"}
        key.append({**condition, **scores})
    begin_s, end_s = 0.0, waves.shape[-1] / rate
    if seconds is not None and seconds < end_s:
        curves = [(times, values) for _, times, values in frame_curves(results, rows)]
        times, values_by_name = curves[0]
        with_frames = [name for name in spanned(results) if name in values_by_name]
        scored = values_by_name[next(iter(with_frames or values_by_name))]
        begin_s = _excerpt_begin(times, scored, end_s, seconds)
        end_s = begin_s + seconds
        for condition, (times, values_by_name) in zip(key[1:], curves):
            inside = (times >= begin_s) & (times <= end_s)
            condition |= {
                name: _pooled(name, values_by_name[name][inside])
                for name in _KEY_MEASURES
                if name in condition
            }
    waves = sounds.cut(waves, rate, begin_s, end_s)
    waves = audio.normalize_loudness(waves, rate, LOUDNESS, peak=math.inf)
    waves = waves / waves.abs().max().clamp(min=1.0)
    levels = audio.integrated_loudness(waves, rate).tolist()
    for row, wave, level in zip(key, waves, levels):
        row |= {column: rows[0][column] for column in ("mixture_id", "source")}
        row |= {"page": name, "test_id": TEST_ID, "start_s": begin_s, "end_s": end_s}
        row |= {"file": f"audio/{name}_{row['condition']}.wav", "loudness_lufs": round(level, 2)}
        io.write_wave(os.path.join(folder, row["file"]), wave, rate, "PCM_24")
    return key


def _excerpt_begin(times: Any, scores: Any, length: float, seconds: float) -> float:
    """Start, in seconds, of the excerpt with the most scored frames."""
    begins = np.arange(0.0, length - seconds + 1e-9, 0.1)
    counts = np.concatenate([[0], np.cumsum(np.isfinite(scores))])
    begin_frames, end_frames = (np.searchsorted(times, begins + s) for s in (0.0, seconds))
    return float(begins[int(np.argmax(counts[end_frames] - counts[begin_frames]))])


def _pooled(measure: str, values: NDArray[np.float64]) -> float:
    """Pool the frame scores of an excerpt like those of an utterance; NaN if none is scored."""
    frames = torch.from_numpy(values)
    scored = frames.isfinite()
    if measure == "fidelity":
        return float(pool_fidelity(frames, scored, scored))
    return float(masked_mean(frames, scored))


def _configuration(key: Sequence[Row], question: str) -> str:
    """Configuration for webMUSHRA, whose parser (yamljs) cannot read PyYAML's nested lists."""
    assets = resources.files("torch_mapss") / "assets"
    files = (assets / f"{name}.yaml" for name in ("webmushra", "webmushra_page"))
    test_template, page_template = (Template(file.read_text("utf-8")) for file in files)
    about = {"question": question, "text": QUESTIONS[question], "test": TEST_ID}
    pages: list[str] = []
    for row in key:
        path = f"configs/{TEST_ID}/{row['file']}"
        if row["condition"] == "reference":
            numbered = {"id": row["page"], "number": len(pages) + 1, "reference": path}
            pages.append(page_template.substitute(about, **numbered))
        else:
            pages[-1] += f'        {row["condition"]}: "{path}"\n'
    stimulus = f"configs/{TEST_ID}/{key[0]['file']}"
    return test_template.substitute(about, stimulus=stimulus, pages="".join(pages).rstrip())
