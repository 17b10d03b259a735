"""Score whole test sets of one or more systems, by templates of paths or by a manifest.

Templates: {mixture} and {source} stand for names, * for anything:
  --references 'refs/{mixture}/{source}.wav' --system A='outA/{mixture}_{source}.wav'
A plain folder may have a folder per mixture with a file per source (MUSDB), or a folder per source
with a file per mixture (WSJ0-2mix, LibriMix). The detected layout is printed.
MANIFEST is a JSON list, one entry per mixture, paths relative to the manifest:
  [{"mixture_id": "song1",
    "references": ["song1/vocals.wav", "song1/drums.wav"],
    "systems": {"A": ["A/song1/vocals.wav", "A/song1/drums.wav"],
                "B": ["B/song1/vocals.wav", null]}}]
null stands for a source that a system does not estimate. Optional keys: "mixture" (its path) and
"sources" (a name per reference).

DIR gets records and frames (per mixture: scores and files, and the scores of every frame),
settings.json, mixtures.json and, once all is scored, scores.csv (one row per estimate), items.csv
(per mixture and system: means over its estimates) and summary.csv (per system: means over
mixtures). Run it again with the same settings to resume. Mixtures and systems already in DIR stay
there. A mixture that fails is listed with its reason, and retried on the next run. `compare`,
`report` and `worst` can read DIR at any time.
--workers and --dask score on several processes or machines; under torchrun and SLURM's srun the
mixtures are divided among the processes; for job arrays there is --shard.

Example:
  torch-mapss evaluate manifest.json --out results
"""

from __future__ import annotations

import argparse
import os
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

from torch_mapss.evaluation import console, io
from torch_mapss.evaluation.commands import arguments

if TYPE_CHECKING:
    from torch_mapss.evaluation.engines import Map
    from torch_mapss.evaluation.manifest import Mixture


def add_options(parser: argparse.ArgumentParser) -> None:
    """Add the set, the output folder, and the options of scoring."""
    add = parser.add_argument
    add("manifest", nargs="?", metavar="MANIFEST", help="JSON file, see above; or --references")
    add("--out", required=True, metavar="DIR", help="folder of the results")
    text = "template for the files of the true sources, or their folder"
    add("--references", metavar="TEMPLATE", help=text)
    text = "template for a system's estimates; once per system"
    systems: dict[str, Any] = {"action": "extend", "nargs": "+", "default": [], "type": _system}
    add("--system", **systems, metavar="NAME=TEMPLATE", help=text)
    text = "sources to take, in this order (default: all; files named mix* are ignored)"
    add("--sources", nargs="+", type=io.shown, metavar="NAME", help=text)
    text = "template for noisy mixtures of one clean source: noisy - clean is the second reference"
    add("--noisy", metavar="TEMPLATE", help=text)
    text = "with templates: list what a system lacks, and score it as not estimated"
    add("--allow-missing", action="store_true", help=text)
    text = "score in N processes, which share the processors and the GPUs (default: in this one)"
    add("--workers", type=int, metavar="N", help=text)
    text = "score on the Dask cluster with this scheduler: tcp://HOST:8786"
    add("--dask", metavar="ADDRESS", help=text)
    text = (
        "score only mixtures I, I+N, I+2N, … (1/N to N/N): for jobs that share DIR; the last one "
        "to finish writes the tables"
    )
    add("--shard", metavar="I/N", help=text)
    arguments.add_scoring_options(parser)


def _system(text: str) -> tuple[str, str]:
    """Name and template of ``NAME=TEMPLATE``; a plain folder is named after itself."""
    name, equals, path = text.partition("=")
    if not equals:
        name, path = os.path.basename(os.path.abspath(text)), text
    return io.shown(name), path


def _mixtures(args: argparse.Namespace) -> Sequence[Mixture]:
    """Mixtures to score, from a manifest or from folders.

    Raises:
        ValueError: neither is given, or both.
        ManifestError: lists all problems.
    """
    from torch_mapss.evaluation.folders import read_folders
    from torch_mapss.evaluation.manifest import load_manifest

    templates = {
        "--references": args.references,
        "--system": args.system,
        "--sources": args.sources,
        "--noisy": args.noisy,
        "--allow-missing": args.allow_missing,
    }
    stated = [name for name, value in templates.items() if value]
    if args.manifest is not None and stated:
        raise ValueError(
            f"{', '.join(stated)} cannot be combined with a MANIFEST: pass either a MANIFEST, or "
            "--references TEMPLATE with --system NAME=TEMPLATE for every system."
        )
    if args.manifest is None and not (args.references and args.system):
        raise ValueError(
            "pass either a MANIFEST, or --references TEMPLATE with --system NAME=TEMPLATE for "
            "every system."
        )
    if args.manifest is not None:
        return load_manifest(args.manifest)
    systems = dict(args.system)
    if len(systems) < len(args.system) or not all(n.strip() and path for n, path in args.system):
        raise ValueError(
            "--system must be NAME=TEMPLATE, with another name for every system, got "
            f"{', '.join('='.join(pair) for pair in args.system)}."
        )
    derived = os.path.join(args.out, "noise")
    mixtures, notes = read_folders(
        args.references,
        systems,
        args.sources,
        args.noisy,
        derived,
        allow_missing=args.allow_missing,
    )
    for note in () if args.quiet else notes:
        console.log(note)
    return mixtures


@contextmanager
def _engine(args: argparse.Namespace) -> Iterator[Map]:
    """The ``map`` that scores: of this process, of several, or of a cluster."""
    from torch_mapss.evaluation import engines

    if args.workers is not None and args.dask is not None:
        raise ValueError("pass either --workers or --dask: a Dask cluster has its own workers.")
    if args.dask is not None:
        with engines.dask_map(args.dask) as dask_map:
            yield dask_map
    elif args.workers is not None:
        with engines.process_map(args.workers, args.threads) as process_map:
            yield process_map
    else:
        yield map


def run(args: argparse.Namespace) -> int:
    """``torch-mapss evaluate``."""
    options = arguments.scoring_options(args)
    from torch_mapss.evaluation.results_text import results_text
    from torch_mapss.evaluation.run import pending_text, score_mixtures
    from torch_mapss.evaluation.score_mixture import MixtureJob
    from torch_mapss.evaluation.shard import launched_shard, parse_shard

    shard = launched_shard() if args.shard is None else parse_shard(args.shard)
    in_process = args.workers is None and args.dask is None
    # Other processes choose their own device; a named one need not exist in this process.
    device = arguments.device_of_options(args.device) if in_process else args.device
    mixtures, quiet = _mixtures(args), args.quiet
    job = MixtureJob(options, device)
    with arguments.threads(args.threads), _engine(args) as engine:
        results = score_mixtures(mixtures, args.out, job, map=engine, shard=shard, quiet=quiet)
    for line in results.failures:
        console.log(f"failed: {line}")
    if not quiet and results.pending:
        console.say(f"{pending_text(results)}.")
    elif not quiet:
        console.say(results_text(results))
        if len(results.systems) > 1:
            from torch_mapss.evaluation.comparison import compare

            console.say(f"\n{compare(results).summary()}")
    arguments.say_written([args.out], quiet)
    # Under a launcher, recorded failures do not count as a crash, which would kill the other
    # processes.
    launched = args.shard is None and shard.total > 1
    failed = bool(results.failures) and not launched
    return arguments.SOME_FAILED if failed else arguments.OK
