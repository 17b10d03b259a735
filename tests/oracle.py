"""An independent oracle of the scores: float64 NumPy/SciPy, one frame, an output at a time.

Written from the paper alone (labels in square brackets are its equations), never from the package
it checks. Nothing here is fast, batched or differentiable; that is the point.

Two conventions: ``"paper"`` follows the equations as printed; ``"reference"`` follows the released
implementation (``mapss-measures`` 1.1.2) where it differs, in branches that say so.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import mpmath
import numpy as np
import scipy.linalg
import scipy.special
from numpy.typing import ArrayLike, NDArray
from scipy.spatial.distance import cdist, pdist

Array = NDArray[np.float64]

EPSILON = 1e-6  # the Tikhonov ridge of [eq:ps_distance]
TIE = 1e-10  # eigenvalues closer than this at the cut stay together ("paper")


@dataclass
class DiffusionMap:
    """The spectrum and the coordinates of one graph of N points."""

    eigenvalues: Array  # (N-1,) non-trivial, descending, rounding below zero clipped
    d: int  # coordinates retained [eq:truncation_threshold_short]
    stationary: Array  # (N,) π [eq:stat_dist]
    coordinates: Array  # (N, N-1) λ^t u (or λ^t v), all columns
    transition: Array  # (N, N) P [eq:P_short]
    bandwidth: float  # the median of D²

    @property
    def retained(self) -> Array:
        """The first d columns, (N, d) [eq:embedding_trunc_short]."""
        return self.coordinates[:, : self.d]


def retained_dimension(eigenvalues: Array, energy: float, convention: str) -> int:
    """[eq:truncation_threshold_short], over the N-1 non-trivial eigenvalues."""
    final, total = len(eigenvalues), eigenvalues.sum()
    reached = [k for k in range(1, final + 1) if eigenvalues[:k].sum() >= energy * total]
    d = 1 if total <= 0.0 else min([*reached, final])
    while convention == "paper" and d < final and eigenvalues[d - 1] - eigenvalues[d] <= TIE:
        d += 1
    return d


def diffusion_map(
    points: ArrayLike,
    alpha: float = 1.0,
    time: float = 1,
    energy: float = 0.99,
    convention: str = "paper",
) -> DiffusionMap:
    """The diffusion map of (N, M) points, [sec:dm_foundations_moved].

    P is similar to the symmetric S = D^-½ K D^-½: S v = λ v gives P u = λ u with u = D^-½ v, and
    Σ_i π_i u(i)² = 1 for u = v / √π. The trivial vector of S is √π exactly, so S is restricted to
    the complement of √π and its N-1 eigenpairs are the non-trivial ones, ties included.
    """
    x, reference = np.asarray(points, dtype=np.float64), convention == "reference"
    d2 = cdist(x, x, "sqeuclidean")
    method = "lower" if reference else "midpoint"  # of an even number of pairs
    bandwidth = float(np.quantile(pdist(x, "sqeuclidean"), 0.5, method=method))
    # [eq:K]; a zero bandwidth is taken as its limit: 1 for equal points, 0 for all others.
    scale = 2.0 * bandwidth if reference else bandwidth
    kernel = np.exp(-d2 / scale) if scale else np.where(d2 == 0.0, 1.0, 0.0)

    v = kernel.sum(axis=1)
    kernel = kernel / np.outer(v, v) ** alpha  # [eq:K_alpha_short]
    degree = kernel.sum(axis=1)
    pi = degree / degree.sum()  # [eq:stat_dist]

    symmetric = kernel / np.sqrt(np.outer(degree, degree))
    complement = scipy.linalg.null_space(np.sqrt(pi)[None, :])  # (N, N-1), orthonormal
    lam, w = scipy.linalg.eigh(complement.T @ symmetric @ complement)
    lam, vectors = np.maximum(lam[::-1], 0.0), complement @ w[:, ::-1]
    coordinates = vectors * lam**time  # [eq:embedding_short]
    if not reference:
        coordinates = coordinates / np.sqrt(pi)[:, None]
    # Equal points have equal rows of K, hence equal coordinates wherever λ > 0: say so exactly, so
    # that "the cluster has collapsed" is a question of exact zeros and not of rounding.
    coordinates = coordinates[(d2 == 0.0).argmax(1)]
    d, transition = retained_dimension(lam, energy, convention), kernel / degree[:, None]
    return DiffusionMap(lam, d, pi, coordinates, transition, bandwidth)


def diffusion_distances(transition: Array, stationary: Array, time: int) -> Array:
    """D_t(i, j)² by explicit powers of P, [eq:diff_distance_short]; (N, N)."""
    power = np.linalg.matrix_power(transition, time) / np.sqrt(stationary)
    return cdist(power, power, "sqeuclidean")


@dataclass
class Frame:
    """The diffusion map of one frame, with the rows of every party."""

    map: DiffusionMap
    attributed: list[int]  # source of each output, also of those left out
    output_row: dict[int, int]  # output -> row, present outputs only
    reference_row: dict[int, int]  # source -> row, active sources only
    distortion_rows: dict[int, list[int]]  # source -> rows of its distortions

    @property
    def sources(self) -> list[int]:
        return sorted(self.reference_row)

    def cluster_rows(self, source: int) -> list[int]:
        """The rows of C_j: the reference and its distortions, without the output [eq:cluster]."""
        return [self.reference_row[source], *self.distortion_rows[source]]


def embed_frame(
    outputs: ArrayLike,
    references: ArrayLike,
    distortions: ArrayLike,
    attributed: Sequence[int] | None = None,
    active: ArrayLike | None = None,
    mask: ArrayLike | None = None,
    **options: Any,
) -> Frame | None:
    """Embed a frame: outputs (S', M), references (S, M), distortions (S, P, M).

    Only active sources, their outputs and their unmasked distortions are points of the graph, in
    the order outputs, references, distortions. None if fewer than two sources are active.
    """
    out, ref, dist = (np.asarray(x, dtype=np.float64) for x in (outputs, references, distortions))
    owner = list(range(len(out))) if attributed is None else [int(s) for s in attributed]
    on = np.ones(len(dist), bool) if active is None else np.asarray(active, bool)
    present = np.ones(dist.shape[:2], bool) if mask is None else np.asarray(mask, bool)
    if on.sum() < 2:
        return None
    custom = [o for o, s in enumerate(owner) if on[s]]
    sources = [s for s in range(len(dist)) if on[s]]
    counts = [int(present[s].sum()) for s in sources]
    assert min(counts) > 0, "an active source has no distortion left"
    points = np.concatenate([out[custom], ref[sources], *(dist[s][present[s]] for s in sources)])
    row = iter(range(len(points)))
    rows = [dict(zip(custom, row)), dict(zip(sources, row))]
    members = {s: [next(row) for _ in range(n)] for s, n in zip(sources, counts)}
    return Frame(diffusion_map(points, **options), owner, *rows, members)


def cluster_statistics(points: Array) -> tuple[Array, Array]:
    """Mean (d,) and unbiased covariance (d, d) of points (n, d), [eq:mu]."""
    return points.mean(axis=0), np.atleast_2d(np.cov(points, rowvar=False))


def squared_mahalanobis(delta: Array, covariance: Array) -> float:
    """Δᵀ(Σ + εI)⁻¹Δ, [eq:ps_distance]."""
    ridged = covariance + EPSILON * np.eye(len(covariance))
    return max(float(delta @ np.linalg.solve(ridged, delta)), 0.0)


def distance(squared: float, convention: str) -> float:
    """d_M from d_M²; the reference implementation adds 1e-6 under the root."""
    return math.sqrt(squared + 1e-6) if convention == "reference" else math.sqrt(squared)


@dataclass
class Separation:
    """Per output, NaN (and -1) where its source is not scored in this frame."""

    A: Array  # distance to the own cluster
    B: Array  # distance to the closest foreign cluster
    closest: NDArray[np.int64]  # j*
    ps: Array


def separation(*points: ArrayLike, convention: str = "paper", **options: Any) -> Separation:
    """PS of every output of one frame, [sec:ps]; arguments as for :func:`embed_frame`.

    A zero bandwidth scores 1/2.
    """
    a, b, ps = np.full((3, len(np.asarray(points[0]))), np.nan)
    closest = np.full(len(a), -1, dtype=np.int64)
    frame = embed_frame(*points, convention=convention, **options)
    for o, row in frame.output_row.items() if frame else ():
        custom, psi, to = frame.attributed[o], frame.map.retained, {}
        for j in frame.sources:
            mean, covariance = cluster_statistics(psi[frame.cluster_rows(j)])
            to[j] = distance(squared_mahalanobis(psi[row] - mean, covariance), convention)
        closest[o] = min((j for j in frame.sources if j != custom), key=to.__getitem__)
        a[o], b[o] = to[custom], to[int(closest[o])]
        ps[o] = b[o] / (a[o] + b[o]) if a[o] + b[o] > 0.0 else 0.5  # [eq:PS_final]
        if convention == "reference":
            ps[o] = min(max(1.0 - a[o] / (a[o] + b[o] + 1e-6), 0.0), 1.0)
        if frame.map.bandwidth == 0.0:
            a[o], b[o], ps[o] = 0.0, 0.0, 0.5
    return Separation(a, b, closest, ps)


@dataclass
class Match:
    """Per output, NaN where its source is not scored in this frame."""

    pm: Array
    log_pm: Array


def match(*points: ArrayLike, convention: str = "paper", **options: Any) -> Match:
    """PM of every output of one frame, [sec:pm]; arguments as for :func:`embed_frame`."""
    pm, log_pm = np.full((2, len(np.asarray(points[0]))), np.nan)
    frame = embed_frame(*points, convention=convention, **options)
    for o, row in frame.output_row.items() if frame else ():
        s, psi = frame.attributed[o], frame.map.retained
        centre = psi[frame.reference_row[s]]
        deviations = psi[frame.distortion_rows[s]] - centre
        g, a = match_distances(deviations, psi[row] - centre, convention)
        pm[o], log_pm[o] = match_score(a, *gamma_moments(g), convention)
        if frame.map.bandwidth == 0.0:  # the collapse rule, for a perfect output and any other
            same = np.array_equal(psi[row], centre)
            pm[o], log_pm[o] = (1.0, 0.0) if same else (0.0, -math.inf)
    return Match(pm, log_pm)


def match_distances(
    deviations: Array, output: Array, convention: str = "paper"
) -> tuple[Array, float]:
    """G [eq:set_of_sq_mahal] and a, from deviations (P, d) and output (d,) about the reference."""
    covariance = deviations.T @ deviations / (len(deviations) - 1)  # [eq:cov_pm]
    extra = 1e-6 if convention == "reference" else 0.0  # its distance is sqrt(d² + 1e-6)
    *g, a = (squared_mahalanobis(x, covariance) + extra for x in (*deviations, output))
    return np.array(g), a


def gamma_moments(g: Array) -> tuple[float, float]:
    """(k, θ) of [eq:gamma_matching]; (NaN, NaN) if the mean or the variance is not positive."""
    mean, variance = float(np.mean(g)), float(np.var(g, ddof=1))  # [eq:stats_pm]
    rounding = len(g) * np.finfo(np.float64).eps * mean
    if mean <= 0.0 or variance <= rounding**2:
        return math.nan, math.nan
    return mean**2 / variance, variance / mean


def match_score(a: float, k: float, theta: float, convention: str = "paper") -> tuple[float, float]:
    """(PM, log PM) [eq:pm_gamma_mm_short], with the rule for a collapsed cluster."""
    if math.isnan(k):
        tolerance = 1e-12 if convention == "reference" else 0.0
        return (1.0, 0.0) if a <= tolerance else (0.0, -math.inf)
    if convention == "reference":
        value = 1.0 - float(scipy.special.gammainc(k, a / theta))
        return value, math.log(value) if value > 0.0 else -math.inf
    return float(scipy.special.gammaincc(k, a / theta)), log_gammaincc(k, a / theta)


def log_gammaincc(k: float, x: float) -> float:
    """log Q(k, x), also where Q underflows: there by arbitrary precision."""
    q = float(scipy.special.gammaincc(k, x))
    if q > 0.5:
        return math.log1p(-float(scipy.special.gammainc(k, x)))
    if q > 1e-250:
        return math.log(q)
    return float(mpmath.log(mpmath.gammainc(k, x, mpmath.inf, regularized=True)))
