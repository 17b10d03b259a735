"""Does PM with leakage members tell distortion from leakage? Sweeps of both on speech.

    OMP_NUM_THREADS=1 python benchmarks/leakage_family.py --data FOLDERS [--encoders mel waveform]

Each folder holds ``manifest.json`` of two-talker mixtures, or of utterances, of which pairs of
different speakers are made, equally loud. The first source is the target:

* leakage: y1 + a·y2, a from 0 to 1;
* random phase: the STFT phase of y1 turned by up to ±π·l in every bin;
* delay: y1 later by up to 40 ms·l;
* packet loss: a share l/2 of the 20 ms packets of y1 is silence.

Prints PS, and PM for banks without and with leakage members in every convention, and writes them
to the page of results.
"""

from __future__ import annotations

import argparse
import itertools
import json
import time
from collections.abc import Callable
from pathlib import Path

import conformal_page
import torch
from bounds_page import table
from selectivity import leaking, random_phase, read
from torch import Tensor

from torch_mapss import MAPSS, DistortionBank, ReferenceBank

STEPS = (0.0, 0.11, 0.33, 0.67, 1.0)
LONGEST_DELAY = 0.04
PACKET = 0.02
RATE = 16000
# Leakage members and convention of each column.
COLUMNS = (
    *((count, "paper") for count in (0, 7, 13)),
    *((count, name) for name in ("reference", "conformal") for count in (0, 7)),
)


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


def mixtures(data: Path, seconds: float, count: int) -> list[Tensor]:
    """(2, T) references of mixtures, evenly spread over those of a folder."""
    items = json.loads((data / "manifest.json").read_text(encoding="utf-8"))["items"]
    pairs = [list(item["references"].values()) for item in items if "references" in item]
    if not pairs:
        both = itertools.combinations(items, 2)
        pairs = [[a["path"], b["path"]] for a, b in both if a["speaker"] != b["speaker"]]
    chosen = pairs[:: max(1, len(pairs) // count)][:count]
    waves = [torch.stack([read(data / path, seconds) for path in pair]) for pair in chosen]
    if "references" in items[0]:
        return waves
    return [0.05 * wave / wave.square().mean(-1, keepdim=True).sqrt() for wave in waves]


def rows_of(encoder: str, references: list[Tensor], step: int) -> list[list[str]]:
    ps = MAPSS(encoder, match_bank=DistortionBank("match", size=2))
    of_ps = ps, [ps.prepare(waves, measures="separation") for waves in references]
    of_pm, prepared = {}, {}
    for (count, name), mapss in scorers(encoder).items():
        if count not in prepared:
            prepared[count] = [mapss.prepare(waves, measures="match") for waves in references]
        of_pm[count, name] = mapss, prepared[count]
    return [
        row(sweep, amount, references, of_ps, of_pm, step) for sweep in SWEEPS for amount in STEPS
    ]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--data", type=Path, nargs="+", required=True)
    parser.add_argument("--encoders", nargs="+", default=["mel", "waveform"])
    parser.add_argument("--seconds", type=float, default=3.0)
    parser.add_argument("--mixtures", type=int, default=3, help="so many, evenly spread")
    parser.add_argument("--step", type=int, default=12, help="score one frame in so many")
    arguments = parser.parse_args()
    start = time.process_time()
    header = ["estimate", "strength", "PS"]
    header += [f"{name}, {count} leakage members" for count, name in COLUMNS]
    for data in arguments.data:
        references = mixtures(data, arguments.seconds, arguments.mixtures)
        for encoder in arguments.encoders:
            rows = rows_of(encoder, references, arguments.step)
            name = data.resolve().name
            title = f"Leakage and distortion of known strength, `{name}`, `{encoder}`"
            text = f"""## {title} (`leakage_family.py`)

{len(references)} two-talker mixtures, first {arguments.seconds:g} s, one frame in {arguments.step};
the target alone. PM / log PM, in the conformal convention PM / log PM / rank form, means over
frames and mixtures; PS in the paper convention.

{table(header, rows)}
"""
            conformal_page.write(f"sweeps-{name}-{encoder}", text)
    print(f"{time.process_time() - start:.0f} s")


if __name__ == "__main__":
    main()
