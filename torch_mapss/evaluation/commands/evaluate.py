"""``torch-mapss evaluate``: a whole test set, resumable."""

from __future__ import annotations

import argparse
import os
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from torch_mapss.evaluation import console, files
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
    from torch_mapss.evaluation.manifest import Mixture
    from torch_mapss.evaluation.tables import Outcome

ABOUT = f"""\
Score whole test sets of one or more systems, listed in a manifest.

{MEASURES}
MANIFEST is a JSON list, one entry per mixture, paths relative to the manifest:
  [{{"mixture_id": "song1",
    "references": ["song1/vocals.wav", "song1/drums.wav"],
    "systems": {{"A": ["A/song1/vocals.wav", "A/song1/drums.wav"],
                "B": ["B/song1/vocals.wav", null]}}}}]
null stands for a source that a system does not estimate. "mixture": its path, and "sources": a name
per reference, may be added. Instead of a manifest, folders may be given:
  --references refs --system A=outA B=outB
pairs files by their names (refs/song1/vocals.wav with outA/song1/vocals.wav, or refs/s1/0001.wav
with outA/s1/0001.wav) and says what it understood.
{FILES}
DIR gets scores.csv (one row per estimate), items.csv (per mixture and system: means over its
estimates), summary.csv (per system: means over mixtures), frames (the scores of every frame),
settings.json (with hashes of the audio), mixtures.json and, while it runs, the finished rows:
started again with the same settings, it goes on where it stopped. A mixture that fails is listed
with its reason, and tried again the next time. log_pm is averaged by means, log_pm_median by
medians throughout: bad frames are what is heard as bad, so means rank better; medians are not
moved by outputs that are dead.
Under torchrun, and under SLURM's srun, the mixtures are shared out over the processes; for job
arrays there is --shard.
"""
# As folders.LAYOUTS, which --help need not load for.
LAYOUTS = ("mixture", "source")


def add_parser(commands: Any) -> None:
    evaluate = make_parser(
        commands,
        "evaluate",
        ABOUT,
        f"Example:\n  torch-mapss evaluate manifest.json --encoder mel --out results\n\n{CODES}",
        "score the systems of a manifest, with resuming",
    )
    evaluate.set_defaults(run=run)
    evaluate.add_argument(
        "manifest", nargs="?", metavar="MANIFEST", help="JSON file, see above; or --references"
    )
    evaluate.add_argument("--out", required=True, metavar="DIR", help="folder of the results")
    _add_folders(evaluate)
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


def _add_folders(evaluate: Any) -> None:
    group = evaluate.add_argument_group("folders instead of a manifest")
    group.add_argument(
        "--references",
        metavar="DIR",
        help="folder of the true sources: a folder per mixture with a file per source, as MUSDB "
        "has it, or a folder per source with a file per mixture, as WSJ0-2mix and LibriMix have it",
    )
    group.add_argument(
        "--system",
        action="append",
        nargs="+",
        default=[],
        metavar="NAME=DIR",
        help="folder of a system's estimates, whose files are named as the references are; once "
        "per system, in either layout",
    )
    group.add_argument(
        "--sources",
        nargs="+",
        metavar="NAME",
        help="sources to take, in this order (default: all; what is called mix or mixture is none)",
    )
    group.add_argument(
        "--layout",
        choices=LAYOUTS,
        help="of --references: a folder per mixture, or per source (default: found out by names "
        "and numbers, and told)",
    )
    group.add_argument(
        "--write-manifest",
        nargs="?",
        const="",
        metavar="FILE",
        help="keep what was understood of the folders as a manifest, in FILE, else in "
        "manifest.json in --out",
    )


def _mixtures(args: argparse.Namespace) -> Sequence[Mixture]:
    """What is to be scored, of a manifest or of folders.

    Raises:
        ValueError: neither is given, or both.
        ManifestError: all that is wrong with them.
    """
    from torch_mapss.evaluation.folders import read_folders, write_manifest
    from torch_mapss.evaluation.manifest import load_manifest

    if args.manifest is not None:
        others = (args.references, args.system, args.sources, args.layout, args.write_manifest)
        if any(other not in (None, []) for other in others):
            raise ValueError(
                "MANIFEST and the options for folders (--references, --system, --sources, "
                "--layout, --write-manifest) exclude each other. Leave one of them out."
            )
        return load_manifest(args.manifest)
    if args.references is None or not args.system:
        raise ValueError(
            "nothing to score: pass a MANIFEST, or --references DIR with --system NAME=DIR for "
            "every system."
        )
    systems = _named_folders([given for group in args.system for given in group])
    corpus = read_folders(args.references, systems, args.layout, args.sources)
    if not args.quiet:
        for note in corpus.notes:
            console.complain(note)
    if args.write_manifest is None:
        return corpus.mixtures
    path = args.write_manifest or os.path.join(files.make_folder(args.out), "manifest.json")
    write_manifest(path, corpus)
    return load_manifest(path)


def _named_folders(given: Sequence[str]) -> dict[str, str]:
    """``NAME=DIR`` each; without a name, the folder's own."""
    found: dict[str, str] = {}
    for text in given:
        name, equals, folder = text.partition("=")
        if not equals:
            name, folder = os.path.basename(os.path.abspath(text)), text
        name = files.shown(name)
        if not name.strip() or not folder or name in found:
            twice = " (twice)" if name in found else ""
            raise ValueError(
                "--system must be NAME=DIR, with another name for every system, got "
                f"{text!r}{twice}."
            )
        found[name] = folder
    return found


def run(args: argparse.Namespace) -> int:
    """``torch-mapss evaluate``."""
    share = None if args.shard is None else parse_share(args.shard)
    args.device = device_of_options(args.device)
    from torch_mapss.evaluation import run as runs
    from torch_mapss.evaluation.commands.verify import scoring_options

    mixtures = _mixtures(args)
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
            on_segment=None if args.quiet else console.segment_detail(),
            on_stage=console.detail,
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
        for line in outcome.warnings:
            console.complain(f"warning: {line}.")
        console.say(outcome.summary())
        if len(outcome.sets) > 1:
            from torch_mapss.evaluation.comparison import compare_items

            console.say(f"\n{compare_items(outcome.items, outcome.scores).summary()}")
    say_written([args.out], args.quiet)
