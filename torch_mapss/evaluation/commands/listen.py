"""Make a listening test, or read its ratings back.

From a results folder: pages of one source each, whose estimates span the measures, all at one
loudness (MUSHRA, for webMUSHRA). DIR gets the sounds, one configuration per question (quality,
interference, distortion) and stimuli.csv, the key, to be hidden from the listeners. Copy DIR to
configs/mapss of webMUSHRA and open ?config=mapss/QUESTION.yaml. A DIR that holds another test is
refused.
With --ratings, read webMUSHRA's mushra.csv back instead: DIR, the folder of the test, gets
ratings.csv, as `torch-mapss correlate` reads it, and ratings_listeners.csv.

Examples:
  torch-mapss listen results --out test
  torch-mapss listen results --out test --ratings mushra.csv
"""

from __future__ import annotations

import argparse
import os

from torch_mapss.evaluation import console, io
from torch_mapss.evaluation.commands.arguments import OK, add_quiet, say_written


def add_options(parser: argparse.ArgumentParser) -> None:
    """Add the folders, and what to make."""
    add = parser.add_argument
    add("results", metavar="RESULTS", help="folder of results")
    add("--out", required=True, metavar="DIR", help="folder of the test")
    add("--pages", type=int, default=12, metavar="N", help="number of pages (default: %(default)s)")
    add(
        "--seconds", type=float, metavar="S", help="cut sounds to S s, where most frames are scored"
    )
    add("--seed", type=int, default=0, help="seed of pages and order (default: %(default)s)")
    add("--audio-root", metavar="DIR", help="where the audio is now, if it was moved")
    add("--ratings", nargs="+", metavar="FILE", help="results of the test, to read back")
    add_quiet(parser)


def run(args: argparse.Namespace) -> int:
    """``torch-mapss listen``."""
    return _read_back(args) if args.ratings else _write(args)


def _write(args: argparse.Namespace) -> int:
    from torch_mapss.evaluation.listen import choose, write_test
    from torch_mapss.evaluation.results import load_results

    results = load_results(args.results, args.audio_root)
    pages = choose(results, args.pages, seed=args.seed)
    written = write_test(results, pages, args.out, seconds=args.seconds, seed=args.seed)
    if not args.quiet:
        stimuli = sum(map(len, pages))
        console.say(f"{len(pages)} pages with {stimuli} estimates, one question per configuration.")
    say_written(written, args.quiet)
    return OK


def _read_back(args: argparse.Namespace) -> int:
    from torch_mapss.evaluation.listen_ratings import rating_tables, read_key, read_ratings

    key = read_key(os.path.join(args.out, "stimuli.csv"))
    stimuli, listeners = rating_tables(read_ratings(args.ratings), key)
    written = [os.path.join(args.out, name) for name in ("ratings.csv", "ratings_listeners.csv")]
    for path, table in zip(written, (stimuli, listeners)):
        io.write_table(path, table, undefined="")
    if not args.quiet:
        people = listeners["listener"].nunique()
        console.say(f"{len(stimuli)} rated stimuli by {people} listeners.")
    say_written(written, args.quiet)
    return OK
