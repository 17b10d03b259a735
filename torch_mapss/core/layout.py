r"""PS and PM of system outputs: where they fall among the clusters of a diffusion map.

The cluster of source j is its reference and distortions (outputs are points of the graph, but
never of a cluster). All clusters of all frames are handled in one batch: absent points and
inactive sources carry weight 0, and coordinates beyond a frame's d are zero in every point, so
with the ridge :math:`\Sigma + \epsilon I` they change no distance. Each ridge matrix is
factorised once, by Cholesky, for all its right sides: with :math:`LL^T = \Sigma + \epsilon I`,
:math:`\Delta^T(\Sigma + \epsilon I)^{-1}\Delta = |L^{-1}\Delta|^2`.
"""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor

from torch_mapss.core import devices


class Layout(NamedTuple):
    """Which rows of a frame's points are what, and which of them are there."""

    attributed: tuple[int, ...]  # source of each output
    sources: int
    distortions: int  # of each source
    active: Tensor | None  # (F, S)
    mask: Tensor | None  # (F, S, P)

    @property
    def outputs(self) -> int:
        return len(self.attributed)

    def source_index(self, device: torch.device) -> Tensor:
        """(S',) the source of each output."""
        return devices.placed(self.attributed, device)

    def of_outputs(self, values: Tensor, dim: int = 1) -> Tensor:
        """Values of sources (S along ``dim``) as values of the source of each output (S')."""
        return devices.picked(values, dim, self.attributed)


# --------------------------------------------------------------------------------------------
# Points and clusters
# --------------------------------------------------------------------------------------------


def presence(layout: Layout, frames: int, device: torch.device) -> tuple[Tensor, Tensor]:
    """Active sources (F, S) and present cluster points (F, S, P+1), reference first."""
    active = layout.active
    if active is None:
        active = torch.ones(frames, layout.sources, dtype=torch.bool, device=device)
    present = active.unsqueeze(-1).expand(frames, layout.sources, layout.distortions + 1)
    if layout.mask is not None:
        there = torch.nn.functional.pad(layout.mask, (1, 0), value=True)
        present = present & there
    return active, present


def point_validity(layout: Layout, frames: int, device: torch.device) -> Tensor | None:
    """(F, N) which points enter the graph, in the order outputs, references, distortions."""
    if layout.active is None and layout.mask is None:
        return None
    active, present = presence(layout, frames, device)
    parts = layout.of_outputs(active), present[..., 0], present[..., 1:].flatten(1)
    return torch.cat(parts, -1)


def split_points(coordinates: Tensor, layout: Layout) -> tuple[Tensor, Tensor]:
    """Outputs (F, S', D) and clusters (F, S, P+1, D), reference first."""
    s, p = layout.sources, layout.distortions
    outputs, references, distortions = coordinates.split([layout.outputs, s, s * p], -2)
    distortions = distortions.unflatten(-2, (s, p))
    return outputs, torch.cat([references.unsqueeze(-2), distortions], -2)


def scored_outputs(layout: Layout, frames: int, device: torch.device) -> Tensor:
    """(F, S') whether the source of an output is active together with another one."""
    active, _ = presence(layout, frames, device)
    return layout.of_outputs(active) & (active.sum(-1, keepdim=True) >= 2)
