"""An independent oracle of the bounds: float64 NumPy/SciPy, one frame, plain loops.

Written from the paper's [sec:bounds], [app:conf_bound_pi] and [sec:propagate_ci_to_corr] (labels in
square brackets are its equations) on top of ``oracle``. Conventions: ``"paper"`` as printed,
``"reference"`` as the released implementation, ``"derived"`` the same argument with units, unions
and constants put right.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import scipy.special
import scipy.stats
from numpy.typing import ArrayLike, NDArray
from oracle import EPSILON, DiffusionMap, Frame, cluster_statistics, distance, embed_frame

Array = NDArray[np.float64]

FLOOR = 0.05  # ε_r of the floored eigenvalue λ̃min
EFFECTIVE = 0.7  # n_eff / n, the paper's empirical constant


@dataclass
class Bounds:
    """Per output, NaN where its source is not scored in this frame."""

    radius: Array
    tail: Array

    @property
    def total(self) -> Array:
        """[eq:ps_final_bound], [eq:pm_final_bound]."""
        return self.radius + self.tail


def _frame(points: tuple[ArrayLike, ArrayLike, ArrayLike], convention: str, options: Any) -> Any:
    """The frame's graph; "derived" changes the bounds only, its graph is the paper's."""
    graph = "reference" if convention == "reference" else "paper"
    return embed_frame(*points, convention=graph, **options)


def _all_kept(frame: Frame) -> bool:
    return frame.map.d == len(frame.map.eigenvalues)


# --------------------------------------------------------------------------------------------------
# The Schur complement: what the discarded coordinates add to a squared distance
# --------------------------------------------------------------------------------------------------


@dataclass
class Schur:
    """Second moments of a cluster, in blocks of retained (d) and discarded (m) coordinates."""

    sigma_d: Array  # (d, d), without ridge
    sigma_m: Array  # (m, m), without ridge
    cross: Array  # (d, m)
    ridge_m: float  # what is added to the diagonal of S

    def a(self, delta_d: Array) -> float:
        """The retained part, a of [eq:sq_mahal_to_schur]."""
        return float(delta_d @ np.linalg.solve(self._ridged(), delta_d))

    def b(self, delta_d: Array, delta_m: Array) -> float:
        """The discarded part, b = rᵀS⁻¹r of [eq:sq_mahal_to_schur], with [eq:schur]."""
        if len(delta_m) == 0:
            return 0.0
        r = delta_m - self.cross.T @ np.linalg.solve(self._ridged(), delta_d)
        s = self.sigma_m - self.cross.T @ np.linalg.solve(self._ridged(), self.cross)
        s = s + self.ridge_m * np.eye(len(s))
        return float(r @ np.linalg.solve(s, r))

    def _ridged(self) -> Array:
        return self.sigma_d + EPSILON * np.eye(len(self.sigma_d))


def _second_moment(left: Array, right: Array) -> Array:
    """Σ_p l_p r_pᵀ / (n - 1) over rows."""
    out = np.zeros((left.shape[1], right.shape[1]))
    for row_l, row_r in zip(left, right, strict=True):
        out += np.outer(row_l, row_r)
    return out / (len(left) - 1)


def _ridge_m(convention: str) -> float:
    return EPSILON + 1e-9 if convention == "reference" else EPSILON


def separation_schur(cluster: Array, d: int, convention: str) -> tuple[Array, Schur]:
    """Mean (N-1,) and blocks about it, of the points (n, N-1) of a cluster."""
    mean, covariance = cluster_statistics(cluster)
    blocks = covariance[:d, :d], covariance[d:, d:], covariance[:d, d:]
    return mean, Schur(*blocks, _ridge_m(convention))


def match_schur(deviations: Array, d: int, convention: str) -> Schur:
    """Blocks of the deviations (P, N-1) from the reference [eq:cov_pm].

    "reference" takes Σ_d and Σ_m about the mean of the deviations and only C_dm about the
    reference; the result is then no Schur complement, and rᵀS⁻¹r may be of any sign.
    """
    about_reference = _second_moment(deviations, deviations)
    diagonal = about_reference
    if convention == "reference":
        _, diagonal = cluster_statistics(deviations)
    return Schur(diagonal[:d, :d], diagonal[d:, d:], about_reference[:d, d:], _ridge_m(convention))


# --------------------------------------------------------------------------------------------------
# Perceptual Separation
# --------------------------------------------------------------------------------------------------


def separation_bounds(
    outputs: ArrayLike,
    references: ArrayLike,
    distortions: ArrayLike,
    confidence: float = 0.95,
    convention: str = "paper",
    **options: Any,
) -> Bounds:
    """Radius and tail of PS [app:ps_measure]; ``options`` as in ``oracle.separation``."""
    n_outputs = len(np.asarray(outputs))
    radius, tail = np.full((2, n_outputs), np.nan)
    frame = _frame((outputs, references, distortions), convention, options)
    if frame is None:
        return Bounds(radius, tail)
    for o in frame.output_row:
        own, foreign = _separation_sides(frame, o, convention)
        if convention == "reference" and _all_kept(frame):
            radius[o] = tail[o] = 0.0
            continue
        radius[o] = separation_radius(own, foreign)
        tail[o] = separation_tail(own, foreign, 1.0 - confidence, convention)
    return Bounds(radius, tail)


@dataclass
class Side:
    """An output against one cluster."""

    distance: float  # A or B, in the retained space
    discarded: float  # b = rᵀS⁻¹r
    sigma: Array  # Σ^(d), without ridge
    n: int  # points of the cluster, N_p + 1


def _separation_sides(frame: Frame, output: int, convention: str) -> tuple[Side, Side]:
    """The own cluster and the closest foreign one; j* is that of the retained space."""
    graph = "reference" if convention == "reference" else "paper"
    psi, d = frame.map.coordinates, frame.map.d
    x = psi[frame.output_row[output]]
    sides = {}
    for j in frame.sources:
        rows = frame.cluster_rows(j)
        mean, schur = separation_schur(psi[rows], d, convention)
        delta = x - mean
        sides[j] = Side(
            distance=distance(max(schur.a(delta[:d]), 0.0), graph),
            discarded=schur.b(delta[:d], delta[d:]),
            sigma=schur.sigma_d,
            n=len(rows),
        )
    own = frame.attributed[output]
    foreign = min((j for j in sides if j != own), key=lambda j: sides[j].distance)
    return sides[own], sides[foreign]


def separation_radius(own: Side, foreign: Side) -> float:
    """[eq:truncation_error_ps], with |δ| <= sqrt(b) of [eq:delta_ij]."""
    a, b = own.distance, foreign.distance
    return (b * math.sqrt(own.discarded) + a * math.sqrt(foreign.discarded)) / (a + b) ** 2


def separation_tail(own: Side, foreign: Side, delta: float, convention: str) -> float:
    """[eq:aftermizath]: the gradient norm of PS times the errors of A and B."""
    a, b = own.distance, foreign.distance
    lipschitz = math.hypot(a, b) / (a + b) ** 2  # [eq:finite_sample_error_ps]
    events = 4 if convention == "derived" else 2  # mean and covariance, of one or either cluster
    n = max(int(EFFECTIVE * own.n), 3) if convention == "reference" else None  # the own cluster's
    errors = [_side_error(side, delta / events, convention, n=n) for side in (own, foreign)]
    if convention == "paper":
        return lipschitz * math.sqrt(sum(errors))
    tail = lipschitz * math.hypot(*errors)
    return min(tail, 1.0) if convention == "reference" else tail


def _side_error(
    side: Side, delta: float, convention: str, constant: float = 1.0, n: float | None = None
) -> float:
    """ε of [eq:temp_A]: Δ_μ of [eq:ps_mu], Δ_Σ of [eq:ps_cov], over n effective points.

    "reference" has Σ + εI throughout and sqrt(r/n) in Δ_Σ. "derived" is ``|A - Â|``, from the
    perturbation of A²: 2 A Δ_μ / sqrt(λ̃min) + A² Δ_Σ / λ̃min.
    """
    sigma = side.sigma
    if convention == "reference":
        sigma = sigma + EPSILON * np.eye(len(sigma))
    eigenvalues = np.linalg.eigvalsh(sigma)
    top, bottom = float(eigenvalues[-1]), float(eigenvalues[0])
    floored = max(bottom, FLOOR * top) if convention == "reference" else bottom + FLOOR * top
    n = EFFECTIVE * side.n if n is None else n
    trace = float(np.trace(sigma))
    r = trace / top
    log = math.log(2.0 / delta)
    first = r / n if convention == "paper" else math.sqrt(r / n)
    delta_mu, relative = math.sqrt(2.0 * top * log / n), constant * (first + (r + log) / n)
    a = side.distance
    if convention != "derived":
        return 2.0 * math.sqrt(a) * delta_mu * math.sqrt(top / floored) + a * relative
    delta_mu += math.sqrt(trace / n)
    squared = 2.0 * a * delta_mu / math.sqrt(floored) + a**2 * top * relative / floored
    return min(math.sqrt(squared), squared / a) if a > 0.0 else math.sqrt(squared)


# --------------------------------------------------------------------------------------------------
# Perceptual Match
# --------------------------------------------------------------------------------------------------


@dataclass
class GammaFit:
    """A cluster's squared distances about its reference, and the output's."""

    g: Array  # (P,) retained, plain squared distances
    gaps: Array  # (P,) δ_{G,p} [eq:diff_sq_mahal]
    a: float
    gap_a: float  # δ_{G,a} [eq:diff_sq_mahal_out]


def match_bounds(
    outputs: ArrayLike,
    references: ArrayLike,
    distortions: ArrayLike,
    confidence: float = 0.95,
    convention: str = "paper",
    **options: Any,
) -> Bounds:
    """Radius and tail of PM [app:pm_measure]; ``options`` as in ``oracle.match``."""
    n_outputs = len(np.asarray(outputs))
    radius, tail = np.full((2, n_outputs), np.nan)
    frame = _frame((outputs, references, distortions), convention, options)
    if frame is None:
        return Bounds(radius, tail)
    for o in frame.output_row:
        if convention == "reference" and _all_kept(frame):
            radius[o] = tail[o] = 0.0
            continue
        fit = _gamma_fit(frame, o, convention)
        radius[o] = match_radius(fit, convention)
        tail[o] = match_tail(fit, 1.0 - confidence, convention)
    return Bounds(radius, tail)


def _gamma_fit(frame: Frame, output: int, convention: str) -> GammaFit:
    psi, d = frame.map.coordinates, frame.map.d
    source = frame.attributed[output]
    centre = psi[frame.reference_row[source]]
    deviations = psi[frame.distortion_rows[source]] - centre
    x = psi[frame.output_row[output]] - centre
    schur = match_schur(deviations, d, convention)
    return GammaFit(
        g=np.array([schur.a(p[:d]) for p in deviations]),
        gaps=np.array([schur.b(p[:d], p[d:]) for p in deviations]),
        a=schur.a(x[:d]),
        gap_a=schur.b(x[:d], x[d:]),
    )


def _moments(g: Array, convention: str) -> tuple[float, float]:
    """Mean and unbiased variance [eq:stats_pm]; "reference" adds 1e-12 to the variance."""
    mean = float(sum(g)) / len(g)
    variance = sum((float(v) - mean) ** 2 for v in g) / (len(g) - 1)
    return mean, variance + (1e-12 if convention == "reference" else 0.0)


def _q(k: float, theta: float, a: float) -> float:
    return float(scipy.special.gammaincc(k, a / theta))


def _corner_maximum(
    centre: tuple[float, float, float],
    half: tuple[float, float, float],
    floors: tuple[float, float, float],
) -> float:
    """Largest change of Q over the eight corners of a box [eq:pm_corner_radius]."""
    at_centre = _q(*centre)
    changes = []
    for signs in itertools.product((-1, 1), repeat=3):
        corner = [max(c + s * h, f) for c, s, h, f in zip(centre, signs, half, floors)]
        changes.append(abs(_q(*corner) - at_centre))
    return max(changes)


def _floors(convention: str) -> tuple[float, float, float]:
    return (1e-6, 1e-6, 1e-8) if convention == "reference" else (1e-12, 1e-12, 0.0)


def match_radius(fit: GammaFit, convention: str) -> float:
    """[eq:ps_bias] over the box of [eq:pm_k_bias], [eq:pm_theta_bias], C_1 = C_2 = 1.

    "derived" takes the box up to the full-space k and θ themselves.
    """
    n = len(fit.g)
    mean, variance = _moments(fit.g, convention)
    mean_full, variance_full = _moments(fit.g + fit.gaps, convention)
    if convention == "derived":  # no constants: the full-space parameters are there to be computed
        half = (
            abs(mean_full**2 / variance_full - mean**2 / variance),
            abs(variance_full / mean_full - variance / mean),
            fit.gap_a,
        )
        centre = mean**2 / variance, variance / mean, fit.a
        return _corner_maximum(centre, half, _floors(convention))
    factor = float(max(fit.gaps)) * n / (n - 1)
    guard = 1e-9 if convention == "reference" else 0.0
    half = (
        factor * (mean_full + mean) / variance,
        factor * (variance_full + variance) / (mean**2 + guard),
        fit.gap_a,
    )
    return _corner_maximum((mean**2 / variance, variance / mean, fit.a), half, _floors(convention))


def match_tail(fit: GammaFit, delta: float, convention: str) -> float:
    """[eq:pm_prob_tail]: moments by Bernstein, then k and θ to first order, then the box."""
    n = len(fit.g)
    mean, variance = _moments(fit.g, convention)
    sigma = math.sqrt(variance)
    k, theta, a = mean**2 / variance, variance / mean, fit.a
    log = math.log(2.0 / (delta / 3.0))
    if convention == "reference":
        largest = float(max(fit.g)) + 1e-12
        delta_a = largest * math.sqrt(2.0 * log / n)
        cap_a, guard = 0.5 * a + 1e-12, 1e-9
    else:
        largest = float(max(fit.g + fit.gaps))  # R over the full space
        delta_a = largest * math.sqrt(log / n)
        cap_a, guard = 0.5 * a, 0.0
    delta_mu = math.sqrt(2.0 * variance * log / n) + 3.0 * largest * log / n
    delta_sigma = math.sqrt(2.0 * largest**2 * log / n) + 3.0 * largest**2 * log / n
    if convention == "derived":  # the bound is one of σ², by R²; |σ - σ̂| follows
        of_variance = math.sqrt(2.0 * largest**4 * log / n) + 3.0 * largest**2 * log / n
        delta_sigma = min(math.sqrt(of_variance), of_variance / sigma)
    by_mu = 2.0 * mean / (variance + guard), variance / (mean**2 + guard)
    by_sigma = 2.0 * mean**2 / (sigma**3 + guard), 2.0 * sigma / (mean + guard)
    half = (
        min(by_mu[0] * delta_mu + by_sigma[0] * delta_sigma, 0.5 * k),
        min(by_mu[1] * delta_mu + by_sigma[1] * delta_sigma, 0.5 * theta),
        min(delta_a, cap_a),
    )
    floors = (0.0, 0.0, 1e-8) if convention == "reference" else _floors(convention)
    return _corner_maximum((k, theta, a), half, floors)


# --------------------------------------------------------------------------------------------------
# The truncation of the embedding
# --------------------------------------------------------------------------------------------------


def truncation_errors(embedded: DiffusionMap) -> Array:
    """E(x_i), (N,): the norm of the discarded coordinates [app:conf_bound_pi]; "paper" maps."""
    return np.array(
        [math.sqrt(float(np.sum(row[embedded.d :] ** 2))) for row in embedded.coordinates]
    )


def truncation_expectation(embedded: DiffusionMap, time: float = 1) -> float:
    """(Σ_{l>d} λ^2t)^½: the root mean square of E under π, hence at least its mean (Jensen)."""
    return math.sqrt(sum(float(lam) ** (2 * time) for lam in embedded.eigenvalues[embedded.d :]))


def truncation_bound(
    embedded: DiffusionMap, confidence: float = 0.95, time: float = 1, constant: float = 1.0
) -> float:
    """C λ_{d+1}^t K (m + sqrt(m ln(1/δ))), K of [eq:sub_gaussian]; 0 where nothing is discarded."""
    m = len(embedded.eigenvalues) - embedded.d
    if m == 0:
        return 0.0
    k = float(np.min(embedded.stationary)) ** -0.5 / math.sqrt(math.log(2.0))
    log = math.log(1.0 / (1.0 - confidence))
    following = float(embedded.eigenvalues[embedded.d]) ** time
    return constant * following * k * (m + math.sqrt(m * log))


# --------------------------------------------------------------------------------------------------
# Bartlett's effective sample size
# --------------------------------------------------------------------------------------------------


def autocorrelation(cluster: Array, lag: int) -> float:
    """ρ̂_l: Pearson correlation of points l apart, averaged over the coordinates of (n, d)."""
    total = 0.0
    for column in cluster.T:
        early = column[:-lag] - np.mean(column[:-lag])
        late = column[lag:] - np.mean(column[lag:])
        scale = math.sqrt(float(np.sum(early**2)) * float(np.sum(late**2)))
        total += float(np.sum(early * late)) / scale if scale > 0.0 else 0.0
    return total / cluster.shape[1]


def bartlett_sample_size(cluster: Array) -> float:
    """n / (1 + 2 Σ_{l<=L} ρ̂_l), L the first lag that is insignificant [sec:bounds]."""
    n = len(cluster)
    z = float(scipy.stats.norm.ppf(0.975))
    total = 0.0
    for lag in range(1, n - 1):
        rho = autocorrelation(cluster, lag)
        total += rho
        if abs(rho) < z / math.sqrt(n - lag):
            break
    return n / (1.0 + 2.0 * total)


# --------------------------------------------------------------------------------------------------
# Frames -> utterance [sec:propagate_ci_to_corr]; b: radii, p: half-widths, both (F_i,)
# --------------------------------------------------------------------------------------------------


def normal_quantile(confidence: float) -> float:
    """z_{c*}, c* = (1 + c) / 2."""
    return float(scipy.stats.norm.ppf((1.0 + confidence) / 2.0))


def average_halfwidth(p: Array, confidence: float = 0.95, gap: int = 4) -> float:
    """[eq:avg_pool_h] with σ = p / z."""
    z = normal_quantile(confidence)
    mean_square = sum((float(v) / z) ** 2 for v in p) / len(p)
    return z * math.sqrt(gap + 1) / math.sqrt(len(p)) * math.sqrt(mean_square)


def windows(count: int, window: int = 20, hop: int = 10) -> list[range]:
    """The windows of [app:agg]: the last full one included, one short one if none is full."""
    if count < window:
        return [range(count)]
    return [range(start, start + window) for start in range(0, count - window + 1, hop)]


def _windowed_norm(values: Array, window: int, hop: int, p: float) -> float:
    """RMS over windows of the p-mean: the l_i of [app:agg]."""
    squares = []
    for frames in windows(len(values), window, hop):
        mean = sum(abs(float(values[f])) ** p for f in frames) / len(frames)
        squares.append(mean ** (2.0 / p))
    return math.sqrt(sum(squares) / len(squares))


def pool_separation(ps: Array, window: int = 20, hop: int = 10, p: float = 6) -> float:
    """[eq:pesq_pooling_ps]."""
    loudness = _windowed_norm(ps, window, hop, p)
    return 0.999 + 4.0 / (1.0 + math.exp(-1.3669 * loudness + 3.8224))


def pesq_slope(ps: Array, window: int = 20, hop: int = 10, p: float = 6) -> float:
    """∂s/∂u at the pooled u, by the chain rule on s."""
    e = math.exp(-1.3669 * _windowed_norm(ps, window, hop, p) + 3.8224)
    return 4.0 * 1.3669 * e / (1.0 + e) ** 2


def pesq_radius(ps: Array, b: Array, window: int = 20, hop: int = 10, p: float = 6) -> float:
    """[eq:pesq_pool_b] as printed: divided by sqrt(M)."""
    overlap = math.ceil(window / hop) / math.sqrt(len(windows(len(b), window, hop)))
    return pesq_slope(ps, window, hop, p) * overlap * math.sqrt(float(np.mean(b**2)))


def pesq_radius_secant(ps: Array, b: Array, window: int = 20, hop: int = 10, p: float = 6) -> float:
    """The change of s over the largest change of its argument: no first-order step."""
    u, shift = _windowed_norm(ps, window, hop, p), _windowed_norm(b, window, hop, p)

    def s(x: float) -> float:
        return 0.999 + 4.0 / (1.0 + math.exp(-1.3669 * x + 3.8224))

    return max(s(u + shift) - s(u), s(u) - s(max(u - shift, 0.0)))


def pesq_halfwidth_gradient(
    ps: Array, p_half: Array, window: int = 20, hop: int = 10, p: float = 6, gap: int = 4
) -> float:
    """The delta method with differences of the pooled score, inflated for frames gap apart."""
    terms = []
    for f in range(len(ps)):
        up, down = ps.copy(), ps.copy()
        up[f] += 1e-5
        down[f] -= 1e-5
        up, down = pool_separation(up, window, hop, p), pool_separation(down, window, hop, p)
        terms.append((up - down) / 2e-5 * float(p_half[f]))
    return min(math.sqrt((gap + 1) * sum(t**2 for t in terms)), sum(abs(t) for t in terms))


# --------------------------------------------------------------------------------------------------
# Utterances -> correlation with ratings; v, ratings, b, h: (Q,), one entry per system
# --------------------------------------------------------------------------------------------------


def pcc(v: Array, ratings: Array) -> float:
    """[eq:ps_pcc_i]."""
    return float(np.corrcoef(v, ratings)[0, 1])


def srcc(v: Array, ratings: Array) -> float:
    """[eq:srcc_ps], ties at average ranks; 0 where every value is the same."""
    x, m = scipy.stats.rankdata(v), scipy.stats.rankdata(ratings)
    return pcc(x, m) if np.ptp(x) > 0.0 and np.ptp(m) > 0.0 else 0.0


def pcc_gradient(v: Array, ratings: Array) -> Array:
    """[eq:pcc_grad], with both vectors centred."""
    x, m = v - np.mean(v), ratings - np.mean(ratings)
    norm_x, norm_m = math.sqrt(float(x @ x)), math.sqrt(float(m @ m))
    return m / (norm_x * norm_m) - pcc(v, ratings) * x / norm_x**2


def pcc_radius(v: Array, ratings: Array, b: Array) -> float:
    """[eq:pcc_bias], with the norm of b itself."""
    return float(np.linalg.norm(pcc_gradient(v, ratings)) * np.linalg.norm(b))


def pcc_halfwidth(v: Array, ratings: Array, h: Array) -> float:
    """[eq:pcc_hw]; z cancels."""
    return math.sqrt(float(np.sum((pcc_gradient(v, ratings) * h) ** 2)))


def srcc_radius_orders(v: Array, ratings: Array, b: Array) -> float:
    """The largest change of SRCC over every order that some v' with |v' - v| <= b can have.

    An order is possible if values can be picked greedily upwards: each at least its own lower end
    and at least its predecessor's value, and none above its own upper end. Any valid radius is at
    least this.
    """
    base, count, worst = srcc(v, ratings), len(v), 0.0
    for order in itertools.permutations(range(count)):
        level, possible = -math.inf, True
        for q in order:
            level = max(level, float(v[q] - b[q]))
            possible = possible and level <= float(v[q] + b[q])
        if possible:
            position = np.empty(count)
            position[list(order)] = np.arange(count)
            worst = max(worst, abs(srcc(position, ratings) - base))
    return worst


def srcc_halfwidth(v: Array, ratings: Array, jitters: Array, confidence: float = 0.95) -> float:
    """[eq:srcc_hw] for given draws (n, Q) of η, with the c quantile of the absolute change."""
    base = srcc(v, ratings)
    return float(np.quantile([abs(srcc(v + eta, ratings) - base) for eta in jitters], confidence))


def scenario_radius(b: Sequence[Sequence[float]]) -> float:
    """[eq:scenario_bias]: the mean over trials and their sources."""
    flat = [value for trial in b for value in trial]
    return sum(flat) / len(flat)


def scenario_halfwidth(h: Sequence[Sequence[float]], correlation: Sequence[float]) -> float:
    """[eq:scenario_halfwidth_pcc]: h per trial and source, ρ_l per trial; z cancels."""
    total, count = 0.0, 0
    for trial, rho in zip(h, correlation, strict=True):
        count += len(trial)
        total += sum(value**2 for value in trial)
        for i in range(len(trial)):
            for j in range(i + 1, len(trial)):
                total += 2.0 * rho * trial[i] * trial[j]
    return math.sqrt(total) / count
