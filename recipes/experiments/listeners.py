"""All measures against listeners, on one page [tab:correlations].

    python recipes/experiments/listeners.py --manifest FOLDER/mapss.json \
        --ratings FOLDER/ratings.csv --sample-frames 60 --out runs/listeners

Scores every output by every encoder (``NAME``, or ``NAME@LAYER``: several layers of one make the
figure of layers [fig:plot_5_en_models_compared]), by other measures (`rivals.py`), and by variants
of clearance and fidelity (`variants.py`); holds all of them against every question. Correlations
are taken over the systems of a track and averaged, with intervals over tracks; differences are
paired over tracks. ``--unit COLUMN`` of the ratings compares the outputs of several mixtures.
"""

from __future__ import annotations

import argparse
import math
from collections.abc import Mapping, Sequence
from typing import Any

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
    """Every rated output by every encoder; hidden references and anchors by the first one."""
    leave_out = ("ratings", "unit", "rivals", "no_rivals", "no_variants")
    settings = toolkit.settings_of(options, *leave_out)
    rows = toolkit.Rows(options.out, KEYS, (*toolkit.MEASURES, "frames"), settings)
    for encoder in options.encoders:
        mapss = toolkit.scorer(options, encoder)
        for mixture in toolkit.load_mixtures(options, mapss.grid.sample_rate, systems=True):
            bank = None
            controls = encoder == options.encoders[0]
            for system, place, output in ratings.outputs(mixture, controls):
                key = toolkit.shown(encoder), mixture.name, system, mixture.sources[place]
                if not rows.has(*key):
                    bank = bank or mapss.prepare(
                        mixture.references[None], measures=options.measures
                    )
                    found = toolkit.target_scores(mapss, bank, output, place, options.sample_frames)
                    rows.add(*key, **found)
    return rows


def vary(options: argparse.Namespace, ratings: rated.Ratings, encoder: str) -> toolkit.Rows:
    """Every rated output by the variants of clearance and fidelity on one encoder."""
    settings = {"seconds": options.seconds, "frames": options.sample_frames}
    settings["manifest"] = str(options.manifest)
    rows = toolkit.Rows(options.out, KEYS, variants.COLUMNS, settings, "variants")
    mapss = variants.scorer(encoder, options.device)
    for mixture in toolkit.load_mixtures(options, mapss.grid.sample_rate, systems=True):
        reference = None
        for system, place, output in ratings.outputs(mixture):
            key = toolkit.shown(encoder), mixture.name, system, mixture.sources[place]
            if not rows.has(*key):
                reference = reference or variants.prepared(mapss, mixture.references)
                found = variants.variants(reference, output, place, options.sample_frames)
                rows.add(*key, **found)
    return rows


# ------------------------------------------------------------------------------------------------
# The page
# ------------------------------------------------------------------------------------------------


class Column:
    """One measure by one encoder: where its numbers are."""

    def __init__(self, label: str, encoder: str, rows: Sequence[rated.Row], name: str) -> None:
        self.label, self.encoder, self.rows, self.name = label, encoder, rows, name

    def by_track(self, question: str, ratings: rated.Ratings, method: str = "SRCC") -> Any:
        return rated.by_track(self.rows, self.name, question, ratings, method)


def columns(rows: toolkit.Rows, others: toolkit.Rows | None) -> list[Column]:
    """All measures of all encoders, then the rivals."""
    found = [
        Column(toolkit.LABELS[name], encoder, rows.where(encoder=encoder), name)
        for encoder in rows.distinct("encoder")
        for name in toolkit.MEASURES
    ]
    names = () if others is None else [n for n in others.columns if n in rivals.RIVALS]
    return found + [Column(rivals.RIVALS[n].label, "", others.where(), n) for n in names]


def crossed(found: Sequence[Column], ratings: rated.Ratings, question: str) -> str:
    """All measures against one question, the best SRCC first."""
    lines = []
    for column in found:
        by = {m: column.by_track(question, ratings, m) for m in rated.METHODS}
        one, other = (rated.averaged(values.values()) for values in by.values())
        if one.tracks:
            cells = [column.label, column.encoder, str(one), str(other), str(one.tracks)]
            lines.append((-one.value, cells))
    lines.sort(key=lambda pair: pair[0])
    header = ["measure", "encoder", *rated.METHODS, "tracks"]
    return toolkit.markdown(header, [line for _, line in lines])


def differences(found: Sequence[Column], ratings: rated.Ratings, question: str) -> str:
    """By how much clearance and fidelity of the first encoder correlate better, paired."""
    first = found[0].encoder
    own = {c.name: c.by_track(question, ratings) for c in found if c.encoder in (first, "")}
    lines = []
    for name in AGAINST:
        if own.get(name):
            label = toolkit.LABELS[name] if name in toolkit.LABELS else rivals.RIVALS[name].label
            lines.append([label, *(str(rated.difference(own[p], own[name])) for p in PAIR)])
    return toolkit.markdown(["minus", *PAIR], lines)


def variant_table(rows: toolkit.Rows, ratings: rated.Ratings, encoder: str) -> str:
    """SRCC of clearance and fidelity with every question, and less the default's."""
    lines = []
    here = rows.where(encoder=encoder)
    for name in variants.NAMES:
        line = [name]
        for kind in PAIR:
            for question in ratings.questions:
                own, default = (
                    rated.by_track(here, f"{which}: {kind}", question, ratings)
                    for which in (name, variants.DEFAULT)
                )
                less = rated.difference(own, default)
                cell = str(rated.averaged(own.values()))
                line.append(cell if name == variants.DEFAULT else f"{cell} ({less.value:+.2f})")
        lines.append(line)
    header = [f"{kind}/{question}" for kind in PAIR for question in ratings.questions]
    return toolkit.markdown([f"`{encoder}`", *header], lines)


def control_means(rows: Sequence[rated.Row]) -> str:
    """Mean scores of hidden reference and anchors, and of all systems."""
    groups: dict[str, list[rated.Row]] = {}
    for row in rows:
        name = row["system"]
        groups.setdefault(name if name.startswith(rated.CONTROL) else "systems", []).append(row)
    names = [n for n in toolkit.MEASURES if n not in ("ps_pesq", "log_pm_compressed")]
    lines = []
    for group, inside in groups.items():
        cells = []
        for name in names:
            values = [float(row[name] or "nan") for row in inside]
            kept = [value for value in values if math.isfinite(value)]
            cells.append(toolkit.number(sum(kept) / len(kept) if kept else math.nan))
        lines.append([group.removeprefix(rated.CONTROL), str(len(inside)), *cells])
    return toolkit.markdown(["", "outputs", *(toolkit.LABELS[n] for n in names)], lines)


def _main(found: Sequence[Column]) -> list[Column]:
    """The measures of the first encoder that tracks and systems are looked at by."""
    names = (*PAIR, "ps", "log_pm")
    return [c for c in found if c.encoder == found[0].encoder and c.name in names]


def tracks(found: Sequence[Column], ratings: rated.Ratings, question: str) -> str:
    """SRCC of each track, the worst of clearance first."""
    shown = _main(found)
    values = [column.by_track(question, ratings) for column in shown]
    units = sorted(values[0], key=lambda unit: values[0][unit])
    lines = [
        [" ".join(unit), *(toolkit.number(v.get(unit, math.nan)) for v in values)] for unit in units
    ]
    return toolkit.markdown(["track", *(column.label for column in shown)], lines)


def systems(found: Sequence[Column], ratings: rated.Ratings, question: str) -> str:
    """By how many ranks each system is placed too high (+) or too low (-)."""
    shown = _main(found)
    values = [rated.misplaced(c.rows, c.name, question, ratings) for c in shown]
    lines = [
        [system, str(len(values[0][system]))]
        + [f"{sum(v[system]) / len(v[system]):+.1f}" if system in v else "–" for v in values]
        for system in sorted(values[0])
    ]
    return toolkit.markdown(["system", "tracks", *(column.label for column in shown)], lines)


def saturation(rows: toolkit.Rows) -> str:
    """How far PM has run into 0, and fidelity, by encoder."""
    lines = []
    for encoder in rows.distinct("encoder"):
        cells = [encoder]
        for name, least in (("pm", 1e-6), ("fidelity", 0.01)):
            values = rows.numbers(name, encoder=encoder)
            count = len(values) or math.nan
            share = sum(value < least for value in values) / count
            cells += [toolkit.number(sum(values) / count, 3), toolkit.number(100 * share, 0)]
        lines.append(cells)
    header = ["encoder", "mean PM", "% below 1e-6", "mean fidelity", "% below 0.01"]
    return toolkit.markdown(header, lines)


def layers_of(found: Sequence[Column]) -> dict[str, int]:
    """Encoders that are layers of one model."""
    return {c.encoder: int(c.encoder.rpartition("@")[2]) for c in found if "@" in c.encoder}


def max_min(found: Sequence[Column], ratings: rated.Ratings) -> str:
    """The worst of SRCC and PCC of PS and PM by layer: the paper takes the layer with the best."""
    lines = []
    for encoder, layer in layers_of(found).items():
        line = [str(layer)]
        for question in ratings.questions:
            values = [
                rated.averaged(c.by_track(question, ratings, method).values()).value
                for c in found
                if c.encoder == encoder and c.name in ("ps", "pm")
                for method in rated.METHODS
            ]
            line.append(toolkit.number(min(values)))
        lines.append(line)
    return toolkit.markdown(["layer", *ratings.questions], lines)


def draw_layers(found: Sequence[Column], ratings: rated.Ratings, path: Any) -> None:
    """SRCC over the layers of an encoder, a panel for every question."""
    layers = layers_of(found)
    figure = toolkit.new_figure(4.2 * len(ratings.questions), 3.2)
    grid = figure.subplots(1, len(ratings.questions), squeeze=False, sharey=True)[0]
    for axis, question in zip(grid, ratings.questions):
        for name in (*PAIR, "ps", "pm", "log_pm"):
            of = {c.encoder: c for c in found if c.name == name and c.encoder in layers}
            made = {
                e: rated.averaged(c.by_track(question, ratings).values()) for e, c in of.items()
            }
            values = [made[encoder].value for encoder in layers if encoder in made]
            axis.plot([*layers.values()], values, "o-", label=toolkit.LABELS[name], markersize=3)
        axis.set(title=question, xlabel="layer")
        axis.grid(alpha=0.3)
    grid[0].set_ylabel("SRCC")
    grid[0].legend(fontsize=7)
    toolkit.save_figure(figure, path)


def page(
    options: argparse.Namespace,
    arguments: Sequence[str] | None,
    rows: toolkit.Rows,
    others: toolkit.Rows | None,
    varied: toolkit.Rows | None,
) -> list[str]:
    """All sections."""
    ratings = rated.Ratings(options.ratings, options.unit)
    found = columns(rows, others)
    main = found[0].encoder
    text = f"{toolkit.subset(options, rows)} Correlations over the systems of a track, averaged; in"
    text += " brackets the 95 % interval over tracks (BCa bootstrap). Hidden references and anchors"
    text += f" are not among them. Of the paper, on other data and encoders: {PAPER}."
    name = f"{options.manifest.parent.name}: measures against listeners"
    made = toolkit.page_head(name, __file__, arguments, text)
    for question in ratings.questions:
        made += ["", f"## {question}", "", crossed(found, ratings, question), ""]
        if (less := differences(found, ratings, question)).count("\n") > 1:
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
    if len(layers_of(found)) > 1 and "separation" in options.measures:
        made += ["", "## Layers", "", f"{max_min.__doc__}", "", max_min(found, ratings)]
    for question in ratings.questions:
        made += ["", f"## Where it goes wrong: {question}", "", tracks(found, ratings, question)]
        made += ["", "By how many ranks a system is placed too high (+) or too low (-):", ""]
        made += [systems(found, ratings, question)]
    if others is not None:
        missing = [list(pair) for pair in rivals.not_run().items()]
        made += ["", "## Not run", "", toolkit.markdown(["measure", "why"], missing)]
    return made


def main(arguments: Sequence[str] | None = None) -> Mapping[str, toolkit.Rows | None]:
    parser = toolkit.parser(__doc__, ratings=True)
    parser.add_argument("--unit", default="track", metavar="COLUMN", help="default: %(default)s")
    parser.add_argument("--measures", nargs="+", choices=toolkit.ENCODED, default=toolkit.ENCODED)
    rivals.add_option(parser)
    parser.add_argument("--no-rivals", action="store_true")
    parser.add_argument("--no-variants", action="store_true", help="of the first encoder")
    options = parser.parse_args(arguments)
    ratings = rated.Ratings(options.ratings, options.unit)
    rows = score(options, ratings)
    others = None if options.no_rivals else rivals.run(options)
    varied = None if options.no_variants else vary(options, ratings, options.encoders[0])
    toolkit.finish(options, "listeners", page(options, arguments, rows, others, varied))
    if sum("@" in encoder for encoder in rows.distinct("encoder")) > 1:
        draw_layers(columns(rows, None), ratings, options.out / "layers.png")
    return {"scores": rows, "rivals": others, "variants": varied}


if __name__ == "__main__":
    main()
