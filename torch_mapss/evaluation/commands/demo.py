"""Score three made-up separations of two voices that come with the package.

Leakage and distortion rise from one to the next. Needs no download; takes seconds.
"""

from __future__ import annotations

import argparse

from torch_mapss.evaluation import console, io
from torch_mapss.evaluation.commands.arguments import OK, SCORE_HELP, say_written, threads


def add_options(parser: argparse.ArgumentParser) -> None:
    """Add ``--out``."""
    parser.epilog = SCORE_HELP
    text = "folder for tables, audio and plot (default: %(default)s)"
    parser.add_argument("--out", default="torch_mapss_demo", metavar="DIR", help=text)


def run(args: argparse.Namespace) -> int:
    """``torch-mapss demo``."""
    folder = io.make_folder(args.out)
    from torch_mapss.evaluation import demo

    with threads(1):  # fast enough, also on a busy machine
        text = demo.make_demo(folder)
    console.say(text)
    say_written([folder])
    return OK
