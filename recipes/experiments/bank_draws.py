"""How far do clearance and fidelity depend on which distortions are drawn, and is it foreseen?

    python recipes/experiments/bank_draws.py --manifest FOLDER/mapss.json --out runs/draws

From the 70 members of PS's bank banks of 10, 20 and 35 are drawn at random, the same for all
sources. The half-width of `functional.decomposition_bounds` at 95 % holds where the mean over all
draws lies within it of a draw's score. Drawn without replacement from 70 members, banks differ less
than banks of members drawn from anywhere would.
"""

from __future__ import annotations

from collections.abc import Sequence

import toolkit
import torch
import variants
from torch import Tensor

from torch_mapss.bounds.frames import decomposition_errors
from torch_mapss.bounds.settings import BoundSettings
from torch_mapss.core.decomposition import decomposition_scores
from torch_mapss.core.frame_batches import run
from torch_mapss.core.points import Points
from torch_mapss.core.settings import Settings

SIZES = (10, 20, 35)
DRAWS, BOUNDED = 40, 8  # draws, and how many of them are given half-widths
KINDS = ("clearance", "fidelity")


def drawn(points: Points, size: int, generator: torch.Generator) -> Points:
    """The points with ``size`` of their members."""
    index = torch.randperm(points.distortions.shape[2], generator=generator)[:size]
    mask = None if points.mask is None else points.mask[:, :, index]
    return points._replace(distortions=points.distortions[:, :, index], mask=mask)


def covered(every: Sequence[Points], size: int) -> dict[str, list[Tensor]]:
    """Kind -> spread over draws, half-widths and whether they hold, of all frames."""
    found: dict[str, list[Tensor]] = {f"{kind} {part}": [] for kind in KINDS for part in "swh"}
    bounded = decomposition_errors(BoundSettings(confidence=0.95), scores=True)
    for points in every:
        generator = torch.Generator().manual_seed(toolkit.SEED)
        draws = [drawn(points, size, generator) for _ in range(DRAWS)]
        scores = [run(draw, Settings(), bounded) for draw in draws[:BOUNDED]]
        scores += [run(draw, Settings(), decomposition_scores) for draw in draws[BOUNDED:]]
        defined = torch.stack([one["fidelity_defined"] for one in scores]).all(0)
        for kind in KINDS:
            values = torch.stack([one[kind] for one in scores])[:, defined]
            found[f"{kind} s"].append(values.std(0))
            for value, one in zip(values[:BOUNDED], scores):
                width = one[f"{kind}_tail"][defined]
                found[f"{kind} w"].append(width)
                held = (value - values.mean(0)).abs() <= width + 1e-6
                found[f"{kind} h"].append(held.double())
    return found


def main(arguments: Sequence[str] | None = None) -> list[list[str]]:
    parser = toolkit.parser(__doc__)
    options = parser.parse_args(arguments)
    lines = []
    for encoder in options.encoders:
        mapss = variants.scorer(encoder, options.device)
        every = []
        for mixture in toolkit.load_mixtures(options, mapss.grid.sample_rate, systems=True):
            reference = variants.prepared(mapss, mixture.references)
            for _, place, output in mixture.outputs():
                points = variants.points_of(reference, output, place, options.sample_frames)
                every.append(points)
        for size in SIZES:
            found = covered(every, size)
            for kind in KINDS:
                spread, width, held = (torch.cat(found[f"{kind} {part}"]) for part in "swh")
                cells = [f"{float(spread.mean()):.4f}", f"{float(width.mean()):.4f}"]
                lines.append(
                    [encoder, str(size), kind, *cells, f"{100 * float(held.mean()):.1f} %"]
                )
    frames = sum(len(points.outputs) for points in every)
    about = f"{frames} frames of {len(every)} outputs of `{options.manifest.parent.name}`,"
    about += f" {DRAWS} draws, half-widths of {BOUNDED} of them; nominal 95 %."
    head = toolkit.page_head("Other draws of the distortions", __file__, arguments, about)
    header = ["encoder", "distortions", "", "standard deviation", "mean half-width", "holds"]
    toolkit.finish(options, "bank_draws", [*head, "", toolkit.markdown(header, lines)])
    return lines


if __name__ == "__main__":
    main()
