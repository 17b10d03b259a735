"""Encoders side by side [tab:correlations_ssl_vs_wavform], one language against several
[tab:mono_vs_multi], and each trained network beside its own shape with random weights.

    python recipes/experiments/encoders.py --encoders wav2vec2-large wav2vec2-base@2 mel waveform \\
        --manifest FOLDER/mapss.json --ratings FOLDER/ratings.csv --out runs/encoders

``NAME@LAYER`` chooses a layer; a folder or hub id is a name, too. Where the manifest has several
scenarios (English only, Spanish only, multilingual), they stand side by side. ``--random`` adds the
random-weights control; ``--untrained`` runs it alone, in the shapes of the published checkpoints,
where none of these is at hand: what comes out then says nothing about them, and is marked so.

Without ``--ratings`` the control of `rated` takes their place, and ``--languages`` makes mixtures
of one and of two languages of single utterances that have ``speaker`` and ``language``.
"""

from __future__ import annotations

import argparse
import itertools
import json
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import rated
import toolkit
import untrained

from torch_mapss.encoders import Encoder, TransformerEncoder

MULTILINGUAL = "multilingual"


def encoders(options: argparse.Namespace) -> Iterator[tuple[str, rated.Choice]]:
    """(shown name, what to load) of every run."""
    for text in options.encoders:
        choice = rated.Choice.of(text, options.layer)
        shown = rated.shown_name(choice.name)
        learned = choice.name not in rated.PLAIN
        if not (learned and options.untrained):
            yield shown, choice
        if learned and (options.random or options.untrained):
            folder = options.out / "random-weights" / shown
            made = untrained.untrained(choice.name, folder, options.seed)
            layer = _layer(choice, options)
            yield shown + untrained.MARK, rated.Choice(str(made), layer)


def _layer(choice: rated.Choice, options: argparse.Namespace) -> int | None:
    """The layer of the trained encoder, which its random twin is read at, too."""
    known = {row.name: row.layer for row in untrained.encoder_table()}
    if choice.layer is not None or choice.name in known:
        return known.get(choice.name) if choice.layer is None else choice.layer
    return choice.load(options).layer


def language_mixtures(manifest: Path, out: Path) -> Path:
    """A manifest of mixtures of one language each, and of two, by the items of another.

    Every item is once a target beside another speaker of its language and once beside one of
    another language, so that both kinds have the same targets.

    Raises:
        SystemExit: the manifest is none of single utterances.
    """
    items = json.loads(manifest.read_text(encoding="utf-8"))
    items = items.get("items", []) if isinstance(items, dict) else []
    if not items or any({"path", "speaker", "language"} - set(item) for item in items):
        raise SystemExit("--languages needs items with path, speaker and language.")
    entries = []
    for alike in (True, False):  # first all of one kind, so that every n-th takes of both
        for place, item in enumerate(items):
            strangers = [other for other in items if other["speaker"] != item["speaker"]]
            fitting = [o for o in strangers if (o["language"] == item["language"]) == alike]
            if fitting:
                other = fitting[(7 * place) % len(fitting)]
                entries.append(_entry(manifest.parent, item, other, alike))
    toolkit.write_page(out, json.dumps(entries, indent=1))
    return out


def _entry(folder: Path, item: dict[str, str], other: dict[str, str], alike: bool) -> Any:
    return {
        "mixture_id": f"{item['id']}+{other['id']}",
        "scenario": f"{item['language']} only" if alike else MULTILINGUAL,
        "sources": [item["id"], other["id"]],
        "references": [str((folder / one["path"]).resolve()) for one in (item, other)],
        "systems": {},
        "level": toolkit.LEVEL,
    }


def describe(shown: str, encoder: Encoder) -> list[str]:
    """A line of the table of architectures [tab:architectures_checkpoints]."""
    layers, weights = "–", "none"
    if isinstance(encoder, TransformerEncoder):
        layers = str(encoder.layers)
        weights = "random" if shown.endswith(untrained.MARK) else "trained"
    layer = "–" if encoder.layer is None else str(encoder.layer)
    rate = f"{encoder.sample_rate / 1000:g} kHz, {encoder.frames_per_second:g}/s"
    return [shown, layers, layer, str(encoder.feature_size), rate, weights]


def scenario_table(
    rows: toolkit.Rows, asked: dict[str, str], method: str
) -> tuple[list[str], list[list[str]]]:
    """A row for every measure and encoder, a column for every scenario and one for all."""
    scenarios = rows.distinct("scenario")
    groups: list[dict[str, Any]] = [{"scenario": name} for name in scenarios]
    groups = groups if len(groups) == 1 else [*groups, {}]
    names = scenarios if len(scenarios) == 1 else [*scenarios, "together"]
    header = ["measure / question", "encoder", "layer", *(f"{name}: {method}" for name in names)]
    lines = []
    for measure, encoder in itertools.product(rated.SHOWN, rows.distinct("encoder")):
        (layer,) = rated.layers_of(rows, encoder)
        cells = [
            str(rated.correlation(rows, measure, asked[measure], method, encoder=encoder, **group))
            for group in groups
        ]
        label = f"{toolkit.LABELS[measure]} / {asked[measure]}"
        lines.append([label, encoder, layer or "–", *cells])
    return header, lines


def cross_table(rows: toolkit.Rows, questions: Sequence[str]) -> tuple[list[str], list[list[str]]]:
    """SRCC of every measure with every question: a measure should follow its own alone."""
    header = ["encoder", *(f"{toolkit.LABELS[m]} / {q}" for m in rated.SHOWN for q in questions)]
    lines = []
    for encoder in rows.distinct("encoder"):
        cells = [
            str(rated.correlation(rows, measure, question, "SRCC", encoder=encoder))
            for measure in rated.SHOWN
            for question in questions
        ]
        lines.append([encoder, *cells])
    return header, lines


def page(
    rows: toolkit.Rows,
    asked: dict[str, str],
    options: argparse.Namespace,
    described: Sequence[Sequence[str]],
) -> str:
    """All tables."""
    stimuli = len({(r["track"], r["source"], r["system"]) for r in rows.where()})
    header = ["encoder", "layers", "read", "features", "rate", "weights"]
    lines = [
        "# Encoders",
        "",
        f"{options.manifest.parent.name}: {len(rows.distinct('track'))} mixtures, {stimuli} "
        f"outputs, one frame in {options.every}, `{options.convention}` convention. "
        "Correlations over the systems of a "
        "mixture and source, averaged over these, ± the standard error of that average.",
        "",
        toolkit.markdown(header, described),
    ]
    if options.untrained:
        lines += ["", "**Random weights: nothing here speaks about the published checkpoints.**"]
    for method in rated.METHODS:
        lines += ["", f"## {method}", ""]
        lines += [toolkit.markdown(*scenario_table(rows, asked, method))]
    questions = rated.Ratings(options.ratings).questions
    if options.ratings is not None and len(questions) > 1:
        lines += ["", "## SRCC of every measure with every question", ""]
        lines += [toolkit.markdown(*cross_table(rows, questions))]
    return "\n".join(lines)


def draw(rows: toolkit.Rows, asked: dict[str, str], path: Path) -> None:
    """A panel per measure: an encoder's SRCC with its error."""
    names = rows.distinct("encoder")
    figure = toolkit.new_figure(9.0, 1.2 + 0.3 * len(names))
    for axis, measure in zip(
        figure.subplots(1, len(rated.SHOWN), sharex=True, sharey=True), rated.SHOWN
    ):
        found = [
            rated.correlation(rows, measure, asked[measure], "SRCC", encoder=name) for name in names
        ]
        values, errors = [one.value for one in found], [one.error for one in found]
        axis.errorbar(values, range(len(names)), xerr=errors, fmt="o", color="#0b4f79")
        axis.set(title=f"{toolkit.LABELS[measure]} / {asked[measure]}", xlabel="SRCC")
        axis.set_yticks(range(len(names)), names)
        axis.set_ylim(len(names) - 0.5, -0.5)
        axis.grid(alpha=0.3)
    toolkit.save_figure(figure, path)


def main(arguments: Sequence[str] | None = None) -> toolkit.Rows:
    parser = toolkit.parser(__doc__)
    rated.add_options(parser, ("wav2vec2-large", "mel", "waveform"))
    parser.add_argument("--random", action="store_true", help="random weights beside the trained")
    parser.add_argument("--untrained", action="store_true", help="random weights alone")
    parser.add_argument("--seed", type=int, default=0, help="of the random weights")
    parser.add_argument(
        "--languages", action="store_true", help="mixtures of one and two languages"
    )
    options = parser.parse_args(arguments)
    asked = rated.questions(options)
    rows = rated.open_rows(options)
    manifest = options.manifest
    if options.languages:
        manifest = language_mixtures(manifest, options.out / "mixtures.json")
    described = []
    for shown, choice in encoders(options):
        encoder = choice.load(options)
        described.append(describe(shown, encoder))
        found = rated.Layers(encoder, (encoder.layer,), options.every)
        rated.score(options, rows, shown, found, manifest)
    text = page(rows, asked, options, described)
    toolkit.write_page(options.out / "encoders.md", text)
    table = toolkit.latex(*scenario_table(rows, asked, "SRCC"))
    toolkit.write_page(options.out / "encoders.tex", table)
    draw(rows, asked, options.out / "encoders.png")
    print(text)
    return rows


if __name__ == "__main__":
    main()
