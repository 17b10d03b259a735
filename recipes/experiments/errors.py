"""How far errors of scores may change a correlation with listeners [tab:ci_merged_like_main].

    python recipes/experiments/errors.py --manifest FOLDER/mapss.json \\
        --ratings FOLDER/ratings.csv --sample-frames 20 --out runs/errors

Scores the manifest with bounds in both conventions of the scores (a run that was stopped goes on),
and states radius and half-width of SRCC and PCC, as derived and as the paper prints them. The paper
pools PS as PESQ does; mean PS is shown as well.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import toolkit

from torch_mapss import evaluate_set
from torch_mapss.evaluation.correlate import correlate

SHOWN = ("ps_pesq", "ps", "pm")
CELLS = ("srcc_radius", "srcc_half_width", "pcc_radius", "pcc_half_width")
PAPER = "Paper: radius at most 1.4 %, half-widths 2 to 30 %."


def percent(value: float) -> str:
    """A correlation as the paper prints it."""
    if not math.isfinite(value):
        return "–"
    return f"{100 * value:.1f}" if abs(value) < 10.0 else f"{100 * value:.0e}"


def main(arguments: Sequence[str] | None = None) -> list[list[str]]:
    parser = toolkit.parser(
        __doc__, ratings=True, without=("--convention", "--mixtures", "--seconds")
    )
    options = parser.parse_args(arguments)
    (encoder,) = options.encoders
    lines = []
    for convention in ("paper", "reference"):
        settings = {"convention": convention, "measures": ("separation", "match"), "bounds": True}
        for name in ("sample_frames", "bank_size", "device"):
            if (value := getattr(options, name)) is not None:
                settings[name] = value
        out = options.out / convention
        evaluate_set(options.manifest, out=out, encoder=encoder, progress=True, **settings)
        for kind in ("derived", "paper"):
            rows = correlate(out, options.ratings, convention=kind, draws=0).rows
            rows = rows[(rows["pooling"] == "per_track") & rows["measure"].isin(SHOWN)]
            for row in rows.to_dict("records"):
                label = toolkit.LABELS[row["measure"]]
                cells = [percent(float(row[cell])) for cell in CELLS]
                lines.append([row["question"], label, convention, kind, *cells])
    header = ["question", "measure", "scores", "bounds", "SRCC radius", "half-width", "PCC radius"]
    data = f"`{options.manifest.parent.name}`, {options.sample_frames or 'all'} frames each"
    about = f"{data}, `{encoder}`; in %. {PAPER}"
    text = toolkit.page_head("Errors of the correlations", __file__, arguments, about)
    table = toolkit.markdown([*header, "half-width"], lines)
    toolkit.finish(options, "errors", [*text, "", table])
    return lines


if __name__ == "__main__":
    main()
