"""``torch-mapss compare``: which system is better."""

from __future__ import annotations

import argparse
from typing import Any

from torch_mapss.evaluation import console
from torch_mapss.evaluation.commands.options import OK, add_manners, make_parser, say_written


def add_parser(commands: Any) -> None:
    compare = make_parser(
        commands,
        "compare",
        """\
Rank and test the systems of one or more results folders that `torch-mapss evaluate` wrote.

Everything is over mixtures, for every measure (PS, PM, log PM, PM's rank in the conformal
convention, and B, the distance to the closest other source, with log B): means with BCa bootstrap
intervals, and for every pair of systems, over the mixtures that both have, the mean difference
with its interval, wins, ties and losses, and Wilcoxon's signed rank test with Holm's correction.
Systems that share a letter are not told apart.
DIR gets comparison.csv (pairs), ranking.csv (systems), a box plot per measure and a scatter plot of
PS against log PM (PNG and SVG).
Folders are joined if all was scored with the same settings.
""",
        "Example:\n  torch-mapss compare results --out comparison",
        "rank and test systems, over mixtures",
    )
    compare.set_defaults(run=run)
    compare.add_argument("results", nargs="+", metavar="RESULTS", help="folders of results")
    compare.add_argument("--out", required=True, metavar="DIR", help="folder of the comparison")
    add_comparing_options(compare)
    compare.add_argument("--no-plots", action="store_true", help="write the tables alone")
    add_manners(compare)


def add_comparing_options(parser: Any) -> None:
    group = parser.add_argument_group("statistics")
    group.add_argument(
        "--alpha",
        type=float,
        default=0.05,
        metavar="P",
        help="level of the tests, after Holm's correction (default: %(default)s)",
    )
    group.add_argument(
        "--interval",
        type=float,
        default=0.95,
        metavar="P",
        help="confidence of the intervals (default: %(default)s)",
    )
    group.add_argument(
        "--weight",
        choices=("equal", "duration", "sources"),
        default="equal",
        help="of mixtures in means and intervals; rank tests have no weights (default: "
        "%(default)s)",
    )
    group.add_argument(
        "--seed", type=int, default=0, help="of the bootstrap (default: %(default)s)"
    )


def run(args: argparse.Namespace) -> int:
    """``torch-mapss compare``."""
    from torch_mapss.evaluation import files, plots
    from torch_mapss.evaluation.comparison import compare

    if not args.no_plots:  # what would fail at the end fails at the start
        plots.check_available()
    files.make_folder(args.out)
    found = compare(
        args.results,
        alpha=args.alpha,
        confidence=args.interval,
        weight=args.weight,
        seed=args.seed,
    )
    found.save(args.out, plots=not args.no_plots)
    if not args.quiet:
        console.say(found.summary())
    say_written([args.out], args.quiet)
    return OK
