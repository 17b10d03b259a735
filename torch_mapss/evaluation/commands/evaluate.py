"""``torch-mapss evaluate``: a whole test set, resumable."""

from __future__ import annotations

import argparse
import os
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from torch_mapss.evaluation import console, io
from torch_mapss.evaluation.commands.options import (
    CODES,
    CONFIG,
    FILES,
    MEASURES,
    OK,
    SOME_FAILED,
    add_scoring_options,
    device_of_options,
    make_parser,
    say_written,
    scoring_options,
    threads,
)

if TYPE_CHECKING:
    from torch_mapss.evaluation.manifest import Mixture
    from torch_mapss.evaluation.tables import Outcome

ABOUT = f"""\
Score whole test sets of one or more systems, by templates of paths or by a manifest.

{MEASURES}
Templates: {{mixture}} and {{source}} stand for names, * for anything:
  --references 'refs/{{mixture}}/{{source}}.wav' --system A='outA/{{mixture}}_{{source}}.wav'
Of a plain folder the usual layouts are tried: a folder per mixture with a file per source (MUSDB),
a folder per source with a file per mixture (WSJ0-2mix, LibriMix), MIXTURE_SOURCE.wav. What was
understood is told.
MANIFEST is a JSON list, one entry per mixture, paths relative to the manifest:
  [{{"mixture_id": "song1",
    "references": ["song1/vocals.wav", "song1/drums.wav"],
    "systems": {{"A": ["A/song1/vocals.wav", "A/song1/drums.wav"],
                "B": ["B/song1/vocals.wav", null]}}}}]
null stands for a source that a system does not estimate. "mixture": its path, and "sources": a name
per reference, may be added.
{FILES}
DIR gets scores.csv (one row per estimate), items.csv (per mixture and system: means over its
estimates), summary.csv (per system: means over mixtures), frames (the scores of every frame),
settings.json (with hashes of the audio), mixtures.json and, while it runs, the finished rows:
started again with the same settings, it goes on where it stopped. A mixture that fails is listed
with its reason, and tried again the next time.
Under torchrun and SLURM's srun the mixtures are shared out over the processes; for job arrays there
is --shard.
"""

EPILOG = f"""\
{CONFIG}
--sample-frames and --threads, as of `score`, work here as well.

Example:
  torch-mapss evaluate manifest.json --encoder mel --out results

{CODES}"""


def add_parser(commands: Any) -> None:
    evaluate = make_parser(
        commands, "evaluate", ABOUT, EPILOG, "score the systems of a test set, with resuming"
    )
    evaluate.set_defaults(run=run)
    evaluate.add_argument(
        "manifest", nargs="?", metavar="MANIFEST", help="JSON file, see above; or --references"
    )
    evaluate.add_argument("--out", required=True, metavar="DIR", help="folder of the results")
    evaluate.add_argument(
        "--references", metavar="TEMPLATE", help="of the true sources' files, or their folder"
    )
    evaluate.add_argument(
        "--system",
        action="append",
        nargs="+",
        default=[],
        metavar="NAME=TEMPLATE",
        help="of a system's estimates; once per system",
    )
    evaluate.add_argument(
        "--sources",
        nargs="+",
        metavar="NAME",
        help="sources to take, in this order (default: all; what is called mix is none)",
    )
    evaluate.add_argument(
        "--noisy",
        metavar="TEMPLATE",
        help="of noisy mixtures of one clean source: noise = noisy - clean is the second reference",
    )
    evaluate.add_argument(
        "--shard",
        metavar="I/N",
        help="score every N-th mixture alone, beginning with the I-th (1/N to N/N): for jobs that "
        "share DIR. The one that ends last writes the tables",
    )
    add_scoring_options(evaluate, ("layer",), hidden=("sample_frames", "threads"))


def _mixtures(args: argparse.Namespace) -> Sequence[Mixture]:
    """What is to be scored, of a manifest or of folders.

    Raises:
        ValueError: neither is given, or both.
        ManifestError: all that is wrong with them.
    """
    from torch_mapss.evaluation.folders import read_folders
    from torch_mapss.evaluation.manifest import load_manifest

    if args.manifest is not None:
        if any(other not in (None, []) for other in (args.references, args.system, args.sources)):
            raise ValueError(
                "MANIFEST and --references, --system, --sources exclude each other. Leave one of "
                "them out."
            )
        return load_manifest(args.manifest)
    if args.references is None or not args.system:
        raise ValueError(
            "nothing to score: pass a MANIFEST, or --references TEMPLATE with --system "
            "NAME=TEMPLATE for every system."
        )
    systems = _named([given for group in args.system for given in group])
    derived = os.path.join(args.out, "noise")
    corpus = read_folders(args.references, systems, args.sources, args.noisy, derived)
    for note in () if args.quiet else corpus.notes:
        console.complain(note)
    return corpus.mixtures


def _named(given: Sequence[str]) -> dict[str, str]:
    """``NAME=TEMPLATE`` each; without a name, the folder's own."""
    found: dict[str, str] = {}
    for text in given:
        name, equals, folder = text.partition("=")
        if not equals:
            name, folder = os.path.basename(os.path.abspath(text)), text
        name = io.shown(name)
        if not name.strip() or not folder or name in found:
            twice = " (twice)" if name in found else ""
            raise ValueError(
                "--system must be NAME=TEMPLATE, with another name for every system, got "
                f"{text!r}{twice}."
            )
        found[name] = folder
    return found


def run(args: argparse.Namespace) -> int:
    """``torch-mapss evaluate``."""
    options = scoring_options(args)
    from torch_mapss.evaluation import run as runs
    from torch_mapss.evaluation.options import request_of, scorer_of
    from torch_mapss.evaluation.shards import Share

    share = Share.of_environment() if args.shard is None else Share.parse(args.shard)
    request, device = request_of(options), device_of_options(args.device)
    mixtures = _mixtures(args)
    with threads(args.threads):
        outcome = runs.run(
            mixtures,
            args.out,
            scorer_of(options, device),
            request,
            device=device,
            options=runs.storable(options),
            share=share,
            quiet=args.quiet,
        )
    _tell(outcome, args)
    return SOME_FAILED if outcome.failures else OK


def _tell(outcome: Outcome, args: argparse.Namespace) -> None:
    for line in outcome.failures:
        console.complain(f"failed: {line}")
    if not args.quiet:
        console.say(outcome.text())
        if outcome.summary is not None and len(outcome.summary) > 1:
            from torch_mapss.evaluation.comparison import compare

            console.say(f"\n{compare(args.out).summary()}")
    say_written([args.out], args.quiet)
