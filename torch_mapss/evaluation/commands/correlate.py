"""Correlate scores with ratings by listeners.

RESULTS is a folder of `torch-mapss evaluate`; RATINGS a CSV file with one row per rated output and
question: track (the manifest's mixture_id), system, source, question, role, mean_rating; higher is
better. Rows with a role other than "system" (hidden references, anchors) are left out; the manifest
calls those systems control:NAME.

For every question: SRCC and PCC over the systems of a track and source, averaged over those as in
the paper, and pooled over all outputs at once; with intervals over tracks (or --cluster),
p-values, differences between measures, and, where the results have bounds (evaluate --bounds),
what these may change. torch_mapss.evaluation.correlate.correlate in Python takes further options:
controls, confidence, seed, convention and the correlation of a track's errors.

With --out, DIR gets correlations.csv, differences.csv, per_track.csv, stimuli.csv, correlations.md,
and for each question a LaTeX table and scatter plots.

Examples:
  torch-mapss correlate results ratings.csv --out correlations
  torch-mapss correlate results mos.csv --columns track=item rating=mos \\
      --source-map ref=vocals --cluster talker --out correlations
"""

from __future__ import annotations

import argparse
from typing import Any

from torch_mapss.evaluation.commands.arguments import OK, add_quiet, say_written


def add_options(parser: argparse.ArgumentParser) -> None:
    """Add the results, the ratings, and how to match them."""
    add = parser.add_argument
    add("results", metavar="RESULTS", help="folder of `torch-mapss evaluate`")
    add("ratings", metavar="RATINGS", help="CSV file, see above")
    add("--out", metavar="DIR", help="folder for tables and plots (default: nothing is written)")
    columns = "names of the columns track, system, source, question, role, scenario, rating"
    names = "source of the results and its name in the ratings, where they differ"
    pairs: dict[str, Any] = {"nargs": "+", "type": pair, "default": []}
    add("--columns", metavar="COLUMN=NAME", help=columns, **pairs)
    add("--source-map", metavar="FOUND=RATED", help=names, **pairs)
    text = "CSV files of other measures: mixture_id, system, source_index and a column for each"
    add("--with", dest="rivals", nargs="+", default=[], metavar="FILE", help=text)
    only = "only these (default: all but diagnostics)"
    add("--measures", nargs="+", metavar="NAME", help=only)
    text = "unit that intervals resample: track, system, source or a column like talker "
    add("--cluster", default="track", metavar="COLUMN", help=f"{text}(default: %(default)s)")
    draws = "draws of bootstrap and permutations; p is at least 1/(N + 1) (default: %(default)s)"
    add("--draws", type=int, default=2000, metavar="N", help=draws)
    add_quiet(parser)


def pair(text: str) -> tuple[str, str]:
    """``NAME=NAME`` as two names."""
    left, sign, right = text.partition("=")
    if not (left and sign and right):
        raise argparse.ArgumentTypeError(f"expected NAME=NAME, got {text!r}")
    return left, right


def run(args: argparse.Namespace) -> int:
    """``torch-mapss correlate``."""
    from torch_mapss.evaluation import console, io, plots
    from torch_mapss.evaluation.correlate import correlate
    from torch_mapss.evaluation.results import load_results

    if args.out is not None:  # fail now rather than at the end
        plots.check_available()
    results = load_results(args.results)
    if args.out is not None:  # a wrong RESULTS leaves no folder behind
        io.make_folder(args.out)
    options = {name: getattr(args, name) for name in ("rivals", "measures", "cluster", "draws")}
    options |= {"columns": dict(args.columns), "sources": dict(args.source_map)}
    correlations = correlate(results, args.ratings, **options)
    if args.out is not None:
        correlations.save(args.out)
    if not args.quiet:
        console.say(correlations.summary())
    say_written([] if args.out is None else [args.out], args.quiet)
    return OK
