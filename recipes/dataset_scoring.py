"""What the recipes of single data sets share: score, compare, and BSS Eval beside on request.

Each of `score_musdb.py`, `score_librimix.py` and `score_dns.py` fills in its templates. What
follows on the command line goes to ``torch-mapss evaluate`` as it is: ``--excerpts 8``,
``--measures decomposition``, ``--bounds``, ``--shard 1/4`` …
"""

from __future__ import annotations

import argparse
import csv
from collections.abc import Sequence
from pathlib import Path

import torch

from torch_mapss import audio
from torch_mapss.evaluation import cli
from torch_mapss.evaluation.results import Audio, load_results


def parser_of(description: str, references: str) -> argparse.ArgumentParser:
    """The options that all sets share."""
    parser = argparse.ArgumentParser(
        description=description,
        epilog="All other options go to `torch-mapss evaluate`, see its --help.",
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("root", type=Path, help=references)
    parser.add_argument(
        "--system", action="append", required=True, metavar="NAME=FOLDER", help="may be repeated"
    )
    parser.add_argument("--out", type=Path, required=True, help="folder of the results")
    parser.add_argument("--bss-eval", action="store_true", help="SDR, SIR and SAR as well")
    return parser


def templates(systems: Sequence[str], layout: str) -> list[str]:
    """``NAME=FOLDER`` with the layout appended; what is a template already stays."""
    found = []
    for system in systems:
        name, _, folder = system.partition("=")
        path = folder if "{" in folder else f"{folder.rstrip('/')}/{layout}"
        found.append(f"{name}={path}")
    return found


def score(arguments: Sequence[str], out: Path, bss_eval: bool) -> int:
    """Score a set, compare its systems, and print where everything lies; the exit code."""
    code = cli.main(["evaluate", *arguments, "--out", str(out)])
    if code == 2:
        return code
    if len(load_results(out).systems) > 1:
        cli.main(["compare", str(out), "--out", str(out / "comparison")])
    if bss_eval:
        write_bss_eval(out)
    return code


def write_bss_eval(out: Path) -> None:
    """SDR, SIR and SAR of every estimate into ``bss_eval.csv``, on the mean of the channels."""
    results = load_results(out)
    header = ["mixture_id", "system", "source", "sdr", "sir", "sar"]
    with (out / "bss_eval.csv").open("w", newline="", encoding="utf-8") as file:
        writer = csv.writer(file)
        writer.writerow(header)
        for mixture in results.mixtures:
            found = results.audio(mixture)
            for system in found.estimates:
                writer.writerows([mixture, system, *row] for row in bss_rows(found, system))
    print(f"BSS Eval: {out / 'bss_eval.csv'}")


def bss_rows(found: Audio, system: str) -> list[list[str]]:
    """Source and SDR, SIR, SAR of one mixture; nothing where a source has no estimate."""
    import fast_bss_eval

    paths = found.estimates[system]
    if len(paths) < len(found.references):
        return []
    references, estimates = (
        torch.stack([audio.load_audio(path)[0].mean(0) for path in group])
        for group in (found.references, paths)
    )
    values = fast_bss_eval.bss_eval_sources(references, estimates, compute_permutation=False)
    rows = torch.stack(values[:3], -1).tolist()
    return [[name, *(f"{x:.2f}" for x in row)] for name, row in zip(found.sources, rows)]
