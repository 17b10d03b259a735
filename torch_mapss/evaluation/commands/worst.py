"""List the worst segments of a results folder, and write them as sound on request.

A segment is where a score is worst over at least 0.3 s, extended by neighbouring frames that are no
better. If frames were sampled (--sample-frames) single frames are listed.

Example:
  torch-mapss worst results --n 20 --wav worst
"""

from __future__ import annotations

import argparse

from torch_mapss.evaluation import console, io
from torch_mapss.evaluation.commands.arguments import OK, say_written


def add_options(parser: argparse.ArgumentParser) -> None:
    """Add the folder, and what is listed."""
    add = parser.add_argument
    add("results", metavar="RESULTS", help="folder of results")
    add("--n", type=int, default=20, metavar="N", help="number per score (default: %(default)s)")
    text = "names of measures and of scores: decomposition, ps, … (default: all but pm)"
    add("--measures", nargs="+", metavar="NAME", help=text)
    text = "also list hidden references and anchors (systems control:NAME)"
    add("--controls", action="store_true", help=text)
    add("--wav", metavar="DIR", help="write each with half a second of context, and its reference")
    add("--audio-root", metavar="DIR", help="where the audio is now, if it was moved")


def run(args: argparse.Namespace) -> int:
    """``torch-mapss worst``."""
    from torch_mapss.evaluation.results import load_results
    from torch_mapss.evaluation.worst import worst_segments, write_segments

    results = load_results(args.results, args.audio_root)
    segments = worst_segments(results, args.n, args.measures, args.controls)
    if args.wav is not None:
        write_segments(results, segments, args.wav)
    columns = "measure", "mixture", "system", "source", "from (s)", "to (s)", "score", "frames"
    formats = {"start": "{:.2f}", "end": "{:.2f}", "frames": "{}"}
    shown = segments.assign(
        **{column: segments[column].map(form.format) for column, form in formats.items()}
    )
    names = ["title", "mixture_id", "system", "source", "start", "end", "value", "frames"]
    rows = shown[names].to_numpy().tolist()
    console.say(io.text_table(columns, rows, left=4))
    if segments.empty:
        console.say(
            "\nNo estimate has enough scored frames to make a segment of: see the columns "
            "`status` and `reason` of scores.csv in the results."
        )
    elif results.sampled:
        console.say("\nFrames were sampled: these are single frames, which have no neighbours.")
    say_written([args.wav] if args.wav is not None else [])
    return OK
