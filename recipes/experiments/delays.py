"""Do scores follow listeners when an output is late? [fig:combined_misalignment]

    python recipes/experiments/delays.py --manifest FOLDER/mapss.json \\
        --ratings FOLDER/ratings.csv --sample-frames 20 --out runs/delays

Every rated output is delayed by 0 to 100 ms, which listeners do not notice (says the paper), and
its scores are correlated with its ratings. All outputs of a track have the same delay: only their
order can change.
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
            for system, source_index, output in ratings.outputs(mixture):
                source = mixture.sources[source_index]
                for ms in options.ms:
                    key = toolkit.shown(encoder), ms, mixture.name, system, source
                    if rows.has(*key):
                        continue
                    bank = bank or mapss.prepare(mixture.references[None], measures=toolkit.ENCODED)
                    late = signals.delayed(output[None], rate, ms)
                    scores = toolkit.target_scores(
                        mapss, bank, late, source_index, options.sample_frames
                    )
                    rows.add(*key, **scores)
    return rows


def draw(
    by_question: dict[str, dict[str, list[rated.Estimate]]], options: argparse.Namespace
) -> None:
    """SRCC over the delay, a panel for every question."""
    figure = toolkit.new_figure(4.2 * len(by_question), 3.2)
    panels = figure.subplots(1, len(by_question), squeeze=False, sharey=True)[0]
    for axis, (question, by_delay) in zip(panels, by_question.items()):
        delays = [float(ms) for ms in by_delay]
        for index, measure in enumerate(SHOWN):
            values = [estimates[index].value for estimates in by_delay.values()]
            axis.plot(delays, values, "o-", markersize=3, label=toolkit.LABELS[measure])
        axis.set(title=question, xlabel="delay (ms)")
        axis.grid(alpha=0.3)
    panels[0].set_ylabel("SRCC")
    panels[0].legend(fontsize=7)
    toolkit.save_figure(figure, options.out / "delays.png")


def main(arguments: Sequence[str] | None = None) -> toolkit.Rows:
    parser = toolkit.parser(__doc__, ratings=True)
    rated.add_unit_option(parser)
    parser.add_argument(
        "--ms",
        type=float,
        nargs="+",
        default=[0.0, 20.0, 40.0, 60.0, 80.0, 100.0],
        help="delays in milliseconds (default: 0 to 100 in steps of 20)",
    )
    options = parser.parse_args(arguments)
    ratings = rated.Ratings(options.ratings, options.unit)
    rows = run(options, ratings)
    about = f"{toolkit.subset(options, rows)} SRCC over the systems of a track, averaged; in"
    about += f" brackets the 95 % interval over tracks (BCa bootstrap). Paper: {PAPER}."
    text = toolkit.page_head("Late outputs against listeners", __file__, arguments, about)
    for encoder in map(toolkit.shown, options.encoders):
        by_question = {}
        for question in ratings.questions:
            by_delay = rated.by_condition(
                rows, "ms", SHOWN, ratings, encoder=encoder, question=question
            )
            by_question[question] = by_delay
            lines = [[ms, *map(str, estimates)] for ms, estimates in by_delay.items()]
            header = ["ms", *(toolkit.LABELS[measure] for measure in SHOWN)]
            text += ["", f"## {question}, `{encoder}`", "", toolkit.markdown(header, lines)]
        draw(by_question, options)
    toolkit.finish(options, "delays", text)
    return rows


if __name__ == "__main__":
    main()
