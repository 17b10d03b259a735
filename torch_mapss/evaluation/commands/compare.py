"""Rank and test the systems of one or more results folders, over mixtures.

Says which system is best, and whether that is significant. Folders of `torch-mapss evaluate` are
joined if they were scored with the same settings.

For every score that ranks systems (`torch-mapss score --help` lists them): means with BCa
bootstrap intervals, over the mixtures in which all systems have a score; and for every two systems,
over the mixtures that both have, the mean difference with its interval, wins, ties and losses, and
Wilcoxon's signed rank test with Holm's correction over the tests that can reject at all. Systems
sharing a letter do not differ significantly. Hidden references and anchors (systems control:NAME)
get a separate table.
With --out, DIR gets comparison.csv (every two systems), ranking.csv (systems), sources.csv (means
of every source name), a box plot per score and a scatter plot of fidelity over clearance (PNG and
SVG).
torch_mapss.compare in Python also takes alpha, confidence, weight and seed.

Examples:
  torch-mapss compare results
  torch-mapss compare results --out comparison
"""

from __future__ import annotations

import argparse

from torch_mapss.evaluation import console
from torch_mapss.evaluation.commands.arguments import OK, add_quiet, say_written


def add_options(parser: argparse.ArgumentParser) -> None:
    """Add the folders, and what to compare."""
    add = parser.add_argument
    add("results", nargs="+", metavar="RESULTS", help="folders of results")
    add("--out", metavar="DIR", help="folder for tables and plots (default: nothing is written)")
    add("--systems", nargs="+", metavar="NAME", help="only these (default: all)")
    only = (
        "only these, by names of measures and of scores (default: all that rank systems; "
        "log_pm_compressed and ps_pesq on request)"
    )
    add("--measures", nargs="+", metavar="NAME", help=only)
    text = "also rank hidden references and anchors (systems control:NAME)"
    add("--controls", action="store_true", help=text)
    add("--no-plots", dest="plots", action="store_false", help="write only the tables")
    add_quiet(parser)


def run(args: argparse.Namespace) -> int:
    """``torch-mapss compare``."""
    from torch_mapss.evaluation import io, plots
    from torch_mapss.evaluation.comparison import compare
    from torch_mapss.evaluation.results import load_results

    if args.out is not None and args.plots:  # fail now rather than at the end
        plots.check_available()
    results = [load_results(folder) for folder in args.results]
    if args.out is not None:  # a wrong RESULTS leaves no folder behind
        io.make_folder(args.out)
    comparison = compare(
        results, systems=args.systems, measures=args.measures, controls=args.controls
    )
    if args.out is not None:
        comparison.save(args.out, plots=args.plots)
    if not args.quiet:
        console.say(comparison.summary())
    say_written([] if args.out is None else [args.out], args.quiet)
    return OK
