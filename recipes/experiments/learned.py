"""What learned encoders hear: encoders x scores against the ratings of several sets, on one page.

    python recipes/experiments/learned.py --manifest gensvs/mapss.json --ratings gensvs/ratings.csv \
        --encoders mel waveform whisper-tiny.en@2 whisper-tiny.en@3 whisper-random@2 \
        --objective gensvs/objective.csv --out runs/learned \
        --also ward2018/mapss.json ward2018/ratings.csv track \
        --also p835ref/mapss_by_talker.json p835ref/ratings_by_talker.csv track

``--manifest`` names the set that the page is about; ``--also`` names further sets, on which the
same encoders show what they cost. Paths are folders of your own: no data comes with the package.
SRCC is pooled over all outputs of a set, and the mean of the SRCC within its tracks; intervals
resample tracks. All tracks and all frames; ``--also-frames N`` draws N frames a clip for PS and PM
of the further sets. Clearance, fidelity and bleed are kept in a file of their own (``pair.csv``) and
PS and PM in another (``map.csv``): each row says the commit that made it, and the page repeats it.

Weights: ``benchmarks/whisper_from_ctranslate2.py`` turns a CTranslate2 model into a folder for
``--encoders FOLDER@LAYER``; ``untrained.py`` makes the same shapes with random weights.
"""

from __future__ import annotations

import argparse
import functools
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

import rated
import toolkit

KEYS = ("dataset", "encoder", "mixture", "system", "source")
# File of rows -> measures that are computed together in it.
FAMILIES = {"pair": ("decomposition", "bleed"), "map": ("separation", "match")}
SCORES = {
    "pair": ("clearance", "fidelity", "bleed_db"),
    "map": ("ps", "pm", "log_pm", "log_pm_compressed"),
}


class RatedSet(NamedTuple):
    """Mixtures with outputs that listeners rated."""

    name: str
    options: argparse.Namespace  # with its manifest
    ratings: rated.Ratings
    map_frames: int | None  # of a clip, for PS and PM; None: all


def rated_sets(options: argparse.Namespace) -> list[RatedSet]:
    """The set that the page is about, then the others."""
    rows = [(options.manifest, options.ratings, options.unit, options.sample_frames)]
    for manifest, ratings, unit in options.also:
        rows.append((Path(manifest), Path(ratings), unit, options.also_frames))
    return [
        RatedSet(
            manifest.parent.name,
            argparse.Namespace(**{**vars(options), "manifest": manifest}),
            rated.Ratings(ratings, unit),
            frames,
        )
        for manifest, ratings, unit, frames in rows
    ]


def score(options: argparse.Namespace, family: str) -> toolkit.Rows:
    """Every rated output by every encoder; hidden references and anchors as well."""
    settings = {
        "convention": options.convention,
        "bank_size": options.bank_size,
        "seconds": options.seconds,
        "sample_frames": options.sample_frames,
        "also_frames": options.also_frames,
    }
    columns = (*SCORES[family], "frames", "commit")
    rows = toolkit.Rows(options.out, KEYS, columns, settings, family)
    commit = toolkit.commit()  # once: the folder may move on while this runs
    for rated_set in rated_sets(options):
        frames = rated_set.map_frames if family == "map" else None
        for encoder in options.encoders:
            score_set(rows, rated_set, encoder, family, frames, commit)
    return rows


def score_set(
    rows: toolkit.Rows,
    rated_set: RatedSet,
    encoder: str,
    family: str,
    frames: int | None,
    commit: str,
) -> None:
    """The outputs of one set by one encoder that have no row yet."""
    mapss = toolkit.scorer(rated_set.options, encoder)
    prefix = rated_set.name, toolkit.shown(encoder)
    rate = mapss.grid.sample_rate
    for mixture in toolkit.load_mixtures(rated_set.options, rate, systems=True):
        prepare = functools.partial(
            mapss.prepare, mixture.references[None], measures=FAMILIES[family]
        )
        bank = None
        for system, source_index, output in rated_set.ratings.outputs(mixture, controls=True):
            key = *prefix, mixture.name, system, mixture.sources[source_index]
            if rows.has(*key):
                continue
            bank = prepare() if bank is None else bank
            scores = toolkit.target_scores(mapss, bank, output, source_index, frames)
            kept = {name: scores.get(name) for name in (*SCORES[family], "frames")}
            rows.add(*key, **kept, commit=commit)


def main(arguments: Sequence[str] | None = None) -> dict[str, toolkit.Rows]:
    parser = toolkit.parser(__doc__, ratings=True)
    parser.add_argument("--unit", default="track", metavar="COLUMN", help="default: %(default)s")
    parser.add_argument(
        "--also",
        nargs=3,
        action="append",
        default=[],
        metavar=("MANIFEST", "RATINGS", "UNIT"),
        help="a further set",
    )
    parser.add_argument("--also-frames", type=int, metavar="N", help="of its clips, for PS and PM")
    parser.add_argument("--objective", type=Path, help="CSV: track, system, other measures")
    parser.add_argument("--families", nargs="+", choices=FAMILIES, default=[*FAMILIES])
    options = parser.parse_args(arguments)
    return {family: score(options, family) for family in options.families}


if __name__ == "__main__":
    main()
