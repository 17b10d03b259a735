"""``torch-mapss listen``: a listening test of what was scored, and its results read back."""

from __future__ import annotations

import argparse
import os
from typing import Any

from torch_mapss.evaluation import console, files
from torch_mapss.evaluation.commands.options import (
    OK,
    add_manners,
    make_parser,
    say_written,
)


def add_parser(commands: Any) -> None:
    # A list of options, which reads best whole.
    listen = make_parser(
        commands,
        "listen",
        """\
Make a listening test (MUSHRA, for webMUSHRA) of a results folder: pages of one source each, whose
estimates span the measures, all at one loudness. DIR gets the sounds, one configuration per
question and stimuli.csv, the key, to be kept from the listeners. Copy DIR to configs/ID of
webMUSHRA and open ?config=ID/QUESTION.yaml.
With --ratings, read webMUSHRA's mushra.csv back instead: DIR, that of the test, gets ratings.csv,
as `torch-mapss correlate` reads it, and ratings_listeners.csv.
""",
        "Examples:\n  torch-mapss listen results --out test --question quality interference\n"
        "  torch-mapss listen results --out test --ratings mushra.csv",
        "make a listening test, or read its ratings back",
    )
    listen.set_defaults(run=run)
    listen.add_argument("results", metavar="RESULTS", help="folder of results")
    listen.add_argument("--out", required=True, metavar="DIR", help="folder of the test")
    listen.add_argument(
        "--pages", type=int, default=12, metavar="N", help="in the test (default: %(default)s)"
    )
    listen.add_argument("--systems", nargs="+", metavar="NAME", help="to be rated (default: all)")
    listen.add_argument(
        "--most", type=int, default=8, metavar="N", help="systems a page (default: %(default)s)"
    )
    listen.add_argument(
        "--question",
        nargs="+",
        default=["quality"],
        choices=("quality", "interference", "distortion"),
        help="one configuration for each (default: quality)",
    )
    listen.add_argument(
        "--id", default="mapss", metavar="ID", help="of the test (default: %(default)s)"
    )
    listen.add_argument(
        "--seconds",
        type=float,
        metavar="S",
        help="cut longer sounds to so much, where most frames are scored (default: whole)",
    )
    listen.add_argument(
        "--loudness",
        type=float,
        default=-23.0,
        metavar="LUFS",
        help="of all sounds (default: %(default)s)",
    )
    listen.add_argument(
        "--seed", type=int, default=0, help="of pages and order (default: %(default)s)"
    )
    listen.add_argument(
        "--audio-root", metavar="DIR", help="where the audio lies now, if it was moved"
    )
    listen.add_argument(
        "--ratings", nargs="+", metavar="FILE", help="results of the test to be read back"
    )
    add_manners(listen)


def run(args: argparse.Namespace) -> int:
    """``torch-mapss listen``."""
    return _read_back(args) if args.ratings else _write(args)


def _write(args: argparse.Namespace) -> int:
    from torch_mapss.evaluation.listen import choose
    from torch_mapss.evaluation.listen_files import write_test
    from torch_mapss.evaluation.results import load_results

    results = load_results(args.results, args.audio_root)
    pages = choose(results, args.pages, systems=args.systems, most=args.most, seed=args.seed)
    written = write_test(
        results,
        pages,
        args.out,
        test_id=args.id,
        questions=args.question,
        loudness=args.loudness,
        seconds=args.seconds,
        seed=args.seed,
    )
    if not args.quiet:
        stimuli = sum(len(page.stimuli) for page in pages)
        console.say(f"{len(pages)} pages with {stimuli} estimates, one question per configuration.")
    say_written(written, args.quiet)
    return OK


def _read_back(args: argparse.Namespace) -> int:
    from torch_mapss.evaluation.listen_ratings import (
        LISTENER_COLUMNS,
        RATING_COLUMNS,
        rating_tables,
        read_key,
        read_ratings,
    )

    key = read_key(os.path.join(args.out, "stimuli.csv"))
    stimuli, listeners = rating_tables(read_ratings(args.ratings), key, args.id)
    written = []
    for name, columns, rows in (
        ("ratings.csv", RATING_COLUMNS, stimuli),
        ("ratings_listeners.csv", LISTENER_COLUMNS, listeners),
    ):
        written.append(os.path.join(args.out, name))
        files.write_csv(written[-1], columns, rows)
    if not args.quiet:
        people = len({row["listener"] for row in listeners})
        console.say(f"{len(stimuli)} rated stimuli by {people} listeners.")
    say_written(written, args.quiet)
    return OK
