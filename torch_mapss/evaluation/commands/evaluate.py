"""``torch-mapss evaluate``: a whole test set, resumable."""

from __future__ import annotations

import argparse
import sys
from typing import Any

from torch_mapss.evaluation.commands.options import (
    CODES,
    FILES,
    MEASURES,
    OK,
    SOME_FAILED,
    add_manners,
    add_scoring_options,
    bar,
    make_parser,
    request_of,
    say_written,
    scorer_of,
    threads,
)


def add_parser(commands: Any) -> None:
    evaluate = make_parser(
        commands,
        "evaluate",
        f"""\
Score whole test sets of one or more systems, listed in a manifest.

{MEASURES}
MANIFEST is a JSON list, one entry per mixture, paths relative to the manifest:
  [{{"mixture_id": "song1",
    "references": ["song1/vocals.wav", "song1/drums.wav"],
    "systems": {{"A": ["A/song1/vocals.wav", "A/song1/drums.wav"],
                "B": ["B/song1/vocals.wav", null]}}}}]
null stands for a source that a system does not estimate. {FILES}
DIR gets scores.csv (one row per estimate), items.csv (per mixture and system: means over its
estimates), summary.csv (per system: means over mixtures), settings.json and, while it runs, the
finished rows: started again with the same settings, it goes on where it stopped. A mixture that
fails is listed with its reason, and tried again the next time.
Under torchrun the mixtures are shared out over the processes.
""",
        f"Example:\n  torch-mapss evaluate manifest.json --encoder mel --out results\n\n{CODES}",
        "score the systems of a manifest, with resuming",
    )
    evaluate.set_defaults(run=run)
    evaluate.add_argument("manifest", metavar="MANIFEST", help="JSON file, see above")
    evaluate.add_argument("--out", required=True, metavar="DIR", help="folder of the results")
    evaluate.add_argument(
        "--save-frames",
        action="store_true",
        help="write the frame scores of every mixture and system as well, to DIR/frames",
    )
    add_scoring_options(evaluate)
    add_manners(evaluate)


def run(args: argparse.Namespace) -> int:
    """``torch-mapss evaluate``."""
    from torch_mapss.evaluation.manifest import load_manifest
    from torch_mapss.evaluation.run import local_device, run

    args.device = local_device(args.device)
    mixtures = load_manifest(args.manifest)
    with threads(args.threads):
        outcome = run(
            mixtures,
            args.out,
            lambda: scorer_of(args),
            request_of(args),
            device=args.device,
            save_frames=args.save_frames,
            progress=bar(args),
        )
    if outcome.rank == 0:
        if not args.quiet:
            print(outcome.summary())
        for line in outcome.failures:
            print(f"torch-mapss: failed: {line}", file=sys.stderr)
        say_written([args.out], args.quiet)
    # One process is enough to say so: others would be reported as crashed.
    return SOME_FAILED if outcome.failures and outcome.rank == 0 else OK
