"""What learned encoders hear: encoders by scores against listeners, for several rated sets.

    python recipes/experiments/learned.py --out runs/learned \
        --manifest DATA/gensvs/mapss.json --ratings DATA/gensvs/ratings.csv \
        --objective DATA/gensvs/objective.csv --also DATA/ward2018 DATA/p835ref \
        --encoders mel waveform whisper-tiny.en@2 whisper-tiny.en@3 whisper-random@2

``--manifest`` is the set that the page is about. ``--also`` are folders of further ones, on which a
reader sees what the same encoders cost: ``mapss.json`` and ``ratings.csv`` in it, or, where there
are, ``mapss_by_talker.json`` and ``ratings_by_talker.csv``. No data comes with the package.

SRCC is taken over all outputs of a set (pooled), and over the systems of a track and averaged
(within tracks); intervals resample tracks. Every frame counts; ``--also-frames N`` draws N frames a
clip for PS and PM of further sets. ``--also-encoders`` takes fewer encoders there, ``--also-map``
fewer for PS and PM, and ``--also-map-mixtures`` fewer mixtures for these. ``--baselines`` are
encoders that the others are compared with, output by output: ``mel``, or the same network with
random weights.

Two files keep the rows: ``pair.csv`` clearance, fidelity and bleed, ``map.csv`` PS and PM; each row
says the commit that made it, and the page repeats it. Layers of one Whisper are read from one pass.

Weights: ``benchmarks/whisper_from_ctranslate2.py`` turns a CTranslate2 model into a folder for
``--encoders FOLDER@LAYER``; ``untrained.py`` makes the same shapes with random weights.
"""

from __future__ import annotations

import argparse
import math
from collections import Counter
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import NamedTuple

import hidden_states
import pandas as pd
import rated
import toolkit

from torch_mapss import MAPSS
from torch_mapss.score_table import SCORES

KEYS = ("dataset", "encoder", "mixture", "system", "source")
# File of rows -> measures that are computed together in it.
FAMILIES = {"pair": ("decomposition", "bleed"), "map": ("separation", "match")}
NAMES = {
    "pair": ("clearance", "fidelity", "bleed_db"),
    "map": ("ps", "pm", "log_pm", "log_pm_compressed"),
}
SHOWN = (*NAMES["pair"][:2], *NAMES["map"])
# Beginnings of the names of other measures that are lower for better outputs.
LOWER_IS_BETTER = ("emb_mse", "fad", "multi_res_loss")
OTHERS = (
    "Measures that are lower for better outputs are turned, so that every number says how well "
    "an order agrees with the listeners'. Bleed is ours and reads no encoder."
)
LAYERS = (
    "Within tracks. **Bold** is the best layer by these very ratings. `max-min` is the paper's "
    "rule, the layer with the best of the worst of SRCC and PCC of PS and PM; it reads the ratings "
    "too. The last line does not judge a layer by the tracks that it was chosen on: each track has "
    "the layer that is best on the other tracks."
)
CONTROLS = (
    "Mean clearance and fidelity. Listeners heard a hidden reference, which is without fault, and "
    "anchors, each with one fault made on purpose: a split that is kept lowers one number alone."
)
POOLINGS = {"pooled": "pooled", "per_track": "within tracks"}


# ------------------------------------------------------------------------------------------------
# Scores
# ------------------------------------------------------------------------------------------------


class RatedSet(NamedTuple):
    """Mixtures with outputs that listeners rated."""

    name: str
    options: Mapping[str, argparse.Namespace]  # by family, with its manifest
    ratings: rated.Ratings
    encoders: Mapping[str, Sequence[str]]  # by family
    map_frames: int | None  # of a clip, for PS and PM; None: all


def rated_sets(options: argparse.Namespace) -> list[RatedSet]:
    """The set that the page is about, then the others."""
    of_main = dict.fromkeys(FAMILIES, options.encoders)
    of_further = dict.fromkeys(FAMILIES, options.also_encoders or options.encoders)
    if options.also_map is not None:
        of_further["map"] = options.also_map
    files = [(options.manifest, options.ratings, options.sample_frames)]
    for folder in options.also:
        suffix = "_by_talker" if (folder / "mapss_by_talker.json").exists() else ""
        manifest, ratings = folder / f"mapss{suffix}.json", folder / f"ratings{suffix}.csv"
        files.append((manifest, ratings, options.also_frames))
    sets = []
    for manifest, ratings, map_frames in files:
        mixtures = dict.fromkeys(FAMILIES, options.mixtures)
        if manifest != options.manifest:
            mixtures = {"pair": None, "map": options.also_map_mixtures}
        of_set = {}
        for family, count in mixtures.items():
            changed = {"manifest": manifest, "mixtures": count}
            of_set[family] = argparse.Namespace(**{**vars(options), **changed})
        encoders = of_main if manifest == options.manifest else of_further
        name, listeners = manifest.parent.name, rated.Ratings(ratings)
        sets.append(RatedSet(name, of_set, listeners, encoders, map_frames))
    return sets


def score(options: argparse.Namespace, family: str) -> toolkit.Rows:
    """Every rated output by every encoder; hidden references and anchors by the pair alone."""
    settings = {
        "convention": options.convention,
        "bank_size": options.bank_size,
        "seconds": options.seconds,
        "sample_frames": options.sample_frames,
        "also_frames": options.also_frames,
    }
    columns = (*NAMES[family], "frames", "commit")
    rows = toolkit.Rows(options.out, KEYS, columns, settings, family)
    commit = toolkit.commit()  # once: the folder may move on while this runs
    for rated_set in rated_sets(options):
        frames = rated_set.map_frames if family == "map" else None
        score_set(rows, rated_set, family, frames, commit)
    return rows


def score_set(
    rows: toolkit.Rows,
    rated_set: RatedSet,
    family: str,
    frames: int | None,
    commit: str,
) -> None:
    """The outputs of one set that have no row yet, all encoders of a mixture in turn.

    In this order the hidden states of one pass serve all layers of a model.
    """
    options, encoders = rated_set.options[family], rated_set.encoders[family]
    shared = hidden_states.shared_passes(encoders, options.device)
    scorers = {encoder: toolkit.scorer(options, encoder, shared) for encoder in encoders}
    rates = dict.fromkeys(mapss.grid.sample_rate for mapss in scorers.values())
    for rate in rates:
        at_rate = {name: mapss for name, mapss in scorers.items() if mapss.grid.sample_rate == rate}
        for mixture in toolkit.load_mixtures(options, rate, systems=True):
            for encoder, mapss in at_rate.items():
                score_mixture(rows, rated_set, mixture, encoder, mapss, family, frames, commit)
            for one_pass in shared.values():
                one_pass.forget()


def score_mixture(
    rows: toolkit.Rows,
    rated_set: RatedSet,
    mixture: toolkit.Mixture,
    encoder: str,
    mapss: MAPSS,
    family: str,
    frames: int | None,
    commit: str,
) -> None:
    """The outputs of one mixture that have no row by this encoder yet."""
    prefix = rated_set.name, toolkit.shown(encoder), mixture.name
    bank = None
    for system, source_index, output in rated_set.ratings.outputs(mixture, family == "pair"):
        key = *prefix, system, mixture.sources[source_index]
        if not rows.has(*key):
            if bank is None:
                bank = mapss.prepare(mixture.references[None], measures=FAMILIES[family])
            scores = toolkit.target_scores(mapss, bank, output, source_index, frames)
            kept = {name: scores.get(name) for name in (*NAMES[family], "frames")}
            rows.add(*key, **kept, commit=commit)


# ------------------------------------------------------------------------------------------------
# Tables of stimuli
# ------------------------------------------------------------------------------------------------


def key_of(score_name: str, encoder: str) -> str:
    """Column of a score by an encoder in a table of stimuli."""
    return f"{score_name} {encoder}"


def table_of(
    rows_by_family: Mapping[str, toolkit.Rows],
    rated_set: RatedSet,
    question: str,
    encoders: Sequence[str],
) -> pd.DataFrame:
    """The stimuli of a question with every score by these encoders, higher for better outputs.

    An encoder that lacks outputs which another has, as in a run that was stopped, is left out.
    """
    merged: dict[tuple[str, str, str], dict[str, str]] = {}
    columns: dict[str, str] = {}
    for family, rows in rows_by_family.items():
        of_set = rows.where(dataset=rated_set.name)
        counts = Counter(row["encoder"] for row in of_set)
        complete = {
            encoder for encoder in encoders if counts[encoder] == max(counts.values(), default=0)
        }
        for row in of_set:
            if row["encoder"] not in complete:
                continue
            output = {name: row[name] for name in ("mixture", "system", "source")}
            line = merged.setdefault(tuple(output.values()), output)
            for name in NAMES[family]:
                columns[key_of(name, row["encoder"])] = name
                line[key_of(name, row["encoder"])] = row[name]
    table = rated.stimuli(merged.values(), [*columns], question, rated_set.ratings)
    turned = [key for key, name in columns.items() if not SCORES[name].higher_is_better]
    table[turned] = -table[turned]
    return table


def with_objective(table: pd.DataFrame, path: Path) -> tuple[pd.DataFrame, list[str]]:
    """The table with the measures of a CSV file beside its own, and their names."""
    measures = pd.read_csv(path).rename(columns={"track": "mixture"})
    measures = measures.set_index(["mixture", "system"])
    names = [*measures.select_dtypes("number")]
    lower = [name for name in names if name.startswith(LOWER_IS_BETTER)]
    measures[lower] = -measures[lower]
    return table.join(measures[names], on=["mixture", "system"]), names


# ------------------------------------------------------------------------------------------------
# The page
# ------------------------------------------------------------------------------------------------


def encoders_of(table: pd.DataFrame) -> list[str]:
    """Encoders that have scores in a table, in order of appearance."""
    keys = [column.partition(" ") for column in table if " " in str(column)]
    return list(dict.fromkeys(encoder for name, _, encoder in keys if name in SCORES))


def scores_of(table: pd.DataFrame) -> list[str]:
    """Scores that a table has by at least one encoder, in the order of `SHOWN`."""
    return [
        name
        for name in SHOWN
        if any(key_of(name, encoder) in table for encoder in encoders_of(table))
    ]


def crossed(table: pd.DataFrame, pooling: str) -> str:
    """SRCC of every encoder (lines) and score (columns)."""
    lines = []
    for encoder in encoders_of(table):
        keys = [key_of(name, encoder) for name in scores_of(table)]
        estimates = [
            rated.correlation(table, key, pooling=pooling) if key in table else rated.UNDEFINED
            for key in keys
        ]
        lines.append([f"`{encoder}`", *map(str, estimates)])
    return toolkit.markdown(["encoder", *(toolkit.LABELS[n] for n in scores_of(table))], lines)


def gains(table: pd.DataFrame, base: str) -> str:
    """SRCC within tracks of every score less that of another encoder, paired."""
    lines = []
    for encoder in encoders_of(table):
        if encoder != base:
            pairs = [(key_of(name, encoder), key_of(name, base)) for name in scores_of(table)]
            cells = [
                rated.correlation(table, *pair) if {*pair} <= {*table} else rated.UNDEFINED
                for pair in pairs
            ]
            lines.append([f"`{encoder}`", *map(str, cells)])
    header = [f"less `{base}`", *(toolkit.LABELS[name] for name in scores_of(table))]
    return toolkit.markdown(header, lines)


def controls_table(rows: toolkit.Rows, rated_set: RatedSet, encoders: Sequence[str]) -> str:
    """Mean clearance and fidelity of hidden references and anchors by every encoder."""
    systems = dict.fromkeys(row["system"] for row in rows.where(dataset=rated_set.name))
    controls = [system for system in systems if system.startswith(rated.CONTROL)]
    lines = []
    for encoder in encoders:
        cells = []
        for system in controls:
            of_system = {"dataset": rated_set.name, "encoder": encoder, "system": system}
            means = [rows.mean(name, **of_system) for name in ("clearance", "fidelity")]
            cells.append(", ".join(map(toolkit.number, means)))
        lines.append([f"`{encoder}`", *cells])
    names = [f"`{system.removeprefix(rated.CONTROL)}`" for system in controls]
    return toolkit.markdown(["encoder", *names], lines) if controls else ""


def objective_table(table: pd.DataFrame, names: Sequence[str]) -> str:
    """SRCC of the measures of others, the best pooled first; bleed among them."""
    lines = []
    for name in names:
        estimates = [rated.correlation(table, name, pooling=pooling) for pooling in POOLINGS]
        label = name.partition(" ")[0] if " " in name else name
        lines.append((-estimates[0].value, [f"`{label}`", *map(str, estimates)]))
    lines.sort(key=lambda line: line[0])
    return toolkit.markdown(["measure", *POOLINGS.values()], [cells for _, cells in lines])


def models_of(encoders: Sequence[str]) -> dict[str, list[str]]:
    """Model -> its layers among the encoders, as NAME@LAYER, where there are several."""
    models: dict[str, list[str]] = {}
    for encoder in encoders:
        model, _, layer = encoder.rpartition("@")
        if layer.isdigit():
            models.setdefault(model, []).append(encoder)
    by_layer = {m: sorted(e, key=lambda e: int(e.rpartition("@")[2])) for m, e in models.items()}
    return {model: layers for model, layers in by_layer.items() if len(layers) > 1}


def max_min(table: pd.DataFrame, layers: Sequence[str]) -> list[float]:
    """Of each layer, the worst of SRCC and PCC of PS and PM: the paper takes the greatest."""
    worst = []
    for encoder in layers:
        values = [
            rated.correlation(table, key_of(name, encoder), method=method).value
            for name in ("ps", "pm")
            for method in rated.METHODS
        ]
        worst.append(min(values))
    return worst


def left_out(table: pd.DataFrame, name: str, layers: Sequence[str]) -> float:
    """Mean SRCC of each track at the layer that is best on all other tracks."""
    by_layer = [rated.by_unit(table, key_of(name, encoder)) for encoder in layers]
    units = [unit for unit in by_layer[0] if all(unit in values for values in by_layer)]
    if len(units) < 2:
        return math.nan
    held_out = []
    for unit in units:
        means = [sum(values[u] for u in units if u != unit) for values in by_layer]
        held_out.append(by_layer[means.index(max(means))][unit])
    return sum(held_out) / len(held_out)


def layer_tables(table: pd.DataFrame) -> list[str]:
    """For every model: SRCC within tracks by layer, max-min, and layers chosen on other tracks."""
    text = []
    for model, layers in models_of(encoders_of(table)).items():
        names = [n for n in scores_of(table) if all(key_of(n, e) in table for e in layers)]
        labels = [toolkit.LABELS[name] for name in names]
        columns = [
            [rated.correlation(table, key_of(name, encoder)).value for encoder in layers]
            for name in names
        ]
        chosen = [toolkit.number(left_out(table, name, layers)) for name in names]
        if {"ps", "pm"} <= set(names):
            columns.append(max_min(table, layers))
            labels.append("max-min")
            chosen.append("")
        lines = []
        for index, encoder in enumerate(layers):
            cells = []
            for values in columns:
                best = max(value for value in values if math.isfinite(value))
                cell = toolkit.number(values[index])
                cells.append(f"**{cell}**" if values[index] == best else cell)
            lines.append([encoder.rpartition("@")[2], *cells])
        lines.append(["layer of the other tracks", *chosen])
        text += ["", toolkit.markdown([f"`{model}`, layer", *labels], lines)]
    return text


def versions(rows_by_family: Mapping[str, toolkit.Rows]) -> str:
    """Which commit made which rows."""
    parts = []
    for family, rows in rows_by_family.items():
        commits = ", ".join(rows.distinct("commit"))
        parts.append(f"{', '.join(FAMILIES[family])}: commit {commits}")
    return "Rows by " + "; ".join(parts) + "."


def page(
    options: argparse.Namespace,
    arguments: Sequence[str] | None,
    rows_by_family: Mapping[str, toolkit.Rows],
) -> list[str]:
    """All sections."""
    main_set, *further = rated_sets(options)
    encoders = [toolkit.shown(encoder) for encoder in options.encoders]
    base = encoders[0]
    baselines = [toolkit.shown(encoder) for encoder in options.baselines] or [base]
    outputs = rows_by_family["pair"].where(dataset=main_set.name, encoder=base)
    mixtures = {row["mixture"] for row in outputs}
    about = (
        f"{len(outputs)} outputs (with hidden references, if any) of {len(mixtures)} mixtures of "
        f"`{main_set.name}`, every frame, `{options.convention}` convention. "
        f"{versions(rows_by_family)} SRCC; in brackets the 95 % interval over tracks (BCa "
        "bootstrap). A dash: not computed. Where a track has five systems, an SRCC within it "
        "takes few values: a tenth is noise."
    )
    text = toolkit.page_head(f"{main_set.name}: what encoders hear", __file__, arguments, about)
    for question in main_set.ratings.questions:
        table = table_of(rows_by_family, main_set, question, encoders)
        for pooling, words in POOLINGS.items():
            text += ["", f"## {question}, {words}", "", crossed(table, pooling)]
        for baseline in baselines:
            text += ["", f"Within tracks, less `{baseline}`, paired:", "", gains(table, baseline)]
        bleed = [key_of("bleed_db", base)]
        names: list[str] = []
        if options.objective is not None:
            table, names = with_objective(table, options.objective)
        text += ["", f"## {question}: other measures", "", OTHERS, ""]
        text += [objective_table(table, [*bleed, *names])]
        if layers := layer_tables(table):
            text += ["", f"## {question}: which layer", "", LAYERS, *layers]
    for rated_set in further:
        count = rated_set.map_frames
        drawn = "every frame"
        if count:
            drawn = f"clearance and fidelity of every frame; PS and PM of {count} frames a clip"
        text += ["", f"## The same encoders on `{rated_set.name}`", ""]
        tracks: dict[str, set[str]] = {}
        for family, rows in rows_by_family.items():
            of_set = rows.where(dataset=rated_set.name)
            tracks[family] = {rated_set.ratings.unit(row["mixture"]) for row in of_set}
        fewer = ""
        if not tracks.get("map"):
            fewer = " PS and PM were not computed."
        elif tracks["map"] != tracks["pair"]:
            fewer = f" PS and PM of {len(tracks['map'])} of these tracks, evenly spaced."
        text += [f"{len(tracks['pair'])} tracks. SRCC within tracks; {drawn}.{fewer}"]
        set_encoders = [toolkit.shown(encoder) for encoder in rated_set.encoders["pair"]]
        set_baselines = [baseline for baseline in baselines if baseline in set_encoders]
        if anchors := controls_table(rows_by_family["pair"], rated_set, set_encoders):
            text += ["", "### Hidden references and anchors", "", CONTROLS, "", anchors]
        for question in rated_set.ratings.questions:
            table = table_of(rows_by_family, rated_set, question, set_encoders)
            text += ["", f"### {question}", "", crossed(table, "per_track")]
            for baseline in set_baselines:
                text += ["", f"Less `{baseline}`, paired:", "", gains(table, baseline)]
    return text


def main(arguments: Sequence[str] | None = None) -> dict[str, toolkit.Rows]:
    parser = toolkit.parser(__doc__, ratings=True)
    parser.add_argument("--also", type=Path, nargs="+", default=[], help="folders of further sets")
    parser.add_argument(
        "--also-frames", type=int, metavar="N", help="of their clips, for PS and PM"
    )
    parser.add_argument(
        "--also-encoders", nargs="+", metavar="NAME[@LAYER]", help="there; default --encoders"
    )
    parser.add_argument(
        "--also-map", nargs="*", metavar="NAME[@LAYER]", help="encoders of PS and PM there"
    )
    parser.add_argument(
        "--also-map-mixtures", type=int, metavar="N", help="for PS and PM there, evenly spaced"
    )
    parser.add_argument("--objective", type=Path, help="CSV: track, system, other measures")
    parser.add_argument(
        "--baselines", nargs="+", default=[], metavar="NAME[@LAYER]", help="default: --encoders[0]"
    )
    parser.add_argument("--families", nargs="+", choices=FAMILIES, default=[*FAMILIES])
    options = parser.parse_args(arguments)
    rows_by_family = {family: score(options, family) for family in options.families}
    if "pair" in rows_by_family:
        toolkit.finish(options, "learned", page(options, arguments, rows_by_family))
    return rows_by_family


if __name__ == "__main__":
    main()
