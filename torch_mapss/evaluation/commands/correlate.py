"""``torch-mapss correlate``: do the scores agree with listeners?"""

from __future__ import annotations

import argparse
from typing import Any

from torch_mapss.evaluation.commands.options import OK, add_manners, make_parser, say_written

DESCRIPTION = """\
Correlate scores with ratings by listeners.

RESULTS is a folder of `torch-mapss evaluate`; RATINGS a CSV file with one row per rated output and
question: track (the manifest's mixture_id), system, source, question, role, mean_rating; higher is
better. Rows of another role than "system" (hidden references, anchors) are left out unless
--controls asks for them; the manifest calls those systems control:NAME.

For every question: SRCC and PCC over the systems of a track and source, averaged over those as in
the paper, and pooled over all outputs at once; with intervals over tracks, p-values, differences
between measures, and, where the results have bounds (evaluate --bounds), what these may change.
"""
EPILOG = """\
DIR gets correlations.csv, differences.csv, per_track.csv, stimuli.csv, correlations.md, and for
each question a LaTeX table and scatter plots.

Examples:
  torch-mapss correlate results ratings.csv --out correlations
  torch-mapss correlate results mos.csv --columns track=item rating=mos \\
      --source-map ref=vocals --out correlations
"""


def add_parser(commands: Any) -> None:
    correlate = make_parser(
        commands, "correlate", DESCRIPTION, EPILOG, "correlate scores with ratings by listeners"
    )
    correlate.set_defaults(run=run)
    correlate.add_argument("results", metavar="RESULTS", help="folder of `torch-mapss evaluate`")
    correlate.add_argument("ratings", metavar="RATINGS", help="CSV file, see above")
    correlate.add_argument("--out", required=True, metavar="DIR", help="folder of the tables")
    _add_reading(correlate.add_argument_group("what is read"))
    _add_statistics(correlate.add_argument_group("statistics"))
    add_manners(correlate)


def _add_reading(group: Any) -> None:
    group.add_argument(
        "--columns",
        nargs="+",
        type=pair,
        default=[],
        metavar="COLUMN=NAME",
        help="names of the columns track, system, source, question, role, scenario, rating",
    )
    group.add_argument(
        "--source-map",
        nargs="+",
        type=pair,
        default=[],
        metavar="FOUND=RATED",
        help="source of the results and its name in the ratings, where they differ",
    )
    group.add_argument(
        "--controls", action="store_true", help="count hidden references and anchors too"
    )
    group.add_argument(
        "--with",
        dest="rivals",
        nargs="+",
        default=[],
        metavar="FILE",
        help="CSV files of other measures of the same outputs: mixture_id, system, source_index "
        "and a column for each measure",
    )
    group.add_argument("--measures", nargs="+", metavar="NAME", help="only these")


def _add_statistics(group: Any) -> None:
    group.add_argument(
        "--confidence",
        type=float,
        default=0.95,
        metavar="P",
        help="of intervals and half-widths (default: %(default)s)",
    )
    group.add_argument(
        "--draws",
        type=int,
        default=2000,
        metavar="N",
        help="of bootstrap and permutations; p is at least 1/(N + 1) (default: %(default)s)",
    )
    group.add_argument("--seed", type=int, default=0, help="of both (default: %(default)s)")
    group.add_argument(
        "--convention",
        choices=("derived", "paper"),
        default="derived",
        help="of the correlations' radius and half-width: derived, or as printed in the paper "
        "(default: %(default)s)",
    )
    group.add_argument(
        "--source-correlation",
        type=float,
        default=0.0,
        metavar="RHO",
        help="of the errors of the sources of a track, for the half-width (default: %(default)s)",
    )


def pair(text: str) -> tuple[str, str]:
    """``NAME=NAME`` as two names."""
    one, sign, other = text.partition("=")
    if not (one and sign and other):
        raise argparse.ArgumentTypeError(f"expected NAME=NAME, got {text!r}")
    return one, other


def run(args: argparse.Namespace) -> int:
    """``torch-mapss correlate``."""
    from torch_mapss.evaluation import console, files, plots
    from torch_mapss.evaluation.correlate import correlate

    plots.check_available()
    files.make_folder(args.out)
    found = correlate(
        args.results,
        args.ratings,
        columns=dict(args.columns),
        sources=dict(args.source_map),
        controls=args.controls,
        rivals=args.rivals,
        measures=args.measures,
        confidence=args.confidence,
        draws=args.draws,
        seed=args.seed,
        convention=args.convention,
        source_correlation=args.source_correlation,
    )
    found.save(args.out)
    if not args.quiet:
        console.say(found.summary())
    say_written([args.out], args.quiet)
    return OK
