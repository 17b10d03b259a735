r"""Clearance and fidelity: an output's displacement, split up in diffusion coordinates.

Every output has its own graph: the output, its own reference, the other active references, the
distortions of all these and, where two or more *other* sources are active, the sum of these.
:math:`\psi_i` are the diffusion coordinates of its points [eq:embedding_short] with all columns.
With the output y, its own reference o, the foreign points J (the other active references and their
sum), :math:`e = \psi_y - \psi_o` and :math:`u_j = \psi_j - \psi_o`:

* **clearance** :math:`C = \min(1, \min_J |\psi_y - \psi_j| / |u_j|)`: as far from the other sources
  as the true source is;
* :math:`e = \sum_j c_j u_j + e_{dist}` with :math:`c \ge 0` the non-negative least squares;
  **fidelity** :math:`F = \max(0, 1 - |e_{dist}| / \min_J |u_j|)`. An output that is another source
  has :math:`F = 1`, so F is undefined where C < ``LEAST_CLEARANCE``.

BSS Eval's split into interference and artefacts, per frame and in the geometry of an encoder.

**Where they are defined.** Clearance: wherever another source is active, whether the own source is
or not. In a pause of the own source its reference and distortions stay in the graph of its output
(and of no other), so what leaks into the pause counts, as it does in an energy ratio. Fidelity:
where the own source and another one are active, since a pause holds nothing to be distorted.

**No eigenvectors.** Distances between diffusion coordinates are those between the rows of
:math:`P^t`, weighted by :math:`1/\pi` [eq:diff_euclid_dist_equal_short]. So row i of
:math:`P^t` over :math:`\sqrt\pi` serves as :math:`\psi_i` (it also has the trivial coordinate,
which is 1 in every point and cancels), and only the rows of output and references are needed.

**Gradient.** :math:`|e_{dist}|` is the least value over c, so its derivative is that at c held
fixed: the least squares need no backward pass. Kinks (a source that enters the cone, the nearest
source changing, the caps) have a finite subgradient.
"""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor

from torch_mapss.core import devices
from torch_mapss.core.kernel import gaussian_kernel
from torch_mapss.core.points import Points, joined, presence, refuse_broken
from torch_mapss.core.settings import MapSettings

# Lengths in diffusion coordinates below this are rounding (they are about 1 between sources).
SMALLEST_LENGTH = 1e-10
# Below this clearance the output is practically another source, and its fidelity is meaningless.
LEAST_CLEARANCE = 0.1
# sin² of the angle between a foreign point and the span of the others. Below it the point adds
# nothing.
SMALLEST_PIVOT = 1e-14
# The active sets of S sources are enumerated: 2^S of them.
MOST_SOURCES = 14
SOLVER_BYTES = 2**25


class Graphs(NamedTuple):
    """One graph per output and frame, G = F * S'.

    Fewer where values may be read: while one source plays alone nothing can leak into its own
    output, so that graph is left out.

    Points come in the order output, references, sum of the others (if any), distortions.
    """

    kernel: Tensor  # (G, N, N), 0 at absent points; differentiable
    present: Tensor  # (G, N) bool
    own: Tensor  # (G,) source of the output
    own_active: Tensor  # (G,) bool
    foreign: Tensor  # (G, J) bool, which of the references and of the sum are foreign points
    defined: Tensor  # (G,) bool: another source is active, and the bandwidth is not zero
    flat_index: Tensor  # (G,) int64: frame * S' + output


def decomposition_scores(
    points: Points, settings: MapSettings, may_sync: bool
) -> tuple[dict[str, Tensor], Tensor]:
    """Results of :func:`decomposed` (F, S') by name; a score function of ``frame_batches``.

    Reads ``alpha`` and ``time`` of ``settings``; ``time`` must be a whole number.

    Raises:
        ValueError: ``time`` is not a whole number, there are more than ``MOST_SOURCES`` sources, or
            (where values may be read) embeddings are not finite.
    """
    steps = checked_steps(settings.time, points.references.shape[1])
    graphs, needs_values = output_graphs(points, may_sync)
    scores = decomposed(graphs, graphs.present.unsqueeze(1), settings.alpha, steps)
    scores = {name: spread(x.squeeze(1), graphs.flat_index, points) for name, x in scores.items()}
    return scores, needs_values


def spread(values: Tensor, index: Tensor, points: Points) -> Tensor:
    """Scatter values (G, ...) of graphs to all outputs (F, S', ...), 0 where there is no graph.

    Args:
        values: (G, ...) values of the graphs.
        index: (G,) see :class:`Graphs`.
        points: points that the graphs were made from.
    """
    frames, outputs = points.outputs.shape[:2]
    if len(values) < frames * outputs:
        blank = values.new_zeros(frames * outputs, *values.shape[1:])
        values = blank.index_copy(0, index, values)
    return values.unflatten(0, (frames, outputs))


def checked_steps(time: float, sources: int) -> int:
    """``time`` as a number of steps.

    Raises:
        ValueError: not a whole number, or more sources than can be enumerated.
    """
    if time != int(time):
        raise ValueError(
            f"clearance and fidelity need a whole number of diffusion steps, got time={time}. "
            "Use 1, 2, 3, ..., or other measures."
        )
    if sources > MOST_SOURCES:
        raise ValueError(
            f"clearance and fidelity take at most {MOST_SOURCES} sources, got {sources}. Leave "
            "these measures out, or score fewer references at a time."
        )
    return int(time)


# --------------------------------------------------------------------------------------------
# Points -> kernels
# --------------------------------------------------------------------------------------------


def output_graphs(points: Points, may_sync: bool) -> tuple[Graphs, Tensor]:
    """Kernel of each output's own graph, and () bool ``needs_values`` (see ``frame_batches``)."""
    frames, sources = points.references.shape[:2]
    outputs = len(points.attributed)
    if sources < 3:  # the sum of one other source is that source
        points = points._replace(others=None)
    present, foreign = _presence(points)
    own = devices.upload(points.attributed, points.device).repeat(frames)
    active, _ = presence(points)
    own_active = devices.select(active, points.attributed, 1).flatten()
    index = torch.arange(len(own), device=own.device)

    # Embeddings (G, n, M) of the output, references, sum of the others, and distortions.
    common = points.references, points.distortions.flatten(1, 2)
    references, distortions = (x.unsqueeze(1).expand(-1, outputs, -1, -1) for x in common)
    point_groups = [points.outputs.unsqueeze(2), references]
    if points.others is not None:
        point_groups.append(devices.select(points.others, points.attributed, 1).unsqueeze(2))
    point_groups = [group.flatten(0, 1) for group in (*point_groups, distortions)]

    if points.active is not None and may_sync:
        needed = foreign.any(-1).nonzero().squeeze(-1)
        if 0 < len(needed) < len(foreign):
            point_groups = [x.index_select(0, needed.to(x.device)) for x in point_groups]
            flags = present, foreign, own, own_active, index
            present, foreign, own, own_active, index = (x.index_select(0, needed) for x in flags)

    x, broken = joined(point_groups, present)
    if may_sync:  # by role, so that the first broken point can be named
        by_frame = spread(broken, index, points)
        first_member = 1 + sources + (points.others is not None)
        references = by_frame[..., 1 : 1 + sources].any(1)
        members = by_frame[..., first_member:].any(1)
        refuse_broken(torch.cat([by_frame[..., 0], references, members], -1), points)
        if points.others is not None and bool(by_frame[..., 1 + sources].any()):
            raise ValueError(
                "others must be finite (and below 1e150), as the other embeddings are."
            )
    else:
        x.masked_fill_(broken.any(-1)[:, None, None], 0.0)
    complete = points.active is None and points.mask is None
    valid = None if complete else present
    kernel, _, degenerate, imprecise = gaussian_kernel(x, point_groups, valid, may_sync)
    defined = foreign.any(-1) & ~degenerate
    graphs = Graphs(kernel, present, own, own_active, foreign, defined, index)
    return graphs, broken.any() | imprecise.any()


def _presence(points: Points) -> tuple[Tensor, Tensor]:
    """Masks: points that are present (G, N); references and sum that are foreign (G, J)."""
    active, _ = presence(points)
    attributed = devices.upload(points.attributed, points.device)
    source_index = torch.arange(active.shape[-1], device=active.device)
    own = source_index == attributed.unsqueeze(-1)  # (S', S)
    foreign = active.unsqueeze(1) & ~own  # (F, S', S)
    output = active.any(-1)[:, None, None].expand(-1, len(own), 1)
    # The own source stays in the graph during its pauses; every other source leaves it in its own.
    references = foreign | (own & output)
    members = references.unsqueeze(-1).expand(*references.shape, points.distortions.shape[2])
    if points.mask is not None:
        members = members & points.mask.unsqueeze(1)
    is_present = [output, references]
    if points.others is not None:
        several = foreign.sum(-1, keepdim=True) >= 2
        is_present.append(several)
        foreign = torch.cat([foreign, several], -1)
    is_present.append(members.flatten(2))
    return torch.cat(is_present, -1).flatten(0, 1), foreign.flatten(0, 1)


# --------------------------------------------------------------------------------------------
# Kernels -> coordinates -> scores
# --------------------------------------------------------------------------------------------


def coordinates(kernel: Tensor, keep: Tensor, rows: int, alpha: float, steps: int) -> Tensor:
    """The first ``rows`` rows of P^t over √π (G, L, rows, N) of a kernel (G, N, N).

    ``keep`` (G, L, N) bool marks the points present in each of L versions of a graph.
    """
    zero = kernel.new_zeros(())
    weight = keep.to(kernel.dtype)
    density = torch.where(keep, weight @ kernel, 1.0)  # the kernel is symmetric
    w = torch.where(keep, density.pow(-alpha), zero)
    degree = torch.where(keep, w * (w @ kernel), 1.0)
    present = torch.where(keep, degree, zero)
    stationary = present / present.sum(-1, keepdim=True).clamp(min=SMALLEST_LENGTH)
    row_factor, column_factor = w / degree, w
    p = row_factor[..., :rows, None] * kernel[:, None, :rows] * column_factor.unsqueeze(-2)
    for _ in range(steps - 1):
        p = ((p * row_factor.unsqueeze(-2)) @ kernel.unsqueeze(1)) * column_factor.unsqueeze(-2)
    scale = torch.where(keep, stationary, 1.0).rsqrt() * weight
    return p * scale.unsqueeze(-2)


def decomposed(graphs: Graphs, keep: Tensor, alpha: float, steps: int) -> dict[str, Tensor]:
    """Scores of L subsets of the points on one kernel.

    Args:
        graphs: graphs of the outputs.
        keep: (G, L, N) bool, points of each subset.
        alpha: density exponent.
        steps: diffusion time t.

    Returns:
        (G, L) by name: ``clearance`` and ``fidelity`` in [0, 1]; ``distortion_ratio``, which is
        ``|e_dist| / min |u_j|`` without a cap, used in training; all 0 where undefined. And masks:
        ``clearance_defined`` (another source is active), ``distortion_ratio_defined`` (the own one
        too), ``fidelity_defined`` (and clearance is at least ``LEAST_CLEARANCE``).
    """
    # Displacements e (G, L, N) and u (G, L, J, N). The own reference is picked by a one-hot sum.
    count = graphs.foreign.shape[-1]
    psi = coordinates(graphs.kernel, keep, 1 + count, alpha, steps)
    output, others = psi[:, :, 0], psi[:, :, 1:]
    picked = torch.arange(count, device=psi.device) == graphs.own.unsqueeze(-1)
    own = (others * picked[:, None, :, None]).sum(2)
    e, u = output - own, others - own.unsqueeze(2)

    foreign = graphs.foreign.unsqueeze(1)
    length = _length(u)  # (G, L, J)
    nearest = torch.where(foreign, length, torch.inf).amin(-1)
    defined = graphs.defined.unsqueeze(1) & (nearest >= SMALLEST_LENGTH)
    nearest = torch.where(defined, nearest, 1.0)
    usable = foreign & defined.unsqueeze(-1)
    length = torch.where(usable, length, 1.0)

    apart = _length(torch.where(usable.unsqueeze(-1), e.unsqueeze(2) - u, 0.0)) / length
    clearance = torch.where(usable, apart, torch.inf).amin(-1)
    clearance = torch.where(clearance < 1.0 - SMALLEST_LENGTH, clearance, 1.0)

    e = torch.where(defined.unsqueeze(-1), e, 0.0)
    leaked = nonnegative_least_squares(u.detach(), e.detach(), usable)
    ratio = _length(e - (leaked.unsqueeze(-1) * u).sum(2)) / nearest
    fidelity = torch.where(ratio < 1.0, 1.0 - ratio, 0.0)

    ratio_defined = defined & graphs.own_active.unsqueeze(-1)
    fidelity_defined = ratio_defined & (clearance >= LEAST_CLEARANCE)
    return {
        "clearance": torch.where(defined, clearance, 0.0),
        "fidelity": torch.where(fidelity_defined, fidelity, 0.0),
        "distortion_ratio": torch.where(ratio_defined, ratio, 0.0),
        "clearance_defined": defined,
        "fidelity_defined": fidelity_defined,
        "distortion_ratio_defined": ratio_defined,
    }


def _length(x: Tensor) -> Tensor:
    """``|x|`` along the last dimension; below ``SMALLEST_LENGTH`` 0, with derivative 0."""
    squared = x.square().sum(-1)
    real = squared > SMALLEST_LENGTH**2
    return torch.where(real, torch.where(real, squared, 1.0).sqrt(), 0.0)


# --------------------------------------------------------------------------------------------
# Non-negative least squares
# --------------------------------------------------------------------------------------------


@torch.no_grad()
def nonnegative_least_squares(u: Tensor, e: Tensor, present: Tensor) -> Tensor:
    """c >= 0 that minimises ``|e - sum_j c_j u_j|``, exactly, by trying every active set.

    Gauss-Jordan elimination of the normal equations of unit vectors, each step once with and once
    without a column, so that J steps solve all 2^J subsets. The solution is the subset that meets
    the conditions of Karush, Kuhn and Tucker: no coefficient below 0, and no column left out along
    which the residual still falls. Linearly dependent subsets are skipped, since an independent
    subset does as well.

    Args:
        u: (..., J, N) float64.
        e: (..., N).
        present: (..., J) bool; absent columns have coefficient 0.

    Returns:
        (..., J), without gradient.
    """
    lead, j = present.shape[:-1], present.shape[-1]
    length = torch.where(present, _length(u), 0.0)
    usable = length > 0.0
    length = torch.where(usable, length, 1.0)
    unit = torch.where(usable.unsqueeze(-1), u / length.unsqueeze(-1), 0.0)
    gram = unit @ unit.mT
    table = torch.cat([gram, unit @ e.unsqueeze(-1)], -1).reshape(-1, j, j + 1)
    row_index = torch.arange(j, device=table.device)
    subset = torch.arange(2**j, device=table.device)  # k belongs to those whose bit k is set
    members = (subset.unsqueeze(-1) >> row_index) % 2 == 1
    size = max(1, SOLVER_BYTES // (2**j * (j + 1) * 24))
    solutions = []
    for tables, allowed in zip(table.split(size), usable.reshape(-1, j).split(size)):
        tables, n = tables.unsqueeze(1), len(tables)
        regular = allowed.new_ones(n, 1)
        for k in range(j):  # the first column left is that of k
            pivot, remaining = tables[..., k, 0], tables[..., 1:]
            fine = allowed[:, None, k] & (pivot > SMALLEST_PIVOT)
            row = remaining[..., k, :] / torch.where(fine, pivot, 1.0).unsqueeze(-1)
            reduced = remaining - tables[..., :1] * row.unsqueeze(-2)
            reduced[..., k, :] = row
            tables = torch.cat([remaining, reduced], 1)
            regular = torch.cat([regular, regular & fine], 1)
        values = tables[..., 0]  # coefficients of members; of the others, the residual's slope
        violation = torch.where(members, -values, values).clamp(min=0.0)
        violation = torch.where(allowed.unsqueeze(1), violation, 0.0).amax(-1)
        best = torch.where(regular, violation, torch.inf).argmin(-1)
        chosen = torch.where(members, values, 0.0).gather(1, best[:, None, None].expand(n, 1, j))
        solutions.append(chosen.squeeze(1).clamp(min=0.0))
    return torch.cat(solutions).reshape(*lead, j) / length
