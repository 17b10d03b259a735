"""An independent oracle of the scores: float64 NumPy/SciPy, one frame, plain loops.

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

import numpy as np
import scipy.linalg
import scipy.special
from numpy.typing import ArrayLike, NDArray

Array = NDArray[np.float64]

EPSILON = 1e-6  # the Tikhonov ridge of [eq:ps_distance]
TIE = 1e-10  # eigenvalues closer than this at the cut stay together ("paper")


# --------------------------------------------------------------------------------------------------
# The manifold
# --------------------------------------------------------------------------------------------------


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


def squared_distances(points: Array) -> Array:
    """(N, M) -> (N, N), by direct differences."""
    n = len(points)
    out = np.zeros((n, n))
    for i in range(n):
        out[i] = np.sum((points - points[i]) ** 2, axis=1)
    return out


def median_of_pairs(d2: Array, convention: str) -> float:
    """The median of D² over pairs i < j; the two conventions differ for an even number of pairs."""
    n = len(d2)
    values = sorted(d2[i, j] for i in range(n) for j in range(i + 1, n))
    count = len(values)
    lower = values[(count - 1) // 2]
    upper = values[count // 2]
    return float(lower) if convention == "reference" else float(0.5 * (lower + upper))


def affinity(d2: Array, bandwidth: float, convention: str) -> Array:
    """[eq:K]; a zero bandwidth is taken as its limit: 1 for equal points, 0 for all others."""
    if bandwidth == 0.0:
        return np.asarray(d2 == 0.0, dtype=np.float64)
    scale = 2.0 * bandwidth if convention == "reference" else bandwidth
    return np.exp(-d2 / scale)


def kept_dimension(eigenvalues: Array, energy: float, convention: str) -> int:
    """[eq:truncation_threshold_short], over the N-1 non-trivial eigenvalues."""
    total = float(np.sum(eigenvalues))
    last = len(eigenvalues)
    d = last
    partial = 0.0
    for k in range(1, last + 1):
        partial += float(eigenvalues[k - 1])
        if total <= 0.0 or partial / total >= energy:
            d = k
            break
    if convention == "paper":
        while d < last and eigenvalues[d - 1] - eigenvalues[d] <= TIE:
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
    x = np.asarray(points, dtype=np.float64)
    n = len(x)
    d2 = squared_distances(x)
    bandwidth = median_of_pairs(d2, convention)
    kernel = affinity(d2, bandwidth, convention)

    v = kernel.sum(axis=1)
    kernel = kernel / np.outer(v, v) ** alpha  # [eq:K_alpha_short]
    degree = kernel.sum(axis=1)
    transition = kernel / degree[:, None]  # [eq:P_short]
    pi = degree / degree.sum()  # [eq:stat_dist]

    symmetric = kernel / np.sqrt(np.outer(degree, degree))
    complement = scipy.linalg.null_space(np.sqrt(pi)[None, :])  # (N, N-1), orthonormal
    lam, w = scipy.linalg.eigh(complement.T @ symmetric @ complement)
    lam = np.maximum(lam[::-1], 0.0)
    vectors = complement @ w[:, ::-1]
    if convention == "paper":
        vectors = vectors / np.sqrt(pi)[:, None]
    coordinates = vectors * lam**time  # [eq:embedding_short]

    # Equal points have equal rows of K, hence equal coordinates wherever λ > 0: say so exactly, so
    # that "the cluster has collapsed" is a question of exact zeros and not of rounding.
    for i in range(n):
        for j in range(i):
            if d2[i, j] == 0.0:
                coordinates[i] = coordinates[j]
                break

    d = kept_dimension(lam, energy, convention)
    return DiffusionMap(lam, d, pi, coordinates, transition, bandwidth)


def diffusion_distances(transition: Array, stationary: Array, time: int) -> Array:
    """D_t(i, j)² by explicit powers of P, [eq:diff_distance_short]; (N, N)."""
    power = np.linalg.matrix_power(transition, time)
    n = len(power)
    out = np.zeros((n, n))
    for i in range(n):
        for j in range(n):
            out[i, j] = np.sum((power[i] - power[j]) ** 2 / stationary)
    return out


# --------------------------------------------------------------------------------------------------
# One frame: who is where among the points
# --------------------------------------------------------------------------------------------------


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
    alpha: float = 1.0,
    time: float = 1,
    energy: float = 0.99,
    convention: str = "paper",
) -> Frame | None:
    """Embed a frame: outputs (S', M), references (S, M), distortions (S, P, M).

    Only active sources, their outputs and their unmasked distortions are points of the graph, in
    the order outputs, references, distortions. None if fewer than two sources are active.
    """
    out = np.asarray(outputs, dtype=np.float64)
    ref = np.asarray(references, dtype=np.float64)
    dist = np.asarray(distortions, dtype=np.float64)
    n_sources, n_distortions = dist.shape[0], dist.shape[1]
    owner = list(range(len(out))) if attributed is None else [int(s) for s in attributed]
    on = np.ones(n_sources, bool) if active is None else np.asarray(active, bool)
    present = np.ones((n_sources, n_distortions), bool) if mask is None else np.asarray(mask, bool)
    if on.sum() < 2:
        return None

    points: list[Array] = []
    output_row, reference_row = {}, {}
    distortion_rows: dict[int, list[int]] = {}
    for o, s in enumerate(owner):
        if on[s]:
            output_row[o] = len(points)
            points.append(out[o])
    for s in range(n_sources):
        if on[s]:
            reference_row[s] = len(points)
            points.append(ref[s])
    for s in range(n_sources):
        if on[s]:
            distortion_rows[s] = []
            for p in range(n_distortions):
                if present[s, p]:
                    distortion_rows[s].append(len(points))
                    points.append(dist[s, p])
            if not distortion_rows[s]:
                raise ValueError(f"active source {s} has no distortion left")
    embedded = diffusion_map(np.stack(points), alpha, time, energy, convention)
    return Frame(embedded, owner, output_row, reference_row, distortion_rows)


# --------------------------------------------------------------------------------------------------
# Perceptual Separation
# --------------------------------------------------------------------------------------------------


def cluster_statistics(points: Array) -> tuple[Array, Array]:
    """Mean (d,) and unbiased covariance (d, d) of points (n, d), [eq:mu]."""
    mean = points.mean(axis=0)
    covariance = np.zeros((points.shape[1], points.shape[1]))
    for psi in points:
        covariance += np.outer(psi - mean, psi - mean)
    return mean, covariance / (len(points) - 1)


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
    d: int
    frame: Frame | None


def separation(
    outputs: ArrayLike,
    references: ArrayLike,
    distortions: ArrayLike,
    convention: str = "paper",
    **options: Any,
) -> Separation:
    """PS of every output of one frame, [sec:ps]; ``options`` as for :func:`embed_frame`.

    A zero bandwidth scores 1/2.
    """
    n_outputs = len(np.asarray(outputs))
    a, b, ps = np.full((3, n_outputs), np.nan)
    closest = np.full(n_outputs, -1, dtype=np.int64)
    frame = embed_frame(outputs, references, distortions, convention=convention, **options)
    if frame is None:
        return Separation(a, b, closest, ps, 0, None)
    psi = frame.map.retained
    for o, row in frame.output_row.items():
        own = frame.attributed[o]
        to = {}
        for j in frame.sources:
            mean, covariance = cluster_statistics(psi[frame.cluster_rows(j)])
            to[j] = distance(squared_mahalanobis(psi[row] - mean, covariance), convention)
        closest[o] = min((j for j in frame.sources if j != own), key=to.__getitem__)
        a[o], b[o] = to[own], to[int(closest[o])]
        ps[o] = separation_score(a[o], b[o], convention)
        if frame.map.bandwidth == 0.0:
            a[o] = b[o] = 0.0
            ps[o] = 0.5
    return Separation(a, b, closest, ps, frame.map.d, frame)


def separation_score(a: float, b: float, convention: str = "paper") -> float:
    """[eq:PS_final]; 1/2 where both distances vanish."""
    if convention == "reference":
        return min(max(1.0 - a / (a + b + 1e-6), 0.0), 1.0)
    return b / (a + b) if a + b > 0.0 else 0.5


# --------------------------------------------------------------------------------------------------
# Perceptual Match
# --------------------------------------------------------------------------------------------------


@dataclass
class Match:
    """Per output, NaN where its source is not scored in this frame."""

    a: Array  # squared distance of the output from its reference
    k: Array  # Gamma shape
    theta: Array  # Gamma scale
    pm: Array
    log_pm: Array
    d: int
    frame: Frame | None


def match(
    outputs: ArrayLike,
    references: ArrayLike,
    distortions: ArrayLike,
    convention: str = "paper",
    **options: Any,
) -> Match:
    """PM of every output of one frame, [sec:pm]; ``options`` as for :func:`embed_frame`."""
    n_outputs = len(np.asarray(outputs))
    a, k, theta, pm, log_pm = np.full((5, n_outputs), np.nan)
    frame = embed_frame(outputs, references, distortions, convention=convention, **options)
    if frame is None:
        return Match(a, k, theta, pm, log_pm, 0, None)
    psi = frame.map.retained
    for o, row in frame.output_row.items():
        s = frame.attributed[o]
        centre = psi[frame.reference_row[s]]
        deviations = psi[frame.distortion_rows[s]] - centre
        g, a[o] = match_distances(deviations, psi[row] - centre, convention)
        k[o], theta[o] = gamma_moments(g)
        pm[o], log_pm[o] = match_score(a[o], k[o], theta[o], convention)
        if frame.map.bandwidth == 0.0:  # the collapse rule, for a perfect output and any other
            same = np.array_equal(psi[row], centre)
            k[o] = theta[o] = math.nan
            pm[o], log_pm[o] = (1.0, 0.0) if same else (0.0, -math.inf)
    return Match(a, k, theta, pm, log_pm, frame.map.d, frame)


def match_distances(
    deviations: Array, output: Array, convention: str = "paper"
) -> tuple[Array, float]:
    """G [eq:set_of_sq_mahal] and a, from deviations (P, d) and output (d,) about the reference."""
    if len(deviations) < 2:
        raise ValueError(f"at least two distortions are needed, got {len(deviations)}")
    covariance = np.zeros((deviations.shape[1], deviations.shape[1]))
    for psi in deviations:
        covariance += np.outer(psi, psi)
    covariance /= len(deviations) - 1  # [eq:cov_pm]
    extra = 1e-6 if convention == "reference" else 0.0  # its distance is sqrt(d² + 1e-6)
    g = np.array([squared_mahalanobis(psi, covariance) + extra for psi in deviations])
    return g, squared_mahalanobis(output, covariance) + extra


def gamma_moments(g: Array) -> tuple[float, float]:
    """(k, θ) of [eq:gamma_matching]; (NaN, NaN) if the mean or the variance is not positive."""
    mean = float(np.mean(g))
    variance = float(np.sum((g - mean) ** 2) / (len(g) - 1))  # [eq:stats_pm]
    rounding = len(g) * np.finfo(np.float64).eps * mean
    if mean <= 0.0 or variance <= rounding**2:
        return math.nan, math.nan
    return mean**2 / variance, variance / mean


def match_score(a: float, k: float, theta: float, convention: str = "paper") -> tuple[float, float]:
    """(PM, log PM) [eq:pm_gamma_mm_short], with the rule for a collapsed cluster."""
    if math.isnan(k):
        tolerance = 1e-12 if convention == "reference" else 0.0
        return (1.0, 0.0) if a <= tolerance else (0.0, -math.inf)
    x = a / theta
    if convention == "reference":
        value = 1.0 - float(scipy.special.gammainc(k, x))
        return value, math.log(value) if value > 0.0 else -math.inf
    return float(scipy.special.gammaincc(k, x)), log_gammaincc(k, x)


def log_gammaincc(k: float, x: float) -> float:
    """log Q(k, x), also where Q underflows.

    There x is far above k, and Q = x^k e^-x / Γ(k) · 1/(x+1-k - 1(1-k)/(x+3-k - 2(2-k)/…)), the
    Legendre continued fraction [DLMF 8.9.2], summed by the modified Lentz method.
    """
    q = float(scipy.special.gammaincc(k, x))
    if q > 0.5:
        return math.log1p(-float(scipy.special.gammainc(k, x)))
    if q > 1e-250:
        return math.log(q)
    if math.isinf(x):
        return -math.inf
    tiny = 1e-300
    b = x + 1.0 - k
    c, d = 1.0 / tiny, 1.0 / b
    h = d
    for i in range(1, 100_000):
        step = -i * (i - k)
        b += 2.0
        d = 1.0 / (step * d + b or tiny)
        c = b + step / c or tiny
        h *= d * c
        if abs(d * c - 1.0) < 1e-16:
            break
    return k * math.log(x) - x - float(scipy.special.gammaln(k)) + math.log(h)
