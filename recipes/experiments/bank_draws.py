"""How far do clearance and fidelity depend on which distortions are drawn, and do bounds cover it?

    python recipes/experiments/bank_draws.py --manifest FOLDER/mapss.json --out runs/draws

Banks of 10, 20 and 35 members are drawn at random from the 70 of PS's bank, the same for all
sources. The half-width of `functional.decomposition_bounds` at 95 % holds where a draw's score is
no further than that from the mean over all draws. Drawn without replacement from 70 members, these
banks differ less than independently drawn ones would.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import toolkit
import torch
import variants
from torch import Tensor

from torch_mapss.bounds.frames import decomposition_errors
from torch_mapss.bounds.settings import BoundSettings
from torch_mapss.core.decomposition import decomposition_scores
from torch_mapss.core.frame_batches import run
from torch_mapss.core.points import Points
from torch_mapss.core.settings import MapSettings

SIZES = (10, 20, 35)
DRAWS, BOUNDED = 40, 8  # draws, and the number of those whose half-widths are computed
KINDS = ("clearance", "fidelity")


def drawn(points: Points, size: int, generator: torch.Generator) -> Points:
    """The points with ``size`` of their members."""
    index = torch.randperm(points.distortions.shape[2], generator=generator)[:size]
    mask = None if points.mask is None else points.mask[:, :, index]
    return points._replace(distortions=points.distortions[:, :, index], mask=mask)


class Coverage(NamedTuple):
    """How one score varies over draws, and how far its half-widths cover that."""

    spreads: Tensor  # (frames of all outputs,) standard deviation over draws
    half_widths: Tensor  # (bounded draws and frames of all outputs,)
    holds: Tensor  # (as half_widths,) 1 where the half-width holds, else 0


def covered(points_of_outputs: Sequence[Points], size: int) -> dict[str, Coverage]:
    """Kind -> coverage of banks with ``size`` members, over the frames of all outputs."""
    spreads: dict[str, list[Tensor]] = {kind: [] for kind in KINDS}
    half_widths: dict[str, list[Tensor]] = {kind: [] for kind in KINDS}
    holds: dict[str, list[Tensor]] = {kind: [] for kind in KINDS}
    bounded = decomposition_errors(BoundSettings(confidence=0.95), scores=True)
    for points in points_of_outputs:
        generator = torch.Generator().manual_seed(toolkit.SEED)
        draws = [drawn(points, size, generator) for _ in range(DRAWS)]
        scores = [run(draw, MapSettings(), bounded) for draw in draws[:BOUNDED]]
        scores += [run(draw, MapSettings(), decomposition_scores) for draw in draws[BOUNDED:]]
        defined = torch.stack([of_draw["fidelity_defined"] for of_draw in scores]).all(0)
        for kind in KINDS:
            values = torch.stack([of_draw[kind] for of_draw in scores])[:, defined]
            spreads[kind].append(values.std(0))
            for value, of_draw in zip(values[:BOUNDED], scores):
                half_width = of_draw[f"{kind}_tail"][defined]
                half_widths[kind].append(half_width)
                holding = (value - values.mean(0)).abs() <= half_width + 1e-6
                holds[kind].append(holding.double())
    coverage = {}
    for kind in KINDS:
        tensors = spreads[kind], half_widths[kind], holds[kind]
        coverage[kind] = Coverage(*map(torch.cat, tensors))
    return coverage


def main(arguments: Sequence[str] | None = None) -> list[list[str]]:
    parser = toolkit.parser(__doc__, without=("--convention", "--bank-size"))
    options = parser.parse_args(arguments)
    lines = []
    for encoder in options.encoders:
        mapss = variants.scorer(encoder, options.device)
        points_of_outputs = []
        for mixture in toolkit.load_mixtures(options, mapss.grid.sample_rate, systems=True):
            reference = variants.prepared(mapss, mixture.references)
            for _, source_index, output in mixture.outputs():
                points = variants.points_of(reference, output, source_index, options.sample_frames)
                points_of_outputs.append(points)
        for size in SIZES:
            for kind, coverage in covered(points_of_outputs, size).items():
                spread, half_width, holds = (float(values.mean()) for values in coverage)
                cells = [f"{spread:.4f}", f"{half_width:.4f}", f"{100 * holds:.1f} %"]
                lines.append([encoder, str(size), kind, *cells])
    frames = sum(len(points.outputs) for points in points_of_outputs)
    about = (
        f"{frames} frames of {len(points_of_outputs)} outputs of "
        f"`{options.manifest.parent.name}`, {DRAWS} draws, half-widths of {BOUNDED} of them; "
        "nominal 95 %."
    )
    head = toolkit.page_head("Other draws of the distortions", __file__, arguments, about)
    header = ["encoder", "distortions", "", "standard deviation", "mean half-width", "holds"]
    toolkit.finish(options, "bank_draws", [*head, "", toolkit.markdown(header, lines)])
    return lines


if __name__ == "__main__":
    main()
