"""Does PS react to leakage and PM to distortion? The experiment of [tab:alpha_lambda] on speech.

    python benchmarks/selectivity.py --data FOLDER [--seconds 4] [--out benchmarks/results]

FOLDER holds ``manifest.json`` of two-talker mixtures (references, outputs of separators, the
mixture). For every mixture the first source is the target:

* leakage: y1 + a·y2, a from 0 to 1;
* distortion outside the bank: the STFT phase of y1 turned by up to ±π·l at random in every bin, l
  from 0 to 1 (the magnitude stays, the waveform and the fine structure do not);
* the separators' outputs and the unprocessed mixture, both sources.

Prints the tables in Markdown and writes them to ``selectivity.md``.
"""

from __future__ import annotations

import argparse
import json
from pathlib import Path

import torch
from torch import Tensor

from torch_mapss import MAPSS, ReferenceBank
from torch_mapss.audio import load_audio, to_mono

STEPS = 10


def read(path: Path, seconds: float) -> Tensor:
    wave, rate = load_audio(path)
    return to_mono(wave)[: int(seconds * rate)]


def leaking(references: Tensor, amount: float) -> Tensor:
    return references[:1] + amount * references[1:2]


def random_phase(references: Tensor, amount: float) -> Tensor:
    """The first source with its STFT phase turned by uniform angles in ±π·amount."""
    window = torch.hann_window(512)
    spectrum = torch.stft(references[0], 512, 128, window=window, return_complex=True)
    generator = torch.Generator().manual_seed(0)
    angle = (2 * torch.rand(spectrum.shape, generator=generator) - 1) * torch.pi * amount
    turned = spectrum * torch.polar(torch.ones_like(angle), angle)
    return torch.istft(turned, 512, 128, window=window, length=references.shape[-1])[None]


def target_scores(mapss: MAPSS, bank: ReferenceBank, estimate: Tensor) -> Tensor:
    """Mean PS, mean PM, mean log PM of the target alone."""
    found = mapss(estimate, bank, attributed=(0,)).utterance()
    return torch.stack([found.ps[0, 0], found.pm[0, 0], found.log_pm[0, 0]])


def sweep(mapss: MAPSS, mixtures: list[Tensor], banks: list[ReferenceBank], make) -> list[Tensor]:
    """Scores averaged over mixtures for every strength."""
    amounts = torch.linspace(0, 1, STEPS).tolist()
    return [
        torch.stack(
            [target_scores(mapss, bank, make(refs, a)) for refs, bank in zip(mixtures, banks)]
        ).mean(0)
        for a in amounts
    ]


def sweep_table(title: str, symbol: str, columns: dict[str, list[Tensor]]) -> list[str]:
    names = list(columns)
    lines = [f"### {title}", "", "PS / PM / log PM, means over frames and mixtures.", ""]
    lines += [f"| {symbol} | " + " | ".join(names) + " |", "|---" * (len(names) + 1) + "|"]
    for step, amount in enumerate(torch.linspace(0, 1, STEPS).tolist()):
        cells = ["{:.2f} / {:.2f} / {:.1f}".format(*columns[name][step].tolist()) for name in names]
        lines.append(f"| {amount:.2f} | " + " | ".join(cells) + " |")
    return [*lines, ""]


def separators(
    mapss: MAPSS, root: Path, items: list[dict], banks: list[ReferenceBank], seconds: float
) -> tuple[list[str], list[str]]:
    """PS and PM of every system on every mixture, and which order comes out."""
    systems = ["references", *items[0]["outputs"], "mixture"]
    lines = ["| mixture | " + " | ".join(systems) + " |", "|---" * (len(systems) + 1) + "|"]
    failures = []
    for item, bank in zip(items, banks):
        sources = list(item["references"])
        mixture = read(root / item["mixture"], seconds)
        cells, ps = [], {}
        for system in systems:
            if system == "mixture":
                estimates = mixture.expand(len(sources), -1)
            else:
                files = item["references"] if system == "references" else item["outputs"][system]
                estimates = torch.stack([read(root / files[s], seconds) for s in sources])
            found = mapss(estimates, bank).utterance()
            ps[system] = float(found.ps.mean())
            cells.append(
                f"{ps[system]:.3f} / {float(found.pm.mean()):.3f} / {float(found.log_pm.mean()):.1f}"
            )
        lines.append(f"| {item['id']} | " + " | ".join(cells) + " |")
        if not ps["references"] > ps["IRM"] > ps["mixture"]:
            failures.append(item["id"])
    return lines, failures


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--data", type=Path, required=True)
    parser.add_argument("--seconds", type=float, default=4.0)
    parser.add_argument("--out", type=Path, default=Path(__file__).parent / "results")
    parser.add_argument("--encoders", nargs="+", default=["mel", "waveform"])
    arguments = parser.parse_args()
    items = json.loads((arguments.data / "manifest.json").read_text())["items"]
    mixtures = [
        torch.stack([read(arguments.data / p, arguments.seconds) for p in i["references"].values()])
        for i in items
    ]
    leak, phase, tables = {}, {}, []
    for name in arguments.encoders:
        mapss = MAPSS(name)
        banks = [mapss.prepare(references) for references in mixtures]
        leak[name] = sweep(mapss, mixtures, banks, leaking)
        phase[name] = sweep(mapss, mixtures, banks, random_phase)
        lines, failures = separators(mapss, arguments.data, items, banks, arguments.seconds)
        verdict = (
            f"References > oracle mask > mixture in PS: not in {', '.join(failures)}."
            if failures
            else "References > oracle mask > mixture in PS on every mixture."
        )
        tables += [
            f"### Separators, {name}",
            "",
            "PS / PM / log PM, means over sources and frames.",
            "",
            *lines,
            "",
            verdict,
            "",
        ]
    text = [
        "# Selectivity of PS and PM",
        "",
        f"{len(items)} two-talker mixtures, first {arguments.seconds:g} s of each; written by "
        "`benchmarks/selectivity.py`.",
        "",
        *sweep_table("Leakage: y1 + a·y2", "a", leak),
        *sweep_table("Distortion outside the bank: random phase", "l", phase),
        *tables,
    ]
    arguments.out.mkdir(parents=True, exist_ok=True)
    (arguments.out / "selectivity.md").write_text("\n".join(text))
    print("\n".join(text))


if __name__ == "__main__":
    main()
