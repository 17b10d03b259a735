"""``torch-mapss worst``: the worst moments of a test set, to read and to hear."""

from __future__ import annotations

import argparse
from typing import Any

from torch_mapss.evaluation import console, files
from torch_mapss.evaluation.commands.options import (
    OK,
    add_manners,
    make_parser,
    say_written,
)


def add_parser(commands: Any) -> None:
    worst = make_parser(
        commands,
        "worst",
        """\
List the worst segments of a results folder: where PS, and where log PM, is lowest over at least
0.3 s. Neighbouring frames that are no better are joined. If frames were sampled (--sample-frames)
single frames are listed.
""",
        "Example:\n  torch-mapss worst results --n 20 --wav worst",
        "list the worst segments, as sound if wanted",
    )
    worst.set_defaults(run=run)
    worst.add_argument("results", metavar="RESULTS", help="folder of results")
    worst.add_argument(
        "--n", type=int, default=20, metavar="N", help="of each measure (default: %(default)s)"
    )
    worst.add_argument(
        "--measures",
        nargs="+",
        default=["ps", "log_pm"],
        metavar="NAME",
        help="of ps, pm, log_pm, foreign_distance, and pm_rank, which results of --convention "
        "conformal have (default: ps log_pm)",
    )
    worst.add_argument("--systems", nargs="+", metavar="NAME", help="of these systems alone")
    worst.add_argument(
        "--wav",
        metavar="DIR",
        help="write every segment, half a second around it, as estimate and reference",
    )
    worst.add_argument(
        "--stereo",
        action="store_true",
        help="with --wav: one file each, estimate on the left, reference on the right",
    )
    worst.add_argument(
        "--audio-root", metavar="DIR", help="where the audio lies now, if it was moved"
    )
    add_manners(worst)


def run(args: argparse.Namespace) -> int:
    """``torch-mapss worst``."""
    from torch_mapss.evaluation.measures import RANK, rank_meaning
    from torch_mapss.evaluation.results import load_results
    from torch_mapss.evaluation.worst import listed, worst_segments, write_segments

    if args.stereo and args.wav is None:
        raise ValueError("--stereo says how segments are written, and none are: add --wav DIR.")
    results = load_results(args.results, args.audio_root)
    segments = worst_segments(results, args.n, args.measures, systems=args.systems)
    if args.wav is not None:
        write_segments(results, segments, args.wav, stereo=args.stereo)
    if not args.quiet:
        console.say(files.text_table(*listed(segments), left=4))
        if RANK in args.measures and segments:
            console.say("\n" + "\n".join(files.wrapped(rank_meaning(results.settings))))
        if not segments:
            console.say(
                "\nNo estimate has enough scored frames to make a segment of: see the columns "
                "`status` and `reason` of scores.csv in the results."
            )
        elif results.sampled:
            console.say("\nFrames were sampled: these are single frames, which have no neighbours.")
    say_written([args.wav] if args.wav is not None else [], args.quiet)
    return OK
