"""An independent oracle of clearance and fidelity: float64 NumPy/SciPy, one output of one frame.

Clearance is defined where another source is active, fidelity where the own one is as well.

Written from the definition alone: explicit powers of P, ``scipy.optimize.nnls``.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray
from oracle import diffusion_map
from scipy.optimize import nnls

Array = NDArray[np.float64]


class Pair(NamedTuple):
    """What an output is given; NaN where it is not defined."""

    clearance: float
    fidelity: float
    ratio: float  # |e_dist| / min |u|


UNDEFINED = Pair(np.nan, np.nan, np.nan)


def diffusion_points(points: Array, alpha: float = 1.0, time: int = 1) -> Array:
    """(N, M) -> (N, N): rows of P^t over √π, whose distances are the diffusion distances."""
    m = diffusion_map(points, alpha)
    return np.linalg.matrix_power(m.transition, time) / np.sqrt(m.stationary)


def pair(
    output: Array,
    references: Array,
    distortions: Array,
    own_source: int,
    *,
    active: Array | None = None,
    mask: Array | None = None,
    others: Array | None = None,
    alpha: float = 1.0,
    time: int = 1,
) -> Pair:
    """Of one output (M,), given references (S, M), distortions (S, P, M) and others (S, M)."""
    s, p, _ = distortions.shape
    active = np.ones(s, bool) if active is None else active
    mask = np.ones((s, p), bool) if mask is None else mask
    other_sources = [j for j in range(s) if active[j] and j != own_source]
    if not other_sources:
        return UNDEFINED
    points = [output, references[own_source], *(references[j] for j in other_sources)]
    if others is not None and len(other_sources) > 1:
        points.append(others[own_source])
    foreign = slice(2, len(points))
    for j in range(s):
        points += [
            distortions[j, k] for k in range(p) if j in (own_source, *other_sources) and mask[j, k]
        ]
    psi = diffusion_points(np.array(points), alpha, time)
    e, u = psi[0] - psi[1], psi[foreign] - psi[1]
    length = np.linalg.norm(u, axis=1)
    if length.min() < 1e-10:
        return UNDEFINED
    clearance = min(1.0, float(np.min(np.linalg.norm(e - u, axis=1) / length)))
    if not active[own_source]:
        return Pair(clearance, np.nan, np.nan)
    ratio = float(nnls(u.T, e)[1] / length.min())
    fidelity = max(0.0, 1.0 - ratio) if clearance >= 0.1 else np.nan
    return Pair(clearance, fidelity, ratio)
