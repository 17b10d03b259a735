"""PS over its two distances, and PM over two of its three parameters [fig:pm_ps_2x2].

    python recipes/experiments/surfaces.py --out runs/surfaces

PS = B/(A + B) [eq:PS_final] over A and B; PM = Q(k, a/θ) [eq:pm_gamma_mm_short] with θ, a or k at
1; contours at 0.25, 0.5 and 0.75. Needs no audio.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import toolkit
import torch
from torch import Tensor

from torch_mapss.functional import gammaincc

LEVELS = (0.25, 0.5, 0.75)
TOP = 10.0


class Surface(NamedTuple):
    """A measure over two parameters."""

    title: str
    x: str  # name of the horizontal parameter
    y: str
    axis: Tensor  # (n,) values of both parameters
    values: Tensor  # (n, n), [vertical, horizontal]


def surfaces(points: int) -> list[Surface]:
    """The four of the figure; the origin, where PS is undefined, is left out."""
    axis = torch.linspace(TOP / points, TOP, points, dtype=torch.float64)
    across, up = axis[None, :], axis[:, None]
    made = [Surface("PS", "A", "B", axis, up / (across + up))]
    for fixed in ("θ", "a", "k"):
        x, y = (name for name in ("a", "k", "θ") if name != fixed)
        values_of = {fixed: torch.ones_like(across), x: across, y: up}
        shape, scaled = torch.broadcast_tensors(values_of["k"], values_of["a"] / values_of["θ"])
        values = gammaincc(shape, scaled).expand(points, points)
        made.append(Surface(f"PM, {fixed} = 1", x, y, axis, values))
    return made


def main(arguments: Sequence[str] | None = None) -> list[Surface]:
    parser = toolkit.parser(__doc__, manifest=False, scoring=False)
    parser.add_argument(
        "--points", type=int, default=200, help="along each axis (default: %(default)s)"
    )
    options = parser.parse_args(arguments)
    four = surfaces(options.points)
    figure = toolkit.new_figure(8.0, 6.6)
    lines = []
    for axis, surface in zip(figure.subplots(2, 2).flat, four):
        grid = surface.axis.numpy(), surface.axis.numpy(), surface.values.numpy()
        shown = axis.pcolormesh(*grid, vmin=0, vmax=1, shading="auto", rasterized=True)
        axis.clabel(axis.contour(*grid, levels=LEVELS, colors="white", linewidths=1), fmt="%g")
        axis.set(title=surface.title, xlabel=surface.x, ylabel=surface.y)
        figure.colorbar(shown, ax=axis)
        corners = surface.values[[0, 0, -1, -1], [0, -1, 0, -1]]
        cells = [f"{value:.4f}" for value in corners.tolist()]
        lines.append([surface.title, surface.x, surface.y, *cells])
    toolkit.save_figure(figure, options.out / "surfaces.png")
    header = ["surface", "x", "y", "low x, low y", "high x, low y", "low x, high y", "high, high"]
    head = toolkit.page_head("PS and PM as functions", __file__, arguments, "Corners:")
    toolkit.finish(options, "surfaces", [*head, "", toolkit.markdown(header, lines)])
    return four


if __name__ == "__main__":
    main()
