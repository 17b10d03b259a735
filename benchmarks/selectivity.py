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
from torch_mapss.audio.files import load_audio
from torch_mapss.audio.waveforms import to_mono
from torch_mapss.encoders import MelEncoder
from torch_mapss.functional import diffusion_map

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
            pm, log_pm = float(found.pm.mean()), float(found.log_pm.mean())
            cells.append(f"{ps[system]:.3f} / {pm:.3f} / {log_pm:.1f}")
        lines.append(f"| {item['id']} | " + " | ".join(cells) + " |")
        if not ps["references"] > ps["IRM"] > ps["mixture"]:
            failures.append(item["id"])
    return lines, failures


def why_match_falls(mixtures: list[Tensor]) -> list[str]:
    """PM against the share of the spectrum that is kept, the convention and the floor of log-mel.

    Fewer coordinates (a smaller d beside N_p) leave the covariance fewer directions that the
    distortions do not span, in which the ridge alone measures the output.
    """
    lines = [
        "### Why PM falls with leakage, mel",
        "",
        "PM / log PM of the target where the map keeps a smaller share of its eigenvalues (d",
        "coordinates in the mean, N_p distortions), in the reference convention, and with a higher",
        "floor under the log of the mel energies.",
        "",
        "| map | d / N_p | a = 0.11 | a = 0.33 | a = 1 | phase l = 0.33 |",
        "|---|---|---|---|---|---|",
    ]
    made = [(leaking, 0.11), (leaking, 0.33), (leaking, 1.0), (random_phase, 0.33)]
    settings = [("paper", energy, 1e-5) for energy in (0.5, 0.8, 0.9, 0.99)]
    settings += [("reference", 0.99, 1e-5), ("paper", 0.99, 1e-3), ("reference", 0.99, 1e-3)]
    prepared: dict[float, list[ReferenceBank]] = {}
    for convention, energy, floor in settings:
        mapss = MAPSS(MelEncoder(floor=floor), energy=energy, convention=convention)
        if floor not in prepared:
            prepared[floor] = [mapss.prepare(r, measures="match") for r in mixtures]
        banks = prepared[floor]
        dimension, count = kept(banks, energy, convention)
        cells = []
        for make, amount in made:
            found = [
                mapss(make(refs, amount), bank, attributed=(0,), measures="match").utterance()
                for refs, bank in zip(mixtures, banks)
            ]
            pm = torch.stack([f.pm[0, 0] for f in found]).mean()
            log_pm = torch.stack([f.log_pm[0, 0] for f in found]).mean()
            cells.append(f"{float(pm):.2f} / {float(log_pm):.1f}")
        name = f"{convention}, τ = {energy:g}, floor {floor:g}"
        lines.append(f"| {name} | {dimension:.0f} / {count:.0f} | " + " | ".join(cells) + " |")
    return [*lines, ""]


def kept(banks: list[ReferenceBank], energy: float, convention: str) -> tuple[float, float]:
    """Mean d over every tenth scored frame, without the output, and mean N_p."""
    dimensions, counts = [], []
    for bank in banks:
        (group,) = bank.groups
        item, frame = group.scored[::10].unbind(-1)
        encoded = group.match
        references = encoded.references.transpose(1, 2)[item, frame]
        distortions = encoded.distortions.permute(0, 3, 1, 2, 4)[item, frame]
        mask = torch.ones(distortions.shape[:3], dtype=torch.bool)
        if encoded.mask is not None:
            mask = encoded.mask[item]
        points = torch.cat([references, distortions.flatten(1, 2)], 1)
        present = torch.cat([torch.ones_like(mask[..., 0]), mask.flatten(1)], 1)
        found = diffusion_map(points, energy=energy, mask=present, convention=convention)
        dimensions.append(found.dimension.double().mean())
        counts.append(mask.sum(-1).double().mean())
    return float(torch.stack(dimensions).mean()), float(torch.stack(counts).mean())


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
        *why_match_falls(mixtures),
    ]
    arguments.out.mkdir(parents=True, exist_ok=True)
    (arguments.out / "selectivity.md").write_text("\n".join(text))
    print("\n".join(text))


if __name__ == "__main__":
    main()
