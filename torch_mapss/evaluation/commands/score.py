"""Score the estimates of one mixture.

With --out DIR it leaves a folder of results, as `evaluate` does for a whole set: `compare`,
`report`, `worst` and `verify` read it, and another --system may be added to it.

Example:
  torch-mapss score --references a.wav b.wav --estimates ea.wav eb.wav --out results
"""

from __future__ import annotations

import argparse
import os
from typing import Any

from torch_mapss.evaluation import console, io
from torch_mapss.evaluation.commands import arguments


def add_options(parser: argparse.ArgumentParser) -> None:
    """Add the files, the output, and the options of scoring."""
    files: dict[str, Any] = {"nargs": "+", "required": True, "metavar": "FILE"}
    add = parser.add_argument
    add("--references", **files, help="the true sources, one file each, at least two")
    text = "the separator's outputs, in the order of the references (or see --permute)"
    add("--estimates", **files, help=text)
    add("--sources", nargs="+", type=io.shown, metavar="NAME", help="names of the references")
    text = "index of the reference of each estimate, from 0: `--attributed 0` scores only the first"
    add("--attributed", nargs="+", type=int, metavar="INDEX", help=text)
    text = "folder of results: tables, the scores of every frame, settings"
    add("--out", metavar="DIR", help=text)
    text = "name of the system that made the estimates, for DIR's tables (default: %(default)s)"
    add("--system", default="estimates", type=io.shown, metavar="NAME", help=text)
    text = "draw the scores over time, to FILE (PNG, PDF, SVG), else to scores.png in --out or here"
    add("--plot", nargs="?", const="", metavar="FILE", help=text)
    arguments.add_scoring_options(parser, left_out=("excerpts", "segment"))


def run(args: argparse.Namespace) -> int:
    """``torch-mapss score``."""
    options = arguments.scoring_options(args)
    picture = args.plot or os.path.join(args.out or ".", "scores.png")
    if args.plot is not None:  # fail now rather than at the end
        from torch_mapss.evaluation import plots

        plots.check_available(picture)
    are_there = all(map(os.path.exists, (*args.references, *args.estimates)))
    if args.out is not None and are_there:  # a wrong name leaves no folder behind
        io.make_folder(args.out)
    from torch_mapss.evaluation import settings
    from torch_mapss.evaluation.single_mixture import evaluate

    with arguments.threads(args.threads), console.progress(1.0, args.quiet) as bar:
        report = evaluate(
            estimates=args.estimates,
            references=args.references,
            names=args.sources,
            attributed=args.attributed,
            device=arguments.device_of_options(args.device),
            on_segment=lambda done, total: bar.update(done / total - bar.n),
            **options,
        )
    # Everything requested is written before anything is printed.
    written = []
    if args.out is not None:
        stored = settings.storable(options)
        written.append(report.save(args.out, system=args.system, options=stored))
    if args.plot is not None:
        written.append(plots.save_figure(report.plot(), picture))
    if not args.quiet:
        console.say(report.summary())
    arguments.say_written(written, args.quiet)
    return arguments.OK
