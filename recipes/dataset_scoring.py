"""What the recipes for single data sets share: their options, templates, scoring and comparison.

Each of `score_musdb.py`, `score_librimix.py` and `score_dns.py` fills in its templates. All other
options are passed to ``torch-mapss evaluate``: ``--excerpts 8``,
``--measures decomposition bss``, ``--encoder wav2vec2-large``, ``--workers 4`` …
"""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from pathlib import Path


def parser_of(description: str, references: str) -> argparse.ArgumentParser:
    """A parser with the options that all sets share."""
    parser = argparse.ArgumentParser(
        description=description,
        epilog="All other options are passed to `torch-mapss evaluate`, see its --help.",
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("root", type=Path, help=references)
    parser.add_argument(
        "--system",
        action="append",
        required=True,
        metavar="NAME=FOLDER",
        help="may be repeated",
    )
    parser.add_argument("--out", type=Path, required=True, help="folder of the results")
    return parser


def templates(systems: Sequence[str], layout: str) -> list[str]:
    """``NAME=FOLDER`` with the layout appended; a ``NAME=TEMPLATE`` stays as it is."""
    completed = []
    for system in systems:
        name, _, folder = system.partition("=")
        path = folder if "{" in folder else f"{folder.rstrip('/')}/{layout}"
        completed.append(f"{name}={path}")
    return completed


def score(arguments: Sequence[str], out: Path) -> int:
    """Score a set and compare its systems; returns the exit code of ``torch-mapss evaluate``."""
    from torch_mapss.evaluation import cli  # imported late, so that --help needs no torch
    from torch_mapss.evaluation.results import load_results

    code = cli.main(["evaluate", *arguments, "--out", str(out)])
    if code != 2 and len(load_results(out).systems) > 1:
        cli.main(["compare", str(out), "--out", str(out / "comparison")])
    return code
