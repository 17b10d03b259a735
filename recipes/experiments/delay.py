"""What a delay between reference and output costs [fig:combined_misalignment, PM against PESQ].

    python recipes/experiments/delay.py --manifest FOLDER/manifest.json --out runs/delay
    python recipes/experiments/delay.py --manifest FOLDER/mapss.json --ratings FOLDER/ratings.csv \
        --out runs/delay_rated

Without ratings the estimate is the first reference itself, delayed by 0 to 100 ms: PS and PM, with
and without undoing the lag first (`--align` of ``torch-mapss evaluate``), beside PESQ, which aligns
by itself. With ratings every system's output is delayed, and SRCC and PCC are drawn over the delay.
"""

from __future__ import annotations

import argparse
from collections.abc import Iterator, Sequence
from pathlib import Path

import rivals
import toolkit
from torch import Tensor

from torch_mapss import MAPSS
from torch_mapss.audio import shift

SHOWN = ("ps", "pm", "log_pm", "log_foreign_distance")
RATED = ("ps", "pm", "log_pm", "log_foreign_distance")


def delayed(wave: Tensor, rate: int, milliseconds: float) -> Tensor:
    """(T,) later by so much; silence comes in, the end is cut off."""
    return shift(wave, -round(rate * milliseconds / 1000))


def estimates(mixture: toolkit.Mixture, rated: bool) -> Iterator[tuple[str, int, Tensor]]:
    """System, source and output (T,): those of the systems, or the first reference."""
    if not rated:
        yield "reference", 0, mixture.references[0]
        return
    for system, outputs in mixture.systems.items():
        if not system.startswith("control:"):
            for place, output in enumerate(outputs):
                if output is not None:
                    yield system, place, output


def scorers(options: argparse.Namespace, encoder: str) -> dict[str, MAPSS]:
    """The scorer as it is, and one that undoes a constant lag first."""
    found = {"as they are": toolkit.scorer(options, encoder)}
    if not options.ratings:
        found["aligned"] = toolkit.scorer(options, encoder)
    return found


def run(options: argparse.Namespace) -> toolkit.Rows:
    """Score everything at every delay."""
    keys = ("encoder", "scenario", "mixture", "system", "source", "signals", "delay")
    settings = toolkit.settings_of(options, "encoders", "mixtures", "ratings", "columns")
    rows = toolkit.Rows(options.out, keys, (*toolkit.MEASURES, "frames", "pesq"), settings)
    for encoder in options.encoders:
        kinds = scorers(options, encoder)
        rate = kinds["as they are"].sample_rate
        found = toolkit.load_mixtures(
            options.manifest,
            rate,
            seconds=options.seconds,
            limit=options.mixtures,
            systems=bool(options.ratings),
        )
        for mixture in toolkit.progress(list(found), f"{encoder}, mixtures"):
            score(options, rows, kinds, mixture, rate, encoder)
    return rows


def score(
    options: argparse.Namespace,
    rows: toolkit.Rows,
    kinds: dict[str, MAPSS],
    mixture: toolkit.Mixture,
    rate: int,
    encoder: str,
) -> None:
    """One mixture at every delay that is not there yet."""
    bank = None
    for system, place, output in estimates(mixture, bool(options.ratings)):
        reference = mixture.references[place]
        for kind, mapss in kinds.items():
            for delay in options.delays:
                source = mixture.sources[place]
                key = (encoder, mixture.scenario, mixture.name, system, source, kind, delay)
                if rows.has(*key):
                    continue
                bank = mapss.prepare(mixture.references[None]) if bank is None else bank
                late = delayed(output, rate, delay)
                given = toolkit.aligned(late, reference, rate) if kind == "aligned" else late
                scores = toolkit.target_scores(
                    mapss, bank, given, source=place, every=options.every
                )
                pesq = None
                if not options.ratings and kind == "as they are":
                    pesq = rivals.quietly(rivals.pesq, late, reference, rate)
                rows.add(**dict(zip(rows.keys, key)), **scores, pesq=pesq)


def table(rows: toolkit.Rows, options: argparse.Namespace) -> tuple[list[str], list[list[str]]]:
    """One line per scenario, measure and kind of signal, one column per delay."""
    lines = []
    for encoder in options.encoders:
        for scenario in rows.distinct("scenario"):
            for kind in rows.distinct("signals"):
                shown = (*SHOWN, "pesq") if kind == "as they are" else SHOWN
                for measure in shown:
                    here = {"encoder": encoder, "scenario": scenario, "signals": kind}
                    cells = [
                        toolkit.number(rows.mean(measure, **here, delay=delay))
                        for delay in options.delays
                    ]
                    label = toolkit.LABELS.get(measure, measure.upper())
                    lines.append([encoder, scenario, kind, label, *cells])
    return [
        "encoder",
        "scenario",
        "output",
        "measure",
        *(f"{d:g} ms" for d in options.delays),
    ], lines


def correlation_table(
    rows: toolkit.Rows, options: argparse.Namespace
) -> tuple[list[str], list[list[str]]]:
    """SRCC/PCC in %, one line per scenario, question and measure, one column per delay."""
    lines = []
    for encoder in options.encoders:
        found = [
            toolkit.correlations(
                rows.where(encoder=encoder, delay=delay),
                options.ratings,
                measures=RATED,
                sources=dict(options.source_map),
                columns=dict(options.columns),
            )
            for delay in options.delays
        ]
        for key in found[0]:
            cells = [
                f"{toolkit.percent(f[key]['srcc'])}/{toolkit.percent(f[key]['pcc'])}" for f in found
            ]
            lines.append([encoder, key[0], key[1], toolkit.LABELS[key[2]], *cells])
    header = ["encoder", "scenario", "question", "measure: SRCC/PCC"]
    return [*header, *(f"{d:g} ms" for d in options.delays)], lines


def draw(header: Sequence[str], lines: Sequence[Sequence[str]], path: Path) -> None:
    """The lines of either table over the delay; of SRCC/PCC the first."""
    delays = [float(cell.split()[0]) for cell in header[4:]]
    groups = list(dict.fromkeys(tuple(line[:3]) for line in lines))
    figure = toolkit.new_figure(8.0, 2.6 * -(-len(groups) // 2) + 0.4)
    axes = figure.subplots(-(-len(groups) // 2), 2, squeeze=False)
    for axis, group in zip(axes.flat, groups):
        for line in lines:
            correlated = "/" in line[4]
            if tuple(line[:3]) != group or not (correlated or line[3] in ("PS", "PM")):
                continue  # the rest is on other scales
            values = [float(cell.split("/")[0].replace("–", "nan")) for cell in line[4:]]
            axis.plot(delays, values, "o-", label=line[3], markersize=3)
        if "/" not in lines[0][4]:
            axis.set_ylim(-0.02, 1.02)
        axis.set_title(", ".join(group), fontsize=9)
        axis.set_xlabel("delay (ms)")
        axis.grid(alpha=0.3)
        axis.legend(fontsize=7)
    for axis in axes.flat[len(groups) :]:
        axis.remove()
    toolkit.save_figure(figure, path)


def main(arguments: Sequence[str] | None = None) -> toolkit.Rows:
    parser = toolkit.parser(__doc__)
    delays = [10.0 * step for step in range(11)]
    parser.add_argument("--delays", nargs="+", type=float, default=delays, metavar="MS")
    toolkit.add_scoring(parser)
    toolkit.add_ratings(parser, required=False)
    options = parser.parse_args(arguments)
    rows = run(options)
    made = correlation_table(rows, options) if options.ratings else table(rows, options)
    text = [
        "# Delay",
        "",
        f"{len(rows.distinct('mixture'))} mixtures of {options.manifest.parent.name}, "
        f"`{options.convention}` convention, "
        + ("every frame." if options.every <= 1 else f"one frame in {options.every}."),
        "",
        toolkit.markdown(*made),
    ]
    toolkit.write_page(options.out / "delay.md", "\n".join(text))
    toolkit.write_page(options.out / "delay.tex", toolkit.latex(*made))
    draw(*made, options.out / "delay.png")
    print("\n".join(text))
    return rows


if __name__ == "__main__":
    main()
