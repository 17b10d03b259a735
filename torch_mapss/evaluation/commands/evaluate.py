"""``torch-mapss evaluate``: a whole test set, resumable."""

from __future__ import annotations

import argparse
from typing import TYPE_CHECKING, Any

from torch_mapss.evaluation import console
from torch_mapss.evaluation.commands.options import (
    CODES,
    FILES,
    MEASURES,
    OK,
    SOME_FAILED,
    add_manners,
    add_scoring_options,
    bar,
    device_of_options,
    make_parser,
    request_of,
    say_written,
    scorer_of,
    threads,
)
from torch_mapss.evaluation.processes import parse_share

if TYPE_CHECKING:
    from torch_mapss.evaluation.run import Outcome


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
null stands for a source that a system does not estimate. "mixture": its path, and "sources": a name
per reference, may be added. {FILES}
DIR gets scores.csv (one row per estimate), items.csv (per mixture and system: means over its
estimates), summary.csv (per system: means over mixtures), frames (the scores of every frame),
settings.json (with hashes of the audio), mixtures.json and, while it runs, the finished rows:
started again with the same settings, it goes on where it stopped. A mixture that fails is listed
with its reason, and tried again the next time.
Under torchrun, and under SLURM's srun, the mixtures are shared out over the processes; for job
arrays there is --shard.
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
        help="write the frame scores of every mixture and system as tables, too, to DIR/frames",
    )
    evaluate.add_argument(
        "--shard",
        metavar="I/N",
        help="score every N-th mixture alone, beginning with the I-th (1/N to N/N, or 0/N to "
        "N-1/N): for jobs that share a manifest and DIR. The one that ends last writes the tables, "
        "and so does the same command without --shard",
    )
    add_scoring_options(evaluate)
    add_manners(evaluate)


def run(args: argparse.Namespace) -> int:
    """``torch-mapss evaluate``."""
    share = None if args.shard is None else parse_share(args.shard)
    args.device = device_of_options(args.device)
    from torch_mapss.evaluation import run as runs
    from torch_mapss.evaluation.commands.verify import scoring_options
    from torch_mapss.evaluation.manifest import load_manifest

    mixtures = load_manifest(args.manifest)
    with threads(args.threads):
        outcome = runs.run(
            mixtures,
            args.out,
            lambda: scorer_of(args),
            request_of(args),
            device=args.device,
            save_frames=args.save_frames,
            options=scoring_options(args),
            progress=bar(args),
            share=share,
            tell=(lambda text: None) if args.quiet else console.complain,
        )
    if outcome.processes.speaks:
        _tell(outcome, args)
    # One process is enough to say so: others of a group would be reported as crashed.
    return SOME_FAILED if outcome.failures and outcome.processes.speaks else OK


def _tell(outcome: Outcome, args: argparse.Namespace) -> None:
    for line in outcome.failures:
        console.complain(f"failed: {line}")
    if not args.quiet:
        console.say(outcome.summary())
        if len(outcome.sets) > 1:
            from torch_mapss.evaluation.comparison import compare_items

            console.say(f"\n{compare_items(outcome.items).summary()}")
    say_written([args.out], args.quiet)
