"""``torch-mapss score``: the estimates of one mixture."""

from __future__ import annotations

import argparse
import os
from typing import TYPE_CHECKING, Any

from torch_mapss.evaluation import console, files
from torch_mapss.evaluation.commands.options import (
    CODES,
    FILES,
    MEASURES,
    OK,
    add_manners,
    add_scoring_options,
    device_of_options,
    make_parser,
    request_of,
    say_written,
    scorer_of,
    threads,
)

if TYPE_CHECKING:
    from torch_mapss.evaluation.report import Report


def add_parser(commands: Any) -> None:
    score = make_parser(
        commands,
        "score",
        f"Score the estimates of one mixture.\n\n{MEASURES}\n{FILES}",
        "Example:\n  torch-mapss score --references a.wav b.wav --estimates ea.wav eb.wav "
        f"--encoder mel --plot --out results\n\n{CODES}",
        "score the estimates of one mixture",
    )
    score.set_defaults(run=run)
    _add_signals(score)
    _add_results(score)
    add_scoring_options(score)
    add_manners(score)


def _add_signals(score: Any) -> None:
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
        help="the separator's outputs, in the order of the references (or see --permute and "
        "--attributed)",
    )
    score.add_argument(
        "--mixture",
        metavar="FILE",
        help="the mixture, for the plot, and to tell an estimate that is the mixture itself",
    )
    score.add_argument(
        "--names", nargs="+", metavar="NAME", help="one name per reference, for tables and plots"
    )
    score.add_argument(
        "--attributed",
        nargs="+",
        type=int,
        metavar="INDEX",
        help="which reference each estimate belongs to, from 0: `--attributed 0` scores the "
        "first source alone",
    )


def _add_results(score: Any) -> None:
    score.add_argument(
        "--plot",
        nargs="?",
        const="",
        metavar="FILE",
        help="draw PS and PM over time, to FILE (PNG, PDF or SVG), else to scores.png in --out or "
        "here",
    )
    score.add_argument(
        "--out",
        metavar="DIR",
        help="write scores.csv, ps.csv, pm.csv (per frame) and report.json to this folder",
    )


def run(args: argparse.Namespace) -> int:
    """``torch-mapss score``."""
    _check_outputs(args)
    request = request_of(args)
    args.device = device_of_options(args.device)
    from torch_mapss.evaluation.scorer import evaluate

    with threads(args.threads), console.stages(3, args.quiet) as stage:
        report = evaluate(
            estimates=args.estimates,
            references=args.references,
            mixture=args.mixture,
            names=args.names,
            attributed=args.attributed,
            device=args.device,
            mapss=scorer_of(args),
            on_stage=stage,
            on_segment=None if args.quiet else console.segment_detail(),
            **request._asdict(),
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
        files.make_folder(args.out)


def _plot_target(args: argparse.Namespace) -> str:
    return args.plot or os.path.join(args.out or ".", "scores.png")
