"""All measures against listeners, on one page [tab:correlations].

    python recipes/experiments/listeners.py --manifest FOLDER/mapss.json \\
        --ratings FOLDER/ratings.csv --sample-frames 60 --out runs/listeners

Scores every output with every encoder (``NAME`` or ``NAME@LAYER``; several layers of one encoder
are drawn as in [fig:plot_5_en_models_compared]), with other measures (`rivals.py`), and with
variants of clearance and fidelity (`variants.py`), and correlates all of them with every question
of the ratings. Correlations are taken over the systems of a track and averaged, with intervals over
tracks; differences are paired over tracks. ``--unit COLUMN`` of the ratings compares the outputs of
several mixtures.
"""

from __future__ import annotations

import argparse
import itertools
import math
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import pandas as pd
import rated
import rivals
import toolkit
import variants

PAIR = ("clearance", "fidelity")
AGAINST = ("ps", "log_foreign_distance", "pm", "log_pm", "sir", "sar")
PAPER = "PS 0.73 to 0.87, PM 0.75 to 0.88, PESQ 0.61 to 0.86, SIR 0.19 to 0.51 (SEBASS)"
KEYS = ("encoder", "mixture", "system", "source")


# ------------------------------------------------------------------------------------------------
# Scores
# ------------------------------------------------------------------------------------------------


def score(options: argparse.Namespace, ratings: rated.Ratings) -> toolkit.Rows:
    """Every rated output with every encoder; hidden references and anchors with the first one."""
    leave_out = ("ratings", "unit", "rivals", "no_rivals", "no_variants")
    settings = toolkit.settings_of(options, *leave_out)
    rows = toolkit.Rows(options.out, KEYS, (*toolkit.MEASURES, "frames"), settings)
    for encoder in options.encoders:
        mapss = toolkit.scorer(options, encoder)
        for mixture in toolkit.load_mixtures(options, mapss.grid.sample_rate, systems=True):
            outputs = ratings.outputs(mixture, controls=encoder == options.encoders[0])
            toolkit.add_scores(
                rows,
                [toolkit.shown(encoder)],
                mapss,
                mixture,
                outputs,
                options.measures,
                options.sample_frames,
            )
    return rows


def vary(options: argparse.Namespace, ratings: rated.Ratings, encoder: str) -> toolkit.Rows:
    """Every rated output with the variants of clearance and fidelity on one encoder."""
    settings = {"seconds": options.seconds, "frames": options.sample_frames}
    settings["manifest"] = str(options.manifest)
    rows = toolkit.Rows(options.out, KEYS, variants.COLUMNS, settings, "variants")
    mapss = variants.scorer(encoder, options.device)
    for mixture in toolkit.load_mixtures(options, mapss.grid.sample_rate, systems=True):
        reference = None
        for system, source_index, output in ratings.outputs(mixture):
            key = toolkit.shown(encoder), mixture.name, system, mixture.sources[source_index]
            if not rows.has(*key):
                reference = reference or variants.prepared(mapss, mixture.references)
                scores = variants.variants(reference, output, source_index, options.sample_frames)
                rows.add(*key, **scores)
    return rows


# ------------------------------------------------------------------------------------------------
# The page
# ------------------------------------------------------------------------------------------------


class Column(NamedTuple):
    """Where the numbers of one measure with one encoder are."""

    label: str
    encoder: str  # "" for a measure that reads no encoder
    rows: Sequence[rated.Row]
    name: str  # of the measure; its column in the rows

    @property
    def key(self) -> str:
        """Its column in the table of `all_measures`."""
        return f"{self.name} {self.encoder}".strip()


def columns(rows: toolkit.Rows, rival_rows: toolkit.Rows | None) -> list[Column]:
    """All measures of all encoders, then the rivals."""
    made = []
    for encoder in rows.distinct("encoder"):
        of_encoder = rows.where(encoder=encoder)
        made += [
            Column(toolkit.LABELS[name], encoder, of_encoder, name) for name in toolkit.MEASURES
        ]
    if rival_rows is not None:
        names = [name for name in rival_rows.columns if name in rivals.RIVALS]
        made += [Column(rivals.RIVALS[name].label, "", rival_rows.where(), name) for name in names]
    return made


def all_measures(measures: Sequence[Column], question: str, ratings: rated.Ratings) -> pd.DataFrame:
    """The stimuli of a question with every measure in the column of its key."""
    merged: dict[tuple[str, str, str], dict[str, str]] = {}
    for column in measures:
        for row in column.rows:
            output = {name: row[name] for name in ("mixture", "system", "source")}
            line = merged.setdefault(tuple(output.values()), output)
            line[column.key] = row[column.name]
    return rated.stimuli(merged.values(), [c.key for c in measures], question, ratings)


def crossed(measures: Sequence[Column], table: pd.DataFrame) -> str:
    """Correlations of all measures with one question, the best SRCC first."""
    lines = []
    for column in measures:
        srcc, pcc = (rated.correlation(table, column.key, method=m) for m in rated.METHODS)
        if srcc.tracks:
            cells = [column.label, column.encoder, str(srcc), str(pcc), str(srcc.tracks)]
            lines.append((-srcc.value, cells))
    lines.sort(key=lambda line: line[0])
    header = ["measure", "encoder", *rated.METHODS.values(), "tracks"]
    return toolkit.markdown(header, [cells for _, cells in lines])


def differences(measures: Sequence[Column], table: pd.DataFrame) -> str:
    """By how much clearance and fidelity of the first encoder correlate better, paired."""
    main = measures[0].encoder
    of_main = {c.name: c for c in measures if c.encoder in (main, "")}
    lines = []
    for name in AGAINST:
        if name in of_main and table[of_main[name].key].notna().any():
            key = of_main[name].key
            cells = [str(rated.correlation(table, of_main[n].key, key)) for n in PAIR]
            lines.append([of_main[name].label, *cells])
    return toolkit.markdown(["minus", *PAIR], lines)


def variant_table(rows: toolkit.Rows, ratings: rated.Ratings, encoder: str) -> str:
    """SRCC of the variants with every question; in parentheses, minus that of the default."""
    of_encoder = rows.where(encoder=encoder)
    tables = {
        question: rated.stimuli(of_encoder, variants.COLUMNS, question, ratings)
        for question in ratings.questions
    }
    lines = []
    for name in variants.NAMES:
        line = [name]
        for kind, table in itertools.product(PAIR, tables.values()):
            cell = str(rated.correlation(table, f"{name}: {kind}"))
            if name != variants.DEFAULT:
                default = f"{variants.DEFAULT}: {kind}"
                change = rated.correlation(table, f"{name}: {kind}", default).value
                cell = f"{cell} ({change:+.2f})"
            line.append(cell)
        lines.append(line)
    header = [f"{kind}/{question}" for kind, question in itertools.product(PAIR, tables)]
    return toolkit.markdown([f"`{encoder}`", *header], lines)


def control_means(rows: Sequence[rated.Row]) -> str:
    """Mean scores of the hidden reference, of each anchor, and of all systems."""
    groups: dict[str, list[rated.Row]] = {}
    for row in rows:
        is_control = row["system"].startswith(rated.CONTROL)
        groups.setdefault(row["system"] if is_control else "systems", []).append(row)
    names = [n for n in toolkit.MEASURES if n not in ("ps_pesq", "log_pm_compressed")]
    lines = []
    for group, group_rows in groups.items():
        cells = []
        for name in names:
            values = [float(row[name] or "nan") for row in group_rows]
            cells.append(toolkit.number(toolkit.finite_mean(values)))
        lines.append([group.removeprefix(rated.CONTROL), str(len(group_rows)), *cells])
    return toolkit.markdown(["", "outputs", *(toolkit.LABELS[n] for n in names)], lines)


def _main(measures: Sequence[Column]) -> list[Column]:
    """The measures of the first encoder that the tables of tracks and systems show."""
    names = (*PAIR, "ps", "log_pm")
    return [c for c in measures if c.encoder == measures[0].encoder and c.name in names]


def tracks(measures: Sequence[Column], table: pd.DataFrame) -> str:
    """SRCC of each track, that with the lowest of clearance first."""
    shown = _main(measures)
    by_measure = [rated.by_unit(table, column.key) for column in shown]
    by_clearance = by_measure[0]
    lines = []
    for unit in sorted(by_clearance, key=by_clearance.__getitem__):
        cells = [toolkit.number(by_unit.get(unit, math.nan)) for by_unit in by_measure]
        lines.append([unit, *cells])
    return toolkit.markdown(["track", *(column.label for column in shown)], lines)


def systems(measures: Sequence[Column], table: pd.DataFrame) -> str:
    """By how many ranks each system is placed too high (+) or too low (-)."""
    shown = _main(measures)
    by_measure = [rated.misplaced(table, column.key) for column in shown]
    lines = []
    for system, units in sorted(by_measure[0].items()):
        cells = []
        for by_system in by_measure:
            offsets = by_system.get(system)
            cells.append(f"{sum(offsets) / len(offsets):+.1f}" if offsets else "–")
        lines.append([system, str(len(units)), *cells])
    return toolkit.markdown(["system", "tracks", *(column.label for column in shown)], lines)


def saturation(rows: toolkit.Rows) -> str:
    """By encoder, how many outputs have a PM or a fidelity that is practically 0."""
    lines = []
    for encoder in rows.distinct("encoder"):
        cells = [encoder]
        for name, limit in (("pm", 1e-6), ("fidelity", 0.01)):
            values = rows.numbers(name, encoder=encoder)
            count = len(values) or math.nan
            share = sum(value < limit for value in values) / count
            cells += [toolkit.number(sum(values) / count, 3), toolkit.number(100 * share, 0)]
        lines.append(cells)
    header = ["encoder", "mean PM", "% below 1e-6", "mean fidelity", "% below 0.01"]
    return toolkit.markdown(header, lines)


def layers_of(measures: Sequence[Column]) -> dict[str, int]:
    """``NAME@LAYER`` -> the layer, of the encoders that are named so."""
    layers = {}
    for column in measures:
        _, layer = toolkit.model_and_layer(column.encoder)
        if layer is not None:
            layers[column.encoder] = layer
    return layers


def max_min(measures: Sequence[Column], tables: Mapping[str, pd.DataFrame]) -> str:
    """The worst of SRCC and PCC of PS and PM by layer: the paper takes the layer with the best."""
    lines = []
    for encoder, layer in layers_of(measures).items():
        keys = [c.key for c in measures if c.encoder == encoder and c.name in ("ps", "pm")]
        values = [rated.lowest_correlation(table, keys) for table in tables.values()]
        lines.append([str(layer), *map(toolkit.number, values)])
    return toolkit.markdown(["layer", *tables], lines)


def draw_layers(measures: Sequence[Column], tables: Mapping[str, pd.DataFrame], path: Any) -> None:
    """SRCC over the layers of an encoder, a panel for every question."""
    layers = layers_of(measures)
    figure = toolkit.new_figure(4.2 * len(tables), 3.2)
    panels = figure.subplots(1, len(tables), squeeze=False, sharey=True)[0]
    for axis, (question, table) in zip(panels, tables.items()):
        for name in (*PAIR, "ps", "pm", "log_pm"):
            of_layers = [c for c in measures if c.name == name and c.encoder in layers]
            values = [rated.correlation(table, column.key).value for column in of_layers]
            numbers = [layers[column.encoder] for column in of_layers]
            axis.plot(numbers, values, "o-", label=toolkit.LABELS[name], markersize=3)
        axis.set(title=question, xlabel="layer")
        axis.grid(alpha=0.3)
    panels[0].set_ylabel("SRCC")
    panels[0].legend(fontsize=7)
    toolkit.save_figure(figure, path)


def page(
    options: argparse.Namespace,
    arguments: Sequence[str] | None,
    rows: toolkit.Rows,
    rival_rows: toolkit.Rows | None,
    varied: toolkit.Rows | None,
) -> list[str]:
    """All sections."""
    ratings = rated.Ratings(options.ratings, options.unit)
    measures = columns(rows, rival_rows)
    tables = {q: all_measures(measures, q, ratings) for q in ratings.questions}
    main = measures[0].encoder
    text = f"{toolkit.subset(options, rows)} Correlations over the systems of a track, averaged; in"
    text += " brackets the 95 % interval over tracks (BCa bootstrap). Hidden references and anchors"
    text += f" are not among them. Of the paper, on other data and encoders: {PAPER}."
    name = f"{options.manifest.parent.name}: measures against listeners"
    made = toolkit.page_head(name, __file__, arguments, text)
    for question, table in tables.items():
        made += ["", f"## {question}", "", crossed(measures, table), ""]
        if (less := differences(measures, table)).count("\n") > 1:
            made += [f"SRCC of clearance and fidelity less that of others (`{main}`, paired):", ""]
            made += [less]
    made += ["", f"## Means, `{main}`", "", control_means(rows.where(encoder=main)), ""]
    made += [saturation(rows)]
    if varied is not None:
        made += ["", "## Variants of clearance and fidelity", ""]
        made += ["SRCC; in parentheses less that of 20 distortions, t = 1. The control has no map:"]
        made += ["plain differences of embeddings, split in the same way.", ""]
        for encoder in varied.distinct("encoder"):
            made += [variant_table(varied, ratings, encoder), ""]
    if len(layers_of(measures)) > 1 and "separation" in options.measures:
        made += ["", "## Layers", "", f"{max_min.__doc__}", "", max_min(measures, tables)]
    for question, table in tables.items():
        made += ["", f"## Where it goes wrong: {question}", "", tracks(measures, table)]
        made += ["", "By how many ranks a system is placed too high (+) or too low (-):", ""]
        made += [systems(measures, table)]
    if rival_rows is not None:
        missing = [list(pair) for pair in rivals.not_run().items()]
        made += ["", "## Not run", "", toolkit.markdown(["measure", "why"], missing)]
    return made


def main(arguments: Sequence[str] | None = None) -> Mapping[str, toolkit.Rows | None]:
    parser = toolkit.parser(__doc__, ratings=True)
    rated.add_unit_option(parser)
    parser.add_argument(
        "--measures",
        nargs="+",
        choices=toolkit.ENCODED,
        default=toolkit.ENCODED,
        help="families of scores to compute (default: all)",
    )
    rivals.add_option(parser)
    parser.add_argument("--no-rivals", action="store_true", help="leave out the other measures")
    parser.add_argument(
        "--no-variants",
        action="store_true",
        help="leave out the variants, which are scored with the first encoder",
    )
    options = parser.parse_args(arguments)
    ratings = rated.Ratings(options.ratings, options.unit)
    rows = score(options, ratings)
    rival_rows = None if options.no_rivals else rivals.run(options)
    varied = None if options.no_variants else vary(options, ratings, options.encoders[0])
    toolkit.finish(options, "listeners", page(options, arguments, rows, rival_rows, varied))
    measures = columns(rows, None)
    if len(layers_of(measures)) > 1:
        tables = {q: all_measures(measures, q, ratings) for q in ratings.questions}
        draw_layers(measures, tables, options.out / "layers.png")
    return {"scores": rows, "rivals": rival_rows, "variants": varied}


if __name__ == "__main__":
    main()
