"""List the distortions of both banks.

They make the cluster of every source: one bank for PS, another for PM. Families and members are
chosen or left out with `only` and `without` in --config.
"""

from __future__ import annotations

import argparse
import textwrap

from torch_mapss.evaluation import console, io
from torch_mapss.evaluation.commands.arguments import OK

_WIDTH, _RATE = 70, 16_000  # width of the names; Hz: at a lower rate some members are left out


def add_options(parser: argparse.ArgumentParser) -> None:
    """This command has no options."""


def run(args: argparse.Namespace) -> int:
    """``torch-mapss distortions``."""
    from torch_mapss.distortions import DistortionBank

    del args
    rows, counts = [], []
    for measure, bank in (("PS", DistortionBank("separation")), ("PM", DistortionBank("match"))):
        members = bank.names(_RATE)
        counts.append(f"{measure} {len(members)}")
        for family in bank.families:
            members_of_family = [
                name.split("/", 1)[1] for name in members if name.startswith(f"{family}/")
            ]
            first_line, *further_lines = textwrap.wrap(
                " ".join(members_of_family), _WIDTH, break_on_hyphens=False
            ) or [""]
            rows.append([measure, family, str(len(members_of_family)), first_line])
            rows += [["", "", "", line] for line in further_lines]
    console.say(io.text_table(["bank", "family", "members", "names, after FAMILY/"], rows, 4))
    console.say(
        f"\nAt {_RATE} Hz: {', '.join(counts)} members. Those of PM take their parameters from "
        "each reference\nsignal; where it has fewer spectral peaks, it has fewer notches."
    )
    return OK
