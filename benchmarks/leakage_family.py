"""Does PM with leakage members tell distortion from leakage? Sweeps of both on speech.

    OMP_NUM_THREADS=1 python benchmarks/leakage_family.py --data FOLDER_OF_SEPARATED [--encoder mel]

FOLDER holds ``manifest.json`` of two-talker mixtures, of which the first source is the target:

* leakage: y1 + a·y2, a from 0 to 1;
* random phase: the STFT phase of y1 turned by up to ±π·l in every bin;
* delay: y1 later by up to 40 ms·l;
* packet loss: a share l/2 of the 20 ms packets of y1 is silence.

Prints PS and PM for banks of no, 7 and 13 leakage members in the paper convention, and for no and 7
of them in the conformal one, and writes them to the page of results.
"""

from __future__ import annotations

import argparse
import json
import time
from collections.abc import Callable
from pathlib import Path

import torch
from bounds_page import table, write_section
from conformal_page import PAGE, TITLE
from selectivity import leaking, random_phase, read
from torch import Tensor

from torch_mapss import MAPSS, DistortionBank, ReferenceBank

STEPS = (0.0, 0.11, 0.33, 0.67, 1.0)
LONGEST_DELAY = 0.04
PACKET = 0.02
RATE = 16000
# Leakage members and convention of each column.
COLUMNS = ((0, "paper"), (7, "paper"), (13, "paper"), (0, "conformal"), (7, "conformal"))


def delayed(references: Tensor, amount: float) -> Tensor:
    shift = round(LONGEST_DELAY * amount * RATE)
    return torch.nn.functional.pad(references[:1], (shift, 0))[:, : references.shape[-1]]


def with_lost_packets(references: Tensor, amount: float) -> Tensor:
    size = round(PACKET * RATE)
    count = -(-references.shape[-1] // size)
    drawn = torch.rand(count, generator=torch.Generator().manual_seed(0))
    kept = (drawn >= amount / 2).to(references).repeat_interleave(size)
    return references[:1] * kept[: references.shape[-1]]


SWEEPS: dict[str, Callable[[Tensor, float], Tensor]] = {
    "leakage, a": leaking,
    "random phase, l": random_phase,
    "delay, l": delayed,
    "packet loss, l": with_lost_packets,
}


def scorers(encoder: str) -> dict[tuple[int, str], MAPSS]:
    small = DistortionBank(size=1)  # PS is scored apart
    return {
        (count, name): MAPSS(
            encoder,
            separation_bank=small,
            match_bank=DistortionBank("match", leakage=count),
            convention=name,
        )
        for count, name in COLUMNS
    }


def frames_of(mapss: MAPSS, bank: ReferenceBank, estimate: Tensor, measures: str, step: int):
    """Scores of the target in about every ``step``-th frame, always the same ones."""
    total = max(1, bank.frames // step)
    return mapss(estimate, bank, attributed=(0,), measures=measures, frames=total)


def row(
    sweep: str,
    amount: float,
    references: list[Tensor],
    ps: tuple[MAPSS, list[ReferenceBank]],
    pm: dict[tuple[int, str], tuple[MAPSS, list[ReferenceBank]]],
    step: int,
) -> list[str]:
    made = [SWEEPS[sweep](waves, amount) for waves in references]

    def mean(mapss: MAPSS, banks: list[ReferenceBank], measures: str, field: str) -> float:
        each = [
            getattr(frames_of(mapss, bank, estimate, measures, step).utterance(), field)[0, 0]
            for bank, estimate in zip(banks, made, strict=True)
        ]
        return float(torch.stack(each).mean())

    cells = [sweep, f"{amount:.2f}", f"{mean(*ps, 'separation', 'ps'):.2f}"]
    for (_, convention), (mapss, banks) in pm.items():
        fields = ("pm", "log_pm", "pm_rank") if convention == "conformal" else ("pm", "log_pm")
        found = [mean(mapss, banks, "match", field) for field in fields]
        rank = f" / {found[2]:.2f}" if len(found) > 2 else ""
        cells.append(f"{found[0]:.2f} / {found[1]:.1f}{rank}")
    return cells


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--data", type=Path, required=True)
    parser.add_argument("--encoder", default="mel")
    parser.add_argument("--seconds", type=float, default=3.0)
    parser.add_argument("--mixtures", type=int, help="only so many, evenly spread")
    parser.add_argument("--step", type=int, default=4, help="score one frame in so many")
    arguments = parser.parse_args()
    start = time.perf_counter()
    items = json.loads((arguments.data / "manifest.json").read_text())["items"]
    items = items[:: len(items) // (arguments.mixtures or len(items))]
    references = [
        torch.stack([read(arguments.data / p, arguments.seconds) for p in i["references"].values()])
        for i in items
    ]
    ps = MAPSS(arguments.encoder, match_bank=DistortionBank("match", size=2))
    of_ps = ps, [ps.prepare(waves, measures="separation") for waves in references]
    of_pm, prepared = {}, {}
    for (count, name), mapss in scorers(arguments.encoder).items():
        if count not in prepared:
            prepared[count] = [mapss.prepare(waves, measures="match") for waves in references]
        of_pm[count, name] = mapss, prepared[count]
    rows = [
        row(sweep, amount, references, of_ps, of_pm, arguments.step)
        for sweep in SWEEPS
        for amount in STEPS
    ]
    header = ["estimate", "strength", "PS"]
    header += [f"{name}, {count} leakage members" for count, name in COLUMNS]
    title = f"Leakage and distortion of known strength, `{arguments.encoder}`"
    text = f"""## {title} (`leakage_family.py`)

{len(items)} two-talker mixtures, first {arguments.seconds:g} s, one frame in {arguments.step}; the
target alone. PM / log PM, in the conformal convention PM / log PM / rank form, means over frames
and mixtures.

{table(header, rows)}

{time.perf_counter() - start:.0f} s.
"""
    write_section(f"sweeps-{arguments.encoder}", text, PAGE, TITLE)


if __name__ == "__main__":
    main()
