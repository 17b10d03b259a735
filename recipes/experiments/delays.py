"""Do scores follow listeners when an output is late? [fig:combined_misalignment]

    python recipes/experiments/delays.py --manifest FOLDER/mapss.json --ratings FOLDER/ratings.csv \
        --sample-frames 20 --out runs/delays

Every rated output is 0 to 100 ms late, which listeners do not notice (says the paper), and is held
against its ratings. All outputs of a track are equally late: what falls is their order.
"""

from __future__ import annotations

import argparse
from collections.abc import Sequence

import rated
import signals
import toolkit

SHOWN = ("clearance", "fidelity", "ps", "pm", "log_pm", "log_foreign_distance")
KEYS = ("encoder", "ms", "mixture", "system", "source")
PAPER = "SRCC above 0.80 to 20 ms, then falling on speech, stable on music (wav2vec 2.0, MERT)"


def run(options: argparse.Namespace, ratings: rated.Ratings) -> toolkit.Rows:
    """Score every rated output at every delay."""
    settings = toolkit.settings_of(options, "ratings", "unit", "ms")
    rows = toolkit.Rows(options.out, KEYS, (*toolkit.MEASURES, "frames"), settings)
    for encoder in options.encoders:
        mapss = toolkit.scorer(options, encoder)
        rate = mapss.grid.sample_rate
        for mixture in toolkit.load_mixtures(options, rate, systems=True):
            bank = None
            for system, place, output in ratings.outputs(mixture):
                for ms in options.ms:
                    key = toolkit.shown(encoder), ms, mixture.name, system, mixture.sources[place]
                    if rows.has(*key):
                        continue
                    bank = bank or mapss.prepare(mixture.references[None], measures=toolkit.ENCODED)
                    late = signals.delayed(output[None], rate, ms)
                    count = options.sample_frames
                    rows.add(*key, **toolkit.target_scores(mapss, bank, late, place, count))
    return rows


def draw(found: dict[str, dict[str, list[rated.Estimate]]], options: argparse.Namespace) -> None:
    """SRCC over the delay, a panel for every question."""
    figure = toolkit.new_figure(4.2 * len(found), 3.2)
    grid = figure.subplots(1, len(found), squeeze=False, sharey=True)[0]
    for axis, (question, values) in zip(grid, found.items()):
        for place, measure in enumerate(SHOWN):
            line = [estimates[place].value for estimates in values.values()]
            axis.plot(
                [*map(float, values)], line, "o-", markersize=3, label=toolkit.LABELS[measure]
            )
        axis.set(title=question, xlabel="delay (ms)")
        axis.grid(alpha=0.3)
    grid[0].set_ylabel("SRCC")
    grid[0].legend(fontsize=7)
    toolkit.save_figure(figure, options.out / "delays.png")


def main(arguments: Sequence[str] | None = None) -> toolkit.Rows:
    parser = toolkit.parser(__doc__, ratings=True)
    parser.add_argument("--unit", default="track", metavar="COLUMN")
    parser.add_argument("--ms", type=float, nargs="+", default=[0.0, 20.0, 40.0, 60.0, 80.0, 100.0])
    options = parser.parse_args(arguments)
    ratings = rated.Ratings(options.ratings, options.unit)
    rows = run(options, ratings)
    about = f"{toolkit.subset(options, rows)} SRCC over the systems of a track, averaged; in"
    about += f" brackets the 95 % interval over tracks (BCa bootstrap). Paper: {PAPER}."
    text = toolkit.page_head("Late outputs against listeners", __file__, arguments, about)
    for encoder in map(toolkit.shown, options.encoders):
        found = {}
        for question in ratings.questions:
            here = {"encoder": encoder, "question": question}
            values = found[question] = rated.by_condition(rows, "ms", SHOWN, ratings, **here)
            lines = [[ms, *map(str, estimates)] for ms, estimates in values.items()]
            header = ["ms", *(toolkit.LABELS[measure] for measure in SHOWN)]
            text += ["", f"## {question}, `{encoder}`", "", toolkit.markdown(header, lines)]
        draw(found, options)
    toolkit.finish(options, "delays", text)
    return rows


if __name__ == "__main__":
    main()
