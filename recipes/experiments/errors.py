"""What errors of scores may change in a correlation with listeners [tab:ci_merged_like_main].

    python recipes/experiments/errors.py --manifest FOLDER/mapss.json --ratings FOLDER/ratings.csv \
        --sample-frames 20 --out runs/errors

Scores the manifest with bounds (``torch-mapss evaluate --bounds``, which goes on where it stopped)
and reads radius and half-width of SRCC and PCC from ``torch-mapss correlate``, with the derived and
with the printed bounds. The paper pools PS as PESQ does; mean PS stands beside it.
"""

from __future__ import annotations

import csv
import math
import subprocess
import sys
from collections.abc import Sequence

import toolkit

SHOWN = ("ps_pesq", "ps", "pm")
CELLS = ("srcc_radius", "srcc_half_width", "pcc_radius", "pcc_half_width")
PAPER = "Paper: radius at most 1.4 %, half-widths 2 to 30 %."


def percent(value: str) -> str:
    """A correlation as the paper prints it."""
    number = float(value or "nan")
    if not math.isfinite(number):
        return "–"
    return f"{100 * number:.1f}" if abs(number) < 10.0 else f"{100 * number:.0e}"


def command(*words: object) -> None:
    """Run one of the package's commands."""
    subprocess.run([sys.executable, "-m", "torch_mapss", *map(str, words), "--quiet"], check=True)


def main(arguments: Sequence[str] | None = None) -> list[list[str]]:
    parser = toolkit.parser(__doc__, ratings=True)
    options = parser.parse_args(arguments)
    (encoder,) = options.encoders
    scores = options.out / "scores"
    more: list[object] = ["--bounds", "--threads", 1, "--convention", options.convention]
    for name in ("sample_frames", "bank_size"):
        if (value := getattr(options, name)) is not None:
            more += [f"--{name.replace('_', '-')}", value]
    command("evaluate", options.manifest, "--encoder", encoder, "--out", scores, *more)
    lines = []
    for kind in ("derived", "paper"):
        out = options.out / kind
        command("correlate", scores, options.ratings, "--out", out, "--convention", kind)
        with open(out / "correlations.csv", encoding="utf-8", newline="") as file:
            for row in csv.DictReader(file):
                if row["pooling"] == "per_track" and row["measure"] in SHOWN:
                    label = toolkit.LABELS[row["measure"]]
                    cells = [percent(row.get(cell, "")) for cell in CELLS]
                    lines.append([row["question"], label, kind, *cells])
    header = ["question", "measure", "bounds", "SRCC radius", "half-width", "PCC radius"]
    frames = options.sample_frames
    about = (
        f"`{options.manifest.parent.name}`, {f'{frames} frames each' if frames else 'all frames'},"
    )
    about += f" `{encoder}`, scores in the `{options.convention}` convention; in %. {PAPER}"
    text = toolkit.page_head("Errors of the correlations", __file__, arguments, about)
    table = toolkit.markdown([*header, "half-width"], lines)
    toolkit.finish(options, "errors", [*text, "", table])
    return lines


if __name__ == "__main__":
    main()
