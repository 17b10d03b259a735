"""Rank and test the systems of one or more results folders, over mixtures.

Says which system is best, and whether that is significant. Folders of `torch-mapss evaluate` are
joined if all was scored with the same settings.

For every measure that ranks systems (clearance, fidelity, PS, PM, log PM, bleed): means with BCa
bootstrap intervals, and for every pair of systems, over the mixtures that both have, the mean
difference with its interval, wins, ties and losses, and Wilcoxon's signed rank test with Holm's
correction over the pairs that can reject at all. Systems sharing a letter do not differ
significantly.
DIR gets comparison.csv (pairs), ranking.csv (systems), sources.csv (means of every source name), a
box plot per measure and a scatter plot of fidelity over clearance (PNG and SVG).
torch_mapss.compare in Python takes another level, confidence, weights and seed as well.

Example:
  torch-mapss compare results --out comparison
"""

from __future__ import annotations

import argparse

from torch_mapss.evaluation import console
from torch_mapss.evaluation.commands.options import OK, add_quiet, say_written


def add_options(parser: argparse.ArgumentParser) -> None:
    """The folders, and what is compared."""
    add = parser.add_argument
    add("results", nargs="+", metavar="RESULTS", help="folders of results")
    add("--out", required=True, metavar="DIR", help="folder of the comparison")
    add("--systems", nargs="+", metavar="NAME", help="only these (default: all)")
    text = "leave out hidden references and anchors (systems control:NAME)"
    add("--no-references", dest="references", action="store_false", help=text)
    add("--no-plots", dest="plots", action="store_false", help="write the tables alone")
    add_quiet(parser)


def run(args: argparse.Namespace) -> int:
    """``torch-mapss compare``."""
    from torch_mapss.evaluation import io, plots
    from torch_mapss.evaluation.comparison import compare

    if args.plots:  # what would fail at the end fails at the start
        plots.check_available()
    io.make_folder(args.out)
    found = compare(args.results, systems=args.systems, references=args.references)
    found.save(args.out, plots=args.plots)
    if not args.quiet:
        console.say(found.summary())
    say_written([args.out], args.quiet)
    return OK
