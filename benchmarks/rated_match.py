"""PM of rated and separated outputs: conventions, with and without leakage members, by encoder.

    OMP_NUM_THREADS=1 python benchmarks/rated_match.py --data FOLDER --sets ward2018 p835ref \
        --encoders mel waveform transformer --step 20

FOLDER holds the sets, each with a manifest of this package's format and a table of ratings (track,
source, system, question, mean_rating). `transformer` is a small wav2vec 2.0 with random weights.
For every output PM is averaged over every ``step``-th frame, plainly and as the mean of log PM, and
held against the ratings within each track; the table has the means over tracks. Rows of encoders
that are not asked for stay in the section as they are.
"""

from __future__ import annotations

import argparse
import csv
import json
import math
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import NamedTuple

import conformal_page
import torch
from bounds_data import Frames, embedded, read
from match_scores import log_scores
from scipy.stats import spearmanr
from torch import Tensor

from torch_mapss import MAPSS, DistortionBank

MEMBERS = 7
TINY = math.log(1e-6)


class Set(NamedTuple):
    """A folder of outputs and what is known of them."""

    manifest: str
    ratings: str
    questions: tuple[str, ...]
    note: str  # what listeners were asked, or that there were none
    by_source: bool = False  # each source of a mixture is a track of its own


SETS = {
    "ward2018": Set(
        "mapss.json",
        "ratings.csv",
        ("quality", "interference"),
        "Singing voice taken out of songs; interference: higher is less of it.",
    ),
    "p835ref": Set(
        "mapss_by_talker.json",
        "ratings_by_talker.csv",
        ("sig", "bak", "ovrl"),
        "Speech, noise and distortion set apart: sig rates distortion, bak noise, ovrl both.",
    ),
    "sisec08": Set(
        "mapss.json",
        "ratings.csv",
        ("basic_audio_quality",),
        "One mixture of three instruments, one question for everything. Every track has three\n"
        "systems, whose correlations are -1, -0.5, 0.5 or 1: a spot check, no evidence.",
        by_source=True,
    ),
    "separated": Set(
        "mapss.json",
        "scores.csv",
        ("si_sar", "si_sir"),
        "Speech, without listeners: energy ratios in their place.",
    ),
}
ENCODERS = (
    "`transformer` is a wav2vec 2.0 of 2 layers, 128 features and 7 convolutions of 64 channels,\n"
    "all weights random."
)


class Output(NamedTuple):
    """One rated output."""

    track: str
    system: str
    source: str
    log_pm: dict  # (leakage members, convention), or another name -> (frames,)


def encoder_of(name: str) -> str:
    """A name, or the folder of a small transformer of random weights."""
    if name != "transformer":
        return name
    from transformers import Wav2Vec2Config, Wav2Vec2FeatureExtractor, Wav2Vec2Model

    torch.manual_seed(0)
    sizes = {"hidden_size": 128, "num_hidden_layers": 2, "num_attention_heads": 4}
    config = Wav2Vec2Config(**sizes, intermediate_size=256, conv_dim=(64,) * 7)
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


def scored(frames: Frames) -> Tensor:
    """(F, S') bool: the output's source is active."""
    index = list(frames.options["attributed"])  # type: ignore[call-overload]
    active = frames.options.get("active")
    if not isinstance(active, Tensor):
        return torch.ones(len(frames.outputs), len(index), dtype=torch.bool)
    return active[:, index]


def of_both_banks(frames: Frames) -> dict[tuple[str, str], Tensor]:
    """log PM (F, S') of every convention, without and with leakage members."""
    banks = {"no": without_leakage(frames), "yes": frames}
    return {
        (bank, name): values
        for bank, some in banks.items()
        for name, values in log_scores(*some[:3], **some.options).items()
    }


def outputs(
    root: Path,
    known: Set,
    encoder: str,
    step: int,
    members: int = MEMBERS,
    scores: Callable[[Frames], dict] = of_both_banks,
) -> Iterator[Output]:
    """Every output with what ``scores`` finds in its frames, of a bank with leakage members."""
    bank = DistortionBank("match", leakage=members)
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
            found = scores(frames)
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


def interval(values: Tensor, weights: Tensor) -> tuple[float, float, float]:
    """Weighted mean over tracks, and its 95 % interval by drawing tracks anew."""
    generator = torch.Generator().manual_seed(0)
    draws = torch.randint(len(values), (2000, len(values)), generator=generator)
    means = (values * weights)[draws].sum(-1) / weights[draws].sum(-1)
    low, high = means.quantile(torch.tensor([0.025, 0.975], dtype=means.dtype)).tolist()
    return float((values * weights).sum() / weights.sum()), low, high


def correlations(x: list[list[float]], y: list[list[float]]) -> Tensor:
    """Rank correlation of every track; 0 where one side has no order."""
    found = [spearmanr(a, b).statistic for a, b in zip(x, y, strict=True)]
    return torch.tensor([0.0 if math.isnan(c) else c for c in found], dtype=torch.float64)


def mean_over_tracks(each: Tensor, beside: Tensor | None = None) -> str:
    """The mean and its 95 % interval; a star where that of the change from ``beside`` is off 0."""
    mean, low, high = interval(each, torch.ones_like(each))
    star = ""
    if beside is not None:
        _, least, most = interval(each - beside, torch.ones_like(each))
        star = "*" if least > 0.0 or most < 0.0 else ""
    return f"{mean:+.2f} ({low:+.2f} … {high:+.2f}){star}"


POOLS: tuple[Callable[[Tensor], Tensor], ...] = (
    lambda log: log.exp().mean(),
    lambda log: log.mean(),
)


def with_ratings(
    root: Path, known: Set, of_track: list[list[Output]], key: object
) -> list[tuple[str, Tensor]]:
    """Correlations by track of mean PM and of mean log PM with every question."""
    values, found = ratings(root, known), []
    for question in known.questions:
        y = [[rated(values, output, question) for output in mine] for mine in of_track]
        for pool, name in zip(POOLS, ("mean PM", "mean log PM"), strict=True):
            x = [[float(pool(output.log_pm[key])) for output in mine] for mine in of_track]
            found.append((f"{name} with {question}", correlations(x, y)))
    return found


def by_track(given: list[Output]) -> list[list[Output]]:
    tracks = sorted({output.track for output in given})
    return [[output for output in given if output.track == track] for track in tracks]


def rows_of(
    encoder: str, step: int, known: Set, given: list[Output], root: Path
) -> list[list[str]]:
    rows, of_track = [], by_track(given)
    for key in given[0].log_pm:
        logs = [torch.cat([output.log_pm[key] for output in mine]) for mine in of_track]
        frames = torch.tensor([len(log) for log in logs], dtype=torch.float64)
        mean = interval(torch.stack([log.exp().mean() for log in logs]), frames)
        tiny = interval(torch.stack([(log < TINY).double().mean() for log in logs]), frames)
        cells = [encoder, *key, str(step), f"{frames.sum():.0f}"]
        cells += ["{:.3f} ({:.3f} … {:.3f})".format(*mean)]
        cells += ["{:.0%} ({:.0%} … {:.0%})".format(*tiny), f"{torch.cat(logs).mean():.1f}"]
        found = with_ratings(root, known, of_track, key)
        beside = with_ratings(root, known, of_track, ("no", key[1])) if key[0] == "yes" else found
        cells += [
            mean_over_tracks(each, other)
            for (_, each), (_, other) in zip(found, beside, strict=True)
        ]
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
        known, root = SETS[name], arguments.data / name
        for encoder in arguments.encoders:
            given = list(outputs(root, known, encoder_of(encoder), arguments.step))
            rows = rows_of(encoder, arguments.step, known, given, root)
            write(name, known, given, rows)


def write(name: str, known: Set, given: list[Output], rows: list[list[str]]) -> None:
    """The section of a set, with these rows beside those of other encoders."""
    header = ["encoder", "leakage members", "convention", "every n-th frame", "frames"]
    header += ["mean PM", "PM < 1e-6", "mean log PM"]
    for question in known.questions:
        header += [f"mean PM with {question}", f"mean log PM with {question}"]
    section = f"rated-{name}"
    tracks = len({output.track for output in given})
    text = f"""## PM on `{name}` (`rated_match.py`)

{known.note}
{len(given)} outputs, {tracks} tracks; Spearman correlations within a track, averaged over tracks;
95 % intervals by drawing the tracks anew, with a star where that of the change that leakage members
make, within tracks, is off 0. `rank` is the rank form of the conformal convention.
{ENCODERS}

{conformal_page.merged_table(section, header, rows, 3)}
"""
    conformal_page.write(section, text)


if __name__ == "__main__":
    main()
