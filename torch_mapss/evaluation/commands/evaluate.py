"""Score whole test sets of one or more systems, by templates of paths or by a manifest.

Templates: {mixture} and {source} stand for names, * for anything:
  --references 'refs/{mixture}/{source}.wav' --system A='outA/{mixture}_{source}.wav'
Of a plain folder the usual layouts are tried: a folder per mixture with a file per source (MUSDB),
a folder per source with a file per mixture (WSJ0-2mix, LibriMix), MIXTURE_SOURCE.wav. What was
understood is told.
MANIFEST is a JSON list, one entry per mixture, paths relative to the manifest:
  [{"mixture_id": "song1",
    "references": ["song1/vocals.wav", "song1/drums.wav"],
    "systems": {"A": ["A/song1/vocals.wav", "A/song1/drums.wav"],
                "B": ["B/song1/vocals.wav", null]}}]
null stands for a source that a system does not estimate. "mixture": its path, and "sources": a name
per reference, may be added.

DIR gets scores.csv (one row per estimate), items.csv (per mixture and system: means over its
estimates), summary.csv (per system: means over mixtures), frames (the scores of every frame),
settings.json (with hashes of the audio), mixtures.json and, while it runs, the finished rows:
started again with the same settings, it goes on where it stopped. A mixture that fails is listed
with its reason, and tried again the next time.
Under torchrun and SLURM's srun the mixtures are shared out over the processes; for job arrays there
is --shard. --sample-frames and --threads, as of `score`, work here as well.

Example:
  torch-mapss evaluate manifest.json --encoder mel --out results
"""

from __future__ import annotations

import argparse
import os
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from torch_mapss.evaluation import console, io
from torch_mapss.evaluation.commands import options

if TYPE_CHECKING:
    from torch_mapss.evaluation.manifest import Mixture


def add_options(parser: argparse.ArgumentParser) -> None:
    """Where the set lies, what is written, and how it is scored."""
    add = parser.add_argument
    add("manifest", nargs="?", metavar="MANIFEST", help="JSON file, see above; or --references")
    add("--out", required=True, metavar="DIR", help="folder of the results")
    text = "of the true sources' files, or their folder"
    add("--references", metavar="TEMPLATE", help=text)
    text = "of a system's estimates; once per system"
    many: dict[str, Any] = {"action": "extend", "nargs": "+", "default": [], "type": _system}
    add("--system", **many, metavar="NAME=TEMPLATE", help=text)
    text = "sources to take, in this order (default: all; what is called mix is none)"
    add("--sources", nargs="+", type=io.shown, metavar="NAME", help=text)
    text = "of noisy mixtures of one clean source: noise = noisy - clean is the second reference"
    add("--noisy", metavar="TEMPLATE", help=text)
    text = (
        "score every N-th mixture alone, beginning with the I-th (1/N to N/N): for jobs that share "
        "DIR. The one that ends last writes the tables"
    )
    add("--shard", metavar="I/N", help=text)
    options.add_scoring_options(parser, left_out=("layer",), hidden=("sample_frames", "threads"))


def _system(text: str) -> tuple[str, str]:
    """Name and template of ``NAME=TEMPLATE``; a folder alone has its own name."""
    name, equals, path = text.partition("=")
    if not equals:
        name, path = os.path.basename(os.path.abspath(text)), text
    return io.shown(name), path


def _mixtures(args: argparse.Namespace) -> Sequence[Mixture]:
    """What is to be scored, of a manifest or of folders.

    Raises:
        ValueError: neither is given, or both.
        ManifestError: all that is wrong with them.
    """
    from torch_mapss.evaluation.folders import read_folders
    from torch_mapss.evaluation.manifest import load_manifest

    folders = (args.references, args.system, args.sources)
    if any(folders) if args.manifest is not None else not all(folders[:2]):
        raise ValueError(
            "pass either a MANIFEST, or --references TEMPLATE with --system NAME=TEMPLATE for "
            "every system (--sources goes with these)."
        )
    if args.manifest is not None:
        return load_manifest(args.manifest)
    systems = dict(args.system)
    if len(systems) < len(args.system) or not all(n.strip() and path for n, path in args.system):
        raise ValueError(
            "--system must be NAME=TEMPLATE, with another name for every system, got "
            f"{', '.join('='.join(one) for one in args.system)}."
        )
    derived = os.path.join(args.out, "noise")
    corpus = read_folders(args.references, systems, args.sources, args.noisy, derived)
    for note in () if args.quiet else corpus.notes:
        console.complain(note)
    return corpus.mixtures


def run(args: argparse.Namespace) -> int:
    """``torch-mapss evaluate``."""
    given = options.scoring_options(args)
    from torch_mapss.evaluation import run as runs
    from torch_mapss.evaluation.score import Scorer
    from torch_mapss.evaluation.shards import Share

    share, device = Share.of(args.shard), options.device_of_options(args.device)
    mixtures, quiet = _mixtures(args), args.quiet
    with options.threads(args.threads):
        scorer = Scorer.of(given, device)
        outcome = runs.run(mixtures, args.out, scorer, options=given, share=share, quiet=quiet)
    for line in outcome.failures:
        console.complain(f"failed: {line}")
    if not args.quiet:
        console.say(outcome.text())
        if outcome.results is not None and len(outcome.results.systems) > 1:
            from torch_mapss.evaluation.comparison import compare

            console.say(f"\n{compare(outcome.results).summary()}")
    options.say_written([args.out], args.quiet)
    return options.SOME_FAILED if outcome.failures else options.OK
