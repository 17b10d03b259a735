"""Do the terms of a loss pull alike? Gradient norms on the outputs of real separators.

    python benchmarks/training_gradients.py --data FOLDER [--seconds 1.5] [--out FILE]

FOLDER holds ``mapss.json``, a manifest of mixtures with the outputs of separators (the format of
``torch-mapss evaluate``). Every system and the unprocessed mixture is taken as the output of a
separator in training, and the gradient of each term is taken with respect to it.

Norms are relative, ‖gradient‖ · ‖output‖: what a relative change of the output in its steepest
direction does to the term. Every term is blind to the level of an output, so the relative norm is
the one that does not hang on it. The terms are weighed as ``MAPSSLoss()`` weighs them, and SI-SDR
by what its docstring advises. The run fails if two weighed terms lie more than a factor of ten
apart on any output.
"""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

import torch
from torch import Tensor

from torch_mapss import MAPSS, MAPSSLoss, MatchLoss, ReferenceBank, SeparationLoss, audio

SI_SDR = 0.15  # weight per dB, as the docstring of MAPSSLoss advises
MOST = 10.0  # the largest ratio between two weighed terms
ENCODERS = ("mel", "waveform")
START = 2.0  # seconds into the files


class Row(NamedTuple):
    """One output of one system: values and relative gradient norms of the terms."""

    encoder: str
    system: str
    values: dict[str, float]
    norms: dict[str, float]


def read(path: Path, seconds: float) -> Tensor:
    wave, rate = audio.load_audio(path)
    first = int(START * rate)
    return audio.to_mono(wave)[first : first + int(seconds * rate)]


def read_all(root: Path, paths: Sequence[str], seconds: float) -> Tensor:
    """(1, S, T)."""
    return torch.stack([read(root / path, seconds) for path in paths]).unsqueeze(0)


def terms(mapss: MAPSS) -> dict[str, object]:
    """Unweighted terms: functions of (outputs, bank, references)."""
    leakage = SeparationLoss(mapss)
    plain, compressed = MatchLoss(mapss, mode="log"), MatchLoss(mapss, mode="log1p")
    return {
        "1 - PS": lambda e, bank, r: leakage(e, bank),
        "log(1 - log PM)": lambda e, bank, r: compressed(e, bank),
        "-log PM": lambda e, bank, r: plain(e, bank),
        "-SI-SDR": lambda e, bank, r: -audio.si_sdr(e, r).mean(),
    }


def weights(mapss: MAPSS) -> dict[str, float]:
    """What the defaults make of the terms; -log PM with the weight 1 that it would have alone."""
    default = MAPSSLoss(mapss)
    assert default.match_mode == "log1p"
    given = default.weights
    return {
        "1 - PS": given["separation"],
        "log(1 - log PM)": given["match"],
        "-log PM": 1.0,
        "-SI-SDR": SI_SDR,
    }


def measured(
    mapss: MAPSS, bank: ReferenceBank, outputs: Tensor, references: Tensor
) -> tuple[dict[str, float], dict[str, float]]:
    """Values and relative gradient norms."""
    outputs = outputs.clone().requires_grad_()
    values, norms = {}, {}
    for name, term in terms(mapss).items():
        value = term(outputs, bank, references)  # type: ignore[operator]
        (slope,) = torch.autograd.grad(value, outputs)
        values[name] = float(value)
        norms[name] = float(slope.norm() * outputs.detach().norm())
    return values, norms


def rows(root: Path, encoder: str, seconds: float) -> tuple[list[Row], dict[str, float]]:
    """All outputs of all systems, with the weights of the terms."""
    mapss, found = MAPSS(encoder), []
    for item in json.loads((root / "mapss.json").read_text(encoding="utf-8")):
        references = read_all(root, item["references"], seconds)
        bank = mapss.prepare(references)
        mixture = references.sum(1, keepdim=True).expand_as(references)
        outputs = {s: read_all(root, paths, seconds) for s, paths in item["systems"].items()}
        for system, output in {**outputs, "mixture": mixture}.items():
            found.append(Row(encoder, system, *measured(mapss, bank, output, references)))
            print(encoder, item["mixture_id"], system, file=sys.stderr, flush=True)
    return found, weights(mapss)


def span(values: Sequence[float], digits: str = ".3g") -> str:
    """Geometric mean and range of positive numbers."""
    mean = float(torch.tensor(values, dtype=torch.float64).log().mean().exp())
    low, high = min(values), max(values)
    return f"{mean:{digits}} ({low:{digits}} to {high:{digits}})"


def table(found: Sequence[Row], weight: dict[str, float]) -> list[str]:
    """Weighed norms of every system, mean and range over its outputs."""
    shown = {name: f"{weight[name]:g} · ({name})" for name in weight}
    lines = ["| encoder | output | " + " | ".join(shown.values()) + " |"]
    lines.append("|---" * (len(weight) + 2) + "|")
    for encoder in dict.fromkeys(row.encoder for row in found):
        for system in dict.fromkeys(row.system for row in found):
            mine = [r for r in found if (r.encoder, r.system) == (encoder, system)]
            cells = [span([weight[name] * row.norms[name] for row in mine]) for name in weight]
            lines.append(f"| {encoder} | {system} | " + " | ".join(cells) + " |")
    return lines


def apart(row: Row, weight: dict[str, float], names: Sequence[str]) -> float:
    """The largest over the least weighed norm."""
    found = [weight[name] * row.norms[name] for name in names]
    return max(found) / min(found)


def report(found: Sequence[Row], weight: dict[str, float]) -> tuple[list[str], float]:
    """The page's section, and the largest ratio between weighed terms."""
    new = ("1 - PS", "log(1 - log PM)", "-SI-SDR")
    worst = max(apart(row, weight, new) for row in found)
    both = [apart(row, weight, new[:2]) for row in found]
    old = [apart(row, weight, ("1 - PS", "-log PM")) for row in found]
    total = [row.values["1 - PS"] + row.values["-log PM"] for row in found]
    loss = [sum(weight[name] * row.values[name] for name in new[:2]) for row in found]
    return [
        *table(found, weight),
        "",
        f"Over the {len(found)} outputs: the weighed terms of PS and PM lie {span(both)} times "
        f"apart, with SI-SDR among them {worst:.3g} at most; 1 - PS and a bare -log PM lie "
        f"{span(old)} times apart. The loss itself is {span(loss)}; with -log PM it would be "
        f"{span(total)}.",
    ], worst


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--data", required=True, type=Path, help="folder of mapss.json")
    parser.add_argument("--seconds", type=float, default=1.5, help="of every file")
    parser.add_argument("--out", type=Path, help="Markdown page to write")
    options = parser.parse_args()
    torch.set_num_threads(1)
    found: list[Row] = []
    weight: dict[str, float] = {}
    for encoder in ENCODERS:
        more, weight = rows(options.data, encoder, options.seconds)
        found += more
    lines, worst = report(found, weight)
    text = "\n".join(
        [
            "# Gradient norms of the terms of a loss",
            "",
            f"`training_gradients.py --seconds {options.seconds:g}`: relative norms, ‖gradient‖ · "
            "‖output‖, of the weighed terms; geometric mean over the outputs of a system, least "
            "and largest.",
            "",
            *lines,
            "",
        ]
    )
    print(text)
    if options.out:
        options.out.write_text(text, encoding="utf-8")
    if worst > MOST:
        raise SystemExit(f"two weighed terms lie {worst:.3g} times apart, more than {MOST:g}.")


if __name__ == "__main__":
    main()
