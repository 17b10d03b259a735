"""``torch-mapss verify``: are results what they say?"""

from __future__ import annotations

import argparse
from typing import Any

from torch_mapss.evaluation import console
from torch_mapss.evaluation.commands.options import (
    CODES,
    OK,
    SOME_FAILED,
    add_device_option,
    device_of_options,
    make_parser,
)


def add_parser(commands: Any) -> None:
    verify = make_parser(
        commands,
        "verify",
        """\
Check a results folder: the protocol id against the settings, every audio file against the SHA-256
noted when it was scored, the tables against the frame scores, and a few pairs of mixture and system
by scoring them again with the settings of the folder. Says what differs.
""",
        "Example:\n  torch-mapss verify results\n\n"
        + CODES.replace("all scored", "nothing differs").replace(
            "some mixtures failed", "something differs, or there is no score to compare"
        ),
        "check results against their audio and settings",
    )
    verify.set_defaults(run=run)
    add = verify.add_argument
    add("results", metavar="RESULTS", help="folder of results")
    text = "of mixture and system to score again; 0: none (default: %(default)s)"
    add("--pairs", type=int, default=3, metavar="N", help=text)
    add("--encoder", metavar="NAME", help="where the encoder is now, if it was moved")
    add("--audio-root", metavar="DIR", help="where the audio is now, if it was moved")
    add_device_option(verify)


def run(args: argparse.Namespace) -> int:
    """``torch-mapss verify``."""
    from torch_mapss.evaluation.options import request_of, scorer_of
    from torch_mapss.evaluation.results import load_results
    from torch_mapss.evaluation.verify import verify

    results = load_results(args.results, args.audio_root)
    stored = dict(results.options)
    if args.pairs > 0 and not stored:
        raise ValueError(
            "these results were made in Python, which leaves no options to make the scorer again "
            "with. Pass --pairs 0, or call torch_mapss.evaluation.verify.verify with one."
        )
    options = stored | ({"encoder": args.encoder} if args.encoder else {})
    device = device_of_options(args.device)
    found = verify(
        results,
        (lambda: scorer_of(options, device)) if args.pairs > 0 else None,
        request_of(options),
        pairs=args.pairs,
    )
    console.say(found.summary())
    return OK if found.passed else SOME_FAILED
