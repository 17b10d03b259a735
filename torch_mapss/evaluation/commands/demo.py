"""``torch-mapss demo``: a made-up separation that comes with the package."""

from __future__ import annotations

import argparse
from typing import Any

from torch_mapss.evaluation import console, io
from torch_mapss.evaluation.commands.options import (
    MEASURES,
    OK,
    make_parser,
    say_written,
    threads,
)


def add_parser(commands: Any) -> None:
    demo = make_parser(
        commands,
        "demo",
        "Score three made-up separations of two voices that come with the package: rising "
        f"leakage and distortion.\nNeeds no download; takes seconds.\n\n{MEASURES}",
        "",
        "score a made-up separation, offline",
    )
    demo.set_defaults(run=run)
    demo.add_argument(
        "--out",
        default="torch_mapss_demo",
        metavar="DIR",
        help="folder for tables, audio and plot (default: %(default)s)",
    )
    demo.add_argument("--encoder", default="mel", help="default: %(default)s, needs no download")


def run(args: argparse.Namespace) -> int:
    """``torch-mapss demo``."""
    folder = io.make_folder(args.out)
    from torch_mapss.evaluation import demo

    with threads(1):  # quick enough, and quick on a busy machine, too
        result = demo.run(folder, encoder=args.encoder)
    console.say(result.text)
    say_written([folder])
    return OK
