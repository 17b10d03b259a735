"""Does PM with leakage members tell distortion from leakage? Sweeps of both on speech.

    OMP_NUM_THREADS=1 python benchmarks/leakage_family.py --data FOLDERS [--encoders mel waveform]
    OMP_NUM_THREADS=1 python benchmarks/leakage_family.py --data FOLDER --encoders mel --rated SET

Each folder holds ``manifest.json`` of two-talker mixtures, or of utterances, of which pairs of
different speakers are made, equally loud. The first source is the target:

* leakage: y1 + a·y2, a from 0 to 1;
* random phase: the STFT phase of y1 turned by up to ±π·l in every bin;
* delay: y1 later by up to 40 ms·l;
* packet loss: a share l/2 of the 20 ms packets of y1 is silence.

Prints PS, and PM for banks without and with leakage members in every convention, and writes them
to the page of results. With ``--rated`` (a set whose noise and distortion listeners rated apart)
leakage and random phase, the correlations with these ratings and what the members cost are measured
at once, in the paper convention. `leakage_talkers.py` has mixtures of three talkers.
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
from leakage_rated import of_talkers
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


Sweep = Callable[[Tensor, float], Tensor]
SWEEPS: dict[str, Sweep] = {
    "leakage, a": leaking,
    "random phase, l": random_phase,
    "delay, l": delayed,
    "packet loss, l": with_lost_packets,
}
MEMBERS = 7


def paper_scorers(encoder: str, banks: dict[str, DistortionBank]) -> dict[tuple[str, str], MAPSS]:
    small = DistortionBank(size=1)  # PS is scored apart
    return {
        (name, "paper"): MAPSS(encoder, separation_bank=small, match_bank=bank)
        for name, bank in banks.items()
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
    label: str,
    sweep: Sweep,
    amount: float,
    references: list[Tensor],
    ps: tuple[MAPSS, list[ReferenceBank]],
    pm: dict[tuple, tuple[MAPSS, list[ReferenceBank]]],
    step: int,
) -> list[str]:
    made = [sweep(waves, amount) for waves in references]

    def mean(mapss: MAPSS, banks: list[ReferenceBank], measures: str, field: str) -> float:
        each = [
            getattr(frames_of(mapss, bank, estimate, measures, step).utterance(), field)[0, 0]
            for bank, estimate in zip(banks, made, strict=True)
        ]
        return float(torch.stack(each).mean())

    cells = [label, f"{amount:.2f}", f"{mean(*ps, 'separation', 'ps'):.2f}"]
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


def rows_of(
    encoder: str,
    scorers: dict[tuple, MAPSS],
    sweeps: dict[str, Sweep],
    references: list[Tensor],
    step: int,
) -> list[list[str]]:
    ps = MAPSS(encoder, match_bank=DistortionBank("match", size=2))
    of_ps = ps, [ps.prepare(waves, measures="separation") for waves in references]
    of_pm, prepared = {}, {}
    for (members, name), mapss in scorers.items():
        if members not in prepared:
            prepared[members] = [mapss.prepare(waves, measures="match") for waves in references]
        of_pm[members, name] = mapss, prepared[members]
    return [
        row(label, sweep, amount, references, of_ps, of_pm, step)
        for label, sweep in sweeps.items()
        for amount in STEPS
    ]


def cost_rows(encoder: str, references: list[Tensor], rounds: int = 5) -> list[list[str]]:
    """Processor time of preparing and of scoring PM with leakage members over that without."""
    counts = (0, MEMBERS, 13)
    banks = {str(count): DistortionBank("match", leakage=count) for count in counts}
    mapss = {name: each for (name, _), each in paper_scorers(encoder, banks).items()}
    prepared = {
        name: [each.prepare(w, measures="match") for w in references]
        for name, each in mapss.items()
    }
    spent: dict[tuple[str, str], list[float]] = {}
    for _ in range(rounds):
        for name, each in mapss.items():
            start = time.process_time()
            for waves in references:
                each.prepare(waves, measures="match")
            middle = time.process_time()
            for waves, bank in zip(references, prepared[name], strict=True):
                frames_of(each, bank, random_phase(waves, 0.5), "match", 2)
            spent.setdefault(("prepare", name), []).append(middle - start)
            spent.setdefault(("score", name), []).append(time.process_time() - middle)
    present = {
        name: sum(int(bank.measure(waves, RATE).mask.sum()) for waves in references)
        for name, bank in banks.items()
    }
    return [
        [
            name,
            f"{present[name] / present['0']:.2f}",
            *(
                f"{min(spent[what, name]) / min(spent[what, '0']):.2f}"
                for what in ("prepare", "score")
            ),
        ]
        for name in mapss
        if name != "0"
    ]


def both_directions(arguments: argparse.Namespace, data: Path, encoder: str) -> str:
    """Sweeps and ratings of PM with and without leakage members, and what these cost."""
    references = mixtures(data, arguments.seconds, arguments.mixtures)
    banks = {f"{n} members": DistortionBank("match", leakage=n) for n in (0, MEMBERS, 13)}
    sweeps = {label: SWEEPS[label] for label in ("leakage, a", "random phase, l")}
    rows = rows_of(encoder, paper_scorers(encoder, banks), sweeps, references, arguments.step)
    return f"""## Both directions at once, `{encoder}` (`leakage_family.py --rated`)

`{data.name}`: {len(references)} two-talker mixtures, first {arguments.seconds:g} s, one frame
in {arguments.step}; the target alone; PM / log PM in the paper convention by the number of leakage
members.

{table(["estimate", "strength", "PS", *banks], rows)}

{of_talkers(arguments.rated, encoder, arguments.rated_step)}

Cost of the members on the mixtures above: members present, processor time of preparing PM's bank
and of scoring PM (the target, one frame in two), each over that without leakage members, the
fastest of five rounds.

{table(["leakage members", "members", "prepare", "score"], cost_rows(encoder, references))}
"""


def all_conventions(arguments: argparse.Namespace, data: Path, encoder: str) -> str:
    """Sweeps of two talkers in every convention."""
    references = mixtures(data, arguments.seconds, arguments.mixtures)
    header = ["estimate", "strength", "PS"]
    header += [f"{name}, {count} leakage members" for count, name in COLUMNS]
    rows = rows_of(encoder, scorers(encoder), SWEEPS, references, arguments.step)
    title = f"Leakage and distortion of known strength, `{data.name}`, `{encoder}`"
    return f"""## {title} (`leakage_family.py`)

{len(references)} two-talker mixtures, first {arguments.seconds:g} s, one frame in {arguments.step};
the target alone. PM / log PM, in the conformal convention PM / log PM / rank form, means over
frames and mixtures; PS in the paper convention.

{table(header, rows)}
"""


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--data", type=Path, nargs="+", required=True)
    parser.add_argument("--encoders", nargs="+", default=["mel", "waveform"])
    parser.add_argument("--seconds", type=float, default=3.0)
    parser.add_argument("--mixtures", type=int, default=3, help="so many, evenly spread")
    parser.add_argument("--step", type=int, default=12, help="score one frame in so many")
    parser.add_argument("--rated", type=Path, help="folder of the rated set p835ref")
    parser.add_argument("--rated-step", type=int, default=20, help="the same for the rated set")
    arguments = parser.parse_args()
    start = time.process_time()
    section, of_section = "sweeps", all_conventions
    if arguments.rated is not None:
        arguments.rated = arguments.rated.resolve()
        section, of_section = "both", both_directions
    for folder in arguments.data:
        data = folder.resolve()
        for encoder in arguments.encoders:
            text = of_section(arguments, data, encoder)
            conformal_page.write(f"{section}-{data.name}-{encoder}", text)
    print(f"{time.process_time() - start:.0f} s")


if __name__ == "__main__":
    main()
