"""Write a results folder as one page to read and to listen to.

One HTML file that opens from disk without a network: which system is best, the ranking with its
distribution, means by source, players that switch instantly between reference, estimate and
mixture, with spectrograms and scores over time, the worst moments of each score to play, and a
table to sort and filter. Hidden references and anchors (control:NAME) are shown separately.

Sounds are embedded as MP3 up to --embed-mb megabytes: the worst moments first, then whole files.
What does not fit is linked by its relative path, so keep the page where it was written.

Example:
  torch-mapss report results --out report.html
"""

from __future__ import annotations

import argparse

from torch_mapss.evaluation import console
from torch_mapss.evaluation.commands.arguments import OK, add_quiet, say_written


def add_options(parser: argparse.ArgumentParser) -> None:
    """Add the folder, the page, and its size."""
    add = parser.add_argument
    add("results", metavar="RESULTS", help="folder that `evaluate` wrote")
    add("--out", required=True, metavar="FILE", help="the HTML file")
    text = (
        "megabytes of embedded sound, plus 5-15 kB of spectrogram per file (default: %(default)g)"
    )
    add("--embed-mb", type=float, default=8.0, metavar="MB", help=text)
    add("--title", metavar="TEXT", help="heading (default: the folder's name)")
    add("--audio-root", metavar="DIR", help="where the audio is now, if it was moved")
    add_quiet(parser)


def run(args: argparse.Namespace) -> int:
    """``torch-mapss report``."""
    from torch_mapss.evaluation.page.content import write_page
    from torch_mapss.evaluation.results import load_results

    results = load_results(args.results, args.audio_root)
    embedded = write_page(results, args.out, embed_mb=args.embed_mb, title=args.title)
    if not args.quiet:
        console.say(f"{embedded}.")
    say_written([args.out], args.quiet)
    return OK
