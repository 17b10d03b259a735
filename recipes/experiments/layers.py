"""PS and PM by the layer they are read from, and the layer to take [fig:combined_layers].

    python recipes/experiments/layers.py --encoders wav2vec2-large --manifest FOLDER/mapss.json \\
        --ratings FOLDER/ratings.csv --out runs/layers

Every waveform is encoded once for all layers up to ``--top`` (default: all there are). For every
layer the correlation of PS, log B, PM and log PM with the ratings, over the systems of a mixture
and source, averaged; the layer to take is the one whose worst number is best: over PS and PM, SRCC
and PCC, and scenarios. ``--random`` puts the same architecture with random weights beside each.

Without ``--ratings`` the control of `rated` takes their place.
"""

from __future__ import annotations

import argparse
from collections.abc import Iterator, Sequence
from pathlib import Path

import rated
import toolkit
import untrained

from torch_mapss.encoders import TransformerEncoder

COLOURS = {"ps": "#0b4f79", "log_foreign_distance": "#5fa8d3", "pm": "#e8871e", "log_pm": "#9c4a00"}


def every_layer(name: str, options: argparse.Namespace) -> rated.Layers:
    """All layers of a checkpoint up to the highest asked for."""
    encoder = rated.load(name, None if name in rated.PLAIN else 0, options)
    if not isinstance(encoder, TransformerEncoder):
        raise SystemExit(f"encoder {name!r} has no layers: name a pretrained one.")
    top = encoder.layers if options.top is None else options.top
    encoder = rated.load(name, top, options)
    return rated.Layers(encoder, range(top + 1), options.every)


def encoders(options: argparse.Namespace) -> Iterator[tuple[str, str]]:
    """(shown name, what to load) of every run."""
    for name in options.encoders:
        shown = rated.shown_name(name)
        if not options.untrained:
            yield shown, name
        if options.random or options.untrained:
            folder = options.out / "random-weights" / shown
            yield shown + untrained.MARK, str(untrained.untrained(name, folder))


def table(
    rows: toolkit.Rows, encoder: str, asked: dict[str, str], scenario: str
) -> tuple[list[str], list[list[str]]]:
    """A row per layer; SRCC / PCC of every measure."""
    header = ["layer", *(f"{toolkit.LABELS[m]} / {asked[m]}" for m in rated.SHOWN)]
    lines = []
    for layer in rated.layers_of(rows, encoder):
        where = {"encoder": encoder, "layer": layer, "scenario": scenario}
        cells = [
            " / ".join(
                str(rated.correlation(rows, measure, asked[measure], method, **where))
                for method in rated.METHODS
            )
            for measure in rated.SHOWN
        ]
        lines.append([layer, *cells])
    return header, lines


def page(rows: toolkit.Rows, asked: dict[str, str], options: argparse.Namespace) -> str:
    """The tables and the layers to take."""
    scenarios = rows.distinct("scenario")
    stimuli = len({(r["track"], r["source"], r["system"]) for r in rows.where()})
    lines = [
        "# Layers",
        "",
        f"{options.manifest.parent.name}: {len(rows.distinct('track'))} mixtures, {stimuli} "
        f"outputs, one frame in {options.every}, `{options.convention}` convention. Each cell is "
        "SRCC / PCC over the systems of a mixture and source, averaged over these, ± the standard "
        "error of that average. Layer 0 is what enters the first block.",
    ]
    for encoder in rows.distinct("encoder"):
        for scenario in scenarios:
            lines += ["", f"## `{encoder}`, {scenario}", ""]
            lines += [toolkit.markdown(*table(rows, encoder, asked, scenario))]
        lines += ["", *_chosen(rows, encoder, asked, scenarios)]
    return "\n".join(lines)


def _chosen(
    rows: toolkit.Rows, encoder: str, asked: dict[str, str], scenarios: Sequence[str]
) -> Iterator[str]:
    groups = [[name] for name in scenarios] + ([[*scenarios]] if len(scenarios) > 1 else [])
    for group in groups:
        layer, worst = rated.best_layer(rows, encoder, asked, group)
        where = group[0] if len(group) == 1 else "all scenarios"
        yield f"Max-min over PS and PM, SRCC and PCC, {where}: layer {layer} (worst {worst:.2f})."
        yield ""


def draw(rows: toolkit.Rows, asked: dict[str, str], path: Path) -> None:
    """Correlations over layers, a column for each method and a line of panels per encoder."""
    names = rows.distinct("encoder")
    figure = toolkit.new_figure(8.0, 2.8 * len(names))
    grid = figure.subplots(len(names), len(rated.METHODS), squeeze=False, sharey=True)
    for line, encoder in zip(grid, names):
        layers = rated.layers_of(rows, encoder)
        for axis, method in zip(line, rated.METHODS):
            for measure in rated.SHOWN:
                found = [
                    rated.correlation(
                        rows, measure, asked[measure], method, encoder=encoder, layer=layer
                    )
                    for layer in layers
                ]
                label = f"{toolkit.LABELS[measure]} / {asked[measure]}"
                style = {"color": COLOURS[measure], "marker": "o", "markersize": 3}
                places, values = [*map(int, layers)], [one.value for one in found]
                axis.errorbar(places, values, [one.error for one in found], label=label, **style)
            axis.set(title=f"{encoder}, {method}", xlabel="layer", xticks=[*map(int, layers)])
            axis.grid(alpha=0.3)
        line[0].set_ylabel("correlation")
    grid[0][0].legend(fontsize=7)
    toolkit.save_figure(figure, path)


def main(arguments: Sequence[str] | None = None) -> toolkit.Rows:
    parser = toolkit.parser(__doc__)
    rated.add_options(parser, ("wav2vec2-large",))
    parser.add_argument("--top", type=int, help="the highest layer; default: all")
    parser.add_argument("--random", action="store_true", help="random weights beside the trained")
    parser.add_argument("--untrained", action="store_true", help="random weights alone")
    options = parser.parse_args(arguments)
    if options.layer is not None:
        parser.error("all layers are read; --top says how far.")
    asked = rated.questions(options)
    rows = rated.open_rows(options)
    for shown, name in encoders(options):
        rated.score(options, rows, shown, every_layer(name, options), options.manifest)
    text = page(rows, asked, options)
    toolkit.write_page(options.out / "layers.md", text)
    draw(rows, asked, options.out / "layers.png")
    print(text)
    return rows


if __name__ == "__main__":
    main()
