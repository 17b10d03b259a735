"""PS over its two distances, and PM over two of its three parameters [fig:pm_ps_2x2].

    python recipes/experiments/surfaces.py --out runs/surfaces

PS = B/(A + B) [eq:PS_final] over A and B, with contours at 0.25, 0.5 and 0.75; PM = Q(k, a/θ)
[eq:pm_gamma_mm_short] with θ, a or k held at 1. Needs no audio. Writes the figure and the corner
values as CSV and Markdown.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import toolkit
import torch
from torch import Tensor

from torch_mapss.functional import gammaincc

LEVELS = (0.25, 0.5, 0.75)


class Surface(NamedTuple):
    """A measure over two parameters."""

    title: str
    x: str  # name of the horizontal parameter
    y: str
    horizontal: Tensor  # (n,)
    vertical: Tensor  # (n,)
    values: Tensor  # (n, n), [vertical, horizontal]


def separation(points: int, top: float = 10.0) -> Surface:
    """PS over A (horizontal) and B; undefined at the origin, which is left out."""
    axis = torch.linspace(top / points, top, points, dtype=torch.float64)
    a, b = axis[None, :], axis[:, None]
    return Surface("PS", "A", "B", axis, axis, b / (a + b))


def match(fixed: str, points: int, top: float = 10.0) -> Surface:
    """PM with one of θ, a, k held at 1."""
    axis = torch.linspace(top / points, top, points, dtype=torch.float64)
    free = [name for name in ("a", "k", "θ") if name != fixed]
    given = {fixed: torch.ones((), dtype=torch.float64)}
    given |= {free[0]: axis[None, :], free[1]: axis[:, None]}
    shape, scaled = torch.broadcast_tensors(given["k"], given["a"] / given["θ"])
    values = gammaincc(shape, scaled).expand(points, points)
    return Surface(f"PM, {fixed} = 1", *free, axis, axis, values)


def surfaces(points: int) -> list[Surface]:
    """The four of the figure."""
    return [separation(points), *(match(name, points) for name in ("θ", "a", "k"))]


def corners(found: Sequence[Surface]) -> list[list[str]]:
    """What each surface is at its four corners."""
    lines = []
    for surface in found:
        cells = [f"{surface.values[row, column]:.4f}" for row in (0, -1) for column in (0, -1)]
        lines.append([surface.title, surface.x, surface.y, *cells])
    return lines


def main(arguments: Sequence[str] | None = None) -> list[Surface]:
    parser = toolkit.parser(__doc__, manifest=False)
    parser.add_argument("--points", type=int, default=200, help="on each axis")
    options = parser.parse_args(arguments)
    found = surfaces(options.points)
    figure = toolkit.new_figure(8.0, 6.6)
    for axis, surface in zip(figure.subplots(2, 2).flat, found):
        grid = surface.horizontal.numpy(), surface.vertical.numpy(), surface.values.numpy()
        shown = axis.pcolormesh(*grid, vmin=0, vmax=1, shading="auto", rasterized=True)
        lines = axis.contour(*grid, levels=LEVELS, colors="white", linewidths=1)
        axis.clabel(lines, fmt="%g")
        axis.set(title=surface.title, xlabel=surface.x, ylabel=surface.y)
        figure.colorbar(shown, ax=axis)
    toolkit.save_figure(figure, options.out / "surfaces.png")
    header = ["surface", "x", "y", "low x, low y", "high x, low y", "low x, high y", "high, high"]
    lines = corners(found)
    table = toolkit.markdown(header, lines)
    toolkit.write_page(options.out / "surfaces.md", f"# PS and PM as functions\n\n{table}")
    csv = "\n".join(",".join(f'"{cell}"' for cell in line) for line in [header, *lines])
    toolkit.write_page(options.out / "surfaces.csv", csv)
    print(table)
    return found


if __name__ == "__main__":
    main()
