"""Three talkers: leakage members that hold all others at once, or each other source alone?

    OMP_NUM_THREADS=1 python benchmarks/leakage_talkers.py --data FOLDER_OF_SPEECH

FOLDER holds ``manifest.json`` of utterances, of which triples of different speakers are made,
equally loud; the first is the target. ``leakage=7`` holds the sum of the other sources. Here
members that hold one other source alone, at the same levels, stand in their place and beside them
(``leakage_alone=2``); as many of the sum tell what comes of their number. Estimates leak one of the
others, or both, or are distorted. Tells what each set of members costs, too, and writes a section
of the page of results.
"""

from __future__ import annotations

import argparse
import itertools
import json
import time
from pathlib import Path

import conformal_page
import torch
from bounds_page import table
from selectivity import random_phase, read
from torch import Tensor

from torch_mapss import MAPSS, DistortionBank, ReferenceBank
from torch_mapss.distortions.leakage import leakage_members

LEVELS = 7
AMOUNTS = (0.11, 0.33, 1.0)
Made = list[dict[tuple[str, str], Tensor]]

BANKS = {
    "none": DistortionBank("match"),
    "7, sum of the others": DistortionBank("match", leakage=LEVELS),
    "14, sum of the others": DistortionBank("match", leakage=2 * LEVELS),
    "14, each other alone": DistortionBank("match", extra=leakage_members(LEVELS, 2)[LEVELS:]),
    "21, both": DistortionBank("match", leakage=LEVELS, leakage_alone=2),
}


def triples(data: Path, seconds: float, count: int) -> list[Tensor]:
    """(3, T) equally loud references of three speakers, evenly spread over all there are."""
    items = json.loads((data / "manifest.json").read_text(encoding="utf-8"))["items"]
    three = [
        [item["path"] for item in some]
        for some in itertools.combinations(items, 3)
        if len({item["speaker"] for item in some}) == 3
    ]
    chosen = three[:: max(1, len(three) // count)][:count]
    waves = [torch.stack([read(data / path, seconds) for path in paths]) for paths in chosen]
    return [0.05 * wave / wave.square().mean(-1, keepdim=True).sqrt() for wave in waves]


def estimates(references: Tensor) -> dict[tuple[str, str], Tensor]:
    """Estimates (1, T) of the first source, by kind and strength."""
    made: dict[tuple[str, str], Tensor] = {}
    for amount in AMOUNTS:
        made["one other, a", f"{amount:.2f}"] = references[:1] + amount * references[1:2]
    for amount in AMOUNTS:
        both = references[1:].sum(0, keepdim=True)
        made["both others, a", f"{amount:.2f}"] = references[:1] + amount * both
    for amount in (0.33, 1.0):
        made["random phase, l", f"{amount:.2f}"] = random_phase(references, amount)
    return made


def means(
    mapss: MAPSS, prepared: list[ReferenceBank], made: Made, measures: str, fields: str, step: int
) -> dict[tuple[str, str], list[float]]:
    """Means of the target's scores over frames and mixtures, for every estimate."""
    found = {}
    for key in made[0]:
        each = [
            mapss(
                one[key],
                clips,
                attributed=(0,),
                measures=measures,
                frames=max(1, clips.frames // step),
            ).utterance()
            for one, clips in zip(made, prepared, strict=True)
        ]
        found[key] = [
            float(torch.stack([getattr(x, field)[0, 0] for x in each]).mean())
            for field in fields.split()
        ]
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--data", type=Path, required=True)
    parser.add_argument("--seconds", type=float, default=3.0)
    parser.add_argument("--mixtures", type=int, default=3)
    parser.add_argument("--step", type=int, default=12, help="score one frame in so many")
    arguments = parser.parse_args()
    references = triples(arguments.data, arguments.seconds, arguments.mixtures)
    made = [estimates(waves) for waves in references]
    ps = MAPSS("mel", match_bank=DistortionBank("match", size=2))
    of_ps = [ps.prepare(waves, measures="separation") for waves in references]
    found = means(ps, of_ps, made, "separation", "ps", arguments.step)
    cells = {key: [*key, f"{values[0]:.2f}"] for key, values in found.items()}
    costs: dict[str, tuple[int, float, float]] = {}
    MAPSS("mel").prepare(references[0], measures="match")  # what is slow the first time
    for name, bank in BANKS.items():
        mapss = MAPSS("mel", separation_bank=DistortionBank(size=1), match_bank=bank)
        start = time.process_time()
        prepared = [mapss.prepare(waves, measures="match") for waves in references]
        middle = time.process_time()
        found = means(mapss, prepared, made, "match", "pm log_pm", arguments.step)
        for key, (pm, log_pm) in found.items():
            cells[key].append(f"{pm:.2f} / {log_pm:.1f}")
        costs[name] = len(bank), middle - start, time.process_time() - middle
        print(f"{name}: {costs[name]}", flush=True)
    base = costs["none"]
    rows = [
        [name, str(size), f"{first / base[1]:.2f}", f"{second / base[2]:.2f}"]
        for name, (size, first, second) in costs.items()
    ]
    text = f"""## Three talkers: the others at once, or each alone (`leakage_talkers.py`)

{len(references)} mixtures of three talkers, `mel`, paper convention, first {arguments.seconds:g} s,
one frame in {arguments.step}; the target's PS, and PM / log PM by the leakage members in PM's bank.

{table(["estimate", "strength", "PS", *BANKS], list(cells.values()))}

Processor time over that without leakage members, in one run:

{table(["leakage members", "members of the bank", "prepare", "score PM"], rows)}
"""
    conformal_page.write("talkers", text)


if __name__ == "__main__":
    main()
