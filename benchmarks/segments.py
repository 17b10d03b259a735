"""Scores of clips in segments beside those of the same clips as a whole, frame by frame.

    python benchmarks/segments.py --data FOLDER [--clips separated ward2018 sisec08]
        [--encoders mel waveform]

FOLDER holds sets of separated recordings, each with a manifest of this package's format. Clips of
one system are joined to a long one, of several segments. Full banks, every frame. Rounding may move
the number of kept dimensions d by one; where it does not, scores should agree within 1e-3.
"""

from __future__ import annotations

import argparse
import json
import time
from pathlib import Path
from typing import NamedTuple

import torch
from bounds_data import read
from scaling_page import put_rows
from torch import Tensor

from torch_mapss import MAPSS
from torch_mapss.pipeline.records import Scores

TOLERANCE = 1e-3
COLUMNS = ["clip", "encoder", "s", "segment s", "scores", "equal d, PS", "equal d, PM"]
COLUMNS += ["equal d and within, PS", "PM", "log PM", "largest error there, PS", "of PM"]
COLUMNS += ["of log PM, relative", "largest at other d, PS", "difference of means, PS", "of PM"]
COLUMNS += ["of log PM, relative", "s whole", "s in segments"]
INTRO = """## In segments and whole (`segments.py`)

Full banks, every frame; `scores` counts estimates times frames. *Equal d and within*: share of all
of them whose d is the same and whose scores agree within 1e-3 (log PM: of its size). d is the
number of dimensions that a graph keeps; rounding may move it by one. Times include preparing."""


class Clip(NamedTuple):
    """Mixtures of one set that are joined, one system of them, and how long a segment is."""

    system: str
    mixtures: tuple[str, ...]  # all if empty
    segment: float


CLIPS = {
    "separated": Clip("AuxIVA", (), 10.0),
    "ward2018": Clip("HUA", ("vocals-10-SIR", "vocals-18-SIR", "vocals-42-SAR"), 4.0),
    "sisec08": Clip("Algo32", (), 2.0),
}


def joined(root: Path, clip: Clip, rate: int) -> tuple[Tensor, Tensor, tuple[int, ...]]:
    """Estimates (S', T), references (S, T), and which of these they are."""
    entries = json.loads((root / "mapss.json").read_text(encoding="utf-8"))
    chosen = [e for e in entries if e["mixture_id"] in clip.mixtures or not clip.mixtures]
    chosen = [e for e in chosen if clip.system in e["systems"]]
    index = tuple(k for k, path in enumerate(chosen[0]["systems"][clip.system]) if path)
    estimates, references = [], []
    for entry in chosen:
        waves = [read(root / path, rate) for path in entry["references"]]
        outputs = [read(root / entry["systems"][clip.system][k], rate) for k in index]
        length = min(len(wave) for wave in (*waves, *outputs))
        references.append(torch.stack([wave[:length] for wave in waves]))
        estimates.append(torch.stack([wave[:length] for wave in outputs]))
    return torch.cat(estimates, -1), torch.cat(references, -1), index


def compared(whole: Scores, parts: Scores) -> list[str]:
    """The cells of a row that tell how far the scores are apart."""
    active = whole.active
    assert torch.equal(active, parts.active)
    count = int(active.sum())

    def errors(name: str, relative: bool = False) -> Tensor:
        one, other = (getattr(x, name)[active].double() for x in (whole, parts))
        error = (one - other).abs()
        return error / one.abs().clamp(min=TOLERANCE) if relative else error

    def same(name: str) -> Tensor:
        both = (getattr(x, name).unsqueeze(1).expand_as(active)[active] for x in (whole, parts))
        return torch.eq(*both)

    ps, pm, log_pm = errors("ps"), errors("pm"), errors("log_pm", relative=True)
    equal_ps, equal_pm = same("separation_dimension"), same("match_dimension")
    pairs = [(ps, equal_ps), (pm, equal_pm), (log_pm, equal_pm)]
    cells = [str(count), *(f"{e.double().mean():.3%}" for e in (equal_ps, equal_pm))]
    cells += [f"{((x <= TOLERANCE) & e).double().mean():.3%}" for x, e in pairs]
    cells += [f"{x[e].max():.1e}" for x, e in pairs]
    cells += ["–" if bool(equal_ps.all()) else f"{ps[~equal_ps].max():.1e}"]
    one, other = whole.utterance(), parts.utterance()
    for name in ("ps", "pm", "log_pm"):
        a, b = getattr(one, name), getattr(other, name)
        error = (a - b).abs() / (a.abs() if name == "log_pm" else 1.0)
        cells.append(f"{error.max():.1e}")
    return cells


def measure(name: str, encoder: str, data: Path) -> list[str]:
    """One row of the table."""
    clip = CLIPS[name]
    whole = MAPSS(encoder)
    estimates, references, index = joined(data / name, clip, whole.grid.sample_rate)
    start = time.process_time()
    expected = whole(estimates, references, attributed=index)
    between = time.process_time()
    found = MAPSS(encoder, segment=clip.segment)(estimates, references, attributed=index)
    done = time.process_time()
    seconds = references.shape[-1] / whole.grid.sample_rate
    cells = [name, encoder, f"{seconds:.0f}", f"{clip.segment:g}", *compared(expected, found)]
    return [*cells, f"{between - start:.0f}", f"{done - between:.0f}"]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--data", type=Path, required=True)
    parser.add_argument("--clips", nargs="+", choices=CLIPS, default=list(CLIPS))
    parser.add_argument("--encoders", nargs="+", default=["mel", "waveform"])
    options = parser.parse_args()
    for name in options.clips:
        for encoder in options.encoders:
            put_rows("segments", INTRO, COLUMNS, [measure(name, encoder, options.data)], keys=2)


if __name__ == "__main__":
    main()
