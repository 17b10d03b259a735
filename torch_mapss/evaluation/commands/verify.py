"""Check results against their audio and settings.

Compares the protocol id with the settings, every audio file with the SHA-256 noted when it was
scored, the tables with the frame scores, and scores a few pairs of mixture and system again with
the settings of the folder. Reports every difference.

Example:
  torch-mapss verify results

Exit codes: 0 nothing differs; 1 something differs, or there is no score to compare; 2 bad usage or
input; 130 interrupted.
"""

from __future__ import annotations

import argparse

from torch_mapss.evaluation import console
from torch_mapss.evaluation.commands.arguments import OK, SOME_FAILED, device_of_options


def add_options(parser: argparse.ArgumentParser) -> None:
    """Add the folder, and how much is scored again."""
    add = parser.add_argument
    add("results", metavar="RESULTS", help="folder of results")
    text = "number of pairs of mixture and system to score again (default: %(default)s)"
    add("--pairs", type=int, default=3, metavar="N", help=text)
    add("--audio-root", metavar="DIR", help="where the audio is now, if it was moved")


def run(args: argparse.Namespace) -> int:
    """``torch-mapss verify``."""
    from torch_mapss.evaluation.results import load_results
    from torch_mapss.evaluation.settings import mapss_of
    from torch_mapss.evaluation.verify import verify

    results = load_results(args.results, args.audio_root)
    options = results.options
    if args.pairs > 0 and options is None:
        raise ValueError(
            "these results were made in Python, so no options are stored to rebuild the scorer. "
            "Pass --pairs 0, or pass a scorer to torch_mapss.evaluation.verify.verify."
        )
    verification = verify(
        results, lambda: mapss_of(options or {}, device_of_options(None)), pairs=args.pairs
    )
    console.say(verification.summary())
    return OK if verification.passed else SOME_FAILED
