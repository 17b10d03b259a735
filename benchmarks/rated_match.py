"""PM of rated and separated outputs: conventions, with and without leakage members, by encoder.

    OMP_NUM_THREADS=1 python benchmarks/rated_match.py --data FOLDER --sets ward2018 p835ref \
        --encoders mel waveform transformer --step 20

FOLDER holds the sets, each with a manifest of this package's format and a table of ratings (track,
source, system, question, mean_rating). `transformer` is a small wav2vec2 with random weights. For
every output PM is averaged over every ``step``-th frame, plainly and as the mean of log PM, and
held against the ratings within each track; the table has the means over tracks.
"""

from __future__ import annotations

import argparse
import csv
import json
import math
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

import torch
from bounds_data import Frames, embedded, read
from bounds_page import table, write_section
from conformal_page import PAGE, TITLE
from scipy.stats import spearmanr
from torch import Tensor

from torch_mapss import MAPSS, DistortionBank
from torch_mapss import functional as F

MEMBERS = 7
TINY = math.log(1e-6)


class Set(NamedTuple):
    """A folder of outputs and what is known of them."""

    manifest: str
    ratings: str
    questions: tuple[str, ...]
    by_source: bool = False  # each source of a mixture is a track of its own


SETS = {
    "ward2018": Set("mapss.json", "ratings.csv", ("quality", "interference")),
    "p835ref": Set("mapss_by_talker.json", "ratings_by_talker.csv", ("sig", "bak", "ovrl")),
    "sisec08": Set("mapss.json", "ratings.csv", ("basic_audio_quality",), by_source=True),
    "separated": Set("mapss.json", "scores.csv", ("si_sar", "si_sir")),
}


class Output(NamedTuple):
    """One rated output."""

    track: str
    system: str
    source: str
    log_pm: dict[tuple[str, str], Tensor]  # leakage members, convention -> (frames,)


def encoder_of(name: str) -> str:
    """A name, or the folder of a small transformer of random weights."""
    if name != "transformer":
        return name
    from transformers import Wav2Vec2Config, Wav2Vec2FeatureExtractor, Wav2Vec2Model

    torch.manual_seed(0)
    sizes = {"hidden_size": 192, "num_hidden_layers": 2, "num_attention_heads": 4}
    config = Wav2Vec2Config(**sizes, intermediate_size=384, conv_dim=(96,) * 7)
    folder = tempfile.mkdtemp()
    Wav2Vec2Model(config).save_pretrained(folder)
    Wav2Vec2FeatureExtractor().save_pretrained(folder)
    return folder


def without_leakage(frames: Frames) -> Frames:
    """The frames less the leakage members, which are the last ones present of each source."""
    shape = frames.distortions.shape[:3]
    mask = frames.options.get("mask", torch.ones(shape, dtype=torch.bool))
    assert isinstance(mask, Tensor)
    kept = torch.arange(shape[2]) < mask.sum(-1, keepdim=True) - MEMBERS
    return frames._replace(options={**frames.options, "mask": mask & kept})


def log_scores(frames: Frames) -> dict[str, Tensor]:
    """log PM (F, S') of every convention, and the log of the rank form."""
    points, options = frames[:3], frames.options
    found = {
        name: F.perceptual_match(*points, **options, log=True, convention=name)
        for name in ("paper", "reference", "conformal")
    }
    return {**found, "rank": F.match_rank(*points, **options).log()}


def scored(frames: Frames) -> Tensor:
    """(F, S') bool: the output's source is active."""
    index = list(frames.options["attributed"])  # type: ignore[call-overload]
    active = frames.options.get("active")
    if not isinstance(active, Tensor):
        return torch.ones(len(frames.outputs), len(index), dtype=torch.bool)
    return active[:, index]


def outputs(root: Path, known: Set, encoder: str, step: int) -> Iterator[Output]:
    bank = DistortionBank("match", leakage=MEMBERS)
    mapss = MAPSS(encoder, match_bank=bank, separation_bank=DistortionBank(size=1))
    rate = mapss.grid.sample_rate
    for entry in json.loads((root / known.manifest).read_text(encoding="utf-8")):
        references = torch.stack([read(root / path, rate) for path in entry["references"]])
        prepared = mapss.prepare(references.unsqueeze(0))
        for system, paths in entry["systems"].items():
            if system.startswith("control:"):
                continue
            index = tuple(place for place, path in enumerate(paths) if path)
            waves = [read(root / paths[i], rate)[: references.shape[-1]] for i in index]
            _, frames = embedded(mapss, torch.stack(waves)[None], prepared, index, step)
            found = {
                (bank_name, name): values
                for bank_name, some in (("no", without_leakage(frames)), ("yes", frames))
                for name, values in log_scores(some).items()
            }
            there = scored(frames)
            for place, source in enumerate(index):
                name = source_name(entry["references"][source])
                track = entry["mixture_id"] + (f"/{name}" if known.by_source else "")
                kept = {
                    key: values[:, place][there[:, place]].double() for key, values in found.items()
                }
                yield Output(track, system, name, kept)


def source_name(path: str) -> str:
    return Path(path).stem.removeprefix("ref_")


def ratings(root: Path, known: Set) -> dict[tuple[str, ...], float]:
    """(track, system, question[, source]) -> value; a table of scores has a column a question."""
    found = {}
    with (root / known.ratings).open(encoding="utf-8") as lines:
        for row in csv.DictReader(lines):
            if "question" not in row:
                for question in known.questions:
                    key = row["item"], row["system"], question, row["source"]
                    found[key] = float(row[question])
                continue
            track = row["track"] + (f"/{row['source']}" if known.by_source else "")
            found[track, row["system"], row["question"]] = float(row["mean_rating"])
    return found


def rated(found: dict[tuple[str, ...], float], output: Output, question: str) -> float:
    key = output.track, output.system, question
    return found[key] if key in found else found[(*key, output.source)]


def correlation(x: list[list[float]], y: list[list[float]]) -> str:
    """Mean over tracks of the rank correlation, and its 95 % interval over tracks."""
    each = [spearmanr(a, b).statistic for a, b in zip(x, y, strict=True)]
    each = torch.tensor([0.0 if math.isnan(c) else c for c in each], dtype=torch.float64)
    if len(each) < 2:
        return f"{each.mean():+.2f}"
    generator = torch.Generator().manual_seed(0)
    draws = torch.randint(len(each), (2000, len(each)), generator=generator)
    low, high = each[draws].mean(-1).quantile(torch.tensor([0.025, 0.975]).double()).tolist()
    return f"{each.mean():+.2f} ({low:+.2f} … {high:+.2f})"


def rows_of(
    name: str, encoder: str, known: Set, given: list[Output], root: Path
) -> list[list[str]]:
    values, rows = ratings(root, known), []
    tracks = sorted({output.track for output in given})
    for key in given[0].log_pm:
        every = torch.cat([output.log_pm[key] for output in given])
        cells = [name, encoder, *key, f"{every.exp().mean():.3f}"]
        cells += [f"{(every < TINY).double().mean():.0%}", f"{every.mean():.1f}"]
        for question in known.questions:
            for pool in (lambda log: log.exp().mean(), lambda log: log.mean()):
                x, y = [], []
                for track in tracks:
                    mine = [output for output in given if output.track == track]
                    x.append([float(pool(output.log_pm[key])) for output in mine])
                    y.append([rated(values, output, question) for output in mine])
                cells.append(correlation(x, y))
        rows.append(cells)
    return rows


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--data", type=Path, required=True)
    parser.add_argument("--sets", nargs="+", choices=SETS, default=list(SETS))
    parser.add_argument("--encoders", nargs="+", default=["mel", "waveform", "transformer"])
    parser.add_argument("--step", type=int, default=20, help="score every n-th frame")
    arguments = parser.parse_args()
    for name in arguments.sets:
        known, root, start, rows = SETS[name], arguments.data / name, time.time(), []
        for encoder in arguments.encoders:
            given = list(outputs(root, known, encoder_of(encoder), arguments.step))
            rows += rows_of(name, encoder, known, given, root)
            write(name, known, given, rows, arguments.step, time.time() - start)


def write(
    name: str, known: Set, given: list[Output], rows: list[list[str]], step: int, seconds: float
) -> None:
    """The section of a set, with the encoders that are done."""
    header = ["set", "encoder", "leakage members", "convention", "mean PM", "PM < 1e-6"]
    header += ["mean log PM"]
    for question in known.questions:
        header += [f"mean PM with {question}", f"mean log PM with {question}"]
    tracks = len({output.track for output in given})
    frames = sum(len(output.log_pm["no", "paper"]) for output in given)
    text = f"""## PM on `{name}` (`rated_match.py`)

{len(given)} outputs, {tracks} tracks, every {step}th frame ({frames} of them). Spearman
correlations within a track, averaged over tracks (95 % interval over tracks by bootstrap).
`rank` is the rank form of the conformal convention.

{table(header, rows)}

{seconds:.0f} s.
"""
    write_section(f"rated-{name}", text, PAGE, TITLE)


if __name__ == "__main__":
    main()
