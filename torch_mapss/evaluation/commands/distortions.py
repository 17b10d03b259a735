"""``torch-mapss distortions``: the members of both banks."""

from __future__ import annotations

import argparse
import textwrap
from typing import Any

from torch_mapss.evaluation import console, io
from torch_mapss.evaluation.commands.options import OK, make_parser

_WIDTH, _RATE = 70, 16_000  # of the names; Hz: at a lower one some members are left out
_KINDS = {"separation": "PS", "match": "PM"}


def add_parser(commands: Any) -> None:
    distortions = make_parser(
        commands,
        "distortions",
        "The distortions that make the cluster of every source: one bank for PS, another for PM.\n"
        "Families and members are chosen or left out with `only` and `without` in --config.",
        "",
        "list the distortions of both banks",
    )
    distortions.set_defaults(run=run)


def run(args: argparse.Namespace) -> int:
    """``torch-mapss distortions``."""
    from torch_mapss.distortions import DistortionBank

    del args
    rows, counts = [], []
    for kind, measure in _KINDS.items():
        bank = DistortionBank(kind)
        available = set(bank.names(_RATE))
        members = [member for member in bank.members if member.name in available]
        counts.append(f"{measure} {len(members)}")
        for family in bank.families:
            own = [member.name for member in members if member.family == family]
            names = " ".join(name.removeprefix(f"{family}/") for name in own)
            first, *rest = textwrap.wrap(names, _WIDTH, break_on_hyphens=False) or [""]
            rows.append([measure, family, str(len(own)), first])
            rows += [["", "", "", line] for line in rest]
    console.say(io.text_table(["bank", "family", "members", "names, after FAMILY/"], rows, 4))
    console.say(
        f"\nAt {_RATE} Hz: {', '.join(counts)} members. Those of PM take their parameters from "
        "each reference\nsignal; where it has fewer spectral peaks, it has fewer notches."
    )
    return OK
