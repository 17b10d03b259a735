"""``torch-mapss score``: the estimates of one mixture."""

from __future__ import annotations

import argparse
import os
from typing import TYPE_CHECKING, Any

from torch_mapss.evaluation import console, io
from torch_mapss.evaluation.commands.options import (
    CODES,
    CONFIG,
    FILES,
    MEASURES,
    OK,
    add_scoring_options,
    device_of_options,
    make_parser,
    say_written,
    scoring_options,
    threads,
)

if TYPE_CHECKING:
    from torch_mapss.evaluation.report import Report


def add_parser(commands: Any) -> None:
    score = make_parser(
        commands,
        "score",
        f"Score the estimates of one mixture.\n\n{MEASURES}\n{FILES}",
        f"{CONFIG}\nExample:\n"
        "  torch-mapss score --references a.wav b.wav --estimates ea.wav eb.wav --encoder mel "
        f"--plot --out results\n\n{CODES}",
        "score the estimates of one mixture",
    )
    score.set_defaults(run=run)
    score.add_argument(
        "--references",
        nargs="+",
        required=True,
        metavar="FILE",
        help="the true sources, one file each, at least two",
    )
    score.add_argument(
        "--estimates",
        nargs="+",
        required=True,
        metavar="FILE",
        help="the separator's outputs, in the order of the references (or see --permute)",
    )
    score.add_argument(
        "--sources", nargs="+", metavar="NAME", help="one name per reference, for tables and plots"
    )
    score.add_argument(
        "--attributed",
        nargs="+",
        type=int,
        metavar="INDEX",
        help="which reference each estimate belongs to, from 0: `--attributed 0` scores the "
        "first source alone",
    )
    score.add_argument(
        "--out",
        metavar="DIR",
        help="write scores.csv, frames.csv (per frame) and report.json to this folder",
    )
    score.add_argument(
        "--plot",
        nargs="?",
        const="",
        metavar="FILE",
        help="draw the scores over time, to FILE (PNG, PDF or SVG), else to scores.png in --out "
        "or here",
    )
    add_scoring_options(score, ("excerpts", "excerpt_seconds", "segment"))


def run(args: argparse.Namespace) -> int:
    """``torch-mapss score``."""
    options = scoring_options(args)
    _check_outputs(args)
    from torch_mapss.evaluation.score import evaluate

    with threads(args.threads), console.progress(1.0, args.quiet) as bar:
        report = evaluate(
            estimates=args.estimates,
            references=args.references,
            names=args.sources,
            attributed=args.attributed,
            device=device_of_options(args.device),
            on_segment=lambda done, total: bar.update(done / total - bar.n),
            **options,
        )
    written = _write(report, args)
    if not args.quiet:
        console.say(report.summary())
    say_written(written, args.quiet)
    return OK


def _write(report: Report, args: argparse.Namespace) -> list[str]:
    """All that was asked for, before anything is printed: where it is."""
    written = []
    if args.out is not None:
        written.append(report.save(args.out))
    if args.plot is not None:
        from torch_mapss.evaluation import plots

        written.append(plots.save_figure(report.plot(), _plot_target(args)))
    return written


def _check_outputs(args: argparse.Namespace) -> None:
    """What would fail at the end fails at the start."""
    if args.plot is not None:
        from torch_mapss.evaluation import plots

        plots.check_available(_plot_target(args))
    if args.out is not None:
        io.make_folder(args.out)


def _plot_target(args: argparse.Namespace) -> str:
    return args.plot or os.path.join(args.out or ".", "scores.png")
