"""What clearance and fidelity cost beside PS and PM, and beside the encoder.

    python benchmarks/pair.py [--seconds 10] [--encoder mel] [--rounds 3]

Preparing (distort, normalise, encode), scoring of all frames, and forward with backward, for the
pair alone and for PS and PM alone, in turn in one process; processor seconds, the least of the
rounds. The real-time factor is preparing and scoring together over the duration.
"""

from __future__ import annotations

import argparse
from functools import partial

import torch
from common import RATE, in_turn, leaky, table, voices

from torch_mapss import MAPSS

SETS = {"clearance, fidelity": ("decomposition",), "PS, PM": ("separation", "match")}


def step(mapss: MAPSS, estimates: torch.Tensor, bank: object, measures: tuple[str, ...]) -> None:
    """Forward and backward to the estimates."""
    leaf = estimates.clone().requires_grad_()
    scores = mapss(leaf, bank, measures=measures)
    fields = ("clearance", "fidelity") if "decomposition" in measures else ("ps", "log_pm")
    sum(getattr(scores, name).sum() for name in fields).backward()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--seconds", type=float, default=10.0)
    parser.add_argument("--encoder", default="mel")
    parser.add_argument("--rounds", type=int, default=3)
    options = parser.parse_args()
    references = voices(options.seconds).unsqueeze(0)
    estimates = leaky(references)
    mapss = MAPSS(options.encoder)
    banks = {name: mapss.prepare(references, measures=chosen) for name, chosen in SETS.items()}

    def encode() -> None:
        with torch.no_grad():
            mapss.encoder(estimates)

    def score(name: str) -> None:
        with torch.no_grad():
            mapss(estimates, banks[name], measures=SETS[name])

    runs = {"encoding the estimates": encode}
    for name, chosen in SETS.items():
        runs[f"preparing {name}"] = partial(mapss.prepare, references, measures=chosen)
        runs[f"scoring {name}"] = partial(score, name)
        runs[f"forward and backward, {name}"] = partial(step, mapss, estimates, banks[name], chosen)
    best = in_turn(runs, options.rounds)
    pair, paper = SETS
    rows = []
    for name, seconds in best.items():
        other = best.get(name.replace(pair, paper), 0.0)
        ratio = f"{seconds / other:.3f}" if pair in name else ""
        rows.append([name, f"{seconds:.3f}", ratio])
    frames = sum(len(group.scored) for group in banks[pair].groups)
    print(
        f"{options.seconds:g} s, 2 sources at {RATE} Hz, encoder {options.encoder}, {frames} "
        f"scored frames, {torch.get_num_threads()} threads:\n"
    )
    print(table(["step", "s", "ratio to PS, PM"], rows))
    for name in SETS:
        whole = best[f"preparing {name}"] + best[f"scoring {name}"]
        print(f"\nReal-time factor of {name}: {whole / options.seconds:.3f}.")


if __name__ == "__main__":
    main()
