"""How PS and PM and their errors are spread over frames.

    python recipes/experiments/histograms.py --manifest FOLDER/mapss.json --out runs/histograms

[fig:pm_ps_histograms] and [fig:combined_histograms]: histograms of the frame scores, of their
truncation radius and of their half-width at 95 %, for every scenario, and the numbers the paper
tells of them: share of frames near 0 and 1, mean radius against mean half-width, share of PM's
half-widths near 0, share of frames whose radius exceeds 1.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import toolkit
from numpy.typing import NDArray

FIELDS = ("ps", "pm", "ps_radius", "pm_radius", "ps_tail", "pm_tail")
TITLES = ("score", "radius", "half-width (95 %)")
_Array = NDArray[Any]


def summary(values: dict[str, _Array]) -> dict[str, float]:
    """What the paper says in words of its histograms, as numbers."""
    return {
        "frames": len(values["ps"]),
        "PS > 0.9": float((values["ps"] > 0.9).mean()),
        "PS < 0.1": float((values["ps"] < 0.1).mean()),
        "PM > 0.9": float((values["pm"] > 0.9).mean()),
        "PM < 0.1": float((values["pm"] < 0.1).mean()),
        "PS radius": float(values["ps_radius"].mean()),
        "PS half-width": float(values["ps_tail"].mean()),
        "PM radius": float(values["pm_radius"].mean()),
        "PM half-width": float(values["pm_tail"].mean()),
        "PM half-width < 0.01": float((values["pm_tail"] < 0.01).mean()),
        "PM radius > 1": float((values["pm_radius"] > 1.0).mean()),
    }


def draw(found: dict[str, dict[str, _Array]], path: Path) -> None:
    """Two rows, PS and PM; three columns, score, radius and half-width."""
    figure = toolkit.new_figure(9.0, 5.0)
    grid = figure.subplots(2, 3)
    for row, measure in zip(grid, ("ps", "pm")):
        fields = (measure, f"{measure}_radius", f"{measure}_tail")
        for axis, field, title in zip(row, fields, TITLES):
            for k, (scenario, values) in enumerate(found.items()):
                clipped = np.clip(values[field], 0.0, 1.0)
                axis.hist(
                    clipped,
                    bins=40,
                    range=(0.0, 1.0),
                    weights=np.full(len(clipped), 100.0 / max(len(clipped), 1)),
                    histtype="step",
                    color=f"C{k}",
                    label=scenario,
                )
            axis.set(title=f"{measure.upper()} {title}", ylabel="frames (%)", yscale="log")
            axis.grid(alpha=0.3)
    grid[0][0].legend(fontsize=8)
    toolkit.save_figure(figure, path)


def main(arguments: Sequence[str] | None = None) -> list[dict[str, Any]]:
    parser = toolkit.parser(__doc__)
    toolkit.add_scoring(parser)
    options = parser.parse_args(arguments)
    text = ["# Histograms of frame scores and their errors", ""]
    text += [
        f"Frames of {options.manifest.parent.name}, `{options.convention}` convention, "
        + ("every frame." if options.every <= 1 else f"one frame in {options.every}.")
    ]
    rows: list[dict[str, Any]] = []
    for encoder in options.encoders:
        parts: dict[str, list[Any]] = {}
        for output in toolkit.frame_scores(options, encoder, bounds=True):
            parts.setdefault(output.scenario, []).append(output.values)
        found = {
            scenario: {field: np.concatenate([v[field] for v in given]) for field in FIELDS}
            for scenario, given in parts.items()
        }
        here = [
            {"encoder": encoder, "scenario": scenario, **summary(values)}
            for scenario, values in found.items()
        ]
        header = list(here[0])[1:]
        lines = [
            [row["scenario"], str(row["frames"]), *(f"{row[k]:.3f}" for k in header[2:])]
            for row in here
        ]
        text += ["", f"## `{encoder}`", "", toolkit.markdown(header, lines)]
        draw(found, options.out / f"histograms_{encoder}.png")
        rows += here
    toolkit.write_csv(options.out / "histograms.csv", rows)
    toolkit.write_page(options.out / "histograms.md", "\n".join(text))
    print("\n".join(text))
    return rows


if __name__ == "__main__":
    main()
